"""Fresh calls: a call that runs, changed in a few ways at once, as long as it still runs.

Changed are sizes (together or of one tensor alone, to 1, longer, shorter), ranks, dtypes, arguments and numbers; sizes,
arguments and numbers also to what the operator's own code names (`named`).  Everything is drawn by a seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .cases import names_dims
from .inputs.adversarial import BELONG_TOGETHER, conformed, domain_of
from .inputs.registry import plain_name
from .named import Named, choices_of, documents_of, named_by
from .operator import Array, Operator, Sample
from .widen import runs, with_value

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
DTYPES = ("float64", "int64", "bool", "complex128", "int32", "float64", "int64")
MOST_ELEMENTS = 4096
TRIES = 6
"""Changes drawn for one fresh call before giving up on it."""

NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 3.0, -0.5, 0.25, 1e-3, 10.0, float("inf"))
DEFAULT_TURNS = (0.0, 0.5, 1.0, 3.0, 6.0, 20.0)
"""Where kernels branch, whose code cannot be read: the steps of relu6, hardtanh, hardswish, softplus."""

STYLES = 10
"""Ways to draw numbers."""


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
        self._plain = plain_name(operator.short_name)
        self._seen = {_identity(sample) for sample in samples}
        self._types = {argument.name: argument.type for argument in operator.arguments}
        self.turns = tuple(dict.fromkeys((*self.named.numbers, *_numbers_in(operator, samples[:8]), *DEFAULT_TURNS)))[
            :16
        ]
        self._fixed = self._plain in BELONG_TOGETHER
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

    def around(self, sample: Sample, sizes_first: bool = False) -> Iterator[Sample]:
        """Calls that differ from this one in one thing, everything that calls usually differ in: each size alone to 1,
        longer and shorter, and every argument to both sides of what it may turn at.  With new numbers each time."""
        styled = (self._values(sample, style) for style in range(STYLES))
        different = list(self._different(sample))
        mixed = [different[int(place)] for place in self.rng.permutation(len(different))]
        resized_ones = list(self._resized(sample)) if not self._fixed else []
        order = [*resized_ones, *mixed] if sizes_first else [*mixed, *resized_ones]
        for again in itertools.chain(() if sizes_first else styled, map(self._values, order)):
            if again is None or sum(t.size for t in again.tensors) > MOST_ELEMENTS:
                continue
            key = _identity(again)
            if key not in self._seen and runs(self.operator, again):
                self._seen.add(key)
                yield replace(again, label="fresh")

    def _different(self, sample: Sample) -> Iterator[Sample]:
        rank = max((a.ndim for a in sample.tensors), default=0)
        for name, value in sample.values(self.operator).items():
            kind = self._types.get(name, "")
            for choice in self._turns_of(sample, name, value, kind, rank):
                changed = with_value(self.operator, sample, name, choice)
                if changed is not None:
                    yield changed
        if self._fixed:
            return
        data = [t for t, role in enumerate(sample.roles) if role == "data"]
        for dtype in ("int64", "bool", "complex128", "float64"):
            with np.errstate(all="ignore"):
                yield sample.with_tensors(
                    tuple(_recast(a, np.dtype(dtype)) if t in data else a for t, a in enumerate(sample.tensors))
                )
        for chosen in (range(len(sample.tensors)), *((t,) for t in range(len(sample.tensors) if rank else 0))):
            for change in (_one_in_front, _two_in_front, _one_behind, _none_in_front):
                if any(sample.tensors[t].ndim > 4 for t in chosen):
                    continue
                yield sample.with_tensors(tuple(change(a) if t in chosen else a for t, a in enumerate(sample.tensors)))

    def _resized(self, sample: Sample) -> Iterator[Sample]:
        """Each size of each tensor alone to 1, a little and much longer, and shorter; and to sizes that the code names,
        of a whole dim or of one of two shards."""
        named = [other for size in self.named.sizes[:6] if size > 2 for other in (size, 2 * size)]
        for tensor, shape in enumerate(sample.shapes):
            for dim, size in enumerate(shape):
                for new in dict.fromkeys((*named, 1, size + 1, size - 1, 2 * size)):
                    if new > 0 and new != size:
                        shapes = [list(s) for s in sample.shapes]
                        shapes[tensor][dim] = new
                        yield sample.with_tensors(
                            tuple(resized(a, tuple(s)) for a, s in zip(sample.tensors, shapes, strict=True))
                        )

    def _turns_of(self, sample: Sample, name: str, value: Any, kind: str, rank: int) -> list[Any]:
        """Of the choices of an argument those that a rule is likeliest to fail at."""
        every = self._choices(sample, name, value, kind, rank)
        if isinstance(value, float) or kind.startswith(("float", "Scalar", "number")):
            named = [t + off for t in self.named.numbers[:6] for off in (-0.5, 0, 0.5)]
            own = [value - 0.01, value + 0.01] if isinstance(value, (int, float)) else []
            every = [*(v for v in every[:1] if v is None), -2.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0, *own, *named]
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
        """Fresh calls whose tensors are large enough to tell something of every row."""
        found: list[Sample] = []
        for number in range(6 * most):
            fresh = self.near(samples[number % len(samples)])
            tells = fresh is not None and all(a.size >= 6 and min(a.shape) > 1 for a in fresh.tensors if a.ndim)
            if fresh is not None and tells and max(a.size for a in fresh.tensors) < 300 and len(found) < most:
                found.append(fresh)
        return found

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
                tensors = tuple(_recast(a, np.dtype(name)) if t in data else a for t, a in enumerate(sample.tensors))
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

    # ---- dtypes and numbers --------------------------------------------------------------------------------

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
            tensors = tuple(_recast(a, dtype) if t in chosen else a for t, a in enumerate(sample.tensors))
        return sample.with_tensors(tensors)

    def _values(self, sample: Sample, style: int | None = None) -> Sample | None:
        """New numbers: normal, whole, far apart, of one sign, around what the code names; positions in their range."""
        if self._fixed:
            return sample
        names = sample.tensor_names(self.operator)
        style = int(self.rng.integers(STYLES)) if style is None else style
        tensors: list[Any] = list(sample.tensors)
        for t, (array, role) in enumerate(zip(sample.tensors, sample.roles)):
            domain = domain_of(self._plain, names[t], t)
            if "sorter" in names:
                continue
            if role == "index":
                tensors[t] = self._positions(array, names[t])
            elif role == "mask" or array.dtype.kind == "b":
                tensors[t] = self.rng.random(array.shape) < (0.5, 0.9, 0.2)[style % 3]
            else:
                drawn = self._numbers(array.shape, array.dtype, style)
                if domain == "any" and _positive(array) and self.rng.random() < 0.5:
                    drawn = np.abs(drawn) + array.dtype.type(0 if array.dtype.kind in "iu" else 0.125)
                tensors[t] = np.asarray(conformed(drawn, domain))
        fitted = (np.array(a, dtype=b.dtype, order="C") for a, b in zip(tensors, sample.tensors))
        return sample.with_tensors(tuple(fitted))

    def _positions(self, array: Array, name: str) -> Array:
        if array.size == 0 or name.partition("[")[0] in ("pivots", "LU_pivots", "offsets", "lengths", "sorter"):
            return array
        low, high = int(array.min()), int(array.max())
        return np.asarray(self.rng.integers(low, high + 1, array.shape)).astype(array.dtype)

    def _numbers(self, shape: tuple[int, ...], dtype: np.dtype[Any], style: int) -> Array:
        rng = self.rng
        if dtype.kind == "c":
            part = np.dtype("float64")
            return np.asarray(self._numbers(shape, part, style) + 1j * self._numbers(shape, part, style)).astype(dtype)
        if style <= 1:
            drawn: Array = np.asarray(rng.standard_normal(shape) * 2)
        elif style == 2:
            drawn = np.asarray(rng.integers(-3, 4, shape), dtype=np.float64)
        elif style == 3:
            drawn = np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 9, shape))
        elif style == 4:
            drawn = np.asarray(np.abs(rng.standard_normal(shape)) + 0.1)
        elif style >= 8:
            drawn = np.asarray(rng.standard_normal(shape) * (1000.0 if style == 8 else 0.01))
        else:
            # Around one turn of the code or around many of them; single elements just there, or scaled to reach it.
            turns = np.asarray([*self.turns, *(self.named.numbers or self.turns)], dtype=np.float64)
            turns = turns[np.isfinite(turns) & (np.abs(turns) < 1e6)]
            centre = rng.choice(turns, size=shape if style == 5 else ())
            off = rng.choice((-1.0, -0.01, 0.0, 0.0, 0.01, 1.0), size=shape)
            drawn = np.asarray(centre + off * (1 + np.abs(centre) * (rng.random() < 0.3)))
            if style == 7:
                count = max(1, int(np.prod(shape, dtype=np.int64)))
                drawn = np.asarray(rng.uniform(0.2, 2.0, shape) * centre / (count if rng.random() < 0.5 else 1.0))
        if dtype.kind in "iu":
            drawn = np.clip(np.rint(drawn), 0 if dtype.kind == "u" else -(2.0**20), 2.0**20)
        return np.asarray(drawn).astype(dtype)

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
            return [*found, base + 1, base - 1, 0, 1, 2, 3, -1, *named, *sizes[:4]]
        return found if value is not None else []


def resized(array: Array, shape: tuple[int, ...]) -> Array:
    """The array's own numbers, again and again, in another shape."""
    return np.ascontiguousarray(np.resize(array, shape)) if array.size else np.zeros(shape, array.dtype)


def _one_in_front(array: Array) -> Array:
    return array[None]


def _two_in_front(array: Array) -> Array:
    return resized(array, (2, *array.shape))


def _one_behind(array: Array) -> Array:
    return resized(array, (*array.shape, 3))


def _none_in_front(array: Array) -> Array:
    return np.array(array[0] if array.ndim and array.shape[0] else array)


def _positive(array: Array) -> bool:
    return bool(array.dtype.kind in "fiu" and array.size > 1 and np.isfinite(array).all() and (array >= 0).all())


def _recast(array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = array.real
    if dtype.kind == "b":
        return np.asarray(array > 0)
    if dtype.kind in "iu" and array.dtype.kind == "f":
        array = np.clip(np.rint(np.nan_to_num(array)), 0 if dtype.kind == "u" else -1000, 1000)
    return np.asarray(array).astype(dtype)


def _identity(sample: Sample) -> tuple[object, ...]:
    values = (repr(sample.args), repr(sorted(sample.kwargs.items(), key=lambda item: item[0])))
    return (*values, *((t.shape, t.dtype.str, t.tobytes()) for t in sample.tensors))


def _numbers_in(operator: Operator, samples: Sequence[Sample]) -> list[float]:
    """Numbers among the arguments of calls."""
    found: dict[float, None] = {}
    for sample in samples:
        for name, value in sample.values(operator).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not names_dims(operator, name):
                found[float(value)] = None
    return list(found)


def dims_by_behaviour(operator: Operator, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Arguments that take exactly the dims of the call's largest tensor: -n to n-1, in calls of two ranks."""
    found: dict[str, set[int]] = {}
    for sample in samples[:12]:
        rank = max((a.ndim for a in sample.tensors), default=0)
        for name, value in sample.values(operator).items():
            if rank and type(value) is int and not names_dims(operator, name) and -rank <= value < rank:
                changed = [(v, with_value(operator, sample, name, v)) for v in range(-rank - 1, rank + 1)]
                taken = [v for v, call in changed if call is not None and runs(operator, call)]
                ranks = found.setdefault(name, set())
                ranks.add(rank if taken == [*range(-rank, rank)] else 0)
    return tuple(name for name, ranks in found.items() if 0 not in ranks and ranks)
