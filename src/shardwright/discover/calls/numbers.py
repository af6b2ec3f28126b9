"""New numbers for the tensors of a call: in many styles, around what the code names, positions in their range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..inputs.adversarial import BELONG_TOGETHER, conformed, domain_of
from ..inputs.registry import plain_name
from ..operator import Array, Operator, Sample
from .named import Named, numbers_in

DEFAULT_TURNS = (0.0, 0.5, 1.0, 3.0, 6.0, 20.0)
"""Where kernels branch, whose code cannot be read: the steps of relu6, hardtanh, hardswish, softplus."""

STYLES = 12
"""Ways to draw numbers."""


class Numbers:
    """Draws numbers for the calls of one operator."""

    def __init__(self, operator: Operator, samples: Sequence[Sample], named: Named, rng: np.random.Generator) -> None:
        self.operator, self.named, self.rng = operator, named, rng
        self._plain = plain_name(operator.short_name)
        self.turns = tuple(dict.fromkeys((*named.numbers, *numbers_in(operator, samples[:8]), *DEFAULT_TURNS)))[:16]
        self.fixed = self._plain in BELONG_TOGETHER
        """Its tensors are legal only as they came."""

    def values(self, sample: Sample, style: int | None = None) -> Sample | None:
        """New numbers: normal, whole, far apart, of one sign, around what the code names; positions in their range."""
        if self.fixed:
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
                truths = np.asarray(self.rng.random(array.shape) < (0.5, 0.9, 0.2)[style % 3])
                tensors[t] = np.sort(truths, -1) if domain == "sorted" and truths.ndim else truths
            else:
                drawn = self._numbers(array.shape, array.dtype, style)
                if domain == "any" and _positive(array) and self.rng.random() < 0.5:
                    drawn = np.abs(drawn) + array.dtype.type(0 if array.dtype.kind in "iu" else 0.125)
                tensors[t] = np.asarray(conformed(drawn, domain))
        fitted = (np.array(a, dtype=b.dtype, order="C") for a, b in zip(tensors, sample.tensors))
        return sample.with_tensors(tuple(fitted))

    def legal(self, sample: Sample) -> Sample:
        """The call with its own numbers, as the operator asks for them: what was sorted in one shape is sorted anew."""
        names = sample.tensor_names(self.operator)
        asked = [domain_of(self._plain, name, t) for t, name in enumerate(names)]
        if "sorted" not in asked or "sorter" in names:
            return sample
        pairs = zip(sample.tensors, asked)
        return sample.with_tensors(tuple(conformed(a, "sorted") if to == "sorted" else a for a, to in pairs))

    def _positions(self, array: Array, name: str) -> Array:
        if array.size == 0 or name.partition("[")[0] in ("pivots", "LU_pivots", "offsets", "lengths", "sorter"):
            return array
        low, high = int(array.min()), int(array.max())
        drawn = np.asarray(self.rng.integers(low, high + 1, array.shape))
        style = self.rng.random()
        if style < 0.2:  # nearly all the same: a shard without the largest, or with it alone
            drawn = np.where(self.rng.random(array.shape) < 1.5 / array.size, drawn, drawn.flat[0])
        elif style < 0.3:
            drawn = np.sort(drawn.reshape(-1)).reshape(array.shape)
        return drawn.astype(array.dtype)

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
        elif style >= 10:  # where logarithms and inverses of bounded functions are defined
            drawn = np.asarray(rng.uniform(-0.95 if style == 10 else 0.02, 0.98, shape))
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


def _positive(array: Array) -> bool:
    return bool(array.dtype.kind in "fiu" and array.size > 1 and np.isfinite(array).all() and (array >= 0).all())


def recast(array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = array.real
    if dtype.kind == "b":
        return np.asarray(array > 0)
    if dtype.kind in "iu" and array.dtype.kind == "f":
        array = np.clip(np.rint(np.nan_to_num(array)), 0 if dtype.kind == "u" else -1000, 1000)
    return np.asarray(array).astype(dtype)
