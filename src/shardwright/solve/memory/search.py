"""Plans that fit in memory: bytes at the steps that bind get a price, and the price is searched for.

Plans keep one copy of every value (`one_copy`): every value is kept in one sharding.  With a price on a byte at some
steps the numeric problem is as before, with more costs of values and shared copies; its optimum, less what the limit is
worth, is below every plan that fits.  A low price gives a plan that is too large, a high one a plan that fits; where
the lines of the two cross is the next price to try, until nothing new comes out.  What is between the two is then mixed
(`mixed`).

The count of bytes leaves out what is there only while copies are made, and buffers.  So the plan is lowered, measured,
and if it is too large after all, the search goes on with less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic

import numpy as np

from ...cost.overlap import graph_roles
from ...errors import BoundError, PlanInfeasible
from ...ir.graph import Graph
from ...optimize import NumericProblem
from ...optimize.core import sweep
from ...optimize.problem import Ints
from ...propagation.complete import Complete
from ...spec.sharding import ShardingSpec
from ..assignment import Assignment
from ..model import Assigner, Terms
from ..price import price
from ..repeated.deep import Deep, DeepChoice, Inner
from ..repeated.stack import DeepPlan, Stack
from ..routes import REFUSED
from .enumeration import Room, TooMany, exhaust
from .mixed import mix, spliced
from .multipliers import SCALE, Priced
from .one_copy import Frame, OneCopyPlan, neighbours, one_copy_of

MOST_PRICES = 14
"""So many prices are tried at most."""
MOST_ROUNDS = 4
"""So often the limit is lowered where the Program itself holds more than was counted."""
SMALL_RAISES = 3
"""So often the price is raised by little, until a plan fits; then by more."""
MOST_MOVES = 2
"""So often the price is moved to another step."""
EXCESS_SHIFT = 10
"""A step at which 1/1024 more is held than where the price stands is no better one."""
NOT_FOUND = "no plan was found that fits in memory"
MOST_STRATEGIES_IMPROVED = 300
"""The most strategies in a graph of which single changes are tried."""
MOST_PRICE_BITS = 12
"""By so many bits prices may rise and fall where no plan fits after all."""
MOST_CUTS = 12
"""So many places are tried at which one plan goes over into another."""
PLANS_MIXED = 2
"""So many plans that fit are mixed with so many that do not."""
GAP_WORTH_MORE_PRICES = 0.01
"""A gap, as a part of the bound, that is worth some more prices."""
MOST_PLANS_MEASURED = 600
"""So many plans of a small graph are measured."""
INFEASIBLE_AT = 8
"""Where the bound is so many times what a plan without a limit costs, it is said that none fits."""
Measure = Callable[[Complete], int]
"""What the lowered Program holds at its peak, in bytes on a device."""


@dataclass
class Tried:
    """What a price gave."""

    price: int
    one_copy: OneCopyPlan
    cost: int
    held: Ints
    """Bytes by step."""

    def is_like(self, other: Tried) -> bool:
        return self.cost == other.cost and bool((self.held == other.held).all())


@dataclass
class Within:
    """The search for one graph and one limit."""

    about: Assigner
    """Of the graph, or of the short one of a stack."""
    frame: Frame
    limit: int
    measure: Measure
    stack: Stack | None = None
    solver: str = "auto"
    """For the graph as it is."""
    steps: list[int] = field(default_factory=list)
    bound: int = 0
    best: tuple[int, list[int]] = (0, [])
    """The price that gave it, and at which steps."""
    tried: list[Tried] = field(default_factory=list)
    counted: int = 0
    """What the plan that was found costs where each reader pays a path of its own from the shared copy."""
    settled: bool = False
    """Whether all plans that may be better were gone through."""
    known: dict[tuple[int, ...], Tried] = field(default_factory=dict)
    """The same, by price, whether it is rough, and steps."""
    arrays: dict[object, Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.was = list(range(len(self.about.graph.values)))
        self.nodes: Sequence[int] = range(len(self.about.graph.nodes))
        if self.stack is not None:
            self.was = [self.stack.was[v] for v in self.was]
            self.nodes = self.stack.short.kept

    # -- one price ----------------------------------------------------------------------------------------

    def at(self, price: int, seconds: float | None, rough: bool = False) -> Tried:
        """The best plan with a price on bytes; a ``rough`` one says nothing about the bound."""
        key = (price, rough, *self.steps)
        if key not in self.known:
            lives, arrays = self.frame.lives, self.arrays
            extra = Priced(self.about, lives, self.was, self.nodes, self.steps, price, arrays, full=rough)
            plan: DeepPlan | Sequence[int]
            if self.stack is None:
                best = self.about.optimum(False, self.solver, seconds, None, extra)
                plan = best.choice
                if not rough:
                    self._raise(best.lower_bound, price)
            elif rough:
                plan = self._copied(self.stack, extra)
            else:
                found = self.stack.optimum(False, seconds, extra)
                if found is None:
                    raise _Irregular
                plan = found[1]
                self._raise(found[0].lower_bound, price)
            one_copy = one_copy_of(self.frame, self.about, plan)
            self.known[key] = Tried(price, one_copy, one_copy.cost, one_copy.held())
            self.tried.append(self.known[key])
        return self.known[key]

    def _free(self, seconds: float | None) -> Tried:
        """The best plan where bytes cost nothing; a stack's is known, and if it is too large that is all one asks."""
        if self.stack is not None and self.stack.best is not None:
            one_copy = one_copy_of(self.frame, self.about, DeepPlan(self.stack, self.stack.best))
            one_copy.hubs.update((v, one_copy.home(v)) for v in one_copy.hubs if v in self.frame.lives.shows)
            held = one_copy.held()
            if int(held.max()) > self.limit:
                self.tried.append(Tried(0, one_copy, one_copy.cost, held))
                return self.tried[-1]
        return self.at(0, seconds)

    def _copied(self, stack: Stack, extra: Priced) -> DeepPlan:
        """The short stack's best plan, with the same in all layers that it leaves out as in the one before them."""
        small = stack.compacted(self.about.terms(False, extra))
        inner = Inner.of(small, stack.layer, stack.key, stack.short.low)
        if not inner.is_regular():
            raise _Irregular
        short = Deep(inner, 0)
        swept = sweep(short.batches, rough=True)
        choices = DeepChoice(inner, 0, short.picked(swept.picks), swept.cost, 0, False, "messages").choices()
        here = stack.short.low - 1
        return DeepPlan(stack, [*choices[:here], *[choices[here]] * stack.short.out, *choices[here:]])

    def _raise(self, least: int, price: int) -> None:
        below = least - self._worth(price, len(self.steps))
        if below > self.bound:
            self.bound, self.best = below, (price, list(self.steps))

    def _worth(self, price: int, steps: int) -> int:
        """What the limit is worth at a price."""
        return -(-price * self.limit * steps // SCALE)

    # -- the search ---------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> Sequence[int]:
        """Steps that may get a price: in a stack, those at which all layers left out are alike."""
        if self.stack is None:
            return range(self.frame.lives.steps)
        layers, short = self.stack.short.layers, self.stack.short
        inner = range(short.low - 1, short.low + short.out + 1)
        return [n for n, layer in enumerate(layers.layer) if layer not in inner] + [len(layers.layer)]

    def search(self, seconds: float | None) -> tuple[Complete, int, bool]:
        """The plan, its objective, and whether time was up."""
        until = None if seconds is None else monotonic() + seconds
        free = self._free(_left(until))
        limit, late = self.limit, False
        high: Tried | None = None
        found: OneCopyPlan | None = None
        for _ in range(MOST_ROUNDS):
            try:
                one_copy, high, late = self._fitting(free, limit, high, until)
            except PlanInfeasible:
                if limit == self.limit and self.bound > INFEASIBLE_AT * free.cost:
                    raise  # no plan holds so little; with less than the limit it proves nothing
                break
            over = self._held(one_copy) - self.limit
            if over <= 0:
                found = one_copy
                break
            limit = min(limit - over * 17 // 16, int(one_copy.held().max()) - 1)  # another plan, at least
            if limit <= 0 or (until is not None and monotonic() > until):
                break
        small = self.stack is None and sum(map(len, self.about.ways)) <= MOST_STRATEGIES_IMPROVED
        if found is None:
            found = self._any() or self._by_ladder(free, 1 if small else 3, until)
        if found is None and small:
            found = self._exhausted(None, REFUSED, until)
        if found is None and self.settled:
            raise PlanInfeasible("no plan fits: all were gone through", help="allow more memory, or take a larger mesh")
        if found is None:
            raise PlanInfeasible(NOT_FOUND, help="there may be one: allow more time or memory")
        if small:
            found = self._climb(found, until)
            if self.bound < found.cost:
                found = self._exhausted(found, found.cost, until) or found
        self.counted = found.cost
        complete = found.decode(self.about.mesh)
        return complete, price(complete, self.about.hardware, graph_roles(self.frame.graph)).objective, late

    def _exhausted(self, known: OneCopyPlan | None, below: int, until: float | None) -> OneCopyPlan | None:
        """A small graph's best plan, and the bound raised to it, if going through all that may be better ends."""
        rate, steps = self.best
        found, judged = known, 0

        def judge(choice: Sequence[int]) -> int | None:
            nonlocal found, judged
            one_copy = one_copy_of(self.frame, self.about, choice)
            cost = one_copy.cost
            if cost >= (below if found is None else found.cost) or int(one_copy.held().max()) > self.limit:
                return None
            judged += 1
            if judged > MOST_PLANS_MEASURED:
                raise TooMany
            if self._held(one_copy) > self.limit:
                return None
            found = one_copy
            return cost

        costs, edges, _ = self._terms(steps, rate)
        problem = NumericProblem.build(costs, edges, name=self.frame.graph.name)
        if exhaust(problem, self._worth(rate, len(steps)), self._room(), below, judge, until):
            self.bound = max(self.bound, below if found is None else found.cost)
            self.settled = True
        return found

    def _terms(self, steps: Sequence[int], price: int) -> Terms:
        extra = Priced(self.about, self.frame.lives, self.was, self.nodes, steps, price, self.arrays)
        return self.about.terms(False, extra)

    def _room(self) -> Room:
        """What is held at every step, by what a byte costs there."""
        free, plain, _ = self._terms([], 0)
        rows: list[list[Ints]] = [[] for _ in free]
        pairs: list[dict[tuple[int, int], Ints]] = []
        for step in self.candidates:
            costs, edges, _ = self._terms([step], SCALE)
            for row, cost, base in zip(rows, costs, free):
                row.append(cost - base)
            here: dict[tuple[int, int], Ints] = {}
            for i, (a, b, table) in enumerate(edges):
                more = table - plain[i][2] if i < len(plain) else table
                if more.any():
                    here[a, b] = here[a, b] + more if (a, b) in here else more
            pairs.append(here)
        shapes = {key: table.shape for here in pairs for key, table in here.items()}
        every = {
            key: np.stack([here.get(key, np.zeros(shape, np.int64)) for here in pairs], 2)
            for key, shape in shapes.items()
        }
        return Room(self.limit, [np.stack(row, 1) for row in rows], every)

    def _held(self, one_copy: OneCopyPlan) -> int:
        return self.measure(one_copy.decode(self.about.mesh))

    def _any(self) -> OneCopyPlan | None:
        """The cheapest of all plans that came up and do fit."""
        for tried in sorted(self.tried, key=lambda one: one.cost):
            if int(tried.held.max()) <= self.limit and self._held(tried.one_copy) <= self.limit:
                return tried.one_copy
        return None

    def _by_ladder(self, free: Tried, bits: int, until: float | None) -> OneCopyPlan | None:
        """Where the count led astray: the first plan that fits at prices that rise by so many bits each, from next to
        nothing, which only decides between equals."""
        if not self.steps:
            self.steps = [max(self.candidates, key=lambda t: int(free.held[t]))]
        most = max(1, free.cost * SCALE // max(1, self._bytes(free)))
        for step in range(-MOST_PRICE_BITS, MOST_PRICE_BITS, bits):
            if until is not None and monotonic() > until:
                break
            rung = most << step if step >= 0 else most >> -step
            for rough in (True,) if bits > 1 else (True, False):
                self.at(min(max(1, rung), self._highest_price(free)), _left(until), rough)
            found = self._any()
            if found is not None:
                return found
        worst = {max(self.candidates, key=one.held.__getitem__) for one in self.tried}
        if bits > 1 or worst <= set(self.steps):
            return None
        # Where the price stood less was held then, but elsewhere more.
        self.steps = sorted(worst | set(self.steps))
        return self._by_ladder(free, bits, until)

    def _climb(self, one_copy: OneCopyPlan, until: float | None) -> OneCopyPlan:
        """A small graph's plan after all changes of one thing that pay and fit."""
        about, cost, changed = self.about, one_copy.cost, True
        while changed and (until is None or monotonic() < until):
            changed = False
            for other in neighbours(one_copy, about):
                less = other.cost
                if less < cost and int(other.held().max()) <= self.limit and self._held(other) <= self.limit:
                    one_copy, cost, changed = other, less, True
                    break
        return one_copy

    def _fitting(
        self, free: Tried, limit: int, high: Tried | None, until: float | None
    ) -> tuple[OneCopyPlan, Tried, bool]:
        """A plan that holds no more than this, by count."""
        if int(free.held.max()) <= limit:
            return free.one_copy, free, False
        if not self.steps:
            self.steps = [max(self.candidates, key=lambda t: int(free.held[t]))]
        low = free
        if high is not None and int(high.held.max()) > limit:
            low, high = high, None
        tried = moved = raised = 0
        late = False
        while tried < MOST_PRICES:
            tried += 1
            if until is not None and monotonic() > until:
                late = True
                break
            if high is None:
                raised += 1
                rough = self.stack is not None and raised <= SMALL_RAISES
                over = max(1, self._bytes(low) - limit * len(self.steps))
                step = max(1, low.cost // 25 * SCALE // over)
                asked = max(low.price * (2 if raised <= SMALL_RAISES else 8), step)
                found = self.at(min(asked, self._highest_price(free)), _left(until), rough)
                hopeless = self.bound > INFEASIBLE_AT * free.cost or found.price == self._highest_price(free)
                if hopeless and not rough and int(found.held.max()) > limit:
                    raise PlanInfeasible(
                        f"no plan fits: at node {self.steps[0]} every one holds more than the limit",
                        help="allow more memory, or take a larger mesh",
                    )
            else:
                crossing = self._crossing(low, high)
                if crossing is None:
                    break
                found = self.at(crossing, _left(until))
                if found.is_like(low) or found.is_like(high):
                    break
            worst = self._worst(found)
            if worst is not None and moved < MOST_MOVES:
                # The price stands at the wrong step: what was found with it is no line of the right one.
                moved += 1
                self.steps, low = [worst], found
                high = found if int(found.held.max()) <= limit else None
                continue
            if int(found.held.max()) <= limit:
                high = found
            else:
                low = found
        if high is None:
            raise PlanInfeasible(
                "no plan was found that fits in memory", help="there may be one: allow more time or memory"
            )
        best = self._between(limit, 1)
        for factor in (1, 8, 64, 512):
            if best.cost - self.bound <= GAP_WORTH_MORE_PRICES * self.bound or (
                until is not None and monotonic() > until
            ):
                break
            # Far apart: other prices give other plans, and what lies between them may be better.
            other = high.price * factor if factor > 1 else math.isqrt(low.price * high.price)
            self.at(min(other, self._highest_price(free)), _left(until))
            best = min(best, self._between(limit, PLANS_MIXED), self._cut(limit), key=lambda one_copy: one_copy.cost)
        return best, high, late

    def _crossing(self, low: Tried, high: Tried) -> int | None:
        """The price at which two plans are equally good; None if it is not between theirs."""
        apart = self._bytes(low) - self._bytes(high)
        if apart <= 0 or high.cost <= low.cost:
            return None
        found = (high.cost - low.cost) * SCALE // apart
        return found if low.price < found < high.price else None

    def _pairs(self, limit: int, count: int) -> Iterator[tuple[OneCopyPlan, OneCopyPlan]]:
        """Plans that are too large, with more expensive ones that fit."""
        fits = sorted((one for one in self.tried if int(one.held.max()) <= limit), key=lambda one: one.cost)[:count]
        large = sorted((one for one in self.tried if int(one.held.max()) > limit), key=lambda one: -one.cost)[:count]
        yield from ((low.one_copy, high.one_copy) for high in fits for low in large if low.cost < high.cost)

    def _between(self, limit: int, count: int) -> OneCopyPlan:
        """The best of what fits, and of what is between it and what is too large."""
        fits = [one for one in self.tried if int(one.held.max()) <= limit]
        found = [min(fits, key=lambda one: one.cost).one_copy]
        found += [mix(low, high, limit) for low, high in self._pairs(limit, count)]
        return min(found, key=lambda one_copy: one_copy.cost)

    def _cut(self, limit: int) -> OneCopyPlan:
        """One plan up to some place, another from there: by layers in a stack, else by nodes."""
        nodes, value = self._places()
        last = max(nodes, default=0) + 1
        best: OneCopyPlan | None = None
        for low, high in self._pairs(limit, 1):
            for first, second in ((low, high), (high, low)):
                for place in sorted({last * k // MOST_CUTS for k in range(1, MOST_CUTS)}):
                    one_copy = spliced(first, second, nodes, value, place)
                    if best is None or one_copy.cost < best.cost:
                        best = one_copy if int(one_copy.held().max()) <= limit else best
        return best if best is not None else self._between(limit, 1)

    def _places(self) -> tuple[Sequence[int], Callable[[int], int]]:
        """Of nodes and of values, where they come: in which layer, or which node is first to do with them."""
        if self.stack is not None:
            layers = self.stack.short.layers
            return layers.layer, layers.value_layer
        graph, lives = self.frame.graph, self.frame.lives.of
        places = [lives[v].read if one.producer is None else one.producer[0] for v, one in enumerate(graph.values)]
        return range(len(graph.nodes)), places.__getitem__

    def _highest_price(self, free: Tried) -> int:
        """The highest price with which costs are still whole numbers of 64 bits."""
        return REFUSED // 8 * SCALE // max(1, int(free.held.max()) * len(self.steps))

    def _bytes(self, tried: Tried) -> int:
        return int(sum(tried.held[t] for t in self.steps))

    def _worst(self, tried: Tried) -> int | None:
        """A step at which more is held than where the price stands; None if there is none to speak of."""
        worst = max(self.candidates, key=lambda t: int(tried.held[t]))
        here = max(int(tried.held[t]) for t in self.steps)
        return worst if int(tried.held[worst]) > here + (here >> EXCESS_SHIFT) else None


class _Irregular(Exception):
    """The layers do not come out equal."""


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.2, until - monotonic())


def fit(
    graph: Graph,
    about: Assigner,
    limit: int,
    stack: Stack | None,
    given: Mapping[int, ShardingSpec],
    out_specs: Mapping[int, ShardingSpec],
    time_limit: float | None,
    measure: Measure,
    solver: str = "auto",
) -> Assignment | None:
    """The best plan found that fits; None if a stack's layers do not come out equal."""
    began = monotonic()
    rules = [about.space.rules.get(n) for n in range(len(about.graph.nodes))]
    if stack is not None:
        places = {n: i for i, n in enumerate(stack.short.kept)}
        rules = [rules[places[stack.short.stand_in(n)]] for n in range(len(graph.nodes))]
    frame = Frame(graph, about.book, graph_roles(graph), rules, given, out_specs)
    work = Within(about, frame, limit, measure, stack, solver)
    try:
        complete, objective, late = work.search(time_limit)
    except _Irregular:
        return None
    about.book.check_gathers(objective)
    # Who reads first may take what lies there before the hub is made of it: no bound speaks of such a plan.
    speaks = work.bound <= objective or work.counted <= objective
    lower_bound = BoundError.unless(work.bound, objective) if speaks else 0
    return Assignment(lambda: complete, objective, lower_bound, "prices", late, monotonic() - began, about.hardware)


__all__ = ["Within", "fit"]
