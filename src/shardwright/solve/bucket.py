"""Solve a problem exactly by eliminating one variable after another, doing the same work once for equal parts.

The next variable is always one whose neighbours have the fewest combinations, the first of equals: so equal layers are
eaten up in step, and what is done to one of them is remembered for the others by the arrays it was done on.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from .numeric.problem import Ints, NumericProblem

LARGEST = 400_000
"""The most sums that one elimination may take; problems that need more are too wide for this."""
Scope = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    variable: int
    scope: Scope
    picks: Ints


def eliminate(problem: NumericProblem) -> list[int] | None:
    """The best choice, or None if that takes too large tables."""
    work = _Elimination(problem)
    return work.choice() if work.run() else None


class _Elimination:
    def __init__(self, problem: NumericProblem) -> None:
        self.sizes = [row.size for row in problem.costs]
        self.once: dict[object, Ints] = {}
        self.known: dict[object, tuple[Ints, Ints]] = {}
        self.factors: list[dict[Scope, Ints]] = [{} for _ in self.sizes]
        """Of each variable what it is a part of, by the variables in it, in order."""
        for at, row in enumerate(problem.costs):
            self.add((at,), self.same(row))
        for edge in problem.edges:
            self.add((edge.first, edge.second), self.same(edge.table))
        self.steps: list[_Step] = []
        self.near: list[set[int]] = [{at for scope in factors for at in scope} for factors in self.factors]
        """All variables that a variable shares something with, itself among them."""

    def same(self, array: Ints) -> Ints:
        """The one array for all equal ones; it is kept, so that its identity lasts."""
        return self.once.setdefault((array.shape, array.tobytes()), array)

    def add(self, scope: Scope, array: Ints) -> None:
        known = self.factors[scope[0]].get(scope)
        if known is not None:
            key = (id(known), id(array))
            found = self.known.get(key)
            if found is None:
                found = self.known[key] = (self.same(known + array), array)
            array = found[0]
        for at in scope:
            self.factors[at][scope] = array

    def work(self, variable: int) -> int:
        """How many sums eliminating it takes; counting ends where that is too many."""
        found = 1
        for at in self.near[variable]:
            found *= self.sizes[at]
            if found > LARGEST:
                return LARGEST + 1
        return found

    def run(self) -> bool:
        queue = [(self.work(at), at) for at in range(len(self.sizes))]
        current = [size for size, _ in queue]
        heapq.heapify(queue)
        gone = [False] * len(self.sizes)
        while queue:
            size, at = heapq.heappop(queue)
            if gone[at] or size != current[at]:
                continue
            if size > LARGEST:
                return False
            gone[at] = True
            for other in self.take(at):
                current[other] = self.work(other)
                heapq.heappush(queue, (current[other], other))
        return True

    def take(self, variable: int) -> Scope:
        """Eliminate a variable; its neighbours."""
        scope = tuple(sorted(self.near[variable]))
        factors = sorted(self.factors[variable].items())
        place = {at: i for i, at in enumerate(scope)}
        key = (place[variable], tuple((id(array), *(place[at] for at in among)) for among, array in factors))
        found = self.known.get(key)
        if found is None:
            sizes = [self.sizes[at] for at in scope]
            total = np.zeros(sizes, np.int64)
            for among, array in factors:
                total += array.reshape([size if at in among else 1 for at, size in zip(scope, sizes)])
            picks = total.argmin(place[variable]).astype(np.int32)
            found = self.known[key] = self.same(total.min(place[variable])), picks
        rest = tuple(at for at in scope if at != variable)
        for among, _ in factors:
            for at in among:
                del self.factors[at][among]
        for at in rest:
            self.near[at].update(rest)
            self.near[at].discard(variable)
        self.steps.append(_Step(variable, rest, found[1]))
        if rest:
            self.add(rest, found[0])
        return rest

    def choice(self) -> list[int]:
        found = [0] * len(self.sizes)
        for step in reversed(self.steps):
            found[step.variable] = int(step.picks[tuple(found[at] for at in step.scope)])
        return found
