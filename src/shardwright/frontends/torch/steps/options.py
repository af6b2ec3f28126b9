"""The numbers in an optimizer's parameter groups, by name, and what else stands in there.

Every number is an option: ``lr``, ``betas.0``, ``weight_decay``.  Bools, texts and whatever else is part of the
program: it cannot change without a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch

from ....errors import TraceError

Path = tuple[Any, ...]
SWITCHED_OFF = ("foreach", "fused", "capturable", "differentiable")
"""Other ways to compute the same, all parameters at once or on another device: a program has one of its own."""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_tensor_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def rebuilt(value: Any, leaf: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Dicts, lists and tuples with something else for each of their leaves."""
    if isinstance(value, Mapping):
        return {key: rebuilt(part, leaf, (*path, key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [rebuilt(part, leaf, (*path, i)) for i, part in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    return leaf(path, value)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, (*path, key))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from leaves(part, (*path, i))
    else:
        yield path, value


def at(value: Any, path: Path) -> Any:
    """The leaf at a path; None where there is nothing."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def option_name(optimizer: str, path: Path, group: int, groups: int) -> str:
    """
    >>> option_name("optimizer", ("betas", 0), 0, 1), option_name("optimizer", ("lr",), 1, 2)
    ('optimizer.betas.0', 'optimizer.lr.1')
    """
    return ".".join([optimizer, *map(str, path), *([str(group)] if groups > 1 else [])])


def present(optimizer: Any, group: int, path: Path, name: str) -> Any:
    """Of the present groups: ``load_state_dict`` replaces them."""
    groups = optimizer.param_groups
    value = at(groups[group], path) if group < len(groups) else None
    if not is_number(value) and not is_tensor_number(value):
        raise TraceError(
            f"{name} was a number when the step was captured, and is {value!r} now",
            help="set it to a number again, or capture the step again",
        )
    return value


def structure(optimizer: Any) -> tuple[Hashable, ...]:
    """What in the groups is no number, and the plain attributes that an optimizer's step may read."""
    facts: list[Hashable] = []
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key == "params" or key in SWITCHED_OFF or is_number(value):
                continue
            if isinstance(value, tuple | list | dict):
                facts.append((key, *(_fact(leaf) for _, leaf in leaves(value))))
            else:
                facts.append((key, _fact(value)))
        facts.append(len(group["params"]))
    for key, value in vars(optimizer).items():
        if key[0] != "_" and (value is None or type(value) in (bool, int, float, str)):
            facts.append((key, value))
    return tuple(facts)


def _fact(value: Any) -> Hashable:
    if is_number(value) or is_tensor_number(value):
        return "number"
    return value if value is None or isinstance(value, bool | str | torch.dtype) else id(value)
