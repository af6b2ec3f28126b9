"""`SimpleSolver`: the solver of four phases.

It reads the extractor's JSON, seeds the ops that matter most with the strategy that costs least, lets propagation
spread those seeds to everything else, and exports what every node is to do.  A heuristic: it says what its plan costs,
not how far that is from the best.

| file | what it holds |
|---|---|
| `problem` | `Problem`: graph, rules, given shardings and hardware in one place; memoised costs |
| `strategies` | the ways to split one op, and their names (data parallel, model parallel) |
| `ahead` | what a value between two seeds is wanted in |
| `walk` | a fast estimate of a plan: one pass forward through the graph; the beam that seeds |
| `sketch` | the exact estimate of a completed plan: what lowering will write, priced without writing it |
| `trial` | a plan tried out: seeds propagated, completed, priced |
| `solver` | `SimpleSolver`, `Solution`, `solve`: the four phases and the local search |
"""

from .problem import Problem
from .solver import SimpleSolver, Solution, solve

__all__ = ["Problem", "SimpleSolver", "Solution", "solve"]
