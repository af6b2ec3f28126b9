"""Single changes that pay: one variable of an assignment, or two that share a value, at the price of lowered copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic

from .readers import Variables

PAIRS = 400
"""Pairs with more combinations than this are not tried."""
WORK = 5_000_000
"""At most so many readers are asked what they want: some seconds.  Time would not be the same twice."""


def polish(assigner: Variables, choice: Sequence[int], seconds: float | None = None) -> list[int]:
    """The choice for nodes and inputs after all changes that pay, first come, first served."""
    return _Polish(assigner, choice, seconds).run()


class _Polish:
    def __init__(self, assigner: Variables, choice: Sequence[int], seconds: float | None) -> None:
        self.about = assigner
        graph = assigner.graph
        self.choice = list(choice[: len(graph.nodes) + len(graph.inputs)])
        self.until = None if seconds is None else monotonic() + seconds
        self.work = WORK
        self.sizes = [len(ways) for ways in assigner.ways] + [len(assigner.inputs[value]) for value in graph.inputs]
        self.values: list[list[int]] = [[] for _ in self.sizes]
        """The values whose copies a variable has a say in."""
        self.asked = [1 + len(demand.groups) for demand in assigner.demands]
        for v in range(len(graph.values)):
            demand = assigner.demands[v]
            involved = dict.fromkeys(
                [demand.decider, *(group.variable for group in demand.groups if group.variable >= 0)]
            )
            for at in involved:
                self.values[at].append(v)

    def run(self) -> list[int]:
        changed = True
        while changed and not self.late():
            changed = False
            for variables in self.moves():
                changed = self.improve(variables) or changed
        return self.choice

    def late(self) -> bool:
        return self.work <= 0 or (self.until is not None and monotonic() > self.until)

    def moves(self) -> Iterator[tuple[int, ...]]:
        for at in range(len(self.sizes)):
            if self.late():
                return
            yield (at,)
            near = {other for v in self.values[at] for other in self.around(v) if other > at}
            for other in sorted(near):
                if self.late():
                    return
                if self.sizes[at] * self.sizes[other] <= PAIRS:
                    yield at, other

    def around(self, value: int) -> list[int]:
        demand = self.about.demands[value]
        return [demand.decider, *(group.variable for group in demand.groups if group.variable >= 0)]

    def improve(self, variables: tuple[int, ...]) -> bool:
        touched = list(dict.fromkeys(v for at in variables for v in self.values[at]))
        before = tuple(self.choice[at] for at in variables)
        least, best = self.local(variables, touched), before
        options = [(pick,) for pick in range(self.sizes[variables[0]])]
        if len(variables) == 2:
            options = [(a, b) for (a,) in options for b in range(self.sizes[variables[1]])]  # type: ignore[misc]
        self.work -= len(options) * sum([self.asked[v] for v in touched])
        for picks in options:
            for at, pick in zip(variables, picks):
                self.choice[at] = pick
            cost = self.local(variables, touched)
            if cost < least:
                least, best = cost, picks
        for at, pick in zip(variables, best):
            self.choice[at] = pick
        return best != before

    def local(self, variables: tuple[int, ...], touched: Sequence[int]) -> int:
        about = self.about
        own = sum(about.ways[at][self.choice[at]].time for at in variables if at < len(about.ways))
        return own + sum(about.spent(v, self.choice) for v in touched)
