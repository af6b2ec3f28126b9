"""Random numbers by key, step and place: a part is drawn like the whole, from where it begins."""

from __future__ import annotations

from ..spec.op_record import Call, Flow
from ..spec.rule import factor_name
from .dims import write
from .registry import rule


def _drawn(call: Call) -> str:
    """The operand holds key and step."""
    names = [factor_name(d) for d in range(len(call.results[0]))]
    return write([["state"]], [names], {"state": "whole", **dict.fromkeys(names, "new form(random)")})


for _name in ("random.uniform", "random.normal"):
    rule(_name, _drawn, cost="pointwise", meaning="random", random=True)
rule("random.advance", "i -> i ; i: whole", flow=Flow.POINTWISE, cost="pointwise", meaning="pointwise")
