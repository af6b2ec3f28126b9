"""Fresh calls: a call that runs, changed in a few ways at once, as long as it still runs.

Changed are sizes (together or of one tensor alone, to 1, longer, shorter), ranks, dtypes, arguments and numbers; sizes,
arguments and numbers also to what the operator's own code names (`named`).  Everything is drawn by a seed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..operator import Array, Operator, Sample, names_dims
from .forms import FEWER, FOLDS, FORMS, resized
from .named import Named, choices_of, documents_of, named_by
from .numbers import STYLES, Numbers, recast
from .widen import in_turn, result_sizes, runs, with_value

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
DTYPES = ("float64", "int64", "bool", "complex128", "int32", "float64", "int64")
MOST_ELEMENTS = 4096
TRIES = 6
"""Changes drawn for one fresh call before giving up on it."""

NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 3.0, -0.5, 0.25, 0.75, 1e-3, 10.0, float("inf"))
ENLARGEMENTS = 60
"""Sizes tried to make one call tell more."""
MOST_TO_TELL = 400
"""Elements of such a call at most."""
LARGE_ENOUGH = 6
"""Elements of a tensor that tells something."""


class Drawer:
    """Fresh calls of one operator."""

    def __init__(self, operator: Operator, samples: Sequence[Sample], seed: int = 0) -> None:
        self.operator = operator
        self.named: Named = named_by(operator)
        self.rng = np.random.default_rng([2026, seed])
        self.dims = {name for sample in samples for name in sample.values(operator) if names_dims(operator, name)}
        self.others: tuple[Sample, ...] = ()
        """More calls at hand, to start from."""
        self._words: dict[str, list[str]] = {}
        self._documents = documents_of(operator)
        self._seen = {_identity(sample) for sample in samples}
        self._types = {argument.name: argument.type for argument in operator.arguments}
        self._numbers = Numbers(operator, samples, self.named, self.rng)
        self._values = self._numbers.values
        self._fixed = self._numbers.fixed
        """Its tensors are legal only as they came."""

    def near(self, sample: Sample) -> Sample | None:
        """A call like this one, but never drawn before; None if none was found in a few tries."""
        for attempt in range(TRIES):
            changed = self._changed(sample, max(1, 3 - attempt // 2))
            if changed is None or sum(t.size for t in changed.tensors) > MOST_ELEMENTS:
                continue
            key = _identity(changed)
            if key not in self._seen and runs(self.operator, changed):
                self._seen.add(key)
                return replace(changed, label="fresh")
        return None

    def words(self, sample: Sample, name: str) -> list[str]:
        """What an argument that is a word may be, of which this call accepts some."""
        if name not in self._words:
            words = choices_of(self.operator, sample, name, self._documents, self.named)
            self._words[name] = [
                w for w in words if (c := with_value(self.operator, sample, name, w)) is not None and self._runs(c)
            ]
        return self._words[name]

    def moved(self, sample: Sample) -> Sample | None:
        """A call with new numbers, if it runs and is none that was drawn before."""
        again = self._values(sample)
        if again is None or _identity(again) in self._seen or not runs(self.operator, again):
            return None
        self._seen.add(_identity(again))
        return again

    def folded(self, sample: Sample, values: Mapping[str, Any]) -> Iterator[Sample]:
        """The call's own numbers with other arguments, in tensors of one dim less or more, in another dtype."""
        call: Sample | None = sample
        for name, value in values.items():
            call = with_value(self.operator, call, name, value) if call is not None else None
        if call is None or "sorter" in call.tensor_names(self.operator):  # it names the places of one shape
            return
        tensors = call.tensors
        top = max((a.ndim for a in tensors), default=0)
        for change in FOLDS:
            yield from self._unseen(call, [change(a) if a.ndim == top and a.size else a for a in tensors])
        for t, change in itertools.product(range(len(tensors)) if len(tensors) > 1 else (), FEWER):
            yield from self._unseen(call, [change(a) if i == t and a.size else a for i, a in enumerate(tensors)])
        data = [role == "data" for role in call.roles]
        for dtype in ("int64", "bool", "complex128", "float64") if not self._fixed else ():
            with np.errstate(all="ignore"):
                again = [recast(a, np.dtype(dtype)) if goes else a for a, goes in zip(tensors, data)]
            yield from self._unseen(call, again)

    def _unseen(self, call: Sample, tensors: Sequence[Array]) -> Iterator[Sample]:
        sample = self._numbers.legal(call.with_tensors(tuple(np.array(a, order="C") for a in tensors), "fresh"))
        if _identity(sample) not in self._seen and runs(self.operator, sample):
            self._seen.add(_identity(sample))
            yield sample

    def around(self, sample: Sample) -> Iterator[Sample]:
        """Calls that differ from this one in one thing, everything that calls usually differ in, by turns: numbers in
        every style; the shape of each tensor alone; dtypes, and every argument to both sides of what it may turn at.
        With new numbers each time."""
        styled = iter([functools.partial(self._values, sample, int(style)) for style in self.rng.permutation(STYLES)])
        changes = [self._different(sample)]
        if not self._fixed:
            changes = [self._slender(sample), self._mixed(sample), self._reshaped(sample), *changes]
        listed = [list(found) for found in changes]
        mixed = [[found[int(place)] for place in self.rng.permutation(len(found))] for found in listed]
        sources = [styled, *([functools.partial(self._values, call) for call in found] for found in mixed)]
        for make in in_turn([iter(source) for source in sources]):
            again = make()
            if again is None or sum(t.size for t in again.tensors) > MOST_ELEMENTS:
                continue
            key = _identity(again)
            if key not in self._seen and runs(self.operator, again):
                self._seen.add(key)
                yield replace(again, label="fresh")

    def _different(self, sample: Sample) -> Iterator[Sample]:
        """Other arguments, other dtypes."""
        rank = max((a.ndim for a in sample.tensors), default=0)
        for name, value in sample.values(self.operator).items():
            kind = self._types.get(name, "")
            for choice in self._turns_of(sample, name, value, kind, rank):
                changed = with_value(self.operator, sample, name, choice)
                if changed is not None:
                    yield changed
        data = [t for t, role in enumerate(sample.roles) if role == "data"]
        for dtype in ("int64", "bool", "complex128", "float64") if not self._fixed else ():
            with np.errstate(all="ignore"):
                yield sample.with_tensors(
                    tuple(recast(a, np.dtype(dtype)) if t in data else a for t, a in enumerate(sample.tensors))
                )

    def _mixed(self, sample: Sample) -> Iterator[Sample]:
        """One tensor alone in another dtype."""
        data = [t for t, role in enumerate(sample.roles) if role == "data"]
        for t, dtype in itertools.product(data if len(data) > 1 else (), ("int64", "bool", "float64")):
            if sample.tensors[t].dtype.name != dtype:
                with np.errstate(all="ignore"):
                    other = recast(sample.tensors[t], np.dtype(dtype))
                yield sample.with_tensors(tuple(other if i == t else a for i, a in enumerate(sample.tensors)))

    def _reshaped(self, sample: Sample) -> Iterator[Sample]:
        """Other sizes, ranks and forms of one tensor, of all, and of all but one."""
        yield from self._resized(sample)
        count = len(sample.tensors)
        every = range(count)
        some = [every, *((t,) for t in every if count > 1), *([o for o in every if o != t] for t in every if count > 2)]
        for chosen, change in itertools.product(some, FORMS):
            if all(sample.tensors[t].ndim <= 4 for t in chosen):
                tensors = tuple(change(a) if t in chosen else a for t, a in enumerate(sample.tensors))
                yield from self._along_others(sample.with_tensors(tensors))

    def _along_others(self, sample: Sample) -> Iterator[Sample]:
        """The call; where it does not run, along other dims: ranks may differ behind the dim worked along, say."""
        if not self.dims or self._runs(sample):
            yield sample
            return
        for name, dim in itertools.product(sorted(self.dims), range(3)):
            many = isinstance(sample.values(self.operator).get(name), (list, tuple))
            changed = with_value(self.operator, sample, name, [dim] if many else dim)
            if changed is not None and self._runs(changed):
                yield changed

    def _slender(self, sample: Sample) -> Iterator[Sample]:
        """No dim, or one, of two elements and all others of one: what shards are, where there is least to compute.
        Whole numbers among the arguments are 1, and lists of sizes empty, where it does not run otherwise."""
        plain = {n: v for n, v in sample.values(self.operator).items() if n not in self.dims}
        lists = [n for n, v in plain.items() if isinstance(v, (list, tuple)) and all(type(i) is int for i in v)]
        counts = [n for n, v in plain.items() if type(v) is int and v > 1]
        for long in (0, *sorted({size for shape in sample.shapes for size in shape if size > 1})):
            shapes = [tuple(2 if size == long else 1 for size in shape) for shape in sample.shapes]
            small = sample.with_tensors(tuple(resized(a, shape) for a, shape in zip(sample.tensors, shapes)))
            yield small
            sizes = {size for shape in sample.shapes for size in shape if size not in (1, long)}
            for count, size in itertools.product({plain[name] for name in counts}, sorted(sizes)):
                if size % count == 0:  # as many groups, of one element each
                    groups = [tuple(2 if n == long else count if n == size else 1 for n in s) for s in sample.shapes]
                    yield sample.with_tensors(tuple(resized(a, shape) for a, shape in zip(sample.tensors, groups)))
            least: Sample | None = small
            for name in (*counts, *lists):
                ones = 1 if name in counts else type(plain[name])(1 for _ in plain[name])
                least = with_value(self.operator, least, name, ones) if least is not None else None
            if least is not None and (counts or lists):
                yield least
            for name in lists:
                bare = with_value(self.operator, small, name, type(plain[name])())
                if bare is not None:
                    yield bare

    def _resized(self, sample: Sample) -> Iterator[Sample]:
        """Each size of each tensor alone to 1, a little and much longer, and shorter; and to sizes that the code names,
        of a whole dim or of one of two shards."""
        # Nothing but one size to lean on, and all sizes equal.
        for kept in sorted({size for shape in sample.shapes for size in shape if size > 1}):
            for rest in (1, 2, kept):
                shapes = [[size if size in (1, kept) else rest for size in shape] for shape in sample.shapes]
                if sum(map(math.prod, shapes)) <= MOST_ELEMENTS:
                    yield sample.with_tensors(tuple(resized(a, tuple(s)) for a, s in zip(sample.tensors, shapes)))
        named = [other for size in self.named.sizes[:6] if size > 2 for other in (size, 2 * size)]
        for tensor, shape in enumerate(sample.shapes):
            for dim, size in enumerate(shape):
                for new in dict.fromkeys((*named, 1, size + 1, size - 1, 2 * size)):
                    if new > 0 and new != size:
                        shapes = [list(s) for s in sample.shapes]
                        shapes[tensor][dim] = new
                        found = sample.with_tensors(
                            tuple(resized(a, tuple(s)) for a, s in zip(sample.tensors, shapes, strict=True))
                        )
                        yield self._sizes_in_arguments(found, size, new)

    def _turns_of(self, sample: Sample, name: str, value: Any, kind: str, rank: int) -> list[Any]:
        """Of the choices of an argument those that a rule is likeliest to fail at."""
        every = self._choices(sample, name, value, kind, rank)
        if isinstance(value, float) or kind.startswith(("float", "Scalar", "number")):
            named = [t + off for t in self.named.numbers[:6] for off in (-0.5, 0, 0.5)]
            own = [value - 0.01, value + 0.01] if isinstance(value, (int, float)) else []
            every = [*(v for v in every[:1] if v is None), -2.0, -0.5, 0.0, 0.5, 0.75, 1.0, 1.5, 3.0, *own, *named]
        unlike = {repr(v): v for v in every if repr(v) != repr(value)}
        return list(unlike.values())[:20]

    def swept(self, samples: Sequence[Sample], most: int) -> list[Sample]:
        """Each word of each argument that is one, and each dtype, once."""
        found: list[Sample] = []
        for sample in samples[:4]:
            for name, value in sample.values(self.operator).items():
                if isinstance(value, str) or self._types.get(name, "").startswith("str"):
                    for word in self.words(sample, name):
                        changed = with_value(self.operator, sample, name, word)
                        if changed is not None and _identity(changed) not in self._seen and len(found) < most:
                            self._seen.add(_identity(changed))
                            found.append(replace(changed, label="swept"))
        return found

    def rich(self, samples: Sequence[Sample], most: int) -> list[Sample]:
        """Calls at hand with larger tensors whose dims differ in size: such calls tell something of every row, and
        what holds on them does not hold because two sizes are equal.  Of different tensors and arguments first."""
        found: list[Sample] = []
        calls = [*samples, *(call for sample in samples for call in self._chosen(sample))] if not self._fixed else []
        waiting = [(sample, self._features(sample)) for sample in calls]
        seen: set[object] = set()
        for _ in range(3 * most):
            if not waiting or len(found) >= most:
                break
            place = max(range(len(waiting)), key=lambda i: (len(waiting[i][1] - seen), -i))
            sample, features = waiting.pop(place)
            if not features - seen:
                break
            grown = self._enlarged(sample) if self._runs(sample) else None
            if grown is not None and _identity(grown) not in self._seen:
                seen |= features
                self._seen.add(_identity(grown))
                found.append(grown)
        return found

    def _chosen(self, sample: Sample) -> Iterator[Sample]:
        """The call with other flags, other small numbers, without what may be left out."""
        for name, value in sample.values(self.operator).items():
            kind = self._types.get(name, "")
            choices: list[Any] = [None] if kind.endswith("?") else []
            if isinstance(value, bool) or kind.startswith("bool"):
                choices += [True, False]
            elif type(value) is int and name not in self.dims:
                choices += [0, 1, 2]
            elif kind.startswith("ScalarType") or name == "dtype":
                choices += getattr(self.operator.library, "dtypes", ())
            elif isinstance(value, float) or kind.startswith(("float", "Scalar", "number")):
                choices += [-0.5, 0.5, 1.5, float("inf")]
            for choice in choices:
                changed = with_value(self.operator, sample, name, choice) if choice != value else None
                if changed is not None:
                    yield changed

    def _features(self, sample: Sample) -> set[object]:
        tensors = sample.tensor_names(self.operator), tuple(a.ndim for a in sample.tensors)
        dtypes = tuple(a.dtype.kind for a in sample.tensors)
        return {tensors, dtypes, *((n, repr(v), dtypes) for n, v in sample.values(self.operator).items())}

    def _enlarged(self, sample: Sample) -> Sample | None:
        """Sizes changed as long as that makes the call tell more; None if it cannot be made to."""
        best, worth, steps = sample, _telling(sample), 0
        for _ in range(ENLARGEMENTS):
            again = self._sizes(best)
            if again is None or sum(a.size for a in again.tensors) > MOST_TO_TELL or _telling(again) <= worth:
                continue
            moved = self._values(again)
            if moved is not None and self._runs(moved):
                best, worth, steps = moved, _telling(moved), steps + 1
        return replace(best, label="enlarged") if steps else None

    def in_dtypes(self, samples: Sequence[Sample], most: int) -> list[Sample]:
        """Calls at hand in other dtypes: what their names say, and one of each kind of numbers."""
        found: list[Sample] = []
        wanted = dict.fromkeys((*self.named.dtypes, "int64", "bool", "complex128"))
        held = {a.dtype.name for sample in samples for a, role in zip(sample.tensors, sample.roles) if role == "data"}
        for name, sample in itertools.product((n for n in wanted if n in np.sctypeDict), samples):
            data = [t for t, role in enumerate(sample.roles) if role == "data"]
            if name in held or not data or self._fixed or len(found) >= most:
                continue
            with np.errstate(all="ignore"):
                tensors = tuple(recast(a, np.dtype(name)) if t in data else a for t, a in enumerate(sample.tensors))
            changed = sample.with_tensors(tensors, "in another dtype")
            if self._runs(changed):
                held.add(name)
                found.append(changed)
        return found

    def _runs(self, sample: Sample) -> bool:
        return runs(self.operator, sample)

    def _changed(self, sample: Sample, most: int) -> Sample | None:
        steps: list[Callable[[Sample], Sample | None]] = [self._values]
        if not self._fixed:
            steps += [self._sizes] * 4 + [self._ranks] * 2 + [self._dtypes]
        steps += [self._argument] * 3
        found: Sample | None = sample
        for place in self.rng.choice(len(steps), size=int(self.rng.integers(1, most + 1))):
            found = steps[int(place)](found) if found is not None else None
        if found is None:
            return None
        return self._values(found) if not self._fixed else found

    # ---- sizes and ranks -----------------------------------------------------------------------------------

    def _new_size(self, old: int) -> int:
        choices = [*SIZES, old + 1, max(1, old - 1), 2 * old]
        for size in self.named.sizes:
            choices += [size, size + 1, max(1, size - 1), 2 * size, size]
        return int(self.rng.choice(choices))

    def _sizes(self, sample: Sample) -> Sample | None:
        shapes = [list(shape) for shape in sample.shapes]
        dims = [(t, d) for t, shape in enumerate(shapes) for d in range(len(shape))]
        if not dims:
            return None
        tensor, dim = dims[int(self.rng.integers(len(dims)))]
        old = shapes[tensor][dim]
        if self.named.counts and self.rng.random() < 0.2:
            count, rest = int(self.rng.choice(self.named.counts)), max(1, sample.tensors[tensor].size // max(old, 1))
            new = -(-count // rest) + int(self.rng.integers(-1, 2))
        else:
            new = self._new_size(old)
        new = max(1, new)
        together = self.rng.random()
        if together < 0.25:  # this dim alone
            shapes[tensor][dim] = new
        elif together < 0.35:  # this dim of the other tensors, as broadcasting aligns it
            back = len(shapes[tensor]) - dim
            for t, shape in enumerate(shapes):
                if t != tensor and len(shape) >= back:
                    shape[-back] = new
        elif together < 0.5:  # this dim, and those aligned with it
            back = len(shapes[tensor]) - dim
            for shape in shapes:
                if len(shape) >= back and shape[-back] == old:
                    shape[-back] = new
        else:  # every dim of this size
            shapes = [[new if size == old else size for size in shape] for shape in shapes]
        found = sample.with_tensors(tuple(resized(a, tuple(shape)) for a, shape in zip(sample.tensors, shapes)))
        return self._sizes_in_arguments(found, old, new) if together >= 0.35 else found

    def _sizes_in_arguments(self, sample: Sample, old: int, new: int) -> Sample:
        """Lists of sizes among the arguments follow, if the call does not run otherwise."""
        if self._runs(sample):
            return sample
        for name, value in sample.values(self.operator).items():
            if isinstance(value, (list, tuple)) and old in value and name not in self.dims:
                items = type(value)(new if item == old else item for item in value)
                sample = with_value(self.operator, sample, name, items) or sample
            elif type(value) is int and value == old and name not in self.dims:
                sample = with_value(self.operator, sample, name, new) or sample
        return sample

    def _ranks(self, sample: Sample) -> Sample | None:
        """One more dim in front or behind, or one less, of all tensors or of one."""
        alone = len(sample.tensors) > 1 and self.rng.random() < 0.35
        chosen = {int(self.rng.integers(len(sample.tensors)))} if alone else set(range(len(sample.tensors)))
        size = int(self.rng.choice((1, 2, 3, 4, 5, 6)))
        way = self.rng.random()
        tensors = list(sample.tensors)
        for t in chosen:
            shape = tensors[t].shape
            if way < 0.45:
                if len(shape) > 4:
                    return None
                tensors[t] = resized(tensors[t], (size, *shape))
            elif way < 0.65:
                if len(shape) > 4:
                    return None
                tensors[t] = resized(tensors[t], (*shape, size))
            elif shape and shape[0] and shape[-1]:
                tensors[t] = tensors[t][0] if way < 0.9 else tensors[t][..., 0]
            elif alone:
                return None
        return sample.with_tensors(tuple(np.array(t, order="C") for t in tensors))

    # ---- dtypes --------------------------------------------------------------------------------

    def _dtypes(self, sample: Sample) -> Sample | None:
        """Tensors of numbers in another dtype: all, or one."""
        data = [t for t, role in enumerate(sample.roles) if role == "data"]
        if not data:
            return None
        known = [name for name in (*DTYPES, *self.named.dtypes, *self.named.dtypes) if name in np.sctypeDict]
        dtype = np.dtype(str(self.rng.choice(known)))
        alone = self.rng.random() < 0.3
        chosen = {int(self.rng.choice(data))} if alone else set(data)
        with np.errstate(all="ignore"):
            tensors = tuple(recast(a, dtype) if t in chosen else a for t, a in enumerate(sample.tensors))
        return sample.with_tensors(tensors)

    # ---- arguments -----------------------------------------------------------------------------------------

    def _argument(self, sample: Sample) -> Sample | None:
        values = [(n, v) for n, v in sample.values(self.operator).items() if n != "out"]
        if not values:
            return sample
        name, value = values[int(self.rng.integers(len(values)))]
        rank = max((a.ndim for a in sample.tensors), default=0)
        kind = self._types.get(name, "")
        choices = self._choices(sample, name, value, kind, rank)
        if not choices:
            return sample
        return with_value(self.operator, sample, name, choices[int(self.rng.integers(len(choices)))])

    def _choices(self, sample: Sample, name: str, value: Any, kind: str, rank: int) -> list[Any]:
        found: list[Any] = [None] if kind.endswith("?") or value is None else []
        if kind.startswith("ScalarType") or name == "dtype":
            return [*found, *getattr(self.operator.library, "dtypes", ())]
        if isinstance(value, bool) or kind.startswith("bool"):
            return [*found, True, False]
        if isinstance(value, str) or kind.startswith("str"):
            return [*found, *self.words(sample, name)]
        if name in self.dims:
            dims = [*range(rank), *range(-rank, 0)]
            if "[" in kind or isinstance(value, (list, tuple)):
                pairs = [list(pair) for pair in itertools.permutations(range(rank), 2)][:12]
                return [*found, *([d] for d in dims), *pairs, [], [*range(rank)], [-1, 0] if rank > 1 else [0]]
            return [*found, *dims]
        sizes = [size for shape in sample.shapes for size in shape]
        if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            items = [*value]
            items[int(self.rng.integers(len(items)))] = int(self.rng.choice((0, 1, 2, 3, items[0] + 1, *sizes)))
            ones = (type(value)(value_of for _ in value) for value_of in (0, 1, 2))
            mixed = type(value)(int(self.rng.choice((0, 1, 2, 3))) for _ in value)
            rest = [type(value)(-1 if i == n else v for i, v in enumerate(value)) for n in range(len(value))]
            longer = [
                *rest,
                type(value)((-1,)),
                type(value)((1, *value)),
                type(value)((*value, 1)),
                type(value)((2, *value)),
                value[1:],
            ]
            return [type(value)(items), mixed, *ones, *longer]
        if isinstance(value, float) or kind.startswith(("float", "Scalar", "number")):
            near = [v for v in (value,) if isinstance(v, (int, float))]
            turns = [*self.named.numbers, *near]
            around = [t + off for t in turns for off in (-1, -0.01, 0, 0.01, 1)]
            whole = [0, 1, 2, -1, 3] if kind.startswith(("Scalar", "number")) else []
            return [*found, *NUMBERS, -float("inf"), *around, *whole]
        if type(value) is int or kind.startswith("int"):
            base = value if type(value) is int else 1
            named = [n + off for n in self.named.sizes for off in (-1, 0, 1)]
            own = result_sizes(self.operator, sample) if value is None else []
            return [*found, *own, base + 1, base - 1, 0, 1, 2, 3, -1, *named, *sizes[:4]]
        return found if value is not None else []


def _telling(sample: Sample) -> tuple[int, int, int]:
    """How much a call can tell: of how many tensors something, dims of more than one element, sizes that differ."""
    large = sum(a.size >= LARGE_ENOUGH for a in sample.tensors)
    sizes = [[size for size in a.shape if size > 1] for a in sample.tensors]
    apart = sum(len(set(some)) for some in sizes) + len({size for some in sizes for size in some})
    return large, sum(map(len, sizes)), apart


def _identity(sample: Sample) -> tuple[object, ...]:
    values = (repr(sample.args), repr(sorted(sample.kwargs.items(), key=lambda item: item[0])))
    return (*values, *((t.shape, t.dtype.str, t.tobytes()) for t in sample.tensors))
