"""A problem in batches without the strategies that only plans far from the bound use.

What the messages have moved around says of every strategy how much more than the bound a choice with it must cost: its
*slack*.  If no choice within some room above the bound needs more than a few strategies of each variable, the rest may
be left out, and what was hundreds of strategies is mostly one: such variables go altogether.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .batches import Batches, Link
from .problem import Floats, Ints


@dataclass(frozen=True, eq=False)
class Narrow:
    """What is left of a problem; its costs plus ``offset`` are the other's."""

    batches: Batches
    kept: Sequence[Ints]
    """Of every batch the strategies that are left."""
    place: Sequence[int]
    """Of every batch what it is now; -1 where nothing is left to choose."""
    sizes: Sequence[int]
    """Members of every batch."""
    offset: int

    @property
    def states(self) -> int:
        return sum(map(len, self.kept))

    def wide(self, picks: Sequence[Ints]) -> list[Ints]:
        """A choice for the problem as it was."""
        return [
            kept[picks[now]] if now >= 0 else np.full(size, kept[0])
            for kept, now, size in zip(self.kept, self.place, self.sizes)
        ]


def narrow(batches: Batches, slack: Sequence[Floats], room: float) -> Narrow:
    """With strategies whose slack is within a room."""
    kept = [np.flatnonzero(row <= max(room, row.min())) for row in slack]
    costs = [rows[:, some] for rows, some in zip(batches.costs, kept)]
    place: list[int] = []
    for some in kept:
        place.append(-1 if len(some) == 1 else 1 + max(place, default=-1))
    offset = sum(int(rows.sum()) for rows, now in zip(costs, place) if now < 0)
    links, messages = [], []
    for link, boxes in zip(batches.links, batches.boxes):
        first, second = kept[link.first], kept[link.second]
        table = np.ascontiguousarray(link.table[first[:, None], second])
        alone, other = place[link.first] < 0, place[link.second] < 0
        if alone and other:
            offset += int(table[0, 0]) * len(link.mine)
        elif alone:
            np.add.at(costs[link.second], link.theirs, table[0])
        elif other:
            np.add.at(costs[link.first], link.mine, table[:, 0])
        else:
            links.append(Link(place[link.first], place[link.second], link.mine, link.theirs, table))
            messages.append((boxes[0][:, first], boxes[1][:, second]))
    made = Batches([rows for rows, now in zip(costs, place) if now >= 0], links)
    for mine, theirs in zip(made.boxes, messages):
        for box, message in zip(mine, theirs):
            np.subtract(message, message.min(1)[:, None], out=box)
    return Narrow(made, kept, place, [len(rows) for rows in costs], offset)
