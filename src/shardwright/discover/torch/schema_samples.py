"""Calls made up from the types in an operator's schema, likely ones first.

The shapes are those that operators commonly take: equal ones, broadcast ones, matrix products, square systems,
convolutions, and per-channel vectors.  Sizes differ within a shape, so that no dim is taken for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch

from ..operator import REQUIRED, Argument, Array, Operator, Role, Sample, Slot
from .ops import INDEX_ARGUMENTS, roles_of

Shape = tuple[int, ...]

ALIKE: tuple[Shape, ...] = ((4, 6), (4, 6, 3), (4,), (2, 4, 6, 3), (4, 4), (2, 4, 4), (4, 3), ())
"""Shapes for one tensor, or for all of them."""

TOGETHER: dict[int, tuple[tuple[Shape, ...], ...]] = {
    2: (
        ((4, 6), (6,)),
        ((4, 1), (6,)),
        ((4, 6), (6, 3)),
        ((2, 4, 6), (2, 6, 3)),
        ((4, 6), ()),
        ((4, 4), (4, 6)),
        ((2, 4, 4), (2, 4, 6)),
        ((6,), (4, 6)),
        ((2, 4, 6), (3, 4, 3)),
        ((2, 4, 6, 6), (3, 4, 3, 3)),
        ((4,), (6,)),
        ((4, 6), (4,)),
        ((2, 4, 6), (2, 4, 3)),
        ((2, 4, 6), (2,)),
    ),
    3: (
        ((4, 6), (6,), (6,)),
        ((4, 3), (4, 6), (6, 3)),
        ((2, 4, 3), (2, 4, 6), (2, 6, 3)),
        ((4,), (4, 6), (6,)),
        ((4, 6), (4,), (6,)),
        ((2, 4, 6), (3, 4, 3), (3,)),
        ((2, 4, 6, 6), (3, 4, 3, 3), (3,)),
        ((2, 2, 6, 4), (2, 2, 6, 4), (2, 2, 6, 4)),
        ((4, 6), (4, 6), (4, 6)),
        ((4, 4), (4, 6), (4,)),
        ((4, 6), (), ()),
        ((4, 6), (4, 1), (6,)),
    ),
    5: (((4, 6, 3), (6,), (6,), (6,), (6,)),),
}
"""Shapes for several tensors that belong together."""

DIMS = frozenset(
    ("dim", "dims", "dim0", "dim1", "axis", "axis0", "axis1", "source", "destination", "start_dim", "end_dim")
)
SIZES = frozenset({"size", "shape", "normalized_shape", "sizes", "input_sizes", "self_size", "output_size"})
WORDS: dict[str, tuple[str, ...]] = {
    "reduce": ("sum", "amax", "amin", "prod", "mean"),
    "reduction": ("mean", "sum", "none"),
    "rounding_mode": ("floor", "trunc"),
    "mode": ("reflect", "constant", "reduced", "complete"),
    "norm": ("ortho", "backward", "forward"),
    "approximate": ("none", "tanh"),
    "indexing": ("ij", "xy"),
    "UPLO": ("L", "U"),
    "ord": ("fro", "nuc"),
    "side": ("left", "right"),
    "equation": ("ij,jk->ik",),
    "padding": ("valid", "same"),
    "driver": ("gelsd",),
    "interpolation": ("linear", "nearest", "lower"),
}
KINDS = ("float64", "int64", "bool", "complex128")
"""Dtypes tried in turn, until one is accepted."""


def candidates(operator: Operator) -> Iterator[Sample]:
    """Calls that may run.  Within each dtype and shape, every value of every other argument is tried once."""
    arguments = operator.arguments
    holders = [a for a in arguments if a.tensor and a.default is REQUIRED]
    extras = [a for a in arguments if a.tensor and a not in holders]
    for kind in KINDS:
        for given in (holders, *([*holders, *extras[:n]] for n in range(1, len(extras) + 1))):
            count = sum(2 if "[]" in a.type else 1 for a in given)
            for shapes in _shapes(count):
                yield from _calls(operator, given, shapes, kind)


def _shapes(count: int) -> Iterator[tuple[Shape, ...]]:
    for shape in ALIKE:
        yield (shape,) * count
    yield from TOGETHER.get(count, ())
    if count > 2 and count not in TOGETHER:
        for first in ((4, 6), (2, 4, 6)):
            for channels in (first[-1], first[1]):
                yield (first, *((channels,) for _ in range(count - 1)))


def _calls(operator: Operator, given: list[Argument], shapes: tuple[Shape, ...], kind: str) -> Iterator[Sample]:
    tensors: list[Array] = []
    slots: dict[str, Any] = {}
    for argument in given:
        many = 2 if "[]" in argument.type else 1
        held = []
        for _ in range(many):
            held.append(Slot(len(tensors)))
            tensors.append(_values(argument.name, shapes[len(tensors)], kind, len(tensors)))
        slots[argument.name] = held if many > 1 else held[0]
    rank = len(shapes[0]) if shapes else 0
    rest = [a for a in operator.arguments if a.name not in slots]
    needed = [a for a in rest if a.default is REQUIRED]
    choices = [_choices(a, rank, shapes) for a in needed]
    basic = dict(zip((a.name for a in needed), (c[0] for c in choices))) if all(choices) else None
    if basic is None:
        return
    arrays = tuple(tensors)
    names = tuple(a.name for a in given for _ in range(2 if "[]" in a.type else 1))
    roles = roles_of(arrays, names, operator.short_name)
    yield from (
        _sample(operator, {**slots, **dict(zip(basic, combined))}, arrays, roles)
        for combined, _ in zip(product(*choices), range(48))
    )
    for argument in rest:
        if argument.default is not REQUIRED:
            for value in _choices(argument, rank, shapes):
                if value != argument.default or type(value) is not type(argument.default):
                    yield _sample(operator, {**slots, **basic, argument.name: value}, arrays, roles)


def _sample(operator: Operator, values: dict[str, Any], arrays: tuple[Array, ...], roles: tuple[Role, ...]) -> Sample:
    """Positional as far as no argument is left out, then by keyword."""
    args: list[Any] = []
    for argument in operator.arguments:
        if argument.keyword_only or argument.name not in values:
            break
        args.append(values[argument.name])
    named = {a.name for a in operator.arguments[: len(args)]}
    return Sample(tuple(args), {k: v for k, v in values.items() if k not in named}, arrays, roles, "schema")


def _values(name: str, shape: Shape, kind: str, number: int) -> Array:
    rng = np.random.default_rng(7 + number)
    if name in INDEX_ARGUMENTS:
        return np.asarray(rng.integers(0, 3, shape), dtype=np.int64)
    if name in ("condition", "mask"):
        return np.asarray(rng.integers(0, 2, shape), dtype=np.bool_)
    if kind == "int64":
        return np.asarray(rng.integers(0, 4, shape), dtype=np.int64)
    if kind == "bool":
        return np.asarray(rng.integers(0, 2, shape), dtype=np.bool_)
    found = rng.normal(size=shape)
    if kind == "complex128":
        return np.asarray(found + 1j * rng.normal(size=shape), dtype=np.complex128)
    return np.asarray(found, dtype=np.float64)


def _choices(argument: Argument, rank: int, shapes: tuple[Shape, ...]) -> list[Any]:
    """Values worth trying; none if the type is of no use here."""
    name, optional = argument.name, argument.type.endswith("?")
    base = argument.type.removesuffix("?")
    if name in SIZES and base == "int[]":
        return [list(shapes[0]), list(shapes[0])[-1:], [2, 2]]
    if name in DIMS:
        each = [*range(rank), -1] if rank else [0]
        if base == "int":
            return each
        if base == "int[]":
            return [*([d] for d in each), *([[0, 1], [-1, 0]] if rank > 1 else []), *([None] if optional else [])]
    if base == "str" or name in WORDS:
        return list(WORDS.get(name, ())) or ([None] if optional else [])
    by_type: dict[str, list[Any]] = {
        "bool": [False, True],
        "int": [1, 2, 0],
        "float": [0.5, 1.0, 2.0],
        "Scalar": [2, 0.5, -1],
        "int[]": [[1], [2, 2], [1, 1]],
        "float[]": [[2.0], [2.0, 2.0]],
        "ScalarType": [torch.float64],
        "": [1],
    }
    found = by_type.get(base)
    if found is None:
        return [None] if optional else []
    return list(found)
