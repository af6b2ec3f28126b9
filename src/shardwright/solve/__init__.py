"""Choose: which axes each op's factors get, so that the whole program is fast and fits.

`SimpleSolver` reads the extractor's JSON, seeds the ops that matter most with the strategy that costs least,
lets propagation spread those seeds to everything else, and exports what every node is to do.  It is a heuristic:
it says what its plan costs, not how far that is from the best.

| file | what it holds |
|---|---|
| `problem` | `Problem`: graph, rules, given shardings and hardware in one place; memoised costs |
| `strategies` | the ways to split one op, and their names (data parallel, model parallel) |
| `ahead` | what a value between two seeds is wanted in |
| `walk` | a fast estimate of a plan: one pass forward through the graph; the beam that seeds |
| `sketch` | the exact estimate of a completed plan: what lowering will write, priced without writing it |
| `trial` | a plan tried out: seeds propagated, completed, priced |
| `simple` | `SimpleSolver`, `Solution`, `solve`: the four phases and the local search |

`best_plan` is exact: it builds a numeric problem of all ways to split every node, a second one that no plan beats, and
solves both.  Deep stacks of equal layers are solved by a short one, at nearly the same price.

| file | what it holds |
|---|---|
| `best` | `best_plan`: the front door; `Asked`: what a plan has to keep to |
| `space` | `Space`: the ways to split every node over all mesh axes together |
| `routes` | `Routes`: the cheapest ways between all shardings of a tensor, and trees of copies for several readers |
| `demand` | `Demand`: how a value may lie once it is made, and in which shardings who wants it |
| `assign` | `Assigner`: the numeric problems of a graph, and complete shardings from their solutions |
| `compact` | a smaller problem with the same optimum, with the same work done once for equal layers |
| `window` | a compacted problem solved: elimination, message passing, or all that `numeric` has |
| `bucket` | the optimum by eliminating variables, with the same work done once for equal parts |
| `layers` | `find_layers`: repeats in a graph, checked; `Short`: a graph with fewer of them |
| `stack`, `deep` | a deep stack by its short one: the problem put together again, solved, and decoded |
| `chain` | the optimum of a deep stack by elimination, layer after layer, where tables stay small |
| `flat` | `Flat`: plans that keep every value in one sharding, and what they hold at every moment |
| `flats` | flat plans from choices of a numeric problem, and their neighbours |
| `within`, `prices` | plans that fit in memory: the search for a price, and what bytes then cost |
| `exhaust` | small graphs within memory: all plans that may be better, so that the best is proven |
| `mixed` | between a plan that is too large and one that fits |
| `alternatives` | the best plans with one value lying otherwise: many answers from one set-up |
| `polish` | single changes that pay, where the bound is not reached |
| `tighten` | inputs that lie in less memory at the same price |
| `price` | what complete shardings will cost when they are lowered |
| `numeric` | solvers for one strategy per node with pairwise costs and memory (a package of its own) |

To extend: another solver is another file with ``solve(problem)``; it may use `Problem` and `sketch`, and its cost
must equal that of the lowered Program.
"""

from ..errors import PlanInfeasible
from .problem import Problem
from .simple import SimpleSolver, Solution, solve

__all__ = ["PlanInfeasible", "Problem", "SimpleSolver", "Solution", "solve"]
