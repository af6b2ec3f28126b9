"""What is computed from positions and constants alone: `Positions` reads it off a graph, whatever the sizes.

What is not known here, or depends on data, is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...ir.graph import Graph, Node
from ...spec.band import Band
from .arithmetic import POINTWISE
from .calls import Call, call_name
from .movement import CREATED, CREATION, MOVEMENT
from .numbers import Number, is_readable

OPS = {**CREATION, **MOVEMENT, **POINTWISE}
"""By the name of an op: what it makes of numbers that are known."""


@dataclass
class Positions:
    """The numbers of a graph that are known when it is written."""

    graph: Graph
    bands: dict[tuple[int, int, int, str], Band | None] = field(default_factory=dict)
    """What masks were read as: all layers of a model read one."""
    _found: dict[int, Number | None] = field(default_factory=dict)

    def of(self, value: int) -> Number | None:
        """The numbers of a value; None if they depend on data, or on an op that is not known here."""
        waiting = [value]
        while waiting:  # by hand: programs are deeper than the stack
            at = waiting[-1]
            if at in self._found:
                waiting.pop()
                continue
            n = self.graph.node_of(at)
            node = None if n is None else self.graph.nodes[n]
            if node is None or not self._readable(node):
                self._found[at] = None
                continue
            reads = () if call_name(node)[0] in CREATED else node.inputs
            missing = [read for read in reads if read not in self._found]
            if any(self._found.get(read, node) is None for read in reads):
                self._found[at] = None
            elif missing:
                waiting.append(missing[0])
            else:
                self._found[at] = self._read(node)
        return self._found[value]

    def _readable(self, node: Node) -> bool:
        return (
            len(node.results) == 1
            and is_readable(self.graph.type(node.results[0]).dtype)
            and 0 not in self.graph.type(node.results[0]).shape
            and (name := call_name(node)[0]) is not None
            and name in OPS
        )

    def _read(self, node: Node) -> Number | None:
        name, attrs = call_name(node, self.graph)
        operands = [
            [self._found.get(v) for v in o] if isinstance(o, tuple) else None if o is None else self._found.get(o)
            for o in node.operands
        ]
        assert name is not None
        try:
            return OPS[name](Call(name, attrs, operands, self.graph.type(node.results[0])))
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return None  # a call that this reader does not cover
