"""Message passing (TRW-S): a lower bound, reduced costs, and choices rounded from them.

Messages move cost along the edges until nodes and edges can be minimised one by one; the sum of those minima is a
lower bound that never falls from sweep to sweep.  Nodes are visited in order, then in reverse; a node spreads its
cost over its edges ahead.  Memory enters by prices: a byte at step t costs ``prices[t]``, and the bound is less by
what the limits are worth.

After a backward sweep all costs stand rearranged so that every term is at least zero and the constants add up to the
bound; what a strategy, or a pair of them, still costs then is how far any choice with it must lie above the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import numpy as np

from .problem import NEVER, Floats, Ints, NumericProblem, Usage

HUGE = 1e30
"""Forbidden, in floats; finite, so that differences of two of them are no NaN."""


_add, _least = np.add.reduce, np.minimum.reduce

Report = Callable[[Ints, int], None]
"""Told a choice that fits, and its cost."""


@dataclass(slots=True)
class _Group:
    """Edges from one node to others with equally many strategies, all ahead or all behind."""

    edges: Ints
    tables: Floats
    """(edges, strategies there, strategies here)"""
    rows: slice
    """Which of the node's incoming messages come over these edges."""
    out: Ints
    """Where the outgoing messages lie."""
    others: Ints


@dataclass(slots=True)
class _Node:
    messages: Floats
    """Incoming, one row an edge."""
    unary: Floats
    ahead: list[_Group]
    behind: list[_Group]
    share: float


class Messages:
    """The state of message passing on one problem, in which every strategy has an allowed partner on every edge."""

    def __init__(self, problem: NumericProblem) -> None:
        self.problem = problem
        self.states = int(problem.sizes.sum())
        self.first: Ints = np.cumsum(problem.sizes) - problem.sizes
        flat = np.concatenate(problem.costs) if problem.costs else np.zeros(0, np.int64)
        self.base: Floats = np.where(flat < NEVER, flat, HUGE).astype(np.float64)
        self.unary = self.base.copy()
        self.prices: Floats = np.zeros(problem.limits.size)
        self.bound = -np.inf
        self.tables: list[Floats] = [
            np.where(edge.table < NEVER, edge.table, HUGE).astype(np.float64) for edge in problem.edges
        ]
        self.usages: list[list[Usage]] = [[] for _ in problem.costs]
        for usage in problem.usages:
            self.usages[usage.node].append(usage)
        self._build()

    def _build(self) -> None:
        sizes = self.problem.sizes
        incident: list[list[tuple[bool, int, int, int]]] = [[] for _ in range(self.problem.nodes)]
        for number, edge in enumerate(self.problem.edges):
            incident[edge.first].append((True, int(sizes[edge.second]), edge.second, number))
            incident[edge.second].append((False, int(sizes[edge.first]), edge.first, number))
        lengths = np.array([len(edges) for edges in incident], np.int64) * sizes
        starts = np.cumsum(lengths) - lengths
        self.buffer: Floats = np.zeros(int(lengths.sum()))
        # Where the message over an edge to its second, and to its first node begins.
        to_second = np.zeros(len(self.problem.edges), np.int64)
        to_first = np.zeros(len(self.problem.edges), np.int64)
        for node, edges in enumerate(incident):
            edges.sort()
            for row, (ahead, _, _, number) in enumerate(edges):
                (to_first if ahead else to_second)[number] = starts[node] + row * sizes[node]
        self.to_first, self.to_second = to_first, to_second
        self.nodes: list[_Node] = []
        for node, edges in enumerate(incident):
            size = int(sizes[node])
            begin = int(starts[node])
            messages = self.buffer[begin : begin + len(edges) * size].reshape(len(edges), size)
            groups: tuple[list[_Group], list[_Group]] = ([], [])
            row = 0
            while row < len(edges):
                ahead, width = edges[row][:2]
                end = row
                while end < len(edges) and edges[end][:2] == (ahead, width):
                    end += 1
                numbers = np.array([number for _, _, _, number in edges[row:end]], np.int64)
                stacked = np.stack([self.tables[n].T if ahead else self.tables[n] for n in numbers])
                out = (to_second if ahead else to_first)[numbers][:, None] + np.arange(width)
                others = np.array([other for _, _, other, _ in edges[row:end]], np.int64)
                groups[0 if ahead else 1].append(
                    _Group(numbers, np.ascontiguousarray(stacked), slice(row, end), out, others)
                )
                row = end
            ahead_count = sum(group.edges.size for group in groups[0])
            share = 1.0 / max(1, ahead_count, len(edges) - ahead_count)
            unary = self.unary[self.first[node] : self.first[node] + size]
            self.nodes.append(_Node(messages, unary, groups[0], groups[1], share))

    def set_prices(self, prices: Floats) -> None:
        """Let a byte at each step cost this."""
        self.prices = prices
        self.unary[:] = self.base + self.problem.pieces.price(prices, self.states)

    def sweep(self) -> float:
        """Forward and back once; returns the bound, which is also kept."""
        for node in self.nodes:
            self._send(node, node.ahead)
        total = 0.0
        for node in reversed(self.nodes):
            total += self._send(node, node.behind)
        self.bound = total - float(self.prices @ self.problem.limits)
        return self.bound

    def _send(self, node: _Node, groups: list[_Group]) -> float:
        # The ufuncs' own reductions: this runs some ten thousand times a second, on small arrays.
        sums = node.unary + _add(node.messages, 0)
        least = _least(sums)
        sums -= least
        sums *= node.share
        for group in groups:
            rest = sums - node.messages[group.rows]
            found = _least(group.tables + rest[:, None, :], 2)
            low = _least(found, 1)
            found -= low[:, None]
            self.buffer[group.out] = found
            least += _add(low)
        return float(least)

    def round(self, tight: bool = False) -> Ints:
        """A choice: node by node, what is best given the nodes behind and the messages from ahead.

        ``tight`` takes only what fits beside the nodes behind, where anything does.
        """
        choice = np.zeros(self.problem.nodes, np.int64)
        room = self.problem.limits.copy()
        for place, node in enumerate(self.nodes):
            sums = node.unary.copy()
            for group in node.ahead:
                sums += node.messages[group.rows].sum(0)
            for group in node.behind:
                sums += group.tables[np.arange(group.edges.size), choice[group.others]].sum(0)
            if tight and self.usages[place]:
                over = np.zeros(sums.size)
                for usage in self.usages[place]:
                    over += usage.amounts > room[usage.start : usage.end].min()
                choice[place] = pick = (sums + over * HUGE).argmin()
                for usage in self.usages[place]:
                    room[usage.start : usage.end] -= usage.amounts[pick]
            else:
                choice[place] = sums.argmin()
        return choice

    def of(self, node: int) -> slice:
        """Where a node's strategies lie when all are laid end to end."""
        return slice(self.first[node], self.first[node] + self.problem.sizes[node])

    def reduced(self) -> tuple[Floats, Iterator[tuple[int, Floats]]]:
        """After a sweep: how far above the bound any choice lies that has a strategy (all nodes' end to end), or, edge
        by edge, a pair of them."""
        nodes, edges = self.spread()
        total = nodes.copy()
        rows, columns = [], []
        for number, edge in enumerate(self.problem.edges):
            table = edges[number]
            rows.append(table.min(1))
            columns.append(table.min(0))
            total[self.of(edge.first)] += rows[-1]
            total[self.of(edge.second)] += columns[-1]

        def pairs() -> Iterator[tuple[int, Floats]]:
            for number, edge in enumerate(self.problem.edges):
                mine = total[self.of(edge.first)] - rows[number]
                theirs = total[self.of(edge.second)] - columns[number]
                yield number, edges[number] + mine[:, None] + theirs

        return total, pairs()

    def terms(self) -> tuple[float, Floats, list[Floats]]:
        """The problem's own costs rearranged by the messages: a constant, then node and edge terms.

        Prices are not in it, so node terms may be negative where memory costs something.
        """
        nodes = self.base.copy()
        constant = 0.0
        edges = []
        for number, edge in enumerate(self.problem.edges):
            mine, theirs = self.of(edge.first), self.of(edge.second)
            to_first, to_second = self._over(number)
            nodes[mine] += to_first
            nodes[theirs] += to_second
            table = self.tables[number] - to_first[:, None] - to_second
            least = float(table.min())
            constant += least
            edges.append(table - least)
        for node in range(self.problem.nodes):
            least = float(nodes[self.of(node)].min())
            constant += least
            nodes[self.of(node)] -= least
        return constant, nodes, edges

    def _over(self, number: int) -> tuple[Floats, Floats]:
        """The messages over an edge, to its first and to its second node."""
        edge = self.problem.edges[number]
        sizes = self.problem.sizes
        return (
            self.buffer[self.to_first[number] :][: sizes[edge.first]],
            self.buffer[self.to_second[number] :][: sizes[edge.second]],
        )

    def spread(self) -> tuple[Floats, list[Floats]]:
        """Node and edge terms after a backward sweep, prices included, all at least zero."""
        nodes = np.zeros(self.states)
        spread = np.zeros(self.states)
        for place, node in enumerate(self.nodes):
            sums = node.unary + node.messages.sum(0)
            sums -= sums.min()
            behind = sum(group.edges.size for group in node.behind)
            nodes[self.of(place)] = sums * (1.0 - behind * node.share)
            spread[self.of(place)] = sums * node.share
        edges = []
        for number, edge in enumerate(self.problem.edges):
            to_first, to_second = self._over(number)
            table = self.tables[number] - to_first[:, None] + (spread[self.of(edge.second)] - to_second)
            edges.append(np.maximum(table - table.min(), 0.0))
        return nodes, edges


def ascend(
    messages: Messages,
    deadline: float,
    best: float = np.inf,
    report: Report | None = None,
    patience: int = 8,
    steps: float = np.inf,
) -> float:
    """Raise the bound by sweeps and, where memory binds, by prices; returns the best bound, whose state is left.

    Prices follow the overflow of rounded choices (a subgradient where messages agree), by Polyak's step towards the
    best cost known.  ``report`` gets every choice that fits on the way.
    """
    problem = messages.problem
    pace, bad, flat, step, high = 0.3, 0, 0, 0, -np.inf
    prices, top = messages.prices, messages.prices
    slope = np.zeros(problem.limits.size)
    state = messages.buffer.copy()
    while monotonic() < deadline and step < steps:
        step += 1
        bound = messages.sweep()
        flat = 0 if not np.isfinite(high) or bound > high + max(1e-6 * abs(high), 1e-3) else flat + 1
        if bound > high:
            high, top, bad = bound, prices, 0
            state[:] = messages.buffer
        else:
            bad += 1
        choice = messages.round()
        over = (problem.held(choice) - problem.limits).astype(np.float64)
        if report is not None:
            if over.size and over.max() > 0 and step > 4 and (step % 4 == 0 or not np.isfinite(best)):
                best = min(best, _offer(problem, messages.round(tight=True), report))
            elif not over.size or over.max() <= 0:
                best = min(best, _offer(problem, choice, report))
        # Costs are whole numbers: above the best less one, nothing better is left.
        if high > best - 1 + 1e-9 * max(1.0, abs(best)) or flat > 4 * patience:
            break
        if not over.size or (over.max() <= 0 and not prices.any()):
            if flat > patience:
                break
            continue
        if bad >= patience:
            pace, bad, prices = pace * 0.6, 0, top
            messages.set_prices(prices)
            messages.buffer[:] = state
            slope[:] = 0
            if pace < 2e-3:
                break
            continue
        slope = 0.7 * slope + 0.3 * over
        uphill = np.where((slope > 0) | (prices > 0), slope, 0.0)
        length = float(uphill @ uphill)
        if length > 0:
            target = min(best, high + 0.2 * abs(high) + 1.0)
            prices = np.maximum(0.0, prices + pace * (target - bound) / length * uphill)
            messages.set_prices(prices)
    messages.set_prices(top)
    messages.buffer[:] = state
    for _ in range(2 * patience):
        high = max(high, messages.sweep())
        if monotonic() > deadline:
            break
    return high


def _offer(problem: NumericProblem, choice: Ints, report: Report) -> float:
    """Report a choice if it is allowed and fits; its cost, or infinity."""
    value = problem.evaluate(choice)
    if not value.feasible:
        return np.inf
    report(choice, value.cost)
    return float(value.cost)
