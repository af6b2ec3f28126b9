"""The door for PyTorch users: capture programs, split them over a mesh, run them.

    import shardwright.torch as swt

    step = swt.shard_step(model, optimizer=optimizer, mesh="dp=2, tp=4", specs={
        "input_ids": "[dp, _]", "*.q_proj.weight": "[tp, _]", "*.o_proj.weight": "[_, tp]", ...
    }, input_ids=ids, labels=ids)
    loss = step(input_ids=ids, labels=ids)

`shardwright.shard_map` takes PyTorch functions and modules, too.
"""

from __future__ import annotations

from .api.torch_programs import ShardedStep, TorchMapped, shard_captured, shard_step
from .frontends.torch import Captured, capture, capture_step, constrain, program_hash
from .run.torch import TorchEngine, emit

__all__ = [
    "Captured",
    "ShardedStep",
    "TorchEngine",
    "TorchMapped",
    "capture",
    "capture_step",
    "constrain",
    "emit",
    "program_hash",
    "shard_captured",
    "shard_step",
]
