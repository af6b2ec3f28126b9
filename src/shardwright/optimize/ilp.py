"""The integer program, by HiGHS; the only file that knows it.

One variable x per strategy and one variable y per allowed pair of an edge:

    sum_s x[i,s] = 1                        for each node
    sum_t y[i,s,j,t] = x[i,s]               for each edge and strategy of its first node
    sum_s y[i,s,j,t] = x[j,t]               ... of its second
    sum_i amount_i,t(s) x[i,s] <= limit_t   for the steps that turned out to bind

The marginal rows of the edges make the relaxation as tight as message passing can, and only x must be integral.  Three
things keep it small and well scaled: costs are those left over after message passing, so most are zero and none is
negative; strategies and pairs that cost more than the best choice known leaves room for are left out; rows for
steps are added only when a solution breaks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from .fold import Mask
from .messages import HUGE, Messages
from .problem import Floats, Ints, NumericProblem

TOLERANCE = 1e-6
STEPS_AT_A_TIME = 40
"""The most steps added at a time."""
Progress = Callable[[float], None]
"""Told the bound as it rises."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an integer program said: a choice, unless none was found, and a bound on every choice."""

    choice: Ints | None
    bound: float
    """No choice in what was searched costs less; infinite if there is none."""
    finished: bool
    precision: float = 0.0
    """How far the solver's tolerances may have led both astray; the bound is already less by it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a problem that is searched: terms rearranged by message passing, and what is left out."""

    constant: float
    nodes: Floats
    edges: Sequence[Floats]
    states: Mask
    pairs: Sequence[Mask]

    @property
    def size(self) -> int:
        return int(self.states.sum()) + sum(int(mask.sum()) for mask in self.pairs)


def scope(messages: Messages, room: float = np.inf) -> Scope:
    """All that a choice may use which costs at most ``room`` more than the bound at the messages' prices."""
    total, pairs = messages.reduced()
    states = total <= min(room, HUGE / 4)
    masks = []
    for number, table in pairs:
        edge = messages.problem.edges[number]
        mask = table <= min(room, HUGE / 4)
        mask &= states[messages.of(edge.first)][:, None] & states[messages.of(edge.second)]
        masks.append(mask)
    constant, nodes, edges = messages.terms()
    return Scope(constant, nodes, edges, states, masks)


def _highs() -> Any:
    # Planning needs the solver, running a plan does not: it is loaded when first used.
    import highspy

    return highspy


class Program:
    """HiGHS's model of a scope."""

    def __init__(self, problem: NumericProblem, scope: Scope, deadline: float, threads: int = 1) -> None:
        self.problem, self.scope, self.deadline = problem, scope, deadline
        self.api = _highs()
        self.highs = self.api.Highs()
        self.highs.silent()
        for key, value in (("threads", threads), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.3), ("random_seed", 0)):
            self.highs.setOptionValue(key, value)
        self.live = np.flatnonzero(scope.states)
        self.column = np.full(scope.states.size, -1)
        self.column[self.live] = np.arange(self.live.size)
        self.owner = np.repeat(np.arange(problem.nodes), problem.sizes)[self.live]
        self.first = np.cumsum(problem.sizes) - problem.sizes
        self.seen: set[int] = set()
        found = [scope.nodes[self.live]] + [edge[mask] for edge, mask in zip(scope.edges, scope.pairs)]
        costs = np.concatenate(found)
        # The largest cost becomes 10^4, but one of the user's units stays far above the tolerances where it can.
        largest = float(costs.max(initial=0.0))
        self.scale = max(largest / 1e4, 1e-3)
        if largest < 1e9:
            self.scale = min(self.scale, 1e3)
        for key, value in (("mip_abs_gap", min(0.3, 0.5 / self.scale)), ("mip_feasibility_tolerance", 1e-9)):
            self.highs.setOptionValue(key, value)
        self.highs.passModel(self._model(costs / self.scale))

    def _model(self, costs: Floats) -> Any:
        problem, scope = self.problem, self.scope
        rows = problem.nodes
        columns, indices, values = [np.arange(self.live.size)], [self.owner], [np.ones(self.live.size)]
        at = self.live.size
        for edge, mask in zip(problem.edges, scope.pairs):
            for axis, node in ((0, edge.first), (1, edge.second)):
                place = self.column[self.first[node] : self.first[node] + problem.sizes[node]]
                here = np.flatnonzero(place >= 0)
                columns.append(place[here])
                indices.append(rows + np.arange(here.size))
                values.append(np.full(here.size, -1.0))
                number = np.full(place.size, -1)
                number[here] = rows + np.arange(here.size)
                picked = np.nonzero(mask)[axis]
                columns.append(at + np.arange(picked.size))
                indices.append(number[picked])
                values.append(np.ones(picked.size))
                rows += here.size
            at += int(mask.sum())
        self.rows = rows
        column = np.concatenate(columns)
        order = np.argsort(column, kind="stable")
        lp = self.api.HighsLp()
        lp.num_col_, lp.num_row_ = at, rows
        lp.col_cost_ = costs
        lp.col_lower_, lp.col_upper_ = np.zeros(at), np.ones(at)
        right = np.zeros(rows)
        right[: problem.nodes] = 1
        lp.row_lower_, lp.row_upper_ = right, right
        lp.a_matrix_.format_ = self.api.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.concatenate([np.zeros(1, np.int32), np.cumsum(np.bincount(column, minlength=at))])
        lp.a_matrix_.index_ = np.concatenate(indices)[order].astype(np.int32)
        lp.a_matrix_.value_ = np.concatenate(values)[order]
        return lp

    def add_steps(self, steps: Sequence[int]) -> None:
        """Add the memory rows of these steps."""
        pieces = self.problem.pieces
        for step in steps:
            here = ((pieces.start <= step) & (pieces.end > step))[pieces.owner] & (pieces.amounts > 0)
            place = self.column[pieces.state[here]]
            weights = pieces.amounts[here][place >= 0].astype(np.float64)
            place = place[place >= 0].astype(np.int32)
            unit = max(float(self.problem.limits[step]), 1.0) / 1e3
            limit = float(self.problem.limits[step]) / unit
            self.highs.addRow(-self.api.kHighsInf, limit, place.size, place, weights / unit)
            self.seen.add(int(step))

    def cover(self, choice: Ints) -> bool:
        """Rule a choice out that overflows by less than the solver sees, and all that hold no less; whether it did."""
        over = self.problem.held(choice) - self.problem.limits
        if not over.size or over.max() <= 0:
            return False
        step = int(over.argmax())
        if step not in self.seen:
            self.add_steps([step])
        columns, count = [], 0
        for usage in self.problem.usages:
            if usage.start <= step < usage.end and usage.amounts[choice[usage.node]] > 0:
                place = self.column[self.first[usage.node] + np.arange(usage.amounts.size)]
                columns.append(place[(usage.amounts >= usage.amounts[choice[usage.node]]) & (place >= 0)])
                count += 1
        index, times = np.unique(np.concatenate(columns), return_counts=True)
        self.highs.addRow(
            -self.api.kHighsInf, float(count - 1), index.size, index.astype(np.int32), times.astype(np.float64)
        )
        return True

    def broken(self, weights: Floats) -> list[int]:
        """Steps that a (fractional) solution overflows: the worst of each stretch of them, the worst first."""
        pieces = self.problem.pieces
        if not pieces.node.size:
            return []
        full = np.zeros(self.scope.states.size)
        full[self.live] = weights
        values = np.add.reduceat(pieces.amounts * full[pieces.state], pieces.at)
        change = np.zeros(pieces.steps + 1)
        np.add.at(change, pieces.start, values)
        np.subtract.at(change, pieces.end, values)
        over = np.cumsum(change)[:-1] / np.maximum(self.problem.limits, 1) - 1
        found: list[int] = []
        order = np.argsort(-over, kind="stable")
        for step in order[: 50 * STEPS_AT_A_TIME]:
            if over[step] <= TOLERANCE or len(found) >= STEPS_AT_A_TIME:
                break
            if int(step) not in self.seen and all(abs(int(step) - other) > 3 for other in found):
                found.append(int(step))
        return found

    def run(self) -> str:
        """Run until done or the deadline; HiGHS's word for how it ended."""
        self.highs.setOptionValue("time_limit", self.highs.getRunTime() + max(0.05, self.deadline - monotonic()))
        self.highs.run()
        return str(self.highs.modelStatusToString(self.highs.getModelStatus()))

    def integral(self) -> None:
        self.highs.changeColsIntegrality(
            self.live.size,
            np.arange(self.live.size, dtype=np.int32),
            np.full(self.live.size, self.api.HighsVarType.kInteger),
        )

    def start(self, choice: Ints) -> None:
        """Begin with a choice, if it lies in the scope."""
        place = self.column[self.first + choice]
        if (place < 0).any():
            return
        values = np.zeros(self.highs.getNumCol())
        values[place] = 1
        at = self.live.size
        for edge, mask in zip(self.problem.edges, self.scope.pairs):
            pair = (int(choice[edge.first]), int(choice[edge.second]))
            if not mask[pair]:
                return
            values[at + int(np.count_nonzero(mask.reshape(-1)[: pair[0] * mask.shape[1] + pair[1]]))] = 1
            at += int(mask.sum())
        solution = self.api.HighsSolution()
        solution.col_value = list(values)
        self.highs.setSolution(solution)

    def weights(self) -> Floats:
        return np.array(self.highs.getSolution().col_value[: self.live.size])

    def choice(self, weights: Floats) -> Ints:
        """The strategy with the largest weight of each node."""
        full = np.full(self.scope.states.size, -1.0)
        full[self.live] = weights
        return np.array([row.argmax() for row in np.split(full, self.first[1:])], np.int64)

    @property
    def precision(self) -> float:
        return self.scale * TOLERANCE

    def objective(self, value: float) -> float:
        """A bound in the problem's own costs."""
        return value * self.scale + self.scope.constant - self.precision


def solve(
    problem: NumericProblem,
    scope: Scope,
    deadline: float,
    start: Ints | None = None,
    progress: Progress | None = None,
    threads: int = 1,
    steps: Sequence[int] = (),
) -> Outcome:
    """The best choice in a scope: the relaxation first, then, unless it is integral, the integer program."""
    program = Program(problem, scope, deadline, threads)
    program.add_steps(steps)
    bound = scope.constant
    kept: Ints | None = None
    whole = False
    while True:
        if whole and start is not None:
            program.start(start)
        status = program.run()
        if status == "Infeasible":
            return Outcome(None, np.inf, True)
        info = program.highs.getInfo()
        found = program.weights() if info.primal_solution_status == 2 else None
        if status != "Optimal":
            if whole and np.isfinite(info.mip_dual_bound):
                bound = max(bound, program.objective(info.mip_dual_bound))
            if found is not None and whole:
                choice = program.choice(found)
                if (problem.held(choice) <= problem.limits).all():
                    kept = choice
            return Outcome(kept, bound, False)
        if found is None:
            return Outcome(None, bound, False)
        value = info.mip_dual_bound if whole else info.objective_function_value
        bound = max(bound, program.objective(value))
        if progress is not None:
            progress(bound)
        broken = program.broken(found)
        if broken:
            program.add_steps(broken)
        elif whole or _integral(found):
            choice = program.choice(found)
            if not program.cover(choice):
                return Outcome(choice, bound, True, program.precision)
        else:
            whole = True
            program.integral()
        if monotonic() > deadline:
            return Outcome(kept, bound, False)


def _integral(weights: Floats) -> bool:
    return bool((np.minimum(weights, 1 - weights) < TOLERANCE).all())
