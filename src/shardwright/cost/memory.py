"""Bytes: what an op's results take on one device, and the peak of a list of steps by liveness.

A value is alive from the step that makes it to the last that reads it.  A view owns no bytes and keeps its base
alive.  Device 0 of the mesh holds the largest shard of every tensor, so its peak is the peak of all.  `profile` does
the same for a Program, with names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from ..errors import SpecError
from ..ir.graph import TensorType
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec


def local_bytes(spec: ShardingSpec, type: TensorType) -> int:
    """Bytes of the largest shard."""
    return prod(spec.padded_shape(type.shape)) * type.item_bytes


def memory_cost(
    rule: OpShardingRule,
    specs: Sequence[ShardingSpec],
    types: Sequence[TensorType],
    views: Iterable[tuple[int, int]] = (),
) -> int:
    """Bytes per device that an op's results take: a matmul makes M x N.

    ``specs`` and ``types`` are those of the results, or of operands and results; ``views`` the pairs of a node.

    >>> from shardwright import DeviceMesh
    >>> rule = OpShardingRule.parse("m k, k n -> m n | m=8 k=16 n=4")
    >>> spec = ShardingSpec(DeviceMesh("dp=2, tp=4"), ["dp", None], partial="tp")
    >>> memory_cost(rule, [spec], [TensorType((8, 4), "f32")])
    64
    """
    count = len(rule.results)
    if len(specs) != len(types) or len(specs) not in (count, len(rule.tensors)):
        raise SpecError(
            f"{len(specs)} shardings and {len(types)} types for a rule with {count} results",
            rows=[("rule", str(rule))],
            help="give those of the results, or of operands and results",
        )
    shown = {result for result, _ in views}
    pairs = list(zip(specs, types))[len(specs) - count :]
    return sum(local_bytes(spec, type) for r, (spec, type) in enumerate(pairs) if r not in shown)


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of a list: the values it reads and makes, and which of those it makes show what it reads."""

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    views: tuple[tuple[int, int], ...] = ()
    """Pairs (place in makes, place in reads)."""


def peak_live(sizes: Sequence[int], inputs: Iterable[int], moments: Sequence[Moment], outputs: Iterable[int]) -> int:
    """The most bytes alive at once; ``sizes`` are by value.

    Inputs are there from the start; a value dies after its last reader, an output or an input that nobody reads
    never does.
    """
    return live_bytes(sizes, inputs, moments, outputs).peak


@dataclass(frozen=True, slots=True)
class Live:
    """Bytes alive, step by step."""

    peak: int
    moment: int
    """The first step at which as much is alive; -1 is the start."""
    alive: tuple[int, ...]
    """The values that own bytes then."""


def live_bytes(
    sizes: Sequence[int],
    inputs: Iterable[int],
    moments: Sequence[Moment],
    outputs: Iterable[int],
    kept: Iterable[int] = (),
    extra: Sequence[int] | None = None,
) -> Live:
    """The peak and what makes it.

    ``kept`` values never die, as outputs; ``extra`` bytes are needed by each step while it runs.
    """
    base = list(range(len(sizes)))
    last: dict[int, int] = {}
    owned = [True] * len(sizes)
    for n, moment in enumerate(moments):
        for made, shown in moment.views:
            base[moment.makes[made]] = base[moment.reads[shown]]
            owned[moment.makes[made]] = False
        for value in (*moment.reads, *moment.makes):
            last[base[value]] = n
    for value in (*outputs, *kept):
        last.pop(base[value], None)
    dying: list[list[int]] = [[] for _ in moments]
    for value, n in last.items():
        dying[n].append(value)
    there = tuple(inputs)
    live = peak = sum(sizes[value] for value in there)
    at = -1
    for n, moment in enumerate(moments):
        live += sum(sizes[value] for value in moment.makes if owned[value])
        now = live + extra[n] if extra is not None else live
        if now > peak:
            peak, at = now, n
        live -= sum(sizes[value] for value in dying[n])
    made_by = [*there, *(value for moment in moments[: at + 1] for value in moment.makes if owned[value])]
    return Live(peak, at, tuple(value for value in made_by if last.get(value, at) >= at))
