"""`Routes`: what it costs to get from each sharding of a tensor to each other one, and copies for several readers.

Lowering makes a copy from the one at hand from which fewest bytes are sent, and before any other the value's *hub*, if
it has one.  `Routes.best` does the same for one value and tries every hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from ..cost.comm import sent_cost
from ..cost.machine import Hardware
from ..ir.graph import TensorType
from ..spec.axes import Axes, axes_size
from ..spec.mesh import DeviceMesh
from ..spec.reshard import reshard
from ..spec.sharding import ShardingSpec
from .numeric.problem import Ints

TOO_DEAR = 10**15
"""Picoseconds of a move that is not allowed: more than any plan, and little enough to add up."""


@dataclass(eq=False)
class Routes:
    """Between the shardings that one value may have."""

    specs: tuple[ShardingSpec, ...]
    time: Ints
    """Picoseconds that show, from row to column."""
    sent: Ints
    """Bytes that one device sends."""
    _best: dict[tuple[int, tuple[int, ...]], tuple[int, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = {spec: i for i, spec in enumerate(self.specs)}

    @cached_property
    def least(self) -> Ints:
        """Below what any number of copies on the way cost: the closure, in which the triangle inequality holds."""
        found = self.time.copy()
        for middle in range(len(found)):
            np.minimum(found, found[:, middle, None] + found[None, middle], out=found)
        return found

    @cached_property
    def through(self) -> Ints:
        """With one copy on the way where that pays, and where lowering will then start from it."""
        found = self.time.copy()
        for middle in range(len(found)):
            way = self.time[:, middle, None] + self.time[None, middle]
            nearer = self.sent[None, middle] < self.sent
            np.minimum(found, np.where(nearer, way, found), out=found)
        return found

    def both(self, prices: Ints, a: Ints, b: Ints) -> Ints:
        """From every sharding to both of two, for each pair of the two lists: the cheapest tree."""
        found = prices[:, a] + np.where(a == b, 0, prices[:, b])
        for middle in range(len(prices)):
            tree = prices[:, middle, None] + (prices[middle, a] + prices[middle, b])[None]
            np.minimum(found, np.where(a == b, found, tree), out=found)
        return found

    def best(self, source: int, wanted: Sequence[int]) -> tuple[int, int | None]:
        """What copies for these readers, in their order, cost with the best hub, and that hub; None is none."""
        order = tuple(dict.fromkeys(spec for spec in wanted if spec != source))
        if not order:
            return 0, None
        found = self._best.get((source, order))
        if found is None:
            found = self._cost(source, order, None), None
            if found[0]:
                for hub in range(len(self.specs)):
                    if hub != source:
                        cost = self._cost(source, order, hub)
                        if cost < found[0]:
                            found = cost, hub
            self._best[source, order] = found
        return found

    def plain(self, source: int, wanted: Sequence[int]) -> int:
        """Without a hub."""
        return self._cost(source, tuple(wanted), None)

    @cached_property
    def _rows(self) -> tuple[list[list[int]], list[list[int]]]:
        return self.time.tolist(), self.sent.tolist()

    def _cost(self, source: int, order: Sequence[int], hub: int | None) -> int:
        time, sent = self._rows
        held, total = [source], 0
        for want in order if hub is None else (hub, *order):
            if want not in held:
                nearest = min(held, key=lambda copy: sent[copy][want])
                total += time[nearest][want]
                held.append(want)
        return total


@dataclass
class RouteBook:
    """Routes of all tensor types on a mesh, each pair of shardings searched once for all types that are alike."""

    mesh: DeviceMesh
    hardware: Hardware
    most_gathered: int | None = None
    """The most bytes that one all_gather may leave on a device; what leaves more costs `TOO_DEAR`."""
    _routes: dict[object, Routes] = field(default_factory=dict)
    _paths: dict[object, tuple[tuple[str, Axes, int], ...]] = field(default_factory=dict)
    _likes: dict[TensorType, tuple[tuple[int, ...], int, int]] = field(default_factory=dict)

    def routes(self, type: TensorType, role: str | None, specs: tuple[ShardingSpec, ...]) -> Routes:
        key = (type.shape, type.item_bytes, role, specs)
        found = self._routes.get(key)
        if found is None:
            pairs = [[self.move(type, role, a, b) for b in specs] for a in specs]
            time = np.array([[price for price, _ in row] for row in pairs], np.int64).reshape(len(specs), -1)
            sent = np.array([[bytes for _, bytes in row] for row in pairs], np.int64).reshape(len(specs), -1)
            found = self._routes[key] = Routes(specs, time, sent)
        return found

    def move(self, type: TensorType, role: str | None, source: ShardingSpec, target: ShardingSpec) -> tuple[int, int]:
        """Picoseconds that show, and bytes, from one sharding to another."""
        if source is target or source == target:
            return 0, 0
        shape, item, scale = self._like(type)
        where = (shape, item, source, target)
        path = self._paths.get(where)
        if path is None:
            steps = reshard(source, target, shape, item, idle=False)
            path = self._paths[where] = tuple((s.kind, s.axes, s.bytes) for s in steps if not s.is_local)
        if self.most_gathered is not None and self._gathered(path) * scale > self.most_gathered:
            return TOO_DEAR, TOO_DEAR
        shown, hardware = self.hardware.overlap.shown, self.hardware
        price = sum(shown(role, sent_cost(kind, axes, bytes * scale, hardware)) for kind, axes, bytes in path)
        return price, sum(bytes for _, _, bytes in path) * scale

    def _gathered(self, path: Sequence[tuple[str, Axes, int]]) -> int:
        """The most bytes that an all_gather of these leaves: what a device gets from others, and its own."""
        sizes = ((bytes, axes_size(axes)) for kind, axes, bytes in path if kind == "all_gather")
        return max((bytes * size // (size - 1) for bytes, size in sizes), default=0)

    def _like(self, type: TensorType) -> tuple[tuple[int, ...], int, int]:
        """The least shape with the same routes, its item's bytes, and how many times more bytes the real one sends.

        A dim that all devices together divide may be any such size.  If one may be cut so twice over, then no share of
        it is ever rounded, and all bytes are whole multiples.
        """
        found = self._likes.get(type)
        if found is None:
            devices = prod(axis.size for axis in self.mesh.axes)
            twice = next((d for d, size in enumerate(type.shape) if size and size % devices**2 == 0), None)
            if twice is None:
                return self._likes.setdefault(type, (type.shape, type.item_bytes, 1))
            shape = tuple(
                devices**2 if d == twice else devices if size and size % devices == 0 else size
                for d, size in enumerate(type.shape)
            )
            found = self._likes[type] = (shape, 1, prod(type.shape) * type.item_bytes // max(prod(shape), 1))
        return found
