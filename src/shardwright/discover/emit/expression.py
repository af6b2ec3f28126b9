"""Work out the small Python expressions that rules are written in, without `eval`.

Only what those expressions use is understood: arithmetic, comparisons, `and`/`or`/`not`, a conditional, subscripts and
slices, a generator over a tuple, and calls of ``max``, ``min``, ``sum``, ``len``, ``all``, ``any``, ``float``, ``str``,
``tuple`` and ``.index``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ...errors import DiscoverError

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, among: item in among,
    ast.NotIn: lambda item, among: item not in among,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "len": len,
    "all": all,
    "any": any,
    "float": float,
    "str": str,
    "tuple": tuple,
}


@cache
def _parsed(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


def value_of(code: str, names: Mapping[str, Any]) -> Any:
    """What an expression is worth.

    >>> value_of("-1 if d in dim else d - sum(gone < d for gone in dim)", {"d": 2, "dim": (0,)})
    1
    >>> value_of("__import__('os')", {})
    Traceback (most recent call last):
    ...
    shardwright.errors.DiscoverError: a rule's expression may not call '__import__'
        __import__('os')
    """
    try:
        return _value(_parsed(code), names)
    except DiscoverError as error:
        raise DiscoverError(error.fact, text=code) from None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in names:
                raise DiscoverError(f"a rule's expression reads {node.id!r}, which is not known here")
            return names[node.id]
        case ast.BinOp() if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](_value(node.left, names), _value(node.right, names))
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return _UNARY[type(node.op)](_value(node.operand, names))
        case ast.BoolOp():
            parts = (_value(part, names) for part in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        case ast.Compare():
            return _compared(node, names)
        case ast.IfExp():
            return _value(node.body if _value(node.test, names) else node.orelse, names)
        case ast.Subscript():
            return _value(node.value, names)[_value(node.slice, names)]
        case ast.Slice(lower=None, upper=ast.expr() as upper, step=None):
            return slice(_value(upper, names))
        case ast.Tuple() | ast.List():
            return tuple(_value(item, names) for item in node.elts)
        case ast.GeneratorExp(generators=[ast.comprehension(target=ast.Name(id=name), iter=source, ifs=[])]):
            return [_value(node.elt, {**names, name: item}) for item in _value(source, names)]
        case ast.Call(keywords=[]):
            return _called(node, names)
    raise DiscoverError(f"a rule's expression may not contain {ast.unparse(node)!r}")


def _compared(node: ast.Compare, names: Mapping[str, Any]) -> bool:
    left = _value(node.left, names)
    for op, right_node in zip(node.ops, node.comparators):
        right = _value(right_node, names)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True


def _called(node: ast.Call, names: Mapping[str, Any]) -> Any:
    arguments = [_value(argument, names) for argument in node.args]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "index":
        return tuple(_value(node.func.value, names)).index(*arguments)
    if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*arguments)
    raise DiscoverError(f"a rule's expression may not call {ast.unparse(node.func)!r}")
