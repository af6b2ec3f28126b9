"""Slots: one for each tensor of state of a captured program; `Slots` are all of them, while it is captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....errors import TraceError
from ...base import BUFFER, GRADIENT
from ..dtypes import tensor_type
from ..private import FakeTensorMode, without_modes
from .aliasing import Record
from .dispatch import RecordingMode
from .recorder import Recorder
from .source import Scopes


@dataclass(slots=True)
class Slot:
    """One tensor of state.  ``names`` has more than one for tied weights."""

    names: list[str]
    kind: str
    fake: Any
    read: Callable[[], Any]
    write: Callable[[Any], None]
    owner: Any = None
    """The real parameter it belongs to."""
    value: int = -1
    """The program's value for it, while it is captured."""
    now: Any = None
    """What stands in its place after a step, if that is another tensor."""

    @property
    def name(self) -> str:
        return self.names[0]


class Slots:
    """The state of a program, and fakes for it."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.scopes = Scopes({})
        self.recording = RecordingMode(recorder, self.scopes, self.fake)
        self.slots: list[Slot] = []
        self.by_tensor: dict[int, Slot] = {}
        self.places: list[tuple[dict[str, Any], str, Slot]] = []
        """Where in modules each stands."""

    def fake(self, real: Any) -> Any:
        """A tensor like ``real`` without numbers, on the CPU whatever its device: a program does not depend on it."""
        if real.layout != torch.strided:
            raise TraceError("a sparse tensor cannot be captured", help="call .to_dense() on it first")
        with without_modes(), self.mode:
            made = torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device="cpu")
            if isinstance(real, torch.nn.Parameter):
                return torch.nn.Parameter(made, requires_grad=real.requires_grad)
            return made.requires_grad_(real.requires_grad)

    def now(self, slot: Slot) -> Any:
        """The fake that stands where the slot's did: a module may assign a new buffer instead of writing to the old."""
        if slot.now is not None:
            return slot.now
        if slot.kind == BUFFER:
            for held, name, known in self.places:
                if known is slot and isinstance(held.get(name), torch.Tensor):
                    return held[name]
        if slot.kind == GRADIENT:
            grad = self.by_tensor[id(slot.owner)].fake.grad
            return slot.fake if grad is None else grad
        return slot.fake

    def finished(self) -> tuple[Slot, ...]:
        """The slots, without the fakes, which would keep all of the capture alive."""
        for slot in self.slots:
            slot.fake = slot.now = None
        return tuple(self.slots)

    def slot(self, name: str, kind: str, fake: Any, read: Any, write: Any, owner: Any = None) -> Slot:
        self.slots.append(Slot([name], kind, fake, read, write, owner))
        return self.slots[-1]

    def parameter(self, name: str, real: Any) -> Slot:
        slot = self.by_tensor.get(id(real))
        if slot is None:
            raise TraceError(
                f"{name}, of shape {list(real.shape)}, belongs to no module that is captured",
                help="pass the module that has it to the captured function",
            )
        return slot

    def late_slot(self, name: str, kind: str, fake: Any, read: Any, write: Any, owner: Any = None) -> Slot:
        """State that is found while the program runs: what an optimizer's step computes with."""
        slot = self.slot(name, kind, fake, read, write, owner)
        self.enter(slot)
        return slot

    def enter(self, slot: Slot) -> None:
        """The slot is an input of the program."""
        slot.value = self.recorder.input(tensor_type(slot.fake), slot.name)
        self.recording.track(slot.fake, Record(slot.value))
