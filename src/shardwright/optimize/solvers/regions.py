"""Regions of a problem solved exactly from a feasible start: what large-neighbourhood search and repair are made of."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np

from .. import ilp
from ..messages import Messages, ascend
from ..presolve import reduce
from ..problem import Ints, NumericProblem


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
