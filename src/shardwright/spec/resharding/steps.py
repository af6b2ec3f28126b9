"""From one sharding to another: the cheapest list of steps.

A step is a collective over some mesh axes, or a local operation that costs nothing:

==================== ==========================================================================
all_gather            the minor-most axes of a dim are undone
slice                 an unused axis cuts a dim further; every device keeps its part (local)
all_to_all            the minor-most axes of a dim move to the end of another dim
collective_permute    the same shards, on other devices
reduce_scatter        a pending axis is combined and cuts a dim at its end
all_reduce            a pending axis is combined
to_partial            an unused axis becomes pending: one device keeps the values (local)
==================== ==========================================================================

`reshard` searches (A*, see `search`); `reshard_table` gives the costs of all pairs at once, from the same
moves, so both always agree.  Cost is a parameter; without one it is the bytes a device sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...errors import ReshardError
from ..axes import Axes, axes_size, axes_text
from ..collective import collective_bytes
from ..mesh import DeviceMesh
from ..sharding import Shape, ShardingSpec, wrong_mesh

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CostFn = Callable[[str, Axes, int], int]
"""(kind, axes, bytes that one device puts in) -> cost."""


def bytes_cost(kind: str, axes: Axes, local_bytes: int) -> int:
    return collective_bytes(kind, axes_size(axes), local_bytes)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a reshard.

    ``axes`` are the axes it works over, ``dim`` the dim it undoes (all_gather, all_to_all) or cuts (slice,
    reduce_scatter), ``to_dim`` where all_to_all moves them.  ``local_bytes`` is what one device puts in,
    ``bytes`` what it sends.
    """

    kind: str
    axes: Axes
    before: ShardingSpec
    after: ShardingSpec
    local_bytes: int
    bytes: int
    dim: int | None = None
    to_dim: int | None = None
    reduction: str | None = None

    @property
    def is_local(self) -> bool:
        return self.kind in ("slice", "to_partial")

    def __str__(self) -> str:
        where = "" if self.dim is None else f" dim {self.dim}"
        where += "" if self.to_dim is None else f" -> {self.to_dim}"
        how = "" if self.reduction in (None, "sum") else f" {self.reduction}"
        over = f" {axes_text(self.axes)}" if self.axes else ""
        return f"{self.kind}{how}{over}{where}: {self.before.closed()} -> {self.after.closed()} ({self.bytes} B)"


def reshard(
    source: ShardingSpec,
    target: ShardingSpec,
    shape: Sequence[int],
    item_bytes: int = 4,
    cost: CostFn | None = None,
    idle: bool = True,
) -> tuple[Step, ...]:
    """The cheapest steps from one sharding of a tensor to another.

    Mesh axes that neither sharding uses can make collectives smaller (slice over one first, gather over it last);
    with ``idle=False`` they are left alone, as lowering does: what one means by an all_reduce is then one.

    >>> mesh = DeviceMesh("x=2, y=4")
    >>> for step in reshard(ShardingSpec(mesh, ["x", "y"]), ShardingSpec(mesh, ["x", None]), (8, 8)):
    ...     print(step)
    all_gather y dim 1: [x, y] -> [x, _] (96 B)
    """
    key = (source, target, tuple(shape), item_bytes, cost, idle)
    found = _cache.get(key)
    if found is None:
        if len(_cache) >= _CACHE_LIMIT:
            clear_cache()
        found = _cache[key] = _reshard(source, target, tuple(shape), item_bytes, cost or bytes_cost, idle)
    return found


_CACHE_LIMIT = 200_000
_cache: dict[tuple[ShardingSpec, ShardingSpec, Shape, int, CostFn | None, bool], tuple[Step, ...]] = {}


def clear_cache() -> None:
    """Forget all searches, and all that was learned on the way."""
    from .search import forget_spaces

    _cache.clear()
    forget_spaces()


def _reshard(
    source: ShardingSpec, target: ShardingSpec, shape: Shape, item_bytes: int, cost: CostFn, idle: bool
) -> tuple[Step, ...]:
    from .search import find_steps

    source.check_rank(shape)
    target.check_rank(shape)
    if source.same_layout(target):
        return ()
    if source.mesh == target.mesh:
        return find_steps(source, target, shape, item_bytes, cost, idle)
    _check_same_axes(source, target)
    moved = ShardingSpec.make(source.mesh, target.dims, target.partial)
    steps = find_steps(source, moved, shape, item_bytes, cost, idle) if not source.same_layout(moved) else ()
    return _change_devices(source, steps, target.mesh, shape, item_bytes)


def _check_same_axes(source: ShardingSpec, target: ShardingSpec) -> None:
    a, b = source.mesh, target.mesh
    if (a.shape, a.axis_names, sorted(a.device_ids)) != (b.shape, b.axis_names, sorted(b.device_ids)):
        wrong_mesh("the source", source, b)


def _change_devices(
    source: ShardingSpec, steps: tuple[Step, ...], mesh: DeviceMesh, shape: Shape, item_bytes: int
) -> tuple[Step, ...]:
    """Put in the change of device order where it is free, part of another permute, or smallest."""
    states = [source, *(step.after for step in steps)]
    at, extra = 0, True
    for i, step in enumerate(steps):
        if step.kind == "collective_permute":
            at, extra = i, False
            break
    else:
        at = min(range(len(states)), key=lambda i: (not states[i].is_replicated, _local_bytes(states[i], shape, 1)))
        extra = not states[at].is_replicated
    found: list[Step] = []
    for i, state in enumerate(states):
        new = ShardingSpec.make(mesh, state.dims, state.partial)
        if i == at and extra:
            size = _local_bytes(state, shape, item_bytes)
            found.append(Step("collective_permute", mesh.axes, state, new, size, size))
        if i < len(steps):
            step = steps[i]
            before = new if i > at or (i == at and extra) or (i == at and state.is_replicated) else state
            after = step.after if i < at else ShardingSpec.make(mesh, step.after.dims, step.after.partial)
            found.append(
                Step(
                    step.kind,
                    step.axes,
                    before,
                    after,
                    step.local_bytes,
                    step.bytes,
                    step.dim,
                    step.to_dim,
                    step.reduction,
                )
            )
    return tuple(found)


def _local_bytes(spec: ShardingSpec, shape: Shape, item_bytes: int) -> int:
    return prod(spec.padded_shape(shape)) * item_bytes


def nearest(
    copies: Sequence[ShardingSpec], target: ShardingSpec, shape: Shape, item_bytes: int
) -> tuple[int, tuple[Step, ...]]:
    """The copy from which fewest bytes are sent, and the steps; `hops.steps_to` is the rule for makers of copies."""
    ways = [reshard(copy, target, shape, item_bytes, idle=False) for copy in copies]
    best = min(range(len(ways)), key=lambda i: sum(step.bytes for step in ways[i]))
    return best, ways[best]


def reshard_bytes(
    source: ShardingSpec, target: ShardingSpec, shape: Sequence[int], item_bytes: int = 4, idle: bool = True
) -> int:
    """Bytes that one device sends in the cheapest reshard."""
    return sum(step.bytes for step in reshard(source, target, shape, item_bytes, idle=idle))


def reshard_table(
    specs: Sequence[ShardingSpec],
    shape: Sequence[int],
    item_bytes: int = 4,
    cost: CostFn | None = None,
    idle: bool = True,
) -> NDArray[np.int64]:
    """Costs of all pairs at once: ``table[i, j]`` is the cost from spec i to spec j.

    Equal to searching each pair, at a small part of the price: one closure over the layouts that the moves
    can reach.
    """
    from .all_pairs import all_pairs

    mesh = specs[0].mesh if specs else DeviceMesh({})
    for spec in specs:
        spec.check_rank(shape)
        if spec.mesh != mesh:
            wrong_mesh("a sharding of the table", spec, mesh)
    return all_pairs(specs, tuple(shape), item_bytes, cost or bytes_cost, idle)


def permute_sources(before: ShardingSpec, after: ShardingSpec) -> tuple[int, ...]:
    """For a collective_permute: the position each position receives from.

    Shards are matched by their place in the tensor, copies of one shard in order, so every device sends to
    exactly one.
    """
    mesh = before.mesh
    holders: dict[tuple[int, ...], list[int]] = {}
    for position in mesh:
        holders.setdefault(_place(before, position), []).append(position)
    taken: dict[tuple[int, ...], int] = {}
    sources = []
    for position in mesh:
        place = _place(after, position)
        copies = holders.get(place, [])
        i = taken.get(place, 0)
        if i >= len(copies):
            raise ReshardError("not a permutation of shards", rows=[("from", str(before)), ("to", str(after))])
        taken[place] = i + 1
        sources.append(copies[i])
    if before.mesh == after.mesh:
        return tuple(sources)
    # On a mesh with other devices at its positions, speak of positions of the first mesh.
    at = {device: position for position, device in enumerate(mesh.device_ids)}
    by_device = {at[after.mesh.device_ids[position]]: source for position, source in enumerate(sources)}
    return tuple(by_device[position] for position in mesh)


def _place(spec: ShardingSpec, position: int) -> tuple[int, ...]:
    """Which shard a position holds: its index along each dim, and along the pending axes."""
    index = spec.mesh.index_along
    place = []
    for dim in spec.dims:
        along = 0
        for axis in dim.axes:
            along = along * axis.size + index(position, axis)
        place.append(along)
    place.extend(index(position, axis) for axis, _ in spec.partial)
    return tuple(place)
