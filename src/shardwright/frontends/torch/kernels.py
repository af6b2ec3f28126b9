"""Ops whose plain call would be wrong on a shard, because an attribute or the layout in memory speaks of the whole.

A kernel is made from an op's attributes, the types of its results and a device, and takes the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...ir.graph import TensorType
from .dtypes import torch_dtype
from .private import assert_async

Kernel = Callable[..., Any]
Make = Callable[[Mapping[str, Any], Sequence[TensorType], Any], Kernel]
KERNELS: dict[str, Make] = {}


def kernel(*ops: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        KERNELS.update(dict.fromkeys(ops, make))
        return make

    return register


@kernel("aten.view", "aten._unsafe_view", "aten._reshape_alias", "aten.reshape", "aten.view_copy", "aten._reshape_copy",
        "aten.squeeze", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy", "aten.squeeze_copy.dim",
        "aten.squeeze_copy.dims", "aten.unflatten.int", "aten.flatten.using_ints")  # fmt: skip
def _reshape(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """A shard need not lie in memory as the whole did, so a view of it may have to copy; and it may be of size 1."""
    shape = results[0].shape
    return lambda x: x.reshape(shape)


@kernel("aten.expand_copy", "aten.broadcast_to")
def _expand(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    shape = results[0].shape
    return lambda x: x.expand(shape)


@kernel("aten.new_empty_strided", "aten.empty_strided")
def _empty(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """Strides are those of the whole; nobody may rely on them."""
    shape, dtype = results[0].shape, torch_dtype(results[0].dtype)

    def run(*like: Any) -> Any:
        return torch.empty(shape, dtype=dtype, device=like[0].device if like else device)

    return run


@kernel("aten.repeat")
def _repeat(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """Dims that are new need not be repeated as often on a shard."""
    repeats, shape = attrs["repeats"], results[0].shape

    def run(x: Any) -> Any:
        lead = len(shape) - x.dim()
        return x.repeat(*shape[:lead], *repeats[lead:])

    return run


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


# -- shards without elements -------------------------------------------------------------------------------

ON_NOTHING: dict[str, str] = {
    "aten.native_group_norm_backward": "zero",
    "aten.amax": "least", "aten.max": "least", "aten.amin": "greatest", "aten.min": "greatest",
    "aten.aminmax": "greatest, least",
}  # fmt: skip
"""What an op gives that refuses operands without elements: the neutral element of the sum or extreme it is part of, for
each result."""


def on_nothing(kind: str, results: Sequence[TensorType], device: Any) -> tuple[Any, ...]:
    """
    >>> on_nothing("least", [TensorType((2,), "f32")], None)
    (tensor([-inf, -inf]),)
    """
    kinds = kind.split(", ") if ", " in kind else [kind] * len(results)
    return tuple(torch.full(r.shape, _neutral(k, torch_dtype(r.dtype)), dtype=torch_dtype(r.dtype), device=device)
                 for k, r in zip(kinds, results))  # fmt: skip


def convolved_nothing(results: Sequence[TensorType], operands: Sequence[Any], device: Any) -> tuple[Any, ...]:
    """Without input channels there is the bias alone."""
    (made,) = on_nothing("zero", results, device)
    bias = operands[2] if len(operands) > 2 else None
    return (made if bias is None else made + bias.reshape(-1, *(1,) * (made.dim() - 2)),)


def gradients_of_nothing(results: Sequence[TensorType], operands: Sequence[Any], device: Any) -> tuple[Any, ...]:
    """Of a convolution without input channels: the bias still has a gradient; it has one dim, and is the last."""
    made, gradient = on_nothing("zero", results, device), operands[0]
    if len(results[-1].shape) != 1 or not gradient.numel():
        return made
    return (*made[:-1], gradient.sum([d for d in range(gradient.dim()) if d != 1]))


Nothing = Callable[[Sequence[TensorType], Sequence[Any], Any], tuple[Any, ...]]
WITHOUT_INPUT: dict[str, Nothing] = {
    "aten.convolution": convolved_nothing, "aten.convolution_backward": gradients_of_nothing
}  # fmt: skip
"""What ops give that refuse operands without elements, and whose other operands count all the same."""


def _neutral(kind: str, dtype: Any) -> Any:
    if kind == "zero":
        return 0
    if dtype.is_floating_point:
        return float("-inf") if kind == "least" else float("inf")
    if dtype == torch.bool:
        return kind == "greatest"
    limits = torch.iinfo(dtype)
    return limits.min if kind == "least" else limits.max


# -- local forms: what a device computes of a dim that is split --------------------------------------------


def _mine(index: Any, offset: Any, rows: int, size: int) -> tuple[Any, Any]:
    """Places in this device's part of ``size`` rows, which begins at ``offset``, and which of them there are.

    An index that no device has would be zero everywhere; eager PyTorch refuses it, so do we, without waiting for it.
    """
    inside = ((index >= 0) & (index < size)).all()
    assert_async(inside, f"an index is out of range: the table has {size} rows, counted from 0")
    local = index - offset
    mine = (local >= 0) & (local < rows)
    return torch.where(mine, local, 0), mine


@kernel("core.take")
def _take(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """Rows of a table of which this device holds a part; zero for rows that it lacks."""
    axis, shape = attrs["axis"], results[0].shape

    def run(table: Any, index: Any, offset: Any) -> Any:
        rows = table.shape[axis]
        if rows == 0:
            return table.new_zeros(shape)
        local, mine = _mine(index, offset, rows, attrs["size"])
        found = table.index_select(axis, local.reshape(-1)).reshape(shape)
        after = (1,) * (table.dim() - axis - 1)
        return torch.where(mine.reshape(*mine.shape, *after), found, torch.zeros_like(found))

    return run


@kernel("core.take_along")
def _take_along(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """One lookup for each element of the index; zero where it points into another device's part."""
    axis, shape = attrs["axis"], results[0].shape

    def run(table: Any, index: Any, offset: Any) -> Any:
        rows = table.shape[axis]
        if rows == 0:
            return table.new_zeros(shape)
        local, mine = _mine(index, offset, rows, attrs["size"])
        found = table.gather(axis, local)
        return torch.where(mine, found, torch.zeros_like(found))

    return run


@kernel("core.take_grad")
def _take_grad(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """Rows of a gradient, summed where the index points into this device's part of the table."""
    rows, width = results[0].shape
    ignored = attrs["ignored"]

    def run(grad: Any, index: Any, offset: Any) -> Any:
        made = grad.new_zeros(rows, width)
        if rows == 0:
            return made
        local, mine = _mine(index, offset, rows, attrs["size"])
        if ignored >= 0:
            mine = mine & (index != ignored)
        kept = torch.where(mine.unsqueeze(-1), grad, torch.zeros_like(grad))
        return made.index_add(0, local.reshape(-1), kept.reshape(-1, width))

    return run


@kernel("core.arange")
def _counted(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """Numbers counted from where this device's part begins."""
    start, step = attrs["start"], attrs["step"]
    (size,), dtype = results[0].shape, torch_dtype(results[0].dtype)
    return lambda offset: ((torch.arange(size, device=offset.device) + offset) * step + start).to(dtype)


@kernel("core.triangle")
def _triangle(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
    """A part of a matrix with one of its triangles set to zero, by global indices."""
    k, lower = attrs["k"], attrs["lower"]

    def run(x: Any, first_row: Any, first_column: Any) -> Any:
        rows = first_row + torch.arange(x.shape[-2], device=x.device).unsqueeze(1)
        columns = first_column + torch.arange(x.shape[-1], device=x.device)
        keep = columns - rows <= k if lower else columns - rows >= k
        return torch.where(keep, x, torch.zeros_like(x))

    return run
