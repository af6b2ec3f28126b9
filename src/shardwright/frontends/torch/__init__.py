"""PyTorch: capture functions, modules and whole training steps, and compute ops with PyTorch.

The idea: the program runs once, on fake tensors that have shapes and dtypes and no numbers.  A dispatch mode sees every
ATen call below autograd, forward and backward alike, and writes it straight into a graph; nothing is traced twice and
no weight is allocated.  Programs do not depend on the device: fake tensors are on the CPU, attention and dropout are
kept whole above the dispatcher, and devices are dropped from attributes.  What the program changes (parameters,
buffers, optimizer state, arguments) becomes updates: writes, also through views, are followed by `recording.aliasing`.

Ops are called ``aten.<name>`` or ``aten.<name>.<overload>``; operands are the tensor parameters in the schema's order,
attributes all others, by name (see `signatures`). Beside ATen's there are ``shardwright.attention`` and its backward
(see `recording.attention`), ``shardwright.adam`` and ``sgd`` (see `steps.updates`), ``core.constraint`` and
``random.*`` (see `random`). Four attributes are ours: ``draw`` numbers the draws of a program, ``channels`` says how
many a grouped convolution has in all, ``absent`` lists results that were not asked for, ``<name>_present`` says which
of a list of optional tensors are given.

| file | what it holds |
|---|---|
| `recording/` | `capture`, `capture_step`, `Captured`: from a program to a graph, as a `Source` |
| `steps/` | optimizers while a program is captured; numbers that stay alive between steps |
| `signatures`, `dtypes` | operand or attribute; names of element types |
| `random` | random numbers by key, step and place; PyTorch's random ops in terms of them |
| `describe`, `parts` | for the rule book: what PyTorch says of an operator, and what ops are made of |
| `compute`, `kernels` | `prepare`, `evaluate`, `run_graph`: computing ops |
| `framework`, `arrays` | PyTorch as engines see it: computing ops, and the array operations behind collectives |
| `recompute` | a model whose layers keep nothing for their backward pass, as long as a step is captured |
| `private` | everything taken from PyTorch's private modules, with the reason |
| `foreign` | programs that somebody else made parallel, rank by rank |

To extend: an operator of any namespace is captured as it is, if it says its shape (``torch.library.register_fake``);
if a parameter repeats a size, name it in `recording.sizes`, and if a plain call is wrong on a shard, write a kernel in
`kernels`; an optimizer's own step is captured; an op that devices take apart differently is kept whole in
`recording.neutral`.

Not yet: complex numbers as plain arguments; sparse tensors; data-dependent shapes.

Importing this package imports no PyTorch: that happens with the first of its names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..base import PLAIN, StepForm

if TYPE_CHECKING:
    from ...ir.digest import program_hash
    from .compute import Prepared, evaluate, prepare, run_graph
    from .dtypes import dtype_name, tensor_type, torch_dtype
    from .framework import TORCH
    from .recording.captured import Captured
    from .recording.capturing import capture, capture_step
    from .recording.constraint import constrain

_PLACES = {
    "Captured": "recording.captured", "capture": "recording.capturing", "capture_step": "recording.capturing",
    "constrain": "recording.constraint", "dtype_name": "dtypes",
    "tensor_type": "dtypes", "torch_dtype": "dtypes", "Prepared": "compute", "evaluate": "compute",
    "prepare": "compute", "run_graph": "compute", "TORCH": "framework",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "FRAMEWORK":
        name = "TORCH"
    if name == "program_hash":
        from ...ir.digest import program_hash

        return program_hash
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def accepts(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a module or a tensor of PyTorch is at hand; PyTorch is not imported to find out."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(fn, torch.nn.Module | torch.export.ExportedProgram):
        return True
    from .private import tree_flatten

    return any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten((args, dict(kwargs)))[0])


def source_of(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    optimizer: Any = None,
    loss: Any = None,
    training: bool = False,
    form: StepForm = PLAIN,
) -> Captured:
    """A function, a module, or with ``optimizer`` or ``loss`` a training step, captured."""
    from .recording.capturing import capture, capture_step

    if training or optimizer is not None or loss is not None or form != PLAIN:
        return capture_step(fn, *args, optimizer=optimizer, loss=loss, form=form, **kwargs)
    return capture(fn, *args, **kwargs)


__all__ = [
    "TORCH",
    "Captured",
    "Prepared",
    "accepts",
    "capture",
    "capture_step",
    "constrain",
    "dtype_name",
    "evaluate",
    "prepare",
    "program_hash",
    "run_graph",
    "source_of",
    "tensor_type",
    "torch_dtype",
]
