"""The numeric problem of a deep stack, made of the short one's by repeating its inner layer.

Variables in the same place of different layers are one lot (`numeric.lots`); so depth costs hardly anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from .compact import Compact
from .numeric.lots import Link, Lots
from .numeric.problem import Ints
from .window import sweep

Row = tuple[int, int, int]
"""An edge: a member of one lot, one of the other, and the edge of the short problem that it stands for."""


@dataclass(frozen=True)
class Inner:
    """A compacted problem whose variables know their layer (-1: none) and their place in it."""

    small: Compact
    layer: Sequence[int]
    key: Sequence[Hashable]
    low: int
    """Layer ``low - 1`` stands for those that are left out after it."""

    @classmethod
    def of(cls, small: Compact, layer: Sequence[int], key: Sequence[Hashable], low: int) -> Inner:
        return cls(small, [layer[at] for at in small.left], [key[at] for at in small.left], low)

    def is_regular(self) -> bool:
        """Whether the layers before and after those left out are equal, and linked like their neighbours."""
        problem, here = self.small.problem, self.low - 1
        at = {(layer, key): i for i, (layer, key) in enumerate(zip(self.layer, self.key)) if layer >= 0}

        def shifted(i: int, by: int) -> int | None:
            return i if self.layer[i] < 0 else at.get((self.layer[i] + by, self.key[i]))

        tables = {(edge.first, edge.second): edge.table for edge in problem.edges}
        counts: dict[frozenset[int], int] = {}
        for edge in problem.edges:
            among = frozenset({self.layer[edge.first], self.layer[edge.second]} - {-1})
            counts[among] = counts.get(among, 0) + 1
            # A layer's own edges are those of the next one; those to the next one are those from the one before.
            by = {frozenset({here}): 1, frozenset({here, here + 1}): -1}.get(among)
            if by is None:
                continue
            first, second = shifted(edge.first, by), shifted(edge.second, by)
            if first is None or second is None:
                return False
            table = tables.get((first, second))
            if table is None:
                turned = tables.get((second, first))
                table = None if turned is None else turned.T
            if table is None or not np.array_equal(edge.table, table):
                return False
        mine = [i for i, layer in enumerate(self.layer) if layer == here]
        if len(mine) != sum(layer == here + 1 for layer in self.layer):
            return False
        for i in mine:
            j = shifted(i, 1)
            if j is None or not np.array_equal(problem.costs[i], problem.costs[j]):
                return False
        equal = [({here}, {here + 1}), ({here - 1, here}, {here, here + 1})]
        offsets = self.small.offsets
        return offsets.get(here, 0) == offsets.get(here + 1, 0) and all(
            counts.get(frozenset(a)) == counts.get(frozenset(b)) for a, b in equal
        )


class Deep:
    """The problem with ``out`` layers put back."""

    def __init__(self, inner: Inner, out: int) -> None:
        self.inner, self.out = inner, out
        problem = inner.small.problem
        self.offset = inner.small.offset + out * inner.small.offsets.get(inner.low - 1, 0)
        self.layers = max(inner.layer, default=-1) + 1 + out
        self.at = {(layer, key): i for i, (layer, key) in enumerate(zip(inner.layer, inner.key)) if layer >= 0}
        # Lots in the order of their first variables; their members in the order of layers.
        names: dict[tuple[Hashable, ...], int] = {}
        self.member: dict[tuple[int, int], tuple[int, int]] = {}
        """(variable of the short problem, layer) -> lot and row."""
        rows: list[list[Ints]] = []
        self.where: list[list[tuple[int, int]]] = []
        """Of each lot's rows: a variable of the short problem, and its layer."""
        found: list[tuple[tuple[Hashable, ...], int, int]] = []
        # Neighbours must be of different lots: a variable that is linked to its own kind is so layer by layer.
        linked = {inner.key[e.first] for e in problem.edges if inner.key[e.first] == inner.key[e.second]}
        for i, layer in enumerate(inner.layer):
            for deep in self.deep(layer):
                kind = (inner.key[i], deep % 2 if inner.key[i] in linked else 0) if layer >= 0 else (i,)
                name = (layer < 0, *kind, problem.costs[i].size)
                names.setdefault(name, len(names))
                found.append((name, i, deep))
        for name, i, deep in sorted(found, key=lambda one: (names[one[0]], one[2])):
            lot = names[name]
            while len(rows) <= lot:
                rows.append([])
                self.where.append([])
            self.member[i, deep] = (lot, len(rows[lot]))
            rows[lot].append(problem.costs[i])
            self.where[lot].append((i, deep))
        links: dict[tuple[int, int, int], tuple[list[Row], Ints]] = {}
        kept: dict[bytes, Ints] = {}
        for number, edge in enumerate(problem.edges):
            table = kept.setdefault(edge.table.tobytes() + bytes(edge.table.shape[0]), edge.table)
            turned: Ints | None = None
            for a, b in self.pairs(edge.first, edge.second):
                (lot, row), (other, other_row) = self.member[a], self.member[b]
                if lot < other:
                    links.setdefault((lot, other, id(table)), ([], table))[0].append((row, other_row, number))
                    continue
                if turned is None:
                    swapped = np.ascontiguousarray(table.T)
                    turned = kept.setdefault(swapped.tobytes() + bytes(swapped.shape[0]), swapped)
                links.setdefault((other, lot, id(turned)), ([], turned))[0].append((other_row, row, number))
        made = []
        self.edges: list[list[int]] = []
        """Of each link's rows the edge of the short problem that it stands for."""
        for (first, second, _), (pairs, table) in links.items():
            for part in _split(pairs, len(rows[first]) > 1, len(rows[second]) > 1):
                mine, theirs, numbers = zip(*part)
                made.append(Link(first, second, np.array(mine), np.array(theirs), table))
                self.edges.append(list(numbers))
        self.lots = Lots([np.stack(one) for one in rows], made)

    def deep(self, layer: int) -> list[int]:
        """Where a layer of the short stack is in the deep one."""
        low = self.inner.low
        if layer == low - 1:
            return list(range(low - 1, low + self.out))
        return [layer if layer < low else layer + self.out]

    def pairs(self, first: int, second: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """The deep edges that an edge of the short problem stands for."""
        here = self.inner.low - 1
        a, b = self.inner.layer[first], self.inner.layer[second]
        if {a, b} == {here, here + 1}:
            # The last of the copies is before the layer above; each other one before its like.
            upper, lower = (first, second) if a == here + 1 else (second, first)
            like = self.at[here, self.inner.key[upper]]
            links = [((lower, deep), (like, deep + 1)) for deep in range(here, here + self.out)]
            links.append(((lower, here + self.out), (upper, here + 1 + self.out)))
            return links if lower == first else [(v, u) for u, v in links]
        if a == here and b == here:
            return [((first, deep), (second, deep)) for deep in self.deep(here)]
        if {a, b} == {here, -1}:
            return [
                ((first, deep if a == here else -1), (second, deep if b == here else -1)) for deep in self.deep(here)
            ]
        return [((first, self.deep(a)[0]), (second, self.deep(b)[0]))]

    def start_from(self, shallow: Deep) -> None:
        """Take over the messages of a stack of fewer layers."""
        known = {number: (link, row) for link, rows in enumerate(shallow.edges) for row, number in enumerate(rows)}
        for link, numbers in enumerate(self.edges):
            mine = self.lots.boxes[link]
            for row, number in enumerate(numbers):
                there, place = known[number]
                theirs = shallow.lots.boxes[there]
                for a, b in zip(mine, theirs):
                    a[row] = b[place]

    # -- solving ------------------------------------------------------------------------------------------

    def solve(self, seconds: float | None = None) -> DeepChoice:
        """Sweep until bound and choice meet, the bound stands still, or time is up.

        A stack without the layers left out is solved first: from its messages, a deep one takes a few sweeps.
        """
        until = float("inf") if seconds is None else monotonic() + seconds
        if self.out:
            shallow = Deep(self.inner, 0)
            sweep(shallow.lots, until)
            self.start_from(shallow)
        found = sweep(self.lots, until)
        return DeepChoice(self, found.picks, found.cost + self.offset, found.lower_bound + self.offset, found.late)


@dataclass(frozen=True)
class DeepChoice:
    """What was found: picks for the lots, what they cost, and a bound."""

    deep: Deep
    picks: Sequence[Ints]
    cost: int
    lower_bound: int
    late: bool

    def short(self, by: int | None) -> tuple[int, ...]:
        """A choice for the short problem's variables.

        Without ``by``, as the layers of the short stack have it.  With it, as the ``by``-th of the layers that one of
        them stands for has it, and its neighbours.
        """
        deep, inner = self.deep, self.deep.inner
        here = inner.low - 1
        found = []
        for i, own in enumerate(inner.layer):
            place = deep.deep(own)[0]
            if by is not None and own == here:
                place = here + by
            elif by and own == here - 1:
                # Only what links layers is asked about there, and of that all strategies are kept.
                like = deep.at.get((here, inner.key[i]))
                if like is not None and inner.small.problem.costs[like].size == inner.small.problem.costs[i].size:
                    place, i = here - 1 + by, like
            elif by is not None and own == here + 1 and by < deep.out:
                place, i = here + 1 + by, deep.at[here, inner.key[i]]
            lot, row = deep.member[i, place]
            found.append(int(self.picks[lot][row]))
        return tuple(found)

    def choices(self) -> list[list[int]]:
        """For every layer of the deep stack, and last for what is of no layer: a choice for all variables of the short
        stack's problem, of which those of that layer count."""
        deep, inner = self.deep, self.deep.inner
        here = inner.low - 1
        known: dict[tuple[int, ...], list[int]] = {}

        def back(by: int | None) -> list[int]:
            choice = self.short(by)
            if choice not in known:
                known[choice] = inner.small.back(choice)
            return known[choice]

        found = []
        for layer in range(deep.layers):
            inside = here <= layer <= here + deep.out
            found.append(back(None if layer < here else layer - here if inside else deep.out))
        return [*found, back(None)]


def _split(pairs: Sequence[Row], mine: bool, theirs: bool) -> list[list[Row]]:
    """Parts in which every member of a lot (unless it is alone there) has one edge at most."""
    left, found = list(pairs), []
    while left:
        seen: tuple[set[int], set[int]] = (set(), set())
        now: list[Row] = []
        later: list[Row] = []
        for row in left:
            if (mine and row[0] in seen[0]) or (theirs and row[1] in seen[1]):
                later.append(row)
            else:
                now.append(row)
                seen[0].add(row[0])
                seen[1].add(row[1])
        found.append(now)
        left = later
    return found
