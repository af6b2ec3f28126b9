"""`deep_time`: about how long a deep graph's step takes, from the schedule of its short one.

A layer that is left out takes as long as the one that stands for it, in each run over the layers (forward, backward,
updates).  How long that is shows in the schedule: between the same ops of it and of the layer next to it.  But where a
link has more to send for a layer than fits beside its compute in that run, the rest waits for the end, and a layer
takes what the link does.  It is an estimate: it says which plans are worth a schedule of the whole.
"""

from __future__ import annotations

from statistics import median

from ...cost.machine import Hardware
from ...cost.program import instr_costs
from ...cost.schedule import COMPUTE, Timeline, simulate
from ...ir.program import Program
from ...lower import lower, ordered
from ...propagation.complete import Complete
from .layers import Short


def deep_time(short: Short, complete: Complete, hardware: Hardware) -> int:
    """Picoseconds of a step of the deep graph, by a plan of the short one."""
    program = lower(complete)
    times = instr_costs(program, hardware, complete.graph)
    timeline = simulate(ordered(program, hardware, complete.graph, times), hardware, times=times)
    sent = _sent(short, program, timeline)
    links = {link for _, link in sent}
    computed = enumerate(_computed(short, program, timeline))
    return timeline.total + short.out * sum(
        max([time, *(sent.get((run, link), 0) for link in links)]) for run, time in computed
    )


def _runs(short: Short) -> list[int]:
    """By place in a layer, the run that it is of."""
    return [run for run, (_, period, _) in enumerate(short.layers.runs) for _ in range(period)]


def _computed(short: Short, program: Program, timeline: Timeline) -> list[int]:
    """What one more layer takes in each run, with what it waits for."""
    layers, inner = short.layers, (short.low - 1, short.low + short.out)
    begins: tuple[dict[int, int], dict[int, int]] = {}, {}
    """By place in the layer when it is computed, in the layer that stands for those left out and the next one."""
    for span in timeline.spans:
        node = program.instrs[span.members[0]].node if span.stream == COMPUTE else None
        if node is not None:
            was = short.kept[node]
            for layer, found in zip(inner, begins):
                if layers.layer[was] == layer:
                    found[int(layers.node_place[was])] = span.start
    away: list[list[int]] = [[] for _ in layers.runs]
    for place, run in enumerate(_runs(short)):
        if place in begins[0] and place in begins[1]:
            away[run].append(abs(begins[1][place] - begins[0][place]))
    return [int(median(times or [0])) for times in away]


def _sent(short: Short, program: Program, timeline: Timeline) -> dict[tuple[int, str], int]:
    """What one more layer takes of each link in each run: what members of buckets share, each by its bytes.

    What is computed is sent in the run that makes it, all else in the first run that reads it.
    """
    layers, graph, runs = short.layers, short.graph, _runs(short)
    was = {here: value for value, here in short.values.items()}
    first: dict[int, int] = {}
    for n in range(len(graph.nodes) - 1, -1, -1):
        first.update(dict.fromkeys(graph.nodes[n].inputs, n))
    found: dict[tuple[int, str], int] = {}
    for span in timeline.spans:
        instrs = [] if span.stream == COMPUTE else [program.instrs[n] for n in span.members]
        bytes = max(1, sum(instr.bytes for instr in instrs))
        for instr in instrs:
            origin = program.values[instr.results[0]].origin
            if origin is None or layers.value_layer(was[origin]) != short.low - 1:
                continue
            producer = graph.values[origin].producer
            node = first.get(origin) if producer is None else producer[0]
            place = -1 if node is None else int(layers.node_place[short.kept[node]])
            for link in span.stream.split(" and ") if place >= 0 else ():
                key = runs[place], link
                found[key] = found.get(key, 0) + (span.end - span.start) * instr.bytes // bytes
    return found
