"""What bytes cost at some steps, as costs of values, shared copies and readers beside time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...cost.memory import local_bytes
from ...optimize.problem import Ints
from ...spec.sharding import ShardingSpec
from ..model import Assigner
from ..readers import Extra, Group
from ..routes import REFUSED
from .one_copy import Lives

SCALE = 1 << 20
"""Prices are whole numbers of this part of a picosecond a byte."""


@dataclass
class Priced(Extra):
    """What bytes cost at the steps with a price: never more than a plan holds.

    A view holds nothing where it reads the copy that is kept of what it shows; but if it is there for longer than any
    other reader, the copy is.  Where it reads another one, that copy is there as long as the view is, and no larger
    where the view stretches it.
    """

    about: Assigner
    lives: Lives
    """Of the whole graph's values."""
    was: Sequence[int]
    """Of the numeric problem's values the whole graph's, and of its nodes."""
    nodes: Sequence[int]
    steps: Sequence[int]
    price: int
    """Of a byte at each of the steps, in `SCALE`-ths of a picosecond."""
    arrays: dict[object, Ints]
    """Equal arrays are one; whoever asks for several prices keeps them."""
    full: bool = False
    """Whether a copy that is kept of what the caller holds counts from the first reader to the last.  It may be there
    for less, so this is for finding plans and for no bound."""

    def __post_init__(self) -> None:
        self.demands, self.graph = self.about.demands, self.about.graph
        self._shows = {node.results[r]: node.inputs[o] for node in self.graph.nodes for r, o in node.views}
        self._far_known: dict[int, frozenset[int]] = {}

    def _cost(self, places: Ints, count: int, value: int) -> Ints | None:
        if not count or not self.price:
            return None
        key = (id(places), count, self.price, self.graph.type(value))
        found = self.arrays.get(key)
        if found is None:
            specs, type = self.demands[value].routes.specs, self.graph.type(value)
            # Python's whole numbers: bytes by price may be beyond 64 bits before they are divided.
            sizes = [local_bytes(specs[at], type) * self.price * count // SCALE for at in places.tolist()]
            found = self.arrays[key] = np.array(sizes, np.int64)
        return found

    def _all(self, value: int) -> Ints:
        routes = self.demands[value].routes
        return self.arrays.setdefault(("all", id(routes)), np.arange(len(routes.specs)))

    def value(self, value: int) -> tuple[Ints | None, Ints | None]:
        demand, was = self.demands[value], self.was[value]
        life = self.lives.of[was]
        if was in self.lives.shows:
            return None, None
        if was in self.lives.stays:
            return self._cost(demand.made, len(self.steps), value), None
        # At its last reader there is at least what that makes of it, see `edge`.
        if not demand.is_shared:
            whole = sum(life.start <= t < life.end for t in self.steps)
            return self._cost(demand.made, whole, value), None
        kept = sum(life.is_kept(t) and not life.turns(t) and t < life.end for t in self.steps)
        lies = sum(life.lies(t) and not life.turns(t) for t in self.steps)
        return self._cost(demand.made, lies, value), self._cost(self._all(value), kept, value)

    def hub(self, value: int) -> Ints | None:
        was = self.was[value]
        made, rows = self.demands[value].made, self._all(value)
        if was in self.lives.shows:
            key = ("tied", id(made), id(rows))
            found = self.arrays.get(key)
            if found is None:
                found = self.arrays[key] = np.where(made[:, None] == rows[None, :], 0, REFUSED)
            return found
        if was in self.lives.stays:
            return self._beside(value) if self.full else None
        count = sum(map(self.lives.of[was].turns, self.steps))
        input_specs, kept = self._cost(made, count, value), self._cost(rows, count, value)
        if input_specs is None or kept is None:
            return None
        # When it is first read the smaller of the two is there, at least.
        key = ("turns", id(input_specs), id(kept))
        found = self.arrays.get(key)
        if found is None:
            found = self.arrays[key] = np.minimum(input_specs[:, None], kept[None, :])
        return found

    def _beside(self, value: int) -> Ints | None:
        """What is kept beside what the caller holds."""
        life, made, rows = self.lives.of[self.was[value]], self.demands[value].made, self._all(value)
        last = max((n for n, _ in self.about.readers[value]), default=-1)
        there = [t for t in self.steps if life.read <= t <= (self.nodes[last] if last >= 0 else -1)]
        kept = self._cost(rows, len(there), value)
        if kept is None:
            return None
        key = ("beside", id(made), id(kept))
        found = self.arrays.get(key)
        if found is None:
            found = self.arrays[key] = np.where(made[:, None] == rows[None, :], 0, kept[None, :])
        return found

    def edge(self, value: int, group: Group) -> Ints | None:
        if not 0 <= group.variable < len(self.graph.nodes) or len(group.places) > 1:
            return None
        read, view = self._read(value, group), self._view(value, group)
        if read is None or view is None:
            return view if read is None else read
        key = ("both", id(read), id(view))
        return self.arrays.setdefault(key, read + view)

    def _rows(self, value: int) -> Ints:
        return self._all(value) if self.demands[value].is_shared else self.demands[value].made

    def _read(self, value: int, group: Group) -> Ints | None:
        """While a node runs, what it reads is there: what is kept, or a copy, beside that if there are more readers."""
        node, was = self.nodes[group.variable], self.was[value]
        made = self._cost(group.places[0], sum(t == node for t in self.steps), value)
        if made is None:
            return None
        life, mine = self.lives.of[was], self.graph.nodes[group.variable]
        shown = any(mine.inputs[o] == value for _, o in mine.views)
        stays = was in self.lives.stays
        last = life.end == node and was not in self.lives.shows and not stays
        # What the caller holds, and before it becomes what is kept also what was made, may be read as it is.
        first = self.demands[value].is_shared if stays else life.read == node
        if not last and (shown or first):
            return None
        rows = self._rows(value)
        key = ("read", last, id(rows), id(group.places[0]), id(made))
        found = self.arrays.get(key)
        if found is None:
            need = group.places[0]
            found = np.where((rows[:, None] == need[None, :]) & (not last), 0, made[None, :])
            self.arrays[key] = found
        return found

    def _view(self, value: int, group: Group) -> Ints | None:
        """What a view adds to what it shows, or holds by itself."""
        node = self.graph.nodes[group.variable]
        view = next((r for r, o in node.views if node.inputs[o] == value), None)
        if view is None:
            return None
        result = node.results[view]
        theirs = self.lives.of[self.was[result]]
        far = self._far(result)
        count = sum(theirs.start < t < theirs.end and t not in far for t in self.steps)
        reach = self.lives.reach.get(self.was[result], theirs.end)
        longer = sum(reach < t < theirs.end for t in self.steps)
        made = self.demands[result].made
        alone, shared = self._cost(made, count, result), self._cost(made, longer, result)
        if self._stretches(result):  # it holds no more than the copy that it shows
            alone = self._lesser(alone, self._cost(group.places[0], count, value))
            shared = self._lesser(shared, self._cost(group.places[0], longer, value))
        if any(map(self._stretches, self._way_back(value)[:-1])):  # what that holds, a view before it says
            shared = None
        if alone is None:
            return None
        if self.was[value] in self.lives.stays:
            return None
        rows, need = self._rows(value), group.places[0]
        key = ("view", id(rows), id(need), id(alone), id(shared))
        found = self.arrays.get(key)
        if found is None:
            found = np.where(rows[:, None] == need[None, :], 0 if shared is None else shared[None, :], alone[None, :])
            self.arrays[key] = found
        return found

    def _stretches(self, view: int) -> bool:
        """Whether a view is larger than what it shows."""
        return self.graph.type(view).elements > self.graph.type(self._shows[view]).elements

    def _lesser(self, a: Ints | None, b: Ints | None) -> Ints | None:
        if a is None or b is None:
            return None
        return self.arrays.setdefault(("lesser", id(a), id(b)), np.minimum(a, b))

    # -- views of views -----------------------------------------------------------------------------------

    def _way_back(self, view: int) -> list[int]:
        """From a view to what it shows, to what that shows, and so on."""
        found = [view]
        while found[-1] in self._shows:
            found.append(self._shows[found[-1]])
        return found

    def _far(self, view: int) -> frozenset[int]:
        """Steps at which a view is there, what it shows in the end is, and nothing between them."""
        found = self._far_known.get(view)
        if found is None:
            way = self._way_back(view)
            root, lives = way[-1], self.lives.of
            seen = frozenset[int]()
            # Of several views of one copy the one that is there for longest counts: they may share it.
            counts = self.was[view] in self.lives.reach and self.was[root] not in self.lives.stays
            if len(way) > 2 and counts and self.demands[root].is_shared:
                last, first = lives[self.was[view]], lives[self.was[root]]
                start = max(lives[self.was[v]].end - 1 for v in way[1:-1])
                seen = frozenset(
                    t
                    for t in self.steps
                    if max(start, last.start) < t < min(last.end, first.end) and first.is_kept(t) and not first.turns(t)
                )
            found = self._far_known[view] = seen
        return found

    def links(self) -> Iterator[tuple[int, int, Ints]]:
        """If a view of a view is not where it would be without a copy in between, it is there beside what it shows."""
        for view in self._shows:
            count = len(self._far(view))
            made = self.demands[view].made
            cost = self._cost(made, count, view)
            if cost is None:
                continue
            way = self._way_back(view)
            if any(map(self._stretches, way[:-1])):
                continue
            key = (
                "far",
                id(self.demands[way[-1]].routes),
                id(cost),
                *(id(self.about.ways[self._node(v)]) for v in way[:-1]),
            )
            found = self.arrays.get(key)
            if found is None:
                found = self.arrays[key] = self._apart(way, cost)
            yield self.about.hub_of[way[-1]], self.demands[view].decider, found

    def _node(self, value: int) -> int:
        producer = self.graph.values[value].producer
        assert producer is not None
        return producer[0]

    def _apart(self, way: Sequence[int], cost: Ints) -> Ints:
        """For each sharding of what is shown and each choice of who makes the view: what that holds beside it."""
        specs = self.demands[way[-1]].routes.specs
        images: list[set[ShardingSpec]] = [{spec} for spec in specs]
        for base, view in pairwise(reversed(way)):
            node = self.graph.nodes[self._node(view)]
            place, result = node.inputs.index(base), node.results.index(view)
            leads: dict[ShardingSpec, set[ShardingSpec]] = {}
            for one in self.about.ways[self._node(view)]:
                leads.setdefault(one.operands[place], set()).add(one.results[result])
            images = [set().union(*(leads.get(spec, ()) for spec in image)) for image in images]
        ends = self.demands[way[0]].routes
        rows = [np.isin(self.demands[way[0]].made, [ends.at[spec] for spec in image]) for image in images]
        return np.where(np.stack(rows), 0, cost[None])
