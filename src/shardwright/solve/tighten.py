"""Inputs that lie in less memory at the same price.

Cutting what is whole is free, so a solver that looks at time alone may as well leave an input whole.  Here every input
that nobody pinned gets the sharding with the fewest bytes among those that cost no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..cost.machine import Hardware
from ..cost.memory import local_bytes
from ..cost.overlap import graph_roles
from ..ir.graph import Graph
from ..propagate.complete import Complete
from ..spec.reshard import nearest
from ..spec.sharding import ShardingSpec
from .price import steps_shown


def tighten(complete: Complete, hardware: Hardware, pinned: Mapping[int, ShardingSpec]) -> Complete:
    """The same decisions, with inputs that hold fewer bytes where that costs nothing."""
    graph, hardware = complete.graph, hardware.on(complete.mesh)
    needs, roles = _needs(complete), graph_roles(graph)
    homes = dict(zip(graph.inputs, complete.inputs))
    for decision in complete.decisions:
        homes.update(zip(graph.nodes[decision.node].results, decision.homes))
    renewed = {graph.inputs[i]: output for i, output in graph.updates}
    inputs, outputs = list(complete.inputs), list(complete.outputs)
    for i, value in enumerate(graph.inputs):
        if value in pinned or value in graph.outputs:
            continue
        output = renewed.get(value)
        made = graph.outputs[output] if output is not None else None
        if made is not None and (made in graph.inputs or graph.outputs.count(made) > 1):
            continue

        def cost(spec: ShardingSpec, value: int = value, made: int | None = made) -> int:
            total = _copies(graph, complete, hardware, roles, value, spec, needs.get(value, []))
            if made is not None:
                total += _copies(graph, complete, hardware, roles, made, homes[made], [*needs.get(made, []), spec])
            return total

        type = graph.type(value)
        best, least = inputs[i], cost(inputs[i])
        for spec in dict.fromkeys(needs.get(value, [])):
            if spec.partial or local_bytes(spec, type) >= local_bytes(best, type):
                continue
            price = cost(spec)
            if price <= least:
                best, least = spec, price
        inputs[i] = best
        if output is not None:
            outputs[output] = best
    return replace(complete, inputs=tuple(inputs), outputs=tuple(outputs))


def _needs(complete: Complete) -> dict[int, list[ShardingSpec]]:
    """For every value the shardings that its readers ask for, in order; outputs that are no updates come last."""
    found: dict[int, list[ShardingSpec]] = {}
    graph = complete.graph
    for decision in complete.decisions:
        for value, spec in zip(graph.nodes[decision.node].inputs, decision.operands):
            found.setdefault(value, []).append(spec.closed())
    updates = {output for _, output in graph.updates}
    for i, (value, spec) in enumerate(zip(graph.outputs, complete.outputs)):
        if i not in updates:
            found.setdefault(value, []).append(spec.closed())
    return found


def _copies(
    graph: Graph,
    complete: Complete,
    hardware: Hardware,
    roles: Sequence[str | None],
    value: int,
    home: ShardingSpec,
    wanted: Sequence[ShardingSpec],
) -> int:
    """What lowering will pay for copies of one value, made as it makes them."""
    type, held, total, role = graph.type(value), [home.closed()], 0, roles[value]
    hub = complete.hubs.get(value)
    for spec in wanted:
        if spec in held:
            continue
        for target in (hub, spec) if hub is not None and hub not in held and hub != spec else (spec,):
            assert target is not None
            _, steps = nearest(held, target, type.shape, type.item_bytes)
            total += steps_shown(steps, role, hardware)
            held.append(target)
    return total
