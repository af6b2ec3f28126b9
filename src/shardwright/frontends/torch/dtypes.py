"""PyTorch's element types by our names, and the type of a tensor."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import TraceError
from ...ir.graph import TensorType

_BY_NAME: dict[str, torch.dtype] = {
    "bool": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "u16": torch.uint16,
    "i32": torch.int32, "u32": torch.uint32, "i64": torch.int64, "u64": torch.uint64, "f16": torch.float16,
    "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64,
    "c128": torch.complex128, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _BY_NAME.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """
    >>> dtype_name(torch.bfloat16), dtype_name(torch.int64)
    ('bf16', 'i64')
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise TraceError(f"tensors of {dtype} cannot be captured", help=f"known are {', '.join(_BY_NAME)}")
    return name


def torch_dtype(name: str) -> torch.dtype:
    """
    >>> torch_dtype("f8e4m3")
    torch.float8_e4m3fn
    """
    dtype = _BY_NAME.get(name)
    if dtype is None:
        raise TraceError(f"PyTorch has no element type {name!r}", help=f"known are {', '.join(_BY_NAME)}")
    return dtype


def tensor_type(tensor: Any) -> TensorType:
    return TensorType(tuple(tensor.shape), dtype_name(tensor.dtype))
