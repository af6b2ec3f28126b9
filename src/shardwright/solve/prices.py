"""What bytes cost at some moments, as costs of values, hubs and readers beside time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..cost.memory import local_bytes
from .assign import Assigner, Extra
from .demand import Group
from .flat import Lives
from .numeric.problem import Ints
from .routes import TOO_DEAR

SCALE = 1 << 20
"""Prices are whole numbers of this part of a picosecond a byte."""


@dataclass
class Priced(Extra):
    """What bytes cost at the moments with a price: never more than a plan holds.

    A view holds nothing where it reads the copy that is kept of what it shows; but if it is there for longer than any
    other reader, the copy is.  Where it reads another one, that copy is there as long as the view is.
    """

    about: Assigner
    lives: Lives
    """Of the whole graph's values."""
    was: Sequence[int]
    """Of the numeric problem's values the whole graph's, and of its nodes."""
    nodes: Sequence[int]
    moments: Sequence[int]
    price: int
    """Of a byte at each of the moments, in `SCALE`-ths of a picosecond."""
    arrays: dict[object, Ints]
    """Equal arrays are one; whoever asks for several prices keeps them."""

    def __post_init__(self) -> None:
        self.demands, self.graph = self.about.demands, self.about.graph

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
            return self._cost(demand.made, len(self.moments), value), None
        # At its last reader there is at least what that makes of it, see `edge`.
        if not demand.is_shared:
            whole = sum(life.start <= t < life.end for t in self.moments)
            return self._cost(demand.made, whole, value), None
        kept = sum(life.is_kept(t) and not life.turns(t) and t < life.end for t in self.moments)
        lies = sum(life.lies(t) and not life.turns(t) for t in self.moments)
        return self._cost(demand.made, lies, value), self._cost(self._all(value), kept, value)

    def hub(self, value: int) -> Ints | None:
        was = self.was[value]
        made, rows = self.demands[value].made, self._all(value)
        if was in self.lives.shows:
            key = ("tied", id(made), id(rows))
            found = self.arrays.get(key)
            if found is None:
                found = self.arrays[key] = np.where(made[:, None] == rows[None, :], 0, TOO_DEAR)
            return found
        count = 0 if was in self.lives.stays else sum(map(self.lives.of[was].turns, self.moments))
        lying, kept = self._cost(made, count, value), self._cost(rows, count, value)
        if lying is None or kept is None:
            return None
        # When it is first read the smaller of the two is there, at least.
        key = ("turns", id(lying), id(kept))
        found = self.arrays.get(key)
        if found is None:
            found = self.arrays[key] = np.minimum(lying[:, None], kept[None, :])
        return found

    def edge(self, value: int, group: Group) -> Ints | None:
        if not 0 <= group.variable < len(self.graph.nodes) or len(group.places) > 1:
            return None
        if self.was[value] in self.lives.stays:
            return None
        last, view = self._last(value, group), self._view(value, group)
        if last is None or view is None:
            return view if last is None else last
        key = ("both", id(last), id(view))
        return self.arrays.setdefault(key, last + view)

    def _rows(self, value: int) -> Ints:
        return self._all(value) if self.demands[value].is_shared else self.demands[value].made

    def _last(self, value: int, group: Group) -> Ints | None:
        """At the last reader: what it reads is there, or what it makes of that."""
        node = self.nodes[group.variable]
        was = self.was[value]
        if self.lives.of[was].end != node or was in self.lives.shows:
            return None
        count = sum(t == node for t in self.moments)
        kept, made = self._cost(self._rows(value), count, value), self._cost(group.places[0], count, value)
        if kept is None or made is None:
            return None
        key = ("last", id(kept), id(made))
        found = self.arrays.get(key)
        if found is None:
            found = self.arrays[key] = np.minimum(kept[:, None], made[None, :])
        return found

    def _view(self, value: int, group: Group) -> Ints | None:
        """What a view adds to what it shows, or holds by itself."""
        node = self.graph.nodes[group.variable]
        view = next((r for r, o in node.views if node.inputs[o] == value), None)
        if view is None:
            return None
        result = node.results[view]
        theirs = self.lives.of[self.was[result]]
        count = sum(theirs.start < t < theirs.end for t in self.moments)
        reach = self.lives.reach.get(self.was[result], theirs.end)
        longer = sum(reach < t < theirs.end for t in self.moments)
        made = self.demands[result].made
        alone, shared = self._cost(made, count, result), self._cost(made, longer, result)
        if alone is None:
            return None
        rows, need = self._rows(value), group.places[0]
        key = ("view", id(rows), id(need), id(alone), id(shared))
        found = self.arrays.get(key)
        if found is None:
            found = np.where(rows[:, None] == need[None, :], 0 if shared is None else shared[None, :], alone[None, :])
            self.arrays[key] = found
        return found
