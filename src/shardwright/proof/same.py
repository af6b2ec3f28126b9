"""Whether two graphs are the same program, but for nodes that hand their operand on: constraints, barriers, copies; and
but for how attention is spelled.

Passes before planning move such nodes about, and write attention in other words.  Both graphs are numbered from their
inputs on: equal ops with equal attributes of equal operands are one number, and what hands on has its operand's.  A
call of attention is numbered by what is read of it (`rules.reading`): which keys a query sees, and which heads are
shared, whether a mask says the one and copies make the other, or attributes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import VerifyError
from ..ir.graph import Graph
from ..rules.reading import Attention, Positions, attention_of
from ..rules.reading.repeats import summed_to
from .pointwise import IDENTITY


def check_same(captured: Graph, planned: Graph) -> None:
    """Refuse a planned graph that computes something else than the captured one."""
    if captured is planned or captured == planned:
        return
    numbers: dict[Any, int] = {}
    ours, theirs = (_numbered(graph, numbers) for graph in (captured, planned))
    if ours != theirs:
        wrong = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), len(ours) - 1)
        raise VerifyError(
            f"the planned graph computes another output {wrong} than the program as captured",
            rows=[
                ("passes", "before planning only constraints, barriers, copies and the words of attention may change")
            ],
        )
    if sorted(captured.updates) != sorted(planned.updates):
        raise VerifyError("the planned graph updates other inputs than the program as captured")


def _numbered(graph: Graph, numbers: dict[Any, int]) -> list[int]:
    """The numbers of the outputs."""

    def number(what: Any) -> int:
        return numbers.setdefault(what, len(numbers))

    found: dict[int, int] = {}
    sums: dict[int, int] = {}  # gradients of repeated heads, summed
    positions = Positions(graph)
    for i, value in enumerate(graph.inputs):
        found[value] = number(("input", i, graph.type(value)))
    for node in graph.nodes:
        if node.op in IDENTITY and len(node.inputs) == len(node.results) == 1:
            found[node.results[0]] = found[node.inputs[0]]
            continue
        call = attention_of(graph, node, positions)
        if call is not None:
            named = _attention(call, found)
        else:
            operands = tuple(
                tuple(found[v] for v in o) if isinstance(o, tuple) else None if o is None else found[o]
                for o in node.operands
            )
            named = (node.op, operands, repr(node.attrs))
        for r, value in enumerate(node.results):
            found[value] = sums[value] if value in sums else number((named, r, graph.type(value)))
            if call is not None and call.is_backward and call.groups > 1 and not call.is_grouped and r in (1, 2):
                summed = summed_to(graph, value, call.groups)
                if summed is not None:
                    sums[summed[0]] = number((named, r, graph.type(summed[0])))
    return [found[value] for value in graph.outputs]


def _attention(call: Attention, found: Mapping[int, int]) -> tuple[Any, ...]:
    """All that a call of attention computes depends on."""
    tensors = tuple(found[v] for v in (*call.around, call.query, call.key, call.value))
    mask = None if call.mask is None else found[call.mask]
    return "attention", call.is_backward, tensors, mask, str(call.band), call.groups, repr(call.options)
