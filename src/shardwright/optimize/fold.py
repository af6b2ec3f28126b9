"""Fold nodes into their neighbours, exactly, with the way back.

A worklist over edges applies, until nothing changes:

- a strategy with no allowed partner on some edge goes (arc consistency);
- a node with one strategy left moves its costs into its neighbours;
- a node that another one *decides* (each strategy of the other allows just one of its own) moves into that one, with
  its costs, edges and usages; views, copies and most of what an op reads vanish this way;
- a leaf keeps, for each strategy of its only neighbour, what is best in cost and bytes; one that holds no bytes is
  thereby decided, which is the elimination of a node of degree one;
- a node of degree two that holds no bytes becomes a table between its neighbours, if that is small.

Strategies are never renumbered while the list is worked on: masks say which are alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import PlanInfeasible
from .problem import NEVER, Edge, Ints, NumericProblem, Usage, plus

Mask = npt.NDArray[np.bool_]

MOST_ENTRIES_COMPARED = 4_000_000
"""The most entries a comparison of a leaf's strategies, or the making of a pair's table, may take."""
MOST_ENTRIES_OF_PAIR = 1_600
"""The most entries of a table made from a node of degree two, unless its own tables were larger."""


@dataclass(frozen=True, slots=True)
class Follows:
    """A node decided by another: its strategy for each strategy of that one."""

    node: int
    leader: int
    picks: Ints

    def back(self, choice: Ints) -> None:
        choice[self.node] = self.picks[choice[self.leader]]


@dataclass(frozen=True, slots=True)
class Between:
    """A node of degree two: its best strategy for each pair of its neighbours'."""

    node: int
    first: int
    second: int
    picks: Ints

    def back(self, choice: Ints) -> None:
        choice[self.node] = self.picks[choice[self.first], choice[self.second]]


@dataclass(frozen=True, slots=True)
class Fixed:
    """A node with one strategy left."""

    node: int
    pick: int

    def back(self, choice: Ints) -> None:
        choice[self.node] = self.pick


@dataclass(frozen=True, slots=True)
class Folded:
    """A smaller problem with the same optimum less ``offset``, and the way back."""

    problem: NumericProblem
    offset: int
    nodes: int
    kept: Ints
    """The nodes that are left."""
    states: tuple[Ints, ...]
    """Their strategies that are left."""
    steps: tuple[Follows | Between | Fixed, ...]

    def back(self, choice: Ints) -> Ints:
        """The choice for the problem as it was."""
        full = np.zeros(self.nodes, np.int64)
        if self.kept.size:
            full[self.kept] = [states[pick] for states, pick in zip(self.states, choice)]
        for step in reversed(self.steps):
            step.back(full)
        return full

    def forward(self, choice: Ints) -> Ints:
        """What a choice says about the nodes that are left; a strategy that is gone becomes the first."""
        found = np.zeros(self.kept.size, np.int64)
        for place, (node, states) in enumerate(zip(self.kept, self.states)):
            hit = np.flatnonzero(states == choice[node])
            found[place] = hit[0] if hit.size else 0
        return found


def fold(problem: NumericProblem) -> Folded:
    """Fold until nothing more folds."""
    work = _Work(problem)
    work.run()
    return work.result()


class _Work:
    def __init__(self, problem: NumericProblem) -> None:
        self.problem = problem
        self.cost = list(problem.costs)
        self.alive: list[Mask] = [row < NEVER for row in problem.costs]
        self.tables: list[dict[int, Ints]] = [{} for _ in problem.costs]
        for edge in problem.edges:
            self.tables[edge.first][edge.second] = edge.table
            self.tables[edge.second][edge.first] = edge.table.T
        self.usages: list[list[Usage]] = [[] for _ in problem.costs]
        for usage in problem.usages:
            self.usages[usage.node].append(usage)
        self.followers: list[list[Follows]] = [[] for _ in problem.costs]
        self.gone = np.zeros(problem.nodes, np.bool_)
        self.steps: list[Follows | Between | Fixed] = []
        self.queue: deque[tuple[int, int]] = deque()
        self.queued: set[tuple[int, int]] = set()

    def run(self) -> None:
        for node in range(self.problem.nodes):
            self.check(node)
        for edge in self.problem.edges:
            self.push(edge.first, edge.second)
        while True:
            while self.queue:
                pair = self.queue.popleft()
                self.queued.discard(pair)
                i, j = pair
                if j in self.tables[i]:
                    self.visit(i, j)
            for node in range(self.problem.nodes):
                if not self.gone[node] and not self.tables[node]:
                    self.alone(node)
            if not self.queue:
                return

    def push(self, i: int, j: int) -> None:
        pair = (i, j) if i < j else (j, i)
        if pair not in self.queued:
            self.queued.add(pair)
            self.queue.append(pair)

    def touch(self, node: int) -> None:
        for other in self.tables[node]:
            self.push(node, other)

    def check(self, node: int) -> None:
        if not self.alive[node].any():
            raise PlanInfeasible(f"no strategy of node {node} is allowed together with its neighbours'")

    def visit(self, i: int, j: int) -> None:
        """Look at one edge: drop what has no partner, fold what is decided."""
        allowed = (self.tables[i][j] < NEVER) & self.alive[i][:, None] & self.alive[j]
        by_row, by_column = allowed.sum(1), allowed.sum(0)
        for node, counts in ((i, by_row), (j, by_column)):
            mask = counts > 0
            if np.count_nonzero(mask) < np.count_nonzero(self.alive[node]):
                self.alive[node] = mask
                self.check(node)
                self.touch(node)
        rows, columns = int(np.count_nonzero(by_row)), int(np.count_nonzero(by_column))
        if rows == 1 or columns == 1:
            self.fix(i if rows == 1 else j)
            return
        entries = int(by_row.sum())
        row_decides, column_decides = entries == rows, entries == columns
        if row_decides and column_decides:
            row_decides = len(self.tables[j]) <= len(self.tables[i])
        if row_decides:
            self.follow(j, i, allowed.argmax(1))
        elif column_decides:
            self.follow(i, j, allowed.argmax(0))
        else:
            for node, other in ((i, j), (j, i)):
                degree = len(self.tables[node])
                if degree == 1:
                    self.leaf(node, other)
                elif degree == 2 and not self.gone[node] and self.between(node):
                    return

    def remove(self, node: int) -> None:
        """Take a node out; its neighbours may now fold."""
        for other in self.tables[node]:
            del self.tables[other][node]
            if len(self.tables[other]) <= 2:
                self.touch(other)
        self.tables[node] = {}
        self.gone[node] = True

    def add_cost(self, node: int, extra: Ints) -> None:
        self.cost[node] = plus(self.cost[node], extra)
        mask = self.alive[node] & (self.cost[node] < NEVER)
        if np.count_nonzero(mask) < np.count_nonzero(self.alive[node]):
            self.alive[node] = mask
            self.check(node)
            self.touch(node)

    def fix(self, node: int) -> None:
        pick = int(self.alive[node].argmax())
        tables = self.tables[node]
        self.remove(node)
        self.steps.append(Fixed(node, pick))
        for other, table in tables.items():
            self.add_cost(other, table[pick])

    def follow(self, node: int, leader: int, picks: Ints) -> None:
        """Move a node into the one that decides it."""
        step = Follows(node, leader, picks)
        tables = self.tables[node]
        extra = plus(tables[leader][picks, np.arange(picks.size)], self.cost[node][picks])
        self.remove(node)
        self.steps.append(step)
        self.followers[leader].append(step)
        for other, table in tables.items():
            if other != leader:
                self.link(leader, other, table[picks])
        self.add_cost(leader, np.where(self.alive[leader], extra, 0))

    def link(self, i: int, j: int, table: Ints) -> None:
        known = self.tables[i].get(j)
        if known is not None:
            table = plus(known, table)
        self.tables[i][j] = table
        self.tables[j][i] = table.T
        self.push(i, j)

    def profile(self, node: int) -> list[Ints]:
        """The amounts of everything folded into a node, by its strategies."""
        found: list[Ints] = []
        stack: list[tuple[int, Ints]] = [(node, np.arange(self.cost[node].size))]
        while stack:
            here, picks = stack.pop()
            found += [usage.amounts[picks] for usage in self.usages[here]]
            stack += [(step.node, step.picks[picks]) for step in self.followers[here]]
        return found

    def no_less(self, node: int, states: Ints) -> Mask:
        """Whether the first of two strategies never holds less than the second."""
        result = np.ones((states.size, states.size), np.bool_)
        for amounts in self.profile(node):
            row = amounts[states]
            result &= row[:, None] >= row
        return result

    def leaf(self, node: int, other: int) -> None:
        """For each strategy of the neighbour, keep what is best in cost and bytes."""
        mine, theirs = np.flatnonzero(self.alive[node]), np.flatnonzero(self.alive[other])
        if mine.size * mine.size * theirs.size > MOST_ENTRIES_COMPARED:
            return
        costs = plus(self.tables[other][node][theirs][:, mine], self.cost[node][mine])
        bad = _beaten(costs, self.no_less(node, mine)) & (costs < NEVER)
        if bad.any():
            table = self.tables[other][node].copy()
            table[np.ix_(theirs, mine)] = np.where(bad, NEVER, table[np.ix_(theirs, mine)])
            self.tables[other][node], self.tables[node][other] = table, table.T
            self.push(node, other)

    def alone(self, node: int) -> None:
        """A node without neighbours: what is best in cost and bytes."""
        mine = np.flatnonzero(self.alive[node])
        if mine.size * mine.size <= MOST_ENTRIES_COMPARED:
            bad = _beaten(self.cost[node][mine][None], self.no_less(node, mine))[0]
            mine = mine[~bad]
            mask = np.zeros_like(self.alive[node])
            mask[mine] = True
            self.alive[node] = mask
        if mine.size == 1:
            self.fix(node)

    def between(self, node: int) -> bool:
        """Make a node of degree two that holds nothing into a table between its neighbours."""
        (first, left), (second, right) = sorted(self.tables[node].items())
        mine = np.flatnonzero(self.alive[node])
        size = left.shape[1] * right.shape[1]
        if size > max(MOST_ENTRIES_OF_PAIR, left.size, right.size) or size * mine.size > MOST_ENTRIES_COMPARED:
            return False
        if any(np.ptp(amounts[mine]) for amounts in self.profile(node)):
            return False
        left = plus(left[mine], self.cost[node][mine][:, None])
        sums = np.minimum(left[:, :, None] + right[mine][:, None, :], NEVER)
        picks = mine[sums.argmin(0)]
        # What it holds is the same for all its strategies, so any neighbour may carry it.
        step = Follows(node, first, np.full(left.shape[1], mine[0]))
        self.remove(node)
        self.steps.append(Between(node, first, second, picks))
        self.followers[first].append(step)
        self.link(first, second, sums.min(0))
        return True

    def result(self) -> Folded:
        kept = np.flatnonzero(~self.gone)
        place = np.full(self.problem.nodes, -1)
        place[kept] = np.arange(kept.size)
        states = tuple(np.flatnonzero(self.alive[node]) for node in kept)
        costs = [self.cost[node][alive] for node, alive in zip(kept, states)]
        offset = sum(int(self.cost[step.node][step.pick]) for step in self.steps if isinstance(step, Fixed))
        edges = []
        for at, node in enumerate(kept):
            for other, table in self.tables[node].items():
                if node < other:
                    edges.append(Edge(at, int(place[other]), table[states[at]][:, states[place[other]]]))
        edges.sort(key=lambda edge: (edge.first, edge.second))
        limits = self.problem.limits.copy()
        usages: list[Usage] = []
        for at, node in enumerate(kept):
            usages += segments(at, self.carried(int(node), states[at]), states[at].size)
        for step in self.steps:
            if isinstance(step, Fixed):
                for usage in self.carried(step.node, np.array([step.pick])):
                    limits[usage.start : usage.end] -= usage.amounts[0]
        small = NumericProblem(tuple(costs), tuple(edges), tuple(usages), limits, self.problem.name)
        return Folded(small, offset, self.problem.nodes, kept, states, tuple(self.steps))

    def carried(self, node: int, states: Ints) -> list[Usage]:
        """Usages of a node and of all that folded into it, for the strategies given."""
        found: list[Usage] = []
        stack = [(node, states)]
        while stack:
            here, picks = stack.pop()
            found += [Usage(node, u.start, u.end, u.amounts[picks]) for u in self.usages[here]]
            stack += [(step.node, step.picks[picks]) for step in self.followers[here]]
        return found


def _beaten(costs: Ints, no_less: Mask) -> Mask:
    """For each row of costs, the columns that another one beats in cost and bytes; of equals the first stays."""
    order = np.arange(costs.shape[1])
    worse = (costs[:, :, None] >= costs[:, None, :]) & no_less
    strictly = ~worse.transpose(0, 2, 1) | (order[:, None] > order)
    return np.asarray((worse & strictly).any(2))


def segments(node: int, usages: Sequence[Usage], states: int) -> list[Usage]:
    """The same usage in pieces that do not overlap."""
    if len(usages) <= 1:
        return [Usage(node, usage.start, usage.end, usage.amounts) for usage in usages]
    start = np.array([usage.start for usage in usages])
    end = np.array([usage.end for usage in usages])
    times = np.unique(np.concatenate([start, end]))
    steps = np.zeros((times.size, states), np.int64)
    amounts = np.stack([usage.amounts for usage in usages])
    np.add.at(steps, np.searchsorted(times, start), amounts)
    np.subtract.at(steps, np.searchsorted(times, end), amounts)
    levels = np.cumsum(steps, axis=0)[:-1]
    return [Usage(node, int(a), int(b), level) for a, b, level in zip(times[:-1], times[1:], levels) if level.any()]
