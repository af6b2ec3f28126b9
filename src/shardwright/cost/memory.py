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
from ..ir.lifetimes import Use, lifetimes
from ..ir.order import Timeline, events_of, timeline
from ..ir.program import Instr, Program
from ..rules.registry import find
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec


def local_bytes(spec: ShardingSpec, type: TensorType) -> int:
    """Bytes of the largest shard."""
    return prod(spec.padded_shape(type.shape)) * type.item_bytes


def row_bytes(spec: ShardingSpec, type: TensorType) -> int:
    """Bytes of the largest shard's rows: what is in one piece along its last dim."""
    return (spec.padded_shape(type.shape)[-1] if type.shape else 1) * type.item_bytes


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


def program_timeline(program: Program, donate: bool = True) -> Timeline:
    """What each event reads and makes, and whose bytes it shows.

    An op that works in place leaves its results in the bytes of its operands, unless somebody reads those later, or
    they are an input that the caller keeps: then they are copied.
    """
    uses, buffers = timeline(program)
    kept = {v for i, v in enumerate(program.inputs) if not donate or i not in program.donated}
    last = {value: at for at, use in enumerate(uses) for value in use.reads}
    last.update(dict.fromkeys(program.outputs, len(uses)))
    shown: dict[int, list[int]] = {}
    """All values in the bytes of one, shared by them."""
    for at, ((_, members), use) in enumerate(zip(events_of(program), uses)):
        views = use.views
        if views and _works_in_place(program.instrs[members[0]]):
            old = [shown.get(use.reads[operand], [use.reads[operand]]) for _, operand in views]
            free = [not any(v in kept or last.get(v, -1) > at for v in values) for values in old]
            views = [pair for pair, is_free in zip(views, free) if is_free]
            uses[at] = use._replace(views=views)
        for result, operand in views:
            together = shown.setdefault(use.reads[operand], [use.reads[operand]])
            together.append(use.makes[result])
            shown[use.makes[result]] = together
    return Timeline(uses, buffers)


def _works_in_place(instr: Instr) -> bool:
    record = find(instr.op)
    return record is not None and record.in_place


def peak_live(sizes: Sequence[int], inputs: Iterable[int], steps: Sequence[Use], outputs: Iterable[int]) -> int:
    """The most bytes alive at once; ``sizes`` are by value.

    Inputs are there from the start; a value dies after its last reader, an output or an input that nobody reads
    never does.
    """
    there = tuple(inputs)
    return max(alive_bytes(sizes, there, steps, outputs), default=sum(sizes[value] for value in there))


def alive_bytes(
    sizes: Sequence[int],
    inputs: Iterable[int],
    steps: Sequence[Use],
    outputs: Iterable[int],
    kept: Iterable[int] = (),
    extra: Sequence[int] | None = None,
) -> list[int]:
    """Bytes alive while each step runs: what it reads, what it makes, and all that somebody will read later.

    ``kept`` values never die, as outputs; ``extra`` bytes are needed by each step while it runs.

    >>> alive_bytes([8, 4, 2], [0], [Use((0,), (1,)), Use((1,), (2,))], [2])
    [12, 6]
    """
    made, last = _lifetimes(sizes, steps, (*outputs, *kept))
    return _by_step(sizes, sum(sizes[value] for value in inputs), made, last, extra)


def _by_step(
    sizes: Sequence[int], live: int, made: Sequence[int], last: dict[int, int], extra: Sequence[int] | None
) -> list[int]:
    dying = [0] * len(made)
    for value, n in last.items():
        dying[n] += sizes[value]
    found = []
    for more, less in zip(made, dying):
        live += more
        found.append(live)
        live -= less
    return found if extra is None else [alive + more for alive, more in zip(found, extra)]


def _lifetimes(sizes: Sequence[int], steps: Sequence[Use], kept: Iterable[int]) -> tuple[list[int], dict[int, int]]:
    """What each step adds, and for each value that owns bytes and dies the last step that needs it."""
    owner, last = lifetimes(len(sizes), steps, kept)
    made = [sum(sizes[value] for value in step.makes if owner[value] == value) for step in steps]
    return made, {value: n for value, n in last.items() if owner[value] == value}


@dataclass(frozen=True, slots=True)
class Live:
    """The peak of a list of steps."""

    peak: int
    step: int
    """The first step at which as much is alive; -1 is the start."""
    alive: tuple[int, ...]
    """The values that own bytes then."""


def live_bytes(
    sizes: Sequence[int],
    inputs: Iterable[int],
    steps: Sequence[Use],
    outputs: Iterable[int],
    kept: Iterable[int] = (),
    extra: Sequence[int] | None = None,
) -> Live:
    """The peak and what makes it; arguments as for `alive_bytes`."""
    there = tuple(inputs)
    start = sum(sizes[value] for value in there)
    added, last = _lifetimes(sizes, steps, (*outputs, *kept))
    by_step = _by_step(sizes, start, added, last, extra)
    peak = max(by_step, default=start)
    at = by_step.index(peak) if peak > start else -1
    shown = {step.makes[place] for step in steps[: at + 1] for place, _ in step.views}
    made = [*there, *(value for step in steps[: at + 1] for value in step.makes if value not in shown)]
    return Live(max(peak, start), at, tuple(value for value in made if last.get(value, at) >= at))
