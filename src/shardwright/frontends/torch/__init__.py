"""PyTorch: capture functions, modules and whole training steps, and compute ops with PyTorch.

The idea: the program runs once, on fake tensors that have shapes and dtypes and no numbers.  A dispatch mode sees every
ATen call below autograd, forward and backward alike, and writes it straight into a graph; nothing is traced twice and
no weight is allocated.  Programs do not depend on the device: fake tensors are on the CPU, attention and dropout are
kept whole above the dispatcher, and devices are dropped from attributes.  What the program changes (parameters,
buffers, optimizer state, arguments) becomes updates: writes, also through views, are followed by `aliasing`.

Ops are called ``aten.<name>`` or ``aten.<name>.<overload>``; operands are the tensor parameters in the schema's order,
attributes all others, by name (see `signatures`).  Beside ATen's there are ``shardwright.attention`` and its backward
(see `attention`), ``core.constraint`` and ``random.*`` (see `random`).  Four attributes are ours: ``draw`` numbers the
draws of a program, ``channels`` says how many a grouped convolution has in all,
``absent`` lists results that were not asked for, ``<name>_present`` says which of a list of optional tensors are given.

| file | what it holds |
|---|---|
| `capture` | `capture`, `capture_step`, `Captured`, `program_hash`: from a program to a graph and back |
| `state` | `Session`: modules and optimizers found, fakes in their place, how to read and write the real ones |
| `dispatch`, `recorder`, `aliasing` | one call; the program while it is written; tensors that share memory |
| `answers` | what calls return, asked once for equal ones |
| `signatures`, `sizes`, `dtypes` | operand or attribute; sizes that differ on a shard; names of element types |
| `neutral`, `attention`, `constraint` | what keeps a program independent of devices; ops of our own |
| `random` | random numbers by key, step and place; PyTorch's random ops in terms of them |
| `describe`, `parts` | for the rule book: what PyTorch says of an operator, and what ops are made of |
| `optimizers` | SGD, Adam and AdamW as tensor operations |
| `source`, `exported` | the user's lines and module paths; `ExportedProgram` |
| `evaluate`, `kernels` | `prepare`, `evaluate`, `run_graph`: computing ops |
| `private` | everything taken from PyTorch's private modules, with the reason |

To extend: an operator of any namespace is captured as it is, if it says its shape (``torch.library.register_fake``);
if a parameter repeats a size, name it in `sizes`, and if a plain call is wrong on a shard, write a kernel in `kernels`;
an optimizer is a formula in `optimizers`; an op that devices take apart differently is kept whole in `neutral`.

Not yet: complex numbers as plain arguments; sparse tensors; data-dependent shapes.
"""

from ...ir.digest import program_hash
from .capture import Captured, capture, capture_step
from .constraint import constrain
from .dtypes import dtype_name, tensor_type, torch_dtype
from .evaluate import Prepared, evaluate, prepare, run_graph

__all__ = [
    "Captured",
    "Prepared",
    "capture",
    "capture_step",
    "constrain",
    "dtype_name",
    "evaluate",
    "prepare",
    "program_hash",
    "run_graph",
    "tensor_type",
    "torch_dtype",
]
