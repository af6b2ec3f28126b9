"""What a graph of elementwise ops computes, on single numbers modulo a prime: so formulas are compared, not texts.

Sums, products and quotients are exact; a root is some function that takes products to products; powers and maxima are
hashes of their operands, so nothing is known of them but that equal operands give equal results.  Two formulas that
agree on random numbers are the same formula, but for a chance of one in 10^18; where they round, and to which type, is
not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from ....ir.graph import Graph, Node

P = 2**61 - 1
ROOT = 1_234_567_890_123_456_793
"""A power that every number has once: no divisor of P - 1."""
SHORT = 10**6
"""A number in a program stands for the fraction with a denominator up to this that rounds to it, if there is one."""


def hashed(*what: Any) -> int:
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=16).digest(), "big") % P


def residue(number: float) -> int:
    """
    >>> residue(0.1) * 10 % P
    1
    """
    exact = Fraction(number)
    short = exact.limit_denominator(SHORT)
    exact = short if float(short) == number else exact
    return exact.numerator * pow(exact.denominator, -1, P) % P


def over(x: int, y: int) -> int:
    return x * pow(y, -1, P) % P if y else hashed("over nothing", x)


def root(x: int) -> int:
    """Some function that takes products to products, which is all that is known of a root."""
    return pow(x, ROOT, P)


def power(x: int, y: int) -> int:
    return hashed("power", x, y)


class _Call:
    """One op: operands by place, numbers that stand for tensors, and other attributes."""

    def __init__(self, node: Node, operands: Sequence[int | None]) -> None:
        self.node, self.operands = node, operands

    def __getitem__(self, place: int) -> int:
        given = self.operands[place] if place < len(self.operands) else None
        return self.attr(("self", "other", "weight")[place]) if given is None else given

    def attr(self, name: str, default: float = 1) -> int:
        said = self.node.attr(name, default)
        return residue(default if said is None else said)


def _power(call: _Call) -> int:
    exponent = call.node.attr("exponent")
    if isinstance(exponent, int | float):
        half = exponent * 2
        if half == int(half) and 0 < half <= 8:
            base = root(call[0]) if half % 2 else call[0]
            return pow(base, int(half if half % 2 else half // 2), P)
        return power(call[0], residue(exponent))
    return power(call[0], call[1])


_OPS: dict[str, Callable[[_Call], int]] = {
    "add": lambda c: c[0] + c.attr("alpha") * c[1],
    "sub": lambda c: c[0] - c.attr("alpha") * c[1],
    "rsub": lambda c: c[1] - c.attr("alpha") * c[0],
    "mul": lambda c: c[0] * c[1],
    "div": lambda c: over(c[0], c[1]),
    "neg": lambda c: -c[0],
    "reciprocal": lambda c: over(1, c[0]),
    "square": lambda c: c[0] * c[0],
    "sqrt": lambda c: root(c[0]),
    "rsqrt": lambda c: over(1, root(c[0])),
    "pow": _power,
    "maximum": lambda c: hashed("maximum", *sorted((c[0], c[1]))),
    "lerp": lambda c: c[0] + c[2] * (c[1] - c[0]),
    "addcmul": lambda c: c[0] + c.attr("value") * c[1] * c[2],
    "addcdiv": lambda c: c[0] + c.attr("value") * over(c[1], c[2]),
    **dict.fromkeys(("_to_copy", "clone", "alias", "detach", "positive"), lambda c: c[0]),
    "copy": lambda c: c[1],
}


def computes(node: Node) -> bool:
    """Whether it is known what an op computes."""
    space, _, name = node.op.partition(".")
    plain = len(node.results) == 1 and all(not isinstance(operand, tuple) for operand in node.operands)
    return space == "aten" and name.partition(".")[0] in _OPS and plain and node.attr("rounding_mode") is None


def evaluated(graph: Graph, roots: Sequence[int], given: Mapping[int, int]) -> list[int]:
    """What some values are, where those ``given`` are these numbers; every other leaf is one of its own."""
    known = dict(given)
    waiting = list(roots)
    while waiting:
        value = waiting[-1]
        n = graph.node_of(value)
        if value in known:
            waiting.pop()
        elif n is None or not computes(graph.nodes[n]):
            known[value] = hashed("leaf", value)
        else:
            node = graph.nodes[n]
            missing = [v for v in node.inputs if v not in known]
            if missing:
                waiting += missing
                continue
            operands = [known[operand] if isinstance(operand, int) else None for operand in node.operands]
            name = node.op.split(".")[1]
            known[value] = _OPS[name](_Call(node, operands)) % P
    return [known[value] for value in roots]
