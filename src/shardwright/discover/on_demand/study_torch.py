"""What the study of an op needs of PyTorch.  Imported only where PyTorch is at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...errors import UnknownOpError
from ...frontends.torch import prepare, torch_dtype
from ...frontends.torch.arrays import TorchArrays
from ...frontends.torch.signatures import OPTIONAL_TENSORS, TENSOR, TENSORS, find_op, signature
from ...ir.graph import TensorType
from ..torch.ops import TORCH
from .op_library import OpLibrary


def torch_library_of(op: str) -> OpLibrary | None:
    """None for what is no operator of PyTorch."""
    try:
        found = find_op(op)
    except UnknownOpError:
        return None
    form = signature(found)
    names = tuple(p.name for p in form.parameters if p.kind in (TENSOR, TENSORS, OPTIONAL_TENSORS))
    refused = "its numbers are random" if form.random else "it writes to its arguments" if form.mutates else ""
    identity = str(found._schema), f"torch {torch.__version__}"
    return OpLibrary(TORCH, _prepared, identity, names, refused, TorchArrays(), _cast, _plain)


def _cast(array: Any, dtype: str) -> Any:
    return TORCH.tensor(array).to(torch_dtype(dtype))


def _plain(tensor: Any) -> Any:
    return TORCH.array(tensor.double() if tensor.is_floating_point() else tensor)


def _prepared(op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Callable[[Any], tuple[Any, ...]]:
    # A forked child that enters a region of several threads may wait for ever.
    torch.set_num_threads(1)
    run = prepare(op, attrs, results)

    def call(operands: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            return run(operands)

    return call
