"""Exact over a tree decomposition, where tables stay small; branches on memory."""

from __future__ import annotations

from .. import elimination
from ..problem import NumericError, NumericProblem
from .state import Accepts, Search

NAME = "elimination"
ACCEPTS = Accepts(exact=True, bucket_elimination=True)


def solve(problem: NumericProblem, search: Search) -> bool:
    try:
        found = elimination.solve(problem, search.deadline, search.choice)
    except elimination.TooWide as error:
        raise NumericError(f"too wide for elimination: {error}", help="solver='auto' or 'ilp'") from error
    search.take(found.choice, found.bound)
    return found.finished
