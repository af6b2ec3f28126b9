"""`fastest`: the plan whose schedule takes least, and a bound that no schedule of any plan beats.

What a step takes is the time of its scheduled Program, which no sum over ops says.  So sums stand in for it: for each
of `STAND_INS` the best plan by that sum is found exactly, where the graph folds or is small, and by message passing
else.  Some count more what no order hides: moves between ops that are computed one right after the other.  Each plan is
lowered, ordered and simulated, and the fastest that fits is taken; of equal ones the first.

A deep stack of equal layers is simulated by its short one first (`repeated.depth`), in full only if that comes near the
best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import NamedTuple

from ..cost.machine import Hardware, Overlap
from ..errors import PlanInfeasible
from ..ir.graph import Graph
from ..optimize import solver_named
from ..optimize.compact import OutOfTime
from ..plans.asked import Asked
from ..plans.complete import Complete
from ..spec.mesh import DeviceMesh
from .assignment import Assignment
from .bound import WHOLE, Neighbours, Shares, shares_of, weighted_price
from .exact import EXACT, Prepared, best_plan
from .repeated.depth import deep_time
from .tighten import tighten


class StandIn(NamedTuple):
    """What a sum counts of communication."""

    overlap: Overlap
    """Of gathered weights, reduced gradients, new state and all else, in percent."""
    between: int = 0
    """Of moves between ops that are computed one right after the other, so much more, in parts of `WHOLE`: nothing can
    hide those."""


STAND_INS = (
    StandIn(Overlap(50, 50, 100)),
    StandIn(Overlap(10, 10, 100)),
    StandIn(Overlap(99, 100, 100, 100, bucketed=True)),
    StandIn(Overlap(10, 10, 100, 100, bucketed=True)),
    StandIn(Overlap(50, 50, 50, 50), 500),
    StandIn(Overlap(30, 30, 30, 30, bucketed=True), 700),
)
"""On fifteen models and meshes no single one came within 5% of the best everywhere, and more of them than these gained
nothing.  Those between neighbours come last: they may need more layers of a short stack."""
UNFOLDED = StandIn(Overlap(100, 20, 100, 100, bucketed=True))
"""One more where a graph does not fold: gathers have less to hide behind than reductions.  U-Net, batch 16 on 8x8,
3.35 ms, then 3.16; T5 of two layers 11.81, then 11.33; where graphs folded it gained nothing."""
NEARLY = 1.015
"""A deep plan is simulated in full if its estimate is no more than this part of the least one."""
SLOWER, MUCH_SLOWER = 1.005, 1.2
"""Where what fits takes more than this part of the fastest plan that does not, it is looked for by some sums, or by
all."""
ROOM = 12
"""Percent of a limit of memory that are left for what is under way, where without them nothing hides."""
FULL = 2
"""So many deep plans are, at most."""


@dataclass(frozen=True)
class Judged:
    """A plan, and what its schedule takes."""

    assignment: Assignment
    time: int
    memory: int
    free: int
    """What it takes by an order that need not fit."""
    communication: int
    """What its collectives take, hidden or not."""


Judge = Callable[[Complete], tuple[int, int, int, int]]
"""What a plan's schedule takes, the most bytes that a device holds, what it would take without a limit, and what its
collectives take."""


@dataclass
class Scheduled:
    """The search for one graph."""

    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    asked: Asked
    """Without a limit of memory."""
    limit: int
    """Bytes of a device."""
    judge: Judge
    until: float
    solver: str = "auto"
    late: bool = False
    """Whether time was up before all was looked at."""
    lower_bound: int = 0
    judged: list[Judged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prepared = Prepared(self.graph, self.mesh, self.hardware, self.asked, self.until)
        self._seen: set[object] = set()
        self.beside_is_higher: bool | None = None
        """Whether bounds with neighbours are above those without, where that is known."""

    def left(self) -> float:
        return max(0.1, self.until - monotonic())

    def is_over(self) -> bool:
        over = monotonic() > self.until
        self.late = self.late or over
        return over

    # -- candidates ---------------------------------------------------------------------------------------

    def candidates(self) -> Iterator[Assignment]:
        """The best plans by each sum."""
        folds = False
        for i, stand_in in enumerate((*STAND_INS, UNFOLDED)):
            if i and (self.is_over() or (folds and stand_in is UNFOLDED)):
                return
            try:
                found = self.beside(stand_in) if stand_in.between else self.by(stand_in.overlap)
            except OutOfTime:
                self.late = True
                return
            if found is not None:
                self.late, folds = self.late or found.timed_out, found.short is not None
                yield found

    def beside(self, stand_in: StandIn) -> Assignment | None:
        """The best plan by a sum that counts moves between neighbours more than others; None if it gathers more than it
        may."""
        hardware = self.hardware.with_overlap(stand_in.overlap)
        try:
            if solver_named(self.solver).ACCEPTS.message_passing:
                for stack in self.prepared.stacks(hardware):
                    both = stack.optimum(True, self.left(), Neighbours.of(stack.assigner, stand_in.between, False))
                    if both is not None:
                        found, plan = both[0], both[1].tight()
                        stack.assigner.book.check_gathers(plan.objective)
                        return plan.assigned(plan.objective, 0, found.solver, found.timed_out, 0)
            about = self.prepared.whole(hardware)
            rough = sum(map(len, about.ways)) > EXACT
            extra = Neighbours.of(about, stand_in.between, False)
            found = about.optimum(True, self.solver, self.left(), None, extra, rough)
            objective = about.objective(found.choice)
            about.book.check_gathers(objective)
            tight = tighten(about, found.choice)
            return Assignment(lambda: about.decode(tight), objective, 0, found.solver, found.timed_out, 0, hardware)
        except PlanInfeasible:
            return None

    def by(self, overlap: Overlap) -> Assignment:
        hardware = self.hardware.with_overlap(overlap)
        return best_plan(
            self.graph, self.mesh, hardware, self.asked, solver=self.solver, time_limit=self.left(),
            prepared=self.prepared, rough=True,
        )  # fmt: skip

    def search(self) -> None:
        """Judge all candidates."""
        found = [one for one in self.candidates() if self._is_new(one)]
        for one in self._near(found):
            if self.judged and self.is_over():
                return
            self.judged.append(Judged(one, *self.judge(one.complete)))

    def _is_new(self, found: Assignment) -> bool:
        key = found.decided
        if key is None:
            complete = found.complete
            key = hash((complete.inputs, tuple(decision[2:] for decision in complete.decisions)))
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _near(self, found: Sequence[Assignment]) -> list[Assignment]:
        """Of deep plans those that are worth a full schedule, the fastest first."""
        if len(found) < 2 or any(one.short is None for one in found):
            return list(found)
        times = [deep_time(*one.short, self.hardware) for one in found if one.short is not None]
        near = [i for i in sorted(range(len(found)), key=lambda i: (times[i], i)) if times[i] <= NEARLY * min(times)]
        return [found[i] for i in near[:FULL]]

    @property
    def best(self) -> Judged | None:
        """The fastest that fits."""
        fits = [one for one in self.judged if one.memory <= self.limit]
        return min(fits, key=lambda one: (one.time, one.memory), default=None)

    def suffers(self, part: float = SLOWER) -> bool:
        """Whether the limit makes what fits slower than what does not."""
        return self.best is None or self.best.time > part * min(one.free for one in self.judged)

    def fit(self, sums: int = 3) -> None:
        """Plans within the limit, by the sums whose plans were fastest without one, and by all while it hurts.

        What is searched for fits with one instruction after the other.  Some room is left for what is under way; where
        that makes what fits too slow, or nothing is found, once more without.
        """
        failed: PlanInfeasible | None = None
        order = sorted(self.judged, key=lambda one: one.free)
        overlaps = [one.assignment.hardware.overlap for one in order]
        for i, overlap in enumerate(dict.fromkeys((*overlaps, *(one.overlap for one in STAND_INS)))):
            for room in (ROOM, 0):
                if not self.suffers(SLOWER if i < sums else MUCH_SLOWER):
                    return
                if self.is_over():
                    break
                try:
                    self._fit(overlap, self.limit * (100 - room) // 100)
                except PlanInfeasible as error:
                    failed = failed or (None if room else error)
                except OutOfTime:
                    self.late = True
                    break
        if self.best is None and failed is not None:
            raise failed

    def _fit(self, overlap: Overlap, limit: int) -> None:
        found = best_plan(
            self.graph, self.mesh, self.hardware.with_overlap(overlap), self.asked.limited(limit), solver=self.solver,
            time_limit=self.left(), prepared=self.prepared,
        )  # fmt: skip
        self.late = self.late or found.timed_out
        if self._is_new(found):
            self.judged.append(Judged(found, *self.judge(found.complete)))

    # -- the bound ----------------------------------------------------------------------------------------

    def raise_bound(self) -> None:
        """Raise the bound by one choice of shares after the other, as long as it rises: in a row it does so up to some
        place, and then falls."""
        try:
            self._raise_bound()
        except OutOfTime:
            self.late = True

    def _raise_bound(self) -> None:
        if self.is_over() or self.prepared.is_joined:
            return
        for row in shares_of(self.hardware, self.mesh.axes):
            before = self.lower_bound
            for shares in row:
                if self.is_over():
                    return
                if not self.may_raise(shares):
                    break
                bound = self.bound(shares)
                if bound <= self.lower_bound:
                    break
                self.lower_bound = bound
            if before and self.lower_bound > before:
                return

    def may_raise(self, shares: Shares) -> bool:
        """Whether the bound may be higher by these: it is not above what some plan's step and its links come to."""
        part, links = shares.compute, WHOLE - shares.compute
        least = min([part * one.time + links * one.communication for one in self.judged], default=inf)
        return least > WHOLE * self.lower_bound

    def bound(self, shares: Shares) -> int:
        """No plan takes less, by these shares."""

        def price(*about: object) -> int:
            return weighted_price(shares, *about)  # type: ignore[arg-type]

        def by_stack(extra: Neighbours | None) -> int | None:
            found = stack.optimum(True, self.left(), extra, False, True)
            return None if found is None else found[0].lower_bound

        def by_graph(extra: Neighbours | None) -> int:
            return about.optimum(True, self.solver, self.left(), None, extra, rough, not rough).lower_bound

        part = (shares.compute, WHOLE)
        if solver_named(self.solver).ACCEPTS.message_passing:
            for stack in self.prepared.stacks(self.hardware, price, part):
                bound = self._higher(Neighbours.of(stack.assigner, shares.compute), by_stack)
                if bound is not None:
                    return bound
        about = self.prepared.whole(self.hardware, price, part)
        rough = sum(map(len, about.ways)) > EXACT
        return self._higher(Neighbours.of(about, shares.compute), by_graph) or 0

    def _higher(self, between: Neighbours, bound: Callable[[Neighbours | None], int | None]) -> int | None:
        """The higher of the bounds with neighbours and without; which it is, the first shares say for the others."""
        if not between.left_out:
            return bound(between)
        if self.beside_is_higher is not None:
            return bound(between if self.beside_is_higher else None)
        beside = bound(between)
        if beside is None:
            return None
        alone = bound(None) or 0
        self.beside_is_higher = beside >= alone
        return max(beside, alone)


__all__ = ["STAND_INS", "Judged", "Scheduled"]
