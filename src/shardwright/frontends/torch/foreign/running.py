"""Running a foreign program, rank by rank, and what is left of it: `Traced`, the program of one rank.

A program is a module, which is run forward and backward, or a function that makes a step by itself.  What it is given
and what it leaves behind have names: arguments and outputs by their place, parameters, gradients and what optimizers
remember by the qualified names of parameters.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ....errors import TraceError
from ...ranks import (
    ARGUMENT,
    COMMUNICATION,
    CONSTANT,
    COTANGENT,
    GRADIENT,
    OUTPUT,
    PARAMETER,
    STATE,
    Given,
    Left,
    Placed,
    Traced,
    whole,
)
from ..dispatch import Interrupted
from ..private import FakeTensor, tree_flatten, tree_unflatten
from ..source import Scopes
from ..state import find_roots, named_arguments, outermost, surroundings
from .attention import fused_attention
from .exchange import Exchanges
from .factors import factors_of_sums
from .placed import local_of, part_of, placed_of
from .tracing import RankMode
from .world import World

Place = Callable[[str, Any], Placed | None]
"""From the name of a tensor and its local part to how it is placed, where that is not known otherwise."""
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)")


def plain_name(name: str) -> str:
    """The name of a parameter without those of wrappers.

    >>> plain_name("module.layers.0.weight"), plain_name("layers._orig_mod.0.weight")
    ('layers.0.weight', 'layers.0.weight')
    """
    while (shorter := _WRAPPERS.sub("", name).lstrip(".")) != name:
        name = shorter
    return name


# -- modules by thread ------------------------------------------------------------------------------------

_here = threading.local()


@contextmanager
def following() -> Iterator[None]:
    """Watch calls of modules on every rank."""
    original = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        scopes: Scopes | None = getattr(_here, "scopes", None)
        if scopes is None:
            return original(module, *args, **kwargs)
        stack = scopes.stack
        stack.append(scopes.names.get(id(module)) or (stack[-1] if stack else ""))
        try:
            return original(module, *args, **kwargs)
        finally:
            stack.pop()

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


# -- modules that a step uses ------------------------------------------------------------------------------


def roots_of(program: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> list[tuple[str, Any]]:
    """Modules and optimizers that a program can reach: through functions that it calls and objects that it holds, too.

    A module without parameters is none of them: that one program has its loss as a module would change every name.
    """
    found = {id(root): (name, root) for name, root in find_roots(program, arguments, keywords)}
    waiting, seen = [("", program)], set()
    while waiting:
        name, thing = waiting.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.nn.Module | torch.optim.Optimizer):
            found.setdefault(id(thing), (name, thing))
        elif isinstance(thing, list | tuple):
            waiting += [(f"{name}.{i}", item) for i, item in enumerate(thing)]
        elif isinstance(thing, dict):
            waiting += [(f"{name}.{key}", item) for key, item in thing.items()]
        elif _is_users(thing):
            waiting += list(surroundings(thing))
            waiting += list(getattr(thing, "__dict__", {}).items())
    used = [(name, root) for name, root in found.values() if _has_state(root)]
    return outermost(used)


def _is_users(thing: Any) -> bool:
    """Functions and objects that are neither PyTorch's nor Python's; classes and Python modules hold no state."""
    if isinstance(thing, type | ModuleType):
        return False
    if isinstance(thing, functools.partial):
        return True
    home = thing if hasattr(thing, "__code__") or hasattr(thing, "__func__") else type(thing)
    package = str(getattr(home, "__module__", "builtins")).partition(".")[0]
    return package not in ("torch", "numpy", *sys.stdlib_module_names)


def _has_state(root: Any) -> bool:
    if isinstance(root, torch.nn.Module):
        return next(root.parameters(), None) is not None or next(root.buffers(), None) is not None
    return True


# -- one rank ---------------------------------------------------------------------------------------------


@dataclass
class Job:
    """What is run on every rank."""

    make: Callable[[], Any]
    """Gives the module or the step."""
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    names: Sequence[str]
    """Of the tensors among the arguments."""
    loss: Callable[[Any], Any] | None = None
    backward: bool = True
    place: Callable[[str, Any, str], Placed | None] = lambda name, local, kind: None
    load: Callable[[str, Any], Any] | None = None
    """The numbers that a parameter begins with."""
    cotangent: Callable[[int, Any], Any] | None = None
    prepare: Callable[[dict[str, Any]], None] | None = None
    """Told the parameters before anything is run."""


def argument_names(program: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[str]:
    """Names of the tensors among the arguments, as the program calls them."""
    found = []
    for name, argument in named_arguments(program, arguments, dict(keywords)):
        leaves = tree_flatten(argument)[0]
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                found.append(name if len(leaves) == 1 else f"{name}.{i}")
    return found


def run_ranks(size: int, job: Job) -> list[Traced]:
    """What every rank does."""
    world = World(size)
    exchanges = Exchanges(world)
    with following(), fused_attention(), factors_of_sums(), sdpa_kernel([SDPBackend.MATH]):
        return world.run(lambda rank: _Rank(rank, exchanges, job).run())


class _Rank:
    def __init__(self, rank: int, exchanges: Exchanges, job: Job) -> None:
        self.job = job
        self.scopes = Scopes({})
        self.mode = RankMode(rank, exchanges, self.scopes)
        self.given: dict[int, Given] = {}
        self.left: list[tuple[int, Left]] = []
        self.arguments: list[tuple[Any, Given]] = []

    def run(self) -> Traced:
        _here.scopes = self.scopes
        try:
            with self.mode:
                return self._run()
        except Interrupted as stop:
            raise stop.error from None
        finally:
            _here.scopes = None

    def _run(self) -> Traced:
        job, mode = self.job, self.mode
        program = job.make()
        arguments, keywords = self._arguments()
        roots = roots_of(program, arguments, dict(keywords))
        modules = [(name, root) for name, root in roots if isinstance(root, torch.nn.Module)]
        optimizers = [root for _, root in roots if isinstance(root, torch.optim.Optimizer)]
        parameters = self._state(modules)
        if job.prepare is not None:
            job.prepare(parameters)
        mode.recording = True
        with torch.no_grad():
            for tensor, given in self.arguments:
                self._input(tensor, given)
            self._parameters(parameters)
        made = self._step(program, arguments, keywords)
        mode.receive_all()
        with torch.no_grad():
            self._outputs(made)
            self._after(parameters, optimizers)
        mode.recording = False
        return self._finished()

    # -- what is given ------------------------------------------------------------------------------------

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for this rank: its part, or a copy, so that no rank writes to another's."""
        leaves, spec = tree_flatten((self.job.arguments, dict(self.job.keywords)))
        made = []
        names = iter(self.job.names)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                made.append(leaf)
                continue
            name = next(names)
            placed = self.job.place(name, leaf, ARGUMENT)
            local = leaf.detach() if placed is None else part_of(leaf.detach(), placed)
            made.append(local.clone().requires_grad_(leaf.requires_grad))
            self.arguments.append((made[-1], Given(name, ARGUMENT, placed)))
        arguments, keywords = tree_unflatten(made, spec)
        return arguments, keywords

    def _input(self, tensor: Any, given: Given) -> None:
        if not tensor.is_floating_point() and not tensor.is_complex():
            given.numbers = numbers_of(tensor)
        value = self.mode.input(tensor, given.name)
        self.given[value] = given

    def _state(self, modules: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for prefix, module in modules:
            start = prefix if len(modules) > 1 else ""
            for path, part in module.named_modules(remove_duplicate=False, prefix=start):
                self.scopes.names.setdefault(id(part), plain_name(path + ".").rstrip("."))
            for path, parameter in module.named_parameters(prefix=start):
                found[plain_name(path)] = parameter
        return found

    def _parameters(self, parameters: Mapping[str, Any]) -> None:
        for name, parameter in parameters.items():
            local = local_of(parameter)
            with self.mode.paused():
                placed = placed_of(parameter) or self.job.place(name, local, PARAMETER)
            with self.mode.paused():
                numbers = numbers_of(local)
            self._input(local, Given(name, PARAMETER, placed, numbers))

    # -- the run ------------------------------------------------------------------------------------------

    def _step(self, program: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        job = self.job
        if not isinstance(program, torch.nn.Module):
            return program(*arguments, **keywords)
        with nullcontext() if job.backward else torch.no_grad():
            made = program(*arguments, **keywords)
        if not job.backward:
            return made
        loss = job.loss(made) if job.loss is not None else _loss(made)
        if loss is not None:
            loss.backward()
            return made if job.loss is None else (made, loss)
        outputs = [x for x in tree_flatten(made)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
        if not outputs:
            return made
        assert job.cotangent is not None
        torch.autograd.backward(outputs, [self._cotangent(i, x) for i, x in enumerate(outputs)])
        return made

    def _cotangent(self, i: int, output: Any) -> Any:
        """What the backward pass begins with, where there is no loss: any tensor."""
        from torch.distributed.tensor import DTensor

        assert self.job.cotangent is not None
        name = f"cotangent.{i}"
        with torch.no_grad(), self.mode.paused():
            placed = placed_of(output)
            whole = self.job.cotangent(i, output)
            if placed is None:
                placed = self.job.place(name, local_of(output), COTANGENT)
            local = whole.clone() if placed is None else part_of(whole, placed).clone()
        self._input(local, Given(name, COTANGENT, placed))
        if not isinstance(output, DTensor):
            return local
        if placed is not None and placed.partial:
            raise TraceError(f"output {i} is {output.placements}: reduce it before it is returned, or give loss=")
        return DTensor.from_local(
            local, output.device_mesh, output.placements, run_check=False, shape=output.shape, stride=output.stride()
        )

    # -- what is left -------------------------------------------------------------------------------------

    def _leave(self, tensor: Any, name: str, kind: str, placed: Placed | None = None, of: str = "") -> None:
        local = local_of(tensor)
        with self.mode.paused():
            left = Left(name, kind, placed_of(tensor) or placed, numbers_of(local), of)
        self.left.append((self.mode.memory.value(local), left))

    def _outputs(self, made: Any) -> None:
        leaves = [leaf for leaf in tree_flatten(_plain(made))[0] if isinstance(leaf, torch.Tensor)]
        for i, leaf in enumerate(leaves):
            name = "output" if len(leaves) == 1 else f"output.{i}"
            self._leave(leaf, name, OUTPUT, self.job.place(name, local_of(leaf), OUTPUT))

    def _after(self, parameters: Mapping[str, Any], optimizers: Sequence[Any]) -> None:
        given = {given.name: (value, given) for value, given in self.given.items() if given.kind == PARAMETER}
        for tensor, argument in self.arguments:
            if tensor.grad is not None:
                self._leave(tensor.grad, argument.name, GRADIENT, argument.placed or whole(tuple(tensor.shape)))
        for name, parameter in parameters.items():
            value, before = given[name]
            if parameter.grad is not None:
                self._leave(parameter.grad, name, GRADIENT, before.placed, name)
            if self.mode.memory.value(local_of(parameter)) != value:
                self._leave(parameter, name, PARAMETER, before.placed, name)
            for optimizer in optimizers:
                for key, item in sorted(optimizer.state.get(parameter, {}).items()):
                    if isinstance(item, torch.Tensor) and item.shape == parameter.shape:
                        self._leave(item, f"{name}.{key}", STATE, before.placed, name)

    def _finished(self) -> Traced:
        recorder = self.mode.recorder
        graph = recorder.finish("rank", [value for value, _ in self.left], [], keep=COMMUNICATION)
        given = [
            self.given.get(value) or Given(name, CONSTANT, numbers=self.mode.constants.get(value))
            for value, name in recorder.inputs
        ]
        known = {recorder.numbers[value]: n for value, n in self.mode.known.items() if value in recorder.numbers}
        return Traced(self.mode.rank, graph, given, [left for _, left in self.left], known)


def numbers_of(tensor: Any) -> Any:
    """As an array; None if there are none."""
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        return None
    held = tensor.detach()
    return np.array((held.float() if held.dtype is torch.bfloat16 else held).resolve_conj().numpy(force=True))


def _plain(made: Any) -> Any:
    """Outputs of `transformers` are dicts of their own kind."""
    return dict(made) if hasattr(made, "items") and not isinstance(made, dict) else made


def _loss(made: Any) -> Any:
    """The loss that a module returns by itself."""
    if isinstance(made, torch.Tensor):
        return made if not made.dim() and made.requires_grad else None
    found = made.get("loss") if isinstance(made, dict) else getattr(made, "loss", None)
    return found if isinstance(found, torch.Tensor) else None
