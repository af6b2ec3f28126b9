"""Solve a compacted problem: by elimination where tables stay small, else by message passing, else by all there is.

Of plans' problems the linear relaxation is nearly always integral, so that message passing alone finds the optimum and
proves it.  What it proves it with, the messages, serves for deeper stacks of the same layers too (`stack`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from time import monotonic

import numpy as np

from .bucket import eliminate
from .numeric import NumericProblem, Progress, solve
from .numeric.messages import Messages
from .numeric.problem import Ints

SWEEPS = 400
"""At most so many sweeps."""
ROUND = 4
"""After so many sweeps a choice is rounded."""
STILL = 24
"""After so many sweeps that raise the bound by nothing to speak of, no more are made."""
BLUR = 4.0
"""What rounding in sums of floats may amount to, in the problem's unit."""


@dataclass(frozen=True, slots=True)
class Core:
    """What was found for a compacted problem."""

    choice: Sequence[int]
    lower_bound: int
    solver: str
    timed_out: bool


@dataclass
class Passed:
    """The state of message passing: the best choice, its cost, and the bound."""

    messages: Messages
    choice: Ints
    cost: int
    bound: float
    late: bool = False

    @property
    def optimal(self) -> bool:
        return self.cost <= self.lower_bound

    @property
    def lower_bound(self) -> int:
        return min(self.cost, whole(self.bound))


def blur(bound: float) -> float:
    """What sums of floats about this large may be off by."""
    return BLUR + 2e-13 * abs(bound)


def whole(bound: float) -> int:
    """The least whole number that a bound allows, less what floats may have blurred."""
    return ceil(bound - blur(bound))


def pass_messages(problem: NumericProblem, seconds: float | None = None) -> Passed:
    """Sweep until bound and choice meet, the bound stands still, or time is up."""
    until = inf if seconds is None else monotonic() + seconds
    messages = Messages(problem)
    found = Passed(messages, np.zeros(problem.nodes, np.int64), 1 << 62, -inf)
    best, since = -inf, 0
    for sweep in range(1, SWEEPS + 1):
        bound = messages.sweep()
        since = 0 if bound > best + max(2.0, 1e-9 * abs(best)) else since + 1
        best = found.bound = max(best, bound)
        if sweep % ROUND == 0 or since == STILL:
            choice = messages.round()
            value = problem.evaluate(choice)
            if value.feasible and value.cost < found.cost:
                found.choice, found.cost = choice, value.cost
            if found.cost - best <= blur(best) or since >= STILL:
                break
        if monotonic() > until:
            found.late = True
            break
    return found


def solve_core(
    problem: NumericProblem,
    solver: str = "auto",
    time_limit: float | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> Core:
    """The best choice for a problem without memory, and a bound."""
    if solver in ("auto", "elimination"):
        exact = eliminate(problem)
        if exact is not None:
            return Core(exact, problem.evaluate(exact).cost, "elimination", False)
    if solver in ("auto", "messages"):
        passed = pass_messages(problem, time_limit)
        if passed.cost - passed.bound <= blur(passed.bound):
            return Core(passed.choice.tolist(), passed.lower_bound, "messages", False)
    found = solve(problem, solver, time_limit, tell)
    return Core(found.choice, found.lower_bound, found.solver, found.timed_out)
