"""Reductions: a factor that is missing on the right, with the kind by which it is combined."""

from __future__ import annotations

from ..errors import RuleError
from ..spec.op_record import Call, RuleText
from ..spec.rule import factor_name
from .registry import rule

KINDS = {
    "reduce_sum": ("sum", ("P(sum)", "P(avg)")),
    "reduce_max": ("max", ("P(max)",)),
    "reduce_min": ("min", ("P(min)",)),
    "reduce_prod": ("prod", ("P(prod)",)),
    "reduce_any": ("max", ()),
    "reduce_all": ("min", ()),
}
"""Op -> how its factor is combined, and which pending reductions pass: those of the same kind commute with it."""


def reduced_dims(call: Call) -> tuple[int, ...]:
    """The dims of the first operand that are reduced: attribute ``axis``, all if it is None."""
    rank = len(call.operands[0])
    axis = call.attr("axis")
    axes = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    for a in axes:
        if not -rank <= a < rank:
            raise RuleError(f"axis {a} of a tensor with {rank} dims")
    return tuple(sorted({a % rank for a in axes})) if rank else ()


def reduction(call: Call, kind: str, passing: tuple[str, ...]) -> RuleText:
    """Operands beyond the first of the same shape are reduced along with it; scalars are initial values."""
    shape = call.operands[0]
    away = reduced_dims(call)
    names = [factor_name(d) for d in range(len(shape))]
    kept = ["1" if d in away else name for d, name in enumerate(names) if d not in away or call.attr("keepdims", False)]
    tensors = [" ".join(names) or "()" if operand == shape else "()" for operand in call.operands]
    results = [" ".join(kept) or "()"] * max(1, len(call.results))
    notes = [] if kind == "sum" else [f"{names[d]}: {kind}" for d in away]
    moves = [f"{state} -> {state}" for state in passing] if len(tensors) == len(results) == 1 else []
    return " ; ".join([f"{', '.join(tensors)} -> {', '.join(results)}", *notes, *moves])


def _register(op: str, kind: str, passing: tuple[str, ...]) -> None:
    rule(op, lambda call: reduction(call, kind, passing), cost="reduce", meaning=f"reduce {kind}")


for _op, (_kind, _passing) in KINDS.items():
    _register(_op, _kind, _passing)
