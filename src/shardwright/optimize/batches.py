"""Message passing on problems with equal parts: variables come in batches, and so do edges with one table.

The same as `messages` (TRW-S) where the variables of a batch follow each other in the order of visits.  Those of a
batch have equally many strategies and no edges among them, so a batch is visited as one: a stack of equal layers takes
hardly longer than a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .problem import Floats, Ints

BLOCK = 1 << 13
"""So many sums of a table's entries and messages are made at once without looking for what is equal among them."""
PART = 1 << 16
"""So many at once where that was looked at: they stay in a core's caches."""
_add, _least = np.add.reduce, np.minimum.reduce


@dataclass(eq=False)
class Link:
    """Edges with one table between members of two batches; each member has at most one of them, or the batch is one."""

    first: int
    second: int
    """The batches, in the order of visits."""
    mine: Ints
    theirs: Ints
    """Which members, edge by edge."""
    table: Ints


@dataclass(eq=False)
class _Side:
    """A link as seen from one of its batches."""

    link: int
    rows: Ints | slice
    """Members of this batch, edge by edge."""
    other: int
    other_rows: Ints
    table: Floats
    """(strategies here, 1, strategies there)"""
    inbox: Floats
    outbox: Floats
    """Messages over these edges, to this batch and to the other one."""
    alone: bool
    """Whether this batch has one member, and perhaps many of these edges."""
    rest: Floats
    """Room for what this batch says, edge by edge, and the same seen as (strategies here, edges, 1)."""
    turned: Floats
    work: Floats | None = None
    """Room for the sums of both: (strategies here, edges, strategies there); None where they are made part by part."""


@dataclass(eq=False)
class _Batch:
    unary: Floats
    ahead: list[_Side] = field(default_factory=list)
    behind: list[_Side] = field(default_factory=list)
    sides: list[_Side] = field(default_factory=list)
    """Those ahead and those behind."""
    share: Floats = field(default_factory=lambda: np.zeros(0))
    """For each member, as a column."""

    def sums(self) -> Floats:
        found = self.unary.copy()
        for side in self.sides:
            if side.alone:
                found[0] += side.inbox[0] if len(side.inbox) == 1 else _add(side.inbox, 0)
            else:
                found[side.rows] += side.inbox
        return found


class Batches:
    """The state of message passing."""

    def __init__(self, costs: Sequence[Ints], links: Sequence[Link], coarse: bool = False) -> None:
        """``costs`` of each batch: a row for each member.

        ``coarse`` counts in half as many bytes, twice as fast: for messages that others start from, not for a bound.
        """
        kind: Any = np.float32 if coarse else np.float64
        self.batches = [_Batch(rows.astype(kind)) for rows in costs]
        self.costs, self.links = costs, links
        self.nudged = False
        self.boxes: list[tuple[Floats, Floats]] = []
        """Messages over each link's edges, to its first and to its second batch."""
        self.room = np.empty(max([BLOCK, PART, *(link.table.size for link in links)]), kind)
        """What is needed for a short time only: memory that is asked for anew each time takes longer than the sums."""
        counts = tuple([np.zeros(len(batch.unary)) for batch in self.batches] for _ in range(2))
        for number, link in enumerate(links):
            a, b = self.batches[link.first], self.batches[link.second]
            count = len(link.mine)
            to_first, to_second = (np.zeros((count, one.unary.shape[1]), kind) for one in (a, b))
            self.boxes.append((to_first, to_second))
            table = link.table.astype(kind)
            counts[0][link.first] += np.bincount(link.mine, minlength=len(a.unary))
            counts[1][link.second] += np.bincount(link.theirs, minlength=len(b.unary))
            a.ahead.append(
                self._side(number, link.mine, link.second, link.theirs, table, (to_first, to_second), len(a.unary) == 1)
            )
            b.behind.append(
                self._side(
                    number, link.theirs, link.first, link.mine, table.T, (to_second, to_first), len(b.unary) == 1
                )
            )
        for batch, ahead, behind in zip(self.batches, *counts):
            batch.sides = [*batch.ahead, *batch.behind]
            batch.share = (1.0 / np.maximum(1.0, np.maximum(ahead, behind))).astype(kind)[:, None]

    def _side(
        self,
        number: int,
        rows: Ints,
        other: int,
        other_rows: Ints,
        table: Floats,
        boxes: tuple[Floats, Floats],
        alone: bool,
    ) -> _Side:
        (here, there), edges = table.shape, len(rows)
        rest, size = np.empty((edges, here), table.dtype), here * edges * there
        inbox, outbox = boxes
        return _Side(
            number, _slice(rows), other, other_rows, np.ascontiguousarray(table)[:, None, :], inbox, outbox, alone,
            rest, rest.T[:, :, None], self.room[:size].reshape(here, edges, there) if size <= BLOCK else None,
        )  # fmt: skip

    def nudge(self, by: float) -> None:
        """Prefer strategies that come first, by this much from the first to the last; 0: no more."""
        self.nudged = by > 0
        for batch, rows in zip(self.batches, self.costs):
            size = rows.shape[1]
            batch.unary = rows + by * np.arange(size) / max(1, size - 1)

    def sweep(self) -> float:
        """Forward and back once; returns the bound."""
        for batch in self.batches:
            self._send(batch, batch.ahead)
        return sum(self._send(batch, batch.behind) for batch in reversed(self.batches))

    def slack(self) -> tuple[list[Floats], float]:
        """For every batch and strategy: by how much a choice in which a member takes it exceeds the bound, at least.

        Sweeps once more: where a batch is visited, what is beyond the least there is beyond the bound.
        """
        found = []
        for batch in self.batches:
            sums = batch.sums()
            found.append(_least(sums - _least(sums, 1)[:, None], 0))
            self._send(batch, batch.ahead)
        return found, sum(self._send(batch, batch.behind) for batch in reversed(self.batches))

    def _send(self, batch: _Batch, sides: Sequence[_Side]) -> float:
        # The ufuncs' own reductions: this runs some ten thousand times a second, on small arrays.
        sums = batch.sums()
        least = _least(sums, 1)
        total = float(_add(least))
        if not sides:
            return total
        sums -= least[:, None]
        sums *= batch.share
        for side in sides:
            np.subtract(sums if side.alone else sums[side.rows], side.inbox, out=side.rest)
            found = side.outbox
            if side.work is None:
                self._by_parts(side)
            else:
                np.add(side.table, side.turned, out=side.work)
                _least(side.work, 0, out=found)
            low = _least(found, 1)
            found -= low[:, None]
            total += float(_add(low))
        return total

    def _by_parts(self, side: _Side) -> None:
        """Write to the outbox the least sums of a table's entries and messages where they are too many to make at once.

        Layers in the middle of a stack mostly say the same, to the bit: neighbours that do are looked at once.
        """
        table, rest = side.table, side.rest
        here, _, there = table.shape
        first = np.flatnonzero(np.append(True, (rest[1:] != rest[:-1]).any(1)))
        found = side.outbox if first.size == len(rest) else np.empty((first.size, there), rest.dtype)
        members = max(1, PART // (here * there))
        for start in range(0, first.size, members):
            part = rest[first[start : start + members]].T[:, :, None]
            work = self.room[: here * part.shape[1] * there].reshape(here, part.shape[1], there)
            np.add(table, part, out=work)
            _least(work, 0, out=found[start : start + members])
        if found is not side.outbox:
            side.outbox[:] = np.repeat(found, np.diff(first, append=len(rest)), 0)

    def round(self) -> list[Ints]:
        """A choice for every member: what is best given the batches behind and the messages from ahead."""
        picks: list[Ints] = []
        for batch in self.batches:
            sums = batch.unary.copy()
            for side in batch.ahead:
                if side.alone:
                    sums[0] += _add(side.inbox, 0)
                else:
                    sums[side.rows] += side.inbox
            for side in batch.behind:
                found = side.table[:, 0, picks[side.other][side.other_rows]].T
                if side.alone:
                    sums[0] += found.sum(0)
                else:
                    sums[side.rows] += found
            picks.append(sums.argmin(1))
        return picks

    def evaluate(self, picks: Sequence[Ints]) -> int:
        """What a choice costs, exactly."""
        total = 0
        for rows, pick in zip(self.costs, picks):
            total += int(rows[np.arange(len(rows)), pick].sum())
        for link in self.links:
            total += int(link.table[picks[link.first][link.mine], picks[link.second][link.theirs]].sum())
        return total


def _slice(rows: Ints) -> Ints | slice:
    """Members that follow each other, as a slice: those need no copy."""
    first = int(rows[0])
    return slice(first, first + len(rows)) if (np.diff(rows) == 1).all() else rows
