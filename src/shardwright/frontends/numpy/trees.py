"""Nested containers, taken apart into leaves and put together again.

Containers are dicts, lists, tuples, named tuples, dataclasses and None; everything else is a leaf.  A `Tree` is
the shape of the nest; a leaf that is no array is kept in it, since a traced function has looked at its value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import TraceError

Path = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """``kind`` is the container's type; ``Array`` for an array leaf; ``Static`` for a leaf kept in ``value``."""

    kind: type
    keys: tuple[Hashable, ...] = ()
    children: tuple[Tree, ...] = ()
    value: Any = None

    @property
    def leaves(self) -> int:
        """How many arrays the tree holds."""
        return 1 if self.kind is Array else sum(child.leaves for child in self.children)


class Array:
    """Marks a leaf that is an array."""


class Static:
    """Marks a leaf that is baked into the program."""


ARRAY = Tree(Array)


def is_array(leaf: Any) -> bool:
    """Anything with a shape and a dtype, but not a class that describes such things."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)


def flatten(tree: Any, path: Path = ()) -> tuple[list[tuple[Path, Any]], Tree]:
    """The array leaves with their paths, and the tree around them.

    >>> import numpy as np
    >>> leaves, tree = flatten({"w": np.zeros(2), "rate": 0.1})
    >>> [path for path, _ in leaves], tree.keys
    ([('w',)], ('w', 'rate'))
    """
    found: list[tuple[Path, Any]] = []
    return found, _flatten(tree, path, found)


def _flatten(item: Any, path: Path, found: list[tuple[Path, Any]]) -> Tree:
    if is_array(item):
        found.append((path, item))
        return ARRAY
    inner = children(item)
    if inner is None:
        return Tree(Static, value=item)
    keys, values = inner
    parts = tuple(_flatten(value, (*path, key), found) for key, value in zip(keys, values))
    return Tree(type(item), tuple(keys), parts)


def children(item: Any) -> tuple[Sequence[Hashable], Sequence[Any]] | None:
    """Keys and parts of a container; None for a leaf."""
    if isinstance(item, dict):
        return list(item), list(item.values())
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return item._fields, item
    if isinstance(item, list | tuple):
        return range(len(item)), item
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        names = [field.name for field in dataclasses.fields(item)]
        return names, [getattr(item, name) for name in names]
    return None


def unflatten(tree: Tree, leaves: Iterable[Any]) -> Any:
    """The inverse of `flatten`.

    >>> import numpy as np
    >>> unflatten(flatten([1, {"x": np.zeros(0)}])[1], ["here"])
    [1, {'x': 'here'}]
    """
    return _unflatten(tree, iter(leaves))


def _unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    kind: Any = tree.kind
    if kind is Array:
        return next(leaves)
    if kind is Static:
        return tree.value
    parts = [_unflatten(child, leaves) for child in tree.children]
    if issubclass(kind, dict):
        return _dict(kind, zip(tree.keys, parts))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*parts)
    if issubclass(kind, list | tuple):
        return kind(parts)
    return _dataclass(kind, dict(zip(tree.keys, parts)))


def _dict(kind: Any, items: Iterable[tuple[Hashable, Any]]) -> Any:
    made = dict(items)
    try:
        return made if kind is dict else kind(made)
    except TypeError:  # such as defaultdict, whose first argument is no mapping
        return made


def _dataclass(kind: Any, values: dict[Any, Any]) -> Any:
    fields = dataclasses.fields(kind)
    made = kind(**{field.name: values[field.name] for field in fields if field.init})
    for field in fields:
        if not field.init:
            object.__setattr__(made, field.name, values[field.name])
    return made


def match(tree: Tree, item: Any, name: Callable[[Path], str], path: Path = ()) -> list[Any]:
    """The arrays of ``item``, which must be built as ``tree``: a program was traced for that one only."""
    if tree.kind is Array:
        if is_array(item) or isinstance(item, bool | int | float | complex):
            return [item]
        raise _differs(tree, item, name(path))
    if tree.kind is Static:
        if is_array(item) or not _equal(tree.value, item):
            raise TraceError(
                f"{name(path)} was {tree.value!r} when the function was traced, and is {_describe(item)} now",
                help="only arrays may change between calls; trace the function again for another value",
            )
        return []
    inner = None if is_array(item) else children(item)
    if inner is None or type(item) is not tree.kind or set(inner[0]) != set(tree.keys):
        raise _differs(tree, item, name(path))
    values = dict(zip(*inner))
    pairs = zip(tree.keys, tree.children)
    return [leaf for key, child in pairs for leaf in match(child, values[key], name, (*path, key))]


def _differs(tree: Tree, item: Any, name: str) -> TraceError:
    traced = (
        "an array" if tree.kind is Array else f"{tree.kind.__name__} of {', '.join(map(str, tree.keys)) or 'nothing'}"
    )
    return TraceError(
        f"{name} is not built as it was when the function was traced",
        rows=[("traced", traced), ("given", _describe(item))],
        help="trace the function again for these arguments",
    )


def _equal(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and bool(left == right))


def _describe(item: Any) -> str:
    if is_array(item):
        return "an array"
    inner = children(item)
    return repr(item) if inner is None else f"{type(item).__name__} of {', '.join(map(str, inner[0])) or 'nothing'}"


def path_name(path: Path) -> str:
    """
    >>> path_name(("layers", 0, "w"))
    'layers.0.w'
    """
    return ".".join(map(str, path))
