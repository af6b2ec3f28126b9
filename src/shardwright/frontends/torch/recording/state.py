"""The state a program works on: parameters, buffers, gradients, what optimizers remember.

`Session` finds modules and optimizers in what the user hands over, puts fake tensors in their place while the program
is captured, and keeps for each a slot (see `slots`): how to read the real tensor and how to write its next state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

import torch

from ....errors import TraceError
from ...base import BUFFER, GRADIENT, NORM, PARAMETER
from ..private import tree_flatten
from ..steps.own_steps import stepper_of
from ..steps.stepping import Stepper
from ..steps.watching import Ledger
from .recorder import Recorder
from .slots import Slots


class Session(Slots):
    """Fakes for everything real, while a program is captured."""

    def __init__(
        self,
        roots: Sequence[tuple[str, Any]],
        recorder: Recorder,
        ledgers: dict[int, Ledger] | None = None,
        buffers: bool = False,
    ) -> None:
        super().__init__(recorder)
        self.buffers = buffers
        """Whether gradients add up: each trained parameter then has one from the start, of zeros if need be."""
        self.modules = [(name, root) for name, root in roots if isinstance(root, torch.nn.Module)]
        self.optimizers = [(name, root) for name, root in roots if isinstance(root, torch.optim.Optimizer)]
        self.ledgers = ledgers if ledgers is not None else {}
        """Of optimizers whose state somebody keeps: what is known of it."""
        self.steppers: list[Stepper] = []
        self._undo: list[Callable[[], None]] = []

    @contextmanager
    def swapped(self) -> Iterator[None]:
        try:
            for prefix, module in self.modules:
                self._swap_module(prefix if len(self.modules) > 1 else "", module)
            self._check_apart()
            with ExitStack() as stack:
                for name, optimizer in self.optimizers:
                    self.steppers.append(stepper_of(self, name, optimizer, self.ledgers))
                    stack.enter_context(self.steppers[-1].swapped())
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
            slot = self.slot(path, kind, self.fake(real), lambda: real, _copy_into(real), real)
            self.by_tensor[id(real)] = self.by_tensor[id(slot.fake)] = slot
            if kind == PARAMETER and (real.grad is not None or (self.buffers and real.requires_grad)):
                self._gradient(path, real, slot.fake)
        elif path not in slot.names:
            slot.names.append(path)
        held[name] = slot.fake
        self.places.append((held, name, slot))

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
        self.slot(f"{path}.grad", GRADIENT, fake.grad, read, write, real)

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

    def _check_apart(self) -> None:
        owners: dict[int, str] = {}
        for name, optimizer in self.optimizers:
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                other = owners.setdefault(id(parameter), name)
                if other != name:
                    raise TraceError(
                        f"two optimizers step the same parameter, {self.parameter(name, parameter).name}",
                        rows=[("optimizers", f"{other}, {name}")],
                        help="give each parameter to one of them",
                    )


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
