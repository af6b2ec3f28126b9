"""A tensor with its sharding as text: ``f32[16@dp, 2048]``."""

from __future__ import annotations

from collections.abc import Sequence

from .axes import axes_text
from .mesh import DeviceMesh
from .notation import Reader, read_tensor
from .sharding import Shape, ShardingSpec, partial_text


def tensor_text(dtype: str, shape: Sequence[int], spec: ShardingSpec | None = None) -> str:
    """``f32[16@dp, 2048]``: a tensor with its sharding on it.

    >>> tensor_text("f32", (16, 2048), ShardingSpec(DeviceMesh("dp=2"), ["dp", None]))
    'f32[16@dp, 2048]'
    """
    dims = []
    for d, size in enumerate(shape):
        axes = spec.dims[d].axes if spec is not None else ()
        dims.append(f"{size}@{axes_text(axes)}" if axes else str(size))
    text = f"{dtype}[{', '.join(dims)}]"
    return f"{text} // {partial_text(spec.partial)}" if spec is not None and spec.partial else text


def parse_tensor(text: str, mesh: DeviceMesh | None = None) -> tuple[str, Shape, ShardingSpec | None]:
    """The inverse of `tensor_text`: dtype, shape, sharding (None without a mesh)."""
    reader = Reader(text)
    dtype, shape, dims, partial = read_tensor(reader, mesh)
    reader.end()
    return dtype, shape, None if mesh is None else ShardingSpec(mesh, dims, partial)
