"""What is in memory when: for every tensor that owns bytes the events from its first to its last.

The lifetimes are those that `cost.memory_profile` counts for a step that hands its state over, so the largest sum over
all events is the plan's memory, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..cost import memory_profile
from ..cost.memory import program_timeline
from ..cost.profile import RESIDENT, buffer_name, value_kinds
from ..ir.graph import Graph
from ..ir.lifetimes import lifetimes
from ..ir.order import buffer_bytes, events_of
from ..ir.program import Program


@dataclass(frozen=True, slots=True)
class Lifespan:
    """One tensor: a value of the Program, or the buffer of a collective."""

    name: str
    bytes: int
    kind: str
    first: int
    """Event; -1: there from the start."""
    last: int
    """Event; the number of events: kept."""
    value: int | None
    """None for a buffer."""
    instr: int | None
    """The instruction that makes it; for a buffer, whose it is."""


@dataclass(frozen=True)
class Memory:
    """Of one device over a step."""

    spans: tuple[Lifespan, ...]
    peak: int
    event: int
    """At which the peak is; -1: at the start."""

    def alive(self, event: int) -> list[Lifespan]:
        """What is there while an event runs, largest first."""
        found = [span for span in self.spans if span.first <= event <= span.last]
        return sorted(found, key=lambda span: (-span.bytes, span.name))


def memory_of(program: Program, graph: Graph) -> Memory:
    """All lifespans of a Program; ``graph`` as for `cost.memory_profile`."""
    events = events_of(program)
    uses, buffers = program_timeline(program)
    count = len(program.values)
    kept = [value for i, value in enumerate(program.inputs) if i not in program.donated]
    ends = lifetimes(count + len(buffers), uses, (*program.outputs, *kept))
    first = dict.fromkeys(program.inputs, -1)
    for event, use in enumerate(uses):
        for value in use.makes:
            first.setdefault(value, event)
    makers = {value: n for n, instr in enumerate(program.instrs) for value in instr.results}
    kinds = value_kinds(program, graph)
    spans = []
    for value, begun in first.items():
        if ends.owner[value] != value:
            continue  # a view owns no bytes
        buffer = buffers[value - count] if value >= count else None
        size = program.values[value].padded_bytes if buffer is None else buffer_bytes(program, buffer)
        # An input of a step that nobody reads stays, as in `cost.memory`.
        last = ends.last.get(value, len(events))
        if size:
            spans.append(
                Lifespan(
                    buffer_name(program, buffer) if buffer is not None else program.values[value].name, size,
                    "buffer" if buffer is not None else kinds[value], begun, last,
                    None if buffer is not None else value,
                    makers.get(value) if buffer is None else buffer.members[0],
                )
            )  # fmt: skip
    spans.sort(key=lambda span: (span.first, -span.bytes, span.name))
    profile = memory_profile(program, RESIDENT, graph)
    event = profile.live.step
    return Memory(tuple(spans), profile.peak, event)


def bytes_by_event(spans: Sequence[Lifespan], events: int) -> list[int]:
    """Bytes alive at the start and while each event runs."""
    change = [0] * (events + 2)
    for span in spans:
        change[span.first + 1] += span.bytes
        if span.last + 2 < len(change):
            change[span.last + 2] -= span.bytes
    return list(accumulate(change))[: events + 1]
