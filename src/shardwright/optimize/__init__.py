"""The planner's numeric core: one strategy per node, pairwise costs, bytes that must fit at every step.

It knows nothing of graphs, meshes or ops: whoever has such a problem (the planner, a contest file) builds a
`NumericProblem` and calls `solve`, which returns a choice, its exact cost and a proven lower bound.  Costs are whole
numbers throughout; what floats and solvers say is only ever used to find choices, which are priced exactly, and as
bounds, which are rounded the safe way.

| file | what it holds |
|---|---|
| `problem` | `NumericProblem`, `Evaluation`: the problem, the exact price of a choice; `read`, `parse`: contest files |
| `fold` | nodes folded into neighbours that decide them: arc consistency, followers, leaves, degree two |
| `presolve` | all exact reductions in turn, each with its way back: memory, misfits, dominated strategies |
| `elimination` | exact over a tree decomposition, branching on memory |
| `messages` | message passing (TRW-S) with prices for memory: bound, reduced costs, rounded choices |
| `batches` | the same without memory, for problems with equal parts: variables of a kind are visited as one |
| `alike` | any problem in such batches, by what its variables and edges have in common |
| `narrow` | such a problem without the strategies that only choices far from the bound use |
| `compact` | a smaller problem with the same optimum, with the same work done once for equal parts |
| `bucket` | the optimum by bucket elimination, with the same work done once for equal parts |
| `core` | a compacted problem solved: elimination, message passing, or all there is |
| `ilp` | HiGHS on what message passing leaves open; the only file that knows it |
| `local_search` | large-neighbourhood search: regions solved exactly |
| `repair` | from a choice that does not fit to one that does |
| `solvers/` | `solve`, `NumericSolution`; one file a solver: which of these, in which order, for how long |

To extend: another solver is another file in `solvers`, found by listing; another reduction is a pass in `presolve` with
``back`` and ``forward``.  Random problems compare all of them with brute force: ``tests/conformance/test_solvers.py``,
``tests/unit/optimize/test_random.py``.
"""

from .presolve import Reduced, reduce
from .problem import FORBIDDEN, Evaluation, NumericError, NumericProblem, parse, read
from .solvers import Accepts, NumericSolution, Progress, Search, solve, solver_named, solver_names

__all__ = [
    "FORBIDDEN",
    "Accepts",
    "Evaluation",
    "NumericError",
    "NumericProblem",
    "NumericSolution",
    "Progress",
    "Reduced",
    "Search",
    "parse",
    "read",
    "reduce",
    "solve",
    "solver_named",
    "solver_names",
]
