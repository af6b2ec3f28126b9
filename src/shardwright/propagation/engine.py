"""Spread shardings over a whole graph until nothing changes.

`run_hierarchical_propagation_pass` runs, for each user priority, for each op priority, a worklist over the
nodes.  The worklist is last-in first-out and a node that changed a tensor wakes that tensor's maker and its
readers; the order matters for who wins a conflict, and is Shardy's.

Two things make it fast: equal ops in equal states are worked out once (a memo over rule, directions and
specs), and a node is visited only if something about it changed since its last visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import PropagationError
from ..ir.graph import Graph, Node
from ..spec.axes import Axes
from ..spec.mesh import DeviceMesh
from ..spec.op_record import Flow
from ..spec.rule import OpShardingRule
from ..spec.sharding import CLOSED, DimSpec, Shape, ShardingSpec
from .directions import LEVELS, directions, every_way
from .factors import Direction, Strategy, aggressive
from .project import Projection
from .provenance import Link, Provenance, new_axes

Spec = ShardingSpec | None


@dataclass(frozen=True, slots=True)
class OpView:
    """What propagation needs to know of a node."""

    rule: OpShardingRule
    flow: Flow = Flow.OTHER
    only: Direction | None = None
    """Set for barriers and ties: the direction that they let through, at every level."""

    @classmethod
    def tie(cls, shape: Shape, sources: int) -> OpView:
        """Values that control flow hands on: what a loop starts from and each round returns, what branches return, a
        call's operand, and the value that is read from then on.

        Shardy's data-flow edge: an identity of the last in each of the others, which a level never holds back.
        """
        return cls(OpShardingRule.identity(shape, sources), only=Direction.BOTH)


RuleOf = Callable[[Graph, Node], OpView | None]


@dataclass(frozen=True, slots=True)
class Update:
    """A tensor of an op (operands, then results) and its new sharding."""

    tensor: int
    spec: ShardingSpec
    links: tuple[tuple[int, Axes, int, int], ...]
    """For provenance: (dim, new axes, tensor they come from, its dim)."""


@dataclass(frozen=True)
class Propagated:
    """Shardings after propagation; None where nothing is known."""

    graph: Graph
    specs: tuple[Spec, ...]
    out_specs: tuple[Spec, ...]
    provenance: Provenance
    visits: int
    updates: int

    def __getitem__(self, name: str) -> Spec:
        return self.specs[self.graph.by_name[name]]

    def why(self, name: str, dim: int) -> str:
        """Where the axes of a dim come from."""
        return self.provenance.explain(self.graph, self.specs, self.graph.by_name[name], dim)

    def __str__(self) -> str:
        from ..ir.text import graph_text

        return graph_text(self.graph, dict(enumerate(self.specs)), self.out_specs)


def propagate_sharding(
    rule: OpShardingRule,
    specs: Sequence[Spec],
    *,
    flow: Flow = Flow.OTHER,
    strategy: Strategy = aggressive,
    directions: Sequence[Direction] | None = None,
    conservative: bool = False,
) -> tuple[Spec, ...]:
    """One op: the shardings of its operands, then results, with everything spread that can be.

    >>> mesh = DeviceMesh("dp=2, tp=4")
    >>> rule = OpShardingRule.parse("m k, k n -> m n | m=8 k=16 n=4")
    >>> x, w = ShardingSpec(mesh, ["dp", "tp"]), None
    >>> print(*propagate_sharding(rule, [x, w, None]))
    [dp, tp] [tp+?, ?] [dp+?, ?]
    """
    found = list(specs)
    while True:
        ways = directions if directions is not None else every_way(rule)
        updates = _work_out(rule, tuple(ways), flow is Flow.POINTWISE, tuple(found), strategy, conservative)
        for update in updates:
            found[update.tensor] = update.spec
        if not updates:
            return tuple(found)


def run_hierarchical_propagation_pass(
    graph: Graph,
    specs: Mapping[int, ShardingSpec],
    rule_of: RuleOf,
    *,
    out_specs: Mapping[int, ShardingSpec] | None = None,
    groups: Iterable[Iterable[int]] = (),
    strategy: Strategy = aggressive,
    user_priorities: bool = True,
    op_priorities: bool = True,
    conservative: bool = False,
) -> Propagated:
    """A graph: spread ``specs`` (by value) and ``out_specs`` (by output) in both directions.

    ``groups`` are sets of values that must end up sharded alike.
    """
    engine = _Engine(graph, rule_of, strategy, conservative, groups)
    engine.specs = [specs.get(value.id) for value in graph.values]
    engine.outs = [(out_specs or {}).get(i) for i in range(len(graph.outputs))]
    engine.check_ranks()
    levels = range(LEVELS) if op_priorities else [LEVELS - 1]
    if not user_priorities:
        engine.run(levels)
    else:
        waiting = engine.hold_back_priorities()
        engine.run(levels)
        for priority in sorted(waiting):
            engine.release(waiting[priority], priority)
            engine.run(levels)
    return Propagated(graph, tuple(engine.specs), tuple(engine.outs), engine.provenance, engine.visits, engine.updates)


def _common_mesh(specs: Sequence[Spec]) -> DeviceMesh | None:
    """The mesh all shardings live on; one without axes gives way to any other."""
    found: DeviceMesh | None = None
    for spec in specs:
        if spec is None or spec.mesh is found or not spec.mesh.shape:
            continue
        if found is not None and spec.mesh != found:
            return None
        found = spec.mesh
    return found


def _work_out(
    rule: OpShardingRule,
    ways: tuple[Direction, ...],
    pointwise: bool,
    specs: tuple[Spec, ...],
    strategy: Strategy,
    conservative: bool,
) -> tuple[Update, ...]:
    """What one visit of an op changes: results first, then operands."""
    mesh = _common_mesh(specs)
    if mesh is None or not any(ways) or not any(spec is not None and spec.sharded_axes for spec in specs):
        return ()  # nothing to spread, or nowhere to go
    projection = Projection.of(rule, specs)
    changed = strategy(projection, ways, pointwise=pointwise, conservative=conservative)
    if not changed:
        return ()
    untouched = Projection.of(rule, specs)  # the strategy works in place
    before = [{f: factor.axes for f, factor in tensor.factors.items()} for tensor in untouched.tensors]
    after = projection.specs(mesh)
    first_result = len(rule.operands)
    updates = []
    for t in [*range(first_result, len(after)), *range(first_result)]:
        old, new = specs[t], after[t]
        if t in changed and new != old and (old is not None or new.sharded_axes):
            links = new_axes(rule, before, projection, t)
            updates.append(Update(t, new, links))
    return tuple(updates)


@dataclass
class _Engine:
    graph: Graph
    rule_of: RuleOf
    strategy: Strategy
    conservative: bool
    group_lists: Iterable[Iterable[int]]
    specs: list[Spec] = field(default_factory=list)
    outs: list[Spec] = field(default_factory=list)
    provenance: Provenance = field(default_factory=Provenance)
    visits: int = 0
    updates: int = 0

    def __post_init__(self) -> None:
        graph = self.graph
        self.memo: dict[tuple[object, ...], tuple[Update, ...]] = {}
        self.views = [self.rule_of(graph, node) for node in graph.nodes]
        self.tensors = [(*node.inputs, *node.results) for node in graph.nodes]
        self.single_use = [self._single_use(node) for node in graph.nodes]
        self.ways: list[tuple[Direction, ...]] = [()] * len(graph.nodes)
        self.dirty = [True] * len(graph.nodes)
        self.group_of: dict[int, list[int]] = {}
        for members in self.group_lists:
            group = sorted(set(members))
            for value in group:
                self.group_of[value] = group

    def _single_use(self, node: Node) -> bool:
        graph = self.graph
        return all(
            len(graph.uses[value]) + graph.output_uses[value] == 1 for value in node.inputs if graph.values[value].shape
        )

    def check_ranks(self) -> None:
        pairs = [(value.name, value.shape, spec) for value, spec in zip(self.graph.values, self.specs)]
        pairs += [
            (f"output {i}", self.graph.values[value].shape, spec)
            for i, (value, spec) in enumerate(zip(self.graph.outputs, self.outs))
        ]
        for name, shape, spec in pairs:
            if spec is not None and len(spec.dims) != len(shape):
                raise PropagationError(
                    f"the sharding of {name} has {len(spec.dims)} dims, the tensor {len(shape)}",
                    rows=[("spec", str(spec)), ("shape", str(list(shape)))],
                )

    # -- user priorities --------------------------------------------------------------------------------

    def hold_back_priorities(self) -> dict[int, list[tuple[list[Spec], int, ShardingSpec]]]:
        """Start with priority 0 alone: dims of a later one are shut, and their axes kept free for them."""
        waiting: dict[int, list[tuple[list[Spec], int, ShardingSpec]]] = {}
        for table in (self.specs, self.outs):
            for i, spec in enumerate(table):
                if spec is None or all(dim.priority is None for dim in spec.dims):
                    continue
                for priority in sorted({dim.priority for dim in spec.dims if dim.priority}):
                    waiting.setdefault(priority, []).append((table, i, spec))
                kept = list(spec.replicated)
                dims = []
                for dim in spec.dims:
                    if dim.priority:
                        kept.extend(dim.axes)
                        dims.append(CLOSED)
                    else:
                        dims.append(DimSpec(dim.axes, dim.open))
                kept.sort(key=spec.mesh.order)
                table[i] = ShardingSpec.make(spec.mesh, tuple(dims), spec.partial, tuple(kept))
        return waiting

    def release(self, held: list[tuple[list[Spec], int, ShardingSpec]], priority: int) -> None:
        for table, i, original in held:
            now = table[i]
            assert now is not None
            dims = list(now.dims)
            freed: set[object] = set()
            for d, dim in enumerate(original.dims):
                if dim.priority == priority:
                    # A group may have cut the dim while it was held back; that stays.
                    axes = dims[d].axes or dim.axes
                    dims[d] = DimSpec(axes, dim.open)
                    freed.update(axes)
            kept = tuple(axis for axis in now.replicated if axis not in freed)
            table[i] = ShardingSpec.make(now.mesh, tuple(dims), now.partial, kept)
            if table is self.specs:
                self.wake(i, None, [])

    # -- the worklist -----------------------------------------------------------------------------------

    def run(self, levels: Iterable[int]) -> None:
        for level in levels:
            self.to_and_from_outputs()
            self.prepare(level)
            while any(self.dirty):
                self.work()
            self.to_and_from_outputs()

    def prepare(self, level: int) -> None:
        """Directions at this level; a node that may now do more has to be visited."""
        for n, view in enumerate(self.views):
            if view is None:
                self.dirty[n] = False
                continue
            if view.only is None:
                ways = directions(view.rule, view.flow, self.single_use[n], level)
            else:
                ways = tuple(every_way(view.rule, view.only))
            if ways != self.ways[n]:
                self.ways[n] = ways
                self.dirty[n] = True

    def work(self) -> None:
        """One round; nodes that changed only by their own doing wait for the next.

        All nodes are on the list from the start, also those that have nothing to do yet: a node that is woken while it
        waits keeps its place, and who comes first decides who wins a conflict.
        """
        stack = list(range(len(self.dirty)))[::-1]
        waiting = set(stack)
        while stack:
            n = stack.pop()
            waiting.discard(n)
            if not self.dirty[n]:
                continue
            self.dirty[n] = False
            updates = self.visit(n)
            if not updates:
                continue
            values = self.tensors[n]
            changed: dict[int, Update] = {values[update.tensor]: update for update in updates}
            for value, update in changed.items():
                self.assign(value, update.spec, n, update, stack, waiting)

    def visit(self, n: int) -> tuple[Update, ...]:
        view = self.views[n]
        if view is None:
            return ()
        self.visits += 1
        specs = tuple([self.specs[value] for value in self.tensors[n]])
        key = (view.rule, self.ways[n], view.flow, view.only, specs)
        found = self.memo.get(key)
        if found is None:
            careful = self.conservative and view.only is None  # a barrier lets parts of axes pass as they are
            found = self.memo[key] = _work_out(
                view.rule, self.ways[n], view.flow is Flow.POINTWISE, specs, self.strategy, careful
            )
        return found

    def assign(
        self, value: int, spec: ShardingSpec, n: int, update: Update, stack: list[int], waiting: set[int]
    ) -> None:
        self.updates += 1
        self.specs[value] = spec
        for dim, axes, tensor, source_dim in update.links:
            self.provenance.add(value, dim, axes, Link(n, self.tensors[n][tensor], source_dim))
        self.wake(value, n, stack, waiting)
        for other in self.group_of.get(value, ()):
            if other != value:
                self.specs[other] = spec
                for dim, dim_spec in enumerate(spec.dims):
                    self.provenance.add(other, dim, dim_spec.axes, Link(None, value, dim))
                self.wake(other, n, stack, waiting)

    def wake(self, value: int, current: int | None, stack: list[int], waiting: set[int] | None = None) -> None:
        """The maker of a changed tensor, then its readers; the last woken is visited first."""
        makers = [] if (maker := self.graph.node_of(value)) is None else [maker]
        for n in [*makers, *reversed(self.graph.uses[value])]:
            if self.views[n] is None:
                continue
            self.dirty[n] = True
            if waiting is not None and n != current and n not in waiting:
                waiting.add(n)
                stack.append(n)

    def to_and_from_outputs(self) -> None:
        """Between each returned value and what was said of that output."""
        for i, value in enumerate(self.graph.outputs):
            inner, outer = self.specs[value], self.outs[i]
            if inner is None and outer is None:
                continue
            rule = OpShardingRule.identity(self.graph.values[value].shape)
            ways = every_way(rule)
            for update in _work_out(rule, tuple(ways), False, (inner, outer), self.strategy, False):
                if update.tensor == 1:
                    self.outs[i] = update.spec
                    continue
                self.specs[value] = update.spec
                for dim, axes, _, source_dim in update.links:
                    self.provenance.add(value, dim, axes, Link(None, ~i, source_dim))
                self.wake(value, None, [])
                for other in self.group_of.get(value, ()):
                    if other != value:
                        self.specs[other] = update.spec
                        for dim, dim_spec in enumerate(update.spec.dims):
                            self.provenance.add(other, dim, dim_spec.axes, Link(None, value, dim))
                        self.wake(other, None, [])
