"""A plan tried out: seeds spread by propagation, every operand fixed, the whole priced.

A plan is a strategy for each strategic node.  This is what the search compares, and in the end what is exported; the
same plan is tried once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...propagation.choices import legal_spec
from ...propagation.complete import Complete, complete
from ...propagation.engine import run_hierarchical_propagation_pass
from ...spec.axes import Axes
from ...spec.sharding import OPEN, DimSpec, ShardingSpec
from .ahead import Ahead
from .problem import Problem
from .sketch import Sketch, sketch
from .strategies import Strategy

Specs = dict[int, ShardingSpec]
Forced = dict[int, tuple[Axes, ...]]
Plan = dict[int, Strategy]


@dataclass(frozen=True)
class Tried:
    """A plan, propagated, completed and priced."""

    specs: Specs
    """For every value where it lives, finished."""
    pinned: Specs
    complete: Complete
    sketch: Sketch
    cost: int
    excess: int
    """Bytes at the peak beyond what a device has."""

    @property
    def key(self) -> tuple[int, int]:
        """What does not fit comes last."""
        return self.excess, self.cost


class Trial:
    """Tries plans for one problem."""

    def __init__(self, problem: Problem, price: Callable[..., int] | None) -> None:
        self.problem = problem
        self.price = price
        self.forcing = price is None or sees_forced(price)
        """A price that cannot see forced axes must not be given a plan that needs them."""
        self.ahead = Ahead(problem)
        self._known: dict[tuple[tuple[Axes, ...], ...], Tried] = {}

    def __call__(self, plan: Plan) -> Tried:
        key = tuple(plan[n].axes for n in self.problem.strategic)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.finish(plan, self.propagate(self.seeds(plan)))
        return found

    @property
    def count(self) -> int:
        """How many plans were tried."""
        return len(self._known)

    def seeds(self, plan: Plan) -> Specs:
        """Open shardings for the operands of seeded nodes: whoever comes first decides, the user before all."""
        found: Specs = dict(self.problem.given)
        for n, strategy in plan.items():
            node = self.problem.graph.nodes[n]
            follows = True
            for value, spec in zip(node.inputs, strategy.operands):
                follows &= found.setdefault(value, self.open(spec)).same_layout(spec)
            if not follows:  # the sharding of the result cannot be read off the operands'
                for value, spec in zip(node.results, strategy.results):
                    found.setdefault(value, self.open(spec))
        for value in self.ahead.paths:
            want = self.ahead.want(value, plan)
            if want is not None and value not in found:
                found[value] = self.uncut(self.open(want))
        return found

    def uncut(self, spec: ShardingSpec) -> ShardingSpec:
        """Only what is kept off: the axes themselves come by propagation."""
        return ShardingSpec.make(spec.mesh, (OPEN,) * spec.rank, (), spec.replicated)

    def open(self, spec: ShardingSpec) -> ShardingSpec:
        """Axes that a strategy does not put on a tensor are kept off it.

        Otherwise propagation would cut it further, and the op would have to gather it again.
        """
        mesh, used = self.problem.mesh, spec.used_axes
        dims = tuple(DimSpec(dim.axes, open=True) for dim in spec.dims)
        kept_off = tuple(axis for axis in mesh.axes if not any(axis.overlaps(other) for other in used))
        return ShardingSpec.make(mesh, dims, (), kept_off)

    def propagate(self, specs: Mapping[int, ShardingSpec]) -> Specs:
        problem = self.problem
        found = run_hierarchical_propagation_pass(problem.graph, specs, problem.rule_of, out_specs=problem.out_specs)
        return {value: spec for value, spec in enumerate(found.specs) if spec is not None}

    def finish(self, plan: Plan, specs: Specs) -> Tried:
        """Complete a propagated plan and price it."""
        problem = self.problem
        pinned, forced = self.pinned(specs), self.forced(plan)
        done = complete(
            problem.graph,
            problem.mesh,
            [specs.get(value.id) for value in problem.graph.values],
            problem.rule_of,
            pinned=pinned,
            out_specs=problem.out_specs,
            forced=forced,
        )
        drawn = sketch(problem, done)
        homes = self.homes(specs, done)
        if self.price is None:
            cost = drawn.cost
        else:
            cost = self.price(homes, forced) if self.forcing else self.price(homes)
        return Tried(homes, pinned, done, drawn, cost, max(0, drawn.peak - problem.hardware.memory))

    def forced(self, plan: Plan) -> Forced:
        return {n: strategy.axes for n, strategy in plan.items()} if self.forcing else {}

    def pinned(self, specs: Mapping[int, ShardingSpec]) -> Specs:
        """The user's shardings; dims left open are filled in as propagation found."""
        found: Specs = {}
        for value, spec in self.problem.given.items():
            is_open = any(dim.open for dim in spec.dims)
            found[value] = legal_spec(specs[value], self.problem.graph.type(value).shape) if is_open else spec.closed()
        return found

    def homes(self, specs: Specs, done: Complete) -> Specs:
        """Every value: as propagated, else as its node leaves it, finished."""
        graph, mesh = self.problem.graph, self.problem.mesh
        made = dict(zip(graph.inputs, done.inputs))
        for decision in done.decisions:
            made.update(zip(graph.nodes[decision.node].results, decision.homes))
        found = {value: ShardingSpec.make(mesh, spec.closed().dims) for value, spec in made.items()}
        for value, spec in specs.items():
            found[value] = legal_spec(spec, graph.type(value).shape)
        return {value: found[value] for value in sorted(found)}


def sees_forced(price: Callable[..., int]) -> bool:
    """Whether a price takes a second argument.

    >>> sees_forced(lambda specs: 0), sees_forced(lambda specs, forced: 0)
    (False, True)
    """
    try:
        inspect.signature(price).bind({}, {})
    except TypeError:
        return False
    return True
