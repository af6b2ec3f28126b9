"""What ``shard_map(auto_sharding=True, debug=True)`` prints of the planner's decisions.

Each op that does arithmetic is shown with what the whole program costs if it is split data parallel or model parallel,
all else being chosen anew, and with what the plan does; then the plan's shardings are spread until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic

from ..errors import PlanInfeasible
from ..plans.complete import Decision
from ..plans.plan import Plan
from ..solve.planner import Planner
from ..solve.simple.evaluation import Evaluator
from ..solve.simple.problem import Problem as SimpleProblem
from ..solve.simple.strategies import DATA, MODEL, Strategy, describe
from ..solve.strategies import Way

SHOWING = 20.0
"""Seconds that may go into figures; what is not known by then is infinite."""
SHOWN = 3
"""So many results of each kind are tried for an op, the quickest strategies first."""
Say = Callable[[str], None]


def show_decisions(planner: Planner, plan: Plan, say: Say) -> None:
    """Print how a plan splits the ops that matter."""
    _Shown(planner, plan, say).run()


class _Shown:
    """The lines of one plan."""

    def __init__(self, planner: Planner, best: Plan, say: Say) -> None:
        self.planner, self.best, self.say = planner, best, say
        asked = planner.asked
        self.simple = SimpleProblem.parse(
            planner.graph, planner.mesh, dict(asked.pins), dict(asked.outs), planner.hardware
        )
        self.space = planner.whole.space
        self.end = monotonic() + SHOWING

    def run(self) -> None:
        for warning in self.simple.warnings:
            self.say(warning)
        plan: dict[int, Strategy] = {}
        for n in self.simple.strategic:
            decision = self.best.complete.decisions[n]
            if decision.rule is None:
                continue
            kinds, text = describe(decision.rule, self.planner.mesh, decision.axes)
            self.say(f"[Solver] Analyzing Node {n}: {self.planner.graph.nodes[n].op}")
            costs = {kind: self.cost(n, kind) for kind in (DATA, MODEL)}
            ours = float(self.best.cost.objective)
            costs = {kind: min(cost, ours) if _is(kind, kinds) else cost for kind, cost in costs.items()}
            self.say(f"  > Costs: DP={costs[DATA]:.2e}, MP={costs[MODEL]:.2e}")
            self.say(f"  > Selected Strategy: {text}")
            plan[n] = Strategy(decision.axes, decision.operands, decision.results, kinds, text)
        Evaluator(self.simple, None).fixed_point(plan, self.say)

    def cost(self, n: int, kind: str) -> float:
        """What the program costs with a node split so, all else chosen anew; infinite if it cannot be."""
        planner = self.planner
        allows = planner.asked.allows
        ways = [way for way in self.space.ways(n) if self.is_kind(n, way, kind)]
        result = planner.graph.nodes[n].results[0]
        found = inf
        for way in sorted(ways, key=lambda way: way.time)[:SHOWN]:
            left = self.end - monotonic()
            spec = way.results[0].closed()
            if left <= 0 or result in planner.asked.given or (allows and not allows(result, spec)):
                continue
            try:
                made = planner.assigned({result: spec}, False, "auto", left)
            except PlanInfeasible:
                continue
            if self.is_kind(n, made.complete.decisions[n], kind):
                found = min(found, float(made.cost.objective))
        return found

    def is_kind(self, n: int, way: Way | Decision, kind: str) -> bool:
        rule = self.space.rules[n]
        return rule is not None and _is(kind, describe(rule, self.planner.mesh, way.axes)[0])


def _is(kind: str, kinds: frozenset[str]) -> bool:
    """Data parallel is that alone; model parallel may be both."""
    return kinds == {DATA} if kind == DATA else MODEL in kinds
