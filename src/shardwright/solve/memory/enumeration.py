"""Small graphs within memory: go through all one-copy plans that may be better than the best known, and so prove it.

Messages rearrange what plans cost, with the price on bytes, into a bound and terms that are at least zero: what a
choice for some of the variables adds to the bound, every plan with it costs at least.  And what some variables hold at
a step, with the least that the others may, every plan with them holds at least.  Depth first, the cheapest terms
first, most branches end early; plans at the end are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic

import numpy as np

from ...optimize import NumericProblem
from ...optimize.messages import Messages
from ...optimize.problem import Floats, Ints

SWEEPS = 60
"""So many sweeps are made for the bound."""
MOST = 20_000
"""So many choices are looked at; then it is not settled."""
Pair = tuple[int, int]


class TooMany(Exception):
    """There are more choices than it pays to look at."""


@dataclass(eq=False)
class Room:
    """What strategies and pairs of them hold, step by step, and what may be held."""

    limit: int
    unary: Sequence[Ints]
    """Of every variable: (strategies, steps)."""
    pairs: Mapping[Pair, Ints]
    """Of some pairs of variables: (strategies of one, of the other, steps)."""


@dataclass(eq=False)
class _Terms:
    """What choices cost beyond a bound."""

    bound: float
    nodes: Sequence[Floats]
    tables: dict[Pair, Floats]

    @classmethod
    def of(cls, problem: NumericProblem, worth: int) -> _Terms:
        messages = Messages(problem)
        for _ in range(SWEEPS):
            messages.sweep()
        one_copy, edges = messages.spread()
        tables: dict[Pair, Floats] = {}
        for edge, table in zip(problem.edges, edges):
            tables[edge.first, edge.second] = table
            tables[edge.second, edge.first] = table.T
        bound = messages.bound - worth
        return cls(bound - 1e-6 * abs(bound), [one_copy[messages.of(v)] for v in range(problem.nodes)], tables)


def exhaust(
    problem: NumericProblem,
    worth: int,
    room: Room,
    known: int,
    judge: Callable[[Sequence[int]], int | None],
    until: float | None = None,
) -> bool:
    """Call ``judge`` on every choice that may cost less than ``known``, with what it says is the least so far.

    The problem's costs less ``worth`` are never more than what a choice costs that fits; ``judge`` says what a choice
    does cost, or None if it does not fit.  Returns whether all were looked at.
    """
    terms = _Terms.of(problem, worth)
    search = _Search(terms, room, problem, known, judge, inf if until is None else until)
    try:
        search.visit(0, terms.bound, np.zeros_like(search.rest[0]))
    except TooMany:
        return False
    return True


@dataclass(eq=False)
class _Search:
    terms: _Terms
    room: Room
    problem: NumericProblem
    best: int
    judge: Callable[[Sequence[int]], int | None]
    until: float = inf
    seen: int = 0
    rest: list[Ints] = field(default_factory=list)
    """Of every depth: what the variables from there on hold at least, by step."""

    def __post_init__(self) -> None:
        self.order, self.behind = _order(self.problem, self.room)
        self.choice = [0] * self.problem.nodes
        self.held: list[list[tuple[int, Ints]]] = []
        """Of every depth: variables before it that it holds something with, and what."""
        least = []
        for at, variable in enumerate(self.order):
            found = []
            for other in self.order[:at]:
                table = self.room.pairs.get((other, variable))
                turned = self.room.pairs.get((variable, other))
                if table is not None:
                    found.append((other, table))
                if turned is not None:
                    found.append((other, np.ascontiguousarray(turned.transpose(1, 0, 2))))
            self.held.append(found)
            own = self.room.unary[variable].min(0)
            least.append(own + sum((table.min((0, 1)) for _, table in found), np.zeros_like(own)))
        self.rest = [np.zeros_like(least[0])]
        for row in reversed(least):
            self.rest.insert(0, self.rest[0] + row)

    def visit(self, depth: int, spent: float, held: Ints) -> None:
        if depth == len(self.order):
            cost = self.judge(self.choice)
            if cost is not None and cost < self.best:
                self.best = cost
            return
        variable, choice, tables = self.order[depth], self.choice, self.terms.tables
        more = self.terms.nodes[variable].copy()
        for other in self.behind[depth]:
            if (other, variable) in tables:
                more += tables[other, variable][choice[other]]
        bytes = held + self.room.unary[variable]
        for other, table in self.held[depth]:
            bytes = bytes + table[choice[other]]
        fits = np.all(bytes + self.rest[depth + 1] <= self.room.limit, axis=1)
        for pick in np.argsort(more, kind="stable").tolist():
            if spent + more[pick] >= self.best - 0.5:
                return
            if not fits[pick]:
                continue
            self.seen += 1
            if self.seen > MOST or (self.seen % 1000 == 0 and monotonic() > self.until):
                raise TooMany
            choice[variable] = pick
            self.visit(depth + 1, spent + float(more[pick]), bytes[pick])


def _order(problem: NumericProblem, room: Room) -> tuple[list[int], list[list[int]]]:
    """Variables with most neighbours behind them first, and those neighbours."""
    near: list[set[int]] = [set() for _ in range(problem.nodes)]
    for first, second in [*((edge.first, edge.second) for edge in problem.edges), *room.pairs]:
        near[first].add(second)
        near[second].add(first)
    order: list[int] = []
    behind: list[list[int]] = []
    left = set(range(problem.nodes))
    while left:
        taken = min(left, key=lambda v: (-len(near[v] - left), len(problem.costs[v]), v))
        behind.append(sorted(near[taken] - left))
        order.append(taken)
        left.discard(taken)
    return order, behind
