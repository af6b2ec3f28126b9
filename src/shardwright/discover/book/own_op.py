"""`check_op`: all that an op in one file claims, by execution.

Its rule on meshes, its table of pending reductions against the oracle, the programs made of it by the proof, and its
exact meaning, computed with NumPy's floats, against the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import RuleError, VerifyError, front
from ...frontends.numpy.kernels import KERNELS
from ...frontends.numpy.samples import SAMPLES, Sample
from ...rules.registry import lookup
from ...spec.op_record import Function, Meaning
from .compare import Comparison
from .numpy import SIZES, compare_op, drawn_calls
from .numpy_mesh import check_same, check_sample


@front
def check_op(name: str) -> Comparison:
    """Run what an op claims; `VerifyError` says what does not hold.

    Returns what was tried.  ``beyond`` are rows that hold and that the rule leaves out: it could say more.

    >>> found = check_op("erf")
    >>> found.wrong, found.splits
    ((), 2)
    """
    record = lookup(name)
    samples = SAMPLES.get(name, [])
    if not samples:
        raise RuleError(f"op {name!r} has no samples", help='name the shapes of a call: op(..., samples=[("n m",)])')
    splits = max(check_sample(name, sample, prove=True) for sample in samples)
    if callable(record.meaning):
        for sample in samples:
            _check_meaning(name, record.meaning, sample)
    comparison = compare_op(name)
    if comparison.wrong:
        raise VerifyError(
            f"the rule of {name} claims what does not hold", rows=[("row", row) for row in comparison.wrong]
        )
    return replace(comparison, splits=splits)


def _check_meaning(name: str, meaning: Meaning, sample: Sample) -> None:
    arithmetic = NumpyArithmetic()
    for sizes in SIZES:
        for node, operands, results in drawn_calls(name, sample, sizes):
            with np.errstate(all="ignore"):
                made = meaning(arithmetic, *operands, **dict(node.attrs))
            given: Sequence[Any] = made if isinstance(made, list | tuple) else (made,)
            if len(given) != len(results):
                raise VerifyError(f"the meaning of {name} has {len(given)} results, the function {len(results)}")
            for array, expected in zip(given, results):
                # A meaning is about numbers, not about their types.
                check_same(np.asarray(array).astype(expected.dtype), expected, f"what {name} is said to mean")


class NumpyArithmetic:
    """NumPy's floats as the `Arithmetic` of a meaning: names and arguments are its own, functions are computed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def apply(self, function: Function, *operands: Any) -> Any:
        return _function(function)(*operands)

    def rising(self, function: Function, x: Any) -> Any:
        return _function(function)(x)

    def along(self, function: Function, x: Any, axis: int) -> Any:
        return _function(function)(x, axis=axis)


def _function(function: Function) -> Callable[..., Any]:
    if callable(function):
        return function
    if function in KERNELS:
        return KERNELS[function]({}, ())
    if hasattr(np, function):
        return getattr(np, function)  # type: ignore[no-any-return]
    raise RuleError(
        f"a meaning applies {function!r}, which is no function of NumPy",
        help="pass the function itself, so that the meaning can be computed",
    )
