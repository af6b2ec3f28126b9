"""Calls that tell rules apart which the samples at hand do not: other flags, equal numbers, classes that occur, tensors
that may be left out.

PyTorch's own samples show how an operator is called, not where its rule changes.  A rule that forgets an argument is
found only by calls on which that argument matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..calls.widen import runs, with_value
from ..isolate import isolated
from ..operator import Operator, Sample, Slot

EACH = 3
"""Calls that each way to vary makes, at most."""


def telling(operator: Operator, samples: Sequence[Sample]) -> list[Sample]:
    """Calls made from these, each with something changed that a rule may read."""
    bases = sorted(samples, key=lambda sample: -sum(array.ndim for array in sample.tensors))
    found: dict[tuple[object, ...], Sample] = {}
    known = {sample.key(operator) for sample in samples}
    for vary in (_flags, _equal_numbers, _occurring, _given_tensors, _left_out):
        made = 0
        for base in bases:
            for call in vary(operator, base):
                key = call.key(operator)
                if made < EACH and key not in known and key not in found and runs(operator, call):
                    found[key] = replace(call, label=f"{base.label}, {vary.__name__.strip('_').replace('_', ' ')}")
                    made += 1
    return list(found.values())


def _flags(operator: Operator, base: Sample) -> Iterator[Sample]:
    """Each flag the other way."""
    for name, value in base.values(operator).items():
        if isinstance(value, bool):
            yield from _with(operator, base, name, not value)


def _equal_numbers(operator: Operator, base: Sample) -> Iterator[Sample]:
    """Two numbers of one kind made equal: ``histc`` then takes its range from the data."""
    numbers = {n: v for n, v in base.values(operator).items() if type(v) in (int, float)}
    kinds = {argument.name: argument.type for argument in operator.arguments}
    for one, other in itertools.combinations(numbers, 2):
        if kinds.get(one) == kinds.get(other) and kinds.get(one) in ("float", "Scalar", "number"):
            for first in _with(operator, base, one, 1):
                yield from _with(operator, first, other, 1)


def _occurring(operator: Operator, base: Sample) -> Iterator[Sample]:
    """Where a negative number stands for no position or class (``ignore_index``), one that occurs."""
    held = [a for a, role in zip(base.tensors, base.roles) if role == "index" and a.size]
    for name, value in base.values(operator).items():
        if type(value) is int and value < 0 and held:
            yield from _with(operator, base, name, int(held[0].reshape(-1)[0]))


def _given_tensors(operator: Operator, base: Sample) -> Iterator[Sample]:
    """A tensor that may be left out, given: positive numbers, as many as some dim has."""
    bound = base.bound(operator)
    for argument in operator.arguments:
        if argument.type == "Tensor?" and bound.get(argument.name) is None:
            if not _refuses_other_sizes(operator, base, argument.name):
                continue
            for size in dict.fromkeys(size for shape in base.shapes for size in shape if size > 1):
                yield from _given(operator, base, argument.name, size)


def _given(operator: Operator, base: Sample, name: str, size: int) -> Iterator[Sample]:
    numbers = np.abs(np.random.default_rng(size).normal(size=size)) + 0.1
    for call in _with(operator, base, name, Slot(len(base.tensors))):
        yield replace(call, tensors=(*call.tensors, numbers), roles=(*call.roles, "data"))


def _refuses_other_sizes(operator: Operator, base: Sample, name: str) -> bool:
    """Whether the operator looks at the tensor's size: one that does not reads beyond it, and may crash."""
    odd = 3 + max((size for shape in base.shapes for size in shape), default=1)
    tried = isolated(lambda: any(runs(operator, call) for call in _given(operator, base, name, odd)), seconds=5.0)
    return tried.value is False


def _left_out(operator: Operator, base: Sample) -> Iterator[Sample]:
    """The last tensor left out, where it may be."""
    last = len(base.tensors) - 1
    for argument in operator.arguments:
        if argument.type == "Tensor?" and base.bound(operator).get(argument.name) == Slot(last):
            for call in _with(operator, base, argument.name, None):
                without = replace(call, tensors=call.tensors[:last], roles=call.roles[:last])
                if isolated(lambda call=without: runs(operator, call), seconds=5.0).value:  # type: ignore[misc]
                    yield without


def _with(operator: Operator, base: Sample, name: str, value: Any) -> Iterator[Sample]:
    call = with_value(operator, base, name, value)
    if call is not None:
        yield call
