"""The numeric problem of a deep stack, made of the short one's by repeating its inner layer.

Variables in the same place of different layers are one batch (`numeric.batches`); so depth costs hardly anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import monotonic

import numpy as np

from ...optimize.alike import split
from ...optimize.batches import Batches, Link
from ...optimize.compact import Compact
from ...optimize.core import sweep, warm
from ...optimize.problem import Floats, Ints

Rows = tuple[Ints, Ints, int]
"""Edges: members of one batch, of the other, and what they stand for, as in `Deep.edges`."""

Said = dict[tuple[int, int], Floats]
"""By two variables, before a problem is compacted: what the first one was last told by the second, for each of its
strategies; not a number for those that were left out."""


@dataclass(frozen=True)
class Inner:
    """A compacted problem whose variables know their layer (-1: none) and their place in it."""

    small: Compact
    layer: Sequence[int]
    key: Sequence[Hashable]
    low: int
    """Layer ``low - 1`` stands for those that are left out after it."""
    layers: int
    """How many the short stack has, though of some no variable may be left."""

    @classmethod
    def of(cls, small: Compact, layer: Sequence[int], key: Sequence[Hashable], low: int) -> Inner:
        left = [layer[at] for at in small.left], [key[at] for at in small.left]
        return cls(small, *left, low, max(layer, default=-1) + 1)

    def is_regular(self) -> bool:
        """Whether the layers before and after those left out are equal, and linked like their neighbours."""
        problem, here = self.small.problem, self.low - 1

        def shifted(i: int, by: int) -> int | None:
            return i if self.layer[i] < 0 else self.at.get((self.layer[i] + by, self.key[i]))

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

    @cached_property
    def at(self) -> dict[tuple[int, Hashable], int]:
        """Variables by layer and place."""
        return {(layer, key): i for i, (layer, key) in enumerate(zip(self.layer, self.key)) if layer >= 0}

    @cached_property
    def linked(self) -> set[Hashable]:
        """Places that are linked to the same ones of the layers next to them."""
        keys = ((self.key[edge.first], self.key[edge.second]) for edge in self.small.problem.edges)
        return {first for first, second in keys if first == second}

    @cached_property
    def tables(self) -> list[tuple[Ints, Ints]]:
        """Of all edges, and turned; equal ones are one array."""
        known: dict[object, Ints] = {}
        pairs: dict[int, tuple[Ints, Ints]] = {}
        tables = [edge.table for edge in self.small.problem.edges]
        for table in tables:
            if id(table) not in pairs:
                first, second = (
                    known.setdefault((one.shape, one.tobytes()), one) for one in (table, np.ascontiguousarray(table.T))
                )
                pairs[id(table)] = first, second
        return [pairs[id(table)] for table in tables]


class Deep:
    """The problem with ``out`` layers put back."""

    def __init__(self, inner: Inner, out: int, coarse: bool = False) -> None:
        self.inner, self.out = inner, out
        problem = inner.small.problem
        self.offset = inner.small.offset + out * inner.small.offsets.get(inner.low - 1, 0)
        # Batches in the order of their first variables; their members in the order of layers.
        names: dict[tuple[Hashable, ...], int] = {}
        parts: list[list[tuple[range, int, slice]]] = []
        """Of each batch: layers, variables of the short problem, and which of the layers that these stand for."""
        for i, (layer, key) in enumerate(zip(inner.layer, inner.key)):
            size, deep = problem.costs[i].size, self.deep(layer)
            # Neighbours must be of different batches: a variable that is linked to its own kind is so layer by layer.
            step = 2 if layer >= 0 and key in inner.linked else 1
            for first in range(min(step, len(deep))):
                kind = (key, deep[first] % step) if layer >= 0 else (i,)
                batch = names.setdefault((layer < 0, *kind, size), len(names))
                if batch == len(parts):
                    parts.append([])
                parts[batch].append((deep[first::step], i, slice(first, None, step)))
        self.member = [np.zeros((2, len(self.deep(layer))), np.int64) for layer in inner.layer]
        """Of each variable of the short problem: batches and rows in them, by the layers that it stands for."""
        self.batch = [-1] * len(inner.layer)
        """Of each variable of the short problem, if it is one for all layers."""
        costs = [self._batch(batch, members) for batch, members in enumerate(parts)]
        links: dict[tuple[int, int, int], tuple[list[Rows], Ints]] = {}
        for number, edge in enumerate(problem.edges):
            table, turned = inner.tables[number]
            for batch, rows, other, other_rows in self.pairs(edge.first, edge.second):
                if batch < other:
                    rows_of = links.setdefault((batch, other, id(table)), ([], table))[0]
                    rows_of.append((rows, other_rows, 2 * number))
                else:
                    rows_of = links.setdefault((other, batch, id(turned)), ([], turned))[0]
                    rows_of.append((other_rows, rows, 2 * number + 1))
        made = []
        self.edges: list[Ints] = []
        """Of each link's rows twice the edge of the short problem that it stands for, and one more if it is turned."""
        for (batch, other, _), (pairs, table) in links.items():
            mine, theirs = (np.concatenate([one[side] for one in pairs]) for side in (0, 1))
            numbers = np.repeat([one[2] for one in pairs], [one[0].size for one in pairs])
            for part in split(mine, theirs, len(costs[batch]) > 1, len(costs[other]) > 1):
                made.append(Link(batch, other, mine[part], theirs[part], table))
                self.edges.append(numbers[part])
        self.batches = Batches(costs, made, coarse)

    def _batch(self, batch: int, parts: Sequence[tuple[range, int, slice]]) -> Ints:
        """Give a batch's members their rows, by layer; what their strategies cost."""
        costs, row, sizes = [], 0, []
        # Layers that one variable stands for follow each other, so none of another comes between them.
        for layers, i, where in sorted(parts, key=lambda part: part[0][0]):
            self.member[i][0, where] = batch
            self.member[i][1, where] = np.arange(row, row + len(layers))
            if where.step == 1 or self.member[i].shape[1] == 1:
                self.batch[i] = batch
            row += len(layers)
            costs.append(self.inner.small.problem.costs[i])
            sizes.append(len(layers))
        return np.repeat(costs, sizes, 0)

    def deep(self, layer: int) -> range:
        """Where a layer of the short stack is in the deep one."""
        low = self.inner.low
        if layer == low - 1:
            return range(low - 1, low + self.out)
        first = layer if layer < low else layer + self.out
        return range(first, first + 1)

    def pairs(self, first: int, second: int) -> list[tuple[int, Ints, int, Ints]]:
        """The deep edges that an edge of the short problem stands for: for each two batches, rows of the one and of the
        other."""
        here, layer, member = self.inner.low - 1, self.inner.layer, self.member
        a, b = layer[first], layer[second]
        mine, theirs = member[first], member[second]
        batch, other = self.batch[first], self.batch[second]
        if (a == here and b == here + 1) or (a == here + 1 and b == here):
            # The last of the copies is before the layer above; each other one before its like.
            upper = first if b == here else second
            like = self.inner.at[here, self.inner.key[upper]]
            above = np.concatenate([member[like][:, 1:], member[upper]], 1)
            if self.out and self.batch[like] != self.batch[upper]:
                batch = -1
            mine, theirs = (above, theirs) if upper == first else (mine, above)
        elif a == here and b == -1:
            theirs = np.repeat(theirs, mine.shape[1], 1)
        elif b == here and a == -1:
            mine = np.repeat(mine, theirs.shape[1], 1)
        elif a != here or b != here:
            mine, theirs = mine[:, :1], theirs[:, :1]
            batch, other = int(mine[0, 0]), int(theirs[0, 0])
        if batch >= 0 and other >= 0:
            return [(batch, mine[1], other, theirs[1])]
        found = []
        for batch, other in dict.fromkeys(zip(mine[0].tolist(), theirs[0].tolist())):
            some = (mine[0] == batch) & (theirs[0] == other)
            found.append((batch, mine[1, some], other, theirs[1, some]))
        return found

    def start_from(self, shallow: Deep) -> None:
        """Take over the messages of a stack of fewer layers."""
        known = np.zeros((2, len(self.inner.small.problem.edges)), np.int64)
        for link, edges in enumerate(shallow.edges):
            known[0, edges >> 1] = 2 * link + (edges & 1)
            known[1, edges >> 1] = np.arange(edges.size)
        for mine, edges in zip(self.batches.boxes, self.edges):
            links, rows = known[:, edges >> 1]
            links ^= edges & 1
            kinds = set(links.tolist())
            for link in kinds:
                some = slice(None) if len(kinds) == 1 else links == link
                for a, b in zip(mine, shallow.batches.boxes[link >> 1][:: -1 if link & 1 else 1]):
                    a[some] = b[rows[some]]

    def _told(self) -> Iterator[tuple[tuple[int, int], Ints, Floats]]:
        """Of a stack without the layers left out: who tells whom, the strategies that are left of who is told, and the
        message."""
        inner, left = self.inner, self.inner.small.left
        kept = inner.small.strategies()
        for edges, boxes in zip(self.edges, self.batches.boxes):
            for row, number in enumerate(edges.tolist()):
                edge = inner.small.problem.edges[number >> 1]
                ends = (edge.second, edge.first) if number & 1 else (edge.first, edge.second)
                for box, (mine, theirs) in zip(boxes, (ends, ends[::-1])):
                    yield (left[mine], left[theirs]), kept[mine], box[row]

    def recall(self, said: Said) -> None:
        """Start from what was said in a problem with other prices; what is not known costs as much as what cost most.

        Any messages are a start.
        """
        for key, kept, message in self._told() if said else ():
            known = said.get(key)
            here = kept[kept < known.size] if known is not None else kept[:0]
            if known is not None and here.size and not np.isnan(known[here]).all():
                message[:] = np.nanmax(known[here])
                message[: here.size] = np.where(np.isnan(known[here]), message[0], known[here])
                message -= message.min()

    def remember(self, said: Said) -> None:
        for key, kept, message in self._told():
            said[key] = np.full(int(kept[-1]) + 1, np.nan, message.dtype)
            said[key][kept] = message

    # -- solving ------------------------------------------------------------------------------------------

    def solve(
        self, seconds: float | None = None, narrowed: bool = True, rough: bool = False, said: Said | None = None
    ) -> DeepChoice:
        """Sweep until bound and choice meet, the bound stands still, or time is up; sooner for a ``rough`` choice, or
        where only the bound counts and nothing is ``narrowed``.

        A stack without the layers left out is solved first, from what was ``said`` in one with other prices: from its
        messages, a deep one takes a few sweeps.
        """
        until = float("inf") if seconds is None else monotonic() + seconds
        if self.out:
            shallow = Deep(self.inner, 0, True)
            if said is not None:
                shallow.recall(said)
            warm(shallow.batches, until, rough)
            if said is not None:
                shallow.remember(said)
            self.start_from(shallow)
        found = sweep(self.batches, until, rough or not narrowed, narrowed)
        cost, bound = found.cost + self.offset, found.lower_bound + self.offset
        return DeepChoice(self.inner, self.out, self.picked(found.picks), cost, bound, found.late, "messages")

    def picked(self, picks: Sequence[Ints]) -> list[Ints]:
        """Of each variable of the short problem, by the layers that it stands for, what its batches' members pick."""
        return [
            picks[batch][rows[1]] if batch >= 0 else np.array([picks[a][b] for a, b in rows.T.tolist()])
            for batch, rows in zip(self.batch, self.member)
        ]


@dataclass(frozen=True)
class DeepChoice:
    """What was found for a short problem with layers put back, what it costs, and a bound."""

    inner: Inner
    out: int
    picks: Sequence[Ints]
    """Of each variable of the short problem, by the layers that it stands for."""
    cost: int
    lower_bound: int
    late: bool
    solver: str

    def rows(self) -> tuple[Ints, Ints]:
        """Choices for the short problem's variables.

        First as the layers of the short stack have it.  Then, for each of the layers that one of them stands for, as
        that one and its neighbours have it.
        """
        inner, mine = self.inner, self.picks
        here, costs = inner.low - 1, inner.small.problem.costs
        alone = np.array([picks[0] for picks in mine])
        found = np.tile(alone, (self.out + 1, 1))
        for i, own in enumerate(inner.layer):
            if own == here:
                found[:, i] = mine[i]
            elif own == here - 1:
                # Only what links layers is asked about there, and of that all strategies are kept.
                like = inner.at.get((here, inner.key[i]))
                if like is not None and costs[like].size == costs[i].size:
                    found[1:, i] = mine[like][:-1]
            elif own == here + 1 and self.out:
                found[:-1, i] = mine[inner.at[here, inner.key[i]]][1:]
        return alone, found

    def choices(self) -> list[list[int]]:
        """For every layer of the deep stack, and last for what is of no layer: a choice for all variables of the short
        stack's problem, of which those of that layer count.  Equal ones are one list."""
        inner = self.inner
        here = inner.low - 1
        known: dict[bytes, list[int]] = {}

        def back(choice: Ints) -> list[int]:
            key = choice.tobytes()
            if key not in known:
                known[key] = inner.small.back(choice.tolist())
            return known[key]

        alone, rows = self.rows()
        found = [
            back(alone if layer < here else rows[min(layer - here, self.out)])
            for layer in range(inner.layers + self.out)
        ]
        return [*found, back(alone)]
