"""Computing ops with PyTorch.

`prepare` looks at an op once and returns a function of its operands.  Sizes come from the result's type, never from
attributes: on a device the result is a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...ir.graph import Graph, TensorType
from ..base import run_nodes
from . import random as _random  # noqa: F401  registers kernels
from .dtypes import tensor_type, torch_dtype
from .kernels import KERNELS, ON_NOTHING, WITHOUT_INPUT, on_nothing
from .recording import attention as _attention  # noqa: F401  registers operators
from .recording.half_types import BESIDE_NUMBERS, HALF_NAMES, STATISTICS, half_norm, wide_beside_numbers
from .recording.sizes import local_sizes, operand_sizes
from .signatures import find_op, signature
from .steps import updates as _updates  # noqa: F401  registers operators

Prepared = Callable[[Sequence[Any]], tuple[Any, ...]]


def prepare(op: str, attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any = None) -> Prepared:
    """A function that computes an op: it takes the operands (None for absent ones, lists for list operands).

    ``device`` is where ops without operands put their result.

    >>> fold = prepare("aten.view", {"size": (2, 3)}, [TensorType((3, 1), "f32")])
    >>> fold([torch.zeros(3)])[0].shape
    torch.Size([3, 1])
    """
    if results and not any(result.elements for result in results):
        return lambda operands: on_nothing("zero", results, _device(operands, device))  # not every op takes such shards
    make = KERNELS.get(op)
    if make is not None:
        kernel = make(attrs, results, device)
        single = len(results) == 1
        return lambda operands: (kernel(*operands),) if single else tuple(kernel(*operands))
    attrs = dict(attrs)
    absent = attrs.pop("absent", ())
    form = signature(find_op(op))
    sizes = operand_sizes(op, attrs)
    call = form.join(local_sizes(op, attrs, results), device)
    if sizes is not None:

        def call(operands: Sequence[Any]) -> Any:
            whole = [
                operand if operand is None else operand.contiguous() for operand in operands
            ]  # a shard need not be
            return form.join(sizes(attrs, operands), device)(whole)

    neutral, without = ON_NOTHING.get(op), WITHOUT_INPUT.get(op)
    if op in STATISTICS:
        call = _with_statistics(op, call)
    if op in BESIDE_NUMBERS and results[0].dtype in HALF_NAMES:
        call = wide_beside_numbers(call, torch_dtype(results[0].dtype))

    def run(operands: Sequence[Any]) -> tuple[Any, ...]:
        if neutral is not None and any(isinstance(x, torch.Tensor) and not x.numel() for x in operands):
            return on_nothing(neutral, results, _device(operands, device))
        if without is not None and any(isinstance(x, torch.Tensor) and not x.numel() for x in operands):
            return without(results, operands, _device(operands, device))
        made = call(operands)
        if isinstance(made, torch.Tensor):
            return (made,)
        flat: list[Any] = []
        for item in made:
            flat.extend(item) if isinstance(item, list | tuple) else flat.append(item)
        return tuple(item for i, item in enumerate(flat) if i not in absent) if absent else tuple(flat)

    return run


def _with_statistics(op: str, call: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """The call, with statistics in the type that the device's kernel keeps them in."""

    def run(operands: Sequence[Any]) -> Any:
        types = [None if x is None else tensor_type(x) for x in operands]
        norm = half_norm(op, types, _device(operands, torch.device("cpu")).type)
        if norm is None:
            return call(operands)
        statistics, kind = norm[0], torch_dtype(norm[1])
        given = [x if x is None else x.contiguous() for x in operands]
        for i in statistics.operands:
            given[i] = operands[i].to(kind)
        made = call(given)
        return [None if x is None else x.float() if i in statistics.results else x for i, x in enumerate(made)]

    return run


def _device(operands: Sequence[Any], otherwise: Any) -> Any:
    for operand in operands:
        first = operand[0] if isinstance(operand, list | tuple) and operand else operand
        if isinstance(first, torch.Tensor):
            return first.device
    return otherwise


def evaluate(
    op: str, attrs: Mapping[str, Any], operands: Sequence[Any], results: Sequence[TensorType]
) -> tuple[Any, ...]:
    """Compute one op.

    >>> evaluate("aten.sum.dim_IntList", {"dim": (0,), "keepdim": False, "dtype": None},
    ...          [torch.ones(3, 2)], [TensorType((2,), "f32")])
    (tensor([3., 3.]),)
    """
    return prepare(op, attrs, results)(operands)


def run_graph(graph: Graph, inputs: Sequence[Any], device: Any = None) -> list[Any]:
    """Evaluate a graph on whole tensors; values are dropped after their last use."""
    with torch.no_grad():
        return run_nodes(graph, [given.detach() for given in inputs], tensor_type, partial(prepare, device=device))
