"""From one sharding to another: the cheapest list of steps that a search finds.

`reshard` searches (A*, see `search`); `reshard_table` gives the costs of all pairs at once, from the same
moves, so both always agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from ..mesh import DeviceMesh
from ..sharding import Shape, ShardingSpec, wrong_mesh
from .all_pairs import all_pairs
from .search import find_steps, forget_spaces
from .steps import CostFn, Step, bytes_cost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def reshard(
    source: ShardingSpec,
    target: ShardingSpec,
    shape: Sequence[int],
    item_bytes: int = 4,
    cost: CostFn | None = None,
    idle: bool = True,
) -> tuple[Step, ...]:
    """Steps from one sharding of a tensor to another, at least cost: by default fewest bytes.

    No list of the same moves costs less while the search ends by itself, as it does on all but large meshes.  After
    `search.EXPANSIONS` layouts, and where shards are uneven, they are the best that were found.

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
    _cache.clear()
    forget_spaces()


def _reshard(
    source: ShardingSpec, target: ShardingSpec, shape: Shape, item_bytes: int, cost: CostFn, idle: bool
) -> tuple[Step, ...]:
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
    """The copy from which fewest bytes are sent, and the steps.

    `single_steps.steps_to` is the rule for makers of copies.
    """
    ways = [reshard(copy, target, shape, item_bytes, idle=False) for copy in copies]
    best = min(range(len(ways)), key=lambda i: sum(step.bytes for step in ways[i]))
    return best, ways[best]


def reshard_bytes(
    source: ShardingSpec, target: ShardingSpec, shape: Sequence[int], item_bytes: int = 4, idle: bool = True
) -> int:
    """Bytes that one device sends in the steps of `reshard`."""
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
    mesh = specs[0].mesh if specs else DeviceMesh({})
    for spec in specs:
        spec.check_rank(shape)
        if spec.mesh != mesh:
            wrong_mesh("a sharding of the table", spec, mesh)
    return all_pairs(specs, tuple(shape), item_bytes, cost or bytes_cost, idle)
