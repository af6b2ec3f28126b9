"""Products of matrices.  All are bilinear, so a pending sum on one side passes.

Where something is added to a product (a bias), a split of the contracted dim leaves a pending sum in which the bias
must count once: ``form(once)``.
"""

from __future__ import annotations

from ...spec.op_record import Call
from ..contract import BILINEAR
from ..dims import broadcast, write
from ..registry import rule

_BEYOND = (
    "a pending bias beside a split sum, where the book lets the bias count once; and order, which adding "
    "something fixed keeps"
)
"""What the oracle finds beyond these rules."""

for _name, _text in {
    "mm": "m k, k n -> m n",
    "bmm": "b m k, b k n -> b m n",
    "mv": "m k, k -> m",
    "dot": "k, k -> ()",
    "vdot": "k, k -> ()",
    "outer": "m, n -> m n",
    "ger": "m, n -> m n",
}.items():
    rule(f"aten.{_name}", _text + BILINEAR, cost="matmul", meaning="by rule", beyond=_BEYOND)


@rule("aten.linear", cost="matmul", meaning="by rule", beyond=_BEYOND)
def linear(call: Call) -> str:
    """Input, weight (out by in), perhaps a bias."""
    lead = [f"b{d}" for d in range(len(call.operands[0]) - 1)]
    if len(call.operands) == 2:
        return write([[*lead, "k"], ["n", "k"]], [[*lead, "n"]], {}, BILINEAR.strip(" ;").split(" ; "))
    rows = ["P(sum), R, P(sum) -> P(sum)", "R, P(sum), P(sum) -> P(sum)"]
    return write([[*lead, "k"], ["n", "k"], ["n"]], [[*lead, "n"]], {"k": "sum form(once)"}, rows)


def _added(name: str, left: str, right: str, result: str, *summed: str) -> None:
    """``beta * bias + alpha * left @ right``; the bias is stretched to the result."""

    @rule(name, cost="matmul", meaning="by rule", beyond=_BEYOND)
    def added(call: Call) -> str:
        target = result.split()
        bias = broadcast(target, call.results[0], call.operands[0])
        notes = dict.fromkeys(("k", *summed), "sum form(once)")
        rows = ["P(sum), P(sum), R -> P(sum)", "P(sum), R, P(sum) -> P(sum)"]
        return write([bias, left.split(), right.split()], [target], notes, rows)


_added("aten.addmm", "m k", "k n", "m n")
_added("aten.baddbmm", "b m k", "b k n", "b m n")
_added("aten.addbmm", "b m k", "b k n", "m n", "b")
_added("aten.addmv", "m k", "k", "m")


@rule("aten.addr", cost="matmul", meaning="by rule", beyond=_BEYOND)
def addr(call: Call) -> str:
    bias = broadcast(["m", "n"], call.results[0], call.operands[0])
    rows = ["P(sum), P(sum), R -> P(sum)", "P(sum), R, P(sum) -> P(sum)"]
    return write([bias, ["m"], ["n"]], [["m", "n"]], {}, rows)


@rule("aten.einsum", cost="matmul", meaning="by rule", beyond=_BEYOND)
def einsum(call: Call) -> str:
    from ..contract import einsum as written

    return written(call)


@rule("aten._grouped_mm", cost="matmul", meaning="by rule", beyond=_BEYOND)
def grouped_mm(call: Call) -> str:
    """Rows in groups, a matrix for each; the last operand says where groups end, which is a matter of all rows."""
    left, right, *ends = call.operands
    notes: dict[str, str] = {}
    if len(left) == 2 and len(right) == 3:
        terms, result, notes = [["m", "k"], ["g", "k", "n"]], ["m", "n"], {"m": "whole", "g": "whole"}
    elif len(left) == 2:
        terms, result, notes = [["m", "k"], ["k", "n"]], ["g", "m", "n"], {"k": "whole", "g": "new whole"}
    elif len(right) == 2:
        terms, result, notes = [["g", "m", "k"], ["k", "n"]], ["m", "n"], {"n": "whole", "g": "whole"}
    else:
        terms, result = [["g", "m", "k"], ["g", "k", "n"]], ["g", "m", "n"]
    if ends:
        terms.append(["e"] if len(left) == len(right) else ["g"])
        notes |= {"e": "whole"} if len(left) == len(right) else {}
    rest = ", R" * len(ends)
    return write(terms, [result], notes, [f"P(sum), R{rest} -> P(sum)", f"R, P(sum){rest} -> P(sum)"])
