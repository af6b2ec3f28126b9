"""From a graph to the numeric problem and back: which way each node goes, how inputs lie, which copies are kept.

Variables are nodes (their ways), inputs (their shardings) and *hubs*.  A value that several variables want has a hub:
the sharding in which a copy of it is made before all others.  Prices of moves are those of `routes`.

Two problems are made of these variables.  In both the producer pays from what it leaves to the hub, and readers from
the hub to what they need.

- The **bound**: prices are closed under the triangle inequality, and where a value is wanted in k places each pays a
  (k-1)-th.  No Program costs less.  Its copies of a value form a tree that grows from what the producer left.  Take as
  hub the first copy in it that is wanted or from which two others are made.  The way there costs at least the
  producer's price.  Every move beyond serves k-1 places at most, so the ways from the hub to all places together cost
  at most k-1 times the moves beyond.
- The **plan**: readers pay all.  The Program hardly ever costs more: lowering makes each copy from the one from which
  fewest bytes are sent, which is nearly always also the quickest.

What the bound's solution says about nodes and inputs is mostly the best plan itself: with the best hub for each value
(`Routes.best`) it then costs what the bound says, and nothing is left to do.  Else the plan is solved for too, and
single changes that pay are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from ..cost.machine import Hardware
from ..cost.memory import local_bytes
from ..cost.overlap import graph_roles
from ..cost.program import ProgramCost
from ..errors import PlanInfeasible
from ..ir.graph import Graph
from ..propagate.complete import Complete, Decision
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .bucket import eliminate
from .compact import compact
from .demand import Demand, Demands, finished
from .numeric import NumericProblem, Progress, solve
from .numeric.problem import FORBIDDEN, Ints
from .polish import polish
from .price import price
from .routes import RouteBook, Routes
from .space import Space, Way

Specs = tuple[ShardingSpec, ...]
FINE = 60
"""The bound counts in such parts of a picosecond, or what is lost in dividing would keep gaps open."""
POLISH = 4_000
"""The most ways in a graph of which single changes are tried."""


@dataclass(frozen=True)
class Assignment:
    """Complete shardings for a graph, what they cost, and how good that is."""

    complete: Complete
    cost: ProgramCost
    """As the lowered Program will have it."""
    lower_bound: int
    """No choice of ways, of shardings of inputs and of a hub for each value costs less."""
    solver: str
    timed_out: bool
    seconds: float

    @property
    def gap(self) -> float:
        return max(0.0, (self.cost.objective - self.lower_bound) / max(self.cost.objective, 1))


@dataclass(frozen=True, slots=True)
class Optimum:
    """What solves one of the two problems."""

    choice: Sequence[int]
    lower_bound: int
    """In picoseconds, for both."""
    solver: str
    timed_out: bool
    hubs: Mapping[int, int]


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
    allows: Callable[[int, ShardingSpec], bool] | None = None
    """Whether a value may lie so, anywhere; what is refused here is no choice."""
    most_gathered: int | None = None
    """The most bytes that one all_gather may leave on a device."""

    def __post_init__(self) -> None:
        graph = self.graph
        self.hardware = self.hardware.on(self.mesh)
        self.roles = graph_roles(graph)
        self.space = Space(graph, self.mesh, self.hardware, self.uneven)
        self.ways = [self._ways(n) for n in range(len(graph.nodes))]
        self.book = RouteBook(self.mesh, self.hardware, self.most_gathered)
        self.updates = {output: graph.inputs[i] for i, output in graph.updates}
        self._needs: dict[tuple[int, int], Specs] = {}
        self._leaves: dict[tuple[int, int], Specs] = {}
        self._alike: dict[Specs, Specs] = {}
        self._routes: dict[int, Routes] = {}
        self.readers: dict[int, list[tuple[int, int]]] = {value.id: [] for value in graph.values}
        """For every value the nodes that read it, and at which place."""
        for n, node in enumerate(graph.nodes):
            for place, value in enumerate(node.inputs):
                self.readers[value].append((n, place))
        self.inputs = {value: self._input_specs(value) for value in graph.inputs}
        self.place = {value: len(graph.nodes) + i for i, value in enumerate(graph.inputs)}
        """The variable of every input."""
        self._tables: dict[object, tuple[Ints, ...]] = {}
        self.demands = Demands(self)

    def _ways(self, n: int) -> tuple[Way, ...]:
        node, allows = self.graph.nodes[n], self.allows
        if not self.given and allows is None:
            return self.space.ways(n)
        pinned = self.given.get(node.results[0]) if node.results else None
        found = self.space.ways(n, pinned)
        if allows is not None:
            values = (*node.inputs, *node.results)
            found = tuple(w for w in found if all(map(allows, values, (*w.operands, *w.results))))
            if not found:
                raise PlanInfeasible(f"no way to carry out node {n} {node.op} is allowed")
        fixed = [(r, self.given[value].closed()) for r, value in enumerate(node.results) if value in self.given]
        kept = tuple(way for way in found if all(way.results[r].same_layout(spec) for r, spec in fixed))
        return found if not fixed or not kept else kept  # what no way leaves is made by a reshard right after

    def alike(self, specs: Specs) -> Specs:
        """The one object for all equal lists."""
        return self._alike.setdefault(specs, specs)

    def needs(self, n: int, place: int) -> Specs:
        """What each way of a node needs of an operand."""
        key = (id(self.ways[n]), place)
        if key not in self._needs:
            self._needs[key] = self.alike(tuple(way.operands[place].closed() for way in self.ways[n]))
        return self._needs[key]

    def leaves(self, value: int) -> Specs:
        """How a value lies once it is made, for each choice of the variable that decides it."""
        producer = self.graph.values[value].producer
        if producer is None:
            return self.inputs[value]
        n, r = producer
        home = self.given.get(value)
        if home is not None:
            return self.alike((home.closed(),) * len(self.ways[n]))
        key = (id(self.ways[n]), r)
        if key not in self._leaves:
            self._leaves[key] = self.alike(tuple(way.results[r].closed() for way in self.ways[n]))
        return self._leaves[key]

    def home(self, value: int) -> ShardingSpec | None:
        """Where a value goes at once, if some way leaves it elsewhere."""
        producer, home = self.graph.values[value].producer, self.given.get(value)
        if producer is None or home is None:
            return None
        n, r = producer
        return None if all(way.results[r].same_layout(home) for way in self.ways[n]) else home.closed()

    def decider(self, value: int) -> int:
        """The variable that decides how a value lies."""
        producer = self.graph.values[value].producer
        return self.place[value] if producer is None else producer[0]

    def _input_specs(self, value: int) -> Specs:
        if value in self.given:
            return self.alike((self.given[value].closed(),))
        rank = self.graph.type(value).rank
        found = {ShardingSpec.replicate(self.mesh, rank): None}
        for n, place in self.readers[value]:
            found.update(dict.fromkeys(self.needs(n, place)))
        lying = [spec for spec in found if not spec.partial and (self.allows is None or self.allows(value, spec))]
        if not lying:
            raise PlanInfeasible(f"no sharding of the input {self.graph.values[value].name!r} is allowed")
        return self.alike(tuple(lying))

    # -- the numeric problems -----------------------------------------------------------------------------

    def problem(self, bound: bool = False) -> tuple[NumericProblem, dict[int, int]]:
        """The problem of the plan, or of the ``bound``, and the variables of the hubs by value."""
        costs, edges, hubs = self.terms(bound)
        usages, limits = self._usages(hubs) if self.memory is not None and not bound else ([], [])
        return NumericProblem.build(costs, edges, usages, limits, self.graph.name), hubs

    def terms(self, bound: bool) -> tuple[list[Ints], list[tuple[int, int, Ints]], dict[int, int]]:
        """Costs and edges of the problem, equal tables being one array, and the variables of the hubs."""
        graph = self.graph
        unit = FINE if bound else 1
        times: dict[int, Ints] = {}
        costs: list[Ints] = []
        for ways in self.ways:
            if id(ways) not in times:
                times[id(ways)] = np.array([way.time for way in ways], np.int64) * unit
            costs.append(times[id(ways)])
        costs += [np.zeros(len(self.inputs[value]), np.int64) for value in graph.inputs]
        edges: list[tuple[int, int, Ints]] = []
        hubs: dict[int, int] = {}
        for v in range(len(graph.values)):
            demand = self.demands.of(v)
            if demand.home is not None:
                costs[demand.decider] = costs[demand.decider] + self._settle(v, demand.home, bound) * unit
            if not demand.groups and not demand.finish:
                continue
            first, rest = self.tables(v, demand, bound)
            if not demand.is_shared:
                at = demand.groups[0].variable if demand.groups else -1
                if at < 0:
                    costs[demand.decider] = costs[demand.decider] + first[:, 0]
                else:
                    edges.append((demand.decider, at, first))
                continue
            hubs[v] = len(costs)
            costs.append(np.zeros(first.shape[1], np.int64))
            edges.append((demand.decider, hubs[v], first))
            for group, table in zip(demand.groups, rest):
                if group.variable < 0:
                    costs[hubs[v]] = costs[hubs[v]] + table[:, 0]
                else:
                    edges.append((hubs[v], group.variable, table))
        return costs, edges, hubs

    def routes(self, value: int) -> Routes:
        found = self._routes.get(value)
        if found is None:
            domain = self.demands.of(value).domain
            found = self._routes[value] = self.book.routes(self.graph.type(value), self.roles[value], domain)
        return found

    def _settle(self, value: int, home: ShardingSpec, bound: bool) -> Ints:
        """From what the ways of a node leave to the sharding that was asked for."""
        producer = self.graph.values[value].producer
        assert producer is not None
        made = [way.results[producer[1]].closed() for way in self.ways[producer[0]]]
        specs = tuple(dict.fromkeys([*made, home]))
        routes = self.book.routes(self.graph.type(value), self.roles[value], specs)
        prices = routes.least if bound else routes.time
        return prices[[routes.at[spec] for spec in made], routes.at[home]]

    def settled(self, value: int, choice: Sequence[int]) -> int:
        """What it costs to bring a value to the sharding that was asked for."""
        demand = self.demands.of(value)
        return 0 if demand.home is None else int(self._settle(value, demand.home, False)[choice[demand.decider]])

    def tables(self, value: int, demand: Demand, bound: bool) -> tuple[Ints, tuple[Ints, ...]]:
        """From what is left to the only reader, or to the hub; then from the hub to each reader."""
        key = (self.graph.type(value), self.roles[value], demand.signature, bound, self.memory is None)
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self._make_tables(self.routes(value), demand, bound)
        return found[0], found[1:]

    def _make_tables(self, routes: Routes, demand: Demand, bound: bool) -> tuple[Ints, ...]:
        alone = routes.through if self.memory is None and demand.home is None else routes.time
        prices = routes.least * FINE if bound else routes.time if demand.is_shared else alone
        made = np.array([routes.at[spec] for spec in demand.made])
        ends = np.array([routes.at[finished(spec)] for spec in demand.made])
        if not demand.is_shared:
            if not demand.groups:
                return (prices[made, ends][:, None],)
            return (self._reach(routes, prices, demand.groups[0].specs, True)[made],)
        share = demand.places - 1 if bound else 1
        to_hub = prices[made]
        if demand.finish:  # an output that nobody asked for in a sharding keeps its own, but is never pending
            to_hub = to_hub + prices[:, ends].T // share * (demand.pending[:, None])
        return (to_hub, *(self._reach(routes, prices, group.specs, bound) // share for group in demand.groups))

    def _reach(self, routes: Routes, prices: Ints, wanted: Sequence[Specs], tree: bool) -> Ints:
        """From every sharding to what a variable's choices need, at all of its places; perhaps with a copy between."""
        lists = [np.array([routes.at[spec] for spec in specs]) for specs in wanted]
        if len(lists) == 1:
            return prices[:, lists[0]]
        if not tree:
            return np.asarray(sum(prices[:, one] for one in lists), np.int64)
        if len(lists) == 2:
            return routes.both(prices, *lists)
        # Rare: as if two of the places were all there is, which is never too much.
        pairs = [routes.both(prices, a, b) for i, a in enumerate(lists) for b in lists[:i]]
        return np.asarray(np.maximum.reduce(pairs), np.int64)

    def _usages(self, hubs: Mapping[int, int]) -> tuple[list[tuple[int, int, int, Ints]], list[int]]:
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
            made = self.leaves(v)
            start = 0 if tensor.producer is None else tensor.producer[0]
            end = moments if tensor.producer is None else last[v] + 1
            if v not in seen and end > start:
                held = [local_bytes(spec, tensor.type) for spec in made]
                found.append((self.decider(v), start, end, np.array(held, np.int64)))
            if v in hubs and self.readers[v]:
                first = self.readers[v][0][0]
                held = [0 if s in made else local_bytes(s, tensor.type) for s in self.demands.of(v).domain]
                found.append((hubs[v], first, last[v] + 1, np.array(held, np.int64)))
        assert self.memory is not None
        return found, [self.memory] * moments

    # -- solving ------------------------------------------------------------------------------------------

    def solve(self, solver: str = "auto", time_limit: float | None = None, progress: object = None) -> Assignment:
        """The best assignment that a numeric solver finds, priced as it will be lowered."""
        began = monotonic()
        report = progress if callable(progress) else None

        def tell(state: Progress) -> None:
            if report is not None:
                report(state)

        def left(part: float) -> float | None:
            return None if time_limit is None else max(0.1, part * (time_limit - (monotonic() - began)))

        bound = self.optimum(True, solver, left(0.5), tell)
        best, timed_out = bound, bound.timed_out
        found: tuple[Complete, ProgramCost] | None = None
        if self.memory is None:
            found = self._priced(bound.choice)
        if found is None or found[1].objective > bound.lower_bound:
            best = self.optimum(False, solver, left(1.0), tell)
            timed_out = timed_out or best.timed_out
            other = self._priced(best.choice, best.hubs if self.memory is not None else None)
            if found is None or other[1].objective < found[1].objective:
                found = other
            else:
                best = bound
        if self.memory is None and found[1].objective > bound.lower_bound and sum(map(len, self.ways)) <= POLISH:
            other = self._priced(polish(self, best.choice, left(1.0)))
            found = other if other[1].objective < found[1].objective else found
        complete, cost = found
        lower = min(bound.lower_bound, cost.objective)
        return Assignment(complete, cost, lower, best.solver, timed_out, monotonic() - began)

    def optimum(
        self,
        bound: bool,
        solver: str = "auto",
        time_limit: float | None = None,
        tell: Callable[[Progress], None] | None = None,
    ) -> Optimum:
        """The best choice for the plan's problem or the bound's."""
        if self.memory is not None and not bound:
            numeric, hubs = self.problem()
            found = solve(numeric, solver, time_limit, tell)
            return Optimum(found.choice, found.lower_bound, found.solver, found.timed_out, hubs)
        costs, edges, hubs = self.terms(bound)
        small = compact(costs, edges, self.graph.name)
        exact = eliminate(small.problem) if solver in ("auto", "elimination") else None
        unit = FINE if bound else 1
        if exact is not None:
            lower = small.problem.evaluate(exact).cost + small.offset
            return Optimum(small.back(exact), -(-lower // unit), "elimination", False, hubs)
        found = solve(small.problem, solver, time_limit, tell)
        lower = found.lower_bound + small.offset
        return Optimum(small.back(found.choice), -(-lower // unit), found.solver, found.timed_out, hubs)

    def _priced(self, choice: Sequence[int], hubs: Mapping[int, int] | None = None) -> tuple[Complete, ProgramCost]:
        complete = self.decode(choice, hubs)
        return complete, price(complete, self.hardware, self.roles)

    # -- the way back -------------------------------------------------------------------------------------

    def copies(self, value: int, choice: Sequence[int]) -> tuple[int, int | None]:
        """What copies of a value cost with the best hub, and that hub, as its place in the domain."""
        demand = self.demands.of(value)
        routes = self.routes(value)
        source = demand.made[choice[demand.decider]]
        wanted = [routes.at[spec] for spec in demand.wanted(choice, source)]
        if demand.home is not None:
            return routes.plain(routes.at[source], wanted), None
        return routes.best(routes.at[source], wanted)

    def decode(self, choice: Sequence[int], hubs: Mapping[int, int] | None = None) -> Complete:
        """Complete shardings from the chosen strategies; with the best hubs, unless ``hubs`` were chosen too."""
        graph = self.graph
        inputs = tuple(self.inputs[value][choice[self.place[value]]] for value in graph.inputs)
        home = dict(zip(graph.inputs, inputs))
        decisions = []
        for n, node in enumerate(graph.nodes):
            way = self.ways[n][choice[n]]
            homes = tuple(
                self.given[value].closed() if value in self.given else spec
                for value, spec in zip(node.results, way.results)
            )
            decisions.append(Decision(n, self.space.rules[n], way.axes, way.operands, way.results, homes))
            home.update(zip(node.results, homes))
        outputs = []
        for i, value in enumerate(graph.outputs):
            if i in self.updates:
                outputs.append(home[self.updates[i]])
            else:
                outputs.append(self.out_specs[i].closed() if i in self.out_specs else finished(home[value]))
        kept: dict[int, ShardingSpec] = {}
        for v in range(len(graph.values)):
            demand = self.demands.of(v)
            hub: int | None = None
            if hubs is not None:
                hub = choice[hubs[v]] if v in hubs else None
            elif demand.groups or demand.finish:
                hub = self.copies(v, choice)[1]
            if hub is not None and demand.domain[hub] != home[v]:
                kept[v] = demand.domain[hub]
        return Complete(graph, self.mesh, inputs, tuple(decisions), tuple(outputs), (), 0, kept)


__all__ = ["FORBIDDEN", "Assigner", "Assignment"]
