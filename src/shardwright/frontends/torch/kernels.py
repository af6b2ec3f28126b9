"""Ops whose plain call would be wrong on a shard, because an attribute or the layout in memory speaks of the whole.

A kernel is made from an op's attributes, the types of its results and a device, and takes the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...ir.graph import TensorType
from .dtypes import torch_dtype

Kernel = Callable[..., Any]
Make = Callable[[Mapping[str, Any], Sequence[TensorType], Any], Kernel]
KERNELS: dict[str, Make] = {}


def kernel(*ops: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        KERNELS.update(dict.fromkeys(ops, make))
        return make

    return register


@kernel("aten.view", "aten._unsafe_view", "aten._reshape_alias", "aten.reshape")
def _reshape(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """A shard need not lie in memory as the whole did, so a view of it may have to copy."""
    shape = results[0].shape
    return lambda x: x.reshape(shape)


@kernel("aten.arange", "aten.arange.start", "aten.arange.start_step")
def _arange(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """The first elements; where a shard begins is for the rule's local form to add."""
    start, step = attrs.get("start", 0), attrs.get("step", 1)
    count, dtype = results[0].elements, torch_dtype(results[0].dtype)

    def run() -> Any:
        if dtype.is_floating_point:
            whole = torch.arange(start, attrs["end"], step, dtype=dtype, device=device)
            if len(whole) == count:
                return whole
        return torch.arange(count, dtype=dtype, device=device).mul_(step).add_(start)

    return run


@kernel("aten.as_strided")
def _as_strided(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """Speaks of positions in memory: capture takes it of contiguous tensors only, so a contiguous one is made."""
    size, stride, offset = attrs["size"], attrs["stride"], attrs["storage_offset"]
    return lambda x: x.contiguous().as_strided(size, stride, offset or 0)


@kernel("core.constraint")
def _constraint(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    return lambda x: x
