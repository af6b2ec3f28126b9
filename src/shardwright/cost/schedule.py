"""When everything of a Program happens: its order replayed on compute and on one queue for each link.

The order says what is issued when; nothing is decided here.  Local instructions run one after the other.  Collectives
begin when they are started and their link is free, in the order in which they are started; a bucket costs one start.
While one is under way compute may be slower (`Hardware.contention`), which counts as communication that shows.
Who waits for one stands still until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..ir.graph import Graph
from ..ir.order import events_of
from ..ir.program import RUN, START, Event, Program
from ..spec.axes import AxisRef
from .comm import sent_cost
from .machine import Hardware
from .program import instr_costs

COMPUTE = "compute"


class Span(NamedTuple):
    """When something runs; picoseconds from the start of the step."""

    members: tuple[int, ...]
    """Instructions of the Program: one, or the collectives of a bucket."""
    stream: str
    """``compute``, or the links that it runs over."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything happens."""

    spans: tuple[Span, ...]
    """In the Program's order."""
    compute: int
    """Picoseconds of computing."""
    communication: int
    """The same of all collectives."""
    total: int
    """The step: until all is done."""

    @property
    def exposed(self) -> int:
        """Communication that shows: what the step takes beyond its compute."""
        return self.total - self.compute

    @property
    def hidden(self) -> int:
        return self.communication - self.exposed

    def stream(self, name: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.stream == name and span.end > span.start)


def simulate(
    program: Program, hardware: Hardware, graph: Graph | None = None, times: Sequence[int] | None = None
) -> Timeline:
    """A Program's order, replayed; ``graph`` as for `program_cost`, whose ``times`` may be handed on."""
    hardware = hardware.on(program.mesh)
    if times is None:
        times = instr_costs(program, hardware, graph)
    spans: list[Span] = []
    compute, communication, total = _replay(program, hardware, times, spans.append)
    return Timeline(tuple(spans), compute, communication, total)


def makespan(program: Program, hardware: Hardware, times: Sequence[int]) -> int:
    """Picoseconds until all is done, without saying when what happens."""
    return _replay(program, hardware.on(program.mesh), times, None)[2]


def _replay(
    program: Program, hardware: Hardware, times: Sequence[int], note: Callable[[Span], object] | None
) -> tuple[int, int, int]:
    """Compute, communication, and the time until all is done; every span is noted."""
    now = compute = communication = 0
    free: dict[str, int] = {}
    done: dict[tuple[int, ...], int] = {}
    for event in events_of(program):
        kind, members = event
        if kind == RUN:
            time = times[members[0]]
            compute += time
            if hardware.contention and free:
                time = _beside(time, max(free.values()) - now, hardware.contention)
            if note is not None:
                note(Span(members, COMPUTE, now, now + time))
            now += time
        elif kind == START:
            links, time = links_of(program, event, hardware), start_time(program, event, hardware)
            begin = max([now, *(free.get(link, 0) for link in links)])
            done[members] = begin + time
            free.update(dict.fromkeys(links, begin + time))
            communication += time
            if note is not None:
                note(Span(members, " and ".join(links), begin, begin + time))
        else:
            now = max(now, done[members])
    return compute, communication, max([now, *done.values()])


def _beside(time: int, busy: int, contention: int) -> int:
    """What compute takes if links are under way for the next ``busy`` picoseconds, and it is slower meanwhile.

    >>> _beside(100, 0, 50), _beside(100, 30, 50), _beside(100, 1000, 50)
    (100, 110, 150)
    """
    done = max(busy, 0) * 100 // (100 + contention)
    return max(busy, 0) + time - done if done < time else time * (100 + contention) // 100


def step_time(
    program: Program, hardware: Hardware, graph: Graph | None = None, times: Sequence[int] | None = None
) -> Timeline:
    """What a step is predicted to take: its order replayed, on a machine that overlaps; else one thing after the
    other."""
    return simulate(program if hardware.overlaps else replace(program, order=()), hardware, graph, times)


def start_time(program: Program, event: Event, hardware: Hardware) -> int:
    """Picoseconds of what is started together."""
    first = program.instrs[event.members[0]]
    return sent_cost(first.op, first.axes, sum(program.instrs[n].bytes for n in event.members), hardware)


def links_of(program: Program, event: Event, hardware: Hardware) -> tuple[str, ...]:
    """What it runs over, and others that do have to wait for: inside a node, between nodes, or an axis' own link."""
    return links_over(program.instrs[event.members[0]].axes, hardware)


def links_over(axes: Sequence[AxisRef], hardware: Hardware) -> tuple[str, ...]:
    """The same for a collective over these axes."""
    found = []
    for wire, _ in hardware.levels(axes):
        own = next((name for name, link in hardware.links if link == wire), "")
        found.append("node" if wire == hardware.default_link else "network" if wire == hardware.network else own)
    return tuple(found)
