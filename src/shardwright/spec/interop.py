"""Shardings as PyTorch and JAX write them, without importing either.

Reading looks at what objects can do (``is_shard``, ``spec`` and ``mesh``, ...).  Writing takes the classes
from the module that the caller hands in or has already imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from ..errors import SpecError
from .axes import AxisRef
from .collective import check_reduction
from .mesh import DeviceMesh
from .sharding import DimSpec, P, ShardingSpec, wrong_mesh

_FROM_TORCH = {"product": "prod"}
_TO_TORCH = {"prod": "product"}


def read_spec(spec: Any, mesh: DeviceMesh, rank: int) -> ShardingSpec:
    """Whatever says a sharding, for a tensor of this rank on this mesh."""
    if isinstance(spec, ShardingSpec):
        if spec.mesh != mesh:
            wrong_mesh("the sharding", spec, mesh)
        found = spec
    elif spec is None:
        found = ShardingSpec.replicate(mesh, rank)
    elif isinstance(spec, str):
        found = ShardingSpec.parse(spec, mesh)
    elif isinstance(spec, P):
        found = spec.bind(mesh, rank)
    elif hasattr(spec, "spec") and hasattr(spec, "mesh"):  # jax.sharding.NamedSharding
        theirs = DeviceMesh.of(spec.mesh)
        if theirs != mesh:
            wrong_mesh("the sharding", ShardingSpec.replicate(theirs, rank), mesh)
        return read_spec(spec.spec, mesh, rank)
    elif isinstance(spec, Iterable):
        entries = list(spec)
        if entries and all(hasattr(entry, "is_shard") for entry in entries):
            found = from_placements(entries, mesh, rank)
        else:
            found = _from_entries(spec, entries, mesh, rank)
    else:
        raise SpecError(
            f"cannot read a sharding from {type(spec).__name__}",
            help='write P("dp", None), "[dp, _]", or pass placements',
        )
    if found.rank != rank:
        fact = f"a sharding of {found.rank} dims for a tensor of {rank}"
        raise SpecError(fact, rows=[("spec", str(found))])
    return found


def _from_entries(spec: Any, entries: list[Any], mesh: DeviceMesh, rank: int) -> ShardingSpec:
    """A plain sequence, or JAX's PartitionSpec (which may be shorter than the rank)."""
    dims = ["?" if type(entry).__name__ == "UnconstrainedSingleton" else entry for entry in entries]
    pending = getattr(spec, "unreduced", None) or ()
    return P(*dims, partial=tuple(pending)).bind(mesh, rank)


def from_placements(placements: Sequence[Any], mesh: DeviceMesh, rank: int) -> ShardingSpec:
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
    return ShardingSpec(mesh, [DimSpec(tuple(axes)) for axes in dims], partial)


def _insert_after(axes: list[AxisRef], axis: AxisRef, ways: int, placement: Any) -> None:
    for place in range(len(axes) + 1):
        if prod(other.size for other in axes[:place]) == ways:
            axes.insert(place, axis)
            return
    raise SpecError(f"{placement} does not fit the axes after it", rows=[("axes", ", ".join(map(str, axes)))])


def to_placements(spec: ShardingSpec, types: Any = None) -> tuple[Any, ...]:
    """PyTorch's placements; ``types`` is ``torch.distributed.tensor`` or something that looks like it."""
    types = types or _imported("torch.distributed.tensor", "placements")
    placed: dict[str, Any] = {}
    for d, dim in enumerate(spec.dims):
        for i, axis in enumerate(dim.axes):
            _refuse_sub_axis(axis, spec)
            order = spec.mesh.order(axis)
            ways = prod(other.size for other in dim.axes[:i] if spec.mesh.order(other) > order)
            placed[axis.name] = types.Shard(d) if ways == 1 else _strided(types)(d, split_factor=ways)
    for axis, kind in spec.partial:
        _refuse_sub_axis(axis, spec)
        placed[axis.name] = types.Partial(_TO_TORCH.get(kind, kind))
    return tuple(placed.get(name) or types.Replicate() for name in spec.mesh.axis_names)


def _strided(types: Any) -> Any:
    """_StridedShard is not exported; it stands beside the placements it belongs to."""
    if hasattr(types, "_StridedShard"):
        return types._StridedShard
    return _imported("torch.distributed.tensor.placement_types", "placements")._StridedShard


def to_partition_spec(spec: ShardingSpec, type: Any = None) -> Any:
    """JAX's PartitionSpec; ``type`` is that class, or any that takes the entries."""
    type = type or _imported("jax.sharding", "a PartitionSpec").PartitionSpec
    if spec.partial:
        raise SpecError("a PartitionSpec cannot say that values are pending", rows=[("spec", str(spec))])
    entries: list[Any] = []
    for dim in spec.dims:
        for axis in dim.axes:
            _refuse_sub_axis(axis, spec)
        names = tuple(axis.name for axis in dim.axes)
        entries.append(None if not names else names[0] if len(names) == 1 else names)
    return type(*entries)


def _refuse_sub_axis(axis: AxisRef, spec: ShardingSpec) -> None:
    if not axis.is_whole:
        raise SpecError(
            f"{axis} is a part of a mesh axis, which PyTorch and JAX cannot express",
            rows=[("spec", str(spec))],
            help=f"make a mesh in which {axis.name!r} is split into two axes",
        )


def _imported(module: str, what: str) -> Any:
    found = sys.modules.get(module)
    if found is None:
        raise SpecError(f"cannot make {what}: {module} is not imported", help=f"import {module} first")
    return found
