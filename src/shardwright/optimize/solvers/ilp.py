"""Message passing for a scope and a bound, then HiGHS on that scope."""

from __future__ import annotations

from ...errors import PlanInfeasible
from .. import ilp
from ..messages import Messages
from ..problem import NumericProblem
from .messages import pass_messages
from .search import improve_regions
from .state import Accepts, Search

NAME = "ilp"
ACCEPTS = Accepts(exact=True, library="highspy")
STEPS = 40
"""Sweeps before a first look at how large the program is."""
POLISH = 8
"""Regions in a row without a gain after which search gives up, where HiGHS found the best within its tolerances."""


def solve(problem: NumericProblem, search: Search) -> bool:
    messages = pass_messages(search, STEPS, 0.3)
    return search.closed() or solve_program(search, messages, search.deadline)


def room(search: Search, messages: Messages) -> float:
    """How far above the messages' bound a choice may lie that is better than the best."""
    return search.cost - 1 - messages.bound + 1e-6 * max(1.0, 1e-5 * abs(messages.bound))


def program_size(search: Search, messages: Messages) -> int:
    return ilp.scope(messages, room(search, messages)).size


def solve_program(search: Search, messages: Messages, deadline: float) -> bool:
    """Hand what may still be better to HiGHS."""
    search.doing = "ilp"
    # With the best choice itself inside, so that HiGHS can begin from it.
    scope = ilp.scope(messages, room(search, messages) + 1)

    def raise_in_scope(bound: float) -> None:
        search.raise_bound(min(bound, search.cost))

    found = ilp.solve(search.core, scope, deadline, search.choice, raise_in_scope)
    if found.choice is not None:
        search.offer(found.choice)
        if found.finished and found.precision > 0.1:
            # Small regions have small costs, which the tolerances do not blur.
            improve_regions(search, 0.5, POLISH)
    if found.finished and found.choice is None and search.choice is None:
        raise PlanInfeasible("no choice is allowed and fits in memory")
    # Outside the scope nothing is better than the best known before.
    search.raise_bound(min(found.bound, search.cost))
    return found.finished
