"""Arguments that are no plain inputs: tensors that are written to, and the one that tells the result's shape."""

from __future__ import annotations

from typing import Any

from ..operator import Operator, Sample, Slot, names_dims


def mutated_slots(operator: Operator, sample: Sample) -> list[int]:
    bound = sample.bound(operator)
    return [slot.index for name in operator.mutates if isinstance(slot := bound.get(name), Slot)]


def write_only_slots(operator: Operator, sample: Sample) -> set[int]:
    """Tensors given as ``out=``: they lie as the result does, and what they hold before does not matter."""
    outs = {a.name for a in operator.arguments if a.keyword_only and a.name in operator.mutates}
    bound = sample.bound(operator)
    return {slot.index for name in outs if isinstance(slot := bound.get(name), Slot)}


def shape_argument(
    operator: Operator, sample: Sample, shape: tuple[int, ...]
) -> tuple[int | str, tuple[int, ...]] | None:
    """The argument that tells the result's shape, if one does: on a device it tells the local shape."""
    names = [argument.name for argument in operator.arguments]
    places: list[tuple[int | str, Any]] = [*enumerate(sample.args), *sample.kwargs.items()]
    for place, value in places:
        name = place if isinstance(place, str) else names[place] if place < len(names) else ""
        if not isinstance(value, (list, tuple)) or len(value) != len(shape) or names_dims(operator, name):
            continue
        told = all(type(item) is int and item in (-1, size) for item, size in zip(value, shape))
        if told and any(item != -1 for item in value):
            return place, shape
    return None


def with_argument(sample: Sample, operator: Operator, name: int | str, value: list[int]) -> Sample:
    if isinstance(name, int):
        args = (*sample.args[:name], value, *sample.args[name + 1 :])
        return Sample(args, sample.kwargs, sample.tensors, sample.roles, sample.label)
    return Sample(sample.args, {**sample.kwargs, name: value}, sample.tensors, sample.roles, sample.label)
