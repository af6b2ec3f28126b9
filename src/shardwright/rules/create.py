"""Values made from nothing but attributes, and triangles, which depend on where an element stands."""

from __future__ import annotations

from ..ir.core import CONSTANT
from ..spec.op_record import Call
from ..spec.rule import factor_name
from .dims import ANY, write
from .registry import rule


def _made(call: Call, words: str) -> str:
    names = [factor_name(d) for d in range(len(call.results[0]))]
    return write([], [names], dict.fromkeys(names, words))


# The same number everywhere: a part is made like the whole.
rule("full", lambda call: _made(call, "new"), meaning="full")
# A part is counted from where it begins.
rule("arange", lambda call: _made(call, "new form(arange)"), meaning="arange")
# Its data is at hand in full on every device; who wants a part cuts it there.
rule(CONSTANT, lambda call: _made(call, "new whole"))

# The diagonal of a part lies where global indices say.
for _op, _form in (("tril", "lower_triangle"), ("triu", "upper_triangle")):
    _text = f"... r c -> ... r c ; r: form({_form}) ; c: form({_form})"
    rule(_op, f"{_text} ; {ANY}", meaning="triangle")
