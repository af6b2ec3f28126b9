"""`TorchKernels`: PyTorch's ops on arrays, and what they are made of, for the proof of a foreign program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ....errors import ShardwrightError, TraceError
from ....ir.graph import Graph, TensorType
from ..compute import Prepared, prepare
from ..dtypes import torch_dtype
from ..parts import PARTS, parts_graph
from ..private import decompositions
from ..signatures import find_op, signature


class TorchKernels:
    def compute(
        self, op: str, attrs: Mapping[str, Any], operands: Sequence[Any], results: Sequence[TensorType]
    ) -> list[Any]:
        with torch.no_grad():
            made = _prepared(op, tuple(attrs.items()), tuple(results))([_tensors(x) for x in operands])
        return [x.resolve_conj().numpy(force=True) for x in made]

    def shapes(self, op: str, attrs: Mapping[str, Any], operands: Sequence[Any]) -> list[tuple[int, ...]]:
        return list(_shapes(op, tuple(sorted(attrs.items())), tuple(operands)))

    def pointwise(self, op: str) -> bool:
        return torch.Tag.pointwise in find_op(op).tags or op in _POINTWISE

    def parts(
        self, op: str, attrs: Mapping[str, Any], operands: Sequence[Any], results: Sequence[TensorType]
    ) -> Graph | None:
        return _parts(op, tuple(sorted(attrs.items())), tuple(operands), tuple(results))


_POINTWISE = ("aten.sin", "aten.cos", "aten.erf", "aten.tanh", "aten.gelu", "aten.bernoulli.p")


@lru_cache(maxsize=8192)
def _prepared(op: str, attrs: tuple[tuple[str, Any], ...], results: tuple[TensorType, ...]) -> Prepared:
    return prepare(op, dict(attrs), results)


@lru_cache(maxsize=8192)
def _shapes(op: str, attrs: tuple[Any, ...], operands: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    def empty(operand: Any) -> Any:
        if isinstance(operand, tuple):
            return [empty(x) for x in operand]
        if operand is None:
            return None
        return torch.empty(operand.shape, dtype=torch_dtype(operand.dtype), device="meta")

    absent = dict(attrs).get("absent", ())
    call = signature(find_op(op)).join({key: value for key, value in attrs if key != "absent"}, "meta")
    try:
        made = call([empty(x) for x in operands])
    except (RuntimeError, NotImplementedError, IndexError, ValueError) as error:
        raise TraceError(f"{op} cannot have other sizes: {error}") from error
    found = (
        [made]
        if isinstance(made, torch.Tensor)
        else [x for item in made for x in (item if isinstance(item, list | tuple) else [item])]
    )
    return tuple(tuple(x.shape) for i, x in enumerate(found) if i not in absent)


@lru_cache(maxsize=8192)
def _parts(op: str, attrs: tuple[Any, ...], operands: tuple[Any, ...], results: tuple[TensorType, ...]) -> Graph | None:
    if op in PARTS:
        return parts_graph(PARTS[op], op, dict(attrs), operands, results)
    function = decompositions().get(find_op(op))
    if function is None:
        return None
    try:
        graph = parts_graph(_joined(op, attrs, function), op, {}, operands, results)
    except (ShardwrightError, TraceError, RuntimeError, TypeError, NotImplementedError):
        return None
    # Some are written in a language of their own, and some call themselves.
    known = all(node.op.startswith("aten.") and node.op != op for node in graph.nodes)
    return graph if known else None


def _joined(op: str, attrs: tuple[Any, ...], function: Any) -> Any:
    """A function of the operands of an op, from one of all its parameters."""
    absent = dict(attrs).get("absent", ())
    call = replace(signature(find_op(op)), op=function).join({key: v for key, v in attrs if key != "absent"})

    def run(*operands: Any) -> Any:
        made = call(operands)
        if isinstance(made, torch.Tensor):
            return made
        return [x for i, x in enumerate(made) if i not in absent]

    return run


def _tensors(operand: Any) -> Any:
    if operand is None:
        return None
    if isinstance(operand, list):
        return [_tensors(x) for x in operand]
    if not np.ndim(operand):
        return torch.tensor(operand[()])
    array = np.ascontiguousarray(operand)
    return torch.from_numpy(array if array.flags.writeable else array.copy())  # PyTorch warns of what it could write to
