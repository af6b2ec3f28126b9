"""The cheapest method that settles it: elimination, messages, HiGHS; search where the program is too large."""

from __future__ import annotations

import math
from time import monotonic

from .. import elimination
from ..problem import NumericProblem
from .ilp import STEPS, program_size, solve_program
from .messages import find_fitting, pass_messages
from .search import improve_regions
from .state import Accepts, Search

NAME = "auto"
ACCEPTS = Accepts(exact=True, bucket_elimination=True, message_passing=True)
SMALL = 40_000
"""A program of up to so many variables is handed to HiGHS before anything else is tried."""
LARGE = 150_000
"""One with more is never handed to it: it would not look at the clock for long."""
PROOF_SECONDS = 10.0
"""A last attempt at a proof is worth beginning with so much time."""


def solve(problem: NumericProblem, search: Search) -> bool:
    if not problem.limits.size:
        try:
            found = elimination.solve(problem, search.deadline)
        except elimination.TooWide:
            pass
        else:
            search.used = "elimination"
            search.take(found.choice, found.bound)
            if found.finished:
                return True
    search.used = "messages"
    messages = pass_messages(search, STEPS, 0.12)
    if search.closed():
        return True
    if problem.sizes.sum() <= SMALL and program_size(search, messages) <= SMALL:
        search.used = "ilp"
        if solve_program(search, messages, search.share(0.4)):
            return True
    search.used = "search"
    messages = pass_messages(search, math.inf, 0.12, messages)
    find_fitting(search)
    if search.closed():
        return True
    done = search.choice is not None and improve_regions(search, 1.0)
    late = search.share(0.9) < monotonic() + PROOF_SECONDS
    if search.closed() or late or program_size(search, messages) > LARGE:
        return done
    return solve_program(search, messages, search.share(0.9))
