"""Draws programs: each call is tried on real numbers as it is drawn, so that shapes, dtypes and what is allowed come
from the framework itself.

A vocabulary is a list of functions that each add one call to a `Writer`, or find that nothing fits.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from .programs import Call, Fill, FuzzProgram, Ref, argument

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12)
EMPTY = 0.02
"""The part of dims that have no elements."""
MOST_ELEMENTS = 1500
"""Elements of a value: more would only be slower."""
LARGEST = 1e4
"""The largest number: beyond it roundings of one value drown another."""
CALLS = (3, 10)
Word = Callable[["Writer"], Any]


class Writer:
    """A program while it is drawn, with the numbers of its values."""

    def __init__(self, seed: int, frontend: str, floating: str, words: Sequence[tuple[int, Word]]) -> None:
        self.random = random.Random(seed)
        self.frontend, self.floating, self.words = frontend, floating, words
        self.made: list[Fill | Call] = []
        """Inputs and calls as they are drawn, in which order values are counted until the program is done."""
        self.pool: list[Any] = []
        self.changed: set[int] = set()
        """Values that are written to: only what the write gives is read from then on."""

    # -- values ---------------------------------------------------------------------------------------------

    def input(self, shape: Sequence[int], dtype: str | None = None, kind: str = "normal", limit: int = 0) -> Ref:
        if kind in ("below", "distinct") and not limit:
            raise Unfit  # nothing to index
        fill = Fill(tuple(shape), dtype or self.floating, self.random.randrange(1 << 16), kind, limit)
        return self._add(fill, argument(fill, self.frontend))

    def _add(self, made: Fill | Call, value: Any) -> Ref:
        self.made.append(made)
        self.pool.append(value)
        return Ref(len(self.pool) - 1)

    def of(self, ref: Ref) -> Any:
        return self.pool[ref.index]

    def shape(self, ref: Ref) -> tuple[int, ...]:
        return tuple(self.of(ref).shape)

    def rank(self, ref: Ref) -> int:
        return len(self.shape(ref))

    def dtype(self, ref: Ref) -> str:
        return str(self.of(ref).dtype).removeprefix("torch.")

    def is_float(self, ref: Ref) -> bool:
        return "float" in self.dtype(ref)

    def is_whole(self, ref: Ref) -> bool:
        return "int" in self.dtype(ref)

    def shape_at(self, ref: Ref, key: Any) -> tuple[int, ...] | None:
        """The shape of a part; None where that depends on numbers."""
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, Ref) and self.dtype(k) == "bool" for k in keys):
            return None
        found = tuple(numeric(self.of(k)) if isinstance(k, Ref) else k for k in keys)
        return tuple(numeric(self.of(ref))[found].shape)

    def values(self, fits: Callable[[Ref], bool] = lambda ref: True) -> list[Ref]:
        """All values that fit, so far."""
        arrays = [Ref(i) for i, value in enumerate(self.pool) if hasattr(value, "dtype") and i not in self.changed]
        return [ref for ref in arrays if fits(ref)]

    def some(self, fits: Callable[[Ref], bool] = lambda ref: True) -> Ref:
        """A value that fits, later ones more often; `Unfit` if there is none."""
        fitting = self.values(fits)
        if not fitting:
            raise Unfit
        return fitting[max(self.random.randrange(len(fitting)), self.random.randrange(len(fitting)))]

    def ranked(self, least: int, most: int = 4, floating: bool = False) -> Ref:
        return self.some(lambda r: least <= self.rank(r) <= most and (not floating or self.is_float(r)))

    def like(self, ref: Ref) -> Ref:
        """Another value of the same shape, or one that is stretched to it."""
        shape, dtype = self.shape(ref), self.dtype(ref)
        same = self.values(lambda r: _stretches(self.shape(r), shape) and self.dtype(r) == dtype)
        if len(same) > 1 and self.random.random() < 0.7:
            return self.random.choice(same)
        thin = tuple(1 if self.random.random() < 0.3 else size for size in shape)
        return self.input(thin[self.random.randrange(len(thin)) :] if thin and self.random.random() < 0.3 else thin,
                          dtype if dtype != "complex128" else "float64")  # fmt: skip

    # -- choices --------------------------------------------------------------------------------------------

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def one(self, choices: Sequence[Any]) -> Any:
        if not choices:
            raise Unfit
        return self.random.choice(choices)

    def size(self) -> int:
        return 0 if self.chance(EMPTY) else self.one(SIZES)

    def dim(self, ref: Ref, scalars: bool = False) -> int:
        """A dim, counted from either end; 0 of ``scalars``, where the framework takes that."""
        rank = self.rank(ref)
        if not rank and scalars:
            return 0
        if not rank:
            raise Unfit
        d = self.random.randrange(rank)
        return d - rank if self.chance(0.3) else d

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self, function: str, *args: Any, **kwargs: Any) -> Ref:
        """Add a call, if what it makes is of use: finite, small, not empty of meaning; otherwise `Unfit`."""
        call = Call(function, args, tuple(kwargs.items()))
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                made = call.apply(self.pool)
        except Exception:
            raise Unfit from None
        parts = made if isinstance(made, tuple | list) else (made,)
        if not all(self._useful(part) for part in parts):
            raise Unfit
        return self._add(call, made)

    def part(self, ref: Ref) -> Ref:
        """One result of a call with several."""
        return self.call("[]", ref, self.random.randrange(len(self.of(ref))))

    def _useful(self, value: Any) -> bool:
        if not hasattr(value, "shape") or prod(value.shape) > MOST_ELEMENTS or len(value.shape) > 5:
            return False
        numbers = numeric(value)
        if numbers.dtype.kind not in "fc":
            return numbers.dtype.kind == "b" or not numbers.size or int(np.abs(numbers).max()) < LARGEST
        known = numbers[~np.isnan(numbers)]
        return bool(np.all(np.abs(known) < LARGEST))

    def step(self) -> bool:
        """One more word of the vocabulary."""
        words, weights = [word for _, word in self.words], [weight for weight, _ in self.words]
        for _ in range(40):
            (word,) = self.random.choices(words, weights)
            try:
                word(self)
            except Unfit:
                continue
            return True
        return False

    def program(self) -> FuzzProgram:
        """A program of some calls, of which some values are returned."""
        for _ in range(self.random.randint(1, 3)):
            self.input([self.size() for _ in range(self.one((0, 1, 1, 2, 2, 2, 3, 3, 4)))])
        for _ in range(self.random.randint(*CALLS)):
            self.step()
        calls = [i for i, made in enumerate(self.made) if isinstance(made, Call)]
        made = [ref.index for ref in self.values() if ref.index in calls]
        if not made:
            return Writer(self.random.randrange(1 << 30), self.frontend, self.floating, self.words).program()
        returned = dict.fromkeys([made[-1], *self.random.sample(made, min(len(made), self.one((1, 1, 2))))])
        inputs = [i for i, made in enumerate(self.made) if isinstance(made, Fill)]
        names = {old: new for new, old in enumerate([*inputs, *calls])}
        program = FuzzProgram(
            tuple(made for made in self.made if isinstance(made, Fill)),
            tuple(made.renamed(names) for made in self.made if isinstance(made, Call)),
            tuple(names[i] for i in returned),
            self.frontend,
        )
        program = program.only(program.read())
        if not program.inputs:  # of constants alone, which nobody would split
            return Writer(self.random.randrange(1 << 30), self.frontend, self.floating, self.words).program()
        return program


class Unfit(Exception):
    """What was drawn does not fit what is there."""


def numeric(value: Any) -> Any:
    """The numbers of an array or tensor, as NumPy's."""
    if hasattr(value, "detach"):
        value = value.detach()
        return (value.double() if value.dtype.is_floating_point else value).numpy()
    return np.asarray(value)


def apart(value: Any, axis: int | None = None) -> bool:
    """Whether no two numbers along an axis are so near each other that roundings could change their order."""
    numbers = numeric(value)
    if numbers.dtype.kind not in "fc" or not numbers.size or not numbers.ndim:
        return True
    ordered = np.sort(numbers.reshape(-1) if axis is None else numbers, axis=0 if axis is None else axis)
    gaps = np.diff(ordered, axis=0 if axis is None else axis)
    return bool(np.all((gaps == 0) | (gaps > 1e-3 * np.abs(ordered).max(initial=1e-3))))


def off(value: Any, *limits: float) -> bool:
    """Whether no number is so near a limit that roundings could take it over."""
    numbers = numeric(value)
    if numbers.dtype.kind != "f":
        return True
    return all(bool(np.all(~(np.abs(numbers - limit) <= 1e-2))) for limit in limits)


def _stretches(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1]))
