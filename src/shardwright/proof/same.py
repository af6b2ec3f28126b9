"""Whether two graphs are the same program, but for nodes that hand their operand on: constraints, barriers, copies.

Passes before planning move such nodes about.  Both graphs are numbered from their inputs on: equal ops with equal
attributes of equal operands are one number, and what hands on has its operand's.
"""

from __future__ import annotations

from typing import Any

from ..errors import VerifyError
from ..ir.graph import Graph
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
            rows=[("passes", "before planning only constraints, barriers and copies may change")],
        )
    if sorted(captured.updates) != sorted(planned.updates):
        raise VerifyError("the planned graph updates other inputs than the program as captured")


def _numbered(graph: Graph, numbers: dict[Any, int]) -> list[int]:
    """The numbers of the outputs."""

    def number(what: Any) -> int:
        return numbers.setdefault(what, len(numbers))

    found: dict[int, int] = {}
    for i, value in enumerate(graph.inputs):
        found[value] = number(("input", i, graph.type(value)))
    for node in graph.nodes:
        if node.op in IDENTITY and len(node.inputs) == len(node.results) == 1:
            found[node.results[0]] = found[node.inputs[0]]
            continue
        operands = tuple(
            tuple(found[v] for v in o) if isinstance(o, tuple) else None if o is None else found[o]
            for o in node.operands
        )
        for r, value in enumerate(node.results):
            found[value] = number((node.op, operands, repr(node.attrs), r, graph.type(value)))
    return [found[value] for value in graph.outputs]
