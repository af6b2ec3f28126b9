"""What PyTorch says of its operators, as plain data for the rule book: tags, parameters, what they are made of.

The rule book does not know PyTorch; it finds this module by the entry point ``shardwright.operators``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ...errors import UnknownOpError
from ...ir.graph import Attrs, Graph, TensorType
from ...spec.op_record import OpFacts
from .parts import PARTS, parts_graph
from .recording import attention as _attention  # noqa: F401  registers operators
from .signatures import OPTIONAL_TENSORS, TENSOR, TENSORS, find_op, op_name, signature
from .steps.recognising import fuse_updates as fuse_updates  # asked for by name
from .steps.updates import FORMULAS

_UNTAGGED = frozenset(
    [
        "hardswish",
        "fill",
        "masked_fill",
        "log_sigmoid_forward",
        "log_sigmoid",
        "prelu",
        "_prelu_kernel",
        "_prelu_kernel_backward",
        "rrelu_with_noise_backward",
        "special_ndtr",
        "special_expit",
        "special_psi",
        "absolute",
        "fix",
        "negative",
        "arccos",
        "arccosh",
        "arcsin",
        "arcsinh",
        "arctan",
        "arctanh",
        "subtract",
        "multiply",
        "divide",
        "float_power",
        "floor_divide",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
        "isreal",
        "nan_to_num",
        "clamp_min",
        "clamp_max",
        "native_dropout_backward",
        "real",
        "imag",
        "_conj",
        "conj",
        "rsub",
        "special_xlogy",
        "hardsigmoid",
    ]
)
"""Elementwise, though they have no tag that says so."""
_OWN = ("aten", "prims", "shardwright")
"""Namespaces of PyTorch and of this project; an operator of any other may say of itself what is not so."""


@lru_cache(maxsize=4096)
def describe(name: str) -> OpFacts | None:
    """None for what is no operator of PyTorch.

    >>> describe("aten.softplus_backward").tags & {"pointwise"}
    frozenset({'pointwise'})
    """
    try:
        op = find_op(name)
    except UnknownOpError:
        return None
    namespace, short = op._schema.name.split("::")
    tags = {tag.name for tag in op.tags}
    if namespace == "aten" and (short in _UNTAGGED or _gradient_of_pointwise(op, short)):
        tags.add("pointwise")
    kinds = {TENSOR: "tensor", TENSORS: "tensors", OPTIONAL_TENSORS: "tensors"}
    parameters = tuple((p.name, kinds.get(p.kind, "other")) for p in signature(op).parameters)
    results = tuple(_result_kind(str(r.real_type)) for r in op._schema.returns)
    origin = "" if namespace in _OWN else f"made from the tags and the schema of {op._schema.name}"
    return OpFacts(op_name(op), short, frozenset(tags), parameters, results, origin)


def _result_kind(text: str) -> str:
    return "tensors" if text == "List[Tensor]" else "tensor" if "Tensor" in text else "other"


def _gradient_of_pointwise(op: Any, short: str) -> bool:
    """The gradient of an elementwise function is elementwise, if it gives one tensor."""
    if not short.endswith("_backward") or len(op._schema.returns) != 1:
        return False
    forward = getattr(torch.ops.aten, short.removesuffix("_backward"), None)
    overloads = [] if forward is None else [getattr(forward, overload) for overload in forward.overloads()]
    return short.removesuffix("_backward") in _UNTAGGED or any(torch.Tag.pointwise in o.tags for o in overloads)


@lru_cache(maxsize=4096)
def parts(
    name: str,
    attrs: Attrs,
    operands: tuple[TensorType | tuple[TensorType, ...] | None, ...],
    results: tuple[TensorType, ...] | None = None,
) -> Graph | None:
    """An op as a graph of simpler ones, for operands of these types; None if it is not known what it is made of."""
    made_of = PARTS.get(name) or FORMULAS.get(name)
    return None if made_of is None else parts_graph(made_of, name, dict(attrs), operands, results)
