"""BIND it for users.

A program becomes a `Source`, what is asked of it an `Asked`, what is decided a `Plan`, and one runner runs it.

| file | what it holds |
|---|---|
| `planning` | `plan`, `compare`, `load_plan`; of several processes rank 0 plans |
| `artefact` | `Plan`: the data with its source and Program: look at it, ask it why, call it, train it |
| `deciding` | what is decided for a captured program: the planner's best, or a plan's record bound to it |
| `sharding` | `shard_map` |
| `steps` | `train_step` and `shard_step`: a model and its optimizer become a `Step` |
| `training`, `entries` | `Step`: state in shards; `Entry`: its programs for one shape of batch |
| `batches` | what each rank gives of a batch, and how it gets into a program |
| `measuring` | what was predicted for a step beside what it took |
| `checkpoints` | what a `Step` saves and loads, by names that outlive its programs |
| `proven` | every Program is proven before it first runs; `verify` |
| `arguments`, `specs` | what users hand in, looked at; shardings mirrored over arguments and results |
| `beside` | recipes beside a plan, for its page |
| `foreign` | what a parallel program of somebody else costs, for `compare` |
| `infeasible` | why there is no plan |
| `explain` | why a value is sharded as it is; what other shardings of it would cost |
| `debugging` | the lines of ``shard_map(auto_sharding=True, debug=True)`` |
| `arrays` | `ShardedArray`, and `randn`, `zeros`, `ones`, `asarray` that make them; `with_sharding_constraint` |
| `eager` | one call on arrays in shards as a Program |
| `front` | `reshard`, `propagate` and the like on what users write: text, `P`, functions |
| `random` | counter-based random numbers: a function of the global index |
| `event_log` | the flat log of what sharded arrays do |

To extend: what users may ask for is a kind of `plans.requests.Request`; how it runs is an engine in `run`.
"""

from .arrays import ShardedArray, asarray, ones, randn, with_sharding_constraint, zeros
from .artefact import Plan
from .event_log import log
from .planning import compare, load_plan, plan
from .proven import verify
from .sharding import ShardMapped, shard_map
from .steps import shard_step, train_step

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
