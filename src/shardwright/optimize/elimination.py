"""Exact optimisation over a tree decomposition: one node after another is minimised out.

The node whose neighbours span the smallest table goes first: all tables that name it are added up, the minimum over
its strategies becomes a table over its neighbours, and which strategy gave it is remembered for the way back.  Time
and memory grow with the largest table; where that would exceed `TABLE` entries the problem is `TooWide`.

Memory limits are not pairwise.  They are priced (a byte at step t costs something, the limit is credited), which
keeps the problem pairwise and its optimum a bound; what then still overflows is branched on: the node that holds most
at the fullest step holds less, or it holds no less.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
import numpy.typing as npt

from ..errors import PlanInfeasible
from .fold import Mask
from .problem import NEVER, Floats, Ints, NumericProblem

TABLE = 2**22
"""The most entries of one table."""
TOTAL = 2**26
"""The most entries of all tables together."""
BRANCHES = 20_000
PRICINGS = 12
"""How often prices are raised at a branch."""


class TooWide(Exception):
    """The tables, or the branches, would be too many."""


@dataclass(frozen=True, slots=True)
class Order:
    """Nodes in the order of their elimination, each with the neighbours it then has."""

    nodes: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    largest: float
    total: float


def order(sizes: Ints, pairs: Sequence[tuple[int, int]], table: float = TABLE) -> Order:
    """Smallest table first; stops when a table grows beyond ``table``."""
    weight = np.log2(np.maximum(sizes, 1).astype(np.float64)).tolist()
    near: list[set[int]] = [set() for _ in range(sizes.size)]
    for i, j in pairs:
        near[i].add(j)
        near[j].add(i)
    spans = [weight[i] + sum(weight[j] for j in near[i]) for i in range(sizes.size)]
    heap = [(span, i) for i, span in enumerate(spans)]
    heapq.heapify(heap)
    done = [False] * sizes.size
    nodes, scopes = [], []
    largest, total = 0.0, 0.0
    while heap:
        span, node = heapq.heappop(heap)
        if done[node] or span != spans[node]:
            continue
        largest, total = max(largest, 2.0**span), total + 2.0**span
        if largest > table or total > TOTAL:
            return Order((), (), largest, total)
        done[node] = True
        scope = sorted(near[node])
        nodes.append(node)
        scopes.append(tuple(scope))
        for other in scope:
            mine = near[other]
            mine.discard(node)
            # By difference: a hub would otherwise be summed anew for each of its neighbours.
            new = [k for k in scope if k != other and k not in mine]
            mine.update(new)
            spans[other] += sum(weight[k] for k in new) - weight[node]
            heapq.heappush(heap, (spans[other], other))
    return Order(tuple(nodes), tuple(scopes), largest, total)


def minimise(plan: Order, costs: Sequence[Floats], edges: Sequence[tuple[int, int, Floats]]) -> tuple[Ints, float]:
    """The best choice and its cost along an order; forbidden entries are infinite."""
    factors: list[list[tuple[tuple[int, ...], Floats]]] = [[] for _ in costs]
    place = {node: at for at, node in enumerate(plan.nodes)}
    for i, j, table in edges:
        factors[i if place[i] < place[j] else j].append(((i, j), table))
    value = 0.0
    picks: list[npt.NDArray[np.integer]] = []
    for node, scope in zip(plan.nodes, plan.scopes):
        names = (*scope, node)
        total: Floats = costs[node]
        for held, table in factors[node]:
            total = total + _aligned(table, held, names)
        factors[node] = []
        total = np.broadcast_to(total, (*(costs[name].size for name in scope), costs[node].size))
        pick = total.argmin(-1)
        least = np.take_along_axis(total, pick[..., None], -1)[..., 0]
        picks.append(pick.astype(np.int32))
        if scope:
            first = min(scope, key=place.__getitem__)
            factors[first].append((scope, least))
        else:
            value += float(least)
    choice = np.zeros(len(costs), np.int64)
    for node, scope, pick in zip(reversed(plan.nodes), reversed(plan.scopes), reversed(picks)):
        choice[node] = pick[tuple(choice[list(scope)])] if scope else int(pick)
    return choice, value


def _aligned(table: Floats, held: tuple[int, ...], names: tuple[int, ...]) -> Floats:
    """A table with its axes put where a larger table has them."""
    at = [names.index(name) for name in held]
    table = table.transpose(np.argsort(at))
    shape = [1] * len(names)
    for axis, size in zip(sorted(at), table.shape):
        shape[axis] = size
    return table.reshape(shape)


@dataclass(frozen=True, slots=True)
class Found:
    """The best choice, if any was found, and a bound on all of them."""

    choice: Ints | None
    bound: float
    finished: bool


def solve(problem: NumericProblem, deadline: float = np.inf, start: Ints | None = None) -> Found:
    """The optimum.  Raises `TooWide`, or `PlanInfeasible` where nothing is allowed and nothing fits."""
    plan = order(problem.sizes, [(edge.first, edge.second) for edge in problem.edges])
    if len(plan.nodes) < problem.nodes:
        raise TooWide(f"a table of {plan.largest:.2g} entries would be needed, {plan.total:.2g} in all")
    return _Branching(problem, plan, deadline, start).run()


class _Branching:
    def __init__(self, problem: NumericProblem, plan: Order, deadline: float, start: Ints | None) -> None:
        self.problem, self.plan, self.deadline = problem, plan, deadline
        self.costs = [np.where(row < NEVER, row, np.inf).astype(np.float64) for row in problem.costs]
        self.edges = [
            (edge.first, edge.second, np.where(edge.table < NEVER, edge.table, np.inf).astype(np.float64))
            for edge in problem.edges
        ]
        self.cuts = np.cumsum(problem.sizes)[:-1]
        self.best, self.choice = np.inf, None
        if start is not None and problem.evaluate(start).feasible:
            self.best, self.choice = float(problem.evaluate(start).cost), start
        self.usages: list[list[int]] = [[] for _ in problem.costs]
        for number, usage in enumerate(problem.usages):
            self.usages[usage.node].append(number)

    def run(self) -> Found:
        alive = np.ones(int(self.problem.sizes.sum()), np.bool_)
        stack = [(-np.inf, alive, np.zeros(self.problem.limits.size))]
        visited = 0
        while stack:
            bound, alive, prices = stack.pop()
            if self.closed(bound):
                continue
            visited += 1
            if visited > BRANCHES or monotonic() > self.deadline:
                lowest = min([bound, *(known for known, _, _ in stack)])
                if visited > BRANCHES and self.choice is None:
                    raise TooWide(f"{BRANCHES} branches were not enough")
                return Found(self.choice, max(lowest, -np.inf), False)
            found = self.bounded(alive, prices)
            if found is None:
                continue
            bound, prices, choice, step = found
            if step < 0 or self.closed(bound):
                continue
            less, more = self.split(alive, choice, step)
            stack += [(bound, more, prices), (bound, less, prices)]
        if self.choice is None:
            raise PlanInfeasible("no choice is allowed and fits in memory")
        return Found(self.choice, self.best, True)

    def closed(self, bound: float) -> bool:
        # Costs are whole numbers: what is not lower by one is not lower.
        return bound > self.best - 1 + 1e-6 + 1e-12 * abs(self.best)

    def bounded(self, alive: Mask, prices: Floats) -> tuple[float, Floats, Ints, int] | None:
        """Bound, its prices, its choice and the fullest step that overflows (-1: none, and nothing is left)."""
        high, top, kept, at = -np.inf, prices, None, -1
        pace = 1.0
        for _ in range(PRICINGS if self.problem.limits.size else 1):
            choice, value = self.relaxed(alive, prices)
            if not np.isfinite(value):
                return None
            bound = value - float(prices @ self.problem.limits)
            over = (self.problem.held(choice) - self.problem.limits).astype(np.float64)
            if not over.size or over.max() <= 0:
                self.offer(choice)
                if not prices.any():
                    return bound, prices, choice, -1
            if bound > high:
                high, top = bound, prices
            else:
                pace *= 0.5
            if over.size and over.max() > 0:
                kept, at = choice, int(over.argmax())
            if self.closed(high):
                break
            uphill = np.where((over > 0) | (prices > 0), over, 0.0)
            length = float(uphill @ uphill)
            if length == 0:
                break
            goal = self.best if np.isfinite(self.best) else bound + 0.1 * abs(bound) + 1
            prices = np.maximum(0.0, prices + pace * max(goal - bound, 1e-3) / length * uphill)
        if kept is None:
            # Every priced choice fitted: without prices either one fits, or there is an overflow to branch on.
            choice, value = self.relaxed(alive, np.zeros_like(prices))
            over = (self.problem.held(choice) - self.problem.limits).astype(np.float64)
            if over.max() <= 0:
                self.offer(choice)
                return value, top, choice, -1
            kept, at = choice, int(over.argmax())
        return high, top, kept, at

    def offer(self, choice: Ints) -> None:
        cost = float(self.problem.evaluate(choice).cost)
        if cost < self.best:
            self.best, self.choice = cost, choice

    def relaxed(self, alive: Mask, prices: Floats) -> tuple[Ints, float]:
        extra = self.problem.pieces.price(prices, alive.size) if prices.size else np.zeros(alive.size)
        extra = np.where(alive, extra, np.inf)
        return minimise(self.plan, [a + b for a, b in zip(self.costs, np.split(extra, self.cuts))], self.edges)

    def split(self, alive: Mask, choice: Ints, step: int) -> tuple[Mask, Mask]:
        """Strategies that hold less at this step than the node that holds most above its least, and the others."""
        found, most = None, 0
        for usage in self.problem.usages:
            if usage.start <= step < usage.end:
                begin = int(self.cuts[usage.node - 1]) if usage.node else 0
                mine = alive[begin : begin + usage.amounts.size]
                above = int(usage.amounts[choice[usage.node]] - usage.amounts[mine].min())
                if above > most:
                    found, most = (begin, usage), above
        if found is None:
            # Even the least overflows, so nothing in here fits.
            return np.zeros_like(alive), np.zeros_like(alive)
        begin, usage = found
        lower = usage.amounts < usage.amounts[choice[usage.node]]
        less, more = alive.copy(), alive.copy()
        less[begin : begin + lower.size] &= lower
        more[begin : begin + lower.size] &= ~lower
        return less, more
