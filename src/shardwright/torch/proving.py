"""`prove`: that a parallel program that somebody wrote computes what the single one does.

swt.prove(lambda mesh: parallelize_module(Model(), mesh, layout), like=Model(), mesh={"tp": 4}, inputs=(ids,))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parameter import UninitializedParameter

from ..api.arguments import mesh_of
from ..errors import SpecError, TraceError, front
from ..frontends.ranks import ARGUMENT, COTANGENT, OUTPUT, PARAMETER, Given, Placed, Traced, whole
from ..frontends.torch.foreign.kernels import TorchKernels
from ..frontends.torch.foreign.placed import by_block, by_numbers, parse, placed_by, placed_of
from ..frontends.torch.foreign.roots import as_before
from ..frontends.torch.foreign.running import Job, argument_names, is_numberless, made_on, run_ranks
from ..proof.foreign.judging import Mesh, ways
from ..proof.foreign.numbers import Number
from ..proof.foreign.proving import judge
from ..proof.foreign.result import ParallelProof
from ..proof.foreign.rounds import Case

Placements = Mapping[str, Any]


@front
def prove(
    parallel: Callable[..., Any],
    *,
    like: Any,
    mesh: Any,
    inputs: Any,
    placements: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
) -> ParallelProof:
    """Whether a parallel program is equal to the single one: true, or what differs and where it begins.

    ``parallel`` is called once on every rank, with a torch `DeviceMesh` (or with nothing, if it takes nothing), and
    returns a module or a step; ``like`` is the plain module or step.  ``inputs`` are example arguments: a tuple, or a
    dict of keywords.  A module is run forward and backward, from the loss that it returns, that ``loss`` makes of its
    output, or else from any gradient of its outputs.  A step does what it does.

    ``placements`` says of tensors by name (arguments, parameters, outputs; ``*`` stands for anything) how ranks hold
    them, in PyTorch's words: ``{"x": Shard(0)}``, or one placement for each axis of the mesh.  Arguments are whole if
    nothing is said.  DTensors say it themselves, parameters are found by their names and numbers.
    """
    _check_arguments(parallel, like, inputs, loss)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small, and threads that wait for work cost more than they do
    try:
        case = _Proving(parallel, like, mesh, inputs, placements or {}, loss).case()
        return judge(case)
    except TraceError as error:
        return ParallelProof(fact=error.fact, rows=tuple(error.rows), help=error.help or "")
    finally:
        torch.set_num_threads(threads)


def _check_arguments(parallel: Any, like: Any, inputs: Any, loss: Any) -> None:
    """The usual slips, before anything runs."""
    if isinstance(parallel, torch.nn.Module) or not callable(parallel):
        raise SpecError(
            f"parallel= takes a function of a mesh, not a {type(parallel).__name__}",
            help="write prove(lambda mesh: parallelize_module(Model(), mesh, layout), like=Model(), ...)",
        )
    if isinstance(like, type) or not callable(like):
        said = f"the class {like.__name__}" if isinstance(like, type) else repr(like)
        raise SpecError(f"like= takes a module or a step, not {said}", help="make one: like=Model()")
    if isinstance(like, torch.nn.Module) and any(isinstance(p, UninitializedParameter) for p in like.parameters()):
        raise SpecError("like= has lazy modules, which have no weights yet", help="call it once on a real batch before")
    if not isinstance(inputs, tuple | list | Mapping):
        raise SpecError(
            f"inputs= takes the arguments of a call, not a {type(inputs).__name__}",
            help="a tuple, also of one: inputs=(x,); or a dict of keywords",
        )
    if loss is not None and not callable(loss):
        raise SpecError(f"loss= takes a function of the output, not {loss!r}")


def _mesh_of(mesh: Any) -> Mesh:
    if isinstance(mesh, Mapping):
        mesh = ", ".join(f"{name}={size}" for name, size in mesh.items())
    ours = mesh_of(mesh)
    return Mesh(tuple(ours.shape), tuple(ours.axis_names))


class _Proving:
    def __init__(self, parallel: Any, like: Any, mesh: Any, inputs: Any, placements: Placements, loss: Any) -> None:
        self.parallel, self.like, self.loss = parallel, like, loss
        self.mesh = _mesh_of(mesh)
        self.arguments: tuple[Any, ...] = ()
        self.keywords: dict[str, Any] = {}
        if isinstance(inputs, Mapping):
            self.keywords = dict(inputs)
        else:
            self.arguments = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        self.said = {name: parse(given) for name, given in placements.items()}
        self.used: set[str] = set()

    def case(self) -> Case:
        cotangents: dict[int, Any] = {}

        def fresh(i: int, output: Any) -> Any:
            generator = torch.Generator().manual_seed(i)
            cotangents[i] = torch.randn(output.shape, generator=generator, dtype=output.dtype)
            return cotangents[i].clone()

        names = argument_names(self.like, self.arguments, self.keywords)
        # What is given memory without numbers is a copy.
        like = copy.deepcopy(self.like) if is_numberless(self.like) else self.like
        job = Job(lambda: like, self.arguments, self.keywords, names, self.loss, cotangent=fresh, single=True)
        with as_before(like, self.arguments, self.keywords):
            (single,) = run_ranks(1, job)
        self.single = single
        self.parameters = {given.name: given for given in single.given if given.kind == PARAMETER}
        ranks = run_ranks(
            int(np.prod(self.mesh.shape)),
            Job(
                self._make, self.arguments, self.keywords, names, self.loss, place=self._place, prepare=self._load,
                cotangent=lambda i, output: cotangents[i].clone(),
            ),
        )  # fmt: skip
        unused = sorted(set(self.said) - self.used)
        if unused:
            raise SpecError(f"placements= names {unused[0]!r}, which is nothing that the program is given or leaves")
        placed = self._match(ranks)
        return Case(single, ranks, self.mesh, TorchKernels(), tuple(placed))

    # -- on a rank ----------------------------------------------------------------------------------------------

    def _make(self) -> Any:
        return made_on(self.parallel, self._torch_mesh())

    def _torch_mesh(self) -> Any:
        rank = torch.distributed.get_rank()
        if rank not in getattr(self, "_meshes", {}):
            made = init_device_mesh("cpu", self.mesh.shape, mesh_dim_names=self.mesh.names)
            self._meshes: dict[int, Any] = {**getattr(self, "_meshes", {}), rank: made}
        return self._meshes[rank]

    def _said_of(self, name: str) -> tuple[Any, ...] | None:
        for pattern, said in self.said.items():
            if fnmatchcase(name, pattern):
                self.used.add(pattern)
                return said
        return None

    def _place(self, name: str, local: Any, kind: str) -> Placed | None:
        said = self._said_of(name)
        if said is None:
            return None
        shape = self._whole_shape(name, local, kind)
        return placed_by(shape, self._torch_mesh(), said)

    def _whole_shape(self, name: str, local: Any, kind: str) -> tuple[int, ...]:
        if kind == ARGUMENT:
            return tuple(local.shape)
        single = self.single
        if kind in (PARAMETER, ARGUMENT, COTANGENT):
            for i, given in enumerate(single.given):
                if given.name == name:
                    return single.graph.type(single.graph.inputs[i]).shape
        for i, left in enumerate(single.left):
            if left.kind == OUTPUT and left.name == name:
                return single.graph.type(single.graph.outputs[i]).shape
        return tuple(local.shape)

    def _load(self, parameters: dict[str, Any]) -> None:
        """Parameters that are placed begin with the numbers of the single program's, as a checkpoint would have it."""
        with torch.no_grad():
            for name, parameter in parameters.items():
                known = self.parameters.get(name)
                placed = placed_of(parameter)
                if known is None or known.numbers is None or placed is None or placed.shape != known.numbers.shape:
                    continue
                local = parameter._local_tensor
                if local.device.type != "meta" and not placed.partial:
                    local.copy_(torch.from_numpy(placed.of(known.numbers)))

    # -- parameters by their numbers ------------------------------------------------------------------------------

    def _match(self, ranks: Sequence[Traced]) -> list[tuple[str, str]]:
        """Place the plain parameters, and what is left of them; how each was placed."""
        found: list[tuple[str, str]] = []
        names = dict.fromkeys(given.name for traced in ranks for given in traced.given if given.kind == PARAMETER)
        for name in names:
            held = [next((g for g in traced.given if g.kind == PARAMETER and g.name == name), None) for traced in ranks]
            if name not in self.parameters:
                raise TraceError(
                    f"the single program has no parameter {name!r}, or does not read it",
                    help="name the parallel module's parameters as the single one's",
                )
            shape = self._shape(name)
            if all(given is None or (given.placed is not None and given.placed.shape == shape) for given in held):
                continue  # else it is plain, or a wrapper's part of what somebody has cut before
            placed = self._by_numbers(name, held)
            for traced, given, place in zip(ranks, held, placed):
                if given is not None:
                    given.placed = place
                    for left in traced.left:
                        if left.of == name and (left.placed is None or left.placed.shape != shape):
                            left.placed = place
            found.append((name, placed[0].said if placed[0] is not None else ""))
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        at = next(i for i, given in enumerate(self.single.given) if given.name == name)
        return self.single.graph.type(self.single.graph.inputs[at]).shape

    def _by_numbers(self, name: str, held: Sequence[Given | None]) -> list[Placed | None]:
        numbers = self.parameters[name].numbers
        shape = self._shape(name)
        if numbers is not None and all(given is not None and given.numbers is not None for given in held):
            local = [given.numbers for given in held if given is not None]
            fake = [Number("f32", part) for part in local]
            for placed in ways(shape, fake, self.mesh, pending=()):
                if all(np.array_equal(place.of(numbers), part) for place, part in zip(placed, local)):
                    return list(placed)
            block = by_block(numbers, local)
            if block is not None:
                return list(block)
            anywhere = by_numbers(numbers, local, "element by element")
            if anywhere is not None:
                return list(anywhere)
        if numbers is None and all(given is not None and given.shape == shape for given in held):
            return [whole(shape) for _ in held]
        shapes = sorted({str(list(given.shape)) for given in held if given is not None})
        raise TraceError(
            f"{name} is a plain tensor, and its numbers are not those of the single program's",
            rows=[("single", str(list(shape))), ("ranks", ", ".join(shapes))],
            help=f"load the same numbers into both, or say how it is placed: placements={{{name!r}: Shard(0)}}",
        )
