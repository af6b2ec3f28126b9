"""Fix the sharding of every operand of every node, so that lowering has nothing left to decide.

Nodes are taken in program order.  For each, its strategies (`choices`) are priced by the bytes they move, and by
the work that each device is left with, as bytes: bringing each operand there from the cheapest copy at hand, and the
result to where it is wanted.  A pending
result stays pending until somebody needs it otherwise; then it is reduced where it is needed (a reduce_scatter
if the reader is split along the same axis), once per copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ..errors import PropagationError
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph, Node
from ..plans.complete import Complete, Decision, held_by_caller
from ..spec.axes import Axes
from ..spec.mesh import DeviceMesh
from ..spec.resharding.cheapest import reshard_bytes
from ..spec.resharding.steps import Step
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec
from .book import rule_of as rule_by_book
from .choices import Choice, choices, forced_choices, legal_spec
from .copies import Copies
from .engine import RuleOf, run_hierarchical_propagation_pass
from .parts import in_parts, parts_of

__all__ = ["Complete", "Decision", "complete", "complete_parts", "held_by_caller"]
Spec = ShardingSpec | None
Specs = tuple[ShardingSpec, ...]
WORK_PER_BYTE = 1000
"""So many multiply-adds take as long as sending a byte: about the balance of today's machines inside a node."""


def complete(
    graph: Graph,
    mesh: DeviceMesh,
    specs: Sequence[Spec],
    rule_of: RuleOf,
    *,
    pinned: Mapping[int, ShardingSpec] | None = None,
    out_specs: Mapping[int, ShardingSpec] | None = None,
    forced: Mapping[int, Sequence[Axes]] | None = None,
) -> Complete:
    """``specs`` are propagated shardings by value; ``pinned`` values keep theirs whatever it costs.

    ``forced`` says for some nodes which axes their factors get, as a solver does; they are cut back to what is
    legal, nothing else.
    """
    parts = (dict(pinned or {}), dict(out_specs or {}), dict(forced or {}))
    return _Completer(graph, mesh, specs, rule_of, *parts).run()


@dataclass
class _Completer:
    graph: Graph
    mesh: DeviceMesh
    specs: Sequence[Spec]
    rule_of: RuleOf
    pinned: dict[int, ShardingSpec]
    out_specs: dict[int, ShardingSpec]
    forced: dict[int, Sequence[Axes]]
    notes: list[str] = field(default_factory=list)
    moved: int = 0

    def __post_init__(self) -> None:
        self.copies = Copies[bool](self.graph, self.sent)

    def sent(self, value: int, copy: bool, step: Step, cause: str) -> bool:
        self.moved += step.bytes
        return copy

    def run(self) -> Complete:
        inputs = []
        for value in self.graph.inputs:
            spec = self.pinned.get(value) or self.wanted(value) or self.replicated(value)
            inputs.append(spec.closed())
            self.copies.start(value, inputs[-1], True)
        decisions = [self.decide(n, node) for n, node in enumerate(self.graph.nodes)]
        outputs = [self.output(i, value) for i, value in enumerate(self.graph.outputs)]
        notes = tuple(dict.fromkeys(self.notes))
        return Complete(self.graph, self.mesh, tuple(inputs), tuple(decisions), tuple(outputs), notes, self.moved)

    # -- what is known of a value -----------------------------------------------------------------------

    def replicated(self, value: int) -> ShardingSpec:
        return ShardingSpec.replicate(self.mesh, self.graph.values[value].type.rank)

    def wanted(self, value: int) -> Spec:
        """The propagated sharding, if it is on this mesh, cut back to what is legal."""
        spec = self.pinned.get(value) or self.specs[value]
        if spec is None or spec.mesh != self.mesh:
            return None
        legal = legal_spec(spec, self.graph.values[value].shape)
        if value not in self.pinned and any(a.axes != b.axes for a, b in zip(legal.dims, spec.dims)):
            name = self.graph.values[value].name
            self.notes.append(f"%{name}: {spec.closed()} does not divide, cut back to {legal}")
        return legal

    def price(self, value: int, spec: ShardingSpec) -> int:
        """Bytes to get a copy of a value in this sharding."""
        type = self.graph.type(value)
        return min(reshard_bytes(copy, spec, type.shape, type.item_bytes, False) for copy in self.copies.of[value])

    def home(self, value: int) -> ShardingSpec:
        """The sharding that a value was first there in."""
        return next(iter(self.copies.of[value]))

    # -- nodes ------------------------------------------------------------------------------------------

    def decide(self, n: int, node: Node) -> Decision:
        view = self.rule_of(self.graph, node)
        if node.op == CONSTRAINT and node.results[0] in self.pinned:
            decision = self.constrain(n, node)
        elif view is None:
            decision = self.run_replicated(n, node)
        else:
            choice = self.choose(n, node, view.rule)
            homes = tuple(self.pinned.get(value, made) for value, made in zip(node.results, choice.results))
            decision = Decision(n, view.rule, choice.axes, choice.operands, choice.results, homes)
        for value, spec in zip(node.inputs, decision.operands):
            self.copies.bring(value, spec)
        self.moved += self.inside(node, decision.rule, decision)
        for value, made, home in zip(node.results, decision.results, decision.homes):
            self.copies.settle(value, made, home, True)
        return decision

    def inside(self, node: Node, rule: OpShardingRule | None, way: Decision | Choice) -> int:
        """Bytes moved inside the op, where a split calls for its parts."""
        if rule is None or not in_parts(rule, way.axes):
            return 0
        inner = parts_of(self.graph, node)
        if inner is None:
            raise PropagationError(
                f"{node.op} says that it can be split in its parts, but nobody knows them",
                help="take form(parts) out of its rule, or say what it is made of",
            )
        return complete_parts(inner, self.mesh, way.operands, way.results).moved

    def constrain(self, n: int, node: Node) -> Decision:
        spec = self.pinned[node.results[0]].closed()
        rule = OpShardingRule.identity(self.graph.values[node.results[0]].shape)
        axes = tuple(dim.axes for dim in spec.dims)
        return Decision(n, rule, axes, (spec,), (spec,), (spec,))

    def run_replicated(self, n: int, node: Node) -> Decision:
        self.notes.append(f"node {n}: {node.op} has no rule and runs replicated")
        operands = tuple(self.replicated(value) for value in node.inputs)
        results = tuple(self.replicated(value) for value in node.results)
        homes = tuple(self.pinned.get(value, spec) for value, spec in zip(node.results, results))
        return Decision(n, None, (), operands, results, homes)

    def choose(self, n: int, node: Node, rule: OpShardingRule) -> Choice:
        homes = [self.home(value) for value in node.inputs]
        wanted = [self.wanted(value) for value in node.results]
        if n in self.forced:
            offered = forced_choices(rule, self.mesh, homes, self.forced[n])
        else:
            offered = choices(rule, self.mesh, homes, wanted)

        work = work_of(rule) // WORK_PER_BYTE
        ends = [self.asked_of(value) for value in node.results]

        def cost(choice: Choice) -> tuple[int, int]:
            needs = dict.fromkeys(zip(node.inputs, choice.operands))
            moved = sum(self.price(value, spec) for value, spec in needs) + self.inside(node, rule, choice)
            for value, made, want, asked in zip(node.results, choice.results, wanted, ends):
                type = self.graph.type(value)
                targets = asked or [want or ShardingSpec.make(self.mesh, made.dims)]
                moved += sum(reshard_bytes(made, target, type.shape, type.item_bytes, False) for target in targets)
            # As expensive: split the work over more devices.
            return moved + work // choice.ways(rule), -choice.ways(rule)

        return min(offered, key=cost)

    def asked_of(self, value: int) -> list[ShardingSpec]:
        """The shardings that a value has to be returned in.  Propagation has not spread those of outputs that are
        wanted whole everywhere: they have no axes to spread."""
        if not self.graph.output_uses[value]:
            return []
        specs = [self.out_specs.get(i) for i, output in enumerate(self.graph.outputs) if output == value]
        return list(dict.fromkeys(spec.closed() for spec in specs if spec is not None and spec.mesh == self.mesh))

    def next_state(self, i: int, said: Spec) -> ShardingSpec:
        """The next state of an input has the input's sharding, or the following step would misread it."""
        value = self.graph.inputs[i]
        spec = self.home(value)
        if said is not None and not said.same_layout(spec):
            raise PropagationError(
                f"the update of %{self.graph.values[value].name} is wanted in another sharding than the input",
                rows=[("input", str(spec)), ("output", str(said))],
                help="give both the same sharding",
            )
        return spec

    # -- ends -------------------------------------------------------------------------------------------

    def output(self, i: int, value: int) -> ShardingSpec:
        """As asked; else as it is, and never pending."""
        said = self.out_specs.get(i)
        state = next((k for k, o in self.graph.updates if o == i), None)
        if state is not None:
            said = self.next_state(state, said)
        if said is not None:
            if said.mesh != self.mesh:
                raise PropagationError(f"output {i} is wanted on another mesh", rows=[("mesh", str(said.mesh))])
            spec = said.closed()
        else:
            home = self.home(value)
            wanted = self.wanted(value)
            spec = home
            if home.partial:
                finished = [copy for copy in self.copies.of[value] if not copy.partial]
                fallback = ShardingSpec.make(self.mesh, home.dims)
                spec = finished[0] if finished else (wanted or fallback)
                spec = ShardingSpec.make(self.mesh, spec.dims)
        self.copies.bring(value, spec)
        return spec


def work_of(rule: OpShardingRule) -> int:
    """About how many elements an op computes, each from how many: a result's factors, and those that are not in it but
    in two operands or more, as in a product.  Factors that meet nowhere do not multiply."""
    most = 1
    for mapped, reduced in zip(rule.results, rule.reductions):
        here = {f for dim in mapped for f in dim}
        inside = {f for f, _ in reduced}
        for f in range(len(rule.factors)):
            if f not in here and sum(any(f in dim for dim in operand) for operand in rule.operands) > 1:
                inside.add(f)
        most = max(most, prod(rule.sizes[f] for f in here | inside))
    return max(most, *(prod(rule.sizes[f] for dim in operand for f in dim) for operand in rule.operands), 1)


# -- ops in their parts -------------------------------------------------------------------------------------

MOST = 20_000
"""So many completed parts are remembered."""
_completed: dict[tuple[int, DeviceMesh, Specs, Specs], tuple[Graph, Complete]] = {}


def complete_parts(inner: Graph, mesh: DeviceMesh, operands: Specs, results: Specs) -> Complete:
    """The `Complete` of the parts, between these shardings of the op's operands and results."""
    key = (id(inner), mesh, operands, results)  # parts are remembered where they come from; comparing them is slow
    if key not in _completed:
        given = dict(zip(inner.inputs, operands))
        wanted = dict(enumerate(results))
        found = run_hierarchical_propagation_pass(inner, given, rule_by_book, out_specs=wanted)
        made = complete(inner, mesh, found.specs, rule_by_book, pinned=given, out_specs=wanted)
        if len(_completed) > MOST:
            _completed.clear()
        _completed[key] = (inner, made)
    return _completed[key][1]
