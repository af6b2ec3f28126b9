"""More calls from the calls at hand: other keyword values, dims counted from the end, other shapes.

A rule's conditions can only speak of what was seen to vary.  So each argument that is not a tensor is varied by its
kind; what does not run is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..operator import Operator, Sample, leaves, names_dims, slots_in


def widened(operator: Operator, samples: Sequence[Sample], limit: int) -> list[Sample]:
    """The samples and up to `limit` more, one argument of a sample changed at a time, or its tensors grown."""
    seen = {sample.key(operator) for sample in samples}
    found = list(samples)
    for sample in in_turn([_changed(operator, sample) for sample in samples]):
        if len(found) >= len(samples) + limit:
            break
        key = sample.key(operator)
        if key not in seen and runs(operator, sample):
            seen.add(key)
            found.append(sample)
    return found


Item = TypeVar("Item")


def in_turn(sources: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """One from each, again and again, so that none crowds out the others."""
    left = list(sources)
    while left:
        for source in list(left):
            item = next(source, None)
            if item is None:
                left.remove(source)
            else:
                yield item


def _changed(operator: Operator, sample: Sample) -> Iterator[Sample]:
    yield from grown(sample)
    for name, value in sample.values(operator).items():
        for other in _other_values(operator, name, value, sample):
            changed = with_value(operator, sample, name, other)
            if changed is not None:
                yield changed


def grown(sample: Sample) -> Iterator[Sample]:
    """With one more dim on every tensor, in front or behind: many operators take a batch, or work along a dim."""
    if any(role != "data" for role in sample.roles):
        return
    for axis, where in ((0, "in front"), (-1, "behind")):
        tensors = tuple(np.stack([a, a[::-1] if a.ndim else a + 1], axis=axis) for a in sample.tensors)
        yield sample.with_tensors(tensors, f"{sample.label}, with a dim {where}")


def with_value(operator: Operator, sample: Sample, name: str, value: Any) -> Sample | None:
    """The same call with another value of one argument; None if it cannot be given."""
    names = [argument.name for argument in operator.arguments]
    if name in sample.kwargs:
        return replace(sample, kwargs={**sample.kwargs, name: value})
    if name not in names:
        return None
    place = names.index(name)
    if place < len(sample.args):
        return replace(sample, args=(*sample.args[:place], value, *sample.args[place + 1 :]))
    if place == len(sample.args) and not operator.arguments[place].keyword_only:
        return replace(sample, args=(*sample.args, value))
    return replace(sample, kwargs={**sample.kwargs, name: value})


def _other_values(operator: Operator, name: str, value: Any, sample: Sample) -> Iterator[Any]:
    kind = next((argument.type for argument in operator.arguments if argument.name == name), "")
    rank = max((array.ndim for array in sample.tensors), default=0)
    if isinstance(value, bool) or kind.startswith("bool"):
        yield not value
    elif names_dims(operator, name):
        dims = [*range(rank), *range(-rank, 0)]
        yield from ([dim] for dim in dims) if "[" in kind or isinstance(value, (list, tuple)) else dims
    elif isinstance(value, float) or kind.startswith(("Scalar", "float", "number")):
        yield from (-2.0, 0.5, 3.0, 0.0, float("inf"), float("-inf"))
    elif isinstance(value, int):
        yield from (value + 1, value - 1)


def runs(operator: Operator, sample: Sample) -> bool:
    """Whether the call gives a tensor, or changes one."""
    found = _results(operator, sample)
    return found is not None and (bool(operator.mutates) or bool(found))


def result_sizes(operator: Operator, sample: Sample) -> list[int]:
    """The sizes of the dims of its results, each once: what an argument may have to say, where it says any."""
    found = _results(operator, sample) or []
    return sorted({size for tensor in found for size in operator.library.array(tensor).shape})


def _results(operator: Operator, sample: Sample) -> list[Any] | None:
    """The tensors that a call gives; None where it does not run."""
    library = operator.library
    tensors = [library.copy(library.tensor(array)) for array in sample.tensors]
    args, kwargs = sample.fill(tensors)
    try:
        result = operator.call(*args, **kwargs)
    except Exception:  # whatever the library raises: this call is no sample
        return None
    return [item for item in leaves(result) if library.is_tensor(item)]


def describe(operator: Operator, sample: Sample) -> str:
    """The call in one line: shapes for tensors, and the other arguments that are not at their defaults."""
    defaults = {argument.name: argument.default for argument in operator.arguments}
    words = []
    for name, value in sample.bound(operator).items():
        inside = list(slots_in(value))
        if inside:
            words.append(f"{name}: {', '.join(str(list(sample.tensors[slot.index].shape)) for slot in inside)}")
        elif name not in defaults or (defaults[name] is not value and defaults[name] != value):
            words.append(f"{name}={value!r}")
    return "; ".join(words)
