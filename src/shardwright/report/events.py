"""A simulated step in the forms that other tools read: Chrome trace events (Perfetto reads them), and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from ..ir.order import events_of
from ..ir.program import START
from .overview import Overview
from .schedule import COMPUTE

_PS = 1_000_000
"""Picoseconds in a microsecond, the unit of trace events."""


def trace_events(view: Overview) -> dict[str, Any]:
    """Complete events by lane: compute, each link, and what is exposed."""
    program, places = view.program, view.places
    lanes: dict[str, int] = {}
    events: list[dict[str, Any]] = []

    def lane(name: str) -> int:
        if name not in lanes:
            lanes[name] = len(lanes)
            events.append(
                {"name": "thread_name", "ph": "M", "pid": 0, "tid": lanes[name], "args": {"name": name}}
            )  # fmt: skip
        return lanes[name]

    lane(COMPUTE)
    for span in view.schedule.timeline.spans:
        n = span.members[0]
        instr = program.instrs[n]
        args: dict[str, Any] = {"module": view.title(places.modules[n]), "makes": [
            str(program.values[value]) for value in instr.results
        ]}  # fmt: skip
        if instr.is_collective:
            args |= {"bytes": sum(program.instrs[m].bytes for m in span.members), "members": len(span.members)}
        if instr.source is not None:
            args["line"] = str(instr.source)
        events.append({
            "name": instr.op, "cat": places.phases[n], "ph": "X", "pid": 0, "tid": lane(span.stream),
            "ts": span.start / _PS, "dur": (span.end - span.start) / _PS, "args": args,
        })  # fmt: skip
    for stall in view.schedule.stalls:
        events.append({
            "name": f"wait for {program.instrs[stall.members[0]].op}", "cat": "exposed", "ph": "X", "pid": 0,
            "tid": lane("exposed communication"), "ts": stall.start / _PS, "dur": (stall.end - stall.start) / _PS,
        })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"program": view.plan.name}}


COLUMNS = (
    "instruction",
    "op",
    "module",
    "phase",
    "start_ps",
    "time_ps",
    "exposed_ps",
    "axes",
    "bytes",
    "makes",
    "line",
)


def instructions_csv(view: Overview) -> str:
    """A row an instruction, in the order in which they are issued."""
    program, schedule, places = view.program, view.schedule, view.places
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for kind, members in events_of(program):
        for n in members:
            instr = program.instrs[n]
            if instr.is_collective != (kind == START):
                continue
            writer.writerow([
                n, instr.op, places.modules[n], places.phases[n], schedule.starts[n], schedule.times[n],
                schedule.exposed.get(n, 0), "+".join(map(str, instr.axes)) if instr.is_collective else "",
                instr.bytes if instr.is_collective else "", " ".join(str(program.values[v]) for v in instr.results),
                _safe(str(instr.source or "")),
            ])  # fmt: skip
    return text.getvalue()


def _safe(cell: str) -> str:
    """A spreadsheet must not take a name for a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell
