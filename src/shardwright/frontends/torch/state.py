"""The state a program works on: parameters, buffers, gradients, what optimizers remember.

`Session` finds modules and optimizers in what the user hands over, puts fake tensors in their place while the program
is captured, and keeps for each a `Slot`: how to read the real tensor and how to write its next state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from ...errors import TraceError
from ..base import BUFFER, GRADIENT, NORM, OPTIMIZER, PARAMETER
from . import optimizers
from .private import FakeTensorMode, tree_flatten
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

    @property
    def name(self) -> str:
        return self.names[0]


class Session:
    """Fakes for everything real, while a program is captured."""

    def __init__(self, roots: Sequence[tuple[str, Any]], recorder: Recorder, buffers: bool = False) -> None:
        self.recorder = recorder
        self.buffers = buffers
        """Whether gradients add up: each trained parameter then has one from the start, of zeros if need be."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.slots: list[Slot] = []
        self.by_tensor: dict[int, Slot] = {}
        self.scopes = Scopes({})
        self.modules = [(name, root) for name, root in roots if isinstance(root, torch.nn.Module)]
        self.optimizers = [(name, root) for name, root in roots if isinstance(root, torch.optim.Optimizer)]
        self._undo: list[Callable[[], None]] = []
        self._places: list[tuple[dict[str, Any], str, Slot]] = []

    def fake(self, real: Any) -> Any:
        """A tensor like ``real`` without numbers, on the CPU whatever its device: a program does not depend on it."""
        if real.layout != torch.strided:
            raise TraceError("a sparse tensor cannot be captured", help="call .to_dense() on it first")
        with self.mode:
            made = torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device="cpu")
            if isinstance(real, torch.nn.Parameter):
                return torch.nn.Parameter(made, requires_grad=real.requires_grad)
            return made.requires_grad_(real.requires_grad)

    def now(self, slot: Slot) -> Any:
        """The fake that stands where the slot's did: a module may assign a new buffer instead of writing to the old."""
        if slot.kind == BUFFER:
            for held, name, known in self._places:
                if known is slot and isinstance(held.get(name), torch.Tensor):
                    return held[name]
        if slot.kind == GRADIENT:
            grad = self.by_tensor[id(slot.owner)].fake.grad
            return slot.fake if grad is None else grad
        return slot.fake

    def finished(self) -> tuple[Slot, ...]:
        """The slots, without the fakes, which would keep all of the capture alive."""
        for slot in self.slots:
            slot.fake = None
        return tuple(self.slots)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        try:
            for prefix, module in self.modules:
                self._swap_module(prefix if len(self.modules) > 1 else "", module)
            for name, optimizer in self.optimizers:
                self._swap_optimizer(name, optimizer)
            yield
        finally:
            for undo in reversed(self._undo):
                undo()

    # Modules

    def _swap_module(self, prefix: str, root: Any) -> None:
        for path, module in root.named_modules(remove_duplicate=False, prefix=prefix):
            self.scopes.names.setdefault(id(module), path)
        for path, module in root.named_modules(prefix=prefix):
            self._undo.append(_restorer(module.__dict__))
            for kind, held in ((PARAMETER, module._parameters), (BUFFER, module._buffers)):
                for name, real in list(held.items()):
                    if real is not None:
                        self._swap_entry(f"{path}.{name}" if path else name, kind, held, name, real)

    def _swap_entry(self, path: str, kind: str, held: dict[str, Any], name: str, real: Any) -> None:
        slot = self.by_tensor.get(id(real))
        if slot is None:
            slot = self._slot(path, kind, self.fake(real), lambda: real, _copy_into(real), real)
            self.by_tensor[id(real)] = self.by_tensor[id(slot.fake)] = slot
            if kind == PARAMETER and (real.grad is not None or (self.buffers and real.requires_grad)):
                self._gradient(path, real, slot.fake)
        elif path not in slot.names:
            slot.names.append(path)
        held[name] = slot.fake
        self._places.append((held, name, slot))

        def restore() -> None:
            held[name] = real

        self._undo.append(restore)

    def _gradient(self, path: str, real: Any, fake: Any) -> None:
        def read() -> Any:
            return torch.zeros_like(real, requires_grad=False) if real.grad is None else real.grad

        def write(tensor: Any) -> None:
            real.grad = tensor

        with torch.no_grad():
            fake.grad = self.fake(real if real.grad is None else real.grad).detach()
        self._slot(f"{path}.grad", GRADIENT, fake.grad, read, write, real)

    def _slot(self, name: str, kind: str, fake: Any, read: Any, write: Any, owner: Any = None) -> Slot:
        self.slots.append(Slot([name], kind, fake, read, write, owner))
        return self.slots[-1]

    def clip(self, limit: float | None) -> Any:
        """The norm of all gradients together; where there is a limit they are scaled down to it, as PyTorch does.

        Sums of squares are added up one after the other, so that what is pending over devices stays so until the end.
        """
        trained = [slot for slot in self.slots if slot.kind == PARAMETER and slot.fake.grad is not None]
        if not trained:
            raise TraceError(
                "no parameter has a gradient, so there is no norm",
                help="leave clip_grad_norm= and on_nonfinite= out, or train something",
            )
        with torch.no_grad():
            with self.recorder.update(NORM):
                total = None
                for slot in trained:
                    grad = slot.fake.grad
                    wide = grad if grad.dtype in (torch.float32, torch.float64) else grad.float()
                    square = wide.square().sum()
                    total = square if total is None else total + square
                norm = total.sqrt()  # type: ignore[union-attr]
            if limit is not None:
                with self.recorder.update():
                    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
                    for slot in trained:
                        slot.fake.grad = slot.fake.grad * scale.to(slot.fake.grad.dtype)
        return norm

    # Optimizers

    def _swap_optimizer(self, name: str, optimizer: Any) -> None:
        """The step becomes a formula over the fakes of parameters and state."""
        formula = optimizers.formula_of(optimizer)
        stepped: dict[int, Any] = {}
        count = self._count(name, optimizer, stepped) if formula.counts else None
        groups: list[tuple[dict[str, Any], Any, list[tuple[Slot, dict[str, Any], str]]]] = []
        for g, group in enumerate(optimizer.param_groups):
            label = f"{name}.lr" if len(optimizer.param_groups) == 1 else f"{name}.lr.{g}"
            rate = self._slot(label, OPTIMIZER, self._number(), _rate(optimizer, g), _refuse(label))
            members = []
            for p, real in enumerate(group["params"]):
                slot = self._parameter(f"{name}.param_groups.{g}.params.{p}", real)
                state = {
                    key: self._state(slot, optimizer, group, key) for key in optimizers.state_keys(optimizer, group)
                }
                members.append((slot, state, slot.name.rpartition(".")[0]))
            groups.append((optimizers.settings(optimizer, group), rate.fake, members))

        def step(closure: Any = None) -> Any:
            with torch.enable_grad():
                loss = closure() if closure is not None else None
            with torch.no_grad(), self.recorder.update():
                if count is not None:
                    count.fake.add_(1)
                for group, rate, members in groups:
                    shared = formula.once(group, rate, count.fake if count is not None else None)
                    for slot, state, scope in members:
                        if slot.fake.grad is not None:
                            stepped[id(slot.owner)] = slot.owner
                            with self.scopes.within(scope):
                                formula.apply(group, state, slot.fake, slot.fake.grad, *shared)
            return loss

        def zero_grad(set_to_none: bool = True) -> None:
            for _, _, members in groups:
                for slot, _, _ in members:
                    keep = not set_to_none and slot.fake.grad is not None
                    slot.fake.grad = torch.zeros_like(slot.fake, requires_grad=False) if keep else None

        previous = {key: optimizer.__dict__[key] for key in ("step", "zero_grad") if key in optimizer.__dict__}
        optimizer.step, optimizer.zero_grad = step, zero_grad

        def restore() -> None:
            del optimizer.step, optimizer.zero_grad
            optimizer.__dict__.update(previous)

        self._undo.append(restore)

    def _parameter(self, name: str, real: Any) -> Slot:
        slot = self.by_tensor.get(id(real))
        if slot is None:
            raise TraceError(
                f"{name}, of shape {list(real.shape)}, belongs to no module that is captured",
                help="pass the module that has it to the captured function",
            )
        return slot

    def _number(self) -> Any:
        with self.mode:
            return torch.empty((), dtype=torch.float64)

    def _count(self, name: str, optimizer: Any, stepped: dict[int, Any]) -> Slot:
        """One counter for all parameters; PyTorch keeps one each, which differ only if some had no gradient."""

        def read() -> Any:
            counts = {float(state["step"]) for state in optimizer.state.values() if "step" in state}
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

        return self._slot(f"{name}.step", OPTIMIZER, self._number(), read, write)

    def _state(self, slot: Slot, optimizer: Any, group: Any, key: str) -> Any:
        real = slot.owner

        def read() -> Any:
            held = optimizer.state.get(real, {}).get(key)
            return torch.zeros_like(real, requires_grad=False) if held is None else held

        def write(tensor: Any) -> None:
            held = optimizer.state[real].get(key)
            if held is None:
                optimizer.state[real][key] = tensor.clone()
            else:
                held.copy_(tensor)

        optimizers.check_state(optimizer, group, optimizer.state.get(real, {}).get(key) is None)
        with self.mode, torch.no_grad():
            fake = torch.empty_like(slot.fake, requires_grad=False)
        return self._slot(f"{slot.name}.{key}", OPTIMIZER, fake, read, write, real).fake


def _restorer(attributes: dict[str, Any]) -> Callable[[], None]:
    """Undoes what a module's forward assigns to itself: a fake left there would break the next eager call."""
    before = dict(attributes)

    def restore() -> None:
        for name in attributes.keys() - before.keys():
            del attributes[name]
        attributes.update(before)

    return restore


def _copy_into(real: Any) -> Callable[[Any], None]:
    def write(tensor: Any) -> None:
        with torch.no_grad():
            real.copy_(tensor)

    return write


def _rate(optimizer: Any, group: int) -> Callable[[], Any]:
    """Of the present groups: ``load_state_dict`` replaces them."""
    return lambda: torch.as_tensor(optimizer.param_groups[group]["lr"], dtype=torch.float64)


def _refuse(name: str) -> Callable[[Any], None]:
    def write(tensor: Any) -> None:
        raise TraceError(f"the captured program changes {name}", help="change the learning rate outside of it")

    return write


# Finding modules and optimizers


def find_roots(fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Modules and optimizers that a function is, is given, or closes over, each once, with the user's name for it."""
    found: dict[int, tuple[str, Any]] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, torch.nn.Module | torch.optim.Optimizer):
            found.setdefault(id(item), (name, item))

    add("", fn)
    for name, argument in named_arguments(fn, args, kwargs):
        for leaf in tree_flatten(argument)[0]:
            add(name, leaf)
    for name, item in surroundings(fn):
        add(name, item)
    return outermost(list(found.values()))


def outermost(roots: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Without modules that are part of another one that was found."""
    inner = {
        id(part)
        for _, root in roots
        if isinstance(root, torch.nn.Module)
        for part in root.modules()
        if part is not root
    }
    return [(name, root) for name, root in roots if id(root) not in inner]


def surroundings(fn: Any) -> Iterator[tuple[str, Any]]:
    """What a function can reach by name: its object, closed-over variables, the globals it mentions."""
    while isinstance(fn, functools.partial):
        for name, item in named_arguments(fn.func, fn.args, fn.keywords):
            yield name, item
        fn = fn.func
    if isinstance(fn, torch.nn.Module):
        return
    owner = getattr(fn, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        yield "", owner
        yield from getattr(owner, "__dict__", {}).items()
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _global_names(code):
        if name in fn.__globals__:
            yield name, fn.__globals__[name]


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def named_arguments(fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Arguments by the names of the function's parameters; those of ``*args`` are numbered."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    names: list[str] = []
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # built-in functions need not tell
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{i}" for i in range(len(args) - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"arg{i}" for i in range(len(names), len(args))]
    return [*zip(names, args), *kwargs.items()]
