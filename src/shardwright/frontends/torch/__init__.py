"""PyTorch: capture functions, modules and whole training steps, and compute ops with PyTorch.

The idea: the program runs once, on fake tensors that have shapes and dtypes and no numbers.  A dispatch mode sees every
ATen call below autograd, forward and backward alike, and writes it straight into a graph; nothing is traced twice and
no weight is allocated.  Programs do not depend on the device: fake tensors are on the CPU, attention and dropout are
kept whole above the dispatcher, and devices are dropped from attributes.  What the program changes (parameters,
buffers, optimizer state, arguments) becomes updates: writes, also through views, are followed by `aliasing`.

Ops are called ``aten.<name>`` or ``aten.<name>.<overload>``; operands are the tensor parameters in the schema's order,
attributes all others, by name (see `signatures`).  Beside ATen's there are ``shardwright.attention`` and its backward
(see `attention`), ``shardwright.adam`` and ``sgd`` (see `updates`), ``core.constraint`` and ``random.*`` (see
`random`).  Four attributes are ours: ``draw`` numbers the draws of a program, ``channels`` says how many a grouped
convolution has in all, ``absent`` lists results that were not asked for, ``<name>_present`` says which of a list of
optional tensors are given.

| file | what it holds |
|---|---|
| `capturing` | `capture`, `capture_step`: from a program to a graph |
| `captured` | `Captured`: the program as a `Source`: calls and state in and out |
| `state`, `slots` | modules and optimizers found, fakes in their place; how to read and write the real ones |
| `dispatch`, `recorder`, `aliasing` | one call; the program while it is written; tensors that share memory |
| `answers` | what calls return, asked once for equal ones |
| `signatures`, `sizes`, `dtypes` | operand or attribute; sizes that differ on a shard; names of element types |
| `neutral`, `attention`, `constraint` | what keeps a program independent of devices; ops of our own |
| `mixed_types` | products of unlike element types, which real tensors refuse |
| `half_types` | what ops give in half types, where devices and fake tensors disagree: statistics of norms |
| `random` | random numbers by key, step and place; PyTorch's random ops in terms of them |
| `describe`, `parts` | for the rule book: what PyTorch says of an operator, and what ops are made of |
| `stepping`, `optimizers` | an optimizer while a program is captured; SGD, Adam and AdamW as formulas |
| `own_steps`, `kept_state`, `trials` | any other optimizer's own code, its state, and trying its step aside first |
| `updates`, `recognising`, `residues` | an optimizer's step for a parameter as one op; found by what ops compute |
| `numbers`, `live_calls`, `options` | numbers that stay alive: options and step counts, in Python code and in calls |
| `watching` | what a program cannot follow, noticed at every step |
| `saving` | what a checkpoint calls parameters and buffers; numbers among the options of optimizers |
| `source`, `exported` | the user's lines and module paths; `ExportedProgram` |
| `compute`, `kernels` | `prepare`, `evaluate`, `run_graph`: computing ops |
| `framework`, `arrays` | PyTorch as engines see it: computing ops, and the array operations behind collectives |
| `private` | everything taken from PyTorch's private modules, with the reason |
| `foreign` | programs that somebody else made parallel, rank by rank |

To extend: an operator of any namespace is captured as it is, if it says its shape (``torch.library.register_fake``);
if a parameter repeats a size, name it in `sizes`, and if a plain call is wrong on a shard, write a kernel in `kernels`;
an optimizer's own step is captured; an op that devices take apart differently is kept whole in `neutral`.

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
    from .captured import Captured
    from .capturing import capture, capture_step
    from .compute import Prepared, evaluate, prepare, run_graph
    from .constraint import constrain
    from .dtypes import dtype_name, tensor_type, torch_dtype
    from .framework import TORCH

_PLACES = {
    "Captured": "captured", "capture": "capturing", "capture_step": "capturing", "constrain": "constraint",
    "dtype_name": "dtypes",
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
    from .capturing import capture, capture_step

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
