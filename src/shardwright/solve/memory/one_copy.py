"""`OneCopyPlan`: a plan in which every value is kept in one sharding, written down for the whole graph.

A value has the sharding that it was made in until it is first read; then a copy of it, the *shared copy*, is made
(which may be the same) and kept to the end of its life.  A reader that wants another sharding makes it from the shared
copy and lets it go.  So a shared copy that is cut holds little and is gathered again and again, as ZeRO-3 does with
weights; a whole one is gathered once.  A view is kept as it is.  What a plan holds is then a sum over values and what
reads them, which a solver can put a price on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...cost.memory import local_bytes
from ...ir.graph import Graph, TensorType
from ...optimize.problem import Ints
from ...propagation.complete import Complete, Decision
from ...spec.mesh import DeviceMesh
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from ..model import Assigner
from ..repeated.stack import DeepPlan
from ..routes import RouteBook, Routes
from ..strategies import Way


@dataclass(frozen=True)
class Life:
    """When a value is there, in nodes: first as it was made, then in its shared copy.  Nothing where start is beyond
    end."""

    start: int
    read: int
    """The first node that reads it: up to there it has the sharding that it was made in."""
    end: int
    """The last node that needs it."""

    def lies(self, step: int) -> bool:
        return self.start <= step <= min(self.read, self.end)

    def is_kept(self, step: int) -> bool:
        return max(self.start, self.read) <= step <= self.end

    def turns(self, step: int) -> bool:
        """Whether this is when the one becomes the other: at least one of them is there."""
        return self.lies(step) and self.is_kept(step)


class Lives:
    """Of all values of a graph, by their own readers; what views add is `views`."""

    def __init__(self, graph: Graph) -> None:
        last = len(graph.nodes)
        first: dict[int, int] = {}
        end: dict[int, int] = {}
        for n, node in enumerate(graph.nodes):
            for value in node.inputs:
                first.setdefault(value, n)
                end[value] = n
        for value in graph.outputs:
            first.setdefault(value, last)
            end[value] = last
        donated = {graph.inputs[i] for i, _ in graph.updates}
        self.of: list[Life] = []
        for v, tensor in enumerate(graph.values):
            producer = tensor.producer
            if producer is None:
                stop = end.get(v, -1) if v in donated else last
                self.of.append(Life(0, first.get(v, last), stop))
            else:
                self.of.append(Life(producer[0], first.get(v, producer[0]), end.get(v, producer[0])))
        self.steps = last + 1
        self.stays = {v for v in graph.inputs if v not in donated}
        """Inputs that the caller holds: they stay as they are, whatever becomes of them."""
        self.shows = {node.results[r]: node.inputs[o] for node in graph.nodes for r, o in node.views}
        """Of views, what they show: they hold nothing of their own if they read the copy that is kept of it."""
        until = [life.end for life in self.of]
        self.longest: dict[int, int] = {}
        """Of what is shown, the view that is there for longest, itself or by what shows it in turn."""
        for view, base in reversed(self.shows.items()):
            until[base] = max(until[base], until[view])
        for view, base in self.shows.items():
            known = self.longest.get(base)
            if known is None or until[view] > until[known]:
                self.longest[base] = view
        self.reach: dict[int, int] = {}
        """Of views on the longest path from what is shown: how long all before it on that path are there anyway."""
        for view, base in self.shows.items():
            if self.longest[base] == view and (base not in self.shows or base in self.reach):
                self.reach[view] = max(self.of[base].end, self.reach.get(base, -1))


@dataclass
class Frame:
    """What a one-copy plan speaks of."""

    graph: Graph
    book: RouteBook
    roles: Sequence[str | None]
    rules: Sequence[OpShardingRule | None]
    given: Mapping[int, ShardingSpec] = field(default_factory=dict)
    out_specs: Mapping[int, ShardingSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        self.lives = Lives(graph)
        self.updates = {output: graph.inputs[i] for i, output in graph.updates}
        self.readers: list[list[tuple[int, int]]] = [[] for _ in graph.values]
        self.reads: list[list[tuple[int, int]]] = []
        """Of every node the values it reads, and at which place, but for those that it shows: a copy that a view shows
        is the view's own."""
        for n, node in enumerate(graph.nodes):
            inputs = node.inputs
            for place, value in enumerate(inputs):
                self.readers[value].append((n, place))
            shown = {inputs[o] for _, o in node.views} if node.views else ()
            self.reads.append([(value, place) for place, value in enumerate(inputs) if value not in shown])
        self.outputs: dict[int, list[int]] = {}
        for i, value in enumerate(graph.outputs):
            self.outputs.setdefault(value, []).append(i)
        kinds: dict[TensorType, int] = {}
        self._kind = [kinds.setdefault(value.type, len(kinds)) for value in graph.values]
        self._bytes: dict[tuple[ShardingSpec, int], int] = {}

    def routes(self, value: int) -> Routes:
        return self.book.routes(self.graph.type(value), self.roles[value])

    def bytes(self, spec: ShardingSpec, value: int) -> int:
        key = (spec, self._kind[value])
        found = self._bytes.get(key)
        if found is None:
            found = self._bytes[key] = local_bytes(spec, self.graph.type(value))
        return found


@dataclass
class OneCopyPlan:
    """A strategy for every node, a sharding for every input, and shared copies."""

    frame: Frame
    ways: list[Way]
    input_specs: dict[int, ShardingSpec]
    hubs: dict[int, ShardingSpec]

    def home(self, value: int) -> ShardingSpec:
        producer = self.frame.graph.values[value].producer
        if producer is None:
            return self.input_specs[value]
        if value in self.frame.given:
            return self.frame.given[value].closed()
        return self.ways[producer[0]].results[producer[1]]

    def wanted(self, value: int) -> list[tuple[int, set[ShardingSpec]]]:
        """What each reader wants; outputs are read at the end."""
        frame = self.frame
        found: dict[int, set[ShardingSpec]] = {}
        for n, place in frame.readers[value]:
            found.setdefault(n, set()).add(self.ways[n].operands[place])
        for i in frame.outputs.get(value, ()):
            found[len(frame.graph.nodes) + i] = {self.output(i)}
        return list(found.items())

    def output(self, i: int) -> ShardingSpec:
        frame = self.frame
        value = frame.graph.outputs[i]
        if i in frame.updates:
            return self.input_specs[frame.updates[i]]
        if i in frame.out_specs:
            return frame.out_specs[i].closed()
        kept = self.hubs.get(value, self.home(value))
        if not kept.partial:
            return kept
        routes = frame.routes(value)
        return routes.specs[int(routes.finish[1][routes.at[kept]])]

    def spent(self, value: int) -> int:
        """What copies of a value cost."""
        routes = self.frame.routes(value)
        at, home = routes.at, self.home(value)
        hub = self.hubs.get(value, home)
        total = int(routes.least[at[home], at[hub]])
        for _, specs in self.wanted(value):
            total += routes.tree(at[hub], [at[spec] for spec in specs])[0]
        return total

    @property
    def cost(self) -> int:
        return sum(way.time for way in self.ways) + sum(self.spent(v) for v in range(len(self.frame.graph.values)))

    def held(self) -> Ints:
        """Bytes while every node runs: what is kept, and what the node has made of that to read.

        What is there while copies are made, and what collectives pack, is not counted.
        """
        frame, lives, graph = self.frame, self.frame.lives, self.frame.graph
        count = len(graph.values)
        # A value has what lies as it was made and what is kept; each is a piece of its own or part of another's.
        made, kept = [-1] * count, [-1] * count
        start: list[int] = []
        end: list[int] = []
        size: list[int] = []

        def piece(spec: ShardingSpec, value: int, begin: int, stop: int) -> int:
            start.append(begin)
            end.append(stop)
            size.append(frame.bytes(spec, value))
            return len(size) - 1

        homes = [self.home(v) for v in range(count)]
        for v, life in enumerate(lives.of):
            home = homes[v]
            hub = self.hubs.get(v, home)
            same = hub == home
            base = lives.shows.get(v)
            # Who first reads what lies there does so before the hub is made of it; for all others that is gone then.
            first = [self.ways[n].operands[place] for n, place in frame.readers[v] if n == life.read]
            later = bool(first) and all(spec == home for spec in first)
            until = self._last(v, home, life.end) if same else min(life.read - (not later), life.end)
            shared, stretched = -1, None
            if base is not None:
                need = self.ways[life.start].operands[graph.nodes[life.start].inputs.index(base)]
                resident = self.hubs.get(base, self.home(base))
                if need == self.home(base) and base in lives.stays:
                    shared = made[base]
                elif need == resident:
                    shared = kept[base]
                elif need == self.home(base) and life.start == lives.of[base].read:
                    shared = made[base]
                stretched = frame.bytes(need, base)
            if shared >= 0:
                made[v] = shared
                end[shared] = max(end[shared], until)
            else:
                made[v] = piece(home, v, life.start, lives.steps - 1 if v in lives.stays else until)
                size[-1] = size[-1] if stretched is None else min(size[-1], stretched)
            kept[v] = made[v]
            if v in lives.stays:
                # What the caller holds is read as it is by all who want it so; what is kept is there for the others.
                others = [n for n, place in frame.readers[v] if self.ways[n].operands[place] != home]
                if not same and others:
                    kept[v] = piece(hub, v, others[0], self._last(v, hub, others[-1]))
            elif not same and life.read <= life.end:
                kept[v] = piece(hub, v, life.read + later, self._last(v, hub, life.end))
        for n, reads in enumerate(frame.reads):
            operands, made_here = self.ways[n].operands, set()
            for v, place in reads:
                spec, home = operands[place], homes[v]
                if spec == self.hubs.get(v, home) or (v, spec) in made_here:
                    continue
                if spec != home or not (v in lives.stays or n == lives.of[v].read):
                    made_here.add((v, spec))
                    piece(spec, v, n, n)
        change = np.zeros(lives.steps + 2, np.int64)
        begins, ends, sizes = np.array(start), np.minimum(np.array(end), lives.steps - 1), np.array(size)
        there = begins <= ends
        np.add.at(change, begins[there], sizes[there])
        np.add.at(change, ends[there] + 1, -sizes[there])
        return np.cumsum(change)[: lives.steps]

    def _last(self, value: int, spec: ShardingSpec, end: int) -> int:
        """The last node that runs while a copy is there: one that makes its own of it runs when it is gone."""
        last = [self.ways[n].operands[place] for n, place in self.frame.readers[value] if n == end]
        return end if not last or spec in last else end - 1

    def decode(self, mesh: DeviceMesh) -> Complete:
        """Complete shardings, with copies made as the plan says."""
        frame, graph = self.frame, self.frame.graph
        decisions = []
        for n, node in enumerate(graph.nodes):
            way = self.ways[n]
            homes = tuple(self.home(value) for value in node.results) if frame.given else way.results
            decisions.append(Decision(n, frame.rules[n], way.axes, way.operands, way.results, homes))
        outputs = tuple(self.output(i) for i in range(len(graph.outputs)))
        sources: dict[int, dict[ShardingSpec, ShardingSpec]] = {}
        kept: dict[int, ShardingSpec] = {}
        for v in range(len(graph.values)):
            routes, home = self.frame.routes(v), self.home(v)
            wanted = self.wanted(v)
            if not wanted:
                continue
            at, specs, hub = routes.at, routes.specs, self.hubs.get(v, home)
            copies: dict[ShardingSpec, ShardingSpec] = {}
            start = at[home]
            for place in routes.path(start, at[hub]):
                copies[specs[place]] = specs[start]
                start = place
            for _, needs in wanted:
                for end, begin in routes.tree(at[hub], [at[spec] for spec in needs])[1].items():
                    copies.setdefault(specs[end], specs[begin])
            copies.pop(specs[at[home]], None)  # axes of one device may part it from the home
            if copies:
                sources[v] = copies
            if len(wanted) > 1:
                kept[v] = hub
        inputs = tuple(self.input_specs[value] for value in graph.inputs)
        return Complete(graph, mesh, inputs, tuple(decisions), outputs, (), 0, sources, kept)


def neighbours(one_copy: OneCopyPlan, about: Assigner) -> Iterator[OneCopyPlan]:
    """Plans that differ in one strategy, input or shared copy; those of views go with them."""
    frame = one_copy.frame

    def made(ways: list[Way], input_specs: dict[int, ShardingSpec], hubs: dict[int, ShardingSpec]) -> OneCopyPlan:
        other = OneCopyPlan(frame, ways, input_specs, hubs)
        hubs.update((v, other.home(v)) for v in hubs if v in frame.lives.shows)
        return other

    for n, ways in enumerate(about.ways):
        for way in ways:
            if way is not one_copy.ways[n]:
                yield made(
                    [*one_copy.ways[:n], way, *one_copy.ways[n + 1 :]], one_copy.input_specs, dict(one_copy.hubs)
                )
    for value, specs in about.inputs.items():
        for spec in specs:
            if spec != one_copy.input_specs[value]:
                yield made(one_copy.ways, {**one_copy.input_specs, value: spec}, dict(one_copy.hubs))
    for value, hub in one_copy.hubs.items():
        for spec in about.demands[value].routes.specs if value not in frame.lives.shows else ():
            if spec != hub:
                yield made(one_copy.ways, one_copy.input_specs, {**one_copy.hubs, value: spec})


def one_copy_of(frame: Frame, about: Assigner, plan: DeepPlan | Sequence[int]) -> OneCopyPlan:
    """A choice for all variables as a one-copy plan of the whole graph."""
    graph = frame.graph
    hub_of = about.hub_of
    hubs: dict[int, ShardingSpec] = {}
    if isinstance(plan, DeepPlan):
        layers = plan.layers
        ways = []
        for n, layer in enumerate(layers.layer):
            variable = plan.variable(n)
            ways.append(about.ways[variable][plan.choices[layer][variable]])
        input_specs = {}
        for value in graph.inputs:
            small = plan.counterpart(value)
            input_specs[value] = about.inputs[small][plan.choices[layers.value_layer(value)][about.place[small]]]
        for v in range(len(graph.values)):
            small = plan.counterpart(v)
            if small in hub_of:
                pick = plan.choices[layers.value_layer(v)][hub_of[small]]
                hubs[v] = about.demands[small].routes.specs[pick]
        return OneCopyPlan(frame, ways, input_specs, hubs)
    ways = [about.ways[n][plan[n]] for n in range(len(graph.nodes))]
    input_specs = {value: about.inputs[value][plan[about.place[value]]] for value in graph.inputs}
    for v, variable in hub_of.items():
        hubs[v] = about.demands[v].routes.specs[plan[variable]]
    return OneCopyPlan(frame, ways, input_specs, hubs)
