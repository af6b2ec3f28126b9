"""``auto_sharding``: the planner inside `shard_map`, with the lines that ``debug=True`` prints.

Each op that does arithmetic is shown with what the whole program costs if it is split data parallel or model parallel,
all else being chosen anew, and with what the plan does; then the plan's shardings are spread until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic

from ..errors import PlanInfeasible
from ..ir.graph import Graph
from ..propagation.complete import Complete, Decision
from ..solve.simple.problem import Problem as SimpleProblem
from ..solve.simple.solver import MOST_ITERATIONS
from ..solve.simple.strategies import DATA, MODEL, Strategy, describe
from ..solve.simple.trial import Trial
from ..solve.strategies import Way
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .arguments import mesh_of
from .compile import Auto, Say
from .constraints import Word
from .explain import homes_of
from .problem import Problem, Solved, check_solver

SHOWING = 20.0
"""Seconds that may go into figures for ``debug``; what is not known by then is infinite."""
SHOWN = 3
"""So many results of each kind are tried for an op, the quickest ways first."""


@dataclass(frozen=True)
class Bare:
    """A program that is a graph and nothing else."""

    graph: Graph


def planned_complete(
    graph: Graph,
    mesh: DeviceMesh,
    specs: Mapping[int, ShardingSpec],
    out_specs: Mapping[int, ShardingSpec],
    auto: Auto,
    debug: bool = False,
    say: Say = print,
) -> tuple[dict[int, ShardingSpec], Complete]:
    """What the planner chooses around what the user said: shardings by value, and all of them completed."""
    check_solver(auto.solver)
    words = [Word(f"{graph.values[value].name} = {spec}", {value: spec}) for value, spec in specs.items()]
    words += [Word(f"output {i} = {spec}", outs={i: spec}) for i, spec in out_specs.items()]
    mesh_of(mesh)
    problem = Problem(Bare(graph), mesh, auto.machine.on(mesh), tuple(words), stays=True)
    try:
        found = problem.solved(auto.solver, auto.time_limit)
    except PlanInfeasible as error:
        from .infeasible import diagnosed

        raise diagnosed(problem, error, auto.solver, auto.time_limit) from None
    if debug:
        _Shown(problem, found, say).run()
    complete = found.best.complete
    homes = {value: ShardingSpec.make(mesh, spec.closed().dims) for value, spec in homes_of(complete).items()}
    return homes, complete


class _Shown:
    """The lines of one plan."""

    def __init__(self, problem: Problem, found: Solved, say: Say) -> None:
        self.problem, self.best, self.say = problem, found.best, say
        terms = problem.terms
        self.simple = SimpleProblem.parse(
            problem.graph, problem.mesh, dict(terms.pins), dict(terms.outs), problem.hardware
        )
        self.space = problem.whole.space
        self.end = monotonic() + SHOWING

    def run(self) -> None:
        for warning in self.simple.warnings:
            self.say(warning)
        plan: dict[int, Strategy] = {}
        for n in self.simple.strategic:
            decision = self.best.complete.decisions[n]
            if decision.rule is None:
                continue
            kinds, text = describe(decision.rule, self.problem.mesh, decision.axes)
            self.say(f"[Solver] Analyzing Node {n}: {self.problem.graph.nodes[n].op}")
            costs = {kind: self.cost(n, kind) for kind in (DATA, MODEL)}
            ours = float(self.best.cost.objective)
            costs = {kind: min(cost, ours) if _is(kind, kinds) else cost for kind, cost in costs.items()}
            self.say(f"  > Costs: DP={costs[DATA]:.2e}, MP={costs[MODEL]:.2e}")
            self.say(f"  > Selected Strategy: {text}")
            plan[n] = Strategy(decision.axes, decision.operands, decision.results, kinds, text, 0, 0)
        self.spread(plan)

    def cost(self, n: int, kind: str) -> float:
        """What the program costs with a node split so, all else chosen anew; infinite if it cannot be."""
        problem = self.problem
        ways = [way for way in self.space.ways(n) if self.is_kind(n, way, kind)]
        result = problem.graph.nodes[n].results[0]
        found = inf
        for way in sorted(ways, key=lambda way: way.time)[:SHOWN]:
            left = self.end - monotonic()
            spec = way.results[0].closed()
            if left <= 0 or result in problem.given or not problem.terms.allows(result, spec):
                continue
            try:
                made = problem.assigned({result: spec}, False, "auto", left)
            except PlanInfeasible:
                continue
            if self.is_kind(n, made.complete.decisions[n], kind):
                found = min(found, float(made.cost.objective))
        return found

    def is_kind(self, n: int, way: Way | Decision, kind: str) -> bool:
        rule = self.space.rules[n]
        return rule is not None and _is(kind, describe(rule, self.problem.mesh, way.axes)[0])

    def spread(self, plan: dict[int, Strategy]) -> None:
        """The plan's shardings of the ops shown, propagated until nothing changes."""
        trial = Trial(self.simple, None)
        specs = trial.seeds(plan)
        for iteration in range(1, MOST_ITERATIONS + 1):
            found = trial.propagate(specs)
            changed = found != specs
            self.say(f"[Solver] Propagation iteration {iteration}: changed={changed}")
            if not changed:
                self.say(f"[Solver] Fixed-point reached after {iteration} iterations")
                return
            specs = found
        self.say(f"[Solver] WARNING: Did not converge after {MOST_ITERATIONS} iterations")


def _is(kind: str, kinds: frozenset[str]) -> bool:
    """Data parallel is that alone; model parallel may be both."""
    return kinds == {DATA} if kind == DATA else MODEL in kinds
