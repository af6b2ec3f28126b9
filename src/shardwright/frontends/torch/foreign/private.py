"""Everything taken from PyTorch's private modules for jobs of several ranks, with the reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import ReduceOp as ReduceOp  # what c10d calls name reductions by
from torch.distributed import ProcessGroup as ProcessGroup
from torch.distributed import distributed_c10d as distributed_c10d
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore as FakeStore  # a backend that sends nothing
from torch.utils import _python_dispatch

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


_FLAGS_OF_MODES = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]


def flags_of_modes() -> dict[str, bool]:
    """Whether dispatch modes are active, which PyTorch keeps for the process, though modes are of a thread."""
    return {name: getattr(_python_dispatch, name) for name in _FLAGS_OF_MODES}


def put_flags_of_modes(flags: dict[str, bool]) -> None:
    vars(_python_dispatch).update(flags)
    tell = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
    if tell is not None:  # it is kept a second time, for `torch.compile`
        tell(flags["_is_in_any_mode_without_ignore_compile_internals"])


class ThreadLocalWorld:
    """What `torch.distributed` knows of its groups, for every thread apart; anything else is shared."""

    def __init__(self, shared: Any) -> None:
        object.__setattr__(self, "_shared", shared)
        object.__setattr__(self, "_own", threading.local())

    def __getattr__(self, name: str) -> Any:
        own = vars(self._own)
        if name not in own and name in _OF_GROUPS:
            own[name] = _OF_GROUPS[name]()
        return own[name] if name in own else getattr(self._shared, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own, name, value)


_OF_GROUPS: dict[str, Callable[[], Any]] = {
    "default_pg": lambda: None, "group_count": int, "comms": list,
    **dict.fromkeys(
        ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag", "pg_coalesce_state"),
        dict,
    ),
}  # fmt: skip
"""What a world begins with."""


def finished_work(tensors: Any) -> Any:
    """DDP asks the work of a collective for its tensors."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return _distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


@contextmanager
def cuda_guard_kept() -> Iterator[None]:
    """Set PyTorch's guard of CUDA devices once.

    Where no GPU is visible, every entry into a fake mode asks for it anew, which ends the process when a CUDA build of
    2.11 does so within a backward pass.
    """
    real = torch._C._ensureCUDADeviceGuardSet
    real()
    torch._C._ensureCUDADeviceGuardSet = lambda: None
    try:
        yield
    finally:
        torch._C._ensureCUDADeviceGuardSet = real
