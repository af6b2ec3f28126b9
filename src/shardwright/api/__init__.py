"""BIND it for users.

A program becomes a `Source`, what is asked of it an `Asked`, what is decided a `Plan`, and one runner runs it.

| file | what it holds |
|---|---|
| `planning` | `plan`, `compare`, `load_plan`; of several processes rank 0 plans |
| `artefact` | `Plan`: the data with its source and Program: look at it, ask it why, call it, train it |
| `deciding` | what is decided for a captured program: the planner's best, or a plan's record bound to it |
| `sharding` | `shard_map` |
| `training/` | `train_step`, `shard_step`: a model and its optimizer become a `Step` that holds its state in shards |
| `proven` | every Program is proven before it first runs; `verify` |
| `arguments`, `specs` | what users hand in, looked at; shardings mirrored over arguments and results |
| `beside` | recipes beside a plan, for its page |
| `foreign` | what a parallel program of somebody else costs, for `compare` |
| `infeasible` | why there is no plan |
| `fitting` | what would make a program fit in memory, each tried: a larger mesh, a smaller batch, checkpoints |
| `explain` | why a value is sharded as it is; what other shardings of it would cost |
| `debugging` | the lines of ``shard_map(auto_sharding=True, debug=True)`` |
| `arrays/` | `ShardedArray`, and `randn`, `zeros`, `ones`, `asarray` that make them; `with_sharding_constraint` |
| `front` | `reshard`, `propagate` and the like on what users write: text, `P`, functions |

To extend: what users may ask for is a kind of `plans.requests.Request`; how it runs is an engine in `run`.
"""

from .arrays.event_log import log
from .arrays.sharded import ShardedArray, asarray, ones, randn, with_sharding_constraint, zeros
from .artefact import Plan
from .planning import compare, load_plan, plan
from .proven import verify
from .sharding import ShardMapped, shard_map
from .training.making import shard_step, train_step

__all__ = [
    "Plan",
    "ShardMapped",
    "ShardedArray",
    "asarray",
    "compare",
    "load_plan",
    "log",
    "ones",
    "plan",
    "randn",
    "shard_map",
    "shard_step",
    "train_step",
    "verify",
    "with_sharding_constraint",
    "zeros",
]
