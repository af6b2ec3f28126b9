"""`Stepper`: one optimizer while a program is captured; its step becomes part of the program.

Fakes of the parameters stand in its groups.  Numbers in its groups are inputs of the program, made when the step first
computes with them, and read anew from the optimizer at every call.  `FormulaStepper` has the steps of SGD, Adam and
AdamW as formulas (`optimizers`), with one count for all parameters; `own_steps` runs an optimizer's own code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ....errors import TraceError
from ...base import OPTIMIZER
from ..private import STEP_HOOKS, DisableTorchFunction, without_compilers, without_modes
from ..recording.dispatch import Interrupted
from ..recording.slots import Slot, Slots
from . import optimizers
from .kept_state import put
from .live_calls import LiveCalls
from .numbers import LiveNumber, Numbers, live_builtins
from .options import Path, at, is_number, is_tensor_number, leaves, option_name, present, rebuilt
from .watching import Count, Ledger, StepWatch


class Stepper:
    """What all optimizers have in common."""

    def __init__(self, session: Slots, name: str, optimizer: Any, ledger: Ledger) -> None:
        self.session, self.name, self.optimizer, self.ledger = session, name, optimizer, ledger
        self.real_groups = optimizer.param_groups
        self.members = [
            [session.parameter(f"{name}.param_groups.{g}.params.{p}", real) for p, real in enumerate(group["params"])]
            for g, group in enumerate(self.real_groups)
        ]
        self.slots: dict[str, Slot] = {}
        """Options and state that the program has, by name."""
        self.option_at = {
            option_name(name, path, g, len(self.real_groups)): (g, path, value)
            for g, group in enumerate(self.real_groups)
            for path, value in leaves({key: part for key, part in group.items() if key != "params"})
            if is_number(value) or is_tensor_number(value)
        }
        self.numbers: Numbers | None = None
        self.first_is_special = False
        """Whether the program is that of the first step only."""

    # In the optimizer's place

    @contextmanager
    def swapped(self) -> Iterator[None]:
        attributes = vars(self.optimizer)
        originals, contents = dict(attributes), {key: copied(value) for key, value in attributes.items()}
        self.optimizer.param_groups = [
            {**group, "params": [slot.fake for slot in slots]} for group, slots in zip(self.real_groups, self.members)
        ]
        self.optimizer.step, self.optimizer.zero_grad = self.step, self.zero_grad
        try:
            yield
            self._check_options()
        finally:
            attributes.clear()
            attributes.update({key: restored(value, contents[key]) for key, value in originals.items()})

    def _check_options(self) -> None:
        """What the program sets beside the step, by itself, would be set once and never again."""
        for name, (g, path, value) in self.option_at.items():
            now = at(self.optimizer.param_groups[g], path) if g < len(self.optimizer.param_groups) else None
            slot = self.acting().slots.get(name)
            stepped = slot is not None and slot.now is not None
            if now is not value and not isinstance(now, LiveNumber) and not stepped:
                raise TraceError(
                    f"the captured program changes {name}: captured, that would happen once",
                    rows=[("from", repr(value)), ("to", repr(now))],
                    help="change options outside of it: call scheduler.step() between steps",
                )

    def zero_grad(self, set_to_none: bool = True) -> None:
        for slot in (slot for slots in self.members for slot in slots):
            keep = not set_to_none and slot.fake.grad is not None
            slot.fake.grad = torch.zeros_like(slot.fake, requires_grad=False) if keep else None

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        with torch.no_grad(), self.session.recorder.update(), self._checked_hooks():
            self.run()
        self.optimizer._opt_called = True
        return loss

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # schedulers ask whether somebody replaced it

    def run(self) -> None:
        raise NotImplementedError

    def trained(self) -> list[Slot]:
        return [slot for slots in self.members for slot in slots if slot.fake.grad is not None]

    @contextmanager
    def running(self, numbers: Numbers) -> Iterator[None]:
        with LiveCalls(numbers), live_builtins(numbers), without_compilers():
            yield

    # Hooks

    @contextmanager
    def _checked_hooks(self) -> Iterator[None]:
        """Hooks run as part of the step; one that leaves nothing in the program would act at the capture only."""
        kept = []
        for held in self.hooks():
            kept.append((held, dict(held)))
            for key, hook in list(held.items()):
                held[key] = self._checked(hook)
        try:
            yield
        finally:
            for held, before in kept:
                held.update(before)

    def hooks(self) -> tuple[OrderedDict[int, Any], ...]:
        own = self.optimizer._optimizer_step_pre_hooks, self.optimizer._optimizer_step_post_hooks
        return own[0], own[1], *STEP_HOOKS  # type: ignore[return-value]

    def _checked(self, hook: Any) -> Any:
        def call(*args: Any) -> Any:
            nodes = len(self.session.recorder.nodes)
            groups = [dict(group) for group in self.optimizer.param_groups]
            made = hook(*args)
            same = all(
                a.keys() == b.keys() and all(a[key] is b[key] for key in a)
                for a, b in zip(groups, self.optimizer.param_groups)
            )
            if len(self.session.recorder.nodes) == nodes and same:
                name = getattr(hook, "__qualname__", type(hook).__name__)
                raise Interrupted(
                    TraceError(
                        f"the step hook {name} does nothing to tensors: captured, it would act once and never again",
                        rows=[("optimizer", type(self.optimizer).__name__)],
                        help="remove the hook while the step is captured, and call it yourself between steps",
                    )
                )
            return made

        return call

    # Options

    def as_live(self, numbers: Numbers, g: int) -> Callable[[Path, Any], Any]:
        """Live numbers for the group's numbers; one that the program has set by itself is what it is."""

        def leaf(path: Path, value: Any) -> Any:
            name = option_name(self.name, path, g, len(self.real_groups))
            known = self.option_at.get(name)
            if known is None or known[2] is not value:
                return value
            return self.live_option(numbers, name, value)

        return leaf

    def live_option(self, numbers: Numbers, name: str, value: Any) -> Any:
        return numbers.leaf(name, type(value) is int)

    def option_values(self) -> dict[str, float]:
        """Numbers in the groups that are known now; those in tensors on a device are not asked for."""
        return {
            name: plainly(value)
            for name, (_, _, value) in self.option_at.items()
            if not isinstance(value, torch.Tensor) or value.device.type == "cpu"
        }

    def option(self, name: str) -> Slot:
        if name not in self.slots:
            g, path, value = self.option_at[name]
            optimizer, whole = self.optimizer, type(value)

            def read() -> Any:
                optimizer._opt_called = True  # schedulers ask whether the optimizer has stepped
                return torch.as_tensor(present(optimizer, g, path, name), dtype=torch.float64).reshape(())

            def write(tensor: Any) -> None:
                put(optimizer.param_groups[g], path, tensor, int if whole is int else float)

            self.slot(name, self.fake((), (), torch.float64), read, write)
        return self.slots[name]

    # Slots

    def fake(self, shape: Any, stride: Any, dtype: Any) -> Any:
        with without_modes(), self.session.mode:
            return torch.empty_strided(shape, stride, dtype=dtype)

    def slot(self, name: str, fake: Any, read: Any, write: Any, owner: Any = None) -> Slot:
        self.slots[name] = self.session.late_slot(name, OPTIMIZER, fake, read, write, owner)
        return self.slots[name]

    # What cannot change

    def watch(self) -> StepWatch:
        """Called last: what the capture needed is let go."""
        made = self.acting()._watch()
        self.numbers = None
        del self.session
        return made

    def acting(self) -> Stepper:
        return self

    def _watch(self) -> StepWatch:
        optimizer, guards = self.optimizer, list(self.numbers.guards.values()) if self.numbers is not None else []
        return StepWatch(
            optimizer, self.ledger, guards, {name: self._host(name) for name in self.unchanged_options()},
            self.counts(), self.still_fresh if self.first_is_special else None, self.tree_after(), self.hooks(),
        )  # fmt: skip

    def _host(self, name: str) -> Callable[[], float]:
        optimizer, (g, path, _) = self.optimizer, self.option_at[name]
        return lambda: float(present(optimizer, g, path, name))

    def unchanged_options(self) -> list[str]:
        return list(self.option_at)

    def counts(self) -> dict[str, Count]:
        return {}

    def still_fresh(self) -> bool:
        return False

    def tree_after(self) -> Any:
        """The state that there is after the step, by name."""
        return {}


class FormulaStepper(Stepper):
    """SGD, Adam, AdamW; not where parameters have taken different numbers of steps, for which there is one count."""

    def __init__(self, session: Slots, name: str, optimizer: Any, ledger: Ledger, otherwise: Stepper) -> None:
        super().__init__(session, name, optimizer, ledger)
        self.otherwise: Stepper | None = otherwise
        self.otherwise_ran = False
        self.formula = optimizers.FORMULAS[type(optimizer)]
        self.stepped: dict[int, Any] = {}
        self.absent: set[tuple[int, str]] = set()
        self.born: list[tuple[str, Any, str]] = []
        """State that there was none of: name, parameter, key."""

    def run(self) -> None:
        if self.numbers is None and self.otherwise is not None and self._alike():
            self.otherwise = None
        if self.otherwise is not None:
            self.otherwise_ran = True
            self.otherwise.run()
            return
        before, after = self.hooks()[::2], self.hooks()[1::2]
        self._call(hook for held in reversed(before) for hook in held.values())
        if self.numbers is None:
            self.numbers = Numbers(self.session.recording, self.option_values(), lambda name: self.option(name).fake)
        with self.running(self.numbers):
            self._groups(self.numbers)
        self._call(hook for held in after for hook in held.values())

    def _alike(self) -> bool:
        return not self.otherwise_ran and len(counts_of(self.optimizer, [slot.owner for slot in self.trained()])) < 2

    def _call(self, hooks: Iterator[Any]) -> None:
        for hook in hooks:
            if hook(self.optimizer, (self.optimizer,), {}) is not None:
                raise TraceError("a step hook changes the arguments of step()", help="remove it for the capture")

    def _groups(self, numbers: Numbers) -> None:
        self.stepped.update((id(slot.owner), slot.owner) for slot in self.trained())
        count = self._count() if self.formula.counts and self.stepped else None
        if count is not None:
            count.add_(1)
        for g, (group, slots) in enumerate(zip(self.optimizer.param_groups, self.members)):
            slots = [slot for slot in slots if slot.fake.grad is not None]
            if not slots:
                continue
            live = rebuilt({key: value for key, value in group.items() if key != "params"}, self.as_live(numbers, g))
            settings = optimizers.settings(self.optimizer, live)
            keys = optimizers.state_keys(self.optimizer, settings)
            shared = self.formula.once(settings, count)
            for slot in slots:
                state = {key: self._moment(slot, key).fake for key in keys}
                fresh = any((id(slot.owner), key) in self.absent for key in keys)
                if fresh and f"{self.name}.step" in self.ledger.tree:
                    raise TraceError(
                        f"{slot.name} is trained from now on, and counts its steps from here",
                        help="call step.sync() before: where counts differ, they are captured one by one",
                    )
                first = fresh and optimizers.first_is_special(settings)
                self.first_is_special |= first
                with self.session.scopes.within(slot.name.rpartition(".")[0]):
                    self.formula.apply(settings, state, slot.fake, slot.fake.grad, first, *shared)
        self.absent.clear()

    def acting(self) -> Stepper:
        return self.otherwise or self

    def tree_after(self) -> Any:
        return {name: None for name in self.slots if name not in self.option_at}

    def still_fresh(self) -> bool:
        held, kept = self.optimizer.state, self.ledger.tree
        return any(at(held.get(real), (key,)) is None and name not in kept for name, real, key in self.born)

    def _count(self) -> Any:
        """PyTorch keeps a count for each parameter, which differ only if some had no gradient."""
        optimizer, stepped, name = self.optimizer, self.stepped, f"{self.name}.step"
        if name in self.slots:
            return self.slots[name].fake

        def read() -> Any:
            self.ledger.forget(name)
            counts = counts_of(optimizer, stepped.values())
            if len(counts) > 1:
                raise TraceError(
                    "the parameters of an optimizer have taken different numbers of steps",
                    rows=[("steps", ", ".join(f"{count:g}" for count in sorted(counts)))],
                    help="give parameters that are not always trained an optimizer of their own",
                )
            return torch.tensor(counts.pop() if counts else 0.0, dtype=torch.float64)

        def write(tensor: Any) -> None:
            wide = torch.get_default_dtype() == torch.float64
            for real in stepped.values():
                state = optimizer.state[real]
                kind = state["step"].dtype if "step" in state else torch.float64 if wide else torch.float32
                state["step"] = tensor.to(kind).clone()

        return self.slot(name, self.fake((), (), torch.float64), read, write).fake

    def _moment(self, slot: Slot, key: str) -> Slot:
        optimizer, real, name = self.optimizer, slot.owner, f"{slot.name}.{key}"
        if name in self.slots:
            return self.slots[name]
        if at(optimizer.state.get(real), (key,)) is None and name not in self.ledger.tree:
            self.absent.add((id(real), key))
            self.born.append((name, real, key))

        def read() -> Any:
            self.ledger.forget(name)
            held = at(optimizer.state.get(real), (key,))
            return torch.zeros_like(real, requires_grad=False) if held is None else held

        def write(tensor: Any) -> None:
            self.ledger.forget(name)
            put(optimizer.state[real], (key,), tensor)

        return self.slot(name, self.fake(slot.fake.shape, _dense(slot.fake), slot.fake.dtype), read, write, real)


def plainly(value: Any) -> float:
    """A real number, in the middle of a capture."""
    with without_modes(), DisableTorchFunction():
        return float(value)


def counts_of(optimizer: Any, parameters: Iterable[Any]) -> set[float]:
    """How many steps parameters have taken."""
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    return {plainly(state["step"]) if "step" in state else 0.0 for state in states}


def _dense(parameter: Any) -> Any:
    """The strides of a tensor that is made like this one."""
    return torch.empty_like(parameter, device="meta", requires_grad=False).stride()


def copied(value: Any) -> Any:
    """A container's contents, to put back what code that runs on fakes puts in."""
    return value.copy() if type(value) in (list, dict, set) else value


def restored(value: Any, contents: Any) -> Any:
    if type(value) is list:
        value[:] = contents
    elif type(value) in (dict, set):
        value.clear()
        value.update(contents)
    return value
