"""`SimpleSolver`: four phases.

1. *Parse* the extractor's JSON into rules, and what the user gave into shardings (`problem`).
2. *Seed* the strategic nodes with what the other solvers' numeric problem says, or with the same at every node, and
   refine the plan as a whole: node by node other strategies are tried and kept where the cost falls (`evaluator`).
3. *Propagate* the seeds, as open shardings beside the user's closed ones, until nothing changes.
4. *Export* for every node the shardings of its operands and results.

The search is deterministic: its limits count work, not time, unless time is up before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from time import monotonic
from typing import Any

from ...cost.hardware import H100, Hardware
from ...errors import MeshError, PlanInfeasible
from ...ir.graph import Graph
from ...optimize.compact import OutOfTime
from ...plans.asked import Asked
from ...spec.mesh import DeviceMesh
from ..exact import Prepared, best_plan
from .evaluation import Evaluated, Evaluator, Forced, Plan, Specs
from .problem import Problem
from .strategies import Strategy, strategies

VISITS = 1_500
"""Node visits for trying plans in full: half a second or so."""
TRIED = 2
"""How many other strategies of a node are tried before the next node has its turn."""


@dataclass(frozen=True)
class Solution:
    """What was chosen.

    ``complete(graph, mesh, specs, rule_of, pinned=pinned, forced=forced)`` makes exactly this plan of it.
    """

    specs: Specs
    """For every value the sharding that it is left in."""
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

    ``debug`` prints through ``log`` what is considered; the lines are in `Solution.log` either way.  The search ends
    ``until`` then, by the clock `time.monotonic`.
    """

    def __init__(
        self,
        mesh: Any,
        hardware: Hardware | None = None,
        debug: bool = False,
        log: Callable[[str], object] = print,
        until: float = inf,
    ) -> None:
        self.mesh = DeviceMesh.of(mesh)
        self.until = until
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
        return _Run(problem, price, self.log if self.debug else None, self.until).run()


class _Run:
    """One problem being solved."""

    def __init__(
        self,
        problem: Problem,
        price: Callable[..., int] | None,
        log: Callable[[str], object] | None,
        until: float,
    ) -> None:
        self.problem, self.until = problem, until
        self.evaluator = Evaluator(problem, price)
        self.print = log
        self.lines: list[str] = []
        self.offered = {n: strategies(problem, n) for n in problem.strategic}

    def say(self, line: str) -> None:
        self.lines.append(line)
        if self.print is not None:
            self.print(line)

    def run(self) -> Solution:
        for warning in self.problem.warnings:
            self.say(warning)
        plan = self.choose()
        if self.evaluator(plan).excess:
            raise self.too_big(self.evaluator(plan))
        for n in self.problem.strategic:
            self.explain(plan, n)
        specs, iterations = self.evaluator.fixed_point(plan, self.say)
        return self.export(plan, self.evaluator.finish(plan, specs), iterations)

    # -- phase 2: seeds ---------------------------------------------------------------------------------

    def choose(self) -> Plan:
        """Seed and refine; where that does not fit, again with seeds that do."""
        plan = self.refine(min(self.starts(), key=lambda start: self.evaluator(start).key))
        if self.evaluator(plan).excess:
            other = self.refine(self.seed(self.problem.hardware.memory))
            plan = min(plan, other, key=lambda one: self.evaluator(one).key)
        return plan

    def starts(self) -> Iterator[Plan]:
        """As many as there is time for."""
        yield self.seed(None)
        yield from takewhile(lambda _: monotonic() <= self.until, uniform(self.offered))

    def seed(self, memory: int | None) -> Plan:
        """What the numeric problem of all strategies says, solved by message passing."""
        problem = self.problem
        asked = Asked.fixing(problem.graph, problem.given, problem.out_specs, memory)
        asked = replace(asked, stays=True)  # as completion delivers outputs
        left = None if self.until == inf else max(0.1, self.until - monotonic())
        about = problem.graph, problem.mesh, problem.hardware, asked
        try:
            found = best_plan(*about, rough=True, time_limit=left, prepared=Prepared(*about, self.until))
        except (PlanInfeasible, OutOfTime):
            return {n: offered[0] for n, offered in self.offered.items()}
        axes = {n: found.complete.decisions[n].axes for n in self.offered}
        return {n: next((s for s in all if s.axes == axes[n]), all[0]) for n, all in self.offered.items()}

    def others(self, plan: Plan, n: int) -> list[Strategy]:
        """The other strategies of a node: the quickest of each kind first."""
        others = sorted((s for s in self.offered[n] if s is not plan[n]), key=lambda strategy: strategy.time)
        first = {id(s): s for kind in (_is_data, _is_model) for s in [next(filter(kind, others), None)] if s}
        return [*first.values(), *(s for s in others if id(s) not in first)]

    def refine(self, plan: Plan) -> Plan:
        """Descend by the cost of the completed plan, or the caller's price, one node at a time (coordinate descent).

        A few other strategies of each node are tried first; where none is better, the next few.
        """
        limit = len(self.evaluator.tried) + max(1, VISITS // max(1, len(self.problem.graph.nodes)))
        depth = 0
        while True:
            changed = left = False
            for n in self.offered:
                others = self.others(plan, n)[depth : depth + TRIED]
                left |= bool(others)
                for strategy in others:
                    if len(self.evaluator.tried) >= limit or monotonic() > self.until:
                        return plan
                    other = {**plan, n: strategy}
                    if self.evaluator(other).key < self.evaluator(plan).key:
                        plan, changed = other, True
            if not changed and not left:
                return plan
            depth = 0 if changed else depth + TRIED

    def explain(self, plan: Plan, n: int) -> None:
        """What the program costs with this node split over data or the model, where that was tried, and what was
        selected."""
        costs = {}
        for kind in (_is_data, _is_model):
            tried = [self.evaluator.known({**plan, n: strategy}) for strategy in self.offered[n] if kind(strategy)]
            costs[kind] = min((found.cost for found in tried if found is not None), default=inf)
        self.say(f"[Solver] Analyzing Node {n}: {self.problem.graph.nodes[n].op}")
        self.say(f"  > Costs: DP={costs[_is_data]:.2e}, MP={costs[_is_model]:.2e}")
        self.say(f"  > Selected Strategy: {plan[n].text}")

    # -- phase 4: export --------------------------------------------------------------------------------

    def export(self, plan: Plan, done: Evaluated, iterations: int) -> Solution:
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
            forced=self.evaluator.forced(plan),
            pinned=done.pinned,
            compute=done.parts.compute,
            communication=done.parts.communication,
            memory=done.peak,
        )

    def too_big(self, done: Evaluated) -> PlanInfeasible:
        problem = self.problem
        graph = problem.graph
        sizes = {value: problem.held(value, spec) for value, spec in done.specs.items()}
        rows = [
            ("memory", f"{problem.hardware.memory} bytes on a device ({problem.hardware.name})"),
            ("needs", f"{done.peak} bytes at the peak"),
        ]
        for value in sorted(sizes, key=lambda value: (-sizes[value], value))[:3]:
            who = "user" if value in problem.given else "value"
            rows.append((who, f"%{graph.values[value].name} = {done.specs[value]}, {sizes[value]} bytes"))
        return PlanInfeasible(
            "no plan was found that fits in memory",
            rows=rows,
            help="shard what you gave replicated, use more devices, or allow more memory",
        )


def uniform(offered: Mapping[int, tuple[Strategy, ...]]) -> list[Plan]:
    """Plans in which every node does alike, as far as it can, and is else replicated; among them nothing split."""
    texts = dict.fromkeys(strategy.text for each in offered.values() for strategy in each)
    return [{n: next((s for s in each if s.text == text), each[0]) for n, each in offered.items()} for text in texts]


def _is_data(strategy: Strategy) -> bool:
    return strategy.is_data


def _is_model(strategy: Strategy) -> bool:
    return strategy.is_model
