"""Make a problem without memory smaller, exactly, doing the same work once for equal parts.

Layers of a model repeat, and so do their tables: equal ones are one array.  Every operation here is remembered by the
arrays it was done on, and gives the one array again.  So a stack of layers costs little more than a layer, and nobody
has to find out where a layer begins.

- A variable with one neighbour, or with two if the table between them stays small, is eliminated.
- A strategy goes if another one is never more expensive, whatever the neighbours do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from .fold import Mask
from .problem import Ints, NumericProblem

PAIR = 2_500
"""The most entries of a table made by eliminating, unless those it is made of were larger."""
CUBE = 4_000_000
"""The most sums made at once."""
ROUNDS = 6
FEW = 12
"""So few strategies are compared pair by pair right away."""
SAMPLED = 8
"""So many columns of a table, or numbers of an array, are looked at first."""
BLOCK = 1 << 15
"""So many entries of a table are compared at once: they fit into a core's cache."""
_add = np.add.reduce


class OutOfTime(Exception):
    """Time was up before there was anything to go on with."""


def in_time(until: float) -> None:
    """Raise `OutOfTime` after that."""
    if monotonic() > until:
        raise OutOfTime


class _Once:
    """Results of operations on arrays, by the identity of those; all arrays are kept, so that identities last."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], Any] = {}
        self.kept: list[object] = []

    def array(self, found: Ints) -> Ints:
        """The one array for all equal ones."""
        flat = np.ravel(found)
        key = ("is", found.shape, int(_add(flat)), flat[:: 1 + flat.size // SAMPLED].tobytes())
        alike: list[Ints] = self.known.setdefault(key, [])
        for same in alike:
            if np.array_equal(same, found):
                return same
        alike.append(found)
        return found

    def turned(self, table: Ints) -> Ints:
        key = ("turned", id(table))
        found: Ints | None = self.known.get(key)
        if found is None:
            self.kept.append(table)
            found = self.known[key] = self.array(np.ascontiguousarray(table.T))
        return found

    def plus(self, a: Ints, b: Ints) -> Ints:
        key = ("plus", id(a), id(b))
        found: Ints | None = self.known.get(key)
        if found is None:
            self.kept += [a, b]
            found = self.known[key] = self.array(a + b)
        return found

    def row(self, table: Ints) -> Ints:
        """The only row of a table."""
        key = ("row", id(table))
        found: Ints | None = self.known.get(key)
        if found is None:
            self.kept.append(table)
            found = self.known[key] = self.array(np.ascontiguousarray(table[0]))
        return found

    def leaf(self, cost: Ints, table: Ints) -> Ints:
        """For each strategy of the neighbour the best price."""
        key = ("leaf", id(cost), id(table))
        found: Ints | None = self.known.get(key)
        if found is None:
            self.kept += [cost, table]
            found = self.known[key] = self.array((cost[:, None] + table).min(0))
        return found

    def between(self, cost: Ints, a: Ints, b: Ints) -> Ints:
        """For each pair of strategies of the two neighbours the best price."""
        key = ("between", id(cost), id(a), id(b))
        found: Ints | None = self.known.get(key)
        if found is None:
            self.kept += [cost, a, b]
            own = cost[:, None] + a
            least = own[0][:, None] + b[0]
            for mine, theirs in zip(own[1:], b[1:]):  # much faster than all at once
                np.minimum(least, mine[:, None] + theirs, out=least)
            found = self.known[key] = self.array(least)
        return found

    def useful(self, cost: Ints, tables: Sequence[Ints], each: bool) -> Ints | None:
        """The strategies that no other one beats; None if those are all.

        ``each`` asks for one that is never more expensive in any table, however often the table counts.
        """
        if each:
            tables = list({id(table): table for table in tables}.values())
        key = ("useful", each, id(cost), *map(id, tables))
        if key not in self.known:
            self.kept += [cost, *tables]
            self.known[key] = self._useful(cost, tables, each)
        found: Ints | None = self.known[key]
        return found

    def _useful(self, cost: Ints, tables: Sequence[Ints], each: bool) -> Ints | None:
        # Of many, most pairs are told apart where the first one looks best, most others by a few columns of each table.
        if cost.size <= FEW:
            first, second = np.nonzero(~np.eye(cost.size, dtype=np.bool_))
            beaten = _beaten(cost.size, *_beating(cost, tables, each, first, second))
        else:
            may, beaten = _may_beat(cost, tables, each), np.zeros(cost.size, np.bool_)
            # Each is held against the one that looks best for it, first.  What beats one that is beaten beats all that
            # this one does, so those that are beaten may be left out.
            if not each:
                guessed = np.flatnonzero(may.max(1) >= 0)
                found = _surely(cost, tables, guessed, may[guessed].argmax(1))
                may[found] = may[:, found] = -1
                beaten[found] = True
            first, second = np.nonzero(may >= 0)
            if not each:
                first, second = _likely(cost, tables, first, second)
            beaten = beaten | _beaten(cost.size, *_beating(cost, tables, each, first, second))
        return np.flatnonzero(~beaten) if beaten.any() else None

    def rows(self, array: Ints, kept: Ints) -> Ints:
        key = ("rows", id(array), kept.tobytes())
        found: Ints | None = self.known.get(key)
        if found is None:
            self.kept.append(array)
            found = self.known[key] = self.array(np.ascontiguousarray(array[kept]))
        return found


def _may_beat(cost: Ints, tables: Sequence[Ints], each: bool) -> Ints:
    """Of pairs of strategies what the second saves where, in each table, the first is nearest to the best: at least
    what it saves everywhere.  Below 0 where it costs more."""
    saved = cost[:, None] - cost[None]
    may = saved >= 0
    for table in tables:
        turned = np.ascontiguousarray(table.T)
        there = turned[(table - turned.min(1)).argmin(1)]
        less = np.diagonal(there)[:, None] - there
        may &= less >= 0
        saved = saved + less
    if each:
        saved = np.where(may, 0, -1)
    np.fill_diagonal(saved, -1)
    return saved


def _likely(cost: Ints, tables: Sequence[Ints], first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Of pairs of strategies those left by what a few columns of each table say, which is never less than what all of
    them do."""
    saved = cost[first] - cost[second]
    for table in tables:
        saved = saved + _least_saved(table[:, :: max(1, table.shape[1] // SAMPLED)], first, second)
    left = saved >= 0
    return first[left], second[left]


def _surely(cost: Ints, tables: Sequence[Ints], first: Ints, second: Ints) -> Ints:
    """The first ones of pairs whose second one is cheaper whatever the neighbours do, or never more expensive and comes
    before it: so no chain of them ends where it began."""
    saved = cost[first] - cost[second]
    for table in tables:
        saved = saved + _least_saved(table, first, second)
    found: Ints = first[(saved > 0) | ((saved == 0) & (second < first))]
    return found


def _beaten(count: int, first: Ints, second: Ints) -> Mask:
    """Which of the strategies are beaten; of two that beat each other the first stays."""
    beats = np.zeros((count, count), np.bool_)
    beats[first, second] = True
    order = np.arange(count)
    return np.asarray((beats & ~(beats.T & (order[:, None] <= order))).any(1))


def _beating(cost: Ints, tables: Sequence[Ints], each: bool, first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Of pairs of strategies those of which the second never costs more than the first, whatever the neighbours do."""
    saved = cost[first] - cost[second]
    if each:
        left = saved >= 0
        first, second = first[left], second[left]
        for table in sorted(tables, key=lambda table: table.shape[1]):
            left = _least_saved(table, first, second) >= 0
            first, second = first[left], second[left]
        return first, second
    for table in tables:
        saved = saved + _least_saved(table, first, second)
    left = saved >= 0
    return first[left], second[left]


def _least_saved(table: Ints, first: Ints, second: Ints) -> Ints:
    """By how much at least the second row of each pair is below the first."""
    at_once = max(1, BLOCK // max(1, table.shape[1]))
    found = np.empty(first.size, np.int64)
    for start in range(0, first.size, at_once):
        some = slice(start, start + at_once)
        (table[first[some]] - table[second[some]]).min(1, out=found[some])
    return found


Step = tuple[Any, ...]
"""A variable that was eliminated, its neighbours, its costs, and its tables with them; or one that lost strategies, no
neighbours, and for each that was left what it was."""


@dataclass(frozen=True, slots=True)
class Compact:
    """A smaller problem whose optimum plus ``offset`` is the original's, and the way back."""

    problem: NumericProblem
    offset: int
    size: int
    left: tuple[int, ...]
    steps: tuple[Step, ...]
    offsets: Mapping[int, int] = field(default_factory=dict)
    """The parts of the offset that come from each layer."""

    def strategies(self) -> list[Ints]:
        """Of each variable that is left those of its strategies that are."""
        found = {at: np.arange(row.size) for at, row in zip(self.left, self.problem.costs)}
        first: dict[int, Ints] = {}
        for at, near, own, *tables in self.steps:
            if at in found and not near and not tables:
                first[at] = first[at][own] if at in first else own
        return [*(found | first).values()]

    def back(self, choice: Sequence[int]) -> list[int]:
        full = [0] * self.size
        for at, pick in zip(self.left, choice):
            full[at] = pick
        for at, near, own, *tables in reversed(self.steps):
            if tables:
                total = own
                for other, table in zip(near, tables):
                    total = total + table[:, full[other]]
                full[at] = int(total.argmin())
            else:
                full[at] = int(own[full[at]])
        return full


def compact(
    costs: Sequence[Ints],
    edges: Sequence[tuple[int, int, Ints]],
    name: str = "",
    kept: Collection[int] = (),
    layer: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
    until: float = inf,
) -> Compact:
    """Arrays given more than once should be the same object; none is changed.

    Variables that are left come in the order of their numbers, or in that of ``order``.

    With ``layer`` (-1: none), no two variables are linked whose layers are not next to each other, and what a layer
    costs with a variable of no layer stays with the layer, so that it can be repeated.  Variables that are
    ``kept`` are not eliminated unless they have nothing to choose, and lose no strategies if they are of a layer; if
    not, only such as are never needed however many layers there are.
    """
    work = _Compaction(costs, edges, frozenset(kept), layer, until)
    for _ in range(ROUNDS):
        work.eliminate()
        if not work.prune():
            break
    return work.result(name, order)


class _Compaction:
    def __init__(
        self,
        costs: Sequence[Ints],
        edges: Sequence[tuple[int, int, Ints]],
        held: frozenset[int],
        layer: Sequence[int] | None,
        until: float,
    ) -> None:
        self.held, self.layer, self.until = held, layer, until
        self.once = _Once()
        self.cost = [self.once.array(row) for row in costs]
        self.tables: list[dict[int, Ints]] = [{} for _ in costs]
        self.gone = [False] * len(costs)
        self.steps: list[Step] = []
        self.offset = 0
        self.offsets: dict[int, int] = {}
        for i, j, table in edges:
            in_time(until)
            if i == j:
                self.cost[i] = self.once.array(self.cost[i] + np.diagonal(table))
            else:
                self.link(i, j, table)

    def link(self, i: int, j: int, table: Ints) -> None:
        known = self.tables[i].get(j)
        if known is not None:
            table = self.once.plus(known, table)
        self.tables[i][j] = table
        self.tables[j][i] = self.once.turned(table)

    def eliminate(self) -> None:
        queue = deque(at for at in range(len(self.cost)) if not self.gone[at])
        waiting = set(queue)
        while queue:
            in_time(self.until)
            at = queue.popleft()
            waiting.discard(at)
            if self.gone[at]:
                continue
            near = list(self.tables[at])
            if self.cost[at].size == 1 and near:
                for other in self.settle(at, near):
                    if len(self.tables[other]) <= 2 and other not in waiting:
                        waiting.add(other)
                        queue.append(other)
                continue
            if len(near) > 2 or at in self.held or self.far(near) or (near and not self.own(at, near)):
                continue
            if not near:
                pick = int(self.cost[at].argmin())
                self.count(at, int(self.cost[at][pick]))
                self.steps.append((at, (), np.full(self.cost[at].size, pick)))
            elif len(near) == 1:
                table = self.tables[at][near[0]]
                self.cost[near[0]] = self.once.plus(self.cost[near[0]], self.once.leaf(self.cost[at], table))
                self.steps.append((at, near, self.cost[at], table))
            else:
                first, second = near
                a, b = self.tables[at][first], self.tables[at][second]
                size = a.shape[1] * b.shape[1]
                if size > max(PAIR, a.size, b.size) or size * a.shape[0] > CUBE:
                    continue
                self.steps.append((at, near, self.cost[at], a, b))
                self.link(first, second, self.once.between(self.cost[at], a, b))
            self.gone[at] = True
            for other in near:
                del self.tables[other][at]
            self.tables[at] = {}
            for other in near:
                if len(self.tables[other]) <= 2 and other not in waiting:
                    waiting.add(other)
                    queue.append(other)

    def count(self, at: int, cost: int) -> None:
        self.offset += cost
        if self.layer is not None:
            self.offsets[self.layer[at]] = self.offsets.get(self.layer[at], 0) + cost

    def far(self, near: Sequence[int]) -> bool:
        """Whether two variables must not be linked."""
        if self.layer is None or len(near) < 2:
            return False
        a, b = (self.layer[other] for other in near)
        return a >= 0 and b >= 0 and abs(a - b) > 1

    def own(self, at: int, near: Sequence[int]) -> Sequence[int]:
        """The neighbours that may take over what a variable costs.

        Those of no layer may not, if it is of one: where a layer stands for many, they pay for each.
        """
        layer = self.layer
        if layer is None or layer[at] < 0:
            return near
        return [other for other in near if layer[other] >= 0]

    def settle(self, at: int, near: Sequence[int]) -> Sequence[int]:
        """A variable without a choice: what it costs with its neighbours is theirs, if it may be; those that paid."""
        mine = self.own(at, near)
        for other in mine:
            self.cost[other] = self.once.plus(self.cost[other], self.once.row(self.tables[at][other]))
            del self.tables[other][at], self.tables[at][other]
        if not self.tables[at]:
            self.count(at, int(self.cost[at][0]))
            self.steps.append((at, (), np.zeros(1, np.int64)))
            self.gone[at] = True
        return mine

    def prune(self) -> bool:
        """Drop strategies that are never needed; whether there were any."""
        found = False
        for at in range(len(self.cost)):
            in_time(self.until)
            if self.gone[at] or self.cost[at].size == 1:
                continue
            held = at in self.held
            if held and self.layer is not None and self.layer[at] >= 0:
                continue
            kept = self.once.useful(self.cost[at], list(self.tables[at].values()), held)
            if kept is None:
                continue
            found = True
            self.cost[at] = self.once.rows(self.cost[at], kept)
            self.steps.append((at, (), kept))
            for other, table in self.tables[at].items():
                smaller = self.once.rows(table, kept)
                self.tables[at][other] = smaller
                self.tables[other][at] = self.once.turned(smaller)
        return found

    def result(self, name: str, order: Sequence[int] | None) -> Compact:
        left = [at for at in order or range(len(self.cost)) if not self.gone[at]]
        place = {at: i for i, at in enumerate(left)}
        near = [sorted(((place[j], table) for j, table in self.tables[i].items()), key=_first) for i in left]
        edges = [(i, j, table) for i, links in enumerate(near) for j, table in links if i < j]
        small = NumericProblem.build([self.cost[at] for at in left], edges, name=name)
        return Compact(small, self.offset, len(self.cost), tuple(left), tuple(self.steps), self.offsets)


def _first(pair: tuple[int, Ints]) -> int:
    return pair[0]
