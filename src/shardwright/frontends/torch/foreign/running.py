"""Running a foreign program, rank by rank, and what is left of it: `Traced`, the program of one rank.

A program is a module, which is run forward and backward, or a function that makes a step by itself.  What it is given
and what it leaves behind have names: arguments and outputs by their place, parameters, gradients and what optimizers
remember by the qualified names of parameters.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from ....errors import PACKAGE, ShardwrightError, SpecError, TraceError
from ...ranks import (
    ARGUMENT,
    BUFFER,
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
from ..private import FakeTensor, FakeTensorMode, quiet, tree_flatten, tree_unflatten, unset_fake_temporarily
from ..recording.answers import Answers
from ..recording.dispatch import Interrupted
from ..recording.source import Scopes, following, place_of
from ..recording.state import named_arguments
from .attention import fused_attention
from .exchange import Exchanges
from .factors import factors_of_sums
from .placed import local_of, part_of, placed_of
from .private import cuda_guard_kept
from .roots import roots_of
from .tracing import RankMode
from .world import World

_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)")


MOST_RANKS = 1024
"""Threads of one process; more of them cannot be started on many machines."""


def plain_name(name: str) -> str:
    """The name of a parameter without those of wrappers.

    >>> plain_name("module.layers.0.weight"), plain_name("layers._orig_mod.0.weight")
    ('layers.0.weight', 'layers.0.weight')
    """
    while (shorter := _WRAPPERS.sub("", name).lstrip(".")) != name:
        name = shorter
    return name


_here = threading.local()
"""The scopes of the rank whose thread this is."""


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
    place: Callable[[str, Any, str], Placed | None] = lambda name, local, kind: None
    """From the name of a tensor, its local part and its kind to how it is placed, if that is said."""
    cotangent: Callable[[int, Any], Any] | None = None
    prepare: Callable[[dict[str, Any]], None] | None = None
    """Told the parameters before anything is run."""
    modules: list[Any] = field(default_factory=list)
    """Made by the ranks so far."""
    single: bool = False
    """Whether this is the program that the other one should be equal to."""


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
    if size > MOST_RANKS:
        raise SpecError(
            f"a mesh of {size} devices, and every rank runs in a thread of this process",
            help=f"prove it on a smaller mesh of the same axes; at most {MOST_RANKS} devices",
        )
    world = World(size)
    exchanges = Exchanges(world)
    scopes_here = lambda: getattr(_here, "scopes", None)  # noqa: E731
    with (
        following(scopes_here), fused_attention(), factors_of_sums(), sdpa_kernel([SDPBackend.MATH]), quiet(),
        cuda_guard_kept(),
    ):  # fmt: skip
        without_numbers = _WithoutNumbers()
        return world.run(lambda rank: _Rank(rank, exchanges, job, without_numbers).run())


def trace_parallel(
    parallel: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: tuple[int, ...],
    names: tuple[str, ...], loss: Any = None,
) -> list[Traced]:  # fmt: skip
    """What every rank does of a program that is made of a torch mesh of this shape."""

    def make() -> Any:
        return made_on(parallel, init_device_mesh("cpu", shape, mesh_dim_names=names))

    labels = [f"argument{i}" for i, x in enumerate(tree_flatten((args, kwargs))[0]) if isinstance(x, torch.Tensor)]
    ones = lambda i, output: torch.ones(output.shape, dtype=output.dtype)  # noqa: E731
    job = Job(make, args, kwargs, labels, loss, cotangent=ones)
    return run_ranks(prod(shape), job)


def is_numberless(program: Any) -> bool:
    """Whether a program's modules are on the meta device."""
    modules = [root for _, root in roots_of(program, (), {}) if isinstance(root, torch.nn.Module)]
    return any(parameter.is_meta for module in modules for parameter in module.parameters())


def made_on(parallel: Callable[..., Any], mesh: Any) -> Any:
    """The module or step that a function makes of a mesh; it need not take one."""
    given: tuple[Any, ...] = (mesh,)
    try:
        signature = inspect.signature(parallel)
    except (TypeError, ValueError):  # builtins and the like do not say
        return parallel(mesh)
    if not signature.parameters:
        given = ()
    name = getattr(parallel, "__name__", type(parallel).__name__)
    try:
        signature.bind(*given)
    except TypeError as error:
        raise SpecError(
            f"{name} is called with a mesh alone, which it does not take: {error}",
            rows=[("signature", f"{name}{signature}")], help="write parallel=lambda mesh: ...",
        ) from None  # fmt: skip
    made = parallel(*given)
    if not callable(made):
        raise SpecError(
            f"{name} returns {made!r}, which is no module and no step",
            help="let it return what runs on a rank: a module, or a function of the inputs",
        )
    return made


class _WithoutNumbers:
    """How tensors of models on the meta device are made: in one mode, for ranks give each other theirs."""

    def __init__(self) -> None:
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.answers = Answers()


class _Rank:
    def __init__(self, rank: int, exchanges: Exchanges, job: Job, without_numbers: _WithoutNumbers) -> None:
        self.job = job
        self.without_numbers = without_numbers
        self.scopes = Scopes({})
        self.mode = RankMode(rank, exchanges, self.scopes)
        self.fake: FakeTensorMode | None = None
        """For models on the meta device: tensors without numbers."""
        self.given: dict[int, Given] = {}
        self.left: list[tuple[int, Left]] = []
        self.arguments: list[tuple[Any, Given]] = []

    def run(self) -> Traced:
        _here.scopes = self.scopes
        try:
            with self.mode:
                program = self.job.make()
            self._check_own(program)
            if is_numberless(program):
                self.fake, self.mode.answers = self.without_numbers.fake, self.without_numbers.answers
            with self.fake or nullcontext(), self.mode:
                return self._run(program)
        except Interrupted as stop:
            raise stop.error from None
        except ShardwrightError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        finally:
            _here.scopes = None

    def _check_own(self, program: Any) -> None:
        """A module of one rank is none of another's: they would share parameters and gradients."""
        if not isinstance(program, torch.nn.Module):
            return
        if any(program is other for other in self.job.modules):
            raise SpecError(
                f"parallel= gives the same {type(program).__name__} to several ranks",
                help="make one for each: lambda mesh: parallelize(copy.deepcopy(model), mesh), or Model()",
            )
        self.job.modules.append(program)

    def _failed(self, error: Exception) -> Exception:
        """An error of the program's own, or of PyTorch on its behalf; one of ours stays what it is."""
        frames = list(walk_tb(error.__traceback__))
        if frames and Path(frames[-1][0].f_code.co_filename).is_relative_to(PACKAGE):
            return error
        users = [f"{place[0]}:{line}" for frame, line in frames if (place := place_of(frame)) is not None]
        fact, rows = f"fails: {type(error).__name__}: {error}", [("at", users[-1])] if users else []
        if self.job.single:
            return SpecError(f"the single program {fact}", rows=rows, help="like=, inputs= and loss= must go together")
        return TraceError(f"the parallel program, on rank {self.mode.rank}, {fact}", rows=rows)

    def _run(self, program: Any) -> Traced:
        job, mode = self.job, self.mode
        if self.fake is not None:
            program = self._materialised(program)
        arguments, keywords = self._arguments()
        roots = roots_of(program, arguments, dict(keywords))
        modules = [(name, root) for name, root in roots if isinstance(root, torch.nn.Module)]
        optimizers = [root for _, root in roots if isinstance(root, torch.optim.Optimizer)]
        parameters = self._state(modules)
        buffers = self._buffers(modules)
        if job.prepare is not None:
            job.prepare(parameters)
        mode.recording = True
        with torch.no_grad():
            for tensor, given in self.arguments:
                self._input(tensor, given)
            self._parameters(parameters)
            before = {name: mode.memory.value(local_of(buffer)) for name, buffer in buffers.items()}
        made = self._step(program, arguments, keywords)
        mode.receive_all()
        with torch.no_grad():
            self._outputs(made)
            self._after(parameters, optimizers)
            for name, buffer in self._buffers(modules).items():
                self._leave(buffer, name, BUFFER)
                self.left[-1][1].changed = self.left[-1][0] != before.get(name)
        mode.recording = False
        return self._finished()

    def _materialised(self, program: Any) -> Any:
        """Modules on the meta device, with memory that has no numbers."""
        for _, root in roots_of(program, (), {}):
            if is_numberless(root):
                root.to_empty(device="cpu")
        return program

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
            with unset_fake_temporarily():
                placed = self.job.place(name, leaf, ARGUMENT)
                local = leaf.detach() if placed is None else part_of(leaf.detach(), placed)
                numbers = None if local.is_floating_point() else numbers_of(local)
                local = local.clone()
            local = self.fake.from_tensor(local) if self.fake is not None else local
            made.append(local.requires_grad_(leaf.requires_grad))
            self.arguments.append((local, Given(name, ARGUMENT, placed, numbers)))
        arguments, keywords = tree_unflatten(made, spec)
        return arguments, keywords

    def _input(self, tensor: Any, given: Given) -> None:
        value = self.mode.input(tensor, given.name)
        if not tensor.is_floating_point():
            self.mode.whole_numbers(value, given.numbers)
        self.given[value] = given

    def _state(self, modules: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for prefix, module in modules:
            start = prefix if len(modules) > 1 else ""
            for path, part in module.named_modules(remove_duplicate=False, prefix=start):
                self.scopes.names.setdefault(id(part), plain_name(path + ".").rstrip("."))
            for path, parameter in module.named_parameters(prefix=start):
                found[plain_name(path)] = parameter
            if self.fake is not None:  # else they are known by their numbers
                for path, buffer in module.named_buffers(prefix=start):
                    if buffer.is_floating_point():
                        found[plain_name(path)] = buffer
        return found

    def _buffers(self, modules: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """Known by their numbers, so that they are no inputs; what a program changes of them, it leaves behind."""
        found: dict[str, Any] = {}
        for prefix, module in modules:
            for path, buffer in module.named_buffers(prefix=prefix if len(modules) > 1 else ""):
                if self.fake is None or not buffer.is_floating_point():
                    found[plain_name(path)] = buffer
        return found

    def _parameters(self, parameters: Mapping[str, Any]) -> None:
        for name, parameter in parameters.items():
            local = local_of(parameter)
            with self.mode.paused():
                placed = placed_of(parameter) or self.job.place(name, local, PARAMETER)
            with self.mode.paused():
                numbers = numbers_of(local)
            self._input(local, Given(name, PARAMETER, placed, numbers, tuple(local.shape)))

    # -- the run ------------------------------------------------------------------------------------------

    def _step(self, program: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        job = self.job
        if not isinstance(program, torch.nn.Module):
            return program(*arguments, **keywords)
        made = program(*arguments, **keywords)
        loss = job.loss(made) if job.loss is not None else _loss(made)
        if job.single and loss is not None and (not isinstance(loss, torch.Tensor) or loss.dim()):
            shape = f" of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            raise SpecError(
                f"the loss is a {type(loss).__name__}{shape}, not one number", help="write loss=lambda out: ...mean()"
            )
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
            raise TraceError(
                f"output {i} is {output.placements}: a gradient cannot begin at what is still to be reduced",
                help="reduce it before it is returned (redistribute to Replicate()), or give loss=",
            )
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
            if value in recorder.numbers
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
