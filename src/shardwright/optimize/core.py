"""Solve a compacted problem: by elimination where tables stay small, else by message passing, else by all there is.

Of plans' problems the linear relaxation is nearly always integral, so that message passing alone finds the optimum and
proves it.  Where many choices are equally good (two mesh axes that are alike), rounding would mix them; so when the
bound stands still, strategies that come first are preferred by next to nothing for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from time import monotonic

import numpy as np

from .alike import alike
from .batches import Batches, Link
from .bucket import eliminate
from .narrow import narrow
from .problem import Ints, NumericProblem
from .solvers import Progress, solve, solver_named

SWEEPS = 300
"""At most so many sweeps."""
ROUND = 4
"""After so many sweeps a choice is rounded."""
STILL = 6
"""After so many sweeps that raise the bound by nothing to speak of, it stands still."""
NUDGED = 48
"""So many sweeps are then made with a preference."""
SLOW = 2e-5
"""Where a sweep raises the bound by no more than this part of it, it is time to look at few strategies, with which
a sweep takes next to nothing."""
ROUGH = 5
"""A rough choice will do if it rises by no more than so many times `SLOW`."""
ROOM = 1e-4
"""As a part of the bound: how far beyond it choices are looked for then, at first."""
BLUR = 4.0
"""What rounding in sums of floats may amount to, in the problem's unit."""
ROUGH_ROOM = 1e-3
"""The same for a rough choice, at last."""
ROUGH_SWEEPS = 60
"""A rough choice has to settle within so many."""
NEGLIGIBLE = 1e-8
"""Where the bound hardly rises any more, a choice this close to it is as good as the best."""
CLOSE = 1e-4
"""A choice this close to the bound, as a part of it, is good enough to go on from."""


@dataclass(frozen=True, slots=True)
class Core:
    """What was found for a compacted problem."""

    choice: Sequence[int]
    lower_bound: int
    solver: str
    timed_out: bool


@dataclass
class Swept:
    """The best choice, what it costs, and the bound."""

    picks: list[Ints]
    cost: int
    bound: float
    late: bool = False

    near: float = 0.0
    """They meet if they are no further apart than this part of the bound."""

    @property
    def settled(self) -> bool:
        """Whether the two meet."""
        return self.cost - self.bound <= max(blur(self.bound), self.near * abs(self.bound))

    @property
    def lower_bound(self) -> int:
        return min(self.cost, ceil(self.bound - blur(self.bound)))


def blur(bound: float) -> float:
    """What sums of floats about this large may be off by."""
    return BLUR + 2e-13 * abs(bound)


def sweep(batches: Batches, until: float = inf, rough: bool = False, narrowed: bool = True) -> Swept:
    """Sweep until bound and choice meet, or nothing more comes of it, or time is up.

    Once the bound hardly rises, only strategies are looked at whose slack is within some room above it.  The best
    choice of those is the best of all if it is within the room: every other one is beyond.  If a ``rough`` choice will
    do, one that is `CLOSE` is enough, and they are looked at sooner; if the bound will, not at all (``narrowed``).
    """
    found = Swept([], 1 << 62, -inf, near=CLOSE if rough else 0.0)
    turns, enough, room, slow = 0, 2, ROOM, SLOW * (ROUGH if rough else 1)
    while True:
        rise = inf
        while turns < enough or (turns < SWEEPS and rise > slow * abs(found.bound)):
            turns += 1
            bound = batches.sweep()
            rise, found.bound = bound - found.bound, max(found.bound, bound)
            found.late = monotonic() > until
            if turns % ROUND == 2 or found.late:
                _round(batches, found)
            if found.settled or found.late:
                return found
        if rough or not narrowed:
            _round(batches, found)
            if found.settled or not narrowed:
                return found
        slack, bound = batches.slack()
        found.bound = max(found.bound, bound)
        beyond = found.bound + room * abs(found.bound)
        few = narrow(batches, slack, beyond - found.bound)
        inner = _settle(few.batches, until, found.near)
        if inner.cost + few.offset < found.cost:
            found.picks, found.cost = few.wide(inner.picks), inner.cost + few.offset
        found.late = inner.late
        if found.cost <= beyond or found.late or turns >= SWEEPS or room >= (ROUGH_ROOM if rough else 1.0):
            found.bound = max(found.bound, min(inner.bound + few.offset, beyond))
            return found
        enough, room = min(SWEEPS, turns + ROUND), ROUGH_ROOM if rough else 4 * room


def warm(batches: Batches, until: float = inf, rough: bool = False) -> None:
    """Sweep until the bound hardly rises: for messages that others start from."""
    slow = SLOW * (ROUGH if rough else 1)
    before, bound = -inf, batches.sweep()
    for _ in range(SWEEPS):
        if bound - before <= slow * abs(bound) or monotonic() > until:
            break
        before, bound = bound, batches.sweep()


def _round(batches: Batches, found: Swept) -> None:
    picks = batches.round()
    cost = batches.evaluate(picks)
    if cost < found.cost:
        found.picks, found.cost = picks, cost


def _settle(batches: Batches, until: float, near: float) -> Swept:
    """Sweep until bound and choice meet; where the bound stands still before they do, with a preference for a while."""
    found = Swept([], 1 << 62, -inf, near=near)
    since = nudged = 0
    for turn in range(1, 1 + (ROUGH_SWEEPS if near else SWEEPS)):
        bound = batches.sweep()
        found.late = monotonic() > until
        if not nudged:
            since = 0 if bound > found.bound + max(2.0, 1e-7 * abs(found.bound)) else since + 1
            found.bound = max(found.bound, bound)
        if turn % ROUND == 2 or since == STILL or found.late:
            _round(batches, found)
        if found.settled or found.late:
            break
        if since >= STILL // 2 and found.cost - found.bound <= NEGLIGIBLE * abs(found.bound):
            break
        if nudged:
            nudged -= 1
            if nudged == 0 or found.cost - found.bound <= CLOSE * abs(found.bound):
                break
        elif since >= STILL:
            nudged = NUDGED
            batches.nudge(1e-9 * max(1.0, abs(found.bound)))
    if nudged or batches.nudged:
        batches.nudge(0.0)
        for _ in range(STILL):
            if found.settled or monotonic() > until:
                break
            found.bound = max(found.bound, batches.sweep())
    return found


def batches_of(problem: NumericProblem) -> Batches:
    """Every variable for itself."""
    costs = [row[None] for row in problem.costs]
    zero = np.zeros(1, np.int64)
    return Batches(costs, [Link(edge.first, edge.second, zero, zero, edge.table) for edge in problem.edges])


def solve_core(
    problem: NumericProblem,
    solver: str = "auto",
    time_limit: float | None = None,
    tell: Callable[[Progress], None] | None = None,
    rough: bool = False,
    narrowed: bool = True,
) -> Core:
    """The best choice for a problem without memory, and a bound.

    A ``rough`` one after message passing at the latest; if the bound is what counts, after its first part, without
    being ``narrowed``.
    """
    accepts = solver_named(solver).ACCEPTS
    if accepts.bucket_elimination:
        exact = eliminate(problem)
        if exact is not None:
            return Core(exact, problem.evaluate(exact).cost, "elimination", False)
    start: list[int] | None = None
    if accepts.message_passing:
        parts = alike(problem)
        swept = sweep(parts.batches, inf if time_limit is None else monotonic() + time_limit, rough, narrowed)
        start = parts.choice(swept.picks)
        if rough or swept.settled or swept.late or swept.cost - swept.bound <= CLOSE * abs(swept.bound):
            return Core(start, swept.lower_bound, "messages", swept.late)
    found = solve(problem, solver, time_limit, tell, start=start)
    return Core(found.choice, found.lower_bound, found.solver, found.timed_out)
