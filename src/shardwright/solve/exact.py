"""`best_plan`: the plan with the least objective, and a bound that no plan beats.

A deep stack of equal layers is solved by its short one, everything else as it is; a small stack whose plan is not
proven to be the best is solved as both.  With a limit of memory the plan without one is tried first; if it is too
large, multipliers on bytes are searched for (`memory.search`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import takewhile
from math import inf, prod
from time import monotonic

from ..cost.comm import shown_cost
from ..cost.machine import Hardware
from ..cost.profile import RESIDENT, program_memory
from ..errors import BoundError, PlanInfeasible
from ..ir.graph import Graph
from ..lower import lower
from ..optimize import solver_named
from ..plans.asked import Asked
from ..plans.complete import Complete
from ..spec.mesh import DeviceMesh
from .assignment import Assignment
from .memory.search import Measure, fit
from .model import NEAR, POLISH, Assigner
from .repeated.layers import SIDES, Layers, find_layers
from .repeated.stack import Stack
from .routes import Price

Share = tuple[int, int]
EXACT = 1_000
"""Strategies of a graph up to which a rough plan is no quicker than the best."""
OPEN = 1e-3
"""A stack's plan within memory with a larger gap than this is worth another search, if the graph is small."""


def best_plan(
    graph: Graph,
    mesh: DeviceMesh,
    hardware: Hardware,
    asked: Asked | None = None,
    *,
    solver: str = "auto",
    time_limit: float | None = None,
    measure: Measure | None = None,
    prepared: Prepared | None = None,
    rough: bool = False,
) -> Assignment:
    """The best plan for a graph by an additive objective.

    ``measure`` says what a plan's Program holds, where memory is limited; ``prepared`` is what was worked out for the
    same graph at other prices.  A ``rough`` plan of a graph that does not fold may cost a little more than the best.
    """
    measure = measure or held_by
    asked = asked or Asked(graph)
    prepared = prepared or Prepared(graph, mesh, hardware, asked)
    began = monotonic()

    def fits(complete: Complete) -> bool:
        limit = asked.memory
        return limit is None or _most_bytes(graph) <= limit or measure(complete) <= limit

    in_layers = solver_named(solver).ACCEPTS.message_passing
    for stack in prepared.stacks(hardware) if in_layers else ():
        small = stack.size <= POLISH
        found = stack.solve(_left(time_limit, began), rough and not small)
        if found is None:
            continue
        if found.gap > NEAR and small:
            about, limit = prepared.whole(hardware), _left(time_limit, began)
            found = _better(found, partial(about.solve, solver, limit))
        if asked.memory is None or fits(found.complete):
            return found
        limit = _left(time_limit, began)
        tight = fit(graph, stack.assigner, asked.memory, stack, asked.given, asked.out_specs, limit, measure)
        if tight is None:
            continue
        if tight.gap > OPEN and small:
            about, limit = prepared.whole(hardware), _left(time_limit, began)
            tight = _better(tight, partial(_fitted, graph, about, asked, solver, limit, measure))
        return _no_better_than(tight, found)
    about = prepared.whole(hardware)
    if rough and sum(map(len, about.ways)) > EXACT:
        return about.roughly(_left(time_limit, began))
    free = about.solve(solver, _left(time_limit, began))
    if asked.memory is None or fits(free.complete):
        return free
    return _no_better_than(_fitted(graph, about, asked, solver, _left(time_limit, began), measure), free)


def _most_bytes(graph: Graph) -> int:
    """No plan holds more: every value whole, several times, as copies and buffers of collectives."""
    return 8 * sum(prod(value.type.shape) * value.type.item_bytes for value in graph.values)


def held_by(complete: Complete) -> int:
    """The most bytes that a device holds."""
    return program_memory(lower(complete), RESIDENT)


def _fitted(
    graph: Graph, about: Assigner, asked: Asked, solver: str, time_limit: float | None, measure: Measure
) -> Assignment:
    """The best plan of a graph as it is that fits."""
    assert asked.memory is not None
    found = fit(graph, about, asked.memory, None, asked.given, asked.out_specs, time_limit, measure, solver)
    assert found is not None
    return found


def _better(folded: Assignment, unfolded: Callable[[], Assignment]) -> Assignment:
    """What a stack's plan and one of the graph as it is know together."""
    try:
        whole = unfolded()
    except PlanInfeasible:  # a search within memory may miss what there is
        return folded
    best = min(folded, whole, key=lambda one: one.objective)
    bound = BoundError.unless(max(folded.lower_bound, whole.lower_bound), best.objective)
    return replace(best, lower_bound=bound, seconds=folded.seconds + whole.seconds)


def _no_better_than(tight: Assignment, free: Assignment) -> Assignment:
    """A limit makes nothing cheaper."""
    bound = BoundError.unless(max(tight.lower_bound, free.lower_bound), tight.objective)
    return replace(tight, lower_bound=bound, seconds=tight.seconds + free.seconds)


def _left(time_limit: float | None, began: float) -> float | None:
    return None if time_limit is None else max(0.1, time_limit - (monotonic() - began))


def assigner_of(graph: Graph, mesh: DeviceMesh, hardware: Hardware, asked: Asked, until: float = inf) -> Assigner:
    """The numeric problem of a graph as it is, without a limit of memory."""
    return Assigner(graph, mesh, hardware, asked, until)


@dataclass
class Prepared:
    """What is worked out once for a graph on a mesh and holds at any prices of moves."""

    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    asked: Asked
    until: float = inf
    """When to give up, with `OutOfTime`."""
    irregular: int = 0
    """So many of the short stacks have layers that do not come out equal."""
    _stacks: list[Stack] = field(default_factory=list)

    @property
    def is_joined(self) -> bool:
        """Whether mesh axes are joined, so that bounds speak of a part of the plans only."""
        about = self._stacks[0].assigner if self._stacks else self._whole
        return bool(about.space.joined)

    @cached_property
    def _whole(self) -> Assigner:
        return assigner_of(self.graph, self.mesh, self.hardware, self.asked, self.until)

    def whole(self, hardware: Hardware, price: Price = shown_cost, compute: Share | None = None) -> Assigner:
        """The numeric problem of the graph as it is; arguments as for `Assigner.repriced`."""
        plain = hardware == self.hardware and price is shown_cost and compute is None
        return self._whole if plain else self._whole.repriced(hardware, price, compute)

    def stacks(self, hardware: Hardware, price: Price = shown_cost, compute: Share | None = None) -> Iterator[Stack]:
        """Short stacks for a deep one, with more and more layers kept."""
        for i, sides in enumerate(self._sides):
            if i < self.irregular:
                continue
            if i == len(self._stacks):
                assert self._layers is not None
                short = self._layers.short(*sides)
                mine = self.asked.on(short.graph, short.values, short.outputs)
                if mine is None:
                    return
                self._stacks.append(Stack(short, assigner_of(short.graph, self.mesh, self.hardware, mine, self.until)))
            made = self._stacks[i]
            if hardware == self.hardware and price is shown_cost and compute is None:
                yield made
            else:
                yield made.repriced(made.assigner.repriced(hardware, price, compute))
            self.irregular = i + 1  # whoever asks for another one has no use for this

    @cached_property
    def _layers(self) -> Layers | None:
        return find_layers(self.graph, self.asked.given) if self.asked.is_plain else None

    @property
    def _sides(self) -> list[tuple[int, int]]:
        """The fewest layers that may do, then the most: those between seldom do where the fewest do not."""
        layers = self._layers
        fits = [] if layers is None else list(takewhile(lambda sides: sum(sides) <= layers.count, SIDES))
        return list(dict.fromkeys((*fits[:1], *fits[-1:])))
