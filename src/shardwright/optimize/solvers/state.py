"""`Search`: one call of a solver, with the smaller problem, the best choice so far, the bound and the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from ...errors import PlanInfeasible
from ..presolve import Reduced, reduce
from ..problem import Evaluation, Ints, NumericError, NumericProblem

SPARE = 0.03
"""The part of the time limit kept for the way back."""


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a solver takes and gives."""

    memory: bool = True
    """Problems with limits of memory; a solver that says no is never handed one."""
    exact: bool = False
    """Without a time limit it ends with a proof: its choice is the best, or there is none."""
    library: str | None = None
    """The package that it needs, by the name under which it is imported."""
    bucket_elimination: bool = False
    """Where tables stay small, bucket elimination stands in for it (`optimize.core`)."""
    message_passing: bool = False
    """Message passing stands in for it (`optimize.core`), and equal layers are solved as one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a solver has come."""

    seconds: float
    cost: int | None
    lower_bound: int
    doing: str


@dataclass(frozen=True, slots=True)
class NumericSolution:
    """One strategy per node, what that costs, and what any choice costs at least."""

    choice: tuple[int, ...]
    cost: int
    lower_bound: int
    optimal: bool
    solver: str
    seconds: float
    timed_out: bool
    """The time limit cut the work short; the choice is the best found until then."""

    @property
    def gap(self) -> float:
        """How far the cost may lie above the optimum, as a part of the cost."""
        return 0.0 if self.optimal else (self.cost - self.lower_bound) / max(abs(self.cost), 1)


class Search:
    """What a solver works with: it offers choices, raises the bound, and asks how much time is left.

    A choice that is offered is priced here, exactly; what is not allowed or does not fit is passed over, so that no
    solver can return it.  A bound is the solver's own word.
    """

    def __init__(
        self,
        problem: NumericProblem,
        solver: str,
        time_limit: float | None = None,
        progress: Callable[[Progress], None] | None = None,
        start: Sequence[int] | Ints | None = None,
    ) -> None:
        self.began = monotonic()
        self.whole, self.solver, self.progress = problem, solver, progress
        self.limited = time_limit is not None
        limit = math.inf if time_limit is None else time_limit
        self.deadline = self.began + limit * (1 - SPARE) - min(1.0, 0.02 * limit) if self.limited else math.inf
        self.cost = math.inf
        self.choice: Ints | None = None
        """The best so far, for the smaller problem."""
        self.doing = "reduce"
        self.used = solver
        """The method that is reported: of several that a solver tries, the last."""
        self.small: Reduced = reduce(problem, None if not self.limited else self.began + limit / 4)
        self.core = self.small.problem
        """What is left to solve."""
        self.bound = float(sum(int(row.min()) for row in self.core.costs))
        self.bound += float(sum(int(edge.table.min()) for edge in self.core.edges))
        self.given: Ints | None = None
        if start is not None and problem.evaluate(start).feasible:
            self.given = np.asarray(start, np.int64)
            self.offer(self.small.forward(self.given))

    # -- what solvers call --------------------------------------------------------------------------------

    def offer(self, choice: Sequence[int] | Ints) -> None:
        """Keep a choice for the smaller problem if it is the best."""
        value = self.core.evaluate(choice)
        if value.feasible and value.cost < self.cost:
            self.cost, self.choice = value.cost, np.array(choice, np.int64)
            self.tell()

    def raise_bound(self, bound: float) -> None:
        """No choice for the smaller problem costs less."""
        if bound > self.bound:
            self.bound = bound
            self.tell()

    def take(self, choice: Ints | None, bound: float) -> None:
        """What an exact method found: a choice, or none that fits, and a bound."""
        if choice is not None:
            self.offer(choice)
        self.raise_bound(min(bound, self.cost) if self.choice is not None else bound)

    def closed(self) -> bool:
        """Whether the best choice is proven to be the best of all."""
        return self.choice is not None and _whole(self.bound) >= self.cost

    def left(self) -> float:
        """Seconds."""
        return self.deadline - monotonic()

    def share(self, part: float) -> float:
        """The time at which this part of what is left is over."""
        return monotonic() + part * self.left() if self.limited else math.inf

    def tell(self) -> None:
        if self.progress is not None:
            cost = None if self.choice is None else int(self.cost) + self.small.offset
            lower = _whole(self.bound) + self.small.offset
            self.progress(Progress(monotonic() - self.began, cost, lower, self.doing))

    # -- the answer ---------------------------------------------------------------------------------------

    def solution(self, run: Callable[[NumericProblem, Search], bool]) -> NumericSolution:
        """Of the whole problem, after this solver ran on what is left of it."""
        finished = True
        if self.core.nodes == 0:
            self.choice, self.cost, self.bound = np.zeros(0, np.int64), 0, 0.0
            self.used = "reduce" if self.solver == "auto" else self.solver
        else:
            finished = run(self.core, self)
        if self.choice is None and self.given is None:
            said = f"in {monotonic() - self.began:.0f} s" if self.limited else "by this solver"
            raise PlanInfeasible(
                f"no choice that is allowed and fits was found {said}",
                help="there may be one: allow more time or memory, or try another solver",
            )
        choice, value = self.returned()
        lower = min(value.cost, _whole(self.bound) + self.small.offset)
        optimal = lower == value.cost
        seconds = monotonic() - self.began
        timed_out = self.limited and not optimal and not finished
        return NumericSolution(tuple(choice.tolist()), value.cost, lower, optimal, self.used, seconds, timed_out)

    def returned(self) -> tuple[Ints, Evaluation]:
        """The choice for the whole problem: the best found, or the start where its strategies were reduced away."""
        found = []
        if self.choice is not None:
            choice = self.small.back(self.choice)
            value = self.whole.evaluate(choice)
            if not value.feasible or value.cost != self.cost + self.small.offset:
                raise NumericError("the way back from the smaller problem gave another cost; this is a bug")
            found.append((choice, value))
        if self.given is not None:
            found.append((self.given, self.whole.evaluate(self.given)))
        return min(found, key=lambda pair: pair[1].cost)


def _whole(bound: float) -> int:
    """The least whole cost that a bound in floats allows."""
    return math.ceil(bound - 1e-5 - 1e-12 * abs(bound))
