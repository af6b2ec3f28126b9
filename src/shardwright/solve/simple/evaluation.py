"""A plan tried out: seeds spread by propagation, every operand fixed, the whole lowered and priced.

A plan is a strategy for each strategic node.  This is what the search compares, and in the end what is exported; the
same plan is tried once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...cost.profile import program_memory
from ...cost.program import ProgramCost
from ...lower import lower
from ...plans.complete import Complete
from ...propagation.choices import legal_axes, legal_spec
from ...propagation.complete import complete
from ...propagation.engine import run_hierarchical_propagation_pass
from ...propagation.project import project
from ...spec.axes import Axes
from ...spec.factors import FactorSharding
from ...spec.sharding import OPEN, DimSpec, ShardingSpec
from ..price import price
from .problem import Problem
from .strategies import Strategy

MOST_ITERATIONS = 100
"""Of propagation; it ends after two or three."""
Specs = dict[int, ShardingSpec]
Forced = dict[int, tuple[Axes, ...]]
Plan = dict[int, Strategy]


@dataclass(frozen=True)
class Evaluated:
    """A plan, propagated, completed, lowered and priced."""

    specs: Specs
    """For every value where it lives, finished."""
    pinned: Specs
    complete: Complete
    parts: ProgramCost
    peak: int
    cost: int
    excess: int
    """Bytes at the peak beyond what a device has."""

    @property
    def key(self) -> tuple[int, int]:
        """What does not fit comes last."""
        return self.excess, self.cost


class Evaluator:
    """Tries plans for one problem."""

    def __init__(self, problem: Problem, judge: Callable[..., int] | None) -> None:
        self.problem = problem
        self.judge = judge
        self.forcing = judge is None or sees_forced(judge)
        """A price that cannot see forced axes must not be given a plan that needs them."""
        self.tried: dict[tuple[tuple[Axes, ...], ...], Evaluated] = {}

    def __call__(self, plan: Plan) -> Evaluated:
        found = self.known(plan)
        if found is None:
            found = self.tried[self.key(plan)] = self.finish(plan, self.propagate(self.seeds(plan)))
        return found

    def key(self, plan: Plan) -> tuple[tuple[Axes, ...], ...]:
        return tuple(plan[n].axes for n in self.problem.strategic)

    def known(self, plan: Plan) -> Evaluated | None:
        """What was found of a plan, if it was tried."""
        return self.tried.get(self.key(plan))

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
        for value, want in self.wants(plan).items():
            spec = self.open(want)  # only what is kept off: the axes themselves come by propagation
            found.setdefault(value, ShardingSpec.make(spec.mesh, (OPEN,) * spec.rank, (), spec.replicated))
        return found

    def wants(self, plan: Plan) -> Specs:
        """What values between two seeds are wanted in: as the seed needs it that reads them in the end, along first
        readers, projected back op by op.

        An op that is no seed would else take whatever is cheapest for itself, and its reader gather it again.
        """
        graph = self.problem.graph
        found: Specs = {}
        for value in reversed(graph.values):
            if value.producer is None or not graph.uses[value.id]:
                continue
            n = graph.uses[value.id][0]
            node, rule = graph.nodes[n], self.problem.rules[n]
            place = node.inputs.index(value.id)
            if n in plan:
                found[value.id] = plan[n].operands[place]
            elif rule is not None and len(node.results) == 1 and node.results[0] in found:
                axes: list[Axes] = [()] * len(rule.factors)
                for f, factor in project(rule.results[0], found[node.results[0]], rule.sizes).factors.items():
                    axes[f] = factor.axes
                split = FactorSharding(rule, self.problem.mesh, legal_axes(rule, axes))
                found[value.id] = split.operand_specs[place]
        return {value: spec for value, spec in found.items() if graph.node_of(value) not in plan}

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

    def fixed_point(self, plan: Plan, say: Callable[[str], object]) -> tuple[Specs, int]:
        """A plan's seeds propagated until nothing changes, and how often; each time is said."""
        specs = self.seeds(plan)
        for iteration in range(1, MOST_ITERATIONS + 1):
            found = self.propagate(specs)
            changed = found != specs
            say(f"[Solver] Propagation iteration {iteration}: changed={changed}")
            specs = found
            if not changed:
                say(f"[Solver] Fixed-point reached after {iteration} iterations")
                return specs, iteration
        say(f"[Solver] WARNING: Did not converge after {MOST_ITERATIONS} iterations")
        return specs, MOST_ITERATIONS

    def finish(self, plan: Plan, specs: Specs) -> Evaluated:
        """Complete a propagated plan, lower and price it."""
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
        parts, peak = price(done, problem.hardware), program_memory(lower(done))
        homes = self.homes(specs, done)
        if self.judge is None:
            cost = parts.total
        else:
            cost = self.judge(homes, forced) if self.forcing else self.judge(homes)
        return Evaluated(homes, pinned, done, parts, peak, cost, max(0, peak - problem.hardware.memory))

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
