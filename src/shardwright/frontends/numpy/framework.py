"""`NUMPY`: how NumPy computes ops, as a value that engines are handed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ...errors import SpecError
from ...ir.graph import TensorType
from ..base import Leaf, Prepared
from .arrays import NumpyArrays
from .compute import prepare
from .dtypes import ShapeDtype, tensor_type
from .trees import children, flatten, is_array


class NumpyFramework:
    """NumPy, as engines see it."""

    name = "numpy"
    processes = None
    arrays = NumpyArrays()

    def prepare(self, op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Prepared:
        return prepare(op, attrs, results)

    def leaves(self, tree: Any) -> list[Any]:
        return [leaf for leaf in _walk(tree) if is_array(leaf) or isinstance(leaf, Leaf)]

    def array_type(self, array: Any) -> TensorType:
        array = np.asarray(array)
        return tensor_type(array.shape, array.dtype)

    def filled(self, tree: Any, arrays: Sequence[Any]) -> Any:
        raise SpecError(
            "batches of NumPy arrays are not cut: accumulate= is for training steps of PyTorch",
            help="leave accumulate= out, or give a module and tensors of PyTorch",
        )

    def stand_in(self, array: Any, shape: Sequence[int]) -> Any:
        return ShapeDtype(tuple(shape), np.asarray(array).dtype)

    def signature(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        found, tree = flatten((args, dict(kwargs)))
        return repr((tree, [(np.shape(leaf), str(leaf.dtype)) for _, leaf in found]))

    def checkpointed(self, fn: Any) -> AbstractContextManager[tuple[str, ...]]:
        return nullcontext(())


def _walk(tree: Any) -> list[Any]:
    inner = None if is_array(tree) else children(tree)
    return [tree] if inner is None else [leaf for item in inner[1] for leaf in _walk(item)]


NUMPY = NumpyFramework()
