"""The best choice for a deep stack by elimination, layer after layer.

Layers are linked to the next ones by a few variables, their *boundaries*.  Of an inner layer everything but its
boundary is eliminated once.  What all layers so far cost is then a sum over the last two boundaries and what is of no
layer; adding a layer and eliminating the older boundary gives the next such sum.  After a few layers these sums come
again, but for a constant, and so does all that follows from them: depth costs next to nothing, and the optimum is
exact.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...optimize.bucket import Elimination, Factor, Memo, Scope, Step, TooWide, factors_of, pick_back
from ...optimize.problem import Ints
from .deep import DeepChoice, Inner

MOST = 1 << 58
"""What costs more is as good as forbidden: sums over many layers must not run over."""


def solve_chain(inner: Inner, out: int) -> DeepChoice | None:
    """The best choice with ``out`` layers put back; None if that takes too large tables."""
    try:
        return _Chain(inner, out).solve()
    except TooWide:
        return None


@dataclass(frozen=True)
class _Sum:
    """What is left of a sum after some variables were eliminated."""

    factors: list[Factor]
    """At least zero, and zero somewhere for each choice of what is of no layer."""
    least: list[Factor]
    """What that choice costs beside; of no variable: a constant."""
    steps: Sequence[Step]


class _Chain:
    def __init__(self, inner: Inner, out: int) -> None:
        self.inner, self.out = inner, out
        self.here = here = inner.low - 1
        self.memo = Memo()
        self.of_none = {i for i, layer in enumerate(inner.layer) if layer < 0}
        self.sizes = [row.size for row in inner.small.problem.costs]
        self.places = self._places()
        self.body, self.boundary = self.members(here, False), self.members(here, True)
        self.next_boundary = [inner.at[here + 1, inner.key[i]] for i in self.boundary]
        self.older = dict(zip(self.next_boundary, self.boundary))
        """Of boundaries the variable in the same place one layer before."""
        for i in self.boundary:
            like = inner.at.get((here - 1, inner.key[i]), -1)
            if like < 0 or self.sizes[like] != self.sizes[i]:
                # The layer before is a first one, and nothing links its like to this one; later ones are as they are.
                like = len(self.sizes)
                self.sizes.append(self.sizes[i])
            self.older[i] = like

    def _places(self) -> set[Hashable]:
        """Places in a layer such that each link between inner layers has one of them; those with most links first."""
        inner, here = self.inner, self.here
        links = [
            {inner.key[edge.first], inner.key[edge.second]}
            for edge in inner.small.problem.edges
            if {inner.layer[edge.first], inner.layer[edge.second]} == {here, here + 1}
        ]
        found: set[Hashable] = set()
        while links:
            times: dict[Hashable, int] = {}
            for link in links:
                for key in link:
                    times[key] = times.get(key, 0) + 1
            most = max(times.values())
            # Sets have no order that lasts, links do.
            found.add(next(key for i in range(len(inner.key)) if times.get(key := inner.key[i]) == most))
            links = [link for link in links if found.isdisjoint(link)]
        return found

    def members(self, layer: int, boundary: bool) -> list[int]:
        """The variables of a layer that are of its boundary, or those that are not."""
        about = enumerate(zip(self.inner.layer, self.inner.key))
        return [i for i, (own, key) in about if own == layer and (key in self.places) == boundary]

    def parts(self) -> tuple[list[Factor], list[Factor], list[Factor]]:
        """What the layers before the inner one cost, and its boundary; what its body and the next boundary add; the
        rest."""
        here, layer, body = self.here, self.inner.layer, set(self.body)
        boundaries = {*self.boundary, *self.next_boundary}
        before: list[Factor] = []
        added: list[Factor] = []
        rest: list[Factor] = []
        for factor in factors_of(self.inner.small.problem):
            mine = [at for at in factor[0] if layer[at] >= 0]
            last = max([layer[at] for at in mine], default=-1)
            if not body.isdisjoint(mine) or (last == here + 1 and boundaries.issuperset(mine)):
                added.append(factor)
            else:
                (before if 0 <= last <= here else rest).append(factor)
        return before, added, rest

    def without(self, factors: Iterable[Factor], variables: Collection[int]) -> _Sum:
        """The sum of factors, with some variables eliminated."""
        work = Elimination(self.sizes, factors, self.memo)
        work.run([at for at in variables if at in work.factors])
        left: list[Factor] = []
        least: list[Factor] = [((), np.array(work.least))]
        for scope, array in work.left().items():
            mine = tuple(i for i, at in enumerate(scope) if at not in self.of_none)
            low = array.min(mine, keepdims=True)
            least.append((tuple(at for at in scope if at in self.of_none), low.squeeze(mine)))
            if mine:
                left.append((scope, self.memo.same(array - low)))
        return _Sum(left, least, work.steps)

    def solve(self) -> DeepChoice:
        here, layer, out = self.here, self.inner.layer, self.out
        before, added, rest = self.parts()
        body = self.without(added, self.body)
        oldest = self.members(here - 1, True)
        start = self.without(before, [i for i, own in enumerate(layer) if 0 <= own < here and i not in oldest])
        oldest = [*oldest, *(self.older[i] for i in self.boundary)]
        known: dict[object, _Sum] = {}
        sums = [start]
        for turn in range(out + 1):
            so_far = self.moved(sums[-1].factors) if turn else start.factors
            state = tuple([(scope, id(array)) for scope, array in so_far])
            if state not in known:
                known[state] = self.without([*so_far, *body.factors], oldest)
            sums.append(known[state])
        least = _added([one.least for one in sums] + [body.least] * (out + 1))
        constant = int(least.pop(())) + self.offset
        # The next body first and alone: it is mostly like the one before, of which all is known.
        following = set(self.members(here + 1, False))
        upper = self.without([factor for factor in rest if not following.isdisjoint(factor[0])], following)
        others = [factor for factor in rest if following.isdisjoint(factor[0])]
        above = [i for i, own in enumerate(layer) if (own > here or own < 0) and i not in following]
        end = self.without(
            [*sums[-1].factors, *upper.factors, *upper.least, *others, *least.items()], [*self.boundary, *above]
        )
        cost = constant + int(end.least[0][1])
        return DeepChoice(
            self.inner, out, self.picks(sums, body, [*upper.steps, *end.steps]), cost, cost, False, "elimination"
        )

    def moved(self, factors: Sequence[Factor]) -> list[Factor]:
        """The same for boundaries one layer before."""
        found = []
        for scope, array in factors:
            names = [self.older.get(at, at) for at in scope]
            order = sorted(range(len(names)), key=names.__getitem__)
            if order != sorted(order):
                array = self.memo.same(np.ascontiguousarray(array.transpose(order)))
            found.append((tuple(sorted(names)), array))
        return found

    @property
    def offset(self) -> int:
        small = self.inner.small
        return small.offset + self.out * small.offsets.get(self.here, 0)

    def picks(self, sums: Sequence[_Sum], body: _Sum, end: Sequence[Step]) -> list[Ints]:
        """The way back, from the last layer to the first."""
        here, layer, out = self.here, self.inner.layer, self.out
        choice = [0] * len(self.sizes)
        pick_back(end, choice)
        above = list(choice)
        mine = [*self.boundary, *self.body]
        boundaries = [*self.next_boundary, *self.boundary, *(self.older[i] for i in self.boundary)]
        found = np.zeros((out + 1, len(mine)), np.int64)
        known: dict[tuple[int, ...], list[int]] = {}
        for turn in range(out, -1, -1):
            pick_back(sums[turn + 1].steps, choice)
            state = tuple([choice[at] for at in boundaries])
            if state not in known:
                pick_back(body.steps, choice)
                known[state] = [choice[at] for at in mine]
            found[turn] = known[state]
            if turn:
                for at, older in self.older.items():
                    choice[at] = choice[older]
        pick_back(sums[0].steps, choice)
        picks = [np.array([(choice if own < here else above)[i]]) for i, own in enumerate(layer)]
        for at, column in zip(mine, found.T):
            picks[at] = np.ascontiguousarray(column)
        return picks


def _added(sums: Iterable[Iterable[Factor]]) -> dict[Scope, Ints]:
    found: dict[Scope, Ints] = {}
    for one in sums:
        for scope, array in one:
            found[scope] = np.minimum(found[scope] + array, MOST) if scope in found else array
    return found
