"""Everything taken from PyTorch's private modules, in one place, with the reason.

None of these has a public equivalent in 2.11 to 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives  # registers torch.ops._c10d_functional
from torch.distributed.distributed_c10d import (
    _get_default_store as default_store,  # what ranks share before, and after, collectives work
)
from torch.utils._python_dispatch import TorchDispatchMode

# Programs hold their own gradients; below autograd, a collective costs a third of what it does under no_grad alone.
below_autograd: Any = torch._C._AutoDispatchBelowAutograd
# Sees every operator that runs, with its results.
OperatorMode: Any = TorchDispatchMode  # untyped


def compile_ahead(module: Any, inputs: Sequence[Any]) -> Any:
    """A module of operator calls compiled by Inductor for just these shapes, before it runs.

    `torch.compile` compiles while it runs, when other ranks already wait, and looks at all inputs in every call.
    """
    import torch._inductor  # heavy, and seldom wanted

    with torch.no_grad():
        return torch._inductor.standalone_compile(module, list(inputs), dynamic_shapes="from_example_inputs")


__all__ = ["OperatorMode", "below_autograd", "compile_ahead", "default_store"]
