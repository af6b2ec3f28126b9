"""Contractions: products summed over shared factors.  All are bilinear, so a pending sum on one side passes."""

from __future__ import annotations

from ..errors import RuleError
from ..spec.op_record import Call
from .registry import rule

BILINEAR = " ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum)"


@rule("matmul", cost="matmul", meaning="contract")
def matmul(call: Call) -> str:
    """NumPy's matmul: vectors lose their dim, the rest is batch."""
    left, right = (len(shape) for shape in call.operands)
    if left == 1 and right == 1:
        return "k, k -> ()" + BILINEAR
    if left == 1:
        return "k, ... k n -> ... n" + BILINEAR
    if right == 1:
        return "... m k, k -> ... m" + BILINEAR
    return "... m k, ... k n -> ... m n" + BILINEAR


@rule("dot", cost="matmul", meaning="contract")
def dot(call: Call) -> str:
    """The last dim of the left with the one before the last of the right; no batch."""
    left, right = (len(shape) for shape in call.operands)
    if left == 0 or right == 0:
        return "..., ... -> ..." + BILINEAR
    a = [f"a{i}" for i in range(left - 1)]
    b = [f"b{i}" for i in range(right - 1)]
    right_dims = ["k"] if right == 1 else [*b[:-1], "k", b[-1]]
    return f"{_tensor([*a, 'k'])}, {_tensor(right_dims)} -> {_tensor([*a, *b])}" + BILINEAR


rule("outer", "m, n -> m n" + BILINEAR + " ; P(prod), P(prod) -> P(prod)", cost="matmul", meaning="contract")
rule("vdot", "k, k -> ()" + BILINEAR, cost="matmul", meaning="contract")


@rule("dot_general", cost="matmul", meaning="contract")
def dot_general(call: Call) -> str:
    """Any batch and contracting dims: result is batch, then the rest of the left, then of the right."""
    left, right = call.operands
    pairs = [
        (tuple(call.attr("lhs_batch", ())), tuple(call.attr("rhs_batch", ())), "b"),
        (tuple(call.attr("lhs_contracting", ())), tuple(call.attr("rhs_contracting", ())), "k"),
    ]
    names_left: dict[int, str] = {}
    names_right: dict[int, str] = {}
    for dims_left, dims_right, letter in pairs:
        if len(dims_left) != len(dims_right):
            raise RuleError("as many batch or contracting dims are needed on the left as on the right")
        for i, (a, b) in enumerate(zip(dims_left, dims_right)):
            names_left[a] = names_right[b] = f"{letter}{i}"
    rest_left = [d for d in range(len(left)) if d not in names_left]
    rest_right = [d for d in range(len(right)) if d not in names_right]
    names_left.update({d: f"m{i}" for i, d in enumerate(rest_left)})
    names_right.update({d: f"n{i}" for i, d in enumerate(rest_right)})
    batch = [f"b{i}" for i in range(len(pairs[0][0]))]
    result = batch + [names_left[d] for d in rest_left] + [names_right[d] for d in rest_right]
    sides = [_tensor([names[d] for d in range(len(names))]) for names in (names_left, names_right)]
    return f"{', '.join(sides)} -> {_tensor(result)}" + BILINEAR


@rule("tensordot", cost="matmul", meaning="contract")
def tensordot(call: Call) -> str:
    """NumPy's tensordot with its axes spelled out as two lists."""
    lhs, rhs = call.attr("axes")
    attrs = {"lhs_contracting": lhs, "rhs_contracting": rhs}
    return dot_general(Call(call.operands, call.results, attrs))


@rule("einsum", cost="matmul", meaning="contract")
def einsum(call: Call) -> str:
    """An equation is a rule already; letters become factors.  Those of a diagonal (``ii``) are whole."""
    equation = call.attr("equation").replace(" ", "")
    inputs, _, output = equation.partition("->")
    if "->" not in equation:
        # NumPy's implicit output: letters that stand once, in order.
        letters = inputs.replace(",", "").replace(".", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        output = ("..." if "..." in inputs else "") + "".join(once)
    terms = [_letters(term) for term in inputs.split(",")]
    diagonal: dict[str, None] = {}
    for term in terms:
        for at, name in enumerate(term):
            if name in term[:at]:
                term[at] = f"{name}{at}"
                diagonal |= dict.fromkeys((name, term[at]))
    text = f"{', '.join(map(_tensor, terms))} -> {_tensor(_letters(output))}"
    text = " ; ".join([text, *(f"{name}: whole" for name in diagonal)])
    count = len(terms)
    linear = [", ".join("P(sum)" if i == j else "R" for j in range(count)) + " -> P(sum)" for i in range(count)]
    return " ; ".join([text, *linear])


def _letters(term: str) -> list[str]:
    found: list[str] = []
    while term:
        if term.startswith("..."):
            found.append("...")
            term = term[3:]
        else:
            found.append(term[0] if term[0].islower() else term[0].lower() + "_")
            term = term[1:]
    return found


def _tensor(dims: list[str]) -> str:
    return " ".join(dims) or "()"
