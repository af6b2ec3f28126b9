"""Why a value is sharded as it is: what every other sharding would cost, and what makes the next best one cost more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import monotonic

from ..cost.program import instr_cost, program_cost
from ..errors import GraphError, PlanInfeasible, near_misses
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph
from ..ir.program import Program
from ..lower import lower
from ..plans import Complete, Plan, duration, table
from ..solve.alternatives import Alternatives
from ..solve.exact import held_by
from ..solve.model import Assigner
from ..solve.planner import Planner
from ..solve.repeated.layers import find_layers
from ..spec.axes import axes_text
from ..spec.resharding.cheapest import reshard_bytes
from ..spec.sharding import ShardingSpec

MOST = 12
"""So many shardings of a value are looked at, the chosen one among them."""
SECONDS = 40.0
"""For all of them together."""
SHOWN = 6
"""So many differences between two plans are listed."""


def explained(planner: Planner, plan: Plan, name: str) -> str:
    """The text of `Plan.explain`."""
    graph = plan.complete.graph
    if not isinstance(name, str):
        raise GraphError(f"a value is named by text, not by {name!r}", help='write explain("w")')
    value = graph.by_name.get(name.removeprefix("%"))
    if value is None:
        names = [v.name for v in graph.values]
        inputs = [graph.values[v].name for v in graph.inputs]
        raise GraphError(
            f"no value is called {name!r}",
            rows=[("inputs", ", ".join(inputs[:8]) + (", ..." if len(inputs) > 8 else ""))],
            help=near_misses(name, names),
        )
    chosen = plan.complete.homes[value].closed()
    requests = planner.asked.requests
    pinning = [i for i, request in enumerate(requests) if value in {*request.pins, *_pushed(graph, request.pins)}]
    refusing = [str(request) for request in requests if value in request.bans]
    free = planner
    if pinning:
        kept = [request for i, request in enumerate(planner.requested.requests) if i not in pinning]
        free = planner.keeping(tuple(kept))
    found = _alternatives(free, plan, graph.values[value].name, chosen)
    rows = [["sharding", "objective", "against the plan"]]
    ours = plan.cost.objective
    for objective, spec, _ in sorted(found, key=lambda item: (item[0], str(item[1]))):
        more = objective - ours
        said = f"{spec} (chosen)" if spec == chosen else str(spec)
        rows.append([said, duration(objective, beside=ours), duration(more, "+", ours)])
    lines = [f"{graph.values[value].name}: {graph.type(value)}{_made_at(graph, value)}", table(rows)]
    lines += [f"kept there by {requests[i]}" for i in pinning]
    lines += [f"never split otherwise: {text}" for text in refusing]
    others = [(objective, str(spec), complete) for objective, spec, complete in found if complete is not None]
    if others:
        _, text, complete = min(others, key=lambda item: item[:2])
        other = free.priced(complete, "other")
        lines.append(f"with {text} instead, all else chosen anew:")
        lines += differences(plan, other, planner) or ["  nothing costs more or less"]
    return "\n".join(lines)


def _pushed(graph: Graph, pins: Mapping[int, ShardingSpec]) -> set[int]:
    """Values that a constraint inside the program keeps: what it reads is sharded as it says."""
    found = set()
    for value in pins:
        maker = graph.node_of(value)
        if maker is not None and graph.nodes[maker].op == CONSTRAINT:
            found.add(graph.nodes[maker].inputs[0])
    return found


def _made_at(graph: Graph, value: int) -> str:
    maker = graph.node_of(value)
    if maker is None:
        return ""
    node = graph.nodes[maker]
    return f", made by node {maker} {node.op}" + (f" at {node.source}" if node.source else "")


Found = tuple[int, ShardingSpec, Complete | None]


def _alternatives(planner: Planner, plan: Plan, name: str, chosen: ShardingSpec) -> list[Found]:
    """Objectives by sharding, all else being chosen anew; the plan itself stands for the chosen one."""
    value, whole = planner.graph.by_name[name], planner.whole
    times = _offered(planner, whole, value)
    offered = _nearest(plan, name, {spec: time for spec, time in times.items() if spec != chosen})[: MOST - 1]
    found: list[Found] = [(plan.cost.objective, chosen, None)]
    others: Alternatives | None = Alternatives(whole, value)
    if whole.allows is None and whole.offer is None and find_layers(planner.graph, {**whole.given, value: chosen}):
        others = None  # deep stacks are folded, from scratch
    end = monotonic() + SECONDS
    for i, spec in enumerate(offered):
        seconds = (end - monotonic()) / (len(offered) - i)
        if seconds <= 0:
            break
        try:
            made = None if others is None else others.solve(spec, seconds)
            if made is not None and not _fits(planner, made.complete):
                made = others = None  # the next one would hardly fit either
            if made is None:
                made = planner.assigned({value: spec}, False, "auto", seconds)
        except PlanInfeasible:
            continue
        found.append((made.cost.objective, spec, made.complete))
    return found


def _fits(planner: Planner, complete: Complete) -> bool:
    limit = planner.asked.memory
    return limit is None or held_by(complete) <= limit


def _offered(planner: Planner, assigner: Assigner, value: int) -> dict[ShardingSpec, int]:
    """The shardings that a value may have, each with the time of the quickest strategy that makes it so."""
    producer = planner.graph.values[value].producer
    if producer is None:
        return dict.fromkeys(assigner.inputs[value], 0)
    n, r = producer
    allows = planner.asked.allows
    found: dict[ShardingSpec, int] = {}
    for way in sorted(assigner.space.ways(n), key=lambda way: way.time):
        spec = way.results[r].closed()
        if allows is None or allows(value, spec):
            found.setdefault(spec, way.time)
    return found


def _nearest(plan: Plan, name: str, times: Mapping[ShardingSpec, int]) -> list[ShardingSpec]:
    """Ordered by the bytes that the present readers would move, and the time of the node that makes it."""
    graph = plan.complete.graph
    type = graph.type(graph.by_name[name])
    needs = {
        spec.closed()
        for decision in plan.complete.decisions
        for operand, spec in zip(graph.nodes[decision.node].inputs, decision.operands)
        if graph.values[operand].name == name
    }

    def price(spec: ShardingSpec) -> tuple[int, int]:
        return sum(reshard_bytes(spec, need, type.shape, type.item_bytes, False) for need in needs), times[spec]

    return sorted(times, key=price)


# -- two plans of one program ------------------------------------------------------------------------------------


def differences(plan: Plan, other: Plan, planner: Planner, most: int = SHOWN) -> list[str]:
    """What another plan pays more (+) and less (-), the largest first: collectives, and ops by their local work."""
    here, there, ours = _ledger(plan, planner), _ledger(other, planner), plan.cost.objective
    changed = {key: there[key] - here[key] for key in {**here, **there} if there[key] != here[key]}
    ordered = sorted(changed.items(), key=lambda item: (-abs(item[1]), item[0]))
    lines = [f"  {duration(time, '+', ours)}  {text}" for text, time in ordered[:most]]
    rest = sum(time for _, time in ordered[most:])
    if len(ordered) > most:
        lines.append(f"  {duration(rest, '+', ours)}  in {len(ordered) - most} more places")
    return lines


def _ledger(made: Plan, planner: Planner) -> Counter[str]:
    """What every collective and every op of a Program takes, by what it is."""
    graph = made.complete.graph
    program = lower(made.complete) if made.program is None else made.program
    hardware = planner.hardware.on(planner.mesh)
    priced = iter(program_cost(program, hardware, graph).collectives)
    found: Counter[str] = Counter()
    for instr in program.instrs:
        if instr.is_collective:
            item = next(priced)
            text = f"{instr.op} of %{_origin(graph, program, instr.results[0])} over {axes_text(instr.axes)}"
            for_whom = f", {instr.cause}" if instr.cause else ""
            where = f"   {instr.source}" if instr.source else ""
            found[f"{text}, {instr.bytes} B{for_whom}{where}"] += hardware.overlap.shown(item.role, item.ps)
        elif instr.node is not None:
            node = graph.nodes[instr.node]
            where = f"   {node.source}" if node.source else ""
            found[f"work of node {instr.node} {node.op}{where}"] += instr_cost(program, instr, hardware, graph)
        else:
            found["other local work"] += instr_cost(program, instr, hardware, graph)
    return found


def _origin(graph: Graph, program: Program, value: int) -> str:
    local = program.values[value]
    return local.name if local.origin is None else graph.values[local.origin].name
