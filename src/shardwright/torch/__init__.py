"""The door for PyTorch users: capture programs, split them over a mesh, run and train them.

    import shardwright.torch as swt

    step = swt.shard_step(model, optimizer=optimizer, mesh="dp=2, tp=4", specs={
        "input_ids": "[dp, _]", "*.q_proj.weight": "[tp, _]", "*.o_proj.weight": "[_, tp]", ...
    }, input_ids=ids, labels=ids)
    loss = step(input_ids=ids, labels=ids)

`shardwright.plan` and `shardwright.shard_map` take PyTorch functions and modules, too; ``plan.step()`` trains a plan.

| file | what it holds |
|---|---|
| `proving` | `prove`: that a parallel program that somebody else wrote computes what the single one does |
| `tensors` | `ShardedTensor`: PyTorch tensors in shards, one op at a time; `shardwright.asarray` makes them |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..api.sharding import shard_step
from ..frontends.torch import Captured, capture, capture_step, constrain, program_hash
from ..run.runner import Step as ShardedStep
from ..run.torch import TorchEngine as TorchEngine
from ..run.torch import emit as emit
from .tensors import ShardedTensor

if TYPE_CHECKING:
    from .proving import prove

__all__ = [
    "Captured",
    "ShardedStep",
    "ShardedTensor",
    "capture",
    "capture_step",
    "constrain",
    "program_hash",
    "prove",
    "shard_step",
]


def __getattr__(name: str) -> Any:
    if name in ("prove", "ParallelProof"):  # not everybody who plans has foreign programs
        from . import proving

        return getattr(proving, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# `TorchEngine` and `emit` can be imported, too; they run and write what they are given, proven or not.
