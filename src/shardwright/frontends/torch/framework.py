"""`TORCH`: how PyTorch computes ops, as a value that engines are handed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ...ir.graph import TensorType
from ..base import Leaf, Prepared
from .arrays import TorchArrays
from .compute import prepare
from .dtypes import tensor_type
from .private import tree_flatten, tree_unflatten
from .recompute import checkpointed


class TorchFramework:
    """PyTorch, as engines see it; ``device`` is where the arrays are, None where that does not matter."""

    name = "torch"
    processes = "torch"

    def __init__(self, device: Any = None) -> None:
        self.device, self.arrays = device, TorchArrays(device)

    def prepare(self, op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Prepared:
        return prepare(op, attrs, results, self.device)

    def leaves(self, tree: Any) -> list[Any]:
        return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor | Leaf)]

    def array_type(self, array: Any) -> TensorType:
        return tensor_type(array)

    def filled(self, tree: Any, arrays: Sequence[Any]) -> Any:
        found, spec = tree_flatten(tree)
        rest = iter(arrays)
        return tree_unflatten([next(rest) if isinstance(x, torch.Tensor | Leaf) else x for x in found], spec)

    def stand_in(self, array: Any, shape: Sequence[int]) -> Any:
        return torch.empty(tuple(shape), dtype=array.dtype, device="meta", requires_grad=array.requires_grad)

    def signature(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        leaves, tree = tree_flatten((args, dict(kwargs)))
        return str(tree), tuple(map(_kind, leaves)), torch.is_grad_enabled()

    def checkpointed(self, fn: Any) -> AbstractContextManager[tuple[str, ...]]:
        return checkpointed(fn)


def _kind(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), str(leaf.dtype), leaf.requires_grad
    return repr(leaf)


TORCH = TorchFramework()
