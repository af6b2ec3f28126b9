"""`SimpleSolver`: the solver of four phases.

It reads the extractor's JSON, seeds the ops that matter most, lets propagation spread those seeds to everything else,
and exports what every node is to do.  Strategies and prices are those of the other solvers.  A heuristic: it says what
its plan costs, not how far that is from the best.

| file | what it holds |
|---|---|
| `problem` | `Problem`: graph, rules, given shardings and hardware in one place |
| `strategies` | the strategies of one op, and their names (data parallel, model parallel) |
| `evaluation` | a plan tried out: seeds propagated, completed, lowered, priced |
| `solver` | `SimpleSolver`, `Solution`, `solve`: the four phases |
"""

from .problem import Problem
from .solver import SimpleSolver, Solution, solve

__all__ = ["Problem", "SimpleSolver", "Solution", "solve"]
