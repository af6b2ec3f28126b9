"""What a collective costs: the bytes that one device sends become messages on the links that its axes run over.

Here, and only here, the project's bytes (`spec.collective`: what one device sends, padding included) are turned into
the messages that links are measured in (`links`).  With n devices an all_reduce sends 2(n-1)/n of its message, every
other collective (n-1)/n, a permute all of it.

A group that spans several nodes works on each level at once, as NCCL does: inside a node over the fast link, between
nodes each device over its own network card.  A reduction brings to the network only the part of the message that is
left to each member of the node; a gather the other way round; an all_to_all all of it.  The levels are pipelined, so
the slowest decides.  Alpa's costs add up instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import SpecError, near_misses
from ..ir.order import BUCKETED
from ..spec.axes import AxisRef, axes_size
from ..spec.collective import COLLECTIVES, collective_bytes
from ..spec.resharding.steps import Step
from .links import AlphaBetaLink, ceil_div, trips
from .machine import Hardware

LOCAL_STEPS = ("slice", "to_partial")
"""Steps of a reshard in which nothing is sent: a part of what is there is kept."""
_REMEMBERED = 100_000


def communication_cost(kind: str, axes: Sequence[AxisRef], local_bytes: int, hardware: Hardware) -> int:
    """Picoseconds of a collective into which one device puts ``local_bytes``.

    >>> from shardwright import DeviceMesh
    >>> from shardwright.cost import H100
    >>> tp = DeviceMesh("tp=8").axes
    >>> [communication_cost(kind, tp, 2**20, H100) // 10**6 for kind in ("reduce_scatter", "all_reduce", "slice")]
    [14, 25, 0]
    """
    if kind in LOCAL_STEPS:
        return 0
    if kind not in COLLECTIVES:
        raise SpecError(f"no collective is called {kind!r}", help=near_misses(kind, COLLECTIVES))
    return sent_cost(kind, axes, collective_bytes(kind, axes_size(axes), local_bytes), hardware)


def sent_cost(kind: str, axes: Sequence[AxisRef], sent: int, hardware: Hardware) -> int:
    """The same from the bytes that one device sends, which instructions and steps know with their padding."""
    if kind in LOCAL_STEPS:
        return 0
    key = (kind, tuple(axes), sent)
    found = hardware._prices.get(key)
    if found is None:
        if len(hardware._prices) >= _REMEMBERED:
            hardware._prices.clear()
        found = hardware._prices[key] = _cost(kind, axes, sent, hardware)
    return found


def _cost(kind: str, axes: Sequence[AxisRef], sent: int, hardware: Hardware) -> int:
    ways = axes_size(axes)
    if ways == 1:
        return 0
    levels = hardware.levels(axes)
    over, under = message(kind, ways, sent)
    times, done = [], 1
    for wire, size in levels:
        shared = 1 if kind in ("all_to_all", "collective_permute") else done
        times.append(wire.time(kind, size, over, under * shared))
        done *= size
    return sum(times) if any(isinstance(wire, AlphaBetaLink) for wire, _ in levels) else max(times)


def message(kind: str, ways: int, sent: int) -> tuple[int, int]:
    """What NCCL's tests call the size, as a fraction, from the bytes that one device sends.

    >>> message("all_gather", 4, 300), message("all_reduce", 4, 150)  # 400 and 100 bytes
    ((1200, 3), (600, 6))
    """
    return (sent, 1) if kind == "collective_permute" else (sent * ways, trips(kind) * (ways - 1))


LEAST_BUCKET = 4 * 2**20
"""Bytes that may always be sent together: below, on any transport, starting costs more than sending."""
_NEAR_FULL_RATE = 4  # a link reaches 80% of its rate where sending takes four times as long as starting
_LARGE = 2**30  # bytes at which starting does not count


def full_bucket(kind: str, axes: Sequence[AxisRef], hardware: Hardware) -> int:
    """Bytes sent at which starting a collective hardly counts any more."""
    start, large = (sent_cost(kind, axes, sent, hardware) for sent in (1, _LARGE))
    return max(LEAST_BUCKET, _NEAR_FULL_RATE * start * _LARGE // max(large - start, 1))


def shown_cost(kind: str, axes: Sequence[AxisRef], sent: int, role: str | None, hardware: Hardware) -> int:
    """What a solver counts of a collective for values of this role (`machine.Overlap`)."""
    time = sent_cost(kind, axes, sent, hardware)
    if hardware.overlap.bucketed and role is not None and time and kind in BUCKETED:
        full = full_bucket(kind, axes, hardware)
        if sent < full:
            time = min(time, ceil_div(sent * sent_cost(kind, axes, full, hardware), full))
    return hardware.overlap.shown(role, time)


def steps_cost(steps: Iterable[Step], hardware: Hardware) -> int:
    """Picoseconds of a reshard: each step once."""
    return sum(sent_cost(step.kind, step.axes, step.bytes, hardware) for step in steps)
