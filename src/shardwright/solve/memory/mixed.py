"""Between a plan that is too large and a more expensive one that fits: as much of the cheaper one as there is room for.

Where the two differ falls into parts that do not touch: no value is read, made or kept otherwise in two of them.  So
each may be as in the one plan or as in the other, and what that saves does not depend on the rest.  Parts are taken in
the order of what they save for a byte; equal ones (of equal layers, mostly) are looked at once and taken together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...ir.wiring import connected
from .one_copy import OneCopyPlan

Thing = tuple[str, int]
"""A node or a value."""


@dataclass(frozen=True)
class Part:
    """Nodes and values that go together."""

    nodes: tuple[int, ...]
    values: tuple[int, ...]


def mix(low: OneCopyPlan, high: OneCopyPlan, limit: int) -> OneCopyPlan:
    """The plan that fits, with parts of the cheaper one."""
    base = int(high.held().max())
    batches: dict[tuple[int, ...], list[Part]] = {}
    grown: dict[tuple[int, ...], int] = {}
    trial = taking(low, high, [])
    states = {state: high.frame.graph.outputs[o] for o, state in high.frame.updates.items()}
    for part in parts(low, high):
        saved = _saved(low, high, part, trial, states)
        if saved <= 0:
            continue
        key: tuple[int, ...] = (saved, len(part.nodes), len(part.values))
        if key not in grown:
            grown[key] = int(taking(low, high, [part]).held().max()) - base
        batches.setdefault((*key, grown[key]), []).append(part)
    taken: list[Part] = []
    for key in sorted(batches, key=lambda key: (-key[0] / max(1, key[3]), key)):
        some = batches[key]
        least, most = 0, len(some)
        while least < most:
            middle = (least + most + 1) // 2
            if int(taking(low, high, taken + some[:middle]).held().max()) <= limit:
                least = middle
            else:
                most = middle - 1
        taken += some[:least]
    return taking(low, high, taken)


def parts(low: OneCopyPlan, high: OneCopyPlan) -> list[Part]:
    """Where two plans differ, in parts that do not touch."""
    frame, graph = high.frame, high.frame.graph
    differs: set[Thing] = {("node", n) for n, way in enumerate(high.ways) if way is not low.ways[n]}
    for v in range(len(graph.values)):
        if high.hubs.get(v) != low.hubs.get(v) or high.input_specs.get(v) != low.input_specs.get(v):
            differs.add(("value", v))
    things = sorted(differs)
    number = {thing: i for i, thing in enumerate(things)}
    groups: list[list[int]] = []
    for v, tensor in enumerate(graph.values):
        # A node that wants the same of a value in both plans has nothing to do with what becomes of it.
        near: list[Thing] = [("value", v)]
        near += [("node", n) for n, p in frame.readers[v] if low.ways[n].operands[p] != high.ways[n].operands[p]]
        if tensor.producer is not None and low.home(v) != high.home(v):
            near.append(("node", tensor.producer[0]))
        near += [("value", frame.updates[i]) for i in frame.outputs.get(v, ()) if i in frame.updates]
        if v in frame.lives.shows:
            near.append(("value", frame.lives.shows[v]))
        groups.append([number[thing] for thing in near if thing in number])
    found: dict[int, list[Thing]] = {}
    for thing, first in zip(things, connected(len(things), groups)):
        found.setdefault(first, []).append(thing)
    return [
        Part(tuple(i for kind, i in things if kind == "node"), tuple(i for kind, i in things if kind == "value"))
        for things in found.values()
    ]


def taking(low: OneCopyPlan, high: OneCopyPlan, some: Iterable[Part]) -> OneCopyPlan:
    """The one plan with parts of the other."""
    found = OneCopyPlan(high.frame, list(high.ways), dict(high.input_specs), dict(high.hubs))
    for part in some:
        _take(found, low, part)
    return found


def _take(plan: OneCopyPlan, other: OneCopyPlan, part: Part) -> None:
    """Change a part of a plan to what it is in another one."""
    for n in part.nodes:
        plan.ways[n] = other.ways[n]
    for v in part.values:
        if v in other.input_specs:
            plan.input_specs[v] = other.input_specs[v]
        if v in other.hubs:
            plan.hubs[v] = other.hubs[v]


def spliced(
    first: OneCopyPlan, second: OneCopyPlan, node_place: Sequence[int], value_place: Callable[[int], int], until: int
) -> OneCopyPlan:
    """What comes before a place as in the one plan, all else as in the other; -1 is nowhere."""
    ways = [a if 0 <= place < until else b for a, b, place in zip(first.ways, second.ways, node_place)]
    input_specs = {
        v: first.input_specs[v] if 0 <= value_place(v) < until else spec for v, spec in second.input_specs.items()
    }
    found = OneCopyPlan(second.frame, ways, input_specs, {})
    for v, hub in second.hubs.items():
        found.hubs[v] = first.hubs[v] if v in first.hubs and 0 <= value_place(v) < until else hub
    for v in found.hubs:
        if v in found.frame.lives.shows:
            found.hubs[v] = found.home(v)
    return found


def _saved(low: OneCopyPlan, high: OneCopyPlan, part: Part, trial: OneCopyPlan, states: Mapping[int, int]) -> int:
    """Picoseconds that a part saves; ``trial`` is as ``high`` before and after, ``states`` are new values by state."""
    graph = high.frame.graph
    touched = dict.fromkeys(part.values)
    for n in part.nodes:
        # Who wants the same of a value in both plans changes nothing for it; a learning rate all updates read.
        mine, theirs = low.ways[n].operands, high.ways[n].operands
        touched.update((v, None) for v, a, b in zip(graph.nodes[n].inputs, mine, theirs) if a != b)
        touched.update((v, None) for v in graph.nodes[n].results if low.home(v) != high.home(v))
    touched.update(dict.fromkeys(states[v] for v in part.values if v in states))
    saved = sum(high.ways[n].time - low.ways[n].time for n in part.nodes) + sum(map(high.spent, touched))
    _take(trial, low, part)
    saved -= sum(map(trial.spent, touched))
    _take(trial, high, part)
    for v in part.values:
        if v not in high.hubs:
            trial.hubs.pop(v, None)
    return saved
