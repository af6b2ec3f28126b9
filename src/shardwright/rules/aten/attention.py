"""Scaled dot-product attention as one op, forward and backward.

Batch and heads pass; with grouped heads, groups pass.  Queries pass, too; where their place says which keys they see, a
shard must know where its queries begin: ``form(rows)``.  Keys are whole.
"""

from __future__ import annotations

from ...spec.band import Band
from ...spec.op_record import Call
from ..dims import write
from ..registry import rule

_BEYOND = (
    "a split or pending width of the values, which the backward op needs whole; a pending gradient, which cancels badly"
)
"""What the oracle finds beyond these rules."""


def _names(call: Call, query: int) -> tuple[list[list[str]], dict[str, str], dict[str, int]]:
    """Names of query, key, value; notes; sizes of the head factors.  ``query`` is the slot of the query."""
    shapes = [call.at(query + i) for i in range(3)]
    batch = [f"b{d}" for d in range(len(shapes[0]) - 3)]
    heads, served = shapes[0][-3] if len(shapes[0]) > 2 else 1, shapes[1][-3] if len(shapes[1]) > 2 else 1
    lead = len(shapes[0]) > 2
    of_query = [*batch, *(["(h g)" if heads != served else "h"] if lead else []), "s", "d"]
    of_key = [*batch, *(["h"] if lead else []), "t", "d"]
    of_value = [*batch, *(["h"] if lead else []), "t", "e"]
    notes = {"t": "whole", "d": "whole"}
    if not Band.of(call.attrs).sees_all:
        notes["s"] = "form(rows)"
    sizes = {"g": heads // max(served, 1)} if heads != served else {}
    return [of_query, of_key, of_value], notes, sizes


def _mask(call: Call, slot: int, of_query: list[str]) -> list[str]:
    """The mask is stretched to batch, heads, queries and keys."""
    shape = call.at(slot)
    names = [*of_query[:-1], "t"]
    spelled = names[len(names) - len(shape) :]
    return ["1" if size == 1 else name for name, size in zip(spelled, shape)]


def _forward(call: Call) -> tuple[str, dict[str, int]]:
    (of_query, of_key, of_value), notes, sizes = _names(call, 0)
    operands = [of_query, of_key, of_value, *([_mask(call, 3, of_query)] if call.has(3) else [])]
    out = [*of_query[:-1], "e"]
    results = [out, of_query[:-1]][: len(call.results)]
    if len(results) > 1:
        notes["e"] = "whole"  # the logarithm of the sums does not depend on values
    rows = [] if len(results) > 1 else [f"R, R, P(sum){', R' * (len(operands) - 3)} -> P(sum)"]
    return write(operands, results, notes, rows), sizes


for _name in ("aten.scaled_dot_product_attention", "shardwright.attention"):
    rule(_name, _forward, cost="attention", meaning="attention", beyond=_BEYOND)


@rule("shardwright.attention_backward", cost="attention", meaning="attention", beyond=_BEYOND)
def backward(call: Call) -> tuple[str, dict[str, int]]:
    """Gradient, query, key, value, mask, out, logsumexp; queries are summed in the gradients of keys and values."""
    (of_query, of_key, of_value), notes, sizes = _names(call, 1)
    out = [*of_query[:-1], "e"]
    mask = [_mask(call, 4, of_query)] if call.has(4) else []
    operands = [out, of_query, of_key, of_value, *mask, out, of_query[:-1]]
    results = [of_query, of_key, of_value, *(mask if call.attr("mask_grad") else [])]
    notes["e"] = "whole"
    if not Band.of(call.attrs).sees_all:
        notes["s"] = "sum form(rows)"
    elif call.attr("mask_grad"):
        notes |= {name: "whole" for name in of_query[:-1] if name not in mask[0] and " " not in name}
    return write(operands, results, notes), sizes
