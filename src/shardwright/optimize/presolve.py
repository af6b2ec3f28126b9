"""Make a problem smaller, exactly: each pass is a function from problem to problem that knows the way back.

- `thin` looks at memory alone: what every strategy holds is subtracted from the limits, steps that cannot overflow
  go, and so do steps whose set of usages another step contains;
- `fitting` drops strategies that overflow a step even if all other nodes hold their least, `fitting_pairs` pairs;
- `fold` (its own file) folds nodes into their neighbours;
- `undominated` drops a strategy where another is never worse, whatever the neighbours do, in cost *and* in bytes at
  every step that is left.

`reduce` runs them in turn until nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from ..errors import PlanInfeasible
from .fold import Folded, Mask, fold
from .problem import NEVER, Edge, Ints, NumericProblem, Usage

ROUNDS = 8
MINOR = 0.99
"""A round that leaves more than this of everything is the last."""
SEGMENTS = 400
"""The most pairs of usages looked at on one edge."""
COMPARE = 8_000_000
"""The most entries a node's comparison of strategies may take, over all its edges."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A problem with some strategies of some nodes gone."""

    problem: NumericProblem
    states: tuple[Ints, ...]
    offset: int = 0

    def back(self, choice: Ints) -> Ints:
        return np.array([states[pick] for states, pick in zip(self.states, choice)], np.int64)

    def forward(self, choice: Ints) -> Ints:
        found = [np.flatnonzero(states == pick) for states, pick in zip(self.states, choice)]
        return np.array([hit[0] if hit.size else 0 for hit in found], np.int64)


@dataclass(frozen=True, slots=True)
class Reduced:
    """A smaller problem; its optimum plus ``offset`` is that of the original."""

    problem: NumericProblem
    offset: int = 0
    passes: tuple[Folded | Kept, ...] = ()

    def back(self, choice: Ints) -> Ints:
        """The original's choice for one of the smaller problem."""
        for step in reversed(self.passes):
            choice = step.back(choice)
        return choice

    def forward(self, choice: Ints) -> Ints:
        """The smaller problem's choice nearest to one of the original; it may be another, or not allowed."""
        for step in self.passes:
            choice = step.forward(choice)
        return choice

    def then(self, step: Folded | Kept) -> Reduced:
        return Reduced(step.problem, self.offset + step.offset, (*self.passes, step))


def reduce(problem: NumericProblem, deadline: float | None = None, rounds: int = ROUNDS) -> Reduced:
    """All passes, until nothing changes.  Raises `PlanInfeasible` if they show that nothing is allowed."""
    result = _thinned(Reduced(problem))
    for _ in range(rounds):
        before = _extent(result.problem)
        result = result.then(fold(result.problem))
        result = _thinned(result)
        if deadline is not None and monotonic() > deadline:
            break
        kept = undominated(result.problem, deadline)
        if kept is not None:
            result = _thinned(result.then(kept))
        after = _extent(result.problem)
        if after == before:
            return result
        if all(new > MINOR * old for new, old in zip(after, before)):
            break
    # The last pass is a fold, so that every strategy left has a partner on every edge: messages count on it.
    result = result.then(fold(result.problem))
    return Reduced(thin(result.problem), result.offset, result.passes)


def _extent(problem: NumericProblem) -> tuple[int, int, int, int]:
    allowed = sum(int((edge.table < NEVER).sum()) for edge in problem.edges)
    return problem.nodes, int(problem.sizes.sum()), problem.limits.size, allowed


def _thinned(result: Reduced) -> Reduced:
    """Thin, and drop what does not fit, until that changes nothing."""
    while True:
        result = Reduced(thin(result.problem), result.offset, result.passes)
        kept = fitting(result.problem)
        if kept is None:
            break
        result = result.then(kept)
    fewer = fitting_pairs(result.problem)
    return result if fewer is None else Reduced(fewer, result.offset, result.passes)


def thin(problem: NumericProblem) -> NumericProblem:
    """The same problem with only the steps and the bytes that can matter."""
    if not problem.limits.size:
        return problem
    pieces = problem.pieces
    low, high = pieces.extremes()
    limits = problem.limits - pieces.spread(low)
    if limits.min() < 0:
        step = int(limits.argmin())
        raise PlanInfeasible(
            f"at one step even the least usages exceed the limit by {-int(limits[step])}",
            rows=[("nodes", str(int(((pieces.start <= step) & (pieces.end > step)).sum())))],
        )
    varying = high > low
    room = pieces.spread(np.where(varying, high - low, 0))
    kept = room > limits
    starts, ends = pieces.start[varying], pieces.end[varying]
    while True:
        place = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        first, last = place[starts], place[ends]
        here = first < last
        inner = _contained(first[here], last[here], limits[kept])
        if not inner.any():
            break
        kept[np.flatnonzero(kept)[inner]] = False
    usages = []
    for number in np.flatnonzero(varying):
        usage = problem.usages[number]
        begin, end = int(place[usage.start]), int(place[usage.end])
        if begin < end:
            usages.append(Usage(usage.node, begin, end, usage.amounts - low[number]))
    usages = _joined(usages)
    return NumericProblem(problem.costs, problem.edges, tuple(usages), limits[kept], problem.name)


def _contained(start: Ints, end: Ints, limits: Ints) -> Mask:
    """Steps whose usages are all held at the step next to them too, under no larger a limit."""
    steps = limits.size
    if steps < 2:
        return np.zeros(steps, np.bool_)
    opens, closes = np.zeros(steps + 1, np.bool_), np.zeros(steps + 1, np.bool_)
    opens[start], closes[end] = True, True
    result = np.zeros(steps, np.bool_)
    by_next = ~closes[1:steps] & (limits[:-1] >= limits[1:])
    by_last = ~opens[1:steps] & (limits[1:] >= limits[:-1]) & ~by_next
    result[:-1] |= by_next
    result[1:] |= by_last
    return result


def _joined(usages: Sequence[Usage]) -> list[Usage]:
    """Usages of one node over the same steps added up."""
    found: dict[tuple[int, int, int], Ints] = {}
    for usage in usages:
        key = (usage.node, usage.start, usage.end)
        found[key] = found[key] + usage.amounts if key in found else usage.amounts
    return [Usage(*key, amounts) for key, amounts in sorted(found.items(), key=lambda item: item[0])]


def fitting(problem: NumericProblem) -> Kept | None:
    """Drop strategies that overflow some step even if all other nodes hold their least; None if there are none.

    Of a thin problem, where the least is zero.
    """
    pieces = problem.pieces
    if not pieces.node.size:
        return None
    least = _range_least(problem.limits, pieces.start, pieces.end)
    over = pieces.state[pieces.amounts > least[pieces.owner]]
    if not over.size:
        return None
    flat = np.ones(int(problem.sizes.sum()), np.bool_)
    flat[over] = False
    masks = np.split(flat, np.cumsum(problem.sizes)[:-1])
    for node, mask in enumerate(masks):
        if not mask.any():
            raise PlanInfeasible(f"no strategy of node {node} fits in memory")
    return keep(problem, [np.flatnonzero(mask) for mask in masks])


def fitting_pairs(problem: NumericProblem) -> NumericProblem | None:
    """Forbid pairs of neighbours' strategies that overflow some step even alone; None if there are none."""
    if not problem.usages:
        return None
    usages: list[list[Usage]] = [[] for _ in problem.costs]
    for usage in problem.usages:
        usages[usage.node].append(usage)
    most = [max((int(u.amounts.max()) for u in mine), default=0) for mine in usages]
    least = int(problem.limits.min())
    edges, changed = [], False
    for edge in problem.edges:
        mine, theirs = usages[edge.first], usages[edge.second]
        if most[edge.first] + most[edge.second] > least and 0 < len(mine) * len(theirs) <= SEGMENTS:
            over = np.zeros(edge.table.shape, np.bool_)
            for u in mine:
                for v in theirs:
                    start, end = max(u.start, v.start), min(u.end, v.end)
                    if start < end:
                        over |= u.amounts[:, None] + v.amounts > problem.limits[start:end].min()
            over &= edge.table < NEVER
            if over.any():
                edge, changed = Edge(edge.first, edge.second, np.where(over, NEVER, edge.table)), True
        edges.append(edge)
    return replace(problem, edges=tuple(edges)) if changed else None


def _range_least(values: Ints, start: Ints, end: Ints) -> Ints:
    """The least value in each range, by tables over powers of two."""
    levels = [values]
    while 2 ** len(levels) <= values.size:
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
    level = np.frexp((end - start).astype(np.float64))[1] - 1
    result = np.empty(start.size, np.int64)
    for number, row in enumerate(levels):
        here = level == number
        result[here] = np.minimum(row[start[here]], row[end[here] - 2**number])
    return result


def undominated(problem: NumericProblem, deadline: float | None = None) -> Kept | None:
    """Drop strategies that another is never worse than; None if there are none."""
    tables: list[list[tuple[int, Ints]]] = [[] for _ in problem.costs]
    for edge in problem.edges:
        tables[edge.first].append((edge.second, edge.table))
        tables[edge.second].append((edge.first, edge.table.T))
    usages: list[list[Ints]] = [[] for _ in problem.costs]
    for usage in problem.usages:
        usages[usage.node].append(usage.amounts)
    alive = [np.ones(size, np.bool_) for size in problem.sizes]
    for node in range(problem.nodes):
        if deadline is not None and monotonic() > deadline:
            break
        size = int(problem.sizes[node])
        if size == 1 or sum(size * table.size for _, table in tables[node]) > COMPARE:
            continue
        edges = [table[:, alive[other]] for other, table in tables[node]]
        alive[node] = _best(problem.costs[node], edges, usages[node])
    if all(mask.all() for mask in alive):
        return None
    return keep(problem, [np.flatnonzero(mask) for mask in alive])


def _best(cost: Ints, tables: Sequence[Ints], usages: Sequence[Ints]) -> Mask:
    """Which strategies stay.  Neighbours' strategies that are dropped already need not be looked at, nor need one's
    own: what beats a dropped one beats what that one beats."""
    size = cost.size
    candidate = np.ones((size, size), np.bool_)
    for amounts in usages:
        candidate &= amounts[:, None] >= amounts
    np.fill_diagonal(candidate, False)
    if not candidate.any():
        return np.ones(size, np.bool_)
    lead = cost[:, None].astype(np.float64) - cost
    largest = float(np.abs(cost).max())
    with np.errstate(invalid="ignore"):
        for table in tables:
            # A pair that is forbidden for the first strategy never counts against the second.
            allowed = table < NEVER
            values = np.where(allowed, table, np.inf)
            differences = values[:, None, :] - values[None, :, :]
            lead += np.fmin.reduce(np.where(np.isnan(differences), np.inf, differences), axis=2)
            largest += float(np.abs(table[allowed]).max(initial=0))
        # Beyond 2^53 floats are not exact: then only a clear lead counts.
        beaten = candidate & (lead >= (0.0 if largest < 2**52 else largest * 1e-12))
    stays = np.ones(size, np.bool_)
    for strategy in range(size - 1, -1, -1):
        if (beaten[strategy] & stays).any():
            stays[strategy] = False
    return stays


def keep(problem: NumericProblem, states: Sequence[Ints]) -> Kept:
    """The problem with only these strategies."""
    cut = [alive.size < row.size for row, alive in zip(problem.costs, states)]
    costs = tuple(row[alive] if here else row for row, alive, here in zip(problem.costs, states, cut))
    edges = []
    for edge in problem.edges:
        i, j, table = edge.first, edge.second, edge.table
        if cut[i] or cut[j]:
            table = table[states[i]] if cut[i] else table
            edge = Edge(i, j, table[:, states[j]] if cut[j] else table)
        edges.append(edge)
    usages = tuple(
        Usage(u.node, u.start, u.end, u.amounts[states[u.node]]) if cut[u.node] else u for u in problem.usages
    )
    return Kept(NumericProblem(costs, tuple(edges), usages, problem.limits, problem.name), tuple(states))
