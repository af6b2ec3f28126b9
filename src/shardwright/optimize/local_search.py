"""Large-neighbourhood search: free a region, solve it exactly with the rest held fixed, keep what is better.

A region is grown from a random node over the edges, or is a stretch of nodes in program order; it grows while regions
are solved easily and shrinks when they are not.  Everything is drawn from a generator with a fixed seed, so only a
clock that cuts makes two runs differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from .problem import Edge, Ints, NumericProblem, Usage, plus

Exact = Callable[[NumericProblem, Ints, float], tuple[Ints, bool]]
"""Solves a part from a start until a deadline: the best choice found, and whether it was proven so."""
Report = Callable[[Ints, int], None]


@dataclass(slots=True)
class Neighbours:
    """Who shares an edge with whom, and who holds what."""

    problem: NumericProblem
    edges: list[list[tuple[int, int]]]
    usages: list[list[Usage]]

    @classmethod
    def of(cls, problem: NumericProblem) -> Neighbours:
        edges: list[list[tuple[int, int]]] = [[] for _ in problem.costs]
        for number, edge in enumerate(problem.edges):
            edges[edge.first].append((edge.second, number))
            edges[edge.second].append((edge.first, number))
        usages: list[list[Usage]] = [[] for _ in problem.costs]
        for usage in problem.usages:
            usages[usage.node].append(usage)
        return cls(problem, edges, usages)

    def part(self, choice: Ints, nodes: Sequence[int], held: Ints) -> NumericProblem:
        """The problem of these nodes alone, the others as chosen; ``held`` is what the whole choice holds."""
        problem = self.problem
        place = {node: at for at, node in enumerate(nodes)}
        costs = []
        edges = []
        usages = []
        limits = problem.limits - held
        for at, node in enumerate(nodes):
            cost = problem.costs[node]
            for other, number in self.edges[node]:
                edge = problem.edges[number]
                if other not in place:
                    chosen = choice[other]
                    cost = plus(cost, edge.table[:, chosen] if edge.first == node else edge.table[chosen])
                elif node < other:
                    edges.append(Edge(*_ordered(at, place[other], edge.table)))
            costs.append(cost)
            for usage in self.usages[node]:
                limits[usage.start : usage.end] += usage.amounts[choice[node]]
                usages.append(Usage(at, usage.start, usage.end, usage.amounts))
        times = np.unique(np.array([time for usage in usages for time in (usage.start, usage.end)], np.int64))
        if times.size < 2:
            return NumericProblem(tuple(costs), tuple(edges))
        # Between two times nothing of this part changes, so the least limit stands for the stretch.
        tightest = np.minimum.reduceat(limits[: times[-1]], times[:-1])
        rank = {int(time): at for at, time in enumerate(times)}
        squeezed = [Usage(u.node, rank[u.start], rank[u.end], u.amounts) for u in usages]
        return NumericProblem(tuple(costs), tuple(edges), tuple(squeezed), np.maximum(tightest, 0))


def _ordered(i: int, j: int, table: Ints) -> tuple[int, int, Ints]:
    return (i, j, table) if i < j else (j, i, table.T)


class Regions:
    """Draws regions; where one helped, more are drawn."""

    def __init__(self, near: Neighbours, seed: int = 0) -> None:
        self.near = near
        self.rng = np.random.default_rng(seed)
        self.weight = np.ones(near.problem.nodes)

    def draw(self, size: int) -> list[int]:
        """About this many nodes."""
        nodes = self.near.problem.nodes
        size = min(size, nodes)
        start = int(self.rng.choice(nodes, p=self.weight / self.weight.sum()))
        if self.rng.random() < 0.35:
            begin = max(0, min(start - size // 2, nodes - size))
            return list(range(begin, begin + size))
        found, queue = {start}, deque([start])
        while queue and len(found) < size:
            node = queue.popleft()
            others = [other for other, _ in self.near.edges[node] if other not in found]
            self.rng.shuffle(others)
            # A hub would otherwise fill the region with nodes that only share the hub.
            for other in others[: max(4, size // 6)]:
                if len(found) < size:
                    found.add(other)
                    queue.append(other)
        if len(found) < size:
            found.update(range(max(0, start - size // 2), min(nodes, start + size // 2)))
        return sorted(found)[: 2 * size]

    def learn(self, nodes: Sequence[int], helped: bool) -> None:
        self.weight[list(nodes)] *= 1.15 if helped else 0.85
        np.clip(self.weight, 0.05, 4.0, out=self.weight)


def improve(
    problem: NumericProblem,
    choice: Ints,
    exact: Exact,
    deadline: float,
    report: Report | None = None,
    size: int = 80,
    slice_seconds: float = 4.0,
    barren: float = np.inf,
    seed: int = 0,
) -> tuple[Ints, bool]:
    """The best choice found from a feasible one until the deadline, or ``barren`` regions in a row without a gain; and
    whether it is proven to be the best of all."""
    near = Neighbours.of(problem)
    regions = Regions(near, seed)
    value = problem.evaluate(choice)
    cost, choice = value.cost, choice.copy()
    held = problem.held(choice)
    extent = float(min(size, problem.nodes))
    idle = 0
    while monotonic() < deadline and idle < barren:
        nodes = regions.draw(int(extent))
        part = near.part(choice, nodes, held)
        start = choice[nodes]
        before = part.evaluate(start).cost
        began = monotonic()
        found, proven = exact(part, start, min(deadline, began + slice_seconds))
        spent = monotonic() - began
        after = part.evaluate(found)
        gain = before - after.cost if after.feasible else 0
        if gain > 0:
            choice[nodes] = found
            held = problem.held(choice)
            cost -= gain
            idle = 0
            if report is not None:
                report(choice.copy(), cost)
        else:
            idle += 1
        regions.learn(nodes, gain > 0)
        if not proven:
            extent = max(4.0, extent * 0.85)
        elif spent < slice_seconds / 4:
            extent = min(float(problem.nodes), extent * 1.08 + 0.2)
        if proven and len(nodes) == problem.nodes:
            return choice, True
    return choice, False
