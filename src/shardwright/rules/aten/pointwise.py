"""Elementwise ops, made from tags and schemas.

The tag says that an op is elementwise, the schema which parameters are tensors; what differs is which pending
reductions pass.  That is known of few functions, by name; of gradients it follows from the schema: they are linear in
the gradient that they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...spec.op_record import Call, Flow, OpFacts, OpRecord
from ...spec.rule import factor_name
from ..dims import broadcast, write
from ..pointwise import BINARY, UNARY
from ..registry import maker, rule
from .same import same

_UNARY = {"round": "rint", "acosh": "arccosh", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
          "asinh": "arcsinh", "atanh": "arctanh", "conj_physical": "conj", "_conj": "conj"}  # fmt: skip
_BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "true_divide": "divide",
           "maximum": "maximum", "minimum": "minimum"}  # fmt: skip
_RISING = ("P(max) -> P(max)", "P(min) -> P(min)")
_NOT_HERE = {"sgn", "relu6", "round.decimals"}

TERNARY: Mapping[str, tuple[str, ...]] = {
    "addcmul": ("P(sum), P(sum), R -> P(sum)", "P(sum), R, P(sum) -> P(sum)"),
    "addcdiv": ("P(sum), P(sum), R -> P(sum)",),
    "lerp": ("P(sum), P(sum), R -> P(sum)",),
}


@maker
def elementwise(facts: OpFacts) -> OpRecord | None:
    """The record of an op that PyTorch tags as pointwise."""
    if "pointwise" not in facts.tags or "inplace_view" in facts.tags or set(facts.results) != {"tensor"}:
        return None
    if "nondeterministic_seeded" in facts.tags or any(name == "generator" for name, _ in facts.parameters):
        return None  # a part would draw the numbers of another
    return OpRecord(
        facts.name,
        lambda call: _rule(facts, call),
        flow=Flow.POINTWISE,
        cost="pointwise",
        meaning="by rule",
        beyond=_BEYOND,
    )


_BEYOND = (
    "what passes a pending reduction is said of functions for which the book knows why; others hold on the samples "
    "only (numbers of one sign, small whole numbers, no NaN) or are not worth a word"
)


_UNREAD = "what is written over may lie anyhow; what is written may be pending, if it is not cast"


def _rule(facts: OpFacts, call: Call) -> str:
    count = len(call.operands)
    # A result of another shape than the operands give is a dim that only some results have, such as complex parts.
    text = f"{', '.join(['...'] * count)} -> {', '.join(['...'] * len(call.results))}"
    return " ; ".join([text, *_transfers(facts, call)])


def _transfers(facts: OpFacts, call: Call) -> list[str]:
    present = [i for i in range(len(facts.tensors)) if call.has(i)]
    single = len(call.results) == 1
    if not single:
        return []
    if facts.short.endswith("_backward"):
        return _linear_in_first(facts, present)
    rows = _known(facts, call)
    return [row for row in (_without(row, present, len(facts.tensors)) for row in rows) if row and _proven(row)]


def _proven(row: str) -> bool:
    """Of several operands the exact proof keeps sums, of one also order; products it does not."""
    kinds = ("sum", "avg", "any") if ", " in row.split(" -> ")[0] else ("sum", "avg", "any", "max", "min")
    return all(state == "R" or state[2:-1] in kinds for state in row.replace(" -> ", ", ").split(", "))


def _linear_in_first(facts: OpFacts, present: list[int]) -> list[str]:
    first = facts.tensors[0][0]
    if "grad" not in first:
        return []
    rest = ", R" * (len(present) - 1)
    return [f"P({kind}){rest} -> P({kind})" for kind in ("sum", "avg")]


def _without(row: str, present: list[int], count: int) -> str:
    """A row of the table without the operands that are numbers; "" if one of them would have to be pending."""
    states, result = row.split(" -> ")
    given = states.split(", ")
    if len(given) != count:
        return row if len(given) == len(present) else ""
    if any(given[i] != "R" for i in range(count) if i not in present):
        return ""
    return f"{', '.join(given[i] for i in present)} -> {result}"


def _known(facts: OpFacts, call: Call) -> tuple[str, ...]:
    short, attrs = facts.short, call.attrs
    overload = facts.name.split(".", 1)[1]
    if overload in _NOT_HERE:
        return ()
    if short in ("masked_fill",):
        return _filled(attrs, len(facts.tensors))
    if short in TERNARY:
        return _padded(TERNARY[short], len(facts.tensors))
    if attrs.get("rounding_mode"):
        return ()
    if short in _BINARY:
        return _binary(short, attrs, len(facts.tensors))
    if short in ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh"):
        return tuple(f"P({k}){', R' * (len(facts.tensors) - 1)} -> P({k})" for k in ("max", "min"))
    return UNARY.get(_UNARY.get(short, short), ()) if len(facts.tensors) == 1 else ()


def _binary(short: str, attrs: Mapping[str, Any], count: int) -> tuple[str, ...]:
    rows = BINARY[_BINARY[short]]
    if attrs.get("alpha", 1) != 1:  # order may turn with its sign, averages of both do not
        rows = ("P(sum), P(sum) -> P(sum)",)
    if count == 2:
        return rows
    # The second one is a number: what passes beside something replicated.
    kept = [row for row in rows if row.split(" -> ")[0].split(", ")[1] == "R"]
    return tuple(f"{row.split(', ')[0]} -> {row.split(' -> ')[1]}" for row in kept)


def _padded(rows: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Rows for the forms of an op whose last operand is a number."""
    short = []
    for row in rows:
        states, result = row.split(" -> ")
        given = states.split(", ")
        if all(state == "R" for state in given[count:]):
            short.append(f"{', '.join(given[:count])} -> {result}")
    return tuple(short)


def _filled(attrs: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Every device fills in the same number; what combines those must give the number back."""
    if count == 3:
        return ("P(sum), R, P(sum) -> P(sum)",)
    kinds = ("sum", "avg") if attrs.get("value") == 0 else ()
    return tuple(f"P({kind}), R -> P({kind})" for kind in kinds)


for _name in (
    "alias",
    "alias_copy",
    "detach",
    "lift_fresh",
    "lift_fresh_copy",
    "contiguous",
    "positive",
    "clone",
    "lift",
):
    same(f"aten.{_name}", base="copy")
for _name, _base in {
    "neg": "negative",
    "maximum": "maximum",
    "minimum": "minimum",
    "max.other": "maximum",
    "min.other": "minimum",
    "deg2rad": "deg2rad",
    "rad2deg": "rad2deg",
}.items():
    same(f"aten.{_name}", base=_base)
same("aten.where.self", base="where", beyond=_BEYOND)


@rule("aten._to_copy", flow=Flow.POINTWISE, cost="pointwise", meaning="cast", beyond=(
    "depends on both types: a cast to float32 or float64 is linear, others round every part of a sum"
))  # fmt: skip
def to_copy(call: Call) -> str:
    """Attribute ``dtype``.  A wide target keeps sums; into a narrow one each part would be rounded."""
    wide = call.attr("dtype") in (None, "f32", "f64")
    return "... -> ... ; P(sum) -> P(sum) ; P(avg) -> P(avg)" if wide else "... -> ..."


@rule("aten.copy", flow=Flow.POINTWISE, cost="pointwise", meaning="by rule", beyond=_UNREAD)
def copy(call: Call) -> str:
    """The second operand, stretched to the first, whose numbers are not read."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    return write([names, broadcast(names, call.operands[0], call.operands[1])], [names])


@rule(
    "aten.view.dtype", flow=Flow.POINTWISE, cost="view", meaning="by rule", beyond="what holds where both types are one"
)
def view_dtype(call: Call) -> str:
    """The same bits as another type: elementwise, but for the last dim if the types differ in size."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    if call.operands[0] == call.results[0]:
        return write([names], [names])
    return write([names], [[*names[:-1], "r"]], {names[-1]: "whole", "r": "new whole"})


rule("aten.complex", "..., ... -> ... ; P(sum), P(sum) -> P(sum)", flow=Flow.POINTWISE, cost="pointwise",
     meaning="by rule", beyond=_BEYOND)  # fmt: skip
