"""What an op costs on one device, by its cost class.

A *class* is all that costing knows of an op.  Arithmetic classes count operations, the others the bytes that go
through memory; a view costs nothing.  Time is ``launch + a*flops/peak + b*bytes/bandwidth`` with constants by class
(`Hardware.roofline`).  Sizes are those of the largest shard, padding included, since all devices wait for the slowest.

Attention has two constants more.  Between its products every score goes through an exponential, for which there are
few circuits: with heads of 64 that takes as long as the products.  And a kernel cuts the queries of each head into
tiles that one multiprocessor works on by itself, so that few heads of short sequences leave most of a device idle,
and splitting them further saves nothing (`Work.stretch`).  Where a query's place says which keys it sees, the work is
that of the device whose queries see most: of causal attention that with the last ones.

Two things make kernels slow that sizes alone tell.  Matrix units want rows that begin at multiples of 16 bytes: a
vocabulary of 50,257 takes six times as long as one of 50,264, unless a compiler pads it.  And a pointwise op on tensors
of several types or shapes goes through them item by item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ..errors import RuleError, near_misses
from ..ir.graph import TensorType
from ..spec.axes import Axes, AxisRef
from ..spec.band import Band
from ..spec.chunks import padded_size
from ..spec.op_record import OpRecord
from ..spec.rule import Mapped, OpShardingRule
from ..spec.sharding import ShardingSpec
from .links import PS
from .machine import FUSED, Hardware

CLASSES = ("matmul", "attention", "conv", "pointwise", "reduce", "memory", "gather", "sort", "update", "view", FUSED)
ARITHMETIC = ("matmul", "attention", "conv")
"""Classes whose operations outnumber the bytes they touch: worth choosing a split for."""
SCORED = ("attention",)
"""Classes whose operations come as scores in tiles, and which may have constants for that."""
CHANNELS = 64
"""Input channels that a convolution takes at once, be they there or not: three of a picture take as long."""
SMALL = 1024
"""Bytes of a tensor, such as a number, that every item may be met with at no cost."""
LOOKUP = "gather"
"""The class of ops that read rows here and there."""
SECTOR = 32
"""Bytes that a device reads of its memory at least: a table's single column costs as much as eight."""
UNKNOWN = "memory"
"""How an op without a record is costed."""
TILE = 128
"""Rows of a tile."""
LEAST = 16
"""Rows that matrix units take at once, at least."""
ALIGNED = 16
"""Bytes at whose multiples matrix units want rows to begin."""
MATRIX_BYTES = 2
"""Larger items go through other units, whatever their place."""


class Work(int):
    """A number of operations that may know how they come: as how many scores, in how many tiles."""

    scores: int
    tiles: int
    uneven: bool
    """Each query sees only the keys before it, and all are here: tiles grow from nothing to twice their mean."""
    row: int
    """Of a matrix product: how long the rows are that it writes.  Those of operands may be turned or not."""
    whole_tiles: tuple[int, int]
    """How much more is computed in whole tiles than is there: a fraction, as numerator and denominator."""

    def __new__(
        cls,
        operations: int,
        scores: int = 0,
        tiles: int = 0,
        uneven: bool = False,
        row: int = 0,
        whole_tiles: tuple[int, int] = (1, 1),
    ) -> Work:
        found = super().__new__(cls, operations)
        found.scores, found.tiles, found.uneven, found.row = scores, tiles, uneven, row
        found.whole_tiles = whole_tiles
        return found

    def is_aligned(self, item_bytes: int) -> bool:
        return self.row * item_bytes % ALIGNED == 0

    def stretch(self, units: int) -> tuple[int, int]:
        """How much longer than spread evenly over all units: a fraction, as numerator and denominator.

        With fewer tiles than units the largest tile decides.  Uneven ones end about one largest tile late, though
        never later than if all were as large.

        >>> Work(1, tiles=33).stretch(132), Work(1, tiles=264).stretch(132), Work(1, tiles=264, uneven=True).stretch(66)
        ((132, 33), (264, 264), (396, 264))
        """
        if not units or not self.tiles:
            return 1, 1
        even = max(self.tiles, units)
        full, there = self.whole_tiles
        return full * (min(2 * even, self.tiles + 2 * units) if self.uneven else even), there * self.tiles


def cost_class(about: OpRecord | str | None) -> str:
    """The class of a record, checked."""
    found = about.cost if isinstance(about, OpRecord) else about
    if found is None:
        return UNKNOWN
    if found not in CLASSES:
        error = RuleError(f"no cost class is called {found!r}", rows=[("known", ", ".join(CLASSES))])
        error.help = near_misses(found, CLASSES)
        raise error.add("op", about.name) if isinstance(about, OpRecord) else error
    return found


def compute_cost(
    rule: OpShardingRule,
    about: OpRecord | str | None,
    axes: Sequence[Axes],
    dtype: str | Sequence[str],
    hardware: Hardware,
    attrs: Mapping[str, Any] | None = None,
) -> int:
    """Picoseconds of one op with these axes given to its factors.

    ``dtype`` is that of every tensor, or one for each operand and result; ``attrs`` those of the op.

    >>> from shardwright import DeviceMesh
    >>> from shardwright.cost import H100
    >>> rule = OpShardingRule.parse("m k, k n -> m n | m=4096 k=4096 n=4096")
    >>> tp, none = DeviceMesh("tp=8").axes, ()
    >>> whole, split = (compute_cost(rule, "matmul", (a, none, none), "bf16", H100) for a in (none, tp))
    >>> whole // 10**6, split // 10**6
    (211, 36)
    """
    names = [dtype] * len(rule.tensors) if isinstance(dtype, str) else list(dtype)
    local = local_sizes(rule, axes)
    sizes = [
        prod(local[f] for dim in mapped for f in dim) * TensorType((), name).item_bytes
        for mapped, name in zip(rule.tensors, names)
    ]
    count = len(rule.operands)
    kind = cost_class(about)
    work = operations(rule, kind, local, attrs)
    made = rule.results[0] if rule.results else ()
    row = (prod(local[f] for f in made[-1]) if made else 1) * TensorType((), names[-1]).item_bytes if names else 0
    return op_time(kind, work, sizes[:count], sizes[count:], names[0] if names else "f32", hardware, row)


def local_sizes(rule: OpShardingRule, axes: Sequence[Axes]) -> list[int]:
    """The largest part of each factor that a device works on."""
    return [padded_size(size, tuple(axis.size for axis in given)) for size, given in zip(rule.sizes, axes)]


def operations(rule: OpShardingRule, kind: str, local: Sequence[int], attrs: Mapping[str, Any] | None = None) -> Work:
    """Multiplications and additions; 0 for classes that are costed by bytes."""
    if kind == "matmul":
        return Work(2 * prod(local), row=prod(local[f] for f in rule.results[0][-1]) if rule.results[0] else 0)
    if kind == "attention":
        return _attention(rule, local, Band.of(attrs or {}))
    if kind == "conv":
        return _convolution(rule, local)
    return Work(0)


def _convolution(rule: OpShardingRule, local: Sequence[int]) -> Work:
    """Each result takes a window of the image, all channels deep, and a weight for each of its elements.

    Operands image, weight and perhaps a bias; or, for the gradients of image and weight, that of the result first.  A
    window slides, so the image's own dims are no loop of their own.
    """
    backward = len(rule.operands) > 2 and len(rule.operands[2]) > 1
    made, weight = (rule.operands[0], rule.operands[2]) if backward else (rule.results[0], rule.operands[1])
    image = rule.operands[1] if backward else rule.operands[0]
    channels = (_factors(weight) & _factors(image)) - _factors(made)
    loops = prod(max(local[f], CHANNELS) if f in channels else local[f] for f in _factors(made) | _factors(weight))
    products = sum(len(result) > 1 for result in rule.results) if backward else 1
    return Work(2 * loops * products)


def _attention(rule: OpShardingRule, local: Sequence[int], band: Band) -> Work:
    """Queries meet the keys that they see, what comes of it meets values: operands q, k, v.

    An op with three results and more makes the gradients of all three from grad, q, k, v: the first product is made
    again, and each is taken back to both of its sides; a score is made again, and so are two gradients of it.  Forward,
    tiles are of queries; backward, of keys.
    """
    backward = len(rule.results) > 2
    q, k, v = rule.operands[1:4] if backward else rule.operands[:3]
    made = rule.operands[0] if backward else rule.results[0]
    first, second = (prod(local[f] for f in _factors(a) | _factors(b)) for a, b in ((q, k), (made, v)))
    count = 2 * (3 * first + 2 * second) if backward else 2 * (first + second)
    scores = prod(local[f] for f in _factors(q[:-1]) | _factors(k[:-1])) * (3 if backward else 1)
    rows = prod(local[f] for f in (k if backward else q)[-2])
    tiles = prod(local[f] for f in _factors(q[:-2])) * -(-rows // TILE)
    whole, part, keys = (prod(of[f] for f in dim) for of, dim in ((rule.sizes, q[-2]), (local, q[-2]), (local, k[-2])))
    whole_tiles = _whole_tiles(part) * _whole_tiles(keys), max(part * keys, 1)
    if band.sees_all:
        return Work(count, scores, tiles, whole_tiles=whole_tiles)
    seen, full = seen_by_slowest(band, whole, part, keys), max(2 * part * keys, 1)
    grows = part == whole and band.left is None and not band.prefix
    return Work(count * seen // full, scores * seen // full, tiles, grows, whole_tiles=whole_tiles)


@cache
def seen_by_slowest(band: Band, rows: int, part: int, keys: int) -> int:
    """Twice the pairs of query and key that the device with most of them has, of ``rows`` cut into parts.

    Where the band ends in a row, the key there counts half: causal attention is half of all.

    >>> [seen_by_slowest(Band(right=0), 8, part, 8) for part in (8, 4, 2)], seen_by_slowest(Band(1, 0), 8, 4, 8)
    ([64, 48, 28], 12)
    """
    row = np.arange(rows)
    high = band.span(row, keys)[1]
    ended = np.zeros(rows, np.bool_) if band.right is None else (high == row + band.right + 1) & (high > band.prefix)
    halves = np.concatenate([[0], np.cumsum(ended)])
    starts = range(0, rows, max(part, 1))
    stops = [min(start + part, rows) for start in starts]
    return max((2 * band.pairs(a, b, keys) - int(halves[b] - halves[a]) for a, b in zip(starts, stops)), default=0)


def _whole_tiles(rows: int) -> int:
    """Rows that a kernel goes through: few are not worth a tile."""
    unit = TILE if rows > TILE else LEAST
    return -(-rows // unit) * unit


def _factors(mapped: Mapped) -> set[int]:
    return {f for dim in mapped for f in dim}


def op_time(
    kind: str, work: int, operands: Sequence[int], results: Sequence[int], dtype: str, hardware: Hardware, row: int = 0
) -> int:
    """Picoseconds from operations (`Work`, or a number alone) and bytes; never less than the peak rate allows.

    Constants are fitted to ops of many sizes, and where bytes count for little they may promise more than the peak.
    ``row`` is what a lookup reads in one piece, in bytes: of memory it gets whole sectors.
    """
    if kind == "view":
        return 0
    made = sum(results)
    read = sum(operands)
    if kind == LOOKUP:  # it reads of a table no more than it writes, but whole sectors
        most = made * (-(-row // SECTOR) * SECTOR) // row if row else made
        read = sum(min(size, most) for size in operands)
    fitted = hardware.roofline(kind)
    traffic = fitted.bytes_percent
    if fitted.unlike_percent and len({size for size in (*operands, *results) if size > SMALL}) > 1:
        traffic = max(traffic, fitted.unlike_percent)
    time = fitted.launch_ps
    least = 0
    if work:
        least = time + -(-work * min(fitted.flops_percent, 1) * PS // hardware.peak(dtype))
        known = work if isinstance(work, Work) else Work(work)
        times, over = known.stretch(fitted.units)
        speed = fitted.flops_percent
        item = TensorType((), dtype).item_bytes
        if fitted.unaligned_percent and item <= MATRIX_BYTES and not hardware.compiled and not known.is_aligned(item):
            speed = max(speed, fitted.unaligned_percent)
        time += -(-work * speed * PS * times // (100 * hardware.peak(dtype) * over))
        if fitted.scores:
            time += -(-known.scores * PS * times // (fitted.scores * over))
    return max(least, time + -(-(read + made) * traffic * PS // (100 * hardware.bandwidth)))


def factor_axes(rule: OpShardingRule, specs: Sequence[ShardingSpec]) -> tuple[Axes, ...]:
    """Which axes the factors got, read off the shardings of operands and results.

    A dim of several factors is filled from its major one on, each taking as much of an axis as divides it: four heads
    in groups of eight, on an axis of eight, are one head and half of a group.
    """
    found: list[Axes] = [()] * len(rule.factors)
    for mapped, spec in zip(rule.tensors, specs):
        for dim, cut in zip(mapped, spec.dims):
            rest = list(cut.axes)
            for place, f in enumerate(dim):
                taken: list[AxisRef] = []
                size = rule.sizes[f]
                while rest and (place == len(dim) - 1 or (size % rest[0].size == 0 and size > 1)):
                    size //= rest[0].size
                    taken.append(rest.pop(0))
                if rest and place < len(dim) - 1 and 1 < size < rest[0].size and rest[0].size % size == 0:
                    major, minor = rest.pop(0).split(size)
                    taken.append(major)
                    rest.insert(0, minor)
                if taken and not found[f]:
                    found[f] = tuple(taken)
    return tuple(found)
