"""NumPy: capture ordinary NumPy functions, and compute ops with NumPy.

The idea: the function runs once, on `Tracer`s that have shapes and dtypes and no numbers.  NumPy's own protocols hand
each ufunc and function that meets a tracer to this package, which answers the shape and dtype that NumPy would (mostly
by asking NumPy, on arrays without elements) and writes down an op.  What NumPy composes of simpler steps (``mean``,
``var``, ``norm``, ``stack``) is composed here of the same steps, so that rules are needed for few ops.

| file | what it holds |
|---|---|
| `framework`, `arrays` | NumPy as engines see it: computing ops, and the array operations behind collectives |
| `traced` | `trace`, `Traced`, `constrain`: from a function to a graph and back to its arguments and results |
| `tracer` | `Tracer`: attributes, operators, methods; what needs numbers is refused |
| `recorder`, `aliasing` | the program while it is written, with the user's lines; values that share memory |
| `registry`, `emit` | which function is traced by what; how families write ops |
| `define`, `ops/` | `op`: an op in one place; those of ours that are written so, one file each |
| `functions/` | NumPy's functions by families: those that compute, those that arrange |
| `compute`, `kernels`, `core_kernels` | `prepare`, `evaluate`, `run_graph`: computing ops |
| `samples` | calls of every op, by which its rule is run and compared with what discovery finds |
| `dtypes`, `trees` | names of element types, `ShapeDtype`; nested arguments |

To extend: a new op is one file in `ops`, found by listing: a function under ``@op`` with its rule, meaning and samples.
A function of NumPy that is made of ops is ``@implements("name")`` over a function with its parameters, in the family it
belongs to.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import SpecError
from ..base import PLAIN, StepForm
from . import core_kernels
from .compute import Prepared, evaluate, prepare, run_graph
from .define import op
from .dtypes import ShapeDtype, dtype_name, numpy_dtype
from .framework import NUMPY
from .functions import (
    contractions,
    creating,
    indexing,
    joining,
    norms,
    reductions,
    selecting,
    shaping,
    ufuncs,
)
from .ops.erf import erf
from .registry import supported
from .samples import Sample
from .traced import Traced, constrain, trace
from .tracer import Tracer, is_traced

FRAMEWORK = NUMPY


def accepts(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whatever no other frontend takes is a function of arrays."""
    return callable(fn)


def source_of(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    optimizer: Any = None,
    loss: Any = None,
    training: bool = False,
    form: StepForm = PLAIN,
) -> Traced:
    """A function of arrays, traced."""
    for what, given in (("optimizer", optimizer), ("loss", loss)):
        if given is not None:
            raise SpecError(
                f"{what}= is for programs of PyTorch, but neither function nor arguments are of PyTorch",
                help="give tensors of PyTorch (on the meta device shapes are enough), or leave it out",
            )
    if training or form != PLAIN:
        raise SpecError(
            "training steps are for programs of PyTorch, but neither function nor arguments are of PyTorch",
            help="give a module and tensors of PyTorch",
        )
    return trace(fn, *args, **kwargs)


_FAMILIES = (contractions, core_kernels, creating, indexing, joining, norms, reductions, selecting, shaping, ufuncs)

__all__ = [
    "FRAMEWORK",
    "NUMPY",
    "Prepared",
    "Sample",
    "ShapeDtype",
    "Traced",
    "Tracer",
    "accepts",
    "constrain",
    "dtype_name",
    "erf",
    "evaluate",
    "is_traced",
    "numpy_dtype",
    "op",
    "prepare",
    "run_graph",
    "source_of",
    "supported",
    "trace",
]
