"""What Shardy's own list of collectives costs, by our definition of bytes (padding included)."""

from __future__ import annotations

import re
from math import prod

import numpy as np
from vectors import Function

from shardwright.spec.chunks import all_chunks
from shardwright.spec.collective import collective_bytes
from shardwright.spec.sharding import ShardingSpec

_AXIS = re.compile(r'"(\w+)"(:\(\d+\)\d+)?')
_MOVE = re.compile(r"\{([^{}]*)\}: (\d+)->(\d+)")
_SAYS_NOTHING = {"sdy.propagation_barrier", "sdy.reshard"}


def shardy_bytes(function: Function, source: ShardingSpec, shape: tuple[int, ...], item_bytes: int) -> int:
    """Follow the collectives of an expected function from its argument on."""
    total, here = 0, source
    for n, node in enumerate(function.graph.nodes):
        if node.op in _SAYS_NOTHING:
            continue
        after = function.specs[node.results[0]]
        total += _bytes(node.op.removeprefix("sdy."), function.attrs[n], here, after, shape, item_bytes)
        here = after
    return total


def _bytes(
    kind: str,
    attrs: dict[str, str],
    here: ShardingSpec,
    after: ShardingSpec,
    shape: tuple[int, ...],
    item: int,
) -> int:
    local = prod(here.padded_shape(shape)) * item
    if kind == "all_slice":
        return 0
    if kind == "collective_permute":
        return local
    if kind == "all_gather":
        before, now = (prod([axis.size for axis in spec.sharded_axes]) for spec in (here, after))
        return collective_bytes(kind, before // now, local)
    if kind == "all_to_all":
        total = 0
        for words, _, to in _MOVE.findall(attrs["params"]):
            ways = prod(here.mesh.axis(name + part).size for name, part in _AXIS.findall(words))
            old = here.padded_shape(shape)[int(to)]
            padded = after.padded_shape(shape)[int(to)] * ways
            total += collective_bytes(kind, ways, local // old * padded if old else local)
        return total
    raise ValueError(f"unexpected collective {kind}")


def is_exact(function: Function, source: ShardingSpec, shape: tuple[int, ...]) -> bool:
    """Whether Shardy's steps give the target when uneven shards are cut as DTensor cuts them.

    Shardy pads a dim and cuts it evenly; then shards of one layout need not be those of another that has as many of
    them, and an axis may be put on a dim one part after the other.  Cut chunk after chunk it has to be right as it is:
    after each step a device has no more than what it had, or what its group had, or what another device had.
    """
    here = source
    for n, node in enumerate(function.graph.nodes):
        if node.op in _SAYS_NOTHING:
            continue
        after = function.specs[node.results[0]]
        if not _leads_to(node.op.removeprefix("sdy."), function.attrs[n], here, after, shape):
            return False
        here = after
    return True


def _leads_to(
    kind: str, attrs: dict[str, str], here: ShardingSpec, after: ShardingSpec, shape: tuple[int, ...]
) -> bool:
    """Whether a step brings shards of one sharding to those of the next."""
    uneven = any(size % dim.shards for spec in (here, after) for size, dim in zip(shape, spec.dims))
    if not uneven:
        return True
    mesh = here.mesh
    old = [here.local_slices(shape, position) for position in mesh]
    new = [after.local_slices(shape, position) for position in mesh]
    if kind == "collective_permute":  # the shards of each dim stay in order, on other devices
        return all(
            all_chunks(size, before.parts) == all_chunks(size, then.parts)
            for size, before, then in zip(shape, here.dims, after.dims)
        )
    words = attrs["params"] if kind == "all_to_all" else attrs.get("gathering_axes", "")
    axes = [] if kind == "all_slice" else [mesh.axis(name + part) for name, part in _AXIS.findall(words)]
    for group in mesh.groups(axes) if axes else [[position] for position in mesh]:
        have = np.zeros(shape, bool)
        for position in group:
            have[tuple(old[position])] = True
        if not all(have[tuple(new[position])].all() for position in group):
            return False
    return True
