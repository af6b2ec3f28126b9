"""Adversarial inputs where order or equality decides: sorting, extrema, running extrema, comparisons, boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operator import Array
from .registry import Drawn, Shape, counting, generator, random, whole

SORTING = (
    "sort",
    "msort",
    "argsort",
    "topk",
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
    "unique_consecutive",
    "unique",
)
EXTREMA = ("max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "maximum", "minimum", "fmax", "fmin")
QUANTILES = ("quantile", "nanquantile")
POOLING = ("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "adaptive_max_pool2d")
ORDER = (*SORTING, *EXTREMA, *QUANTILES, *POOLING, "cummax", "cummin", "count_nonzero", "any", "all")

CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "cumulative_trapezoid", "trapezoid", "diff")

COMPARISONS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "isclose", "allclose", "equal", "isin", "maximum", "minimum", "fmax", "fmin"),
    *("heaviside", "sign", "sgn", "signbit", "copysign", "nextafter", "logical_and", "logical_or", "logical_xor"),
    *("logical_not", "where", "hypot", "sub"),
)

BOUNDARIES = ("searchsorted", "bucketize", "histogram", "histc", "histogramdd")


def _flat(shape: Shape, values: Array) -> Array:
    return np.asarray(values, dtype=np.float64).reshape(shape)


# Sorting and extrema


@generator(ops=ORDER, kinds="fciu")
def gen_all_equal(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Every element ties with every other"""
    return np.full(shape, 2.0 + input_idx)


@generator(ops=ORDER, kinds="fciu")
def gen_two_values(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Two values only, so most elements tie"""
    return whole(shape, input_idx, 11, 0, 1)


@generator(ops=ORDER, kinds="fci")
def gen_tied_maximum(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The maximum stands first and last: which position wins?"""
    found = whole(shape, input_idx, 12, -4, 4)
    flat = found.reshape(-1)
    if flat.size:
        flat[0] = flat[-1] = 5
    return found


@generator(ops=ORDER, kinds="fci")
def gen_tied_minimum(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The minimum stands first and last"""
    found = whole(shape, input_idx, 13, -4, 4)
    flat = found.reshape(-1)
    if flat.size:
        flat[0] = flat[-1] = -5
    return found


@generator(ops=ORDER, kinds="fciu")
def gen_repeated_halves(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The second half of each dim repeats the first, so shards hold the same values"""
    found = whole(shape, input_idx, 14, 0, 9)
    for axis, size in enumerate(shape):
        half = size // 2
        low = [slice(None)] * len(shape)
        high = list(low)
        low[axis], high[axis] = slice(0, half), slice(half, 2 * half)
        found[tuple(high)] = found[tuple(low)]
    return found


@generator(ops=ORDER, kinds="fciu")
def gen_ascending(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Sorted already"""
    return _flat(shape, counting(shape) + input_idx)


@generator(ops=ORDER, kinds="fci")
def gen_reversed_order(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Sorted the other way round"""
    return _flat(shape, input_idx - counting(shape))


@generator(ops=ORDER, kinds="fci")
def gen_zigzag(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Neighbours alternate between high and low"""
    position = counting(shape)
    return _flat(shape, np.where(position % 2 == 0, position, -position) + input_idx)


@generator(ops=ORDER, kinds="fci")
def gen_all_negative_ties(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All negative, with ties: a neutral 0 must not win"""
    return whole(shape, input_idx, 15, -3, -1)


@generator(ops=(*ORDER, *COMPARISONS))
def gen_signed_zero_ties(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Zeros of both signs: equal, yet not the same"""
    return np.where(whole(shape, input_idx, 16, 0, 1) > 0, 0.0, -0.0)


@generator(ops=ORDER)
def gen_neighbouring_floats(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Values one rounding step apart"""
    one = np.asarray(1, dtype=dtype if dtype.kind == "f" else np.float64)
    return np.where(whole(shape, input_idx, 17, 0, 1) > 0, np.nextafter(one, one + 1), one)


@generator(ops=ORDER, special=True)
def gen_nan_first(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """NaN in the first element only"""
    found = whole(shape, input_idx, 18, -4, 4)
    found.reshape(-1)[:1] = np.nan
    return found


@generator(ops=ORDER, special=True)
def gen_nan_last(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """NaN in the last element only"""
    found = whole(shape, input_idx, 19, -4, 4)
    found.reshape(-1)[-1:] = np.nan
    return found


@generator(ops=ORDER, special=True)
def gen_infinite_ends(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Both infinities, at the ends"""
    found = whole(shape, input_idx, 20, -4, 4)
    found.reshape(-1)[:1] = -np.inf
    found.reshape(-1)[-1:] = np.inf
    return found


# Cumulative operators


@generator(ops=CUMULATIVE, kinds="fci")
def gen_alternating_ones(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """+1 and -1 in turn: running sums return to 0, running products change sign"""
    return _flat(shape, 1 - 2 * ((counting(shape) + input_idx) % 2))


@generator(ops=CUMULATIVE, kinds="fciu")
def gen_zero_in_the_middle(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """A zero in the middle, after which a running product is 0"""
    found = whole(shape, input_idx, 21, 1, 2)
    flat = found.reshape(-1)
    flat[flat.size // 2 : flat.size // 2 + 1] = 0
    return found


@generator(ops=CUMULATIVE)
def gen_powers_of_two(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Powers of two and their inverses: running products stay exact"""
    return np.asarray(np.exp2(whole(shape, input_idx, 22, -2, 2)))


@generator(ops=CUMULATIVE, kinds="fci")
def gen_sawtooth(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Rises and falls, so running extrema stay for long"""
    return _flat(shape, (counting(shape) * 3 + input_idx) % 7 - 3)


@generator(ops=CUMULATIVE, kinds="fci")
def gen_peak_at_the_start(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The first element dominates all running extrema"""
    found = whole(shape, input_idx, 23, -3, 3)
    found.reshape(-1)[:1] = 9 - 18 * (input_idx % 2)
    return found


@generator(ops=CUMULATIVE)
def gen_large_steps(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Steps of some hundreds: exponentials underflow beside their neighbours"""
    return 300 * whole(shape, input_idx, 24, -2, 2)


@generator(ops=CUMULATIVE, special=True)
def gen_nan_midway(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """NaN halfway: everything after it is NaN"""
    found = whole(shape, input_idx, 25, -3, 3)
    flat = found.reshape(-1)
    flat[flat.size // 2 : flat.size // 2 + 1] = np.nan
    return found


# Comparisons


@generator(ops=COMPARISONS, kinds="fciu")
def gen_equal_inputs(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All inputs hold the same values"""
    return whole(shape, 0, 31, 0, 5)


@generator(ops=COMPARISONS, kinds="fciu")
def gen_half_equal(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Every other element is equal in all inputs"""
    return whole(shape, 0, 32, 0, 5) + np.where(counting(shape) % 2 == 0, 0, input_idx)


@generator(ops=COMPARISONS)
def gen_one_step_apart(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Inputs differ by one rounding step, or not at all"""
    base = whole(shape, 0, 33, 1, 5).astype(dtype if dtype.kind == "f" else np.float64)
    moved = whole(shape, input_idx, 34, 0, 1) > 0
    return np.where(moved & (input_idx > 0), np.nextafter(base, 100 * base), base)


@generator(ops=COMPARISONS, kinds="fci")
def gen_opposite_inputs(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Inputs of equal magnitude and opposite sign"""
    return whole(shape, 0, 35, -3, 3) * (1 - 2 * (input_idx % 2))


@generator(ops=COMPARISONS, kinds="fci")
def gen_signs_and_zero(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Only -1, 0 and 1: partial sums cross zero"""
    return whole(shape, input_idx, 36, -1, 1)


@generator(ops=COMPARISONS)
def gen_near_tolerance(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Differences at the usual tolerances, 1e-8 and 1e-5 of the value"""
    steps = np.array([0.0, 0.9e-8, 1.1e-8, 0.9e-5, 1.1e-5])
    return 1 + (input_idx > 0) * steps[(counting(shape) + input_idx) % len(steps)]


@generator(ops=COMPARISONS, special=True)
def gen_equal_nan(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """NaN at the same places of all inputs"""
    return np.where(counting(shape) % 3 == 0, np.nan, whole(shape, 0, 37, 0, 3))


# Boundaries: the first input may be the sorted one or the other; equal whole numbers in both meet anyway


@generator(ops=BOUNDARIES, kinds="fciu")
def gen_on_boundaries(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Values equal to boundaries: left and right differ"""
    return whole(shape, input_idx, 41, 0, 9)


@generator(ops=BOUNDARIES, kinds="fciu")
def gen_repeated_boundaries(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Boundaries that repeat, and values on them"""
    return whole(shape, input_idx, 42, 1, 2)


@generator(ops=BOUNDARIES, kinds="fciu")
def gen_one_boundary(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All boundaries are the same value, and so are the values"""
    return np.full(shape, 3.0)


@generator(ops=BOUNDARIES)
def gen_between_boundaries(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Values halfway between boundaries"""
    return whole(shape, input_idx, 43, 0, 9) + 0.5 * (input_idx % 2)


@generator(ops=BOUNDARIES, kinds="fci")
def gen_outside_boundaries(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Values below the first and above the last boundary"""
    far = 100 * (1 - 2 * (counting(shape) % 2))
    return whole(shape, input_idx, 44, 0, 9) + far * (input_idx % 2)


@generator(ops=BOUNDARIES)
def gen_just_off_boundaries(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Values one rounding step off a boundary"""
    base = whole(shape, input_idx, 45, 1, 9).astype(dtype if dtype.kind == "f" else np.float64)
    up = random(input_idx, 46).integers(0, 2, shape) > 0
    return np.where(input_idx % 2 == 1, np.nextafter(base, np.where(up, 100, 0)), base)
