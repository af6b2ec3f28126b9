"""Reshard steps carried out on real arrays, one per device, straight from the definition of each collective.

Independent of the search: it reads only a step's kind, axes, dims and shardings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwright.spec.chunks import nested_chunk
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.resharding.steps import Step, permute_sources
from shardwright.spec.sharding import ShardingSpec

Array = NDArray[np.float64]
COMBINE = {
    "sum": lambda parts: np.sum(parts, axis=0),
    "avg": lambda parts: np.mean(parts, axis=0),
    "max": lambda parts: np.max(parts, axis=0),
    "min": lambda parts: np.min(parts, axis=0),
    "prod": lambda parts: np.prod(parts, axis=0),
}


def scatter(tensor: Array, spec: ShardingSpec, seed: int = 0) -> list[Array]:
    """The shards of a tensor; pending axes hold values that combine to it."""
    shards = [tensor[spec.local_slices(tensor.shape, position)].copy() for position in spec.mesh]
    random = np.random.default_rng(seed)
    for axis, kind in spec.partial:
        for group in spec.mesh.groups([axis]):
            held = [shards[position] for position in group]
            noise = [random.integers(1, 5, size=part.shape).astype(float) for part in held]
            spread = _spread(kind, held, noise)
            for position, part in zip(group, spread):
                shards[position] = part
    return shards


def _spread(kind: str, held: list[Array], noise: list[Array]) -> list[Array]:
    """Change equal values so that they combine to what they were."""
    if kind in ("sum", "avg"):
        total = sum(noise[1:], np.zeros_like(noise[0]))
        first = held[0] - total if kind == "sum" else held[0] * len(held) - total
        return [first, *noise[1:]]
    if kind == "prod":
        ones = [np.where(part > 2, -1.0, 1.0) for part in noise[1:]]
        return [held[0] * np.prod(ones, axis=0) if ones else held[0], *ones]
    step = 1.0 if kind == "min" else -1.0
    return [held[0], *(value + step * part for value, part in zip(held[1:], noise[1:]))]


def gather(shards: list[Array], spec: ShardingSpec, shape: tuple[int, ...]) -> Array:
    """The whole tensor; pending values are combined.  Checks that copies agree."""
    for axis, kind in spec.partial:
        shards = _on_groups(shards, spec.mesh, [axis], lambda parts, kind=kind: [COMBINE[kind](parts)] * len(parts))
    whole = np.full(shape, np.nan)
    for position, shard in enumerate(shards):
        part = spec.local_slices(shape, position)
        known = whole[part]
        assert shard.shape == known.shape, (position, shard.shape, known.shape)
        assert np.array_equal(known[~np.isnan(known)], shard[~np.isnan(known)]), "copies differ"
        whole[part] = shard
    return whole


def _on_groups(shards: list[Array], mesh: DeviceMesh, axes, work) -> list[Array]:
    result = list(shards)
    for group in mesh.groups(axes):
        for position, part in zip(group, work([shards[p] for p in group])):
            result[position] = part
    return result


def _own(part: Array, step: Step, dim: int, position: int) -> Array:
    """A device's part of a dim that the step's axes cut."""
    mesh = step.before.mesh
    sizes = [axis.size for axis in step.axes]
    index = [mesh.index_along(position, axis) for axis in step.axes]
    start, stop = nested_chunk(part.shape[dim], sizes, index)
    return np.take(part, range(start, stop), axis=dim)


def apply_step(shards: list[Array], step: Step) -> list[Array]:
    mesh = step.before.mesh
    if step.kind == "slice":
        return [_own(part, step, step.dim, position) for position, part in enumerate(shards)]
    if step.kind == "to_partial":
        if step.reduction in ("max", "min", "avg"):
            return list(shards)
        neutral = np.zeros_like if step.reduction == "sum" else np.ones_like
        first = [all(mesh.index_along(p, axis) == 0 for axis in step.axes) for p in mesh]
        return [part if keep else neutral(part) for part, keep in zip(shards, first)]
    if step.kind == "collective_permute":
        return [shards[source] for source in permute_sources(step.before, step.after)]
    if step.kind == "all_reduce":
        return _on_groups(shards, mesh, step.axes, lambda parts: [COMBINE[step.reduction](parts)] * len(parts))
    if step.kind == "reduce_scatter":
        whole = _on_groups(shards, mesh, step.axes, lambda parts: [COMBINE[step.reduction](parts)] * len(parts))
        return [_own(part, step, step.dim, position) for position, part in enumerate(whole)]
    if step.kind in ("all_gather", "all_to_all"):
        # Shards are joined in the order in which the dim was cut, which all_to_all may change on the way.
        before = step.before.dims[step.dim].axes
        cut = [axis for axis in before if any(axis.overlaps(moved) for moved in step.axes)]
        order = [part for axis in cut for part in _parts(axis, step)]
        whole = _on_groups(shards, mesh, order, lambda parts: [np.concatenate(parts, axis=step.dim)] * len(parts))
        if step.kind == "all_gather":
            return whole
        return [_own(part, step, step.to_dim, position) for position, part in enumerate(whole)]
    raise AssertionError(step.kind)


def _parts(axis, step: Step):
    """The parts of an axis that a step moves, major to minor."""
    moved = sorted((other for other in step.axes if other.overlaps(axis)), key=lambda other: other.pre)
    return [axis] if any(other.contains(axis) for other in moved) else moved
