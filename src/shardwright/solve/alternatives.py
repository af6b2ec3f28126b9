"""What a program costs with one value sharded otherwise, all else chosen anew: many answers from one set-up.

The numeric problem is made once, and made smaller once with the value's variable left in it.  Messages then say of
every strategy by how much a plan with it exceeds the bound, at least.  For each sharding of the value first only
strategies within some room are looked at, which are few: if the best choice of those is within the room, it is the best
of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from sys import float_info
from time import monotonic

import numpy as np

from ..optimize import Progress
from ..optimize.compact import compact
from ..optimize.core import SLOW, SWEEPS, batches_of, solve_core
from ..optimize.narrow import narrow
from ..spec.sharding import ShardingSpec
from .assignment import Assignment, Optimum
from .model import FINE, POLISH, Assigner
from .readers import Extra
from .tighten import tighten

ROOMS = (1e-3, 1e-2)
"""As parts of the bound: how far beyond it plans are looked for, one after the other, before all are."""
ALL_AT_ONCE = 1e-2
"""A sharding that costs this part more leaves few strategies out; then all are looked at right away."""


class Alternatives:
    """A value of an assigner's graph, and the best plans with each sharding that it might have."""

    def __init__(self, whole: Assigner, value: int) -> None:
        self.whole, self.value = whole, value
        self.variable = whole.demands[value].decider
        self._cores: dict[bool, _Core] = {}

    def solve(self, spec: ShardingSpec, time_limit: float) -> Assignment | None:
        """The best plan in which the value is sharded so; None where it is never left so, and would have to be brought
        there.

        `PlanInfeasible` where there is no plan.
        """
        picks = [i for i, lying in enumerate(self.whole.leaves(self.value)) if lying.same_layout(spec)]
        return _Around(self, spec, picks).solve("auto", time_limit) if picks else None

    def core(self, bound: bool) -> _Core:
        """Of the bound's problem or the plan's."""
        if bound not in self._cores:
            self._cores[bound] = _Core(self.whole, self.variable, bound)
        return self._cores[bound]


class _Core:
    """A numeric problem made smaller around a variable, and how far from its bound each strategy is."""

    def __init__(self, whole: Assigner, variable: int, bound: bool) -> None:
        costs, edges, _ = whole.terms(bound)
        self.unit, self.solver = FINE if bound else 1, "auto"
        # All as one layer: then what is kept loses no strategy.
        self.small = compact(costs, edges, kept=[variable], layer=[0] * len(costs), order=whole.order)
        self.at = self.small.left.index(variable) if variable in self.small.left else None
        self.batches = batches_of(self.small.problem)
        before, self.bound = -inf, self.batches.sweep()
        for _ in range(SWEEPS):
            if self.bound - before <= SLOW * abs(self.bound):
                break
            before, self.bound = self.bound, self.batches.sweep()
        self.slack, _ = self.batches.slack()

    def best(self, picks: Sequence[int], time_limit: float | None) -> Optimum:
        """The best choice in which the variable takes one of these strategies."""
        slack, least = list(self.slack), 0.0
        if self.at is not None:
            own = slack[self.at] = np.full(slack[self.at].size, inf)
            own[list(picks)] = self.slack[self.at][list(picks)]
            least = float(own.min())
        scale = abs(self.bound)
        rooms = [least + part * scale for part in ROOMS] if least <= ALL_AT_ONCE * scale else []
        for room in (*rooms, float_info.max):
            few = narrow(self.batches, slack, room)
            links = [(link.first, link.second, link.table) for link in few.batches.links]
            small = compact([rows[0] for rows in few.batches.costs], links)
            found = solve_core(small.problem, "auto" if room in rooms else self.solver, time_limit)
            picked = [np.array([pick]) for pick in small.back(found.choice)]
            if few.batches.evaluate(picked) + few.offset <= self.bound + room:  # else what was left out may be better
                break
        if room not in rooms and found.solver == "messages":
            self.solver = "messages"  # elimination will not do it next time either
        lower = found.lower_bound + small.offset + few.offset + self.small.offset
        choice = self.small.back([int(pick[0]) for pick in few.wide(picked)])
        return Optimum(choice, -(-lower // self.unit), found.solver, found.timed_out)


class _Around(Assigner):
    """An assigner with one more sharding given; all that does not speak of it is another's."""

    def __init__(self, about: Alternatives, spec: ShardingSpec, picks: Sequence[int]) -> None:
        whole, value, graph = about.whole, about.value, about.whole.graph
        self.__dict__.update(whole.__dict__)
        self.about, self.picks = about, picks
        self.given = {**whole.given, value: spec}
        touched = [value]
        if about.variable < len(graph.nodes):
            node = graph.nodes[about.variable]
            self.ways = list(whole.ways)
            self.ways[about.variable] = self._same(tuple(whole.ways[about.variable][i] for i in picks))
            touched += [*node.inputs, *node.results]
        else:
            # Kept with the rest: what is worked out for a list is known by its identity.
            self.inputs = {**whole.inputs, value: self._once.setdefault(("alone", spec), (spec,))}
            touched += [graph.outputs[i] for i, state in whole.updates.items() if state == value]
        self.demands = list(whole.demands)
        for v in dict.fromkeys(touched):
            self.demands[v] = self._demand(v)

    def solve(self, solver: str = "auto", time_limit: float | None = None, progress: object = None) -> Assignment:
        """Of a large graph by the plan's problem alone, for which no bound is known then."""
        if sum(map(len, self.ways)) <= POLISH:
            return super().solve(solver, time_limit, progress)
        began = monotonic()
        found = self.optimum(False, solver, time_limit)
        objective = self.objective(found.choice)
        self.book.check_gathers(objective)
        tight = tighten(self, found.choice)
        seconds = monotonic() - began
        return Assignment(
            lambda: self.decode(tight), objective, 0, found.solver, found.timed_out, seconds, self.hardware
        )

    def optimum(
        self,
        bound: bool,
        solver: str = "auto",
        time_limit: float | None = None,
        tell: Callable[[Progress], None] | None = None,
        extra: Extra | None = None,
        rough: bool = False,
        narrowed: bool = True,
    ) -> Optimum:
        found = self.about.core(bound).best(self.picks, time_limit)
        choice, at = list(found.choice), self.about.variable
        choice[at] = self.picks.index(choice[at])
        return replace(found, choice=choice)
