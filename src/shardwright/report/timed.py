"""The program in order of time: forward, backward and update apart, each with what its modules take in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..errors import printable
from ..ir.order import events_of
from ..ir.program import RUN, START
from ..plans import duration
from ..spec.axes import axes_text
from .overview import Overview
from .places import PHASES


def listing(view: Overview) -> str:
    """A line an instruction: when it starts, what it takes and what of it is exposed, what it makes, and its line."""
    lines: dict[str, list[str]] = {phase: [] for phase in PHASES}
    spent: dict[str, Counter[str]] = {phase: Counter() for phase in PHASES}
    waited: dict[str, Counter[str]] = {phase: Counter() for phase in PHASES}
    program, schedule, places = view.program, view.schedule, view.places
    for kind, members in events_of(program):
        if kind not in (RUN, START):
            continue
        for n in members:
            instr, phase, title = program.instrs[n], places.phases[n], view.title(places.modules[n])
            exposed = schedule.exposed.get(n, 0)
            (waited if instr.is_collective else spent)[phase][title] += exposed or (
                0 if instr.is_collective else schedule.times[n]
            )
            made = ", ".join(str(program.values[value]) for value in instr.results)
            over = f" over {axes_text(instr.axes)}, {instr.bytes} B" if instr.is_collective else ""
            shared = f" (with {len(members) - 1} more)" if len(members) > 1 else ""
            shown = f" {_ms(exposed, view)} exposed" if exposed else ""
            source = f"  # {instr.source}" if instr.source is not None else ""
            lines[phase].append(
                f"  {_ms(schedule.starts[n], view):>12} {_ms(schedule.times[n], view):>12}  {instr.op}{over}{shared}"
                f"{shown}  {made}{source}"
            )
    found: list[str] = []
    for phase in PHASES:
        if lines[phase]:
            compute, exposed = view.phases.get(phase, (0, 0))
            found.append(f"{phase}: {_ms(compute, view)} compute + {_ms(exposed, view)} exposed communication")
            found += [f"  {'starts at':>12} {'takes':>12}", *lines[phase]]
            found += _totals(view, phase, spent[phase], waited[phase])
    return "\n".join(map(printable, found))


def _totals(view: Overview, phase: str, spent: Counter[str], waited: Counter[str]) -> Iterator[str]:
    yield f"  {phase} by module, most first"
    total = spent + waited
    for title, time in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        both = f"{_ms(spent[title], view)} compute, {_ms(waited[title], view)} exposed"
        yield f"  {_ms(time, view):>12}  {title} ({both})"


def _ms(time: int, view: Overview) -> str:
    return duration(time, beside=view.step)
