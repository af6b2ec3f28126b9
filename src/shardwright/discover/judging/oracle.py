"""The oracle: run an operator on what each device would hold, and see which placements of its results are right.

Each combination of input placements runs once per device and is judged against every placement of every output.
What passes is *confirmed*: other ways to split pending inputs, other numbers, 2 to 4 devices, uneven and empty
shards.  Only what survives all of that on evenly cut tensors is valid; `Table.grades` says how far it holds on
other shards.  float64 and whole numbers leave no room for luck: a false rule is off by far more than rounding.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..operator import Array, Operator, Sample, Slot, leaves, slots_in
from ..placement import KINDS, Placement, R, S, placements
from ..table import FEWEST, GRADES, Inputs, Table
from .encode import ENCODINGS, assemble, chunk_sizes, kinds_for, same, shard_grade, split
from .judge import fitting, lies, varies
from .special_arguments import mutated_slots, shape_argument, with_argument, write_only_slots

WORLDS = (2, 3, 4)
MOST_COMBINATIONS = 40_000
"""Beyond this many input combinations not all are tried; `Table.restricted` then says which are."""

NO_EVEN_SHARDS = "failed on uneven shards, and no even ones could be cut"


@dataclass(frozen=True)
class Counterexample:
    """A case in which a claimed rule fails."""

    sample: Sample
    inputs: Inputs
    output: int
    placement: Placement
    world: int
    encoding: str
    parts: tuple[tuple[Array, ...], ...]
    """Per tensor, what each device held."""
    got: Array | None
    """What the outputs assemble to; None if they do not fit together, or the call failed."""
    want: Array
    error: str = ""

    def __str__(self) -> str:
        ins = ", ".join(map(str, self.inputs))
        why = self.error or ("the parts do not fit together" if self.got is None else self._off())
        return f"{ins} -> {self.placement} on {self.world} devices, shapes {list(self.sample.shapes)}: {why}"

    def _off(self) -> str:
        assert self.got is not None
        if self.got.shape != self.want.shape:
            return f"shape {self.got.shape} instead of {self.want.shape}"
        if self.want.dtype.kind in "b":
            return f"{int((self.got != self.want).sum())} of {self.want.size} elements differ"
        with np.errstate(all="ignore"):
            return f"off by {float(np.nanmax(np.abs(self.got - self.want), initial=0.0)):.3g}"


def check(
    operator: Operator,
    sample: Sample,
    *,
    variants: Sequence[Sample] = (),
    special: Sequence[Sample] = (),
    worlds: Sequence[int] = WORLDS,
    kinds: Sequence[str] = KINDS,
    most: int = MOST_COMBINATIONS,
) -> Table:
    """Every valid combination of placements for this sample.

    `variants` are the same call on other numbers; `special` on NaN, Inf or denormals, which rules for pending inputs
    are not asked to keep (an infinite part of a sum has no finite rest).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = Oracle(operator, sample, kinds)
        if oracle.table.refused:
            return oracle.table
        oracle.leave_unread()
        oracle.screen(most)
        others = [Oracle(operator, variant, kinds) for variant in variants]
        odd = [Oracle(operator, variant, kinds) for variant in special]
        oracle.confirm(
            [other for other in others if other.like(oracle)], [other for other in odd if other.like(oracle)], worlds
        )
        return oracle.table


def refute(
    operator: Operator,
    samples: Iterable[Sample],
    inputs: Inputs,
    output: int,
    placement: Placement,
    worlds: Sequence[int] = WORLDS,
    grade: str = "even",
) -> Counterexample | None:
    """The first case in which inputs lying like this do not give that output; None if there is none.

    `grade` is the worst kind of shards on which the rule is claimed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples:
            oracle = Oracle(operator, sample, KINDS)
            if oracle.table.refused or len(inputs) != len(sample.tensors):
                continue
            for world in dict.fromkeys((oracle.even_world(inputs), *worlds)):
                if GRADES.index(oracle.grade(inputs, world, output, placement)) > GRADES.index(grade):
                    continue
                for encoding in ENCODINGS if any(p.kind == "P" for p in inputs) else ENCODINGS[:1]:
                    found = oracle.counterexample(inputs, output, placement, world, encoding)
                    if found is not None:
                        return found
    return None


class Oracle:
    """One sample: its true results, what devices hold of its tensors, and the table being filled."""

    def __init__(self, operator: Operator, sample: Sample, kinds: Sequence[str]) -> None:
        self.operator, self.sample = operator, sample
        self.table = Table(sample, ())
        self.kinds = kinds
        self._held: dict[tuple[int, Placement, int, str], list[Any]] = {}
        self._mutated = mutated_slots(operator, sample)
        arguments = (*sample.args, *sample.kwargs.values())
        # No tensor inside a list: then filling the slots needs no search.
        self._plain = all(isinstance(a, Slot) or not any(True for _ in slots_in(a)) for a in arguments)
        self.truth: list[Array] = []
        self.table.refused = self._refusal()
        if self.table.refused:
            return
        self.table.outputs = tuple(array.shape for array in self.truth)
        self.table.kinds = tuple(kinds_for(array, "data", kinds) for array in self.truth)
        self._sized = shape_argument(operator, sample, self.truth[0].shape)
        # A single number tells something if it was made from several.
        alone = all(array.size <= 1 for array in sample.tensors)
        self.informative = [varies(array, alone) for array in self.truth]
        self.table.constant = tuple(not tells for tells in self.informative)
        self.varies = [varies(array, alone) for array in sample.tensors]
        self.choices = [
            (R,) if i in self._write_only else placements(array.ndim, kinds_for(array, role, kinds))
            for i, (array, role) in enumerate(zip(sample.tensors, sample.roles))
        ]

    def _refusal(self) -> str:
        """Why this sample cannot be judged; sets the true results on the way."""
        self._write_only = write_only_slots(self.operator, self.sample)
        if self.operator.never_judged:
            return self.operator.never_judged
        if not self.sample.tensors:
            return "it takes no tensor"
        if max((array.size for array in self.sample.tensors), default=0) == 0:
            return "its inputs are empty"
        try:
            self.truth = self._call([self.operator.library.tensor(a) for a in self._given()])
            self._litter()
            again = self._call([self.operator.library.tensor(a) for a in self._given()])
        except Exception as error:
            return f"the sample does not run: {_first_line(error)}"
        if not self.truth:
            return "it returns no tensor"
        if not all(same(a, b) for a, b in zip(self.truth, again)):
            return "two runs give different numbers"
        if all(array.size == 0 for array in self.truth):
            return "its results are empty"
        return ""

    def _litter(self) -> None:
        """Other numbers in the memory that the next results will lie in: what is not initialised then differs."""
        for array in self.truth:
            if array.size and array.dtype.kind != "b":
                del [self.operator.library.copy(self.operator.library.tensor(np.full_like(array, 113)))][0]

    def _given(self) -> list[Array]:
        return [
            np.empty(0, array.dtype) if i in self._write_only else array for i, array in enumerate(self.sample.tensors)
        ]

    @property
    def has_shape_argument(self) -> bool:
        """Whether an argument tells the result's shape, so that a device must be told a smaller one."""
        return self._sized is not None

    def call(self, tensors: list[Any]) -> list[Array]:
        """The results of one call on these tensors, as arrays."""
        return self._call(tensors)

    # ---- running -------------------------------------------------------------------------------------------

    def _call(self, tensors: list[Any], sample: Sample | None = None) -> list[Array]:
        library = self.operator.library
        if self._mutated:
            tensors = [library.copy(t) if i in self._mutated else t for i, t in enumerate(tensors)]
        if self._plain and sample is None:
            args: Sequence[Any] = [tensors[a.index] if type(a) is Slot else a for a in self.sample.args]
            kwargs = {name: tensors[a.index] if type(a) is Slot else a for name, a in self.sample.kwargs.items()}
        else:
            args, kwargs = (sample or self.sample).fill(tensors)
        result = self.operator.call(*args, **kwargs)
        if self._mutated:
            result = [tensors[i] for i in self._mutated]
        return [library.array(leaf) for leaf in leaves(result) if library.is_tensor(leaf)]

    def held(self, index: int, placement: Placement, world: int, encoding: str) -> list[Any]:
        """What each device holds of a tensor, as the library's own."""
        key = (index, placement, world, encoding if placement.kind == "P" else "")
        found = self._held.get(key)
        if found is None:
            array = self._given()[index] if index in self._write_only else self.sample.tensors[index]
            parts = split(array, placement, world, encoding, seed=index)
            found = self._held[key] = [self.operator.library.tensor(part) for part in parts]
        return found

    def run(self, inputs: Inputs, world: int, encoding: str, sized: int | None = None) -> list[list[Array]]:
        """Per output, what each device computes.  `sized`: the output dim that a shape argument is cut on."""
        columns = [self.held(i, p, world, encoding) for i, p in enumerate(inputs)]
        results = []
        for rank in range(world):
            sample = None if sized is None else self._localised(sized, world, rank)
            results.append(self._call([column[rank] for column in columns], sample))
        self.table.runs += 1
        return [list(parts) for parts in zip(*results)]

    def _localised(self, dim: int, world: int, rank: int) -> Sample:
        """The sample with its shape argument as this device has it, if the output is sharded on that dim."""
        assert self._sized is not None
        name, shape = self._sized
        local = [*shape[:dim], chunk_sizes(shape[dim], world)[rank], *shape[dim + 1 :]]
        return with_argument(self.sample, self.operator, name, local)

    # ---- judging -------------------------------------------------------------------------------------------

    def even_world(self, inputs: Inputs) -> int:
        """A number of devices that cuts every sharded dim evenly, if there is one; else 2."""
        sizes = [self.sample.tensors[i].shape[p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
        common = math.gcd(*sizes) if sizes else 2
        return next((n for n in (2, 3, 5, 7, 11, 13) if common % n == 0), 2)

    def grade(self, inputs: Inputs, world: int, output: int, placement: Placement) -> str:
        """How the dims that a rule shards are cut, the output's too."""
        sizes = [self.sample.tensors[i].shape[p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
        if placement.kind == "S":
            sizes.append(self.truth[output].shape[placement.dim])
        return shard_grade(sizes, world)

    def outcomes(self, inputs: Inputs, world: int, encoding: str) -> Iterator[tuple[int | None, list[list[Array]]]]:
        """The runs of an input combination: as it is, and with a shape argument cut on each output dim."""
        try:
            yield None, self.run(inputs, world, encoding)
        except Exception as error:
            self.table.errors[inputs] = _first_line(error)  # type: ignore[index]
        if self._sized is None:
            return
        for dim in range(len(self._sized[1])):
            try:
                yield dim, self.run(inputs, world, encoding, sized=dim)
            except Exception:
                continue

    def judge(self, inputs: Inputs, world: int, encoding: str) -> list[set[Placement]]:
        """Per output, the placements that this run bears out."""
        found: list[set[Placement]] = [set() for _ in self.truth]
        for sized, outputs in self.outcomes(inputs, world, encoding):
            if len(outputs) != len(self.truth):
                continue
            for parts, want, good in zip(outputs, self.truth, found):
                if sized is None:
                    good.update(fitting(parts, want, self.kinds))
                elif sized < want.ndim and lies(parts, want, S(sized)):
                    good.add(S(sized))
        return found

    def bears_out(
        self, inputs: Inputs, outputs: Sequence[Placement], world: int, encoding: str, roundings: int = 16
    ) -> list[bool]:
        """Whether each output is placed so: of one run, or of the run with a shape argument cut where it is sharded."""
        found = [False] * len(self.truth)
        for sized, results in self.outcomes(inputs, world, encoding):
            if len(results) != len(self.truth):
                continue
            for index, (parts, want, placement) in enumerate(zip(results, self.truth, outputs)):
                if not found[index] and (sized is None or placement is S(sized)):
                    found[index] = _placed_so(parts, want, placement, roundings)
            if all(found):
                break
        return found

    def input_combinations(self, most: int = MOST_COMBINATIONS) -> Iterator[Inputs]:
        """Every combination; of operators with many tensors those that a rule may reasonably need."""
        count = math.prod(len(choice) for choice in self.choices)
        every = itertools.product(*self.choices)
        if count <= most:
            return every
        sizes = [1 + array.ndim + 1 for array in self.sample.tensors]
        if math.prod(sizes) * len(self.kinds) <= most:
            self.table.restricted = "one kind of pending input at a time"
            return (inputs for inputs in every if _kinds_in(inputs) <= 1)
        self.table.restricted = "at most two inputs that are not replicated, or all alike"
        return _few_at_a_time(self.choices)

    def screen(self, most: int = MOST_COMBINATIONS) -> None:
        """Run every input combination once, on evenly cut tensors where that can be."""
        outputs_each = [len(placements(array.ndim, tuple(self.kinds))) for array in self.truth]
        combinations = self.input_combinations(most)
        if self.table.restricted:
            self.table.judged = set()
        for inputs in combinations:
            if self.table.judged is not None:
                self.table.judged.add(inputs)
            self.table.combinations += sum(outputs_each)
            found = self.judge(inputs, self.even_world(inputs), ENCODINGS[0])
            if any(found):
                self.table.valid[inputs] = tuple(map(frozenset, found))

    def leave_unread(self) -> None:
        """Of inputs whose numbers do not matter in this call no pending ones are tried."""
        self.table.unread = frozenset(i for i in range(len(self.sample.tensors)) if self._unread(i))
        for i in self.table.unread:
            self.choices[i] = tuple(p for p in self.choices[i] if p.kind != "P")

    def _unread(self, index: int) -> bool:
        array = self.sample.tensors[index]
        if self.sample.roles[index] == "index" or index in self._write_only or len(self.choices) < 2:
            return False
        others = [~array] if array.dtype == np.bool_ else [array + array.dtype.type(1), np.flip(array) * 2]
        for other in others:
            tensors = [other.astype(array.dtype) if i == index else a for i, a in enumerate(self._given())]
            try:
                results = self._call([self.operator.library.tensor(np.ascontiguousarray(a)) for a in tensors])
            except Exception:  # whatever the library raises: its numbers matter
                return False
            if len(results) != len(self.truth) or not all(same(a, b) for a, b in zip(results, self.truth)):
                return False
        return True

    def like(self, other: Oracle) -> bool:
        """Whether this sample runs and gives results of the same shapes."""
        return not self.table.refused and self.table.outputs == other.table.outputs

    def confirm(self, variants: Sequence[Oracle], special: Sequence[Oracle], worlds: Sequence[int]) -> None:
        """Try what passed on other splits, other numbers and other worlds, and drop what fails."""
        for inputs, outputs in list(self.table.valid.items()):
            left = [set(found) for found in outputs]
            self._drop_empty_talk(inputs, left, [self, *variants])
            for oracle, world, encoding in self._trials(inputs, variants, special, worlds):
                good = oracle.judge(inputs, world, encoding)
                for index, found in enumerate(left):
                    for placement in found - good[index]:
                        grade = oracle.grade(inputs, world, index, placement)
                        self._failed(inputs, index, placement, grade, found)
                    for placement in found & good[index]:
                        grade = oracle.grade(inputs, world, index, placement)
                        self.table.seen.setdefault((inputs, index, placement), set()).add(grade)
                if not any(left):
                    break
            self._settle(inputs, left)

    def _trials(
        self, inputs: Inputs, variants: Sequence[Oracle], special: Sequence[Oracle], worlds: Sequence[int]
    ) -> Iterator[tuple[Oracle, int, str]]:
        """Cheapest first: what is false should fail soon."""
        pending = any(p.kind == "P" for p in inputs)
        even = self.even_world(inputs)
        for encoding in ENCODINGS[1:] if pending else ():
            yield self, even, encoding
        for oracle in variants:
            for encoding in ENCODINGS[:2] if pending else ENCODINGS[:1]:
                yield oracle, even, encoding
        if not pending:
            for oracle in special:
                yield oracle, even, ENCODINGS[0]
        for world in worlds:
            if world != even:
                yield self, world, ENCODINGS[0]

    def _failed(self, inputs: Inputs, index: int, placement: Placement, grade: str, found: set[Placement]) -> None:
        """Failing on even shards ends a rule; failing on others lowers its grade."""
        if grade == "even":
            found.discard(placement)
            return
        key = (inputs, index, placement)
        if grade == "empty" and inputs not in self.table.errors:
            self.table.silent.add(key)
        better = GRADES[GRADES.index(grade) - 1]
        known = self.table.grades.get(key, better)
        self.table.grades[key] = GRADES[min(GRADES.index(better), GRADES.index(known))]

    def _drop_empty_talk(self, inputs: Inputs, left: list[set[Placement]], oracles: Sequence[Oracle]) -> None:
        """Drop what says nothing before it is confirmed: on constant tensors almost everything passes."""
        for index, found in enumerate(left):
            for placement in list(found):
                reason = self.says_nothing(inputs, index, placement, oracles)
                if reason:
                    found.discard(placement)
                    self.table.dropped[inputs, index, placement] = reason

    def _settle(self, inputs: Inputs, left: list[set[Placement]]) -> None:
        even = self.even_world(inputs)
        for index, found in enumerate(left):
            for placement in list(found):
                key = (inputs, index, placement)
                grade = self.table.grades.setdefault(key, "empty")
                if grade == "even" and self.grade(inputs, even, index, placement) != "even":
                    found.discard(placement)
                    self.table.dropped[key] = NO_EVEN_SHARDS
        if any(left):
            self.table.valid[inputs] = tuple(map(frozenset, left))
        else:
            del self.table.valid[inputs]

    def says_nothing(self, inputs: Inputs, index: int, placement: Placement, oracles: Sequence[Oracle]) -> str:
        """Why a placement that fits tells nothing of the operator; empty if it does."""
        pending = [i for i, p in enumerate(inputs) if p.kind == "P"]
        copies = placement is R and any(p is not R for p in inputs)
        if pending or copies or placement.kind == "P":
            numbers = {oracle.truth[index].tobytes() for oracle in oracles}
            single = self.truth[index].size == 1
            if single and len(oracles) > 1 and len(numbers) == 1:
                return "the result is the same number in every sample"
            # One truth value tells nothing, but several calls do, on which it differs.
            told = single and (len(numbers) > 1 or self.truth[index].dtype == bool)
            if not told and not any(oracle.informative[index] for oracle in oracles):
                return "the result is constant in every sample"
        if any(not any(oracle.varies[i] for oracle in oracles) for i in pending):
            return "a pending input is constant in every sample"
        if any(self.sample.tensors[i].size < FEWEST for i in pending):
            return "a pending input is too small to tell"
        return ""

    def counterexample(
        self, inputs: Inputs, output: int, placement: Placement, world: int, encoding: str
    ) -> Counterexample | None:
        """This run, if it does not bear out the placement."""
        if placement in self.judge(inputs, world, encoding)[output]:
            return None
        parts = tuple(
            tuple(split(array, p, world, encoding, seed=i))
            for i, (array, p) in enumerate(zip(self.sample.tensors, inputs))
        )
        got, error = None, self.table.errors.get(inputs, "")
        if not error:
            got = assemble(self.run(inputs, world, encoding)[output], placement)
        want = self.truth[output]
        return Counterexample(self.sample, inputs, output, placement, world, encoding, parts, got, want, error)


def _placed_so(parts: list[Array], want: Array, placement: Placement, roundings: int) -> bool:
    if placement.kind == "S" and placement.dim >= want.ndim:
        return False
    if any(part.ndim != want.ndim for part in parts):
        return False
    if placement.kind != "S" and any(part.shape != want.shape for part in parts):
        return False
    return lies(parts, want, placement, roundings)


def _kinds_in(inputs: Inputs) -> int:
    return len({p.reduce for p in inputs if p.kind == "P"})


def _few_at_a_time(choices: Sequence[tuple[Placement, ...]]) -> Iterator[Inputs]:
    replicated = (R,) * len(choices)
    yield replicated
    for places in itertools.chain(
        itertools.combinations(range(len(choices)), 1), itertools.combinations(range(len(choices)), 2)
    ):
        for found in itertools.product(*(choices[place][1:] for place in places)):
            inputs = list(replicated)
            for place, placement in zip(places, found):
                inputs[place] = placement
            if _kinds_in(tuple(inputs)) <= 1:
                yield tuple(inputs)
    if len(choices) > 2:
        for placement in dict.fromkeys(p for choice in choices for p in choice[1:]):
            # Those that cannot lie so (a smaller rank, an index) are replicated.
            yield tuple(placement if placement in choice else R for choice in choices)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
