"""When everything of a plan happens, and where its compute stands still for a collective: exposed communication.

`cost.simulate` says when each event runs.  Compute stands still only at a wait, so what is waited for is what is
exposed: over all waits that is the step less its compute, to the picosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..cost import Hardware, simulate
from ..cost.schedule import COMPUTE, Timeline
from ..ir.graph import Graph
from ..ir.order import events_of
from ..ir.program import RUN, START, WAIT, Program


@dataclass(frozen=True)
class Stall:
    """Compute stands still until collectives that were started together are done."""

    members: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Schedule:
    """A simulated step, picoseconds."""

    timeline: Timeline
    stalls: tuple[Stall, ...]
    event_starts: tuple[int, ...]
    """When each event of the Program's order begins."""
    exposed: Mapping[int, int]
    """Of each collective what is exposed of it; those of a bucket share by bytes."""
    times: Mapping[int, int]
    """Of each instruction what it takes; collectives of a bucket share by bytes."""
    starts: Mapping[int, int]
    """When each instruction starts."""

    @property
    def compute(self) -> int:
        """What computing takes as it is scheduled: more than by itself where communication slows it down."""
        return self.timeline.total - self.waiting

    @property
    def waiting(self) -> int:
        """What compute stands still for: exposed communication."""
        return sum(stall.end - stall.start for stall in self.stalls)


def schedule_of(program: Program, hardware: Hardware, graph: Graph) -> Schedule:
    """Replay a Program's order."""
    timeline = simulate(program, hardware, graph)
    spans = iter(timeline.spans)
    now = 0
    done: dict[tuple[int, ...], int] = {}
    stalls: list[Stall] = []
    times: dict[int, int] = {}
    starts: dict[int, int] = {}
    begins: list[int] = []
    for kind, members in events_of(program):
        begins.append(now)
        if kind in (RUN, START):
            span = next(spans)
            times.update(_shared(program, members, span.end - span.start))
            starts.update(dict.fromkeys(members, span.start))
            if kind == RUN:
                now = span.end
            else:
                done[members] = span.end
        elif kind == WAIT and done[members] > now:
            stalls.append(Stall(members, now, done[members]))
            now = done[members]
    if timeline.total > now:  # what nobody waits for within the step
        late = max(done, key=lambda members: done[members])
        stalls.append(Stall(late, now, timeline.total))
    exposed: dict[int, int] = {}
    for stall in stalls:
        for n, time in _shared(program, stall.members, stall.end - stall.start).items():
            exposed[n] = exposed.get(n, 0) + time
    return Schedule(timeline, tuple(stalls), tuple(begins), exposed, times, starts)


def _shared(program: Program, members: tuple[int, ...], time: int) -> dict[int, int]:
    """A time shared among collectives by their bytes; nothing is lost by rounding."""
    total = sum(program.instrs[n].bytes for n in members)
    if len(members) == 1 or not total:
        return {n: time if i == 0 else 0 for i, n in enumerate(members)}
    found, sent, given = {}, 0, 0
    for n in members:
        sent += program.instrs[n].bytes
        found[n] = time * sent // total - given
        given += found[n]
    return found


__all__ = ["COMPUTE", "Schedule", "Stall", "schedule_of"]
