"""Calls for the audit: those that PyTorch's own samples make, and others made from them.

OpInfo's samples show each operator as users call it.  DTensor has rules for what lies below: ATen overloads.  So the
samples are run, the ATen calls are noted, and *widened*: the in-place form of a call, the same call with another
value of one argument, and the same call on tensors whose dims are all of one size (on which most dims may be chosen).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..calls.widen import runs, with_value
from ..operator import Operator, Sample
from ..torch.ops import aten_calls, torch_operator
from .dtensor import registered_overloads

LARGEST = 4096
"""Elements of a tensor beyond which a sample is left out: it teaches no more than a small one."""

Calls = dict[str, list[Sample]]
"""Samples by ATen overload."""


def calls_of(operators: Iterable[tuple[Operator, Sequence[Sample]]], limit: int = 8) -> Calls:
    """The ATen calls that these operators' samples make, at most `limit` different ones of each overload."""
    found: dict[str, dict[tuple[object, ...], Sample]] = {}
    for operator, samples in operators:
        for sample in samples:
            try:
                made = aten_calls(operator, sample)
            except Exception:
                continue  # a sample that does not run teaches nothing
            for aten, call in made:
                known = found.setdefault(aten.overload, {})
                key = call.key(aten)
                if key not in known and len(known) < 4 * limit and _usable(call):
                    known[key] = replace(call, label=f"{operator.name}, {sample.label}")
    chosen = {name: varied(torch_operator(name), list(calls.values()), limit) for name, calls in found.items()}
    return with_in_place(chosen)


def with_in_place(calls: Mapping[str, Sequence[Sample]]) -> Calls:
    """Also the in-place form of each call, where DTensor has a rule for it: ``fill`` shows how to call ``fill_``."""
    registered = set(registered_overloads())
    found: Calls = {name: list(samples) for name, samples in calls.items()}
    for name, samples in calls.items():
        namespace, packet, variant = name.split(".")
        sibling = f"{namespace}.{packet}_.{variant}"
        if sibling not in registered or sibling in found:
            continue
        operator = torch_operator(sibling)
        kept = [sample for sample in samples if runs(operator, sample)]
        if kept:
            found[sibling] = kept
    return found


def varied(operator: Operator, samples: Sequence[Sample], limit: int) -> list[Sample]:
    """The `limit` samples that show most: every rank and every value of an argument first, small ones before large.

    Up to twice as many, as long as each one shows something new.
    """
    left = sorted(
        filter(_usable, samples), key=lambda sample: (not _cuts(sample), sum(array.size for array in sample.tensors))
    )
    shown: set[object] = set()
    chosen: list[Sample] = []
    while left and len(chosen) < 2 * limit:
        best = max(left, key=lambda sample: len(_shows(operator, sample) - shown))  # the first of the best
        if len(chosen) >= limit and not _shows(operator, best) - shown:
            break
        left = [sample for sample in left if sample is not best]
        shown |= _shows(operator, best)
        chosen.append(best)
    return chosen


def _shows(operator: Operator, sample: Sample) -> set[object]:
    values = {(name, repr(value)) for name, value in sample.values(operator).items()}
    ranks = tuple(array.ndim for array in sample.tensors)
    alike = len({array.shape for array in sample.tensors}) == 1
    return {("ranks", ranks), ("alike", ranks, alike), ("cuts", _cuts(sample)), *values}


def value_groups(
    operator: Operator, samples: Sequence[Sample], each: int = 4, limit: int = 6
) -> Iterator[tuple[str, list[Sample]]]:
    """Groups of calls on the same tensors that differ in the value of one argument: at most `each` an argument."""
    seen = _seen_values(operator, samples)
    bases = {base.shapes: base for sample in samples[:limit] for base in (*cubes(operator, sample), sample)}
    made: dict[str, int] = {}
    for base in bases.values():
        for name, value in base.values(operator).items():
            if made.get(name, 0) >= each:
                continue
            group = [base]
            for other in _other_values(operator, name, value, seen.get(name, ()), base):
                call = with_value(operator, base, name, other)
                if call is not None and len(group) < limit and runs(operator, call):
                    group.append(call)
            if len(group) > 1:
                made[name] = made.get(name, 0) + 1
                yield name, group


def cubes(operator: Operator, sample: Sample) -> Iterator[Sample]:
    """The same call on tensors all of whose dims have one size, for each size in the sample that the op accepts."""
    sizes = sorted({size for shape in sample.shapes for size in shape if 2 <= size <= 6})
    for size in sizes[:3]:
        tensors = []
        for array, role in zip(sample.tensors, sample.roles):
            grown = np.resize(array, (size,) * array.ndim) if array.size else array
            tensors.append(grown % size if role == "index" and grown.dtype.kind in "iu" else grown)
        cube = sample.with_tensors(tuple(tensors), f"{sample.label}, all dims {size}")
        if cube.shapes != sample.shapes and runs(operator, cube):
            yield cube


def _usable(sample: Sample) -> bool:
    return bool(sample.tensors) and all(0 < array.size <= LARGEST for array in sample.tensors)


def _cuts(sample: Sample) -> bool:
    """Whether every tensor has a dim that 2 to 13 devices can share evenly."""
    return all(any(size > 1 for size in array.shape) for array in sample.tensors)


def _seen_values(operator: Operator, samples: Sequence[Sample]) -> dict[str, list[Any]]:
    found: dict[str, dict[str, Any]] = {}
    for sample in samples:
        for name, value in sample.values(operator).items():
            found.setdefault(name, {})[repr(value)] = value
    return {name: list(values.values()) for name, values in found.items()}


def _other_values(operator: Operator, name: str, value: Any, seen: Sequence[Any], sample: Sample) -> Iterator[Any]:
    kinds = {argument.name: argument.type for argument in operator.arguments}
    rank = max((array.ndim for array in sample.tensors), default=0)
    offered: list[Any] = list(seen)
    if isinstance(value, bool):
        offered.append(not value)
    elif isinstance(value, int) or kinds.get(name, "").startswith("int"):
        dims: list[Any] = list(range(rank))
        offered += [[dim] for dim in dims] if "[" in kinds.get(name, "") else dims
    given = {repr(value)}
    for other in offered:
        if repr(other) not in given:
            given.add(repr(other))
            yield other
