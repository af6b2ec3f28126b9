"""`fastest`: the plan whose schedule takes least, and a bound that no schedule of any plan beats.

What a step takes is the time of its scheduled Program, which no sum over ops says.  So sums stand in for it: for each
of `STAND_INS` the best plan by that sum is found exactly, where the graph folds or is small, and by message passing
else.  Each is lowered, ordered and simulated, and the fastest that fits is taken; of equal ones the first.

A deep stack of equal layers is simulated by its short one first (`repeated.depth`), in full only if that comes near the
best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

from ..cost.machine import Hardware, Overlap
from ..errors import PlanInfeasible
from ..ir.graph import Graph
from ..optimize import solver_named
from ..optimize.compact import OutOfTime
from ..plans.asked import Asked
from ..plans.complete import Complete
from ..spec.mesh import DeviceMesh
from .bound import WHOLE, Neighbours, Shares, shares_of, weighted_price
from .exact import EXACT, Prepared, best_plan
from .model import Assignment
from .repeated.depth import deep_time

STAND_INS = (
    Overlap(50, 50, 100),
    Overlap(10, 10, 100),
    Overlap(50, 50, 50, 50),
    Overlap(99, 100, 100, 100, bucketed=True),
    Overlap(10, 10, 100, 100, bucketed=True),
)
"""What a sum may count of gathered weights, reduced gradients, new state and all else, in percent.  On fifteen models
and meshes no single one came within 5% of the best everywhere, and more of them than these gained nothing."""
NEARLY = 1.015
"""A deep plan is simulated in full if its estimate is no more than this part of the least one."""
FULL = 2
"""So many deep plans are, at most."""


@dataclass(frozen=True)
class Judged:
    """A plan, and what its schedule takes."""

    assignment: Assignment
    time: int
    memory: int


Judge = Callable[[Complete], tuple[int, int]]
"""What a plan's schedule takes, and the most bytes that a device holds."""


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

    def left(self) -> float:
        return max(0.1, self.until - monotonic())

    def is_over(self) -> bool:
        over = monotonic() > self.until
        self.late = self.late or over
        return over

    # -- candidates ---------------------------------------------------------------------------------------

    def candidates(self) -> Iterator[Assignment]:
        """The best plans by each sum."""
        for i, overlap in enumerate(STAND_INS):
            if i and self.is_over():
                return
            try:
                found = self.by(overlap)
            except OutOfTime:
                self.late = True
                return
            self.late = self.late or found.timed_out
            yield found

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
        complete = found.complete
        key = hash((complete.inputs, tuple(decision[2:] for decision in complete.decisions)))
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _near(self, found: Sequence[Assignment]) -> list[Assignment]:
        """Of deep plans those that are worth a full schedule, the fastest first."""
        if len(found) < 2 or any(one.short is None for one in found):
            return list(found)
        short = next(self.prepared.stacks(self.hardware)).short
        times = [deep_time(short, one.short, self.hardware) for one in found if one.short is not None]
        near = [i for i in sorted(range(len(found)), key=lambda i: (times[i], i)) if times[i] <= NEARLY * min(times)]
        return [found[i] for i in near[:FULL]]

    @property
    def best(self) -> Judged | None:
        """The fastest that fits."""
        fits = [one for one in self.judged if one.memory <= self.limit]
        return min(fits, key=lambda one: (one.time, one.memory), default=None)

    def fit(self, sums: int = 2) -> None:
        """Plans within the limit, by the sums whose plans were fastest without one."""
        asked = self.asked.limited(self.limit)
        failed: PlanInfeasible | None = None
        order = sorted(self.judged, key=lambda one: one.time)
        overlaps = list(dict.fromkeys(one.assignment.hardware.overlap for one in order))
        known = [overlap for overlap in overlaps if overlap in STAND_INS]
        for overlap in [*known, *(o for o in STAND_INS if o not in known)][:sums]:
            if self.judged and self.best is not None and self.is_over():
                break
            hardware = self.hardware.with_overlap(overlap)
            try:
                found = best_plan(
                    self.graph, self.mesh, hardware, asked, solver=self.solver, time_limit=self.left(),
                    prepared=self.prepared,
                )  # fmt: skip
            except PlanInfeasible as error:
                failed = failed or error
                continue
            except OutOfTime:
                self.late = True
                break
            self.late = self.late or found.timed_out
            if self._is_new(found):
                self.judged.append(Judged(found, *self.judge(found.complete)))
        if self.best is None and failed is not None:
            raise failed

    # -- the bound ----------------------------------------------------------------------------------------

    def raise_bound(self) -> None:
        """Raise the bound by one choice of shares after the other, as long as it rises: in a row it does so up to some
        place, and then falls."""
        if self.is_over() or self.prepared.is_joined:
            return
        for row in shares_of(self.hardware, self.mesh.axes):
            before = self.lower_bound
            for shares in row:
                if self.is_over():
                    return
                try:
                    bound = self.bound(shares)
                except OutOfTime:
                    self.late = True
                    return
                if bound <= self.lower_bound:
                    break
                self.lower_bound = bound
            if before and self.lower_bound > before:
                return

    def bound(self, shares: Shares) -> int:
        """No plan takes less, by these shares."""

        def price(*about: object) -> int:
            return weighted_price(shares, *about)  # type: ignore[arg-type]

        part = (shares.compute, WHOLE)
        if solver_named(self.solver).ACCEPTS.message_passing:
            for stack in self.prepared.stacks(self.hardware, price, part):
                both = stack.optimum(True, self.left(), Neighbours.of(stack.assigner, shares.compute), False, True)
                if both is not None:
                    return both[0].lower_bound
        about = self.prepared.whole(self.hardware, price, part)
        extra = Neighbours.of(about, shares.compute)
        rough = sum(map(len, about.ways)) > EXACT
        return about.optimum(True, self.solver, self.left(), None, extra, rough, not rough).lower_bound


__all__ = ["STAND_INS", "Judged", "Scheduled"]
