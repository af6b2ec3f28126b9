"""Programs whose shardings a test says itself, without a planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright import DeviceMesh, Graph, Program, ShardingSpec
from shardwright.cost import hardware_of
from shardwright.lower import lower
from shardwright.plans import Asked, Complete
from shardwright.plans.requests import is_open
from shardwright.solve.planner import Planner


@dataclass(frozen=True)
class Said:
    """Shardings by value and by output; for some nodes the axes of their factors."""

    values: Mapping[int, ShardingSpec] = field(default_factory=dict)
    outputs: Mapping[int, ShardingSpec] = field(default_factory=dict)
    forced: Mapping[int, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lowered:
    graph: Graph
    complete: Complete
    program: Program


def compile_graph(graph: Graph, mesh: DeviceMesh, said: Said) -> Lowered:
    """Spread, completed and lowered, as `shard_map` does it."""
    requests = Asked.of(graph, mesh, ()).requests
    asked = Asked.fixing(graph, said.values, said.outputs)
    planner = Planner(graph, mesh, hardware_of("virtual"), asked.keeping((*asked.requests, *requests)))
    if said.forced:
        pins = planner.asked.pins
        complete = planner.spread(pins, {v: s for v, s in pins.items() if not is_open(s)}, dict(said.forced))
    else:
        complete = planner.said
    return Lowered(planner.graph, complete, lower(complete))
