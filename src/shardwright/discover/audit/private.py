"""Everything taken from the inside of ``torch.distributed.tensor``, in one place, with the reason.

It has no public way to ask for a rule without running it, nor to run a call of many ranks in one process.  Apart from
`discover.torch.private`, since importing this takes seconds.
"""

from __future__ import annotations

from typing import Any

from torch.distributed._local_tensor import LocalTensor, LocalTensorMode  # all ranks of a call in one process
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # what the propagator is asked with
from torch.distributed.tensor._op_schema import OpSchema, RuntimeSchemaInfo
from torch.distributed.tensor.debug import _clear_sharding_prop_cache as clear_cache  # an answer is kept otherwise

try:  # what stands in for a missing rule, from torch 2.12 on
    from torch.distributed.tensor._decompositions import DecompShardingStrategy
except ImportError:
    DecompShardingStrategy = None  # type: ignore[assignment, misc]
from torch.utils._pytree import tree_leaves  # as DTensor flattens results


def fake_store() -> Any:
    """The store of a process group that sends nothing; asking for it also registers that backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


__all__ = [
    "DTensorSpec",
    "DecompShardingStrategy",
    "LocalTensor",
    "LocalTensorMode",
    "OpSchema",
    "RuntimeSchemaInfo",
    "TensorMeta",
    "clear_cache",
    "fake_store",
    "tree_leaves",
]
