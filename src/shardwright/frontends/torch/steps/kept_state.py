"""An optimizer's state while its step is captured: what stands where, and dicts that see what is put in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from .numbers import LiveNumber
from .options import Path, at, is_number


@dataclass(frozen=True, slots=True)
class Place:
    """What stands somewhere in an optimizer's state: a tensor, a number, or something plain."""

    owner: Any
    """The real parameter, or whatever else the state is keyed by."""
    path: Path
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dtype: Any = None
    number: type | None = None
    plain: Any = None

    @property
    def is_plain(self) -> bool:
        return self.dtype is None and self.number is None

    @property
    def single(self) -> bool:
        return not self.is_plain and math.prod(self.shape) == 1

    @property
    def fact(self) -> tuple[Any, ...]:
        return self.shape, self.stride, self.dtype, self.number, self.plain


Tree = dict[str, Place]


class Kept(dict[Any, Any]):
    """State of one parameter: a number that is put in is followed from there, and what comes first is remembered."""

    def __init__(self, enter: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.enter = enter

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, self.enter(key, value))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


class Store(dict[Any, Any]):
    """``optimizer.state`` while its step runs."""

    def __init__(self, enter: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.enter = enter

    def __missing__(self, owner: Any) -> Any:
        made = Kept(lambda key, value: self.enter(owner, key, value))
        super().__setitem__(owner, made)
        return made

    def __setitem__(self, owner: Any, value: Any) -> None:
        if isinstance(value, Mapping):
            self.pop(owner, None)
            self[owner].update(value)
        else:
            super().__setitem__(owner, self.enter(owner, None, value))

    def setdefault(self, owner: Any, default: Any = None) -> Any:
        if owner not in self:
            self[owner] = default
        return self[owner]


def facts(tree: Tree) -> dict[str, Any]:
    return {name: place.fact for name, place in tree.items()}


def moving(tree: Tree) -> frozenset[str]:
    return frozenset(name for name, place in tree.items() if place.single)


def place_of(owner: Any, path: Path, leaf: Any) -> Place:
    if isinstance(leaf, torch.Tensor):
        return Place(owner, path, tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype)
    if isinstance(leaf, LiveNumber):
        return Place(owner, path, number=int if leaf.integer else float)
    if is_number(leaf):
        return Place(owner, path, number=type(leaf))
    return Place(owner, path, plain=leaf)


def is_plain_number(leaf: Any) -> bool:
    return is_number(leaf) and not isinstance(leaf, LiveNumber)


def put(held: Any, path: Path, tensor: Any, number: Any = None) -> None:
    """Into real state: in place where there is a tensor, as a number where there was one."""
    known = at(held, path)
    if isinstance(known, torch.Tensor):
        with torch.no_grad():
            known.copy_(tensor.reshape(known.shape))
    elif number is not None:
        put_leaf(held, path, number(round(tensor.item()) if number is int else tensor.item()))
    else:
        put_leaf(held, path, tensor.clone())


def put_leaf(held: Any, path: Path, leaf: Any) -> None:
    """Into nested dicts and lists, which are made where there are none; a tuple on the way becomes another one."""
    for depth, (key, following) in enumerate(pairwise(path), 1):
        if at(held, (key,)) is None:
            _set(held, key, [] if isinstance(following, int) else {})
        if isinstance(held[key], tuple):
            inside = list(held[key])
            put_leaf(inside, path[depth:], leaf)
            _set(held, key, tuple(inside))
            return
        held = held[key]
    _set(held, path[-1], leaf)


def _set(held: Any, key: Any, value: Any) -> None:
    if isinstance(held, list):
        held += [None] * (key + 1 - len(held))
    held[key] = value
