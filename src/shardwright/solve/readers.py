"""`Demand`: for one value, the shardings in which it may be made, and those in which it is then wanted by whom.

Shardings are places in the value's `Routes`.  Equal lists are one array, so what is worked out for one value serves all
that are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ..ir.graph import Graph
from ..optimize.problem import Ints
from ..spec.sharding import ShardingSpec
from .routes import Routes, Tree
from .strategies import Way


class Group(NamedTuple):
    """What one variable needs of a value: for each place at which it reads it, a sharding for each of its choices."""

    variable: int
    """Negative where there is nothing to choose."""
    places: tuple[Ints, ...]


@dataclass(frozen=True, eq=False)
class Demand:
    """A node that reads a value twice is one reader; places that are always needed alike are one place."""

    routes: Routes
    decider: int
    """The variable that decides the sharding in which the value is made."""
    made: Ints
    """The place of that sharding, for each choice of the decider."""
    open: bool
    """Whether it is an output that nobody asked for in a sharding, and may be pending: then it is finished somehow."""
    groups: tuple[Group, ...]
    stays: bool = False
    """Whether such an output is delivered as it is cut; else wherever it is cheapest."""
    settle: Ints | None = None
    """What it costs to bring each strategy's result where the user wants it at once; then it is there."""

    @property
    def signature(self) -> object:
        """Equal for values whose tables are equal."""
        groups = tuple((group.variable < 0, *map(id, group.places)) for group in self.groups)
        return (id(self.routes), id(self.made), self.open, self.stays, groups)

    @property
    def readers(self) -> list[int]:
        """The variables that want it; negative where there is nothing to choose."""
        return [group.variable for group in self.groups]

    @property
    def count(self) -> int:
        return len(self.groups) + self.open

    @property
    def places(self) -> int:
        """In how many places it is wanted; one variable may want it in two shardings."""
        return sum(len(group.places) for group in self.groups) + self.open

    @property
    def is_shared(self) -> bool:
        return self.count > 1

    def wanted(self, choice: Sequence[int]) -> list[int]:
        """All that readers want, under a choice."""
        return [
            int(place[choice[group.variable]] if group.variable >= 0 else place[0])
            for group in self.groups
            for place in group.places
        ]

    def grow(self, source: int, wanted: Sequence[int]) -> tuple[int, Tree, int]:
        """What copies cost, the tree they form, and where an output that nobody asked for is delivered."""
        routes = self.routes
        pending = routes.pending
        if not self.open or not pending[source]:
            return *routes.tree(source, wanted), source
        if self.stays:
            end = int(routes.stay[source])
            return *routes.tree(source, [*wanted, end]), end
        done = [place for place in wanted if not pending[place]]
        if done:
            return *routes.tree(source, wanted), min(done)
        ends = sorted({int(routes.finish[1][place]) for place in (source, *wanted)})
        best = min(ends, key=lambda end: routes.tree(source, [*wanted, end])[0])
        return *routes.tree(source, [*wanted, best]), best

    def reach(self, group: Group, prices: Ints) -> Ints:
        """From every sharding to what a variable's choices need, at all of its places; perhaps with a copy between."""
        places = group.places
        if len(places) == 1:
            return prices[:, places[0]]
        if len(places) == 2:
            return self.routes.both(prices, *places)
        # Rare: as if two of the places were all there is, which is never too much.
        pairs = [self.routes.both(prices, a, b) for i, a in enumerate(places) for b in places[:i]]
        return np.asarray(np.maximum.reduce(pairs), np.int64)

    def tables(self, fine: int, above: bool) -> tuple[Ints, ...]:
        """From what is left to the only reader, or to the shared copy; then from there to each reader.

        In parts of a picosecond, ``fine`` to one.  ``above`` lets each reader pay all from the shared copy, which no
        tree exceeds; else a (k-1)-th of it, of k places.
        """
        prices = self.routes.least * fine
        if not self.is_shared:
            if not self.groups:
                if self.stays:
                    return (prices[self.made, self.routes.stay[self.made]][:, None],)
                return (self.routes.finish[0][self.made][:, None] * fine,)
            return (self.reach(self.groups[0], prices)[self.made],)
        share = 1 if above else self.places - 1
        to_hub = prices[self.made]
        if self.open:
            finish = self.routes.finish[0][None] * fine
            if self.stays:
                finish = prices[:, self.routes.stay[self.made]].T
            to_hub = to_hub + finish // share * self.routes.pending[self.made][:, None]
        return (to_hub, *(self.reach(group, prices) // share for group in self.groups))


class Variables(Protocol):
    """What of `model.Assigner` those need who change a choice here and there: the variables, and what values cost."""

    graph: Graph
    given: Mapping[int, ShardingSpec]
    ways: list[tuple[Way, ...]]
    inputs: dict[int, tuple[ShardingSpec, ...]]
    place: dict[int, int]
    updates: dict[int, int]
    demands: list[Demand]

    def spent(self, value: int, choice: Sequence[int]) -> int:
        """What copies of a value cost."""


class Extra(Protocol):
    """Costs beside time."""

    def value(self, value: int) -> tuple[Ints | None, Ints | None]:
        """What a value costs as it is made, by choice of its decider, and what its shared copy costs."""

    def hub(self, value: int) -> Ints | None:
        """What a shared copy costs by choice of the decider, as a table."""

    def edge(self, value: int, group: Group) -> Ints | None:
        """What a reader costs by what it wants, for each shared copy; where there is none, by choice of the decider."""

    def links(self) -> Iterable[tuple[int, int, Ints]]:
        """What two variables cost together, beside that."""
