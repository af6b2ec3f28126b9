"""Flat plans of a whole graph: from the choices of a numeric problem, and those that differ in one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...spec.sharding import ShardingSpec
from ..model import Assigner
from ..repeated.stack import DeepPlan
from ..strategies import Way
from .one_copy import Flat, Frame


def neighbours(flat: Flat, about: Assigner) -> Iterator[Flat]:
    """Plans that differ in one way, input or hub; hubs of views go with them."""
    frame = flat.frame

    def made(ways: list[Way], lying: dict[int, ShardingSpec], hubs: dict[int, ShardingSpec]) -> Flat:
        other = Flat(frame, ways, lying, hubs)
        hubs.update((v, other.home(v)) for v in hubs if v in frame.lives.shows)
        return other

    for n, ways in enumerate(about.ways):
        for way in ways:
            if way is not flat.ways[n]:
                yield made([*flat.ways[:n], way, *flat.ways[n + 1 :]], flat.lying, dict(flat.hubs))
    for value, specs in about.inputs.items():
        for spec in specs:
            if spec != flat.lying[value]:
                yield made(flat.ways, {**flat.lying, value: spec}, dict(flat.hubs))
    for value, hub in flat.hubs.items():
        for spec in about.demands[value].routes.specs if value not in frame.lives.shows else ():
            if spec != hub:
                yield made(flat.ways, flat.lying, {**flat.hubs, value: spec})


def flat_of(frame: Frame, about: Assigner, plan: DeepPlan | Sequence[int]) -> Flat:
    """A choice for all variables, hubs included, as a flat plan of the whole graph."""
    graph = frame.graph
    hub_of = about.hub_of
    hubs: dict[int, ShardingSpec] = {}
    if isinstance(plan, DeepPlan):
        layers = plan.layers
        ways = []
        for n, layer in enumerate(layers.layer):
            variable = plan.variable(n)
            ways.append(about.ways[variable][plan.choices[layer][variable]])
        lying = {}
        for value in graph.inputs:
            small = plan.counterpart(value)
            lying[value] = about.inputs[small][plan.choices[layers.value_layer(value)][about.place[small]]]
        for v in range(len(graph.values)):
            small = plan.counterpart(v)
            if small in hub_of:
                pick = plan.choices[layers.value_layer(v)][hub_of[small]]
                hubs[v] = about.demands[small].routes.specs[pick]
        return Flat(frame, ways, lying, hubs)
    ways = [about.ways[n][plan[n]] for n in range(len(graph.nodes))]
    lying = {value: about.inputs[value][plan[about.place[value]]] for value in graph.inputs}
    for v, variable in hub_of.items():
        hubs[v] = about.demands[v].routes.specs[plan[variable]]
    return Flat(frame, ways, lying, hubs)
