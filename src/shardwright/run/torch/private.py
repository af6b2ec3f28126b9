"""Everything taken from PyTorch's private modules, in one place, with the reason.

None of these has a public equivalent in 2.11 to 2.13.
"""

from __future__ import annotations

import torch.distributed._functional_collectives  # noqa: F401  registers torch.ops._c10d_functional
from torch.distributed.distributed_c10d import (
    _get_default_store as default_store,  # what ranks share before, and after, collectives work
)

__all__ = ["default_store"]
