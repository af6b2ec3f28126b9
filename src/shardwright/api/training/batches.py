"""What a call of a training step hands over: the whole batch on every rank, or each rank's part of it.

``data="global"``: every rank gives the whole batch, of which the engine takes its shards.  ``data="local"``: a rank
gives its part, as a `DistributedSampler` does; the batch is what the ranks along the *data axes* give, one after the
other in the order of the mesh, cut as ``torch.chunk`` would, and ranks that differ along other axes only give the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import SpecError, front
from ...frontends.base import Framework, Source, StepForm, batch_dims, capture_source, frontend_for
from ...plans.requests import Request
from ...run.engine import Engine
from ...spec.mesh import DeviceMesh
from ...spec.sharding import ShardingSpec

Call = tuple[tuple[Any, ...], dict[str, Any]]
DATA_MODES = ("global", "local")
_DATA_AXES = ("dp", "ddp", "fsdp", "hsdp", "data", "batch", "replica")
"""How axes are called, or begin to be called, along which people split batches."""


BATCHES_COMPARED = 3


def check_data(data: Any) -> None:
    if data not in (None, *DATA_MODES):
        raise SpecError(f"data= is 'global' or 'local', not {data!r}", help=WHAT_DATA)


WHAT_DATA = (
    'data="global": every rank gives the whole batch; data="local": every rank gives its part of it, as '
    "torch.utils.data.DistributedSampler hands out"
)


def global_by_default(engine: Engine) -> str:
    """What a step takes where nobody said: the whole batch on every rank; said once where there are several."""
    global _said
    if engine.name != "virtual" and engine.mesh.size > 1 and not _said:
        _said = True
        _log.warning("every rank is taken to give the whole batch; %s", WHAT_DATA)
    return "global"


_said = False
_log = logging.getLogger("shardwright")


def data_axes_of(
    mesh: DeviceMesh, said: str | Sequence[str] | None, source: Source | None = None, specs: Sequence[Any] = ()
) -> tuple[str, ...]:
    """The axes along which ranks have different parts of a batch: as said, as a plan splits it, or by their names."""
    names = mesh.axis_names
    if said is not None:
        if not isinstance(said, str | Sequence):
            raise SpecError(f"data_axes= takes names of mesh axes, not {said!r}", rows=[("mesh", str(mesh))])
        chosen = (said,) if isinstance(said, str) else tuple(said)
        for name in chosen:
            if name not in names:
                raise SpecError(f"data_axes names {name!r}, which is no axis of the mesh", rows=[("mesh", str(mesh))])
        return tuple(name for name in names if name in chosen)
    if source is not None:
        for about, spec in zip(source.inputs_are, specs):
            if about.batch_dim is not None:
                axes = spec.dims[about.batch_dim].axes
                if all(axis.size == mesh.axis(axis.name).size for axis in axes):
                    used = {axis.name for axis in axes}
                    return tuple(name for name in names if name in used)
    if len(names) == 1:
        return tuple(names)
    chosen = tuple(name for name in names if name.lower().startswith(_DATA_AXES))
    if not chosen:
        raise SpecError(
            'data="local", but which axes of the mesh have different parts of a batch is not known',
            rows=[("mesh", str(mesh))], help=f'say it, such as data_axes="{names[0]}"',
        )  # fmt: skip
    return chosen


def data_place(mesh: DeviceMesh, axes: Sequence[str], position: int) -> tuple[int, int]:
    """Which part of a batch a device gives, and of how many."""
    at, rank, count = mesh.coordinates(position), 0, 1
    for name in axes:
        size = mesh.axis(name).size
        rank, count = rank * size + at[name], count * size
    return rank, count


@front
def data_rank(mesh: Any, data_axes: str | Sequence[str] | None = None) -> tuple[int, int]:
    """Which part of a batch this process gives with ``data="local"``, and of how many there are.

    They are ``rank`` and ``num_replicas`` of a `torch.utils.data.DistributedSampler`; ``step.data_rank`` and
    ``step.data_ranks`` say the same of a step.  Without torchrun there is one part.
    """
    found, rank = DeviceMesh.of(mesh), int(os.environ.get("RANK", "0"))
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1
    return data_place(found, data_axes_of(found, data_axes), found.device_ids.index(rank))


def micro_batches(framework: Framework, call: Call, count: int) -> list[Call]:
    """A call cut into so many equal ones along the batch."""
    if count == 1:
        return [call]
    arrays = framework.leaves(call)
    shapes = [framework.array_type(array).shape for array in arrays]
    dims = batch_dims(shapes)
    size = next((shape[dim] for shape, dim in zip(shapes, dims) if dim is not None), None)
    if size is None:
        raise SpecError("no argument has examples to accumulate over", help="leave accumulate= out")
    if size % count or not size:
        less = size - size % count
        raise SpecError(
            f"a batch of {size} cannot be cut into {count} equal ones, whose losses are averaged",
            help=f"give {f'{less} or ' if less else ''}{less + count} examples",
        )
    part, width = framework.arrays.part, size // count
    return [
        framework.filled(
            call, [a if dim is None else part(a, dim, k * width, (k + 1) * width) for a, dim in zip(arrays, dims)]
        )
        for k in range(count)
    ]


def one_batch(fn: Any, call: Call, form: StepForm) -> Call:
    """The call that is captured for a batch: the first of those that add up."""
    framework = frontend_for(fn, *call).FRAMEWORK
    if form.accumulate == 1 or framework.processes is None:  # which has no training steps, and says so
        return call
    return micro_batches(framework, call, form.accumulate)[0]


@dataclass(frozen=True)
class OtherSteps:
    """The same training step in forms that hold less."""

    fn: Any
    call: Call
    form: StepForm
    optimizer: Any
    loss: Any

    def smaller(self, factor: int) -> Source:
        """For a call cut into so many more, whose gradients add up."""
        part = micro_batches(self._framework, self.call, factor)[0]
        return self._captured(part, replace(self.form, accumulate=self.form.accumulate * factor))

    def checkpointed(self) -> tuple[tuple[str, ...], Source] | None:
        """With checkpoints around the blocks of the model's lists, and how these are called; None where it has none."""
        with self._framework.checkpointed(self.fn) as lists:
            return (lists, self._captured(self.call, self.form)) if lists else None

    @property
    def _framework(self) -> Framework:
        found: Framework = frontend_for(self.fn, *self.call).FRAMEWORK
        return found

    def _captured(self, call: Call, form: StepForm) -> Source:
        about: dict[str, Any] = {"optimizer": self.optimizer, "loss": self.loss, "training": True, "form": form}
        return capture_source(self.fn, *call, **about)


def smaller_batches(fn: Any, call: Call, form: StepForm, optimizer: Any, loss: Any) -> OtherSteps | None:
    """What is tried where a step does not fit; None where nothing is trained."""
    return None if optimizer is None else OtherSteps(fn, call, form, optimizer, loss)


class Batches:
    """How the arrays of calls get into a program, alike for every call of a step."""

    def __init__(self, framework: Framework, engine: Engine, data: str, axes: tuple[str, ...], accumulate: int) -> None:
        self.framework, self.engine, self.data, self.axes = framework, engine, data, axes
        self.accumulate = accumulate
        self._looked_at = 0
        """Batches of which ranks were asked whether they are the same."""
        if data == "local" and engine.name == "virtual":
            raise SpecError(
                'data="local" is for ranks that run in processes of their own, but this is the virtual mesh',
                help="leave data= out: one process gives the whole batch; or launch with torchrun",
            )

    # -- what the program sees ------------------------------------------------------------------------------

    def whole(self, call: Call) -> Call:
        """The call as one process would make it: of local parts, stand-ins for what they are together."""
        if self.data == "global":
            return call
        arrays = self.framework.leaves(call)
        shapes = [self.framework.array_type(array).shape for array in arrays]
        dims = batch_dims(shapes)
        sizes = [shape[dim] for shape, dim in zip(shapes, dims) if dim is not None]
        together = self._together(sizes[0] if sizes else 0, arrays)
        stand_ins = [
            array if dim is None else self.framework.stand_in(array, (together, *shape[1:]))
            for array, shape, dim in zip(arrays, shapes, dims)
        ]
        args, kwargs = self.framework.filled(call, stand_ins)
        return args, kwargs

    def _together(self, size: int, arrays: Sequence[Any]) -> int:
        """The examples of all data ranks; that each gives its chunk of them."""
        engine: Any = self.engine
        mesh: DeviceMesh = engine.mesh
        digest = engine.digest(arrays) if self._looked_at < BATCHES_COMPARED else 0
        rows = engine.exchange([size, digest])
        self._compare([row[1] for row in rows])
        given: list[int] = [row[0] for row in rows]
        spec = self.spec(mesh, 1, 0)
        total = sum(given[p] for p in mesh if self._counts(mesh, p))
        wanted = [spec.local_shape((total,), p)[0] for p in mesh]
        if given != wanted:
            odd = next(p for p in mesh if given[p] != wanted[p])
            _, ways = data_place(mesh, self.axes, odd)
            raise SpecError(
                f"rank {mesh.device_ids[odd]} gives {given[odd]} examples, but of {total} it has {wanted[odd]}",
                rows=[("given", ", ".join(map(str, given))), ("wanted", ", ".join(map(str, wanted)))],
                help=f"give equal parts, or cut {total} as torch.chunk does into {ways} along {', '.join(self.axes)}",
            )
        return total

    def _compare(self, digests: Sequence[int]) -> None:
        """Parts that are all the same, batch after batch, are likely whole batches that every rank reads."""
        if self._looked_at == BATCHES_COMPARED:
            return
        _, ways = data_place(self.engine.mesh, self.axes, 0)
        if ways == 1 or len(set(digests)) > 1:
            self._looked_at = BATCHES_COMPARED
            return
        self._looked_at += 1
        if self._looked_at == BATCHES_COMPARED:
            _log.warning(
                'the first batches are the same on all ranks, but data="local" says that each gives its own part: '
                "give the data loader a DistributedSampler(num_replicas=step.data_ranks, rank=step.data_rank), or say "
                'data="global"'
            )

    def _counts(self, mesh: DeviceMesh, position: int) -> bool:
        """Whether a position is the first of those that give the same."""
        at = mesh.coordinates(position)
        return all(at[name] == 0 for name in mesh.axis_names if name not in self.axes)

    def spec(self, mesh: DeviceMesh, rank: int, dim: int | None) -> ShardingSpec:
        """The sharding in which an argument comes."""
        if dim is None or self.data == "global":
            return ShardingSpec.replicate(mesh, rank)
        words = ["_"] * rank
        words[dim] = "+".join(self.axes)
        return ShardingSpec.parse(f"[{', '.join(words)}]", mesh)

    def held(
        self, source: Source, whole: Call, call: Call, specs: Sequence[ShardingSpec]
    ) -> tuple[list[Any], list[Any]]:
        """The arguments as given, and what the engine holds of them."""
        looked_at = source.bind(*whole)
        if self.data == "global":
            return looked_at, [self.engine.scatter(array, spec) for array, spec in zip(looked_at, specs)]
        engine: Any = self.engine
        given, found = source.data_of(*call), []
        for array, about, spec, value in zip(given, source.inputs_are, specs, source.graph.inputs):
            type = source.graph.type(value)
            comes = self.spec(engine.mesh, type.rank, about.batch_dim)
            found.append(engine.move(array, comes, spec, type.shape))
        return given, found

    def like(self) -> list[int] | None:
        """The ranks that give what this one gives; None: all of them."""
        if self.data == "global":
            return None
        engine: Any = self.engine
        mesh: DeviceMesh = engine.mesh
        mine = data_place(mesh, self.axes, engine.position)
        return [mesh.device_ids[p] for p in mesh if data_place(mesh, self.axes, p) == mine]

    def requests(self, source: Source) -> list[Request]:
        """Where parts come from ranks, the program takes them as they come."""
        if self.data == "global":
            return []
        mesh = self.engine.mesh
        about = zip(source.inputs_are, source.graph.inputs)
        specs = {a.name: self.spec(mesh, source.graph.type(v).rank, a.batch_dim) for a, v in about if a.batch_dim == 0}
        return [Request("in_specs", (name, str(spec)), spec=spec) for name, spec in specs.items()]
