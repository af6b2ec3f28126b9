"""Everything taken from PyTorch's private modules, in one place, with the reason.

None of these has a public equivalent in 2.11 to 2.13.  `audit.private` holds what is taken from DTensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch._ops import _OpNamespace as OpNamespace  # what ``torch.ops.aten`` is
from torch.utils._python_dispatch import TorchDispatchMode  # sees every ATen call below autograd

# Only the registry knows every operator; a packet lists its overloads once it is asked for by name.
registered_names = torch._C._dispatch_get_all_op_names
# Whether a backend computes an operator.
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
# Which overload a call means, as PyTorch itself decides it.
overload_for = torch._C._jit_resolve_packet


def custom_definition(overload: str) -> Any:
    """The Python function behind an overload that ``torch.library.custom_op`` made, or None."""
    from torch._library.custom_ops import OPDEFS

    namespace, _, rest = overload.partition(".")
    found = OPDEFS.get(f"{namespace}::{rest.partition('.')[0]}")
    return getattr(found, "_init_fn", None)


def opinfo_database() -> list[Any]:
    """PyTorch's samples of its own operators; imports its test modules, which need ``expecttest``."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


__all__ = [
    "OpNamespace",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "custom_definition",
    "has_kernel",
    "opinfo_database",
    "overload_for",
    "registered_names",
]
