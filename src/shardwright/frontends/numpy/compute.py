"""Computing ops with NumPy.

`prepare` looks at an op once and returns a function of its operands, so that running a program costs little more than
the NumPy calls in it.  Sizes come from the result's type, never from attributes: on a device the result is a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import UnknownOpError, near_misses
from ...ir.graph import Graph, TensorType
from ..base import run_nodes
from .dtypes import Array, numpy_dtype, tensor_type
from .functions.replicated import kernel_of
from .kernels import KERNELS

Prepared = Callable[[Sequence[Any]], tuple[Array, ...]]


def prepare(op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Prepared:
    """A function that computes an op: it takes the operands (None for absent ones, lists for list operands).

    >>> double = prepare("add", {}, [TensorType((3,), "f64")])
    >>> x = np.arange(3.0)
    >>> double([x, x])
    (array([0., 2., 4.]),)
    """
    make = KERNELS.get(op) or kernel_of(op)
    if make is None:
        raise UnknownOpError(
            f"NumPy cannot compute op {op!r}",
            help=near_misses(op, KERNELS) or "import the file that defines it with @shardwright.numpy.op",
        )
    kernel = make(attrs, results)
    dtypes = [numpy_dtype(result.dtype) for result in results]
    if len(results) != 1:
        return lambda operands: tuple(_as(made, dtype) for made, dtype in zip(kernel(*operands), dtypes))
    dtype = dtypes[0]
    if not results[0].shape:
        return lambda operands: (_as(kernel(*operands), dtype),)

    def run(operands: Sequence[Any]) -> tuple[Array, ...]:
        made = kernel(*operands)
        return (made if made.dtype == dtype else made.astype(dtype),)

    return run


def _as(made: Any, dtype: Any) -> Array:
    """NumPy returns numbers where a result has no dims; here everything is an array."""
    array = np.asarray(made)
    return array if array.dtype == dtype else array.astype(dtype)


def evaluate(
    op: str, attrs: Mapping[str, Any], operands: Sequence[Any], results: Sequence[TensorType]
) -> tuple[Array, ...]:
    """Compute one op.

    >>> evaluate("reduce_max", {"axis": (0,), "keepdims": False}, [np.zeros((0, 2))], [TensorType((2,), "f64")])
    (array([-inf, -inf]),)
    """
    return prepare(op, attrs, results)(operands)


def run_graph(graph: Graph, inputs: Sequence[Any]) -> list[Array]:
    """Evaluate a graph on whole arrays; values are dropped after their last use."""
    return run_nodes(graph, list(map(np.asarray, inputs)), lambda array: tensor_type(array.shape, array.dtype), prepare)
