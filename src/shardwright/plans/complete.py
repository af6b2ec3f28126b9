"""`Complete`: the sharding of every operand of every node, and which copies exist.

Data only: `propagation.complete` builds one from propagated shardings, a solver from its choices, a plan file from its
text.  Costs, memory and lowering read it and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..ir.graph import Graph
from ..spec.axes import Axes
from ..spec.mesh import DeviceMesh
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec


class Decision(NamedTuple):
    """How one node is carried out.

    ``results`` is what local computation leaves; ``homes`` what is made of it at once (they differ only where
    a sharding is pinned).  ``rule`` is None for an op that runs replicated for lack of one.
    """

    node: int
    rule: OpShardingRule | None
    axes: tuple[Axes, ...]
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]
    homes: tuple[ShardingSpec, ...]

    def __str__(self) -> str:
        if self.rule is None:
            return "replicated: no rule"
        return self.rule.text_with({f: axes for f, axes in enumerate(self.axes) if axes})


@dataclass(frozen=True)
class Complete:
    """All that lowering needs."""

    graph: Graph
    mesh: DeviceMesh
    inputs: tuple[ShardingSpec, ...]
    decisions: tuple[Decision, ...]
    outputs: tuple[ShardingSpec, ...]
    notes: tuple[str, ...] = ()
    """What a user should know: ops without a rule, axes cut back."""
    moved: int = 0
    """Bytes that one device sends."""
    sources: Mapping[int, Mapping[ShardingSpec, ShardingSpec]] = field(default_factory=dict)
    """For copies of values, as a solver says: the copy that each is made from, by a single step if there is one.

    Other copies are made from the one at hand from which fewest bytes are sent.
    """
    kept: Mapping[int, ShardingSpec] = field(default_factory=dict)
    """Values that are kept in one sharding once they are read: copies in others are let go after each node that asked
    for them, and made again for the next."""

    @property
    def homes(self) -> dict[int, ShardingSpec]:
        """The sharding of every value once it is made."""
        graph = self.graph
        found = dict(zip(graph.inputs, self.inputs))
        for decision in self.decisions:
            found.update(zip(graph.nodes[decision.node].results, decision.homes))
        return found


def held_by_caller(made: Complete) -> dict[int, list[ShardingSpec]]:
    """Inputs that a step does not update, in their sharding: they are there to the end, whatever is made of them."""
    renewed = {i for i, _ in made.graph.updates}
    pairs = enumerate(zip(made.graph.inputs, made.inputs))
    return {value: [spec.closed()] for i, (value, spec) in pairs if i not in renewed}
