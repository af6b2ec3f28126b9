"""Solve a problem exactly by eliminating one variable after another, doing the same work once for equal parts.

The next variable is always one whose neighbours have the fewest combinations, the first of equals: so equal layers are
eaten up in step, and what is done to one of them is remembered for the others by the arrays it was done on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

from .problem import Ints, NumericProblem

LARGEST = 400_000
"""The most sums that one elimination may take; problems that need more are too wide for this."""
Scope = tuple[int, ...]
"""Variables, in order."""
Factor = tuple[Scope, Ints]
"""What some variables cost together."""


class TooWide(Exception):
    """A table would be too large."""


@dataclass(frozen=True, slots=True)
class Step:
    """A variable that was eliminated, and what it was a part of."""

    variable: int
    factors: Sequence[Factor]


def eliminate(problem: NumericProblem) -> list[int] | None:
    """The best choice, or None if that takes too large tables."""
    work = Elimination([row.size for row in problem.costs], factors_of(problem), Memo())
    try:
        work.run(range(len(problem.costs)))
    except TooWide:
        return None
    found = [0] * len(problem.costs)
    pick_back(work.steps, found)
    return found


def factors_of(problem: NumericProblem) -> list[Factor]:
    found: list[Factor] = [((at,), row) for at, row in enumerate(problem.costs)]
    return found + [((edge.first, edge.second), edge.table) for edge in problem.edges]


def pick_back(steps: Sequence[Step], choice: list[int]) -> None:
    """Write into a choice what the steps' variables pick, the last step's first."""
    every = slice(None)
    for step in reversed(steps):
        at = step.variable
        rows = [array[tuple([every if one == at else choice[one] for one in scope])] for scope, array in step.factors]
        choice[at] = int(sum(rows[1:], rows[0]).argmin())


class Memo:
    """What is known of arrays, by their identity; all are kept, so that identities last."""

    def __init__(self) -> None:
        self.once: dict[object, Ints] = {}
        self.known: dict[object, Ints] = {}

    def same(self, array: Ints) -> Ints:
        """The one array for all equal ones."""
        return self.once.setdefault((array.shape, array.tobytes()), array)

    def plus(self, a: Ints, b: Ints) -> Ints:
        key = (id(a), id(b))
        if key not in self.known:
            self.known[key] = a + b
        return self.known[key]


class Elimination:
    """The sum of some factors, from which variables are eliminated."""

    def __init__(self, sizes: Sequence[int], factors: Iterable[Factor], memo: Memo) -> None:
        self.sizes, self.memo = sizes, memo
        self.factors: dict[int, dict[Scope, Ints]] = {}
        """Of each variable what it is a part of, by the variables in it."""
        self.steps: list[Step] = []
        self.least = 0
        """What parts of the sum come to of which no variable is left."""
        for scope, array in factors:
            self.add(scope, memo.same(array))

    def add(self, scope: Scope, array: Ints) -> None:
        if not scope:
            self.least += int(array)
        for at in scope:
            mine = self.factors.setdefault(at, {})
            mine[scope] = self.memo.plus(mine[scope], array) if scope in mine else array

    def left(self) -> dict[Scope, Ints]:
        """What is left of the sum."""
        return {scope: array for factors in self.factors.values() for scope, array in factors.items()}

    def run(self, variables: Iterable[int]) -> None:
        """Eliminate variables, or raise `TooWide` before anything is done."""
        for variable, scope in self.order(variables):
            self.take(variable, scope)

    def order(self, variables: Iterable[int]) -> list[tuple[int, Scope]]:
        """In which order variables go, each with all that it then shares something with, itself among them."""
        sizes, found = self.sizes, []
        near = {at: {one for scope in factors for one in scope} for at, factors in self.factors.items()}
        current = {at: prod([sizes[one] for one in near[at]]) for at in variables}
        queue = [(work, at) for at, work in current.items()]
        heapq.heapify(queue)
        while queue:
            work, at = heapq.heappop(queue)
            if work != current.get(at):
                continue
            if work > LARGEST:
                raise TooWide
            del current[at]
            scope = near.pop(at)
            found.append((at, tuple(sorted(scope))))
            scope.discard(at)
            for other in scope:
                theirs = near[other]
                theirs |= scope
                theirs.discard(at)
                if other in current:
                    current[other] = work = prod([sizes[one] for one in theirs])
                    heapq.heappush(queue, (work, other))
        return found

    def take(self, variable: int, scope: Scope) -> None:
        """Eliminate a variable."""
        known = self.memo.known
        factors = sorted(self.factors.pop(variable).items())
        place = {at: i for i, at in enumerate(scope)}
        key = (place[variable], tuple([(id(array), *[place[at] for at in among]) for among, array in factors]))
        found = known.get(key)
        if found is None:
            sizes = [self.sizes[at] for at in scope]
            # Small ones first: then few sums are as large as the last.
            parts = [
                array.reshape([size if at in among else 1 for at, size in zip(scope, sizes)])
                for among, array in sorted(factors, key=_size)
            ]
            found = known[key] = reduce(np.add, parts).min(place[variable])
        for among, _ in factors:
            for at in among:
                if at != variable:
                    del self.factors[at][among]
        self.steps.append(Step(variable, factors))
        self.add(tuple([at for at in scope if at != variable]), found)


def _size(factor: Factor) -> int:
    return factor[1].size
