"""Shardings written as PyTorch and JAX write them, without importing either; `foreign` reads them.

The classes are taken from the module that the caller hands in or has already imported.  A spec is a `ShardingSpec`, of
which these are methods.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any

from ..errors import SpecError
from .axes import AxisRef

_TO_TORCH = {"prod": "product"}


def to_placements(spec: Any, types: Any = None) -> tuple[Any, ...]:
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


def placeable(spec: Any) -> Any:
    """The sharding itself, if plain placements say it: whole axes, in mesh order within a dim, nothing pending.

    Else the nearest that they say: axes sorted, parts of axes and what is pending left out.

    >>> from shardwright.spec.sharding import ShardingSpec
    >>> specs = [ShardingSpec.parse(text, "a=2, b=4") for text in ("[a+b, _]", "[b+a]", "[b:(1)2, a] // b:(2)2")]
    >>> [str(placeable(spec)) for spec in specs]
    ['[a+b, _]', '[a+b]', '[_, a]']
    """
    order = spec.mesh.order
    dims = [sorted((axis for axis in dim.axes if axis.is_whole), key=order) for dim in spec.dims]
    if not spec.partial and all(list(dim.axes) == axes for dim, axes in zip(spec.dims, dims)):
        return spec.closed()
    return type(spec)(spec.mesh, [tuple(axes) for axes in dims])


def _strided(types: Any) -> Any:
    """_StridedShard is not exported; it stands beside the placements it belongs to."""
    if hasattr(types, "_StridedShard"):
        return types._StridedShard
    return _imported("torch.distributed.tensor.placement_types", "placements")._StridedShard


def to_partition_spec(spec: Any, type: Any = None) -> Any:
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


def _refuse_sub_axis(axis: AxisRef, spec: Any) -> None:
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
