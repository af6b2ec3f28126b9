"""Every plan of a small graph, lowered, ordered and simulated: what a plan and its bound are held against."""

from __future__ import annotations

from itertools import islice, product
from math import prod
from typing import NamedTuple

from shardwright import DeviceMesh, Graph
from shardwright.cost import Hardware, step_time
from shardwright.cost.program import instr_costs
from shardwright.lower import lower, ordered
from shardwright.plans import Asked
from shardwright.plans.plan import Plan
from shardwright.propagation.complete import Complete
from shardwright.solve.model import Assigner
from shardwright.solve.planner import Planner


class Held(NamedTuple):
    """A plan beside the best of all."""

    plan: Plan
    best: int
    """Picoseconds of the fastest of all plans."""
    count: int
    """Plans that were simulated."""

    @property
    def above(self) -> float:
        """How much slower the plan is than the best, as a part of that."""
        return max(self.plan.cost.objective, 1) / max(self.best, 1) - 1


def step_of(complete: Complete, hardware: Hardware) -> int:
    """Picoseconds of a step by the schedule of these decisions."""
    program, graph = lower(complete), complete.graph
    times = instr_costs(program, hardware, graph)
    return step_time(ordered(program, hardware, graph, times), hardware, graph, times).total


def held(graph: Graph, mesh: DeviceMesh, hardware: Hardware, most: int = 20_000) -> Held | None:
    """The planner's plan, and the best of all choices of strategies and of shardings of inputs; None if there are
    more than ``most``."""
    on = hardware.on(mesh)
    about = Assigner(graph, mesh, on)
    sizes = [len(ways) for ways in about.ways] + [len(about.inputs[value]) for value in graph.inputs]
    if prod(sizes) > most:
        return None
    plan = Planner(graph, mesh, on, Asked(graph)).best()
    choices = islice(product(*map(range, sizes)), most)
    return Held(plan, min(step_of(about.decode(choice), on) for choice in choices), prod(sizes))
