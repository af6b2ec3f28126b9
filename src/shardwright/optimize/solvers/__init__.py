"""Solve a numeric problem: reduce it, then hand what is left to a solver.

One file a solver, found by listing this folder:

| solver | what it does | proves |
|---|---|---|
| `elimination` | exact, where tables stay small; branches on memory | always, or refuses as too wide |
| `messages` | bound and rounded choices by message passing with prices for memory | when bound and cost meet |
| `ilp` | messages for a scope and a bound, then HiGHS on it | given time |
| `search` | messages, then large-neighbourhood search | when bound and cost meet |
| `auto` | the cheapest of these that settles it, in the order above; search where the program is too large | as those |

| file | what it holds |
|---|---|
| `state` | `Search`: the best choice so far, the bound, the clock; `Accepts`; the answer |
| `listing` | which solvers there are |
| `regions` | regions solved exactly from a feasible start |

Without a time limit the same problem gives the same choice on every run; of equal choices the one found first stays,
and all orders and seeds are fixed.  With one, the clock decides what was reached, and the best so far is returned with
its bound.

To extend: a module with ``NAME``, ``ACCEPTS`` (`Accepts`) and ``solve(problem, search)``, which offers choices to
``search`` and returns whether it came to its end.  In this folder it is found by itself; elsewhere it is named in the
entry point group ``shardwright.solvers``, or its folder is appended to this package's ``__path__``.
``tests/conformance/test_solvers.py`` runs every solver that is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..problem import Ints, NumericError, NumericProblem
from .listing import Solver, solver_named, solver_names
from .state import Accepts, NumericSolution, Progress, Search


def solve(
    problem: NumericProblem,
    solver: str = "auto",
    time_limit: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    start: Sequence[int] | Ints | None = None,
) -> NumericSolution:
    """The best choice that a solver finds.  Raises `PlanInfeasible` if there is none, or none was found in time.

    Without a time limit exact solvers go on until they have a proof, which may take very long; the others end when
    they stop getting anywhere.

    >>> problem = NumericProblem.build([[3, 0], [0, 2]], [(0, 1, [[0, 5], [5, 0]])])
    >>> solution = solve(problem)
    >>> solution.choice, solution.cost, solution.optimal
    ((1, 1), 2, True)
    """
    chosen = solver_named(solver)
    if time_limit is not None and not time_limit > 0:
        raise NumericError(f"a time limit of {time_limit} s leaves no time")
    search = Search(problem, solver, time_limit, progress, start)
    if search.core.limits.size and not chosen.ACCEPTS.memory:
        raise NumericError(f"solver {solver!r} takes no problem with limits of memory", help="solver='auto'")
    return search.solution(chosen.solve)


__all__ = [
    "Accepts",
    "NumericSolution",
    "Progress",
    "Search",
    "Solver",
    "solve",
    "solver_named",
    "solver_names",
]
