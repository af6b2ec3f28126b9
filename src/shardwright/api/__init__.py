"""Bind it all for users.

| file | what it holds |
|---|---|
| `compile` | the pipeline: constraints, solver, propagation, complete, lower |
| `plan`, `planned`, `torch_plans`, `recipes` | `plan`, `compare`, `load_plan`; `Planned`; named baseline plans |
| `problem`, `constraints` | a program with what the user asked for, solved; `pin`, `forbid`, `cap_gather` |
| `arguments` | what users hand in, looked at before any work is done |
| `infeasible` | why there is no plan |
| `explain` | why a value lies as it does; what other shardings of it would cost |
| `learn`, `study`, `study_torch` | rules of unknown ops, found by execution and kept in a user's rule book |
| `auto` | ``auto_sharding``: the planner in `shard_map` |
| `shard_map` | `shard_map` and `with_sharding_constraint` |
| `torch_programs` | the same for PyTorch; `shard_step`: training steps with sharded state |
| `specs` | what says a sharding |
| `sharded` | `ShardedArray`, and `randn`, `zeros`, `ones`, `asarray` that make them |
| `sharded_torch` | `ShardedTensor`: the same of PyTorch tensors, on real processes, too |
| `random` | counter-based random numbers: a function of the global index |
| `log` | the flat log of what sharded arrays do |
"""

from .compile import Lowered, Said, compile_graph
from .constraints import cap_gather, forbid, pin
from .log import log
from .plan import compare, load_plan, plan
from .planned import Planned
from .shard_map import ShardMapped, shard_map, with_sharding_constraint
from .sharded import ShardedArray, asarray, ones, randn, zeros

__all__ = [
    "Lowered",
    "Planned",
    "Said",
    "ShardMapped",
    "ShardedArray",
    "asarray",
    "cap_gather",
    "compare",
    "compile_graph",
    "forbid",
    "load_plan",
    "log",
    "ones",
    "pin",
    "plan",
    "randn",
    "shard_map",
    "with_sharding_constraint",
    "zeros",
]
