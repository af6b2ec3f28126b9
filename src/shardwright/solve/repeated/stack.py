"""Deep stacks of equal layers: everything is worked out for a short stack, and put together for the deep one.

The numeric problem of the short stack is compacted so that every layer is treated for itself: the variables that link
it to its neighbours are kept, and so are those of no layer that it reads.  If the two inner layers come out equal,
tables and all, then the deep stack's problem is the same one with more of them in between.  `chain` solves that by
elimination, or where tables are too large `deep` does by message passing.  Nothing is lost, and nothing is assumed:
where layers do not come out equal, the whole graph is solved as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...errors import BoundError
from ...optimize.compact import Compact, compact
from ...optimize.fold import Mask
from ...optimize.problem import Ints
from ...propagation.complete import Complete, Decision
from ...spec.axes import Axes
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from ..assignment import Assignment, Optimum
from ..model import FINE, NEAR, Assigner, Terms
from ..readers import Demand, Extra, Group
from ..routes import Tree
from ..strategies import Way
from ..tighten import tighten
from .chain import solve_chain
from .deep import Deep, Inner, Said
from .layers import Short

Key = tuple[Any, ...]
Specs = tuple[ShardingSpec, ...]
Made = tuple[OpShardingRule | None, tuple[Axes, ...], Specs, Specs, Specs]
T = TypeVar("T")


@dataclass
class Stack:
    """A deep graph, with the problem of its short one."""

    short: Short
    assigner: Assigner
    """Of the short graph."""
    layer: list[int] = field(default_factory=list)
    key: list[Key] = field(default_factory=list)
    """Equal for variables in the same place of different layers."""
    best: Sequence[Sequence[int]] | None = None
    """The choices that `solve` found; not the plan, which knows this, and such rings are left to the collector."""
    said: tuple[Said, Said] = field(default_factory=lambda: ({}, {}))
    """The messages of the plan's problem and of the bound's, as they were last, at whatever prices."""
    _tables: dict[tuple[int, ...], Ints] = field(default_factory=dict)
    _at: dict[tuple[int, Key], int] | None = None

    def __post_init__(self) -> None:
        self.was = {here: there for there, here in self.short.values.items()}
        """Of the short graph's values the deep one's."""

    def repriced(self, assigner: Assigner) -> Stack:
        """The same layers with other prices (`Assigner.repriced`)."""
        return replace(self, assigner=assigner, layer=[], key=[], best=None, _tables={}, _at=None)

    @property
    def size(self) -> int:
        """Ways of all nodes of the deep graph."""
        return sum(len(self.assigner.ways[like]) for like in self.short.nodes_like)

    def _lower(self, layer: int) -> int:
        return layer if layer < self.short.low else layer - self.short.out

    def label(self, hubs: dict[int, int]) -> None:
        """Say of all variables where they are."""
        short, layers, graph = self.short, self.short.layers, self.short.graph
        places, value_places = layers.node_place[list(short.kept)].tolist(), layers.value_places.tolist()
        self.layer = [self._lower(layers.layer[n]) for n in short.kept]
        self.key = [("node", place) if place >= 0 else ("alone", n) for n, place in zip(short.kept, places)]
        for kind, values in (("input", graph.inputs), ("hub", tuple(hubs))):
            for value in values:
                self.layer.append(self._lower(layers.value_layer(self.was[value])))
                self.key.append((kind, value_places[self.was[value]]))
        self._at = None

    @property
    def at(self) -> dict[tuple[int, Key], int]:
        """Variables by layer and key."""
        if self._at is None:
            self._at = {pair: i for i, pair in enumerate(zip(self.layer, self.key)) if pair[0] >= 0}
        return self._at

    @cached_property
    def far(self) -> Mask:
        """Of places of values: whether some value there is wanted in a layer that is not its own."""
        layers, layer = self.short.layers, self.layer
        found = np.zeros(layers.places[1], np.bool_)
        for value, demand in enumerate(self.assigner.demands):
            own = layer[demand.decider]
            for group in demand.groups if own >= 0 else ():
                if group.variable >= 0 and layer[group.variable] not in (own, -1):
                    found[layers.value_places[self.was[value]]] = True
                    break
        return found

    def spread(self, terms: Terms, order: Sequence[int]) -> tuple[Terms, Sequence[int]]:
        """The bound's problem, with shared copies of their own for all layers that read a value of no layer.

        A shared copy for all readers lets each bear the less the more there are, and the short stack has too few.
        But copies for all of them cost no less than those for one layer, so no less than that on average.  Whatever the
        weights are: here first, inner, last layers and those of no layer count alike, as ends differ most.  ``order``
        is that of variables.
        """
        costs, edges, hubs = terms
        costs, parts = list(costs), self._parts(hubs)
        old = {hubs[value]: value for value in parts}
        kept = [edge for edge in edges if edge[0] not in old and edge[1] not in old]
        before: dict[int, list[int]] = {}
        """Of variables the new ones that come right before."""
        for hub, value in old.items():
            demand, weights = self.assigner.demands[value], self._weights(parts[value])
            prices = demand.routes.least * FINE
            size = len(prices)
            kept.append((demand.decider, hub, prices[demand.made]))
            costs[hub] = np.zeros(size, np.int64)
            for layer, groups in parts[value].items():
                at, share = hub, weights[layer]
                if len(groups) > 1:
                    at = len(costs)
                    costs.append(np.zeros(size, np.int64))
                    kept.append((hub, at, self._shared(demand, None, share)))
                    first = next((group.variable for group in groups if group.variable >= 0), hub)
                    before.setdefault(first, []).append(at)
                    self.layer.append(layer)
                    self.key.append(("part", value))
                    share *= sum(len(group.places) for group in groups) - 1
                for group in groups:
                    table = self._shared(demand, group, share)
                    if group.variable < 0:
                        costs[at] = costs[at] + table[:, 0]
                    else:
                        kept.append((at, group.variable, table))
        self._at = None
        return (costs, kept, hubs), [one for at in order for one in (*before.get(at, ()), at)]

    def _parts(self, hubs: Iterable[int]) -> dict[int, dict[int, list[Group]]]:
        """Of values of no layer that an inner layer reads: their readers by layer."""
        found = {}
        for value in hubs:
            if self.layer_of(value) < 0:
                by: dict[int, list[Group]] = {}
                for group in self.assigner.demands[value].groups:
                    by.setdefault(self.layer[group.variable] if group.variable >= 0 else -1, []).append(group)
                if self.short.low - 1 in by:
                    found[value] = by
        return found

    def _weights(self, by: Collection[int]) -> dict[int, int]:
        """Of layers with readers: of how many parts each is one."""
        ends = {-1, 0, self.short.layers.count - self.short.out - 1}
        kinds = len(ends & set(by)) + 1
        inner = len(set(by) - ends) + self.short.out
        return {layer: kinds if layer in ends else kinds * inner for layer in by}

    def _shared(self, demand: Demand, group: Group | None, share: int) -> Ints:
        """A part of what a reader, or another shared copy, pays from a shared copy; equal ones are one array."""
        key = (id(demand.routes), *map(id, group.places if group is not None else ()), share)
        found = self._tables.get(key)
        if found is None:
            prices = demand.routes.least * FINE
            found = self._tables[key] = (prices if group is None else demand.reach(group, prices)) // share
        return found

    def layer_of(self, value: int) -> int:
        """The layer of a value of the short graph."""
        return self.short.layers.value_layer(self.was[value])

    def compacted(self, terms: Terms, bound: bool = False) -> Compact:
        self.label(terms[2])
        order: Sequence[int] = self.assigner.order
        if bound:
            terms, order = self.spread(terms, order)
        costs, edges, hubs = terms
        layer, hub = self.layer, set(hubs.values())
        inner = (self.short.low - 1, self.short.low)
        kept: set[int] = set()
        ends = np.array([[edge[0] for edge in edges], [edge[1] for edge in edges]], np.int64)
        mine, theirs = np.array(layer)[ends]
        for i, j in ends[:, mine != theirs].T.tolist():
            if layer[i] >= 0 and layer[j] >= 0:
                kept.add(i if i in hub else j if j in hub else i)
            elif layer[i] in inner or layer[j] in inner:
                kept.add(i if layer[i] < 0 else j)
        return compact(costs, edges, self.assigner.graph.name, kept, layer, order, self.assigner.until)

    def optimum(
        self,
        bound: bool,
        seconds: float | None = None,
        extra: Extra | None = None,
        narrowed: bool = True,
        rough: bool = False,
    ) -> tuple[Optimum, DeepPlan] | None:
        """The best choice for the plan's problem or the bound's; None if the layers do not come out equal."""
        small = self.compacted(self.assigner.terms(bound, extra), bound)
        inner = Inner.of(small, self.layer, self.key, self.short.low)
        if not inner.is_regular():
            return None
        found = solve_chain(inner, self.short.out)
        if found is None:
            found = Deep(inner, self.short.out).solve(seconds, narrowed, rough, self.said[bound])
        unit = FINE if bound else 1
        plan = DeepPlan(self, found.choices())
        return Optimum((), -(-found.lower_bound // unit), found.solver, found.late), plan

    def solve(self, time_limit: float | None = None, rough: bool = False) -> Assignment | None:
        """As `Assigner.solve` does it; None if the layers do not come out equal.

        A ``rough`` plan is that of the plan's problem, and nothing is said of others.
        """
        began = monotonic()
        if rough:
            only = self.optimum(False, time_limit)
            return None if only is None else self._assigned(only[1], 0, only[0].solver, only[0].timed_out, began)
        first = self.optimum(True, time_limit)
        if first is None:
            return None
        bound, best = first
        timed_out, solver = bound.timed_out, bound.solver
        if best.objective - bound.lower_bound > NEAR * best.objective:
            left = None if time_limit is None else max(0.1, time_limit - (monotonic() - began))
            second = self.optimum(False, left)
            if second is not None:
                timed_out = timed_out or second[0].timed_out
                if second[1].objective < best.objective:
                    best, solver = second[1], second[0].solver
        return self._assigned(best, bound.lower_bound, solver, timed_out, began)

    def _assigned(self, best: DeepPlan, bound: int, solver: str, timed_out: bool, began: float) -> Assignment:
        self.assigner.book.check_gathers(best.objective)
        self.best = best.choices
        objective, tight = best.objective, best.tight()
        lower = BoundError.unless(bound, objective)
        return tight.assigned(objective, lower, solver, timed_out, monotonic() - began)


class Seen(NamedTuple):
    """What there is to say of a value of the deep graph."""

    value: int
    small: int
    """The short graph's that stands for it."""
    cost: int
    """Of all copies."""
    tree: Tree
    end: int
    """Where it is delivered; -1 if nobody wants it."""


@dataclass
class DeepPlan:
    """A choice for every layer, and last for what is of no layer, in the short graph's variables."""

    stack: Stack
    choices: Sequence[Sequence[int]]
    _objective: int | None = None

    def tight(self) -> DeepPlan:
        """With inputs held in less memory at the same price."""
        stack, inputs = self.stack, self.stack.assigner.place.values()
        choices = {id(choice): choice for choice in self.choices}
        known = {at: tighten(stack.assigner, choice) for at, choice in choices.items()}
        changed = {stack.key[i] for at, choice in choices.items() for i in inputs if known[at][i] != choice[i]}
        if not changed:
            return self
        found = DeepPlan(stack, [known[id(choice)] for choice in self.choices])
        # The same layers are alike.  Only inputs have changed, so most of what is said stays.
        found.ways = self.ways
        values, which = self.seen
        moved = {i for i, key in enumerate(stack.key) if key in changed}
        touched = [demand.decider in moved or not moved.isdisjoint(demand.readers) for demand in stack.assigner.demands]
        found.seen = [found._seen(one.value) if touched[one.small] else one for one in values], which
        return found

    def __post_init__(self) -> None:
        short = self.stack.short
        self.layers, self.graph = short.layers, short.layers.graph
        self.here = short.low - 1
        """The layer of the short stack that stands for those left out, too."""

    def short_layer(self, layer: int) -> int:
        """The layer of the short stack that stands for one of the deep stack."""
        short = self.stack.short
        return self.here if self.here <= layer < short.low + short.out else self.stack._lower(layer)

    def counterpart(self, value: int) -> int:
        """The short graph's value that stands for one of the deep graph."""
        return self.stack.short.values_like[value]

    def variable(self, node: int) -> int:
        """The short graph's node that stands for one of the deep graph."""
        return self.stack.short.nodes_like[node]

    # -- what is said once for layers that are alike ------------------------------------------------------

    def alike(self, reach: int) -> list[list[int]]:
        """Layers that the same one stands for, and that choose alike; and so do those up to ``reach`` layers away."""
        found: dict[tuple[int, ...], list[int]] = {}
        for layer in range(self.layers.count):
            near = range(layer - reach, layer + reach + 1)
            # Equal choices are one object; the one after the last is of what is of no layer, which is the same for all.
            key = (*map(self.short_layer, near), *(id(self.choices[one]) for one in near))
            found.setdefault(key, []).append(layer)
        return list(found.values())

    def _once(self, rows: Sequence[tuple[Ints, int]], size: int, say: Callable[[int], T]) -> tuple[list[T], Ints]:
        """What is to be said of things, and what of it holds for each: once for layers that are alike.

        ``rows`` are things by layer and place (-1: none), with how far one has to see there.
        """
        found: list[T] = []
        which = np.full(size, -1)
        for at, reach in rows:
            for layers in self.alike(reach):
                row = at[layers[0]]
                there = np.flatnonzero(row >= 0)
                which[at[layers][:, there]] = np.arange(len(found), len(found) + there.size)
                found += map(say, row[there].tolist())
        for one in np.flatnonzero(which < 0).tolist():
            which[one] = len(found)
            found.append(say(one))
        return found, which

    @cached_property
    def ways(self) -> tuple[list[tuple[int, Way]], Ints]:
        """The short graph's nodes and how they are carried out, and which of these each node of the deep graph is."""

        def say(node: int) -> tuple[int, Way]:
            variable = self.variable(node)
            return variable, about.ways[variable][self.choices[self.layers.layer[node]][variable]]

        about = self.stack.assigner
        return self._once([(self.layers.nodes_at, 0)], len(self.graph.nodes), say)

    @cached_property
    def seen(self) -> tuple[list[Seen], Ints]:
        """What there is to say of values, and what of it holds for each value of the deep graph."""
        at, far = self.layers.values_at, self.stack.far
        rows = [(np.where(far, -1, at), 0), (np.where(far, at, -1), 1)]
        return self._once(rows, len(self.graph.values), self._seen)

    def _seen(self, value: int) -> Seen:
        stack, layer = self.stack, self.layers._value_layer[value]
        small = stack.short.values_like[value]
        demand = stack.assigner.demands[small]
        own = self.short_layer(layer) if layer >= 0 else -1
        choice, layer_of = self.choices[layer], stack.layer
        source = choice[demand.decider]
        if len(demand.groups) == 1 and not demand.open and demand.settle is None:
            # Most values: one reader, in the same layer, that wants what there is.
            at, places = demand.groups[0].variable, demand.groups[0].places
            if at >= 0 and layer_of[at] == own and len(places) == 1:
                made = int(demand.made[source])
                if places[0][choice[at]] == made:
                    return Seen(value, small, 0, {}, made)
        wanted: list[int] = []
        for group in demand.groups:
            at = group.variable
            picks: Sequence[int]
            if at < 0:
                picks = (0,)
            elif (theirs := layer_of[at]) == own:
                picks = (choice[at],)
            elif theirs < 0:
                picks = (self.choices[-1][at],)
            elif own < 0:
                picks = [other[at] for other in self.deep(theirs)]
            else:
                away = layer + (theirs - own)
                picks = (self.choices[away][stack.at.get((self.short_layer(away), stack.key[at]), at)],)
            for place in group.places:
                wanted += [int(place[pick]) for pick in picks]
        settled = 0 if demand.settle is None else int(demand.settle[source])
        if not demand.groups and not demand.open:
            return Seen(value, small, settled, {}, -1)
        cost, tree, end = demand.grow(int(demand.made[source]), wanted)
        return Seen(value, small, settled + cost, tree, end)

    def deep(self, layer: int) -> Sequence[Sequence[int]]:
        """What is chosen, each once, in the layers of the deep stack for which one of the short stack stands."""
        short = self.stack.short
        if layer == self.here:
            return self._repeated
        return [self.choices[layer if layer < short.low else layer + short.out]]

    @cached_property
    def _repeated(self) -> Sequence[Sequence[int]]:
        choices = self.choices[self.here : self.stack.short.low + self.stack.short.out]
        return list({id(choice): choice for choice in choices}.values())

    # -- what comes of it ---------------------------------------------------------------------------------

    @property
    def objective(self) -> int:
        """Picoseconds that show."""
        if self._objective is None:
            self._objective = self._count()
        return self._objective

    def _count(self) -> int:
        ways, which = self.ways
        total = sum(way.time * times for (_, way), times in zip(ways, _times(which)))
        values, which = self.seen
        return total + sum(one.cost * times for one, times in zip(values, _times(which)))

    def assigned(self, objective: int, bound: int, solver: str, timed_out: bool, seconds: float) -> Assignment:
        hardware = self.stack.assigner.hardware
        known = self.shortened(), self.decided()
        return Assignment(self.decode, objective, bound, solver, timed_out, seconds, hardware, *known)

    def decided(self) -> tuple[bytes, ...]:
        """What is chosen for inputs and nodes, layer by layer: of what counts there."""
        stack = self.stack
        layers = np.array(stack.layer[: len(stack.assigner.ways) + len(stack.assigner.inputs)])
        mine = {layer: np.flatnonzero(layers == layer) for layer in set(layers.tolist())}
        here = [*map(self.short_layer, range(self.layers.count)), -1]
        known = {id(choice): np.array(choice) for choice in self.choices}
        return tuple(known[id(choice)][mine[at]].tobytes() for at, choice in zip(here, self.choices) if at in mine)

    def shortened(self) -> tuple[Short, Complete]:
        """The short graph and its shardings: each of its layers as those that it stands for, or the first."""
        short, about = self.stack.short, self.stack.assigner
        choice = []
        for at in range(len(about.ways) + len(about.inputs)):
            layer = self.stack.layer[at]
            deep = layer if layer < short.low else layer + short.out
            choice.append(self.choices[deep if layer >= 0 else -1][at])
        return short, about.decode(choice)

    def decode(self) -> Complete:
        """Complete shardings of the deep graph."""
        about, graph, layers = self.stack.assigner, self.graph, self.layers
        inputs: dict[int, ShardingSpec] = {}
        for value in graph.inputs:
            small = self.counterpart(value)
            inputs[value] = about.inputs[small][self.choices[layers.value_layer(value)][about.place[small]]]
        ways, which = self.ways
        made = [self._made(variable, way) for variable, way in ways]
        decisions = tuple([Decision._make((n, *made[at])) for n, at in enumerate(which.tolist())])
        copies = [self._copies(one) for one in self.seen[0]]
        copied = self.seen[1]
        some = np.flatnonzero(np.array([bool(tree) for tree, _ in copies])[copied])
        sources = {v: copies[at][0] for v, at in zip(some.tolist(), copied[some].tolist())}

        def home(value: int) -> ShardingSpec:
            producer = graph.values[value].producer
            return inputs[value] if producer is None else decisions[producer[0]].homes[producer[1]]

        states = {output: graph.inputs[i] for i, output in graph.updates}
        outputs = []
        for i, value in enumerate(graph.outputs):
            asked = about.out_specs.get(self.stack.short.outputs.get(i, -1))
            if i in states:
                outputs.append(home(states[i]))
            elif asked is not None:
                outputs.append(asked.closed())
            else:
                lies, end = home(value), copies[copied[value]][1]
                outputs.append(end if lies.partial and end is not None else lies)
        notes = about.space.joined
        return Complete(graph, about.mesh, tuple(inputs.values()), decisions, tuple(outputs), notes, 0, sources)

    def _made(self, variable: int, way: Way) -> Made:
        """A decision but for its node's number."""
        about = self.stack.assigner
        homes = way.results
        if about.given:
            homes = tuple(
                about.given[value].closed() if value in about.given else spec
                for value, spec in zip(about.graph.nodes[variable].results, way.results)
            )
        return about.space.rules[variable], way.axes, way.operands, way.results, homes

    def _copies(self, seen: Seen) -> tuple[dict[ShardingSpec, ShardingSpec], ShardingSpec | None]:
        """What copies of a value are made from, and where it is delivered if anybody wants it."""
        if seen.end < 0:
            return {}, None
        specs = self.stack.assigner.demands[seen.small].routes.specs
        if not seen.tree:
            return {}, specs[seen.end]
        return {specs[end]: specs[start] for end, start in seen.tree.items()}, specs[seen.end]


def _times(which: Ints) -> list[int]:
    """How often each comes."""
    found: list[int] = np.bincount(which).tolist()
    return found
