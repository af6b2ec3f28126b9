"""Shardings that PyTorch and JAX wrote, read without importing either; `interop` writes them.

It looks at what objects can do (``is_shard``, ``unreduced``, ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from ..errors import SpecError
from .axes import AxisRef
from .collective import check_reduction
from .mesh import DeviceMesh

_FROM_TORCH = {"product": "prod"}


def read_foreign(spec: Any, mesh: DeviceMesh, rank: int) -> tuple[list[Any], Any]:
    """Placements, a PartitionSpec (may be shorter than the rank) or a plain sequence: dims, and what is pending."""
    if not isinstance(spec, Iterable):
        raise SpecError(
            f"cannot read a sharding from {type(spec).__name__}",
            help='write P("dp", None), "[dp, _]", or pass placements',
        )
    entries = list(spec)
    if entries and all(hasattr(entry, "is_shard") for entry in entries):
        return _from_placements(entries, mesh, rank)
    dims = ["?" if type(entry).__name__ == "UnconstrainedSingleton" else entry for entry in entries]
    kind = str(getattr(getattr(spec, "unreduced_kind", None), "name", "sum")).lower()
    return dims, [(axis, kind) for axis in sorted(getattr(spec, "unreduced", None) or (), key=str)]


def _from_placements(placements: Sequence[Any], mesh: DeviceMesh, rank: int) -> tuple[list[Any], Any]:
    """PyTorch's placements, one for each mesh axis.

    A ``_StridedShard`` says that later axes, ``split_factor`` ways together, cut its dim before it does.
    """
    if len(placements) != mesh.ndim:
        raise SpecError(f"{len(placements)} placements for a mesh of {mesh.ndim} axes", rows=[("mesh", str(mesh))])
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    partial: list[tuple[AxisRef, str]] = []
    for axis, placement in reversed(list(zip(mesh.axes, placements))):
        if placement.is_partial():
            kind = str(placement.reduce_op)
            partial.append((axis, check_reduction(_FROM_TORCH.get(kind, kind))))
        elif placement.is_shard() or hasattr(placement, "split_factor"):
            dim = placement.dim + rank if placement.dim < 0 else placement.dim
            if not 0 <= dim < rank:
                raise SpecError(f"{placement} for a tensor of {rank} dims")
            _insert_after(dims[dim], axis, getattr(placement, "split_factor", 1), placement)
    return [tuple(axes) for axes in dims], partial


def _insert_after(axes: list[AxisRef], axis: AxisRef, ways: int, placement: Any) -> None:
    for place in range(len(axes) + 1):
        if prod(other.size for other in axes[:place]) == ways:
            axes.insert(place, axis)
            return
    raise SpecError(f"{placement} does not fit the axes after it", rows=[("axes", ", ".join(map(str, axes)))])
