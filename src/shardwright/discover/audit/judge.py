"""Judge what DTensor says of one ATen overload, rule by rule.

A *rule* is one way the inputs may lie, and how the outputs then lie.  Where DTensor moves nothing, its answer is put
to the oracle; what the oracle refutes is run through DTensor's dispatcher on the very parts that refute it, and is
called wrong only if the numbers that a user sees are wrong (or the call fails).  So what the dispatcher mends on its
way (a shape argument made local, a pending norm finished in its own way) is never reported.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..calls.widen import describe
from ..judging.encode import ENCODINGS, shard_grade
from ..judging.oracle import Oracle
from ..operator import Operator, Sample
from ..placement import KINDS, P, Placement, R
from ..table import GRADES, Inputs, Table, folded
from .cases import Case, Fault, case_of, evened, examine, refused_locally, simplified, whole_sample
from .dtensor import Claim, Foreign, answers_in_full, claims, has_handler, same_cache_key
from .samples import value_groups
from .scripts import script

QUESTIONS = 480
"""Ways of lying that DTensor is asked about an overload, over all samples; of more, the plain ones and some others."""
WORLDS = (2, 3, 4)
FREE_RUNS, MOVED_RUNS, HANDLER_RUNS = 8, 5, 60
"""Calls sent through the dispatcher: of rules that move nothing, of those that do, and of ops with a handler."""
RULES_SHOWN = 4
"""Wrong rules of one overload that get an entry and a script each; more of them have one cause, and are listed."""
FAULTS_SHOWN = 40
"""Ways of one dispatcher's fault that are named: it shows in nearly all."""


@dataclass(frozen=True)
class Entry:
    """What was found of one rule."""

    verdict: str
    """correct, wrong, missing, cannot judge; or refuses: right, but the kernel does not take empty tensors."""
    overload: str
    rule: str
    reason: str = ""
    sample: str = ""
    kind: str = "rule"
    """rule; uneven or empty: wrong on such shards only; dispatch: the rule is right, the call is not; cache."""
    samples: int = 1
    """Samples in which the rule was met."""
    ways: tuple[str, ...] = ()
    """Other rules of the overload that fail alike."""
    script: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Met:
    """A rule, with where it was met and what speaks against it."""

    inputs: Inputs
    claim: Claim
    places: list[tuple[str, Sample, int]] = field(default_factory=list)
    """Some of the samples and worlds in which it was met, with how the dims are cut."""
    samples: int = 0
    suspects: list[tuple[str, Case]] = field(default_factory=list)
    """Cases that the oracle refutes, each with how its dims are cut."""

    @property
    def sample(self) -> Sample:
        return self.places[0][1]


class _SomeWays(Oracle):
    """The oracle, asked for some of the ways only in which the inputs may lie."""

    ways: list[Inputs] | None = None

    def input_combinations(self, most: int = 2000) -> Iterator[Inputs]:
        return super().input_combinations(most) if self.ways is None else iter(self.ways)


class Judge:
    """All that is found of one overload from its samples."""

    def __init__(
        self, operator: Operator, samples: Sequence[Sample], seconds: float = 60.0, missing: bool = True
    ) -> None:
        self.operator, self.samples, self.missing = operator, samples, missing
        self.stop = time.process_time() + seconds
        self.free: dict[str, _Met] = {}
        self.moved: dict[str, _Met] = {}
        self.refused: dict[str, Sample] = {}
        self.raised: dict[str, str] = {}
        self.told: list[tuple[_SomeWays, dict[Inputs, Claim]]] = []
        self.shown: Counter[str] = Counter()
        self.cut_short = False

    def entries(self) -> list[Entry]:
        reason = self.operator.never_judged
        if reason:
            return [self._entry("cannot judge", "every rule", reason)]
        for sample in self.samples:
            if self._late():
                break
            self._ask(sample)
        wrong_or_right = [*self._rules(), *self._moved_rules(), *self._cache()]
        found = [*_gathered(wrong_or_right), *(self._missing() if self.missing else ())]
        if not found and self.refused:
            reason, sample = next(iter(self.refused.items()))
            found.append(self._entry("cannot judge", "every rule", reason, sample))
        if not found and self.raised:
            rule, error = next(iter(self.raised.items()))
            found.append(self._entry("cannot judge", rule, f"DTensor refuses every way: {error}"))
        if self.cut_short:
            found.append(self._entry("cannot judge", "some rules", "the time was up before all were tried"))
        return found

    # ---- what DTensor says ---------------------------------------------------------------------------------

    def _ask(self, sample: Sample) -> None:
        oracle = _SomeWays(self.operator, sample, KINDS)
        if oracle.table.refused:
            self.refused.setdefault(oracle.table.refused, sample)
            return
        most = max(40, QUESTIONS // len(self.samples))
        ways = oracle.ways = _chosen(list(oracle.input_combinations()), most, seed=len(self.told))
        told: dict[Inputs, Claim] = {}
        for world, group in _by_world(oracle, ways):
            for inputs, answer in zip(group, claims(self.operator.overload, sample, group, world)):
                told[inputs] = answer
                self._meet(oracle, inputs, world, answer)
        free = [inputs for inputs, answer in told.items() if answer.free and any(p.kind == "S" for p in inputs)]
        for world in WORLDS:
            others = [inputs for inputs in free if oracle.even_world(inputs) != world]
            for inputs, answer in zip(others, claims(self.operator.overload, sample, others, world)):
                if answer.free:
                    self._meet(oracle, inputs, world, answer)
        self.told.append((oracle, told))

    def _meet(self, oracle: Oracle, inputs: Inputs, world: int, answer: Claim) -> None:
        text = rule_text(inputs, answer)
        if answer.error:
            self.raised.setdefault(text, answer.error)
            return
        book = self.free if answer.free else self.moved
        met = book.setdefault(text, _Met(inputs, answer))
        met.samples += 1
        sizes = [oracle.sample.tensors[i].shape[p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
        met.places.append((shard_grade(sizes, world), oracle.sample, world))
        if answer.free and len(met.suspects) < 12:
            met.suspects += self._suspects(oracle, inputs, world, answer)

    def _suspects(self, oracle: Oracle, inputs: Inputs, world: int, answer: Claim) -> Iterator[tuple[str, Case]]:
        """The cases in which local computation does not give what DTensor says."""
        if len(answer.outputs) != len(oracle.truth):
            return
        for encoding in ENCODINGS if any(p.kind == "P" for p in inputs) else ENCODINGS[:1]:
            good = oracle.judge(inputs, world, encoding)
            for number, placement in enumerate(answer.outputs):
                if isinstance(placement, Placement) and placement not in good[number]:
                    # How the inputs are cut decides: where an output is said to lie is DTensor's own doing.
                    sizes = [a.shape[p.dim] for a, p in zip(oracle.sample.tensors, inputs) if p.kind == "S"]
                    yield shard_grade(sizes, world), case_of(self.operator, oracle.sample, inputs, world, encoding)
                    return

    # ---- what is right and wrong about it ------------------------------------------------------------------

    def _rules(self) -> Iterator[Entry]:
        """Rules that move nothing."""
        runs = HANDLER_RUNS if has_handler(self.operator.overload) else FREE_RUNS
        for text, met in self.free.items():
            if met.suspects:
                yield self._tried(text, met)
                continue
            foreign = next((p for p in met.claim.outputs if isinstance(p, Foreign)), None)
            if (runs > 0 or foreign) and not self._late():
                runs -= 1
                yield self._ran(text, met, foreign)
            else:
                yield self._entry("correct", text, "the oracle bears it out", met.sample, samples=met.samples)

    def _tried(self, text: str, met: _Met) -> Entry:
        """A rule that the oracle refutes: is what a user sees wrong?"""
        order = sorted(met.suspects, key=_plainest)
        doubt = ""
        for grade, case in order[:6]:
            _, fault, doubt = examine(case)
            if fault is not None and grade == "empty" and fault.raises and refused_locally(case):
                why = f"on an empty shard the operator itself {fault.how}"
                return self._entry("refuses", text, why, met.sample, "empty", met.samples)
            if fault is not None:
                # Where samples happen to be cut unevenly, it may be no matter of how they are cut.
                even = evened(case) if grade != "even" else None
                plainer = examine(even)[1] if even is not None else None
                kind = "rule" if grade == "even" or plainer is not None else grade
                return self._wrong(text, plainer or fault, kind, met.samples)
        if doubt:
            return self._entry("cannot judge", text, doubt, met.sample, samples=met.samples)
        adjusted = met.claim.rewritten or has_handler(self.operator.overload)
        reason = "the dispatcher adjusts the local call" if adjusted else "the dispatcher finishes it in its own way"
        return self._entry("correct", text, f"{reason}, and its numbers are right", met.sample, samples=met.samples)

    def _ran(self, text: str, met: _Met, foreign: Foreign | None) -> Entry:
        """A rule that the oracle bears out, or cannot know: run it."""
        encodings = ENCODINGS if foreign and any(p.kind == "P" for p in met.inputs) else ENCODINGS[:1]
        places = sorted(met.places, key=lambda place: GRADES.index(place[0]))
        chosen = [places[0], places[-1]] if foreign and len(places) > 1 else places[:1]
        for (grade, sample, world), encoding in itertools.product(chosen, encodings):
            _, fault, doubt = examine(case_of(self.operator, sample, met.inputs, world, encoding))
            if fault is not None and grade == "empty" and fault.raises:
                why = f"on an empty shard the operator itself {fault.how}"
                return self._entry("refuses", text, why, sample, "empty", met.samples)
            if fault is not None and (not fault.raises or (foreign and grade != "even")):
                kind = grade if grade != "even" else "rule" if foreign else "dispatch"
                return self._wrong(text, fault, kind, met.samples)
            if fault is not None:
                doubt = f"run in one process, it {fault.how}"
            if doubt:
                known = foreign.meaning if foreign else "the oracle bears it out"
                return self._entry("cannot judge", text, f"{known}; but {doubt}", sample, "dispatch", met.samples)
        reason = f"{foreign.meaning}, and finished so it is right" if foreign else "the oracle and the dispatcher agree"
        return self._entry("correct", text, reason, met.sample, samples=met.samples)

    def _moved_rules(self) -> Iterator[Entry]:
        """Some of the ways in which DTensor moves inputs first: nothing may go wrong on the way."""
        most = HANDLER_RUNS if has_handler(self.operator.overload) else MOVED_RUNS
        order = sorted(self.moved.items(), key=lambda pair: [p.kind for p in pair[1].inputs].count("P"))
        faults = 0
        for text, met in order[:most] if most == HANDLER_RUNS else _spread(order, most):
            places = sorted(met.places, key=lambda place: GRADES.index(place[0]))
            for _, sample, world in places[:3] if most == HANDLER_RUNS else places[:1]:
                if self._late() or faults >= FAULTS_SHOWN:
                    return
                _, fault, _ = examine(case_of(self.operator, sample, met.inputs, world))
                if fault is not None and not fault.raises:
                    faults += 1
                    yield self._wrong(text, fault, "dispatch", met.samples)
                    break

    def _cache(self) -> Iterator[Entry]:
        """Arguments that the rule reads and the cache's key leaves out: the second call gets the first one's answer."""
        blamed: set[str] = set()
        for name, group in value_groups(self.operator, self.samples):
            if self._late():
                return
            entry = None if name in blamed else self._after_another(name, group)
            if entry is not None:
                blamed.add(name)
                yield entry

    def _after_another(self, name: str, group: list[Sample]) -> Entry | None:
        overload = self.operator.overload
        replicated = (R,) * len(group[0].tensors)
        group = [group[0], *(s for s in group[1:] if same_cache_key(overload, group[0], s, replicated, 2))]
        oracle = _SomeWays(self.operator, group[-1], KINDS)
        if len(group) < 2 or oracle.table.refused:
            return None
        alike = [ins for ins in oracle.input_combinations() if len({*ins} - {R}) == 1]
        alike.sort(key=lambda ins: ins.count(R))  # all tensors alike is the plainest case
        for world, ways in _by_world(oracle, [replicated, *alike[:24]]):
            answers = [answers_in_full(overload, sample, ways, world) for sample in group]
            for number, inputs in enumerate(ways):
                for one, other in itertools.permutations(range(len(group)), 2):
                    first, second = answers[one][number], answers[other][number]
                    if first is None or second is None or first == second:
                        continue
                    entry = self._second_call(name, group[one], group[other], inputs, world)
                    if entry is not None:
                        return entry
        return None

    def _second_call(self, name: str, one: Sample, other: Sample, inputs: Inputs, world: int) -> Entry | None:
        _, fault, doubt = examine(case_of(self.operator, other, inputs, world))
        if fault is not None or doubt:
            return None  # wrong without the cache: that is another entry
        _, fault, _ = examine(case_of(self.operator, other, inputs, world, before=one))
        if fault is None:
            return None
        values = [sample.values(self.operator).get(name) for sample in (one, other)]
        text = f"{_lying(inputs)}: {name}={values[1]!r} after {name}={values[0]!r}"
        return self._wrong(text, fault, "cache", 1, f"the cache's key leaves out {name!r}; ")

    def _missing(self) -> Iterator[Entry]:
        """Rules of the oracle for which DTensor has to move something, or refuses."""
        judged = []
        for oracle, told in self.told:
            if not self._late():
                oracle.screen()
                oracle.confirm([], [], WORLDS)
                judged.append((oracle.table, told, folded(oracle.table)))
        known: dict[Inputs, tuple[frozenset[Placement], ...]] = {}
        for table, _, rows in judged:
            if any(_says_something(table, i) for i in range(len(table.outputs))):
                for inputs, outputs in rows.items():
                    known.setdefault(inputs, outputs)
                    averaged = _averaged(inputs)  # the same rule for us, another one for DTensor
                    if averaged != inputs and averaged in table.valid:
                        known.setdefault(averaged, tuple(frozenset(_averaged(found)) for found in outputs))
        for inputs, outputs in known.items():
            if all(p is R for p in inputs):
                continue
            met = [(t, told[inputs]) for t, told, _ in judged if inputs in told and _tells(t, inputs, outputs)]
            holding = [(t, a) for t, a in met if _holds(t, inputs, outputs)]
            failing = [t for t, _ in met if not _holds(t, inputs, outputs)]
            pending_only = not any(p.kind == "S" for p in (*inputs, *itertools.chain(*outputs)))
            where = self._told_apart([t for t, _ in holding], failing) if pending_only else ""
            if not holding or any(a.free for _, a in met) or where is None:
                continue
            table, answer = holding[0]
            rule = f"{_lying(inputs)} -> {', '.join('|'.join(sorted(map(str, found))) for found in outputs)}"
            how = (
                f"DTensor refuses: {answer.error}"
                if answer.error
                else f"DTensor moves to {_lying(answer.redistributed_to or ())}"
            )
            reason = f"{how}; holds in {len(holding)} of {len(met)} samples{where}"
            yield self._entry("missing", rule, reason, table.sample, samples=len(holding))

    def _told_apart(self, holding: Sequence[Table], failing: Sequence[Table]) -> str | None:
        """The argument whose values tell where a rule holds, in words; empty if it holds everywhere, None if none does.

        Rules between sharded tensors depend on dims, and are not expected to hold in all samples.
        """
        if not failing:
            return ""
        if len(holding) < 2:
            return None
        kinds = {argument.name: argument.type for argument in self.operator.arguments}
        values = [[t.sample.values(self.operator) for t in tables] for tables in (holding, failing)]
        for name in values[1][0]:
            if not kinds.get(name, "").startswith(("Scalar", "number", "float", "bool", "str")):
                continue  # a dim or a size: the rule may hold because that dim has one element
            good, bad = ({repr(value.get(name)) for value in side} for side in values)
            if good and not good & bad:
                return f", those where {name} is {' or '.join(sorted(good))}"
        return None

    # ---- writing down --------------------------------------------------------------------------------------

    def _wrong(self, text: str, fault: Fault, kind: str, samples: int, why: str = "") -> Entry:
        self.shown[kind] += 1
        if self.shown[kind] > (RULES_SHOWN if kind in ("rule", "cache") else 1):
            return self._entry("wrong", text, why + fault.how, None, kind, samples)  # will be gathered into the first
        small = simplified(fault)
        shown = whole_sample(small.case) or small.case.sample
        title = f"{self.operator.overload}, {text}"
        entry = self._entry("wrong", text, why + small.how, shown, kind, samples)
        return replace(entry, script=script(small, title))

    def _entry(
        self, verdict: str, rule: str, reason: str, sample: Sample | None = None, kind: str = "rule", samples: int = 1
    ) -> Entry:
        told = describe(self.operator, sample) if sample is not None else ""
        return Entry(verdict, self.operator.overload, rule, reason, told, kind, samples)

    def _late(self) -> bool:
        self.cut_short = self.cut_short or time.process_time() > self.stop
        return self.cut_short


def _gathered(entries: list[Entry]) -> list[Entry]:
    """Faults of one cause as one entry: shards that no rule of the overload stands, a handler that is at fault."""
    kept: list[Entry] = []
    places: dict[str, list[int]] = {}
    for entry in entries:
        shown = places.setdefault(entry.kind, []) if entry.verdict == "wrong" else []
        most = RULES_SHOWN if entry.kind in ("rule", "cache") else 1
        if len(shown) < most:
            shown.append(len(kept))
            kept.append(entry)
        else:
            first = kept[shown[0]]
            kept[shown[0]] = replace(first, ways=(*first.ways, entry.rule))
    return kept


def _plainest(suspect: tuple[str, Case]) -> tuple[object, ...]:
    grade, case = suspect
    scalars = sum(array.ndim == 0 for array in case.sample.tensors)
    return grade != "even", scalars, case.world, case.elements


def rule_text(inputs: Inputs, answer: Claim) -> str:
    """The rule as a line: ``S(0), R -> S(0)``; inputs that move first in brackets."""
    moved = f" (moved to {_lying(answer.redistributed_to)})" if answer.redistributed_to is not None else ""
    return f"{_lying(inputs)}{moved} -> {_lying(answer.outputs)}"


def _lying(placements: Iterable[object]) -> str:
    return ", ".join("-" if p is None else str(p) for p in placements)


def _chosen(ways: list[Inputs], most: int, seed: int) -> list[Inputs]:
    """Not more than may be asked: first where one placement stands beside R, or nothing is pending; then others.

    What is left to chance differs from sample to sample, so that few ways are never asked.
    """
    if len(ways) <= most:
        return ways
    plain = [way for way in ways if len({*way} - {R}) <= 1 or not any(p.kind == "P" for p in way)]
    rest = [way for way in ways if len({*way} - {R}) > 1 and any(p.kind == "P" for p in way) and P("prod") not in way]
    chance = random.Random(seed)
    first = plain if len(plain) <= most else [plain[0], *chance.sample(plain[1:], most - 1)]
    return [*first, *chance.sample(rest, min(len(rest), most - len(first)))]


def _by_world(oracle: Oracle, ways: Sequence[Inputs]) -> Iterator[tuple[int, list[Inputs]]]:
    groups: dict[int, list[Inputs]] = {}
    for inputs in ways:
        groups.setdefault(oracle.even_world(inputs), []).append(inputs)
    yield from groups.items()


def _spread(items: list[tuple[str, _Met]], most: int) -> list[tuple[str, _Met]]:
    """At most so many: the first few, and others from all over the list."""
    if len(items) <= most:
        return items
    rest = items[most // 2 :]
    step = len(rest) / (most - most // 2)
    return [*items[: most // 2], *(rest[int(i * step)] for i in range(most - most // 2))]


def _tells(table: Table, inputs: Inputs, outputs: tuple[frozenset[Placement], ...]) -> bool:
    """Whether a sample can tell for or against a rule: not if its result is a number or constant, or cannot be cut."""
    if len(outputs) != len(table.outputs) or not _even(table.sample, inputs):
        return False
    dropped = any((inputs, i, p) in table.dropped for i, found in enumerate(outputs) for p in found)
    return not dropped and any(_says_something(table, i) for i in range(len(outputs)))


def _says_something(table: Table, output: int) -> bool:
    """A scalar, or a result with dims of size 1 only, makes rules true that are true of nothing else."""
    return any(size > 1 for size in table.outputs[output])


def _holds(table: Table, inputs: Inputs, outputs: tuple[frozenset[Placement], ...]) -> bool:
    return all(any(table.holds(inputs, i, p) for p in found) for i, found in enumerate(outputs))


def _averaged(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    return tuple(P("avg") if p is P("sum") else p for p in placements)


def _even(sample: Sample, inputs: Inputs) -> bool:
    """Whether the oracle cut every sharded dim into equal shards of more than one element, of numbers that differ.

    On unequal ones DTensor may well refuse; single ones and equal ones broadcast, and hold for the wrong reason.
    """
    sharded = [(sample.tensors[i], p.dim) for i, p in enumerate(inputs) if p.kind == "S"]
    common = math.gcd(*(array.shape[dim] for array, dim in sharded)) if sharded else 2
    world = next((n for n in (2, 3, 5, 7, 11, 13) if common % n == 0), 0)
    return world > 0 and all(
        array.shape[dim] > world and bool((array != array.take([0], axis=dim)).any()) for array, dim in sharded
    )
