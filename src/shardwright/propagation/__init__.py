"""Spread what the user said over the whole program, by Shardy's semantics.

An op's operand and result shardings are projected onto its factors; axes spread along factors; the result is
projected back.  A graph is worked over until nothing changes, in the order of user priorities, then of op
priorities.

| file | what it holds |
|---|---|
| `project` | dims <-> factors; the factor-by-tensor table as debug print |
| `factors` | the basic and the aggressive strategy, for one op |
| `directions` | op priorities: who may propagate in which direction at each level |
| `engine` | `propagate_sharding` (one op), `run_hierarchical_propagation_pass` (a graph) |
| `provenance` | where each axis came from |
| `constraints` | constraints and sharding groups, made ready |
| `book` | propagation by the rule book |
| `copies` | `Copies`: which copies of each value exist; completing, costs and lowering all ask it |
| `choices` | the strategies of one op that its tensors' shardings suggest |
| `parts` | ops in their parts, for splits that need communication inside an op |
| `complete` | fix the sharding of every operand of every node, by bytes moved |
| `check` | `check_complete`: decisions that came from a file, held against the rules |

To extend: a strategy is a function with the signature `factors.Strategy`; an op joins by its rule alone.
"""

from .book import rule_of
from .constraints import apply_constraints, join_groups
from .engine import OpView, Propagated, propagate_sharding, run_hierarchical_propagation_pass
from .factors import Direction, aggressive, basic
from .project import Projection

__all__ = [
    "Direction",
    "OpView",
    "Projection",
    "Propagated",
    "aggressive",
    "apply_constraints",
    "basic",
    "join_groups",
    "propagate_sharding",
    "rule_of",
    "run_hierarchical_propagation_pass",
]
