"""Solve a numeric problem: reduce, bound, and search with whatever suits what is left.

`solve` makes the problem smaller (`reduce`), then hands it to a solver:

| solver | what it does | proves |
|---|---|---|
| `elimination` | exact, where tables stay small; branches on memory | always, or refuses as too wide |
| `messages` | bound and rounded choices by message passing with prices for memory | when bound and cost meet |
| `ilp` | messages for a scope and a bound, then HiGHS on it | given time |
| `search` | messages, then large-neighbourhood search | when bound and cost meet |
| `auto` | the cheapest of these that settles it, in the order above; search where the program is too large | as those |

Without a time limit the same problem gives the same choice on every run; of equal choices the one found first stays,
and all orders and seeds are fixed.  With one, the clock decides what was reached, and the best so far is returned with
its bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from ..errors import PlanInfeasible, near_misses
from . import elimination, ilp
from .local_search import improve
from .messages import Messages, ascend
from .presolve import Reduced, reduce
from .problem import Evaluation, Ints, NumericError, NumericProblem
from .repair import repair

SOLVERS = ("auto", "elimination", "ilp", "search", "messages")
SMALL = 40_000
"""A program of up to so many variables is handed to HiGHS before anything else is tried."""
LARGE = 150_000
"""One with more is never handed to it: it would not look at the clock for long."""
BARREN = 40
"""Regions in a row without a gain after which search gives up, where no clock says so."""
POLISH = 8
"""The same, after HiGHS found a choice that is the best within its tolerances."""
STEPS = 40
"""Sweeps before a first look at how large the program is."""
THRIFT = 5
"""How often bytes are made ten times dearer to find some choice that fits."""
MUCH = 10.0
"""Seconds that a last attempt at a proof is worth beginning with."""
SPARE = 0.03
"""The part of the time limit kept for the way back."""


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


def solve(
    problem: NumericProblem,
    solver: str = "auto",
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    start: Sequence[int] | Ints | None = None,
) -> NumericSolution:
    """The best choice that a solver finds.  Raises `PlanInfeasible` if there is none, or none was found in time.

    Without a time limit `elimination`, `ilp` and `auto` go on until they have a proof, which may take very long;
    `messages` and `search` end when they stop getting anywhere.

    >>> problem = NumericProblem.build([[3, 0], [0, 2]], [(0, 1, [[0, 5], [5, 0]])])
    >>> solution = solve(problem)
    >>> solution.choice, solution.cost, solution.optimal
    ((1, 1), 2, True)
    """
    if solver not in SOLVERS:
        raise NumericError(
            f"no solver is called {solver!r}", rows=[("known", ", ".join(SOLVERS))], help=near_misses(solver, SOLVERS)
        )
    if time_limit is not None and not time_limit > 0:
        raise NumericError(f"a time limit of {time_limit} s leaves no time")
    return _Run(problem, solver, time_limit, progress, start).solution()


class _Run:
    """One call of `solve`: the smaller problem, the best choice for it, the bound, and the clock."""

    def __init__(
        self,
        problem: NumericProblem,
        solver: str,
        time_limit: float | None,
        progress: Callable[[Progress], None] | None,
        start: Sequence[int] | Ints | None,
    ) -> None:
        self.began = monotonic()
        self.whole, self.solver, self.progress = problem, solver, progress
        self.limited = time_limit is not None
        limit = math.inf if time_limit is None else time_limit
        self.deadline = self.began + limit * (1 - SPARE) - min(1.0, 0.02 * limit) if self.limited else math.inf
        self.cost = math.inf
        self.choice: Ints | None = None
        self.doing = "reduce"
        self.used = solver
        self.small: Reduced = reduce(problem, None if not self.limited else self.began + limit / 4)
        self.core = self.small.problem
        self.bound = float(sum(int(row.min()) for row in self.core.costs))
        self.bound += float(sum(int(edge.table.min()) for edge in self.core.edges))
        self.given: Ints | None = None
        if start is not None and problem.evaluate(start).feasible:
            self.given = np.asarray(start, np.int64)
            self.offer(self.small.forward(self.given))

    # -- state ------------------------------------------------------------------------------------------

    def offer(self, choice: Ints) -> None:
        """Keep a choice for the smaller problem if it is the best."""
        value = self.core.evaluate(choice)
        if value.feasible and value.cost < self.cost:
            self.cost, self.choice = value.cost, choice.copy()
            self.tell()

    def raise_bound(self, bound: float) -> None:
        if bound > self.bound:
            self.bound = bound
            self.tell()

    def tell(self) -> None:
        if self.progress is not None:
            cost = None if self.choice is None else int(self.cost) + self.small.offset
            lower = _whole(self.bound) + self.small.offset
            self.progress(Progress(monotonic() - self.began, cost, lower, self.doing))

    def closed(self) -> bool:
        return self.choice is not None and _whole(self.bound) >= self.cost

    def left(self) -> float:
        return self.deadline - monotonic()

    def share(self, part: float) -> float:
        """The time at which this part of what is left is over."""
        return monotonic() + part * self.left() if self.limited else math.inf

    # -- solving ----------------------------------------------------------------------------------------

    def solution(self) -> NumericSolution:
        finished = True
        if self.core.nodes == 0:
            self.choice, self.cost, self.bound = np.zeros(0, np.int64), 0, 0.0
            self.used = "reduce" if self.solver == "auto" else self.solver
        else:
            finished = getattr(self, f"by_{self.solver}")()
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

    def by_elimination(self) -> bool:
        try:
            found = elimination.solve(self.core, self.deadline, self.choice)
        except elimination.TooWide as error:
            raise NumericError(f"too wide for elimination: {error}", help="solver='auto' or 'ilp'") from error
        self.take(found.choice, found.bound)
        return found.finished

    def by_messages(self) -> bool:
        self.passing(math.inf, 1.0)
        self.mend()
        return self.left() > 0

    def by_ilp(self) -> bool:
        messages = self.passing(STEPS, 0.3)
        return self.closed() or self.programmed(messages, self.deadline)

    def by_search(self) -> bool:
        self.passing(math.inf, 0.25)
        self.mend()
        return self.closed() or self.searched(1.0)

    def by_auto(self) -> bool:
        if not self.core.limits.size:
            try:
                found = elimination.solve(self.core, self.deadline)
            except elimination.TooWide:
                pass
            else:
                self.used = "elimination"
                self.take(found.choice, found.bound)
                if found.finished:
                    return True
        self.used = "messages"
        messages = self.passing(STEPS, 0.12)
        if self.closed():
            return True
        if self.core.sizes.sum() <= SMALL and self.program_size(messages) <= SMALL:
            self.used = "ilp"
            if self.programmed(messages, self.share(0.4)):
                return True
        self.used = "search"
        messages = self.passing(math.inf, 0.12, messages)
        self.mend()
        if self.closed():
            return True
        done = self.choice is not None and self.searched(1.0)
        if self.closed() or self.share(0.9) < monotonic() + MUCH or self.program_size(messages) > LARGE:
            return done
        return self.programmed(messages, self.share(0.9))

    def take(self, choice: Ints | None, bound: float) -> None:
        if choice is not None:
            self.offer(choice)
        self.raise_bound(min(bound, self.cost) if self.choice is not None else bound)

    def passing(self, steps: float, part: float, messages: Messages | None = None) -> Messages:
        self.doing = "messages"
        messages = messages or Messages(self.core)
        high = ascend(messages, self.share(part), self.cost, lambda choice, _: self.offer(choice), steps=steps)
        self.raise_bound(high)
        return messages

    def room(self, messages: Messages) -> float:
        """How far above the messages' bound a choice may lie that is better than the best."""
        return self.cost - 1 - messages.bound + 1e-6 * max(1.0, 1e-5 * abs(messages.bound))

    def program_size(self, messages: Messages) -> int:
        return ilp.scope(messages, self.room(messages)).size

    def programmed(self, messages: Messages, deadline: float) -> bool:
        """Hand what may still be better to HiGHS."""
        self.doing = "ilp"
        # With the best choice itself inside, so that HiGHS can begin from it.
        scope = ilp.scope(messages, self.room(messages) + 1)
        found = ilp.solve(self.core, scope, deadline, self.choice, self.raise_in_scope)
        if found.choice is not None:
            self.offer(found.choice)
            if found.finished and found.precision > 0.1:
                # Small regions have small costs, which the tolerances do not blur.
                self.searched(0.5, POLISH)
        if found.finished and found.choice is None and self.choice is None:
            raise PlanInfeasible("no choice is allowed and fits in memory")
        # Outside the scope nothing is better than the best known before.
        self.raise_bound(min(found.bound, self.cost))
        return found.finished

    def raise_in_scope(self, bound: float) -> None:
        self.raise_bound(min(bound, self.cost))

    def mend(self) -> None:
        """Find some choice that fits, if passing messages found none."""
        if self.choice is not None:
            return
        self.doing = "repair"
        messages = Messages(self.core)
        choice = messages.round(tight=True)
        for power in range(THRIFT):
            # Bytes dearer and dearer at all moments alike, until cost hardly counts.
            self.offer(choice)
            if self.choice is not None or self.left() < 0:
                return
            total = float(self.core.held(choice).astype(np.float64).sum())
            price = 10.0**power * max(1, abs(self.core.evaluate(choice).cost)) / max(1.0, total)
            messages.set_prices(np.full(self.core.limits.size, price))
            for _ in range(6):
                messages.sweep()
            choice = messages.round(tight=True)
        found = repair(self.core, choice, part_solver(), self.share(0.8))
        if found is not None:
            self.offer(found)

    def searched(self, part: float, barren: int | None = None) -> bool:
        self.doing = "search"
        assert self.choice is not None
        choice, proven = improve(
            self.core,
            self.choice,
            part_solver(),
            self.share(part),
            lambda found, _: self.offer(found),
            slice_seconds=max(0.5, min(6.0, self.left() / 40)) if self.limited else 30.0,
            barren=barren or (2 * BARREN if self.limited else BARREN),
        )
        self.offer(choice)
        if proven:
            self.raise_bound(self.cost)
        return proven


def part_solver() -> Callable[[NumericProblem, Ints, float], tuple[Ints, bool]]:
    """Solves a region exactly from a feasible start."""

    def exact(problem: NumericProblem, start: Ints, deadline: float) -> tuple[Ints, bool]:
        best, cost = start, problem.evaluate(start).cost
        small = reduce(problem, deadline, rounds=1)
        core = small.problem

        def offer(choice: Ints, value: int) -> None:
            nonlocal best, cost
            if value + small.offset < cost:
                best, cost = small.back(choice), value + small.offset

        if not core.nodes:
            offer(np.zeros(0, np.int64), 0)
            return best, True
        messages = Messages(core)
        ascend(messages, monotonic() + 0.4 * (deadline - monotonic()), cost - small.offset, offer, patience=4, steps=24)
        room = cost - small.offset - messages.bound
        if room < 1 - 1e-6:
            return best, True
        found = ilp.solve(core, ilp.scope(messages, room - 1 + 1e-6 * max(1.0, 1e-5 * abs(messages.bound))), deadline)
        if found.choice is not None:
            value = core.evaluate(found.choice)
            if value.feasible:
                offer(found.choice, value.cost)
        # What tolerances may have blurred is a good choice, but no proof.
        return best, found.finished and found.precision < 0.5

    return exact


def _whole(bound: float) -> int:
    """The least whole cost that a bound in floats allows."""
    return math.ceil(bound - 1e-5 - 1e-12 * abs(bound))
