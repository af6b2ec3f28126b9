"""Bind it all for users.

| file | what it holds |
|---|---|
| `compile` | the pipeline: constraints, solver, propagation, complete, lower |
| `plan`, `torch_plans`, `recipes` | `plan`, `compare`, `load_plan`; named baseline plans |
| `shard_map` | `shard_map` and `with_sharding_constraint` |
| `torch_programs` | the same for PyTorch; `shard_step`: training steps with sharded state |
| `specs` | what says a sharding |
| `sharded` | `ShardedArray`, and `randn`, `zeros`, `ones`, `asarray` that make them |
| `sharded_torch` | `ShardedTensor`: the same of PyTorch tensors, on real processes, too |
| `random` | counter-based random numbers: a function of the global index |
| `log` | the flat log of what sharded arrays do |
"""

from .compile import Lowered, Said, compile_graph
from .log import log
from .plan import Planned, compare, load_plan, plan
from .shard_map import ShardMapped, shard_map, with_sharding_constraint
from .sharded import ShardedArray, asarray, ones, randn, zeros

__all__ = [
    "Lowered",
    "Planned",
    "Said",
    "ShardMapped",
    "ShardedArray",
    "asarray",
    "compare",
    "compile_graph",
    "load_plan",
    "log",
    "ones",
    "plan",
    "randn",
    "shard_map",
    "with_sharding_constraint",
    "zeros",
]
