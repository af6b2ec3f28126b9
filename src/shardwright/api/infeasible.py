"""Why there is no plan: a smallest set of the user's words that contradict, and what relaxing one of them gives.

Everything said here was found by solving.  Words are left out one after the other as long as there is still no plan;
what is left cannot be made smaller that way.  Then smaller sets are tried while that is cheap.  Last, each word of the
set is dropped alone, all others being kept, and memory is raised to the least limit with a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb, inf
from time import monotonic

from ..errors import PlanInfeasible
from ..plans import Plan, amount_text, duration
from ..plans.requests import Request
from ..solve.planner import Planner

SECONDS = 60.0
"""For all of it, unless less is left of the user's time limit."""
FINDING = 0.6
"""The part of it for finding the set; the rest is for what relaxing gives."""
EACH = 15.0
"""For one attempt at a plan."""
MOST_SETS = 120
"""So many smaller sets of words are tried at most."""
HALVINGS = 10
CLOSE = 1.01
"""Memory is close enough to the least when a limit that much smaller has no plan."""
_NO_LIMITS = ("uneven", "recipe")
UNDECIDED = "no choice that is allowed and fits was found"
"""How a solver says that it ran out of time."""


@dataclass
class _Judge:
    """Finds out for sets of words whether there is a plan that keeps them."""

    planner: Planner
    solver: str
    deadline: float
    plans: dict[frozenset[int], Plan | None] = field(default_factory=dict)
    unsure: bool = False
    missed: Plan | None = None
    """A plan that keeps everything after all, where one turned up."""

    @property
    def requests(self) -> tuple[Request, ...]:
        """What may be relaxed; a recipe and what the planner may do are no limits."""
        return tuple(r for r in self.planner.requested.requests if r.kind not in _NO_LIMITS)

    def plan(self, kept: Iterable[int]) -> Plan | None:
        key = frozenset(kept)
        if key not in self.plans:
            self.plans[key] = self.attempt([self.requests[i] for i in sorted(key)])
        return self.plans[key]

    def attempt(self, requests: list[Request]) -> Plan | None:
        seconds = min(EACH, self.deadline - monotonic())
        if seconds <= 0:
            self.unsure = True
            return None
        try:
            always = [r for r in self.planner.requested.requests if r.kind in _NO_LIMITS]
            return self.planner.keeping((*requests, *always)).best(self.solver, seconds)
        except PlanInfeasible as error:
            self.unsure = self.unsure or error.timed_out or error.fact.startswith(UNDECIDED)
            return None

    def impossible(self, kept: Iterable[int]) -> bool:
        """Whether it was found that there is no plan; not if that stayed open."""
        key = frozenset(kept)
        if any(key <= known for known, made in self.plans.items() if made is not None):
            return False
        before, self.unsure = self.unsure, False
        found = self.plan(key) is None and not self.unsure
        if self.unsure:
            self.plans.pop(key, None)
        self.unsure = self.unsure or before
        return found


def diagnosed(planner: Planner, error: PlanInfeasible, solver: str, left: float = inf) -> PlanInfeasible | Plan:
    """The error to raise where no plan was found; or a plan that turns up within the very limit, looked for by others;
    ``left`` are the seconds that are left of the user's time limit.

    Such a plan is one of a smaller limit, so that its bound says nothing.
    """
    seconds = max(0.0, min(SECONDS, left))
    judge = _Judge(planner, solver, monotonic() + FINDING * seconds)
    if not judge.requests or planner.requested.recipe is not None:
        return error
    core = _smallest(judge)
    words = [judge.requests[i] for i in core]
    fact = "no plan was found that keeps " + ("this" if len(words) == 1 else f"these {len(words)} together")
    rows = [("user", str(word)) for word in words]
    if judge.unsure:
        rows.append(("note", "time ran out, so there may be a smaller set, or a plan"))
    judge.deadline, judge.unsure = monotonic() + (1 - FINDING) * seconds, False
    ways = [way for i in core if (way := _relaxed(judge, i)) is not None]
    if judge.missed is not None:
        return replace(judge.missed, lower_bound=0)
    lines = [f"{text}: {duration(cost)} a step" for cost, text in sorted(ways)]
    if judge.unsure:
        lines.append("time ran out before all was tried" if ways else "time ran out before a remedy was found")
    elif not ways:
        more = len(judge.requests) > len(core)
        lines.append("relaxing one of them is not enough: others contradict, too" if more else "take a larger mesh")
    return PlanInfeasible(fact, rows=rows, help="\n".join(lines))


def _smallest(judge: _Judge) -> list[int]:
    """A smallest set of words that contradict, as far as time allows."""
    words = judge.requests
    for i, word in enumerate(words):  # what no plan of the program keeps, whatever else is asked for
        if (word.memory is not None or word.gathered is not None) and judge.impossible([i]):
            return [i]
    clash = judge.planner.requested.contradiction
    if clash:  # two that contradict by what they say
        return [i for i, word in enumerate(words) if any(word is other for other in clash)]
    return _smaller(judge, _irreducible(judge, list(range(len(words)))))


def _irreducible(judge: _Judge, kept: list[int]) -> list[int]:
    """Leave out parts, ever smaller ones, as long as there is still no plan."""
    size = max(1, len(kept) // 2)
    while True:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if rest and judge.impossible(rest):
                kept = rest
            else:
                at += size
        if size == 1:
            return kept
        size = max(1, size // 2)


def _smaller(judge: _Judge, core: list[int]) -> list[int]:
    """A set with fewer words, if one is found among few enough."""
    count, tried = len(judge.requests), 0
    for size in range(1, len(core)):
        tried += comb(count, size)
        if tried > MOST_SETS:
            break
        for kept in combinations(range(count), size):
            if judge.impossible(kept):
                return list(kept)
    return core


def _relaxed(judge: _Judge, i: int) -> tuple[int, str] | None:
    """The objective without one word, or with more memory, and how to say it."""
    word = judge.requests[i]
    others = [k for k in range(len(judge.requests)) if k != i]
    found = judge.plan(others)
    if found is None:
        return None
    if word.memory is None:
        return found.cost.objective, f"without {word} there is a plan"
    low, high = word.memory, found
    for _ in range(HALVINGS):
        if high.memory <= low * CLOSE or high.memory <= low + 1:
            break
        middle = (low + high.memory) // 2
        limit = Request("memory", middle)
        made = judge.attempt([*(judge.requests[k] for k in others), limit])
        if made is None:
            low = middle
        else:
            high = made
    need = high.memory
    if need <= word.memory:
        judge.missed = high
    return high.cost.objective, f"with memory={need} ({amount_text(need)}) there is a plan"
