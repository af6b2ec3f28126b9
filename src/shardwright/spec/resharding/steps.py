"""`Step`: what a reshard consists of, and what it costs.

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

Cost is a parameter; without one it is the bytes a device sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import ReshardError
from ..axes import Axes, axes_size, axes_text
from ..collective import collective_bytes
from ..sharding import ShardingSpec

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
    place.extend(index(position, axis) for axis, _ in spec.partial if axis.size > 1)
    return tuple(place)
