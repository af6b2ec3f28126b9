"""`Problem`: all that a solver needs to know, read from the extractor's JSON.

Rules come from the JSON; what the rule book adds (cost class, flow) is looked up by op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...cost.compute import ARITHMETIC, cost_class
from ...cost.hardware import H100, Hardware
from ...cost.memory import local_bytes
from ...errors import ShardwrightError, SpecError, near_misses
from ...ir.core import BARRIER
from ...ir.graph import Graph, Node, TensorType
from ...ir.json import strict_loads
from ...ir.wiring import connected
from ...propagation.book import rule_of as rule_by_book
from ...propagation.engine import OpView
from ...rules.extract import GraphExtractor
from ...rules.registry import find
from ...spec.mesh import DeviceMesh
from ...spec.op_record import Flow
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec, wrong_mesh
from ..strategies import Space, orders_in


@dataclass(frozen=True)
class Problem:
    """A program, a mesh, what the user said, and the machine."""

    graph: Graph
    mesh: DeviceMesh
    rules: tuple[OpShardingRule | None, ...]
    """By node; None runs replicated."""
    given: Mapping[int, ShardingSpec] = field(default_factory=dict)
    """The user's word, by value."""
    out_specs: Mapping[int, ShardingSpec] = field(default_factory=dict)
    """The same, by output."""
    hardware: Hardware = H100
    warnings: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        program: Graph | Mapping[str, Any] | str,
        mesh: Any,
        given: Mapping[int, Any] | Mapping[str, Any] | None = None,
        out_specs: Mapping[int, Any] | None = None,
        hardware: Hardware | None = None,
    ) -> Problem:
        """Phase 1: from a graph, or the JSON (text or object) that `GraphExtractor` makes of one."""
        mesh = DeviceMesh.of(mesh)
        warnings: tuple[str, ...] = ()
        if isinstance(program, Graph):
            extractor = GraphExtractor(program)
            record: Any = extractor.extract()
            graph, warnings = program, tuple(extractor.warnings)
        else:
            record = strict_loads(program) if isinstance(program, str) else program
            graph = Graph.from_json(record)
        texts = [item.get("rule") for item in record["nodes"]]
        known: dict[str, OpShardingRule] = {}
        for text in texts:
            if text is not None and text not in known:
                known[text] = OpShardingRule.parse(text)
        rules = tuple(None if text is None else known[text] for text in texts)
        hardware = (hardware or H100).on(mesh)
        said = {_value(graph, key): spec for key, spec in (given or {}).items()}
        for i in out_specs or {}:
            if not 0 <= i < len(graph.outputs):
                raise SpecError(f"a sharding is given for output {i}, but there are {len(graph.outputs)}")
        return cls(
            graph,
            mesh,
            rules,
            {value: _spec(spec, mesh, graph.type(value), graph.values[value].name) for value, spec in said.items()},
            {
                i: _spec(spec, mesh, graph.type(graph.outputs[i]), f"output {i}")
                for i, spec in (out_specs or {}).items()
            },
            hardware,
            warnings,
        )

    # -- what is known of nodes -------------------------------------------------------------------------

    def rule_of(self, graph: Graph, node: Node) -> OpView | None:
        """For propagation: the rule that the JSON brought."""
        if node.op == BARRIER:
            return rule_by_book(graph, node)
        if not node.results:
            return None
        maker = graph.node_of(node.results[0])
        rule = self.rules[maker] if maker is not None else None
        record = find(node.op)
        return None if rule is None else OpView(rule, record.flow if record is not None else Flow.OTHER)

    @cached_property
    def space(self) -> Space:
        """The strategies of every node and what they take, as for the other solvers."""
        orders = orders_in(self.mesh, (*self.given.values(), *self.out_specs.values()))
        return Space(self.graph, self.mesh, self.hardware, orders=orders, given=self.given, rule_of=self.rule_of)

    @cached_property
    def strategic(self) -> tuple[int, ...]:
        """The nodes worth a choice of their own: arithmetic ones; where a part of the program has none, its costliest.

        Parts are joined by the values they share.
        """
        graph = self.graph
        parts = connected(len(graph.values), [(*node.inputs, *node.results) for node in graph.nodes])
        members: dict[int, list[int]] = {}
        for n, node in enumerate(graph.nodes):
            if node.results and self.rules[n] is not None:
                members.setdefault(parts[node.results[0]], []).append(n)
        found: list[int] = []
        for nodes in members.values():
            chosen = [n for n in nodes if cost_class(find(graph.nodes[n].op)) in ARITHMETIC]
            found += chosen or [max(nodes, key=lambda n: (self.space.ways(n)[0].time, -n))]
        return tuple(sorted(found))

    def held(self, value: int, spec: ShardingSpec) -> int:
        """Bytes of a value on one device."""
        return local_bytes(spec, self.graph.type(value))


def _value(graph: Graph, key: int | str) -> int:
    found = graph.by_name.get(key) if isinstance(key, str) else key
    if found is None or not 0 <= found < len(graph.values):
        raise SpecError(
            f"a sharding is given for {key!r}, which is no value of {graph.name}",
            help=near_misses(key, graph.by_name) if isinstance(key, str) else None,
        )
    return found


def _spec(spec: Any, mesh: DeviceMesh, type: TensorType, name: str) -> ShardingSpec:
    """Whatever says a sharding, on this mesh and of the right rank."""
    try:
        found = ShardingSpec.of(spec, mesh, type.rank)
        if found.mesh != mesh:
            wrong_mesh("a given sharding", found, mesh)
        found.check_rank(type.shape)
    except ShardwrightError as error:
        raise error.add("value", name) from None
    return found
