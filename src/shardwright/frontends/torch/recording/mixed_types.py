"""Products of unlike element types: fake tensors let them through, real ones do not."""

from __future__ import annotations

from ....errors import TraceError
from ....ir.graph import Graph

_ALIKE = frozenset(
    {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.dot", "aten.addmv", "aten.convolution"}
)
"""Operators all of whose operands have one type."""


def check_products(graph: Graph) -> None:
    """Refuse what a call on real tensors would refuse."""
    for node in graph.nodes:
        if node.op not in _ALIKE:
            continue
        types = [graph.type(value).dtype for value in node.inputs]
        if len(set(types)) > 1:
            error = TraceError(
                f"{node.op} of {' and '.join(dict.fromkeys(types))}: PyTorch multiplies tensors of one element type",
                rows=[("operands", ", ".join(str(graph.type(value)) for value in node.inputs))],
                help="bring them to one: x.to(weight.dtype), or model.to(x.dtype)",
            )
            raise error if node.source is None else error.add("at", node.source)
