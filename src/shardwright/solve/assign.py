"""From a graph to the numeric problem and back: which way each node goes, how inputs lie, which copies are kept.

Variables are nodes (their ways), inputs (their shardings) and *hubs*.  A value with several readers has a hub: the
sharding in which a copy of it is made once for all of them.  A reader pays the way from the hub to what it needs, the
producer the way from what it leaves to the hub.  Lowering makes the hub's copy first and every other copy from
whichever is nearest, so the Program never costs more than the numeric problem says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..cost.machine import Hardware
from ..cost.memory import local_bytes
from ..cost.overlap import graph_roles
from ..cost.program import ProgramCost
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph
from ..propagate.book import rule_of
from ..propagate.complete import Complete, Decision
from ..spec.mesh import DeviceMesh
from ..spec.reshard import reshard
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec
from .numeric import NumericProblem, NumericSolution, Progress, solve
from .numeric.problem import FORBIDDEN, Ints
from .price import price, steps_shown
from .space import Space, Way

Hubs = dict[int, tuple[ShardingSpec, ...]]
"""The shardings that a value's hub may have."""


@dataclass(frozen=True)
class Assignment:
    """Complete shardings for a graph, what they cost, and how good that is."""

    complete: Complete
    cost: ProgramCost
    """As the lowered Program will have it."""
    lower_bound: int
    """No choice of ways and copies costs less."""
    solver: str
    timed_out: bool
    seconds: float

    @property
    def gap(self) -> float:
        return max(0.0, (self.cost.objective - self.lower_bound) / max(self.cost.objective, 1))


@dataclass
class Assigner:
    """The numeric problem of one graph on one mesh."""

    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    given: Mapping[int, ShardingSpec] = field(default_factory=dict)
    """Shardings that the user fixed, by value."""
    out_specs: Mapping[int, ShardingSpec] = field(default_factory=dict)
    memory: int | None = None
    uneven: bool = False

    def __post_init__(self) -> None:
        self.hardware = self.hardware.on(self.mesh)
        self.roles = graph_roles(self.graph)
        self.space = Space(self.graph, self.mesh, self.hardware, self.uneven)
        self.ways = [self._ways(n) for n in range(len(self.graph.nodes))]
        self._moves: dict[object, int] = {}
        self._matrices: dict[object, Ints] = {}
        self.updates = {output: self.graph.inputs[i] for i, output in self.graph.updates}
        self.readers = self._readers()
        self.inputs = {value: self._input_specs(value) for value in self.graph.inputs}

    def _ways(self, n: int) -> tuple[Way, ...]:
        node = self.graph.nodes[n]
        pinned = self.given.get(node.results[0]) if node.results else None
        found = self.space.ways(n, pinned)
        fixed = [(r, self.given[value].closed()) for r, value in enumerate(node.results) if value in self.given]
        kept = tuple(way for way in found if all(way.results[r].same_layout(spec) for r, spec in fixed))
        return kept or found  # what no way leaves is made by a reshard right after

    def _readers(self) -> dict[int, list[tuple[int, int]]]:
        """For every value the nodes that read it, and at which place."""
        found: dict[int, list[tuple[int, int]]] = {value.id: [] for value in self.graph.values}
        for n, node in enumerate(self.graph.nodes):
            for place, value in enumerate(node.inputs):
                found[value].append((n, place))
        return found

    def _input_specs(self, value: int) -> tuple[ShardingSpec, ...]:
        if value in self.given:
            return (self.given[value].closed(),)
        rank = self.graph.type(value).rank
        found = {ShardingSpec.replicate(self.mesh, rank): None}
        for n, place in self.readers[value]:
            for way in self.ways[n]:
                found[way.operands[place].closed()] = None
        return tuple(spec for spec in found if not spec.partial)

    # -- prices of moves ----------------------------------------------------------------------------------

    def move(self, value: int, source: ShardingSpec, target: ShardingSpec) -> int:
        if source == target:
            return 0
        type, role = self.graph.type(value), self.roles[value]
        key = (type, role, source, target)
        found = self._moves.get(key)
        if found is None:
            steps = reshard(source, target, type.shape, type.item_bytes, idle=False)
            found = self._moves[key] = steps_shown(steps, role, self.hardware)
        return found

    def matrix(self, value: int, sources: tuple[ShardingSpec, ...], targets: tuple[ShardingSpec, ...]) -> Ints:
        """Prices from each of these shardings of a value to each of those."""
        key = (self.graph.type(value), self.roles[value], sources, targets)
        found = self._matrices.get(key)
        if found is None:
            distinct_from, distinct_to = list(dict.fromkeys(sources)), list(dict.fromkeys(targets))
            small = np.array([[self.move(value, a, b) for b in distinct_to] for a in distinct_from], np.int64)
            rows, columns = ({spec: i for i, spec in enumerate(side)} for side in (distinct_from, distinct_to))
            found = small[np.ix_([rows[s] for s in sources], [columns[t] for t in targets])]
            self._matrices[key] = found
        return found

    # -- the numeric problem ------------------------------------------------------------------------------

    def problem(
        self, share: bool = False
    ) -> tuple[NumericProblem, dict[int, int], dict[int, tuple[ShardingSpec, ...]]]:
        """The problem, the variable of every input and hub, and the hubs' shardings.

        With ``share`` there are no hubs and each of k readers pays a k-th: a problem whose optimum lies below.
        """
        graph = self.graph
        costs: list[Ints] = [np.array([way.time for way in ways], np.int64) for ways in self.ways]
        place: dict[int, int] = {}
        for value in graph.inputs:
            place[value] = len(costs)
            costs.append(self._tie_break(value))
        edges: list[tuple[int, int, Ints]] = []
        hubs: Hubs = {}
        hub_at: dict[int, int] = {}
        outputs: dict[int, list[int]] = {}
        for i, value in enumerate(graph.outputs):
            outputs.setdefault(value, []).append(i)
        for v in range(len(graph.values)):
            made_at, made = self._made(v, place)
            demands = [(n, tuple(way.operands[at].closed() for way in self.ways[n])) for n, at in self.readers[v]]
            for i in outputs.get(v, ()):
                if i in self.updates:
                    state = self.updates[i]
                    demands.append((place[state], self.inputs[state]))
                elif i in self.out_specs:
                    demands.append((-1, (self.out_specs[i].closed(),)))
                else:
                    costs[made_at] = costs[made_at] + self._finish(v, made)
            if not demands:
                continue
            if len(demands) == 1 or share:
                for at, specs in demands:
                    table = self.matrix(v, made, specs) // len(demands) if share else self.matrix(v, made, specs)
                    if at < 0:
                        costs[made_at] = costs[made_at] + table[:, 0]
                    else:
                        edges.append((made_at, at, table))
                continue
            domain = tuple(dict.fromkeys([*made, *(spec for _, specs in demands for spec in specs)]))
            hubs[v], hub_at[v] = domain, len(costs)
            costs.append(np.zeros(len(domain), np.int64))
            edges.append((made_at, hub_at[v], self.matrix(v, made, domain)))
            for at, specs in demands:
                table = self.matrix(v, domain, specs)
                if at < 0:
                    costs[hub_at[v]] = costs[hub_at[v]] + table[:, 0]
                else:
                    edges.append((hub_at[v], at, table))
        usages, limits = self._usages(place, hub_at, hubs) if self.memory is not None and not share else ([], [])
        made_problem = NumericProblem.build(costs, edges, usages, limits, graph.name)
        return made_problem, {**place, **{-1 - v: at for v, at in hub_at.items()}}, hubs

    def _made(self, value: int, place: Mapping[int, int]) -> tuple[int, tuple[ShardingSpec, ...]]:
        """The variable that decides how a value lies when it is made, and how, for each of its choices."""
        producer = self.graph.values[value].producer
        if producer is None:
            return place[value], self.inputs[value]
        n, r = producer
        home = self.given.get(value)
        if home is not None:
            return n, (home.closed(),) * len(self.ways[n])
        return n, tuple(way.results[r].closed() for way in self.ways[n])

    def _tie_break(self, value: int) -> Ints:
        """Cutting what is whole is free, so an input might as well lie whole: a few picoseconds say it should not."""
        specs, type = self.inputs[value], self.graph.type(value)
        order = sorted({local_bytes(spec, type) for spec in specs})
        return np.array([order.index(local_bytes(spec, type)) for spec in specs], np.int64)

    def _finish(self, value: int, made: tuple[ShardingSpec, ...]) -> Ints:
        """An output that nobody asked for in a sharding keeps its own, but is never pending."""
        return np.array([self.move(value, spec, _finished(spec)) for spec in made], np.int64)

    def _usages(
        self, place: Mapping[int, int], hub_at: Mapping[int, int], hubs: Hubs
    ) -> tuple[list[tuple[int, int, int, Ints]], list[int]]:
        """Bytes that values hold while they live; moments are nodes.  Views hold none of their own."""
        graph = self.graph
        moments = len(graph.nodes)
        last = {v: max((n for n, _ in readers), default=-1) for v, readers in self.readers.items()}
        for value in graph.outputs:
            last[value] = moments - 1
        seen = {node.results[r]: node.inputs[o] for node in graph.nodes for r, o in node.views}
        for value in reversed(range(len(graph.values))):
            if value in seen:
                last[seen[value]] = max(last[seen[value]], last[value])
        found: list[tuple[int, int, int, Ints]] = []
        for v, tensor in enumerate(graph.values):
            at, made = self._made(v, place)
            start = 0 if tensor.producer is None else tensor.producer[0]
            end = moments if tensor.producer is None else last[v] + 1
            if v not in seen and end > start:
                found.append((at, start, end, np.array([local_bytes(s, tensor.type) for s in made], np.int64)))
            if v in hub_at and self.readers[v]:
                first = self.readers[v][0][0]
                held = [0 if s in made else local_bytes(s, tensor.type) for s in hubs[v]]
                found.append((hub_at[v], first, last[v] + 1, np.array(held, np.int64)))
        assert self.memory is not None
        return found, [self.memory] * moments

    # -- solving ------------------------------------------------------------------------------------------

    def solve(self, solver: str = "auto", time_limit: float | None = None, progress: object = None) -> Assignment:
        """The best assignment that a numeric solver finds, priced as it will be lowered."""
        numeric, places, hubs = self.problem()
        report = progress if callable(progress) else None

        def tell(state: Progress) -> None:
            if report is not None:
                report(state)

        found = solve(numeric, solver, time_limit, tell)
        complete = self.decode(found.choice, places, hubs)
        cost = price(complete, self.hardware, self.roles)
        bound = self._bound(found, time_limit)
        return Assignment(complete, cost, min(bound, cost.objective), found.solver, found.timed_out, found.seconds)

    def _bound(self, found: NumericSolution, time_limit: float | None) -> int:
        """With hubs copies may be paid twice, so their optimum is no bound; the shared problem's is."""
        if not any(len(readers) > 1 for readers in self.readers.values()):
            return found.lower_bound
        shared, _, _ = self.problem(share=True)
        return solve(shared, "auto", time_limit).lower_bound

    def decode(self, choice: Sequence[int], places: Mapping[int, int], hubs: Hubs) -> Complete:
        """Complete shardings from the chosen strategies."""
        graph = self.graph
        inputs = tuple(self.inputs[value][choice[places[value]]] for value in graph.inputs)
        decisions = []
        for n, node in enumerate(graph.nodes):
            way = self.ways[n][choice[n]]
            view = rule_of(graph, node)
            rule = view.rule if view is not None and way.axes is not None else None
            if node.op == CONSTRAINT and node.results[0] in self.given:
                rule = OpShardingRule.identity(graph.values[node.results[0]].shape)
            homes = tuple(
                self.given[value].closed() if value in self.given else spec
                for value, spec in zip(node.results, way.results)
            )
            decisions.append(Decision(n, rule, way.axes, way.operands, way.results, homes))
        home = dict(zip(graph.inputs, inputs))
        for decision in decisions:
            home.update(zip(graph.nodes[decision.node].results, decision.homes))
        outputs = []
        for i, value in enumerate(graph.outputs):
            if i in self.updates:
                outputs.append(inputs[graph.inputs.index(self.updates[i])])
            else:
                outputs.append(self.out_specs[i].closed() if i in self.out_specs else _finished(home[value]))
        kept = {v: specs[choice[places[-1 - v]]] for v, specs in hubs.items()}
        kept = {v: spec for v, spec in kept.items() if spec != home[v]}
        return Complete(graph, self.mesh, inputs, tuple(decisions), tuple(outputs), (), 0, kept)


def _finished(spec: ShardingSpec) -> ShardingSpec:
    return ShardingSpec.make(spec.mesh, spec.dims) if spec.partial else spec


__all__ = ["FORBIDDEN", "Assigner", "Assignment"]
