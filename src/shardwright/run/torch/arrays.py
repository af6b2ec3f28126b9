"""The array operations behind collectives, on PyTorch tensors; scatter and assemble in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...spec.sharding import ShardingSpec

_COMBINE: dict[str, Any] = {
    "sum": torch.add, "avg": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul,
}  # fmt: skip


class TorchArrays:
    """NaN is kept in max and min, as PyTorch's maximum and minimum do.

    >>> TorchArrays().combine("max", [torch.tensor([1.0]), torch.tensor([float("nan")])])
    tensor([nan])
    """

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
        return torch.tensor(value, dtype=torch.int64)

    def shape(self, array: Any) -> tuple[int, ...]:
        return tuple(array.shape)

    def item_bytes(self, array: Any) -> int:
        return int(array.element_size())


def shard(tensor: Any, spec: ShardingSpec, position: int) -> Any:
    """The part of a whole tensor that one position holds: a view.  Pending axes are not looked at."""
    tensor = tensor.detach()
    return tensor if spec.is_replicated else tensor[spec.local_slices(tensor.shape, position)]


def scatter(tensor: Any, spec: ShardingSpec) -> list[Any]:
    """The shards of a whole tensor, one for each position; they are views of it."""
    if spec.is_replicated:
        return [tensor.detach()] * spec.mesh.size
    return [shard(tensor, spec, position) for position in spec.mesh]


def assemble(shards: Sequence[Any], spec: ShardingSpec, shape: Sequence[int]) -> Any:
    """The whole tensor from its shards; the shard itself where every position has all of it."""
    if spec.is_replicated:
        return shards[0]
    whole = shards[0].new_empty(tuple(shape))
    for position in spec.mesh:
        whole[spec.local_slices(shape, position)] = shards[position]
    return whole
