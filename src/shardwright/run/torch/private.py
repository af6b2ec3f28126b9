"""Everything taken from PyTorch's private modules, in one place, with the reason.

None of these has a public equivalent in 2.11 to 2.13.
"""

from __future__ import annotations

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

__all__ = ["OperatorMode", "below_autograd", "default_store"]
