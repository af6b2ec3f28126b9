"""Plans that fit in memory: bytes at the moments that bind get a price, and the price is searched for.

Plans are flat (`flat`): every value is kept in one sharding.  With a price on a byte at some moments the numeric
problem is as before, with more costs of values and hubs; its optimum, less what the limit is worth, is below every plan
that fits.  A low price gives a plan that is too large, a high one a plan that fits; where the lines of the two cross is
the next price to try, until nothing new comes out.  What lies between the two is then mixed (`mixed`).

The count of bytes leaves out what only passes (copies for one reader, buffers).  So the plan is lowered, measured, and
if it is too large after all, the search goes on with less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic

import numpy as np

from ..cost.memory import local_bytes
from ..cost.overlap import graph_roles
from ..errors import PlanInfeasible
from ..ir.graph import Graph
from ..propagate.complete import Complete
from ..spec.sharding import ShardingSpec
from .assign import Assigner, Assignment, Extra
from .demand import Group
from .flat import Flat, Frame
from .mixed import mix
from .numeric.problem import Ints
from .price import price
from .routes import TOO_DEAR
from .stack import DeepPlan, Stack

SCALE = 1 << 20
"""Prices are whole numbers of this part of a picosecond a byte."""
PRICES = 14
"""So many prices are tried at most."""
ROUNDS = 4
"""So often the limit is lowered where the Program itself holds more than was counted."""
MOVES = 2
"""So often the price is moved to another moment."""
NEAR = 10
"""A moment at which 1/1024 more is held than where the price stands is no better one."""
HOPELESS = 8
"""If the bound is so many times what a plan without a limit costs, none fits."""
Measure = Callable[[Complete], int]
"""What the lowered Program holds at its peak, in bytes on a device."""


@dataclass
class Tried:
    """What a price gave."""

    price: int
    flat: Flat
    cost: int
    held: Ints
    """Bytes by moment."""


@dataclass
class Within:
    """The search for one graph and one limit."""

    about: Assigner
    """Of the graph, or of the short one of a stack."""
    frame: Frame
    limit: int
    measure: Measure
    stack: Stack | None = None
    moments: list[int] = field(default_factory=list)
    bound: int = 0
    arrays: dict[object, Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.was = list(range(len(self.about.graph.values)))
        if self.stack is not None:
            self.was = [self.stack.was[v] for v in self.was]

    # -- one price ----------------------------------------------------------------------------------------

    def at(self, price: int, seconds: float | None) -> Tried:
        """The best plan with a price on bytes."""
        extra = _Priced(self, price)
        if self.stack is not None:
            found = self.stack.optimum(False, seconds, extra)
            if found is not None:
                least, plan = found
                flat = flat_of(self.frame, self.about, plan)
                self._raise(least.lower_bound, price)
                return Tried(price, flat, flat.cost, flat.held())
            raise _Irregular
        best = self.about.optimum(False, "auto", seconds, None, extra)
        self._raise(best.lower_bound, price)
        flat = flat_of(self.frame, self.about, best.choice)
        return Tried(price, flat, flat.cost, flat.held())

    def _raise(self, least: int, price: int) -> None:
        worth = -(-price * self.limit * len(self.moments) // SCALE)
        self.bound = max(self.bound, least - worth)

    # -- the search ---------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> Sequence[int]:
        """Moments that may get a price: in a stack, those at which all layers left out are alike."""
        if self.stack is None:
            return range(self.frame.lives.moments)
        layers, short = self.stack.short.layers, self.stack.short
        inner = range(short.low - 1, short.low + short.out + 1)
        return [n for n, layer in enumerate(layers.layer) if layer not in inner] + [len(layers.layer)]

    def search(self, seconds: float | None) -> tuple[Complete, int, bool]:
        """The plan, its objective, and whether time was up."""
        until = None if seconds is None else monotonic() + seconds
        free = self.at(0, _left(until))
        limit, late = self.limit, False
        high: Tried | None = None
        for _ in range(ROUNDS):
            found, high, late = self._fitting(free, limit, high, until)
            complete = found.decode(self.about.mesh)
            real = self.measure(complete)
            if real <= self.limit:
                roles = graph_roles(self.frame.graph)
                return complete, price(complete, self.about.hardware, roles).objective, late
            limit -= (real - self.limit) * 17 // 16
            if limit <= 0 or (until is not None and monotonic() > until + 60):
                break
        raise PlanInfeasible("no plan was found that fits in memory")

    def _fitting(self, free: Tried, limit: int, high: Tried | None, until: float | None) -> tuple[Flat, Tried, bool]:
        """A plan that holds no more than this, by count."""
        if int(free.held.max()) <= limit:
            return free.flat, free, False
        if not self.moments:
            self.moments = [max(self.candidates, key=lambda t: int(free.held[t]))]
        low = free
        if high is not None and int(high.held.max()) > limit:
            low, high = high, None
        tried = moved = 0
        late = False
        while tried < PRICES:
            tried += 1
            if until is not None and monotonic() > until and high is not None:
                late = True
                break
            if high is None:
                over = max(1, self._bytes(low) - limit * len(self.moments))
                step = max(1, low.cost // 100 * SCALE // over)
                found = self.at(max(low.price * 4, step), _left(until))
                if self.bound > HOPELESS * free.cost:
                    raise PlanInfeasible(f"no plan fits: at node {self.moments[0]} every one holds more than the limit")
            else:
                apart = self._bytes(low) - self._bytes(high)
                if apart <= 0 or high.cost <= low.cost:
                    break
                crossing = (high.cost - low.cost) * SCALE // apart
                if crossing <= low.price or crossing >= high.price:
                    break
                found = self.at(crossing, _left(until))
                same = [one for one in (low, high) if one.cost == found.cost and (one.held == found.held).all()]
                if same:
                    break
            worst = self._worst(found)
            if worst is not None and moved < MOVES:
                # The price stands at the wrong moment: what was found with it is no line of the right one.
                moved += 1
                self.moments, low = [worst], found
                high = found if int(found.held.max()) <= limit else None
                continue
            if int(found.held.max()) <= limit:
                high = found
            else:
                low = found
        if high is None:
            raise PlanInfeasible("no plan was found that fits in memory")
        return mix(low.flat, high.flat, limit), high, late

    def _bytes(self, tried: Tried) -> int:
        return int(sum(tried.held[t] for t in self.moments))

    def _worst(self, tried: Tried) -> int | None:
        """A moment at which more is held than where the price stands; None if there is none to speak of."""
        worst = max(self.candidates, key=lambda t: int(tried.held[t]))
        here = max(int(tried.held[t]) for t in self.moments)
        return worst if int(tried.held[worst]) > here + (here >> NEAR) else None


class _Priced(Extra):
    """What bytes cost at the moments with a price: never more than a plan holds.

    A view holds nothing where it reads the copy that is kept of what it shows; but if it is there for longer than any
    other reader, the copy is.  Where it reads another one, that copy is there as long as the view is.
    """

    def __init__(self, work: Within, price: int) -> None:
        self.work, self.price = work, price
        self.demands, self.graph = work.about.demands, work.about.graph
        self.lives, self.moments, self.arrays = work.frame.lives, work.moments, work.arrays

    def _cost(self, places: Ints, count: int, value: int) -> Ints | None:
        if not count or not self.price:
            return None
        key = (id(places), count, self.price, self.graph.type(value))
        found = self.arrays.get(key)
        if found is None:
            specs, type = self.demands[value].routes.specs, self.graph.type(value)
            # Python's whole numbers: bytes by price may be beyond 64 bits before they are divided.
            sizes = [local_bytes(specs[at], type) * self.price * count // SCALE for at in places.tolist()]
            found = self.arrays[key] = np.array(sizes, np.int64)
        return found

    def _all(self, value: int) -> Ints:
        routes = self.demands[value].routes
        return self.arrays.setdefault(("all", id(routes)), np.arange(len(routes.specs)))

    def value(self, value: int) -> tuple[Ints | None, Ints | None]:
        demand, was = self.demands[value], self.work.was[value]
        life = self.lives.of[was]
        if was in self.lives.shows:
            return None, None
        if was in self.lives.stays:
            return self._cost(demand.made, len(self.moments), value), None
        if not demand.is_shared:
            whole = sum(life.start <= t <= life.end for t in self.moments)
            return self._cost(demand.made, whole, value), None
        # At the moment it is first read both are there; but the hub may be what lies there.
        kept = sum(life.is_kept(t) for t in self.moments)
        lies = sum(life.lies(t) and not life.is_kept(t) for t in self.moments)
        return self._cost(demand.made, lies, value), self._cost(self._all(value), kept, value)

    def hub(self, value: int) -> Ints | None:
        if self.work.was[value] not in self.lives.shows:
            return None
        made, rows = self.demands[value].made, self._all(value)
        key = ("tied", id(made), id(rows))
        found = self.arrays.get(key)
        if found is None:
            found = self.arrays[key] = np.where(made[:, None] == rows[None, :], 0, TOO_DEAR)
        return found

    def edge(self, value: int, group: Group) -> Ints | None:
        demand, was = self.demands[value], self.work.was[value]
        if not 0 <= group.variable < len(self.graph.nodes) or len(group.places) > 1 or was in self.lives.stays:
            return None
        node = self.graph.nodes[group.variable]
        view = next((r for r, o in node.views if node.inputs[o] == value), None)
        if view is None:
            return None
        result = node.results[view]
        theirs = self.lives.of[self.work.was[result]]
        count = sum(theirs.start <= t <= theirs.end for t in self.moments)
        reach = self.lives.reach.get(self.work.was[result], theirs.end)
        longer = sum(reach < t <= theirs.end for t in self.moments)
        made = self.demands[result].made
        alone, shared = self._cost(made, count, result), self._cost(made, longer, result)
        if alone is None:
            return None
        rows, need = self._all(value) if demand.is_shared else demand.made, group.places[0]
        key = ("view", id(rows), id(need), id(alone), id(shared))
        found = self.arrays.get(key)
        if found is None:
            found = np.where(rows[:, None] == need[None, :], 0 if shared is None else shared[None, :], alone[None, :])
            self.arrays[key] = found
        return found


class _Irregular(Exception):
    """The layers do not come out equal."""


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.2, until - monotonic())


def flat_of(frame: Frame, about: Assigner, plan: DeepPlan | Sequence[int]) -> Flat:
    """A choice for all variables, hubs included, as a flat plan of the whole graph."""
    graph = frame.graph
    hub_of = about.hub_of
    hubs: dict[int, ShardingSpec] = {}
    if isinstance(plan, DeepPlan):
        layers = plan.layers
        ways = []
        for n, layer in enumerate(layers.layer):
            variable = plan.variable(n)
            ways.append(about.ways[variable][plan.choices[layer][variable]])
        lying = {}
        for value in graph.inputs:
            small = plan.counterpart(value)
            lying[value] = about.inputs[small][plan.choices[layers.value_layer(value)][about.place[small]]]
        for v in range(len(graph.values)):
            small = plan.counterpart(v)
            if small in hub_of:
                pick = plan.choices[layers.value_layer(v)][hub_of[small]]
                hubs[v] = about.demands[small].routes.specs[pick]
        return Flat(frame, ways, lying, hubs)
    ways = [about.ways[n][plan[n]] for n in range(len(graph.nodes))]
    lying = {value: about.inputs[value][plan[about.place[value]]] for value in graph.inputs}
    for v, variable in hub_of.items():
        hubs[v] = about.demands[v].routes.specs[plan[variable]]
    return Flat(frame, ways, lying, hubs)


def fit(
    graph: Graph,
    about: Assigner,
    limit: int,
    stack: Stack | None,
    given: Mapping[int, ShardingSpec],
    out_specs: Mapping[int, ShardingSpec],
    time_limit: float | None,
    measure: Measure,
) -> Assignment | None:
    """The best plan found that fits; None if a stack's layers do not come out equal."""
    began = monotonic()
    rules = [about.space.rules.get(n) for n in range(len(about.graph.nodes))]
    if stack is not None:
        places = {n: i for i, n in enumerate(stack.short.kept)}
        rules = [rules[places[stack.short.stand_in(n)]] for n in range(len(graph.nodes))]
    frame = Frame(graph, about.book, graph_roles(graph), rules, given, out_specs)
    work = Within(about, frame, limit, measure, stack)
    try:
        complete, objective, late = work.search(time_limit)
    except _Irregular:
        return None
    if objective >= TOO_DEAR:
        raise PlanInfeasible("every plan gathers more at once than is allowed")
    lower_bound = min(work.bound, objective)
    return Assignment(complete, objective, lower_bound, "prices", late, monotonic() - began, about.hardware)


__all__ = ["Within", "fit"]
