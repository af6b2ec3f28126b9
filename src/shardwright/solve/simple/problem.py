"""`Problem`: all that a solver needs to know, read from the extractor's JSON.

Rules come from the JSON; what the rule book adds (cost class, flow) is looked up by op.  Costs of ops and reshards
are remembered by what they depend on, so equal layers are priced once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...cost.comm import steps_cost
from ...cost.compute import ARITHMETIC, cost_class, local_sizes, op_time, operations
from ...cost.hardware import H100, Hardware
from ...cost.memory import local_bytes, row_bytes
from ...errors import ShardwrightError, SpecError, near_misses
from ...ir.core import BARRIER
from ...ir.graph import Graph, Node, TensorType
from ...ir.json import strict_loads
from ...propagation.book import rule_of as rule_by_book
from ...propagation.engine import OpView
from ...rules.extract import GraphExtractor
from ...rules.registry import find
from ...spec.axes import Axes
from ...spec.mesh import DeviceMesh
from ...spec.op_record import Flow
from ...spec.resharding.cheapest import reshard
from ...spec.resharding.steps import Step
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec, wrong_mesh


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
    _times: dict[object, int] = field(default_factory=dict, repr=False, compare=False)
    _moves: dict[object, int] = field(default_factory=dict, repr=False, compare=False)
    _sizes: dict[object, int] = field(default_factory=dict, repr=False, compare=False)
    _specs: dict[ShardingSpec, ShardingSpec] = field(default_factory=dict, repr=False, compare=False)

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
    def classes(self) -> tuple[str, ...]:
        """The cost class of every node."""
        return tuple(cost_class(find(node.op)) for node in self.graph.nodes)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Of every node: its operands, flat."""
        return tuple(node.inputs for node in self.graph.nodes)

    @cached_property
    def types(self) -> tuple[tuple[TensorType, ...], ...]:
        """Of every node: its operands, then its results."""
        return tuple(tuple(self.graph.types((*node.inputs, *node.results))) for node in self.graph.nodes)

    @cached_property
    def strategic(self) -> tuple[int, ...]:
        """The nodes worth a choice of their own: arithmetic ones; where a part of the program has none, its costliest.

        Parts are joined by the values they share.
        """
        part = list(range(len(self.graph.values)))

        def root(value: int) -> int:
            while part[value] != value:
                part[value] = part[part[value]]
                value = part[value]
            return value

        for node in self.graph.nodes:
            for value in (*node.inputs, *node.results):
                part[root(value)] = root((*node.inputs, *node.results)[0])
        parts: dict[int, list[int]] = {}
        for n, node in enumerate(self.graph.nodes):
            if node.results and self.rules[n] is not None:
                parts.setdefault(root(node.results[0]), []).append(n)
        found: list[int] = []
        for nodes in parts.values():
            chosen = [n for n in nodes if self.classes[n] in ARITHMETIC]
            found += chosen or [max(nodes, key=lambda n: (self.whole_time(n), -n))]
        return tuple(sorted(found))

    # -- prices -----------------------------------------------------------------------------------------

    def time(self, n: int, axes: Sequence[Axes], specs: Sequence[ShardingSpec]) -> int:
        """Picoseconds of a node with these axes for its factors; ``specs`` are those of operands and results."""
        rule, kind = self.rules[n], self.classes[n]
        attrs = self.graph.nodes[n].attrs if kind in ARITHMETIC else ()
        key = (rule, kind, self.types[n], tuple(specs), tuple(axes), attrs)
        found = self._times.get(key)
        if found is None:
            types = self.types[n]
            sizes = [local_bytes(spec, type) for spec, type in zip(specs, types)]
            count = len(self.inputs[n])
            work = operations(rule, kind, local_sizes(rule, axes), dict(attrs)) if rule is not None else 0
            dtype = types[0].dtype if types else "f32"
            row = row_bytes(specs[count], types[count]) if count < len(types) else 0
            found = self._times[key] = op_time(kind, work, sizes[:count], sizes[count:], dtype, self.hardware, row)
        return found

    def whole_time(self, n: int) -> int:
        """Picoseconds of a node that is not split."""
        rule = self.rules[n]
        axes: tuple[Axes, ...] = ((),) * (len(rule.factors) if rule is not None else 0)
        return self.time(n, axes, [ShardingSpec.replicate(self.mesh, type.rank) for type in self.types[n]])

    def move(self, value: int, source: ShardingSpec, target: ShardingSpec) -> int:
        """Picoseconds from one sharding of a value to another, by the steps that lowering will take."""
        key = (self._kinds[value], source, target)
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = steps_cost(self.steps(value, source, target), self.hardware)
        return found

    def steps(self, value: int, source: ShardingSpec, target: ShardingSpec) -> tuple[Step, ...]:
        """The reshard that lowering writes: axes that neither side uses are left alone."""
        type = self.graph.type(value)
        return reshard(source, target, type.shape, type.item_bytes, idle=False)

    def held(self, value: int, spec: ShardingSpec) -> int:
        """Bytes of a value on one device."""
        key = (self._kinds[value], spec)
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = local_bytes(spec, self.graph.type(value))
        return found

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        """A number for the type of every value: hashes faster than the type."""
        numbers: dict[TensorType, int] = {}
        return tuple(numbers.setdefault(value.type, len(numbers)) for value in self.graph.values)

    def replicated(self, value: int) -> ShardingSpec:
        return self.same(ShardingSpec.replicate(self.mesh, self.graph.type(value).rank))

    def same(self, spec: ShardingSpec) -> ShardingSpec:
        """One object for equal shardings: looking them up then takes no comparison."""
        return self._specs.setdefault(spec, spec)


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
