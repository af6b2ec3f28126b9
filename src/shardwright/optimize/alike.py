"""Batches of a problem's variables that are alike: what is done to one of them is done to all at once.

Variables are alike that have equally many strategies and edges with the same tables.  So the layers of a model that
does not fold, and parts of one layer, are swept in step, which takes a fifth of the time that one after the other does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from .batches import Batches, Link
from .problem import Ints, NumericProblem


@dataclass(frozen=True)
class Alike:
    """A problem in batches, and where each variable is."""

    batches: Batches
    batch: Sequence[int]
    row: Sequence[int]

    def choice(self, picks: Sequence[Ints]) -> list[int]:
        """What every variable picks, of what the members of batches do."""
        return [int(picks[batch][row]) for batch, row in zip(self.batch, self.row)]


def alike(problem: NumericProblem) -> Alike:
    """Batches in the order of their first variables; neighbours are of different ones."""
    tables: dict[Hashable, int] = {}
    numbers = [tables.setdefault((edge.table.shape, edge.table.tobytes()), len(tables)) for edge in problem.edges]
    kind: list[list[tuple[int, int]]] = [[] for _ in problem.costs]
    near: list[list[int]] = [[] for _ in problem.costs]
    for edge, table in zip(problem.edges, numbers):
        kind[edge.first].append((table, 0))
        kind[edge.second].append((table, 1))
        near[edge.first].append(edge.second)
        near[edge.second].append(edge.first)
    batch, row, members = [-1] * problem.nodes, [0] * problem.nodes, list[list[int]]()
    known: dict[Hashable, list[int]] = {}
    for at, costs in enumerate(problem.costs):
        mine = known.setdefault((costs.size, tuple(sorted(kind[at]))), [])
        beside = {batch[other] for other in near[at]}
        free = next((one for one in mine if one not in beside), len(members))
        if free == len(members):
            members.append([])
            mine.append(free)
        batch[at], row[at] = free, len(members[free])
        members[free].append(at)
    pairs: dict[tuple[int, int, int, bool], list[tuple[int, int]]] = {}
    for edge, table in zip(problem.edges, numbers):
        first, second = sorted((edge.first, edge.second), key=batch.__getitem__)
        key = (batch[first], batch[second], table, first == edge.first)
        pairs.setdefault(key, []).append((row[first], row[second]))
    found = dict(zip(numbers, (edge.table for edge in problem.edges)))
    links = []
    for (first, second, table, straight), rows in pairs.items():
        mine_rows, theirs = np.array(rows, np.int64).T
        values = found[table] if straight else np.ascontiguousarray(found[table].T)
        for part in split(mine_rows, theirs, len(members[first]) > 1, len(members[second]) > 1):
            links.append(Link(first, second, mine_rows[part], theirs[part], values))
    costs_of = [np.stack([problem.costs[at] for at in mine]) for mine in members]
    return Alike(Batches(costs_of, links), batch, row)


def split(first: Ints, second: Ints, mine: bool, theirs: bool) -> list[Ints | slice]:
    """Parts of edges in which every member of a batch (unless it is alone there) has one edge at most."""
    if not (mine and np.bincount(first).max() > 1) and not (theirs and np.bincount(second).max() > 1):
        return [slice(None)]
    found: list[Ints | slice] = []
    left = list(range(first.size))
    rows = list(zip(first.tolist(), second.tolist()))
    while left:
        seen: tuple[set[int], set[int]] = (set(), set())
        now: list[int] = []
        later: list[int] = []
        for i in left:
            a, b = rows[i]
            if (mine and a in seen[0]) or (theirs and b in seen[1]):
                later.append(i)
            else:
                now.append(i)
                seen[0].add(a)
                seen[1].add(b)
        found.append(np.array(now))
        left = later
    return found


__all__ = ["Alike", "alike", "split"]
