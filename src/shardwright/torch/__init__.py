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
| `testing` | `assert_parallel_equal`: the same for test suites |
| `tensors` | `ShardedTensor`: PyTorch tensors in shards, one op at a time; `shardwright.asarray` makes them |
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "shardwright.torch needs PyTorch, which is not installed: pip install 'shardwright[torch]'", name="torch"
    )

from ..api.training.batches import data_rank
from ..api.training.making import shard_step, train_step
from ..api.training.step import Step as ShardedStep
from ..frontends.torch import Captured, capture, capture_step, constrain, program_hash
from ..frontends.versions import outside_tested
from ..run.torch import TorchEngine as TorchEngine
from ..run.torch import emit as emit
from .tensors import ShardedTensor

if TYPE_CHECKING:
    from . import testing as testing
    from .proving import prove

__all__ = [
    "Captured",
    "ShardedStep",
    "ShardedTensor",
    "capture",
    "capture_step",
    "constrain",
    "data_rank",
    "program_hash",
    "prove",
    "shard_step",
    "train_step",
]


_outside = outside_tested(str(import_module("torch").__version__))
if _outside is not None:
    warnings.warn(_outside, RuntimeWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    if name == "prove":  # not everybody who plans has foreign programs
        from .proving import prove

        return prove
    if name == "testing":
        return import_module(f"{__name__}.testing")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# `TorchEngine` and `emit` can be imported, too; they run and write what they are given, proven or not.
