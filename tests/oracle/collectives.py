"""What Shardy's own list of collectives costs, by our definition of bytes (padding included)."""

from __future__ import annotations

import re
from math import prod

from vectors import Function

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

    Shardy pads a dim and cuts it evenly; then an axis may be put on a dim one part after the other.  Cut chunk
    after chunk that is a different layout, unless the dim divides.
    """
    here = source
    for node in function.graph.nodes:
        after = function.specs.get(node.results[0], here)
        for size, old, new in zip(shape, here.dims, after.dims):
            shared = 0
            while shared < min(len(old.axes), len(new.axes)) and old.axes[shared] == new.axes[shared]:
                shared += 1
            parts = [dim.axes[shared] for dim in (old, new) if len(dim.axes) > shared]
            opened = len(parts) == 2 and (parts[0].prefix_of(parts[1]) or parts[1].prefix_of(parts[0]))
            if opened and any(size % dim.shards for dim in (old, new)):
                return False
        here = after
    return True
