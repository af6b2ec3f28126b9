"""Everything taken from PyTorch's private modules for jobs of several ranks, with the reason."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import ReduceOp as ReduceOp  # what c10d calls name reductions by
from torch.distributed import ProcessGroup as ProcessGroup
from torch.distributed import distributed_c10d as distributed_c10d
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore as FakeStore  # a backend that sends nothing
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld as ThreadLocalWorld  # ranks, threads

set_thread_isolation: Any = _distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
"""Groups are those of each thread."""
options_of_reductions: tuple[Any, ...] = (
    _distributed_c10d.AllreduceOptions, _distributed_c10d.ReduceOptions, _distributed_c10d.ReduceScatterOptions,
)  # fmt: skip
"""Through which every c10d call says how it reduces."""
resolve_process_group: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
"""From the name that functional calls have."""

dtensor_dispatcher: Any = DTensor._op_dispatcher
"""Has the ops that `loss_parallel` does in its own way, for the whole process."""


def finished_work(tensors: Any) -> Any:
    """DDP asks the work of a collective for its tensors."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return _distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]
