"""The array operations behind collectives, on PyTorch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .dtypes import dtype_name

_COMBINE: dict[str, Any] = {
    "sum": torch.add, "avg": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul,
}  # fmt: skip


class TorchArrays:
    """NaN is kept in max and min, as PyTorch's maximum and minimum do; whole arrays are brought to ``device``.

    >>> TorchArrays().combine("max", [torch.tensor([1.0]), torch.tensor([float("nan")])])
    tensor([nan])
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def concatenate(self, parts: Sequence[Any], dim: int) -> Any:
        return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)

    def combine(self, kind: str, parts: Sequence[Any]) -> Any:
        if parts[0].dtype == torch.bool and kind in ("sum", "avg"):
            raise TypeError("a pending sum of booleans has no meaning")
        add = _COMBINE[kind]
        total = parts[0]
        for part in parts[1:]:
            total = add(total, part)
        if kind == "avg":
            total = torch.true_divide(total, len(parts)).to(parts[0].dtype)
        return total

    def part(self, array: Any, dim: int, start: int, stop: int) -> Any:
        return array.narrow(dim, start, stop - start)

    def neutral_like(self, kind: str, array: Any) -> Any:
        return torch.ones_like(array) if kind == "prod" else torch.zeros_like(array)

    def number(self, value: int) -> Any:
        return torch.tensor(value, dtype=torch.int64, device=self.device)

    def shape(self, array: Any) -> tuple[int, ...]:
        return tuple(array.shape)

    def item_bytes(self, array: Any) -> int:
        return int(array.element_size())

    def dtype(self, array: Any) -> str:
        return dtype_name(array.dtype)

    def copy(self, array: Any) -> Any:
        return array.detach().clone()

    def at(self, array: Any, slices: tuple[slice, ...]) -> Any:
        part = array.detach()[slices]
        return part if self.device is None else part.to(self.device)

    def joined(self, like: Any, shape: Sequence[int], parts: Sequence[tuple[tuple[slice, ...], Any]]) -> Any:
        whole = like.new_empty(tuple(shape))
        for where, part in parts:
            whole[where] = part
        return whole
