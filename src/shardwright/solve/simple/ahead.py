"""What a value between two seeds is wanted in: looked up at the seed that reads it, and brought back.

An op that is no seed would take whatever is cheapest for itself, and its reader would have to gather again what was
cut for free.  So its result is followed along first readers to the seed that needs it in the end; what that seed's
strategy needs there is projected back, op by op.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...propagation.choices import legal_axes
from ...propagation.project import project
from ...spec.axes import Axes
from ...spec.factors import FactorSharding
from ...spec.sharding import ShardingSpec
from .problem import Problem
from .strategies import Strategy

Place = tuple[int, int]
"""A node and one of its operands."""


class Ahead:
    """Wants of one problem; the paths to the seeds do not depend on the plan."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._back: dict[tuple[int, int, ShardingSpec], ShardingSpec] = {}

    @cached_property
    def paths(self) -> dict[int, tuple[tuple[Place, ...], Place]]:
        """By value that no seed makes: the ops on the way, and the seed that reads it in the end."""
        graph, seeds = self.problem.graph, set(self.problem.strategic)
        found: dict[int, tuple[tuple[Place, ...], Place]] = {}
        for value in reversed(graph.values):
            if value.producer is None or not graph.uses[value.id]:
                continue
            reader = graph.uses[value.id][0]
            place = reader, graph.nodes[reader].inputs.index(value.id)
            if reader in seeds:
                found[value.id] = (), place
            elif self.problem.rules[reader] is not None and len(graph.nodes[reader].results) == 1:
                further = found.get(graph.nodes[reader].results[0])
                if further is not None:
                    found[value.id] = (place, *further[0]), further[1]
        return {value: path for value, path in found.items() if graph.node_of(value) not in seeds}

    @cached_property
    def begins(self) -> dict[int, int]:
        """By seed: the first node whose result is made with an eye on it, or itself."""
        found = {n: n for n in self.problem.strategic}
        for value, (_, (seed, _)) in self.paths.items():
            maker = self.problem.graph.node_of(value)
            if maker is not None:
                found[seed] = min(found[seed], maker)
        return found

    def want(self, value: int, plan: Mapping[int, Strategy]) -> ShardingSpec | None:
        """What a value is wanted in under a plan; None if nobody says."""
        path = self.paths.get(value)
        if path is None or path[1][0] not in plan:
            return None
        seed, operand = path[1]
        spec = plan[seed].operands[operand]
        for place in reversed(path[0]):
            spec = self.back(place, spec)
        return spec

    def back(self, place: Place, spec: ShardingSpec) -> ShardingSpec:
        """From the sharding of a node's result to that of one of its operands."""
        found = self._back.get((*place, spec))
        if found is None:
            rule = self.problem.rules[place[0]]
            assert rule is not None
            axes: list[Axes] = [()] * len(rule.factors)
            for f, factor in project(rule.results[0], spec, rule.sizes).factors.items():
                axes[f] = factor.axes
            split = FactorSharding(rule, self.problem.mesh, legal_axes(rule, axes))
            found = self._back[(*place, spec)] = self.problem.same(split.operand_specs[place[1]])
        return found
