"""`SimpleSolver`: four phases and a local search.

1. *Parse* the extractor's JSON into rules, and what the user gave into shardings (`problem`).
2. *Seed* the strategic nodes: every mesh axis may go to any factor; a beam in program order finds a cheap plan that
   fits in memory, and plans that do the same at every node are tried beside it (`walk`).  Then the plan as a whole is
   refined: node by node the other strategies are tried and kept where the cost falls (`trial`).
3. *Propagate* the seeds, as open shardings beside the user's closed ones, until nothing changes.
4. *Export* for every node the shardings of its operands and results.

The search is deterministic: its limits count work, not time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ...cost.hardware import H100, Hardware
from ...errors import MeshError, PlanInfeasible
from ...ir.graph import Graph
from ...spec.mesh import DeviceMesh
from .problem import Problem
from .strategies import Strategy, strategies
from .trial import Forced, Plan, Specs, Trial, Tried
from .walk import WINDOW, Around, Key, Walker

MOST_ITERATIONS = 100
WALK_VISITS = 30_000
"""Node visits that the fast local search may spend."""
EXACT_VISITS = 100
"""Node visits for trying plans in full; a visit costs some 50 times one of the fast kind."""
PRICED_VISITS = 600
"""The same where the caller brings a price."""
TRIED = 2
"""How many other strategies of a node are tried in full before the next node has its turn."""
STARTS = 2
"""How many plans that do the same everywhere are a start for the search, beside the beam's."""
MOST_WEIGHTS = 8
"""How often the price of memory is raised where a plan does not fit."""


@dataclass(frozen=True)
class Solution:
    """What was chosen.

    ``complete(graph, mesh, specs, rule_of, pinned=pinned, forced=forced)`` makes exactly this plan of it.
    """

    specs: Specs
    """For every value where it lives."""
    nodes: dict[int, dict[str, Any]]
    """For every node its strategy and the shardings of its operands and results, as text."""
    cost: int
    """Picoseconds, or what the caller's price says."""
    log: tuple[str, ...]
    iterations: int
    forced: Forced = field(default_factory=dict)
    """Axes by factor for the nodes that were seeded."""
    pinned: Specs = field(default_factory=dict)
    """What the user said, where it was left open filled in."""
    compute: int = 0
    communication: int = 0
    memory: int = 0
    """Peak bytes of a device."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, node by node."""
        return {
            "cost": self.cost,
            "compute": self.compute,
            "communication": self.communication,
            "memory": self.memory,
            "iterations": self.iterations,
            "values": {str(value): str(spec) for value, spec in sorted(self.specs.items())},
            "nodes": {str(n): node for n, node in sorted(self.nodes.items())},
        }


def solve(
    program: Graph | Mapping[str, Any] | str,
    mesh: Any,
    given: Mapping[int, Any] | Mapping[str, Any] | None = None,
    *,
    out_specs: Mapping[int, Any] | None = None,
    hardware: Hardware | None = None,
    price: Callable[..., int] | None = None,
    debug: bool = False,
    log: Callable[[str], object] = print,
) -> Solution:
    """Choose shardings for a program; see `SimpleSolver.solve`.

    >>> graph = Graph.parse("graph f(%x: f32[65536, 64], %w: f32[64, 64]) {"
    ...                     "%y = matmul(%x, %w) : f32[65536, 64] return %y }")
    >>> solution = solve(graph, "d=8", debug=True)
    [Solver] Analyzing Node 0: matmul
      > Costs: DP=5.81e+06, MP=9.27e+06
      > Selected Strategy: Data Parallel (Split M)
    [Solver] Propagation iteration 1: changed=True
    [Solver] Propagation iteration 2: changed=False
    [Solver] Fixed-point reached after 2 iterations
    >>> solution.nodes[0]["operands"], solution.nodes[0]["results"]
    (['[d, _]', '[_, _]'], ['[d, _]'])
    """
    solver = SimpleSolver(mesh, hardware, debug=debug, log=log)
    return solver.solve(program, given=given, out_specs=out_specs, price=price)


class SimpleSolver:
    """Data parallel, model parallel or both, chosen by cost.

    ``debug`` prints through ``log`` what is considered; the lines are in `Solution.log` either way.
    """

    def __init__(
        self,
        mesh: Any,
        hardware: Hardware | None = None,
        debug: bool = False,
        log: Callable[[str], object] = print,
    ) -> None:
        self.mesh = DeviceMesh.of(mesh)
        self.hardware = hardware or H100
        self.debug = debug
        self.log = log

    def solve(
        self,
        program: Graph | Mapping[str, Any] | str,
        mesh: Any = None,
        given: Mapping[int, Any] | Mapping[str, Any] | None = None,
        *,
        out_specs: Mapping[int, Any] | None = None,
        price: Callable[..., int] | None = None,
    ) -> Solution:
        """A graph, or its JSON, with the user's shardings by value (or name) and by output; on the solver's mesh.

        ``price(specs)`` or ``price(specs, forced)`` replaces the solver's own estimate in the search, for example by
        the cost of the lowered Program.  One that cannot see ``forced`` gets a plan without.
        """
        if mesh is not None and DeviceMesh.of(mesh) != self.mesh:
            raise MeshError(
                "the solver was made for another mesh",
                rows=[("its mesh", str(self.mesh)), ("this mesh", str(DeviceMesh.of(mesh)))],
            )
        problem = Problem.parse(program, self.mesh, given, out_specs, self.hardware)
        return _Run(problem, price, self.log if self.debug else None).run()


class _Run:
    """One problem being solved."""

    def __init__(self, problem: Problem, price: Callable[..., int] | None, log: Callable[[str], object] | None) -> None:
        self.problem = problem
        self.trial = Trial(problem, price)
        self.priced = price is not None
        self.print = log
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)
        if self.print is not None:
            self.print(line)

    def run(self) -> Solution:
        for warning in self.problem.warnings:
            self.say(warning)
        problem = self.problem
        walker = Walker(problem, {n: strategies(problem, n) for n in problem.strategic})
        plan = self.choose(walker)
        if self.trial(plan).excess:
            raise self.too_big(self.trial(plan))
        here = walker.around(plan)
        for n in problem.strategic:
            self.explain(here, n)
        specs, iterations = self.fixed_point(plan)
        return self.export(plan, self.trial.finish(plan, specs), iterations)

    # -- phase 2: seeds ---------------------------------------------------------------------------------

    def choose(self, walker: Walker) -> Plan:
        """Seed and refine; where that does not fit, again with an ever higher price on memory."""
        alike = sorted(walker.uniform(), key=lambda start: walker.key(walker.walk(start)))
        found = [self.search(walker, start) for start in (walker.beam(), *alike[:STARTS])]
        found.sort(key=lambda start: walker.key(walker.walk(start)))
        # A price may see things otherwise than the walk: show it the plain plans too.
        starts = [*found, *alike] if self.priced else found[:STARTS]
        plan = self.refine(walker, min(starts, key=lambda start: self.trial(start).key))
        best = self.trial(plan)
        weight = max(1, (best.sketch.cost << 10) // self.problem.hardware.memory)
        for _ in range(MOST_WEIGHTS):
            if not best.excess:
                return plan
            other = walker.beam(weight)
            if self.trial(other).key < best.key:
                plan = self.refine(walker, other)
                best = self.trial(plan)
            weight *= 4
        return plan

    def search(self, walker: Walker, plan: Plan) -> Plan:
        """Descend by the fast estimate, one node at a time."""
        here = walker.around(plan)
        visits = WALK_VISITS
        changed = True
        while changed:
            changed = False
            for n in walker.offered:
                visits -= len(walker.offered[n]) * min(WINDOW, walker.count)
                if visits < 0:
                    return dict(here.plan)
                others = self.others(here, n)
                if others and others[0][0] < here.key:
                    there = walker.around({**here.plan, n: others[0][1]})
                    if there.key < here.key:
                        here, changed = there, True
        return dict(here.plan)

    def refine(self, walker: Walker, plan: Plan) -> Plan:
        """Descend by the cost of the completed plan, or the caller's price.

        A few other strategies of each node are tried first, the most promising; then the next few.
        """
        visits = PRICED_VISITS if self.priced else EXACT_VISITS
        limit = self.trial.count + max(1, visits // max(1, walker.count))
        best = self.trial(plan).key
        depth = 0
        while True:
            changed = left = False
            for n in walker.offered:
                others = self.others(walker.around(plan), n)[depth : depth + TRIED]
                left |= bool(others)
                for _, strategy in others:
                    if self.trial.count >= limit:
                        return plan
                    key = self.trial({**plan, n: strategy}).key
                    if key < best:
                        plan, best, changed = {**plan, n: strategy}, key, True
            if not changed and not left:
                return plan
            depth = 0 if changed else depth + TRIED

    def others(self, here: Around, n: int) -> list[tuple[Key, Strategy]]:
        """The other strategies of a node by the fast estimate of the whole plan, the best first."""
        offered = here.walker.offered[n]
        ranked = sorted(
            (here.with_other(n, strategy), i) for i, strategy in enumerate(offered) if strategy is not here.plan[n]
        )
        return [(key, offered[i]) for key, i in ranked]

    def explain(self, here: Around, n: int) -> None:
        """What the program costs with this node split one way or the other, and what was selected."""
        plan = dict(here.plan)
        ranked = [(cost, strategy) for (_, cost), strategy in self.others(here, n)]
        selected = here.whole.cost
        if self.priced or any(cost < selected for cost, _ in ranked):
            # The fast estimate did not decide: show what did.
            shown = [next((s for _, s in ranked if wanted(s)), None) for wanted in (_is_data, _is_model)]
            ranked = [(self.trial({**plan, n: s}).cost, s) for s in shown if s is not None]
            selected = self.trial(plan).cost
        ranked.append((selected, plan[n]))
        data = min((cost for cost, strategy in ranked if strategy.is_data), default=inf)
        model = min((cost for cost, strategy in ranked if strategy.is_model), default=inf)
        self.say(f"[Solver] Analyzing Node {n}: {self.problem.graph.nodes[n].op}")
        self.say(f"  > Costs: DP={data:.2e}, MP={model:.2e}")
        self.say(f"  > Selected Strategy: {plan[n].text}")

    # -- phase 3: propagation ---------------------------------------------------------------------------

    def fixed_point(self, plan: Plan) -> tuple[Specs, int]:
        specs = self.trial.seeds(plan)
        for iteration in range(1, MOST_ITERATIONS + 1):
            found = self.trial.propagate(specs)
            changed = found != specs
            self.say(f"[Solver] Propagation iteration {iteration}: changed={changed}")
            specs = found
            if not changed:
                self.say(f"[Solver] Fixed-point reached after {iteration} iterations")
                return specs, iteration
        self.say(f"[Solver] WARNING: Did not converge after {MOST_ITERATIONS} iterations")
        return specs, MOST_ITERATIONS

    # -- phase 4: export --------------------------------------------------------------------------------

    def export(self, plan: Plan, done: Tried, iterations: int) -> Solution:
        graph = self.problem.graph
        nodes: dict[int, dict[str, Any]] = {}
        for decision in done.complete.decisions:
            node = graph.nodes[decision.node]
            nodes[decision.node] = {
                "op": node.op,
                "strategy": plan[decision.node].text if decision.node in plan else "Propagated",
                "rule": str(decision),
                "operands": [str(spec.closed()) for spec in decision.operands],
                "results": [str(spec.closed()) for spec in decision.homes],
            }
        return Solution(
            specs=done.specs,
            nodes=nodes,
            cost=done.cost,
            log=tuple(self.lines),
            iterations=iterations,
            forced=self.trial.forced(plan),
            pinned=done.pinned,
            compute=done.sketch.compute,
            communication=done.sketch.communication,
            memory=done.sketch.peak,
        )

    def too_big(self, done: Tried) -> PlanInfeasible:
        problem = self.problem
        graph = problem.graph
        sizes = {value: problem.held(value, spec) for value, spec in done.specs.items()}
        rows = [
            ("memory", f"{problem.hardware.memory} bytes on a device ({problem.hardware.name})"),
            ("needs", f"{done.sketch.peak} bytes at the peak"),
        ]
        for value in sorted(sizes, key=lambda value: (-sizes[value], value))[:3]:
            who = "user" if value in problem.given else "value"
            rows.append((who, f"%{graph.values[value].name} = {done.specs[value]}, {sizes[value]} bytes"))
        return PlanInfeasible(
            "no plan was found that fits in memory",
            rows=rows,
            help="shard what you gave replicated, use more devices, or allow more memory",
        )


def _is_data(strategy: Strategy) -> bool:
    return strategy.is_data


def _is_model(strategy: Strategy) -> bool:
    return strategy.is_model
