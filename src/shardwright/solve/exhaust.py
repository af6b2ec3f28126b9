"""Small graphs within memory: go through all flat plans that may be better than the best known, and so prove it.

Messages rearrange what plans cost, with the price on bytes, into a bound and terms that are at least zero: what a
choice for some of the variables adds to the bound, every plan with it costs at least.  Depth first, the cheapest terms
first, most branches end early; plans at the end are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .numeric import NumericProblem
from .numeric.messages import Messages

SWEEPS = 60
"""So many sweeps are made for the bound."""
MOST = 100_000
"""So many choices are looked at; then it is not settled."""


class TooMany(Exception):
    """There are more choices than it pays to look at."""


def exhaust(problem: NumericProblem, worth: int, known: int, judge: Callable[[Sequence[int]], int | None]) -> bool:
    """Call ``judge`` on every choice that may cost less than ``known``, with what it says is the least so far.

    The problem's costs less ``worth`` are never more than what a choice costs that fits; ``judge`` says what a choice
    does cost, or None if it does not fit.  Returns whether all were looked at.
    """
    messages = Messages(problem)
    for _ in range(SWEEPS):
        messages.sweep()
    nodes, edges = messages.spread()
    bound = messages.bound - worth
    order, behind = _order(problem)
    tables: dict[tuple[int, int], np.ndarray] = {}
    for number, edge in enumerate(problem.edges):
        tables[edge.first, edge.second] = edges[number]
        tables[edge.second, edge.first] = edges[number].T
    choice = [0] * problem.nodes
    best, seen = known, 0

    def visit(depth: int, spent: float) -> None:
        nonlocal best, seen
        if depth == len(order):
            cost = judge(choice)
            if cost is not None and cost < best:
                best = cost
            return
        variable = order[depth]
        more = nodes[messages.of(variable)].copy()
        for other in behind[depth]:
            more += tables[other, variable][choice[other]]
        for pick in np.argsort(more, kind="stable").tolist():
            if spent + more[pick] >= best - 0.5:
                return
            seen += 1
            if seen > MOST:
                raise TooMany
            choice[variable] = pick
            visit(depth + 1, spent + float(more[pick]))

    try:
        visit(0, bound - 1e-6 * abs(bound))
    except TooMany:
        return False
    return True


def _order(problem: NumericProblem) -> tuple[list[int], list[list[int]]]:
    """Variables with most neighbours behind them first, and those neighbours."""
    near: list[set[int]] = [set() for _ in range(problem.nodes)]
    for edge in problem.edges:
        near[edge.first].add(edge.second)
        near[edge.second].add(edge.first)
    order: list[int] = []
    behind: list[list[int]] = []
    left = set(range(problem.nodes))
    while left:
        taken = min(left, key=lambda v: (-len(near[v] - left), len(problem.costs[v]), v))
        behind.append(sorted(near[taken] - left))
        order.append(taken)
        left.discard(taken)
    return order, behind
