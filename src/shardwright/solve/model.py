"""From a graph to the numeric problem and back: the strategy of each node, the sharding of each input, copies.

Variables are nodes (their strategies), inputs (their shardings) and *shared copies*: a value that several variables
want has one, a copy of it in some sharding from which all others are made.  Prices of moves are those of `routes`.

Two problems are made of these variables.  In both the producer pays from what it leaves to the shared copy, and
readers from there to what they need.

- The **bound**: where a value is wanted in k places each pays a (k-1)-th.  No Program costs less.  Its copies of a
  value form a tree that grows from what the producer left.  Take as shared copy the first one in it that is
  wanted or from which two others are made.  To bring it there costs at least the producer's price.  Every move beyond
  serves k-1 places at most, so all places together pay at most k-1 times the moves beyond.
- The **plan**: readers pay all, and no Program with these choices has to cost more.

For one and two places both say what the cheapest tree costs.  What the bound's solution says about nodes and inputs is
mostly the best plan itself: with the cheapest trees (`Routes.tree`) it then costs what the bound says, and nothing is
left to do.  Else the plan is solved for too, and single changes that pay are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from ..cost.comm import shown_cost
from ..cost.machine import Hardware
from ..cost.overlap import graph_roles
from ..errors import BoundError, PlanInfeasible
from ..ir.graph import Graph
from ..optimize import Progress
from ..optimize.compact import compact, in_time
from ..optimize.core import solve_core
from ..optimize.problem import Ints, share_of
from ..plans.asked import Asked
from ..plans.complete import Complete, Decision
from ..spec.interop import is_placeable
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .assignment import Assignment, Optimum
from .polish import polish
from .readers import Demand, Extra, Group
from .routes import Price, RouteBook, Routes
from .strategies import Space, Way, orders_in
from .tighten import tighten

FINE = 60
"""The bound counts in such parts of a picosecond, or what is lost in dividing would keep gaps open."""
NEAR = 1e-8
"""A plan this near to the bound, as a part of what it costs, is as good as the best."""
POLISH = 4_000
"""The most strategies in a graph of which single changes are tried."""
Ways = tuple[Way, ...]
Terms = tuple[list[Ints], list[tuple[int, int, Ints]], dict[int, int]]
"""Costs and edges, equal tables being one array, and the variables of the shared copies by value."""


@dataclass
class Assigner:
    """The numeric problem of one graph on one mesh."""

    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    asked: Asked | None = None
    """What has to be kept; a limit of memory is not looked at here."""
    until: float = inf
    """When to give up, with `OutOfTime`."""

    def __post_init__(self) -> None:
        graph, asked = self.graph, self.asked or Asked(self.graph)
        self.given: Mapping[int, ShardingSpec] = asked.given
        self.out_specs: Mapping[int, ShardingSpec] = asked.out_specs
        self.uneven = asked.uneven
        self.allows, self.offer, self.stays = asked.allows, asked.offer, asked.stays
        self.hardware = self.hardware.on(self.mesh)
        self.roles = graph_roles(graph)
        orders = orders_in(self.mesh, (*self.given.values(), *self.out_specs.values()))
        named = {axis.name for spec in (*self.given.values(), *self.out_specs.values()) for axis in spec.used_axes}
        self.space = Space(graph, self.mesh, self.hardware, self.uneven, orders, self.given, frozenset(named))
        self.book = RouteBook(self.mesh, self.hardware, asked.most_gathered, until=self.until)
        self.updates = {output: graph.inputs[i] for i, output in graph.updates}
        self.kept = frozenset(self.updates.values())
        """State: it is held in shardings that PyTorch's placements say, so that checkpoints are of it as it is."""
        self.readers: dict[int, list[tuple[int, int]]] = {value.id: [] for value in graph.values}
        """For every value the nodes that read it, and at which place."""
        for n, node in enumerate(graph.nodes):
            for place, value in enumerate(node.inputs):
                self.readers[value].append((n, place))
        self.place = {value: len(graph.nodes) + i for i, value in enumerate(graph.inputs)}
        """The variable of every input."""
        self._once: dict[object, Any] = {}
        self._arrays: dict[bytes, Ints] = {}
        self._tables: dict[object, tuple[Ints, ...]] = {}
        self.ways = [self._ways(n) for n in range(len(graph.nodes))]
        self.inputs = {value: self._input_specs(value) for value in graph.inputs}
        self._tell_shardings()
        self.book.more_than(sum(max(way.time for way in ways) for ways in self.ways))
        self.outputs: dict[int, list[int]] = {}
        for i, value in enumerate(graph.outputs):
            self.outputs.setdefault(value, []).append(i)
        self.compute_weight: tuple[int, int] | None = None
        """A bound's problem counts this part of compute, and no exchanges inside of ops; None: both in full."""
        self.demands = [self._demand(v) for v in range(len(graph.values))]
        self.hub_of: dict[int, int] = {}
        """The variable of the shared copy of every value that has one; they come after nodes and inputs."""
        for v, demand in enumerate(self.demands):
            if demand.is_shared:
                self.hub_of[v] = len(graph.nodes) + len(graph.inputs) + len(self.hub_of)

    def repriced(
        self, hardware: Hardware, price: Price = shown_cost, compute_weight: tuple[int, int] | None = None
    ) -> Assigner:
        """The same choices with moves at other prices: strategies, shardings and single steps are kept."""
        found = copy(self)
        found.hardware, found.compute_weight = hardware.on(self.mesh), compute_weight
        found.book = self.book.repriced(found.hardware, price)
        # What is known by the identity of lists that are kept; the rest belongs to other routes.
        found._once = {k: v for k, v in self._once.items() if isinstance(k, tuple) and k[:1] == ("input",)}
        found._arrays, found._tables = {}, {}
        found.demands = [found._at_other_prices(v, demand) for v, demand in enumerate(self.demands)]
        return found

    def _at_other_prices(self, value: int, demand: Demand) -> Demand:
        """The same wishes: shardings have their places in routes at any prices."""
        in_time(self.until)
        routes = self.book.routes(self.graph.type(value), self.roles[value])
        settle = None if demand.settle is None else self._settling(value)
        about = demand.decider, demand.made, demand.open, demand.groups, demand.stays
        return Demand(routes, *about, settle)

    @cached_property
    def order(self) -> list[int]:
        """All variables as they come in the program: inputs before who first reads them, shared copies after who makes
        them.

        Messages then run along the program and back, and settle in a third of the sweeps.
        """
        graph, nodes = self.graph, len(self.graph.nodes)
        first = {value: readers[0][0] if readers else nodes for value, readers in self.readers.items()}
        at: list[tuple[int, int]] = [(n, 2) for n in range(nodes)]
        at += [(first[value], 0) for value in graph.inputs]
        for value in self.hub_of:
            producer = graph.values[value].producer
            at.append((first[value], 1) if producer is None else (producer[0], 3))
        return sorted(range(len(at)), key=at.__getitem__)

    # -- choices ------------------------------------------------------------------------------------------

    def _ways(self, n: int) -> Ways:
        in_time(self.until)
        node, allows = self.graph.nodes[n], self.allows
        if not self.given and allows is None:
            return self.space.ways(n)
        pinned = self.given.get(node.results[0]) if node.results else None
        found = self.space.ways(n, pinned)
        if allows is not None:
            values = (*node.inputs, *node.results)
            found = tuple(w for w in found if all(map(allows, values, (*w.operands, *w.results))))
            if not found:
                raise PlanInfeasible(f"no strategy of node {n} {node.op} is allowed")
        fixed = [(r, self.given[value].closed()) for r, value in enumerate(node.results) if value in self.given]
        fitting = tuple(way for way in found if all(way.results[r].same_layout(spec) for r, spec in fixed))
        # What no strategy leaves is made by a reshard right after.
        return self._same(found if not fixed or not fitting else fitting)

    def _same(self, ways: Ways) -> Ways:
        """The one object for all equal lists; lists that are kept by the space are that already."""
        same: Ways = self._once.setdefault(tuple(map(id, ways)), ways)
        return same

    def _input_specs(self, value: int) -> tuple[ShardingSpec, ...]:
        if value in self.given:
            return (self.given[value].closed(),)
        lists = {(id(self.ways[n]), place): self.ways[n] for n, place in self.readers[value]}
        if not lists:
            lists = self._renewing(value)
        kept = value in self.kept
        key = ("input", self.graph.type(value).rank, kept, *lists)
        free = self.allows is None and self.offer is None
        known: tuple[ShardingSpec, ...] | None = self._once.get(key) if free else None
        if known is not None:
            return known
        found = {self.space.same(ShardingSpec.replicate(self.mesh, self.graph.type(value).rank)): None}
        for (_, place), ways in lists.items():
            found.update(dict.fromkeys((*way.operands, *way.results)[place] for way in ways))
        allowed = [spec for spec in found if not spec.partial and (self.allows is None or self.allows(value, spec))]
        allowed = [spec for spec in allowed if is_placeable(spec)] if kept else allowed
        if not allowed:
            raise PlanInfeasible(f"no sharding of the input {self.graph.values[value].name!r} is allowed")
        made = tuple(allowed) if self.offer is None else self.offer(value, tuple(allowed))
        if free:
            self._once[key] = made
        return made

    def _renewing(self, value: int) -> dict[tuple[int, int], Ways]:
        """Of state that nobody reads who makes it anew, and at which place among operands and results."""
        new = (self.graph.outputs[output] for output, state in self.updates.items() if state == value)
        makers = (producer for v in new if (producer := self.graph.values[v].producer) is not None)
        return {(id(self.ways[n]), len(self.graph.nodes[n].inputs) + r): self.ways[n] for n, r in makers}

    def _tell_shardings(self) -> None:
        """Tell the book of routes all shardings of all types."""
        graph, allow = self.graph, self.book.allow
        said: set[tuple[object, ...]] = set()
        for n, node in enumerate(graph.nodes):
            ways, types = self.ways[n], graph.types((*node.inputs, *node.results))
            for t, type in enumerate(types):
                if (id(ways), t, type) not in said:
                    said.add((id(ways), t, type))
                    count = len(node.inputs)
                    allow(type, [way.operands[t] if t < count else way.results[t - count] for way in ways])
        for value, specs in self.inputs.items():
            if (id(specs), graph.type(value)) not in said:
                said.add((id(specs), graph.type(value)))
                allow(graph.type(value), specs)
        for value, spec in self.given.items():
            allow(graph.type(value), [spec.closed()])
        for i, spec in self.out_specs.items():
            allow(graph.type(graph.outputs[i]), [spec.closed()])

    # -- demands ------------------------------------------------------------------------------------------

    def _index(self, routes: Routes, ways: Ways, t: int, count: int) -> Ints:
        """The sharding of a tensor under each strategy, as one array for all that are equal."""
        key = ("index", id(routes), id(ways), t)
        found: Ints | None = self._once.get(key)
        if found is None:
            specs = [way.operands[t] if t < count else way.results[t - count] for way in ways]
            found = self._once[key] = self._array(routes.index(specs))
        return found

    def _array(self, array: Ints) -> Ints:
        return self._arrays.setdefault(array.tobytes(), array)

    def _demand(self, value: int) -> Demand:
        in_time(self.until)
        graph, tensor = self.graph, self.graph.values[value]
        routes = self.book.routes(tensor.type, self.roles[value])
        settle: Ints | None = None
        if tensor.producer is None:
            decider, made = self.place[value], self._input_index(routes, value)
        else:
            decider, result = tensor.producer
            ways, count = self.ways[decider], len(graph.nodes[decider].inputs)
            made = self._index(routes, ways, count + result, count)
            home = self.given.get(value)
            if home is not None:
                settle = self._settling(value)
                made = self._array(np.full(len(ways), routes.at[home.closed()]))
        wanted: dict[int, dict[int, Ints]] = {}
        for n, place in self.readers[value]:
            index = self._index(routes, self.ways[n], place, len(graph.nodes[n].inputs))
            wanted.setdefault(n, {})[id(index)] = index
        asked = True
        for free, i in enumerate(self.outputs.get(value, ())):
            if i in self.updates:
                index = self._input_index(routes, self.updates[i])
                wanted.setdefault(self.place[self.updates[i]], {})[id(index)] = index
            elif i in self.out_specs:
                index = self._array(routes.index([self.out_specs[i].closed()]))
                wanted.setdefault(-1 - free, {})[id(index)] = index
            else:
                asked = False
        still = not asked and bool(routes.pending[made].any())
        groups = tuple(Group(at, tuple(places.values())) for at, places in wanted.items())
        return Demand(routes, decider, made, still, groups, self.stays, settle)

    def _settling(self, value: int) -> Ints:
        """What it takes to bring what each strategy leaves to where the user wants it."""
        tensor, home = self.graph.values[value], self.given[value]
        assert tensor.producer is not None
        n, result = tensor.producer
        moves = [self.book.search(tensor.type, self.roles[value], way.results[result], home) for way in self.ways[n]]
        return np.array(moves, np.int64)

    def _input_index(self, routes: Routes, value: int) -> Ints:
        key = ("made", id(routes), id(self.inputs[value]))
        found: Ints | None = self._once.get(key)
        if found is None:
            found = self._once[key] = self._array(routes.index(self.inputs[value]))
        return found

    def leaves(self, value: int) -> tuple[ShardingSpec, ...]:
        """The sharding in which a value is made, for each choice of what decides it."""
        demand = self.demands[value]
        return tuple(demand.routes.specs[at] for at in demand.made.tolist())

    # -- the numeric problems -----------------------------------------------------------------------------

    def terms(self, bound: bool, extra: Extra | None = None) -> Terms:
        """The problem of the plan, or of the ``bound``; with ``extra`` costs of values where they are made and of
        shared copies."""
        fine = FINE if bound else 1
        costs: list[Ints] = []
        for ways in self.ways:
            key = ("times", id(ways), fine)
            if key not in self._once:
                self._once[key] = self._times(ways, fine)
            costs.append(self._once[key])
        costs += [np.zeros(len(self.inputs[value]), np.int64) for value in self.graph.inputs]
        edges: list[tuple[int, int, Ints]] = []
        hubs: dict[int, int] = {}
        for v, demand in enumerate(self.demands):
            in_time(self.until)
            if demand.settle is not None:
                costs[demand.decider] = costs[demand.decider] + demand.settle * fine
            allowed, kept = (None, None) if extra is None else extra.value(v)
            if allowed is not None:
                costs[demand.decider] = self._sum(costs[demand.decider], allowed)
            if not demand.count:
                continue
            alike = (demand.signature, bound)
            tables = self._tables.get(alike)
            if tables is None:
                tables = self._tables[alike] = demand.tables(fine, not bound)
            if not demand.is_shared:
                at = demand.groups[0].variable if demand.groups else -1
                if at < 0:
                    costs[demand.decider] = costs[demand.decider] + tables[0][:, 0]
                else:
                    edges.append((demand.decider, at, self._more(tables[0], v, demand.groups[0], extra)))
                continue
            hubs[v] = len(costs)
            costs.append(np.zeros(tables[0].shape[1], np.int64) if kept is None else kept)
            tied = None if extra is None else extra.hub(v)
            edges.append((demand.decider, hubs[v], tables[0] if tied is None else self._sum(tables[0], tied)))
            for group, table in zip(demand.groups, tables[1:]):
                if group.variable < 0:
                    costs[hubs[v]] = costs[hubs[v]] + table[:, 0]
                else:
                    edges.append((hubs[v], group.variable, self._more(table, v, group, extra)))
        if extra is not None:
            edges += extra.links()
        return costs, edges, hubs

    def _times(self, ways: Ways, fine: int) -> Ints:
        if self.compute_weight is None:
            return np.array([way.time for way in ways], np.int64) * fine
        return share_of(np.array([way.compute for way in ways], np.int64) * fine, *self.compute_weight)

    def _more(self, table: Ints, value: int, group: Group, extra: Extra | None) -> Ints:
        more = None if extra is None else extra.edge(value, group)
        return table if more is None else self._sum(table, more)

    def _sum(self, a: Ints, b: Ints) -> Ints:
        """The same array for the same two."""
        key = ("sum", id(a), id(b))
        found: tuple[Ints, Ints, Ints] | None = self._once.get(key)
        if found is None:
            found = self._once[key] = (a + b, a, b)  # kept, so that their identities last
        return found[0]

    # -- solving ------------------------------------------------------------------------------------------

    def roughly(self, time_limit: float | None = None) -> Assignment:
        """An assignment that message passing finds, without a bound: near the best one, and never long in coming.

        Of the plan's problem: where values are wanted in many places, as in a decoder, the bound's has choices that
        cost 5 to 8% more.
        """
        began = monotonic()
        found = self.optimum(False, "auto", time_limit, rough=True)
        return self._assigned(found.choice, self.objective(found.choice), found, 0, began)

    def _assigned(
        self, choice: Sequence[int], objective: int, found: Optimum, bound: int, began: float, late: bool = False
    ) -> Assignment:
        self.book.check_gathers(objective)
        how = BoundError.unless(bound, objective), found.solver, late or found.timed_out
        tight = tighten(self, choice)
        return Assignment(lambda: self.decode(tight), objective, *how, monotonic() - began, self.hardware)

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
        choice, objective = bound.choice, self.objective(bound.choice)
        if objective - bound.lower_bound > NEAR * objective:
            other = self.optimum(False, solver, left(1.0), tell)
            timed_out = timed_out or other.timed_out
            if self.objective(other.choice) < objective:
                best, choice, objective = other, other.choice, self.objective(other.choice)
        if objective - bound.lower_bound > NEAR * objective and sum(map(len, self.ways)) <= POLISH:
            choice = polish(self, choice, left(1.0))
            objective = self.objective(choice)
        return self._assigned(choice, objective, best, bound.lower_bound, began, timed_out)

    def optimum(
        self,
        bound: bool,
        solver: str = "auto",
        time_limit: float | None = None,
        tell: Callable[[Progress], None] | None = None,
        extra: Extra | None = None,
        rough: bool = False,
        narrowed: bool = True,
    ) -> Optimum:
        """The best choice for the plan's problem or the bound's; where that takes long, a ``rough`` one."""
        costs, edges, _ = self.terms(bound, extra)
        small = compact(costs, edges, self.graph.name, order=self.order, until=self.until)
        found = solve_core(small.problem, solver, time_limit, tell, rough, narrowed)
        lower, unit = found.lower_bound + small.offset, FINE if bound else 1
        return Optimum(small.back(found.choice), -(-lower // unit), found.solver, found.timed_out)

    # -- the way back -------------------------------------------------------------------------------------

    def objective(self, choice: Sequence[int]) -> int:
        """What a choice costs, with the cheapest copies."""
        total = sum(ways[pick].time for ways, pick in zip(self.ways, choice))
        return total + sum(self.spent(v, choice) for v in range(len(self.demands)))

    def spent(self, value: int, choice: Sequence[int]) -> int:
        """What copies of a value cost."""
        demand = self.demands[value]
        first = 0 if demand.settle is None else int(demand.settle[choice[demand.decider]])
        if not demand.count:
            return first
        return first + demand.grow(int(demand.made[choice[demand.decider]]), demand.wanted(choice))[0]

    def decode(self, choice: Sequence[int]) -> Complete:
        """Complete shardings from the chosen strategies, with the cheapest copies."""
        graph = self.graph
        inputs = tuple(self.inputs[value][choice[self.place[value]]] for value in graph.inputs)
        home = dict(zip(graph.inputs, inputs))
        decisions = []
        for n, node in enumerate(graph.nodes):
            way = self.ways[n][choice[n]]
            homes = way.results
            if self.given:
                homes = tuple(
                    self.given[value].closed() if value in self.given else spec
                    for value, spec in zip(node.results, way.results)
                )
            decisions.append(Decision(n, self.space.rules[n], way.axes, way.operands, way.results, homes))
            home.update(zip(node.results, homes))
        sources: dict[int, dict[ShardingSpec, ShardingSpec]] = {}
        ends: dict[int, ShardingSpec] = {}
        for v, demand in enumerate(self.demands):
            if demand.count:
                specs, made = demand.routes.specs, int(demand.made[choice[demand.decider]])
                _, tree, end = demand.grow(made, demand.wanted(choice))
                ends[v] = specs[end]
                if tree:
                    sources[v] = {specs[end]: specs[start] for end, start in tree.items()}
        outputs = []
        for i, value in enumerate(graph.outputs):
            if i in self.updates:
                outputs.append(home[self.updates[i]])
            elif i in self.out_specs:
                outputs.append(self.out_specs[i].closed())
            else:
                outputs.append(ends.get(value, home[value]) if home[value].partial else home[value])
        return Complete(graph, self.mesh, inputs, tuple(decisions), tuple(outputs), self.space.joined, 0, sources)


__all__ = ["Assigner"]
