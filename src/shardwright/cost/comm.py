"""What a collective costs: a launch, a latency for each step of a ring, and the bytes that one device sends.

The bytes are those of `spec.collective`, the one place that defines them.  Over several axes at once the group is
one ring through the slowest of their links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import SpecError, near_misses
from ..spec.axes import AxisRef, axes_size
from ..spec.collective import COLLECTIVES, collective_bytes
from ..spec.reshard import Step
from .hardware import PS, Hardware, Link

LOCAL_STEPS = ("slice", "to_partial")
"""Steps of a reshard in which nothing is sent: a part of what is there is kept."""


def communication_cost(kind: str, axes: Sequence[AxisRef], local_bytes: int, hardware: Hardware) -> int:
    """Picoseconds of a collective into which one device puts ``local_bytes``.

    >>> from shardwright import DeviceMesh
    >>> from shardwright.cost import H100
    >>> tp = DeviceMesh("tp=8").axes
    >>> [communication_cost(kind, tp, 2**20, H100) // 10**6 for kind in ("reduce_scatter", "all_reduce", "slice")]
    [14, 23, 0]
    """
    if kind in LOCAL_STEPS:
        return 0
    if kind not in COLLECTIVES:
        raise SpecError(f"no collective is called {kind!r}", help=near_misses(kind, COLLECTIVES))
    return sent_cost(kind, axes, collective_bytes(kind, axes_size(axes), local_bytes), hardware)


def sent_cost(kind: str, axes: Sequence[AxisRef], sent: int, hardware: Hardware) -> int:
    """The same from the bytes that one device sends, which instructions and steps know with their padding."""
    ways = axes_size(axes)
    if ways == 1 or kind in LOCAL_STEPS:
        return 0
    links = [hardware.link(axis) for axis in axes if axis.size > 1]
    alpha, launch, beta = _slowest(links)
    return launch + _ring_steps(kind, ways) * alpha + -(-sent * PS // beta)


def _ring_steps(kind: str, ways: int) -> int:
    """An all_reduce goes around twice; a permute is one hop."""
    return {"all_reduce": 2 * (ways - 1), "collective_permute": 1}.get(kind, ways - 1)


def _slowest(links: Sequence[Link]) -> tuple[int, int, int]:
    return (
        max(link.alpha_ps for link in links),
        max(link.launch_ps for link in links),
        min(link.beta for link in links),
    )


def steps_cost(steps: Iterable[Step], hardware: Hardware) -> int:
    """Picoseconds of a reshard: each step once."""
    return sum(sent_cost(step.kind, step.axes, step.bytes, hardware) for step in steps)
