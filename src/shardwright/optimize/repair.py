"""From a choice that does not fit, or is not allowed, to one that does and is.

What is forbidden becomes very expensive, overflowing steps get prices, and the limits are raised to what the choice
holds; the result is a problem for which the choice is feasible, so that large-neighbourhood search can improve it.
Prices double until everything fits.
"""

from __future__ import annotations

import math
from dataclasses import replace
from time import monotonic

import numpy as np

from .local_search import Exact, improve
from .problem import NEVER, Edge, Ints, NumericProblem

ROUNDS = 12
COST_OF_FORBIDDEN = 10**15
"""The most that something forbidden may cost: sums of it must stay exact."""


def repair(problem: NumericProblem, choice: Ints, exact: Exact, deadline: float = math.inf) -> Ints | None:
    """A choice that is allowed and fits, or None if none was found."""
    total = sum(int(row[row < NEVER].max(initial=0)) for row in problem.costs)
    total += sum(int(edge.table[edge.table < NEVER].max(initial=0)) for edge in problem.edges)
    expensive = min(max(total, 1), COST_OF_FORBIDDEN)
    costs = [np.where(row < NEVER, row, expensive) for row in problem.costs]
    edges = tuple(
        Edge(edge.first, edge.second, np.where(edge.table < NEVER, edge.table, expensive)) for edge in problem.edges
    )
    prices = np.zeros(problem.limits.size)
    cuts = np.cumsum(problem.sizes)[:-1]
    for round_number in range(ROUNDS):
        value = problem.evaluate(choice)
        if value.feasible:
            return choice
        if monotonic() > deadline:
            return None
        held = problem.held(choice)
        over = np.maximum(held - problem.limits, 0).astype(np.float64)
        if over.any():
            step = 0.05 * max(abs(value.cost), 1) / max(float((over * held).sum()), 1.0) * over
            prices = 2 * prices + step * 2**round_number
        extra = (
            np.rint(problem.pieces.price(prices, int(problem.sizes.sum()))).clip(0, COST_OF_FORBIDDEN).astype(np.int64)
        )
        soft = replace(
            problem,
            costs=tuple(a + b for a, b in zip(costs, np.split(extra, cuts))),
            edges=edges,
            limits=np.maximum(problem.limits, held),
        )
        share = deadline if math.isinf(deadline) else monotonic() + (deadline - monotonic()) / 3
        choice, _ = improve(soft, choice, exact, share, barren=20, seed=round_number)
    return choice if problem.evaluate(choice).feasible else None
