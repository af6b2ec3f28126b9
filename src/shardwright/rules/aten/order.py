"""Sorting, cumulative ops, triangles; values made from nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...spec.op_record import Call
from ...spec.rule import factor_name
from ..dims import write
from ..registry import rule
from .same import Attributes, dim, same

_BEYOND = "order, which a search keeps; extremes and products, where elements only move"
"""What the oracle finds beyond these rules."""


def _axis(attrs: Attributes, rank: int) -> Attributes:
    return {"axis": dim(attrs, rank) if rank else 0}


same("aten.cumsum", base="cumsum", to=_axis, beyond="what holds of zeros, as in a sample's gradient")
same("aten.cumprod", base="cumprod", to=_axis)


def _whole_dim(call: Call, rows: tuple[str, ...] = ()) -> str:
    """Results of the operand's dims, or shorter along the one that is whole."""
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    if not names:
        return write([[]], [[]] * len(call.results))
    at = dim({"dim": call.attr("dim", -1)}, rank)
    if all(result == call.operands[0] for result in call.results):
        return write([names] * len(call.operands), [names] * len(call.results), {names[at]: "whole"}, rows)
    short = [*names[:at], "top", *names[at + 1 :]]
    return write([names], [short] * len(call.results), {names[at]: "whole", "top": "new whole"}, rows)


for _name in ("sort", "sort.stable", "topk", "argsort", "argsort.stable", "cummax", "cummin", "logcumsumexp"):
    rule(f"aten.{_name}", _whole_dim, cost="sort", meaning="by rule", beyond=_BEYOND)
rule(
    "aten.msort",
    lambda call: _whole_dim(replace(call, attrs={"dim": 0})),
    cost="sort",
    meaning="by rule",
    beyond=_BEYOND,
)


@rule("aten.value_selecting_reduction_backward", cost="memory", meaning="by rule", beyond=_BEYOND)
def selected_backward(call: Call) -> str:
    """The gradient of a maximum along a dim, or of a sort: put back where the values came from."""
    grad, index = call.operands
    rank = len(call.results[0])
    names = [factor_name(d) for d in range(rank)]
    if not names:
        return write([[], []], [[]], {}, ["P(sum), R -> P(sum)"])
    at = dim(call.attrs, rank)
    place = "1" if call.attr("keepdim") and index[at] == 1 else "taken"
    given = [*names[:at], place, *names[at + 1 :]] if len(grad) == rank else [n for n in names if n != names[at]]
    notes = {names[at]: "new whole", **({"taken": "whole"} if "taken" in given else {})}
    return write([given, given], [names], notes, ["P(sum), R -> P(sum)"])


@rule("aten.searchsorted.Tensor", cost="gather", meaning="by rule", beyond=_BEYOND)
def searchsorted(call: Call) -> str:
    """Each sought value in its own row of the sorted ones, or in the only one."""
    rows, sought = call.operands[:2]
    names = [f"d{d}" for d in range(len(sought))]
    of_rows = [*names[:-1], "k"] if len(rows) == len(sought) and len(rows) > 1 else ["k"]
    return write([of_rows, names, *[of_rows] * (len(call.operands) - 2)], [names], {"k": "whole"})


rule("aten.bucketize.Tensor", lambda call: write(
    [[factor_name(d) for d in range(len(call.operands[0]))], ["edges"]],
    [[factor_name(d) for d in range(len(call.operands[0]))]], {"edges": "whole"},
), cost="gather", meaning="by rule", beyond=_BEYOND)  # fmt: skip


# -- triangles and created values -----------------------------------------------------------------------

for _name in ("tril", "triu"):
    same(f"aten.{_name}", base=_name, to=lambda attrs, rank: {"k": attrs.get("diagonal", 0)})


def _filled(attrs: Attributes, rank: int, said: str | int = 0) -> Attributes:
    """The number that every element is: as told, or one that an attribute tells."""
    return {"value": attrs[said] if isinstance(said, str) else said}


_FILLED: dict[str, str | int] = {"full": "fill_value", "zeros": 0, "ones": 1, "empty.memory_format": 0,
                                "scalar_tensor": "s", "empty_strided": 0}  # fmt: skip
for _name, _value in _FILLED.items():
    same(f"aten.{_name}", base="full", to=partial(_filled, said=_value))


def _like(call: Call) -> str:
    """Of the operand's shape, but not of its numbers; what it is made like need not be there."""
    names = [factor_name(d) for d in range(len(call.results[0]))]
    if call.operands[0] == call.results[0]:
        return write([names], [names], {}, ["P(any) -> R"])
    given = [f"x{d}" for d in range(len(call.operands[0]))]
    return write([given], [names], dict.fromkeys(given, "whole") | dict.fromkeys(names, "new"), ["P(any) -> R"])


for _name in ("fill.Scalar", "zero"):
    rule(f"aten.{_name}", _like, cost="pointwise", meaning="like", beyond=_BEYOND)
for _name in ("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_full", "new_empty",
              "new_empty_strided"):  # fmt: skip
    rule(f"aten.{_name}", _like, cost="pointwise", meaning="like", beyond=_BEYOND)


def _counted(attrs: Attributes, rank: int) -> Attributes:
    return {"start": attrs.get("start", 0), "step": attrs.get("step", 1)}


same("aten.arange", "aten.arange.start", "aten.arange.start_step", base="arange", to=_counted)


@rule("aten.linspace", cost="memory", meaning="by rule", beyond=_BEYOND)
def linspace(call: Call) -> str:
    return write([], [["n"]], {"n": "new whole"})


@rule("aten.eye", cost="memory", meaning="by rule", beyond=_BEYOND)
def eye(call: Call) -> str:
    return write([], [["n", "m"]], {"n": "new whole", "m": "new whole"})


rule("aten.eye.m", eye, cost="memory", meaning="by rule", beyond=_BEYOND)
rule("aten.one_hot", lambda call: write(
    [[factor_name(d) for d in range(len(call.operands[0]))]],
    [[*(factor_name(d) for d in range(len(call.operands[0]))), "classes"]], {"classes": "new whole"},
), cost="memory", meaning="by rule", beyond=_BEYOND)  # fmt: skip
