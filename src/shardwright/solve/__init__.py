"""CHOOSE: which axes each op's factors get, so that the whole program is fast and fits.

`best_plan` is exact: it builds a numeric problem of all strategies of every node, a second one that no plan beats, and
solves both.  Deep stacks of equal layers are solved by a short one, at nearly the same price.

| file | what it holds |
|---|---|
| `planner` | `Planner`: the front door: plans of solvers, recipes and by hand, lowered and priced |
| `scheduled` | `Scheduled`: the plan whose schedule is fastest, by several sums that stand in for it |
| `bound` | what no schedule of any plan beats |
| `exact` | `best_plan`: the plan with the least sum, and its bound |
| `strategies` | `Space`: the strategies of every node over all mesh axes together |
| `routes` | `Routes`: the cheapest steps between all shardings of a tensor; Steiner trees of copies for readers |
| `readers` | `Demand`: the shardings that a value may have once it is made, and in which of them who wants it |
| `model` | `Assigner`: the numeric problems of a graph, and complete shardings from their solutions |
| `assignment` | `Assignment`: what was found, decoded when it is looked at |
| `alternatives` | the best plans with one value sharded otherwise: many answers from one set-up |
| `names` | names that users give |
| `polish`, `tighten` | single changes that pay; inputs in less memory at the same price |
| `price` | what complete shardings will cost when they are lowered |
| `repeated/` | equal layers found, shortened, solved, unfolded |
| `memory/` | plans within a limit of memory |
| `recipes/` | data parallel, ZeRO, Megatron and their like as named baselines |
| `simple/` | `SimpleSolver`: the four phases |

The numbers themselves are solved in `optimize`, which knows nothing of tensors.

To extend: another solver is another file in `optimize.solvers`; its cost must equal that of the lowered Program.
"""

from ..errors import PlanInfeasible
from .simple import Problem, SimpleSolver, Solution, solve

__all__ = ["PlanInfeasible", "Problem", "SimpleSolver", "Solution", "solve"]
