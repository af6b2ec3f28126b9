"""The attack: before rules are stated, fresh calls are drawn inside the regions that they claim, and run.

A call on which a rule fails goes back to the search as a counter-example (`synthesize`): the rule is narrowed and
attacked again, or dropped.  This is synthesis guided by counter-examples.  What was not tried on a call stays unknown.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..calls.fresh import Drawer
from ..judging.encode import ENCODINGS, MANY_ROUNDINGS, assemble, same
from ..judging.oracle import Oracle
from ..operator import Array, Operator, Sample
from ..placement import KINDS, Placement, R
from ..table import GRADES, Inputs, Table
from .cases import Situation

Row = tuple[Inputs, tuple[Placement, ...]]
WORLDS = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Strength:
    """How many fresh calls are drawn."""

    calls: int = 32
    """Calls drawn near any call at hand."""
    seeds: int = 6
    """Calls around which everything is changed once: of those at hand, and of those on which each rule holds."""
    around: int = 160
    """Such changes of one call."""
    per_rule: int = 16
    """Calls inside the region of each rule, drawn near calls on which it holds."""
    tries: int = 4
    """Draws for one such call."""
    rounds: int = 20
    """Narrowings before what still fails is dropped."""
    rows: int = 1500
    """Rows tried on calls that were drawn after the last narrowing."""
    most: int = 4000
    """Calls drawn in all."""
    trials: int = 9
    """Ways to cut or split that are tried for one row of one call, at most: by turns, so that all come up."""
    more: int = 6000
    """Combinations of placements tried, when rules have withstood, of fresh calls that none at hand is like: some may
    hold that no call at hand shows."""


FULL = Strength()
LIGHT = Strength(calls=16, seeds=3, around=90, per_rule=8, tries=3, rounds=16, rows=400, most=1800, more=2500)
SWIFT = Strength(calls=8, seeds=1, around=32, per_rule=4, tries=2, rounds=8, rows=60, most=160, more=0)
"""For all operators in one go."""


@dataclass
class Target:
    """A fresh call, and what was found of it: a table that knows only what was tried."""

    situation: Situation
    oracle: Oracle
    turn: int = 0
    """What is tried beside even shards changes from row to row."""
    trials: int = 9
    """Ways to cut or split that are tried for one row, at most."""
    finite: bool = True
    claimed: dict[object, list[Row]] = field(default_factory=dict)
    """The rows that rules claim here, by the rules' keys."""

    @property
    def table(self) -> Table:
        return self.oracle.table

    def try_row(self, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool | None:
        """Whether a row holds here, tried on a few meshes; None where this call cannot tell."""
        answers = self.table.answers
        assert answers is not None
        if any(p.kind == "S" and p.dim >= want.ndim for p, want in zip(outputs, self.oracle.truth)):
            answers[inputs, outputs] = False
        if (inputs, outputs) not in answers:
            judge = self._tried if self.finite else self._contradicted
            answers[inputs, outputs] = judge(inputs, outputs) if self._can_tell(inputs, outputs) else None
        return answers[inputs, outputs]

    def _can_tell(self, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool:
        oracle = self.oracle
        if any(p not in choices for p, choices in zip(inputs, oracle.choices)):
            return False  # an index that would be pending, an average of whole numbers
        return not any(p.kind == "P" and p.reduce not in kinds for p, kinds in zip(outputs, self.table.kinds))

    def _contradicted(self, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool | None:
        """False where finite numbers differ.  No more can be told of others: kernels overflow to one infinity or NaN
        or another, as they are vectorised, and a part of an infinite sum has no finite rest."""
        oracle = self.oracle
        world = oracle.even_world(inputs)
        if any(p.kind == "P" for p in (*inputs, *outputs)):
            return None
        if any(oracle.grade(inputs, world, i, p) != "even" for i, p in enumerate(outputs)):
            return None
        ran = False
        for sized, results in oracle.outcomes(inputs, world, ENCODINGS[0]):
            ran = True
            if sized is not None or len(results) != len(outputs):
                return None
            for parts, want, placement in zip(results, oracle.truth, outputs):
                whole = assemble(parts, placement)
                if whole is not None and whole.shape == want.shape and whole.dtype.kind in "fc":
                    told = np.isfinite(whole) & np.isfinite(want)
                    if not same(np.where(told, whole, 0), np.where(told, want, 0)):
                        return False
        return None if ran else False  # whatever the numbers, it does not run on shards

    def _tried(self, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool | None:
        table = self.table
        for world, encoding in self._trials(inputs, outputs):
            table.errors.pop(inputs, None)  # type: ignore[attr-defined]
            held = self.oracle.bears_out(inputs, outputs, world, encoding)
            if not all(held):
                roughly = self.oracle.bears_out(inputs, outputs, world, encoding, MANY_ROUNDINGS)
                if all(roughly):
                    return None
            for index, (placement, holds) in enumerate(zip(outputs, held)):
                key = (inputs, index, placement)
                grade = self.oracle.grade(inputs, world, index, placement)
                if holds:
                    table.seen.setdefault(key, set()).add(grade)
                elif grade == "even":
                    return False
                else:
                    better = GRADES[GRADES.index(grade) - 1]
                    limit = table.grades.get(key, better)
                    table.grades[key] = GRADES[min(GRADES.index(better), GRADES.index(limit))]
                    if grade == "empty" and inputs not in table.errors:
                        table.silent.add(key)
        unknown = self.situation.degenerate
        for index, placement in enumerate(outputs):
            key = (inputs, index, placement)
            limit = table.grades.setdefault(key, "empty")
            # It fails on worse shards, and no better ones could be cut; or what holds says nothing.
            uncut = not table.seen.get(key, set()) & set(GRADES[: GRADES.index(limit) + 1])
            unknown = unknown or uncut or bool(self.oracle.says_nothing(inputs, index, placement, [self.oracle]))
        return None if unknown else True

    def _trials(self, inputs: Inputs, outputs: tuple[Placement, ...]) -> Iterator[tuple[int, str]]:
        """On even shards, then by turns: parts of another kind; even shards of another size, uneven and empty ones, as
        far as there are devices to cut so."""
        even = self.oracle.even_world(inputs)
        yield even, ENCODINGS[0]
        self.turn += 1
        yield from itertools.islice(self._more_trials(inputs, outputs, even, self.turn), self.trials - 1)

    def _more_trials(
        self, inputs: Inputs, outputs: tuple[Placement, ...], even: int, turn: int
    ) -> Iterator[tuple[int, str]]:
        pending = any(p.kind == "P" for p in inputs)
        if pending and turn % 2:
            yield even, ENCODINGS[1 + turn % 3]
        others = [world for world in WORLDS if world != even]
        first = turn // 2 % len(others)
        tried: set[str] = set()
        for world in (*others[first:], *others[:first]):
            grade = self._worst_grade(inputs, outputs, world)
            if grade not in tried:  # where nothing is cut, one number of devices will do
                tried.add(grade)
                yield world, ENCODINGS[0]
        if pending and not turn % 2:
            yield even, ENCODINGS[1 + turn % 3]

    def _worst_grade(self, inputs: Inputs, outputs: tuple[Placement, ...], world: int) -> str:
        grades = (self.oracle.grade(inputs, world, i, p) for i, p in enumerate(outputs))
        return max(grades, key=GRADES.index)


@dataclass
class Pool:
    """Fresh calls of an operator with these tensors, drawn as they are asked for."""

    operator: Operator
    drawer: Drawer
    dim_names: Sequence[str]
    inserts: int
    like: Table
    """A table of such a call: its number of tensors and of results."""
    most: int = 1 << 30
    trials: int = 9
    """Of each row on each call, at most."""
    targets: list[Target] = field(default_factory=list)
    _surrounded: set[object] = field(default_factory=set)

    def surround(self, sample: Sample, most: int) -> None:
        """Calls that differ from this one in a single thing; once for calls that are alike but for their numbers."""
        key = sample.key(self.operator)
        if key in self._surrounded:
            return
        self._surrounded.add(key)
        for fresh in itertools.islice(self.drawer.around(sample), most):
            self.add(fresh)

    def draw(self, sample: Sample) -> Target | None:
        """One more, near a sample; None where there is none that can be judged."""
        fresh = self.drawer.near(sample) if len(self.targets) < self.most else None
        return None if fresh is None else self.add(fresh)

    def add(self, fresh: Sample) -> Target | None:
        if len(self.targets) >= self.most:
            return None
        target = self.target_of(fresh)
        if target is not None:
            self.targets.append(target)
        return target

    def target_of(self, sample: Sample) -> Target | None:
        oracle = Oracle(self.operator, sample, KINDS)
        table = oracle.table
        if table.refused or len(table.outputs) != len(self.like.outputs):
            return None
        if len(sample.tensors) != len(self.like.sample.tensors):
            return None
        table.answers = {}
        situation = Situation.of(self.operator, table, self.dim_names, self.inserts)
        if any(name not in situation.dims for name in self.dim_names):
            return None
        finite = all(_far_from_overflow(a) for a in (*oracle.truth, *sample.tensors) if a.dtype.kind in "fc")
        return Target(situation, oracle, 5 * len(self.targets), self.trials, finite)


def _far_from_overflow(array: Array) -> bool:
    """Whether its numbers are finite, and parts a good deal larger would be, too."""
    with np.errstate(all="ignore"):
        return bool((np.abs(array) < float(np.finfo(array.dtype).max) ** 0.75).all())


@dataclass(frozen=True)
class Claim:
    """A rule as the attack sees it: what it claims of a call."""

    key: object
    """Rules with equal keys claim the same."""
    of: Callable[[Situation], Iterable[Row]]

    def rows(self, target: Target) -> list[Row]:
        """What it claims of a call, but for the row that replicates everything."""
        if self.key not in target.claimed:
            rows = self.of(target.situation)
            target.claimed[self.key] = [row for row in rows if any(p is not R for p in row[0])]
        return target.claimed[self.key]


@dataclass
class Struck:
    """What an attack found of one rule."""

    inside: int = 0
    """Calls in its region."""
    rows: int = 0
    """Rows that could be judged there."""
    witnesses: int = 0
    """Calls on which it held."""
    refuted: list[Target] = field(default_factory=list)


def attack(rules: Sequence[Claim], targets: Sequence[Target]) -> list[Struck]:
    """Try every row that the rules claim of these calls."""
    found = [Struck() for _ in rules]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for target, (rule, struck) in itertools.product(targets, zip(rules, found)):
            answers = [target.try_row(*row) for row in rule.rows(target)]
            struck.inside += bool(answers)
            struck.rows += sum(answer is not None for answer in answers)
            if False in answers:
                struck.refuted.append(target)
            elif True in answers:
                struck.witnesses += 1
    return found
