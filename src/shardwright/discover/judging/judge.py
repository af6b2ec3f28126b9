"""Whether what the devices computed, lying like this, is the wanted tensor; and whether a tensor tells anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ..operator import Array
from ..placement import P, Placement, R, S
from .encode import assemble, chunk_sizes, kinds_for, same


def fitting(parts: list[Array], want: Array, kinds: Sequence[str]) -> Iterator[Placement]:
    """The placements under which these parts are the wanted tensor."""
    first = parts[0].shape
    if first == want.shape and all(part.shape == first for part in parts):
        for placement in _possible(parts, want, kinds):
            if lies(parts, want, placement):
                yield placement
    if want.ndim == len(first):
        for dim, size in enumerate(want.shape):
            sizes = [part.shape[dim] if part.ndim == want.ndim else -1 for part in parts]
            if sizes == list(chunk_sizes(size, len(parts))) and lies(parts, want, S(dim)):
                yield S(dim)


_FINISH_NUMBERS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "avg": lambda numbers: sum(numbers) / len(numbers),
    "max": max,
    "min": min,
    "prod": math.prod,
}


def _possible(parts: list[Array], want: Array, kinds: Sequence[str]) -> list[Placement]:
    """R and P(...), without those that two elements already rule out: most are, and this costs little."""
    candidates = [R, *(P(kind) for kind in kinds_for(want, "data", kinds))]
    if want.dtype.kind not in "fi" or want.size == 0:
        return candidates
    for place in {want.size // 2, want.size - 1}:
        goal = want.item(place)
        numbers = [part.item(place) for part in parts]
        if goal != goal or abs(goal) == math.inf:
            continue
        loose = 1e-6 * max(abs(goal), *map(abs, numbers)) + 1e-300
        candidates = [p for p in candidates if not abs(_finished(p, numbers) - goal) > loose]
    return candidates


def _finished(placement: Placement, numbers: list[Any]) -> Any:
    return numbers[-1] if placement is R else _FINISH_NUMBERS[placement.reduce](numbers)


def lies(parts: list[Array], want: Array, placement: Placement, roundings: int = 16) -> bool:
    whole = assemble(parts, placement)
    if whole is None:
        return False
    scale: Array | float = 0.0
    if placement.kind == "P" and want.dtype.kind in "fc":
        scale = reduce(np.maximum, map(np.abs, parts))
    return same(whole, want, scale, roundings)


def varies(array: Array, alone: bool) -> bool:
    """Whether an array has two different finite numbers: otherwise rules hold on it that hold nowhere else.

    A single number will do if it is not 0 and stands beside larger tensors (not `alone`).
    """
    if array.size < 2:
        return not alone and bool(
            array.size and array.dtype.kind in "fiuc" and np.isfinite(array).all() and array.all()
        )
    finite = array[np.isfinite(array)] if array.dtype.kind in "fc" else array.reshape(-1)
    return bool(finite.size > 1 and (finite != finite[0]).any())
