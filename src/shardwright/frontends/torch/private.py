"""Everything taken from PyTorch's private modules, in one place, with the reason.

None of these has a public equivalent in 2.11 to 2.13; `make_fx` and `torch.export` are built on the same ones.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import _assert_async as assert_async  # a check that does not wait for the device
from torch._C import DisableTorchFunction  # leaves all modes above the dispatcher out, users' and ours
from torch._C import _current_autograd_node as current_autograd_node  # which forward op a backward op belongs to
from torch._C import _DisableTorchDispatch as DisableTorchDispatch  # leaves those of the dispatcher out
from torch._C import (  # whether an op is composite; convolutions that do not depend on the CPU
    _dispatch_has_kernel_for_dispatch_key as has_kernel,
)
from torch._C import _get_mkldnn_enabled as mkldnn_enabled
from torch._C import _set_mkldnn_enabled as set_mkldnn_enabled
from torch._C._autograd import _get_sequence_nr as next_sequence_number  # numbers autograd nodes as they are made
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (  # tensors with shapes and no numbers
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.optim.optimizer import (  # hooks of all optimizers
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)
from torch.utils._python_dispatch import TorchDispatchMode  # sees every ATen call below autograd
from torch.utils._python_dispatch import (  # real numbers in the middle of a capture
    _disable_current_modes as without_modes,
)
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten  # knows users' classes

STEP_HOOKS = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)

__all__ = [
    "STEP_HOOKS",
    "DataDependentOutputException",
    "DisableTorchDispatch",
    "DisableTorchFunction",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "OpOverload",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "active_fake_mode",
    "active_in_backward",
    "assert_async",
    "current_autograd_node",
    "decompositions",
    "has_kernel",
    "keystr",
    "mkldnn_enabled",
    "next_sequence_number",
    "quiet",
    "set_mkldnn_enabled",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_unflatten",
    "unset_fake_temporarily",
    "without_compilers",
    "without_modes",
]


def active_fake_mode() -> Any:
    """The mode that makes tensors without numbers where nothing tells what kind they are; None if there is none."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


@contextmanager
def quiet() -> Iterator[None]:
    """What fails on fake tensors is raised, and told by us: PyTorch's log of it, with all its frames, is not needed."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def without_compilers() -> AbstractContextManager[Any]:
    """Functions under ``torch.compile`` run as they are written; the compiler is imported if there are any."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


def decompositions() -> Any:
    """What ops are made of, in PyTorch's words: the same on every device."""
    from torch._decomp import decomposition_table

    return decomposition_table


@contextmanager
def active_in_backward(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """``loss.backward()`` is itself a call that a mode handles, and modes do not see what their own handler does.

    A recomputation (checkpointing) runs in there, and must give the ops that the forward pass gave.
    """
    run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # both backward() and grad() end here

    def resumed(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    torch.autograd._engine_run_backward = resumed  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
