"""Deep stacks of equal layers: everything is worked out for a short stack, and put together for the deep one.

The numeric problem of the short stack is compacted so that every layer is treated for itself: the variables that link
it to its neighbours are kept, and so are those of no layer that it reads.  If the two inner layers come out equal,
tables and all, then the deep stack's problem is the same one with more of them in between: `deep` solves that.  Nothing
is lost, and nothing is assumed: where layers do not come out equal, the whole graph is solved as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from ..errors import PlanInfeasible
from ..propagate.complete import Complete, Decision
from ..spec.sharding import ShardingSpec
from .assign import FINE, NEAR, Assigner, Assignment, Extra, Optimum, Terms
from .compact import Compact, compact
from .deep import Deep, Inner
from .layers import Short
from .routes import TOO_DEAR
from .tighten import tighten

Key = tuple[Any, ...]


@dataclass
class Stack:
    """A deep graph, with the problem of its short one."""

    short: Short
    assigner: Assigner
    """Of the short graph."""
    layer: list[int] = field(default_factory=list)
    key: list[Key] = field(default_factory=list)
    """Equal for variables in the same place of different layers."""

    def __post_init__(self) -> None:
        self.was = {here: there for there, here in self.short.values.items()}
        """Of the short graph's values the deep one's."""

    def _lower(self, layer: int) -> int:
        return layer if layer < self.short.low else layer - self.short.out

    def label(self, hubs: dict[int, int]) -> None:
        """Say of all variables where they are."""
        short, layers, graph = self.short, self.short.layers, self.short.graph
        self.layer = [self._lower(layers.layer[n]) for n in short.kept]
        self.key = [("node", layers.spot[n] or n) for n in short.kept]
        for kind, values in (("input", graph.inputs), ("hub", tuple(hubs))):
            for value in values:
                self.layer.append(self._lower(layers.value_layer(self.was[value])))
                self.key.append((kind, layers.value_spot(self.was[value])))

    def compacted(self, terms: Terms) -> Compact:
        costs, edges, hubs = terms
        self.label(hubs)
        layer, hub = self.layer, set(hubs.values())
        inner = (self.short.low - 1, self.short.low)
        kept: set[int] = set()
        for i, j, _ in edges:
            if layer[i] == layer[j]:
                continue
            if layer[i] >= 0 and layer[j] >= 0:
                kept.add(i if i in hub else j if j in hub else i)
            elif layer[i] in inner or layer[j] in inner:
                kept.add(i if layer[i] < 0 else j)
        return compact(costs, edges, self.assigner.graph.name, kept, layer, self.assigner.order)

    def optimum(
        self, bound: bool, seconds: float | None = None, extra: Extra | None = None
    ) -> tuple[Optimum, DeepPlan] | None:
        """The best choice for the plan's problem or the bound's; None if the layers do not come out equal."""
        small = self.compacted(self.assigner.terms(bound, extra))
        inner = Inner.of(small, self.layer, self.key, self.short.low)
        if not inner.is_regular():
            return None
        found = Deep(inner, self.short.out).solve(seconds)
        unit = FINE if bound else 1
        plan = DeepPlan(self, found.choices())
        return Optimum((), -(-found.lower_bound // unit), "messages", found.late), plan

    def solve(self, time_limit: float | None = None) -> Assignment | None:
        """As `Assigner.solve` does it; None if the layers do not come out equal."""
        began = monotonic()
        first = self.optimum(True, time_limit)
        if first is None:
            return None
        bound, best = first
        timed_out = bound.timed_out
        if best.objective - bound.lower_bound > NEAR * best.objective:
            left = None if time_limit is None else max(0.1, time_limit - (monotonic() - began))
            second = self.optimum(False, left)
            if second is not None:
                timed_out = timed_out or second[0].timed_out
                best = min(best, second[1], key=lambda plan: plan.objective)
        if best.objective >= TOO_DEAR:
            raise PlanInfeasible("every plan gathers more at once than is allowed")
        objective = best.objective
        complete = best.tight().decode()
        lower = min(bound.lower_bound, objective)
        seconds = monotonic() - began
        return Assignment(complete, objective, lower, "messages", timed_out, seconds, self.assigner.hardware)


@dataclass
class DeepPlan:
    """A choice for every layer, and last for what is of no layer, in the short graph's variables."""

    stack: Stack
    choices: Sequence[Sequence[int]]
    _objective: int | None = None

    def tight(self) -> DeepPlan:
        """With inputs that lie in less memory at the same price."""
        known: dict[int, list[int]] = {}
        for choice in self.choices:
            if id(choice) not in known:
                known[id(choice)] = tighten(self.stack.assigner, choice)
        return DeepPlan(self.stack, [known[id(choice)] for choice in self.choices])

    def __post_init__(self) -> None:
        stack = self.stack
        layers, short = stack.short.layers, stack.short
        self.layers = layers
        self.graph = layers.graph
        self.node_of = {n: i for i, n in enumerate(short.kept)}
        here = short.low - 1
        at = {(stack.layer[i], stack.key[i]): i for i in range(len(stack.layer)) if stack.layer[i] >= 0}
        self.variable_of = at
        self.here = here

    def short_layer(self, layer: int) -> int:
        """The layer of the short stack that stands for one of the deep stack."""
        short = self.stack.short
        return self.here if self.here <= layer < short.low + short.out else self.stack._lower(layer)

    def pick(self, variable: int, layer: int) -> int:
        """What a layer of the deep stack (-1: none) picks for a variable of the short one."""
        return self.choices[layer][variable]

    def counterpart(self, value: int) -> int:
        """The short graph's value that stands for one of the deep graph."""
        layers, short = self.layers, self.stack.short
        if value in short.values:
            return short.values[value]
        producer = layers.graph.values[value].producer
        if producer is None:
            return self._inputs()[layers.input_spot[value]]
        spot = layers.spot[producer[0]]
        assert spot is not None
        node = layers.node(spot, self.here)
        return short.values[layers.graph.nodes[node].results[producer[1]]]

    def _inputs(self) -> dict[object, int]:
        if not hasattr(self, "_known_inputs"):
            layers, short = self.layers, self.stack.short
            self._known_inputs: dict[object, int] = {
                layers.input_spot[value]: short.values[value]
                for value, layer in layers.input_layer.items()
                if layer == self.here
            }
        return self._known_inputs

    @cached_property
    def seen(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """For each value of the deep graph: the short graph's, where its maker's choice puts it, and what is wanted."""
        return [self._seen(v) for v in range(len(self.graph.values))]

    def _seen(self, value: int) -> tuple[int, int, tuple[int, ...]]:
        stack, layer = self.stack, self.layers.value_layer(value)
        small = self.counterpart(value)
        demand = stack.assigner.demands[small]
        own = self.short_layer(layer) if layer >= 0 else -1
        source = self.choices[layer][demand.decider]
        wanted: dict[int, None] = {}
        for group in demand.groups:
            if group.variable < 0:
                picks = [0]
            else:
                theirs = stack.layer[group.variable]
                if theirs < 0:
                    picks = [self.choices[-1][group.variable]]
                elif own < 0:
                    picks = [self.choices[deep][group.variable] for deep in self.deep(theirs)]
                elif theirs == own:
                    picks = [self.choices[layer][group.variable]]
                else:
                    away = layer + (theirs - own)
                    variable = self.variable_of.get((self.short_layer(away), stack.key[group.variable]), group.variable)
                    picks = [self.choices[away][variable]]
            for place in group.places:
                wanted.update((int(place[pick]), None) for pick in picks)
        return small, source, tuple(wanted)

    def deep(self, layer: int) -> list[int]:
        short = self.stack.short
        if layer == self.here:
            return list(range(self.here, short.low + short.out))
        return [layer if layer < short.low else layer + short.out]

    @property
    def objective(self) -> int:
        """Picoseconds that show."""
        if self._objective is None:
            self._objective = self._count()
        return self._objective

    def _count(self) -> int:
        about, total = self.stack.assigner, 0
        for n, layer in enumerate(self.layers.layer):
            variable = self.variable(n)
            total += about.ways[variable][self.choices[layer][variable]].time
        for small, source, wanted in self.seen:
            demand = about.demands[small]
            if demand.settle is not None:
                total += int(demand.settle[source])
            if demand.count:
                total += demand.grow(int(demand.made[source]), wanted)[0]
        return total

    def variable(self, node: int) -> int:
        """The short graph's node that stands for one of the deep graph."""
        return self.node_of[self.stack.short.stand_in(node)]

    def decode(self) -> Complete:
        """Complete shardings of the deep graph."""
        about, graph, layers = self.stack.assigner, self.graph, self.layers
        inputs: dict[int, ShardingSpec] = {}
        for value in graph.inputs:
            small = self.counterpart(value)
            inputs[value] = about.inputs[small][self.choices[layers.value_layer(value)][about.place[small]]]
        home = dict(inputs)
        decisions = []
        for n, node in enumerate(graph.nodes):
            variable = self.variable(n)
            way = about.ways[variable][self.choices[layers.layer[n]][variable]]
            homes = way.results
            if about.given:
                small_results = about.graph.nodes[variable].results
                homes = tuple(
                    about.given[value].closed() if value in about.given else spec
                    for value, spec in zip(small_results, way.results)
                )
            decisions.append(Decision(n, about.space.rules[variable], way.axes, way.operands, way.results, homes))
            home.update(zip(node.results, homes))
        sources: dict[int, dict[ShardingSpec, ShardingSpec]] = {}
        ends: dict[int, ShardingSpec] = {}
        for v, (small, source, wanted) in enumerate(self.seen):
            demand = about.demands[small]
            if demand.count:
                specs = demand.routes.specs
                _, tree, end = demand.grow(int(demand.made[source]), wanted)
                ends[v] = specs[end]
                if tree:
                    sources[v] = {specs[end]: specs[start] for end, start in tree.items()}
        states = {output: graph.inputs[i] for i, output in graph.updates}
        outputs = []
        for i, value in enumerate(graph.outputs):
            asked = about.out_specs.get(self.stack.short.outputs.get(i, -1))
            if i in states:
                outputs.append(home[states[i]])
            elif asked is not None:
                outputs.append(asked.closed())
            else:
                outputs.append(ends.get(value, home[value]) if home[value].partial else home[value])
        return Complete(graph, about.mesh, tuple(inputs.values()), tuple(decisions), tuple(outputs), (), 0, sources)
