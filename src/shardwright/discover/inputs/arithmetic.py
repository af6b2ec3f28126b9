"""Adversarial inputs of pointwise arithmetic: division, rounding, bounds, powers, exponentials, overflow."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Drawn, Shape, counting, generator, random, whole

DIVISION = ("div", "floor_divide", "remainder", "fmod", "reciprocal", "addcdiv", "floordiv", "rsqrt", "gcd", "lcm")
ROUNDING = ("round", "floor", "ceil", "trunc", "frac", "fix", "floor_divide", "remainder", "fmod", "bucketize", "to")
BOUNDED = (
    *("clamp", "clamp_min", "clamp_max", "threshold", "relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "elu"),
    *("leaky_relu", "celu", "selu", "hardshrink", "softshrink", "softplus", "prelu", "rrelu", "huber_loss", "gelu"),
    *("smooth_l1_loss", "hinge_embedding_loss", "margin_ranking_loss", "threshold_backward", "nan_to_num", "abs"),
    *("silu", "mish", "softsign", "tanhshrink", "logsigmoid", "l1_loss"),
)
POWERS = ("pow", "float_power", "xlogy", "xlog1py", "ldexp", "exp2", "square", "sqrt", "rsqrt", "exp", "expm1")
ANGLES = ("atan2", "hypot", "angle", "polar", "complex", "copysign", "arg", "sgn")
EXPONENTIALS = (
    *("softmax", "log_softmax", "softmin", "logsumexp", "cross_entropy", "logaddexp", "logaddexp2", "sigmoid", "tanh"),
    *("scaled_dot_product_attention", "nll_loss", "kl_div", "exp", "expm1", "cosh", "sinh", "logcumsumexp"),
    *("binary_cross_entropy_with_logits", "gumbel_softmax", "logit"),
)
OVERFLOWING = (
    *(
        "add",
        "sub",
        "mul",
        "sum",
        "prod",
        "abs",
        "neg",
        "cumsum",
        "cumprod",
        "square",
        "dot",
        "mm",
        "matmul",
        "addcmul",
    ),
    *("max", "min", "amax", "amin", "maximum", "minimum", "sign", "floor_divide", "bitwise_left_shift", "mean", "sort"),
)
SUMS = (
    "sum",
    "mean",
    "add",
    "sub",
    "mul",
    "prod",
    "nansum",
    "nanmean",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "addcmul",
)
SUMS_TOO = ("layer_norm", "group_norm", "batch_norm", "rms_norm", "instance_norm", "mse_loss", "lerp", "dot", "trace")


# Division


@generator(ops=DIVISION)
def gen_near_zero_divisors(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Divisors of both signs close to 0"""
    if input_idx == 0:
        return whole(shape, 0, 61, -5, 5)
    tiny = np.exp2(whole(shape, input_idx, 62, -9, -5))
    return tiny * (1 - 2 * whole(shape, input_idx, 63, 0, 1))


@generator(ops=DIVISION, kinds="fci")
def gen_exact_multiples(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Dividends that are exact multiples of the divisors: remainder 0"""
    divisor = whole(shape, 0, 64, 1, 5)
    return divisor * whole(shape, 1, 65, -4, 4) if input_idx == 0 else divisor


@generator(ops=DIVISION, kinds="fci")
def gen_next_to_multiples(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Dividends one off a multiple of the divisor, on either side"""
    divisor = whole(shape, 0, 66, 2, 5)
    off = 1 - 2 * (counting(shape) % 2)
    return divisor * whole(shape, 1, 67, -4, 4) + off if input_idx == 0 else divisor


@generator(ops=DIVISION, kinds="fci")
def gen_negative_divisors(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Both signs above and below the line: floor and trunc differ"""
    if input_idx == 0:
        return whole(shape, 0, 68, -9, 9)
    return whole(shape, input_idx, 69, 1, 4) * (1 - 2 * (counting(shape) % 2))


@generator(ops=DIVISION, kinds="fciu")
def gen_zero_dividends(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Dividends that are 0"""
    return np.zeros(shape) if input_idx == 0 else whole(shape, input_idx, 70, 1, 4)


@generator(ops=DIVISION)
def gen_power_of_two_divisors(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Divisors that are powers of two: the quotient is exact"""
    return whole(shape, 0, 71, -9, 9) if input_idx == 0 else np.exp2(whole(shape, input_idx, 72, -3, 3))


@generator(ops=DIVISION, special=True)
def gen_zero_divisors(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Divisors that are 0, of both signs"""
    found = whole(shape, input_idx, 73, -3, 3)
    return found if input_idx == 0 else np.where(counting(shape) % 2 == 0, np.copysign(0.0, found), found)


# Rounding


@generator(ops=ROUNDING)
def gen_halves(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Values halfway between whole numbers, of both signs"""
    return whole(shape, input_idx, 81, -4, 4) + 0.5


@generator(ops=ROUNDING)
def gen_just_below_halves(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """One rounding step below the half"""
    base = (whole(shape, input_idx, 82, 1, 5) + 0.5).astype(dtype if dtype.kind == "f" else np.float64)
    return np.nextafter(base, np.zeros_like(base))


@generator(ops=ROUNDING, kinds="fci")
def gen_whole_numbers(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Nothing to round"""
    return whole(shape, input_idx, 83, -5, 5)


@generator(ops=ROUNDING)
def gen_quarters(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Quarters: two of them round differently than their sum"""
    return whole(shape, input_idx, 84, -12, 12) / 4


@generator(ops=ROUNDING)
def gen_small_fractions(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Within (-1, 1), where rounding gives 0 of either sign"""
    return whole(shape, input_idx, 85, -7, 7) / 8


@generator(ops=ROUNDING)
def gen_too_large_to_round(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """So large that there are no fractions"""
    digits = np.finfo(dtype).nmant + 1 if dtype.kind == "f" else 40
    return whole(shape, input_idx, 86, -3, 3) * 2.0 ** min(digits, 60)


# Bounds of clamp, threshold and the kinked activations


@generator(ops=BOUNDED, kinds="fci")
def gen_on_the_bounds(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Exactly on the usual bounds: -3, -1, -0.5, 0, 0.5, 1, 3, 6, 20"""
    bounds = np.array([-3, -1, -0.5, 0, 0.5, 1, 3, 6, 20])
    return bounds[(counting(shape) + 2 * input_idx) % len(bounds)]


@generator(ops=BOUNDED)
def gen_beside_the_bounds(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """One rounding step beside the usual bounds, on either side"""
    kind = dtype if dtype.kind == "f" else np.dtype("float64")
    bounds = np.array([-3, -1, -0.5, 0.5, 1, 3, 6], dtype=kind)
    near = np.concatenate([np.nextafter(bounds, kind.type(99)), np.nextafter(bounds, kind.type(-99))])
    return near[(counting(shape) * 3 + input_idx) % len(near)]


@generator(ops=BOUNDED, kinds="fci")
def gen_all_below(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All below the bounds: the result is constant or linear"""
    return whole(shape, input_idx, 91, -99, -30)


@generator(ops=BOUNDED, kinds="fciu")
def gen_all_above(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All above the bounds"""
    return whole(shape, input_idx, 92, 30, 99)


@generator(ops=BOUNDED, kinds="fci")
def gen_straddling(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Neighbours on different sides of every bound"""
    return 40 * (1 - 2 * ((counting(shape) + input_idx) % 2)) + whole(shape, input_idx, 93, -2, 2)


@generator(ops=BOUNDED)
def gen_tiny_both_signs(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Tiny values of both signs, beside a kink at 0"""
    return whole(shape, input_idx, 94, -3, 3) / 4096


# Powers and angles


@generator(ops=POWERS)
def gen_special_powers(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Bases 0, 1/2, 1, 2, 4 to exponents 0, 1, 2, -1, 1/2: identities and 0 to the 0"""
    bases, exponents = np.array([1.0, 0.5, 2, 4, 0]), np.array([0, 1, 2, 0.5, 3])
    return (exponents if input_idx % 2 else bases)[(counting(shape) * (1 + input_idx)) % 5]


@generator(ops=POWERS, kinds="fciu")
def gen_squares(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Small whole bases to the power 2: exact, and not linear"""
    return np.full(shape, 2.0) if input_idx % 2 else whole(shape, input_idx, 101, 0, 6)


@generator(ops=POWERS, kinds="fciu")
def gen_power_zero(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Everything to the power 0 is 1"""
    return np.zeros(shape) if input_idx % 2 else whole(shape, input_idx, 102, 0, 6)


@generator(ops=POWERS, kinds="fciu")
def gen_power_one(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """To the power 1 nothing changes: linear by accident"""
    return np.ones(shape) if input_idx % 2 else whole(shape, input_idx, 103, 0, 6)


@generator(ops=POWERS)
def gen_negative_bases(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Negative bases with odd and even exponents"""
    return whole(shape, input_idx, 104, 1, 3) if input_idx % 2 else whole(shape, input_idx, 105, -4, -1)


@generator(ops=ANGLES)
def gen_four_quadrants(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All four quadrants, on the diagonals"""
    position = counting(shape)
    sign = 1 - 2 * ((position // (1 + input_idx % 2)) % 2)
    return sign * (1.0 + position % 3)


@generator(ops=ANGLES)
def gen_on_the_axes(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """On the axes: one of the two is 0"""
    position = counting(shape)
    return np.where(position % 2 == input_idx % 2, 0.0, 1 - 2 * (position // 2 % 2))


@generator(ops=ANGLES)
def gen_signed_zero_axes(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Zeros of both signs: the angle jumps by half a turn"""
    return np.copysign(0.0, 1 - 2 * (counting(shape) // (1 + input_idx % 2) % 2))


@generator(ops=ANGLES)
def gen_extreme_ratio(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """One coordinate outweighs the other by far"""
    scale = 2.0**12 if input_idx % 2 else 2.0**-12
    return scale * whole(shape, input_idx, 106, -3, 3)


# Exponentials


@generator(ops=EXPONENTIALS)
def gen_large_offset(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """A large common offset: exponentials overflow unless the maximum is taken out first"""
    return whole(shape, input_idx, 111, -3, 3) + 1000


@generator(ops=EXPONENTIALS)
def gen_large_negative_offset(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """A large negative offset: exponentials underflow unless the maximum is taken out first"""
    return whole(shape, input_idx, 112, -3, 3) - 1000


@generator(ops=EXPONENTIALS)
def gen_one_dominates(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """One element so large that the others vanish beside it"""
    found = whole(shape, input_idx, 113, -3, 3)
    flat = found.reshape(-1)
    if flat.size:
        flat[(3 * input_idx + flat.size // 2) % flat.size] = 800
    return found


@generator(ops=EXPONENTIALS)
def gen_equal_logits(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All equal: every share is the same"""
    return np.full(shape, 3.0 * input_idx)


@generator(ops=EXPONENTIALS)
def gen_offset_per_row(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Another offset for every slice: normalising the wrong dim shows"""
    found = whole(shape, input_idx, 114, -2, 2)
    for axis, size in enumerate(shape):
        steps = np.arange(size).reshape([size if a == axis else 1 for a in range(len(shape))])
        found = found + 40.0 * (axis + 1) * steps
    return found


@generator(ops=EXPONENTIALS)
def gen_saturating(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Plus and minus 40, where sigmoid and tanh are flat"""
    return 40.0 * (1 - 2 * whole(shape, input_idx, 115, 0, 1))


@generator(ops=EXPONENTIALS, special=True)
def gen_masked_logits(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Some logits are minus infinity, as masking leaves them"""
    return np.where(counting(shape) % 3 == 1, -np.inf, whole(shape, input_idx, 116, -3, 3))


# Sums: what averages and variances get wrong


@generator(ops=(*SUMS, *SUMS_TOO), kinds="fci")
def gen_sums_to_zero(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Neighbours cancel: the total is 0, that of a shard is not"""
    position = counting(shape)
    return ((position // 2 + input_idx) % 4 + 1) * (1 - 2 * (position % 2))


@generator(ops=(*SUMS, *SUMS_TOO), kinds="fci")
def gen_shards_differ(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Small at the start, large at the end of each dim: shards have different means"""
    found = whole(shape, input_idx, 121, 0, 3)
    for axis, size in enumerate(shape):
        found = found + 16 * (np.arange(size) * 2 >= size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return found


@generator(ops=(*SUMS, *SUMS_TOO))
def gen_large_mean(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """A large mean with a small spread: variance by squares cancels"""
    return whole(shape, input_idx, 122, -3, 3) / 4 + 4096


@generator(ops=(*SUMS, *SUMS_TOO), kinds="fciu")
def gen_single_contribution(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """One element counts, on the last shard"""
    found = np.zeros(shape)
    found.reshape(-1)[-1:] = 7 + input_idx
    return found


@generator(ops=(*SUMS, *SUMS_TOO), kinds="fci")
def gen_unit_factors(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Only -1, 1 and 2: products stay exact"""
    return np.array([-1.0, 1, 2, 1])[random(input_idx, 123).integers(0, 4, shape)]


# Whole numbers at the end of their range: they wrap around


def _edges(dtype: Any) -> tuple[int, int]:
    bounds = np.iinfo(dtype if dtype.kind in "iu" else np.int64)
    return int(bounds.min), int(bounds.max)


@generator(ops=OVERFLOWING, kinds="iu", special=True)
def gen_largest_integer(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The largest whole number: one more wraps around"""
    return np.full(shape, _edges(dtype)[1], dtype=dtype)


@generator(ops=OVERFLOWING, kinds="iu", special=True)
def gen_smallest_integer(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The smallest whole number: its negative is itself"""
    return np.full(shape, _edges(dtype)[0], dtype=dtype)


@generator(ops=OVERFLOWING, kinds="iu", special=True)
def gen_integer_edges(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Both ends of the range, their neighbours, and small numbers"""
    low, high = _edges(dtype)
    edges = np.array([low, low + 1, 0, 1, 2, high - 1, high], dtype=dtype if dtype.kind in "iu" else np.int64)
    return edges[(counting(shape) * 3 + input_idx) % len(edges)]


@generator(ops=OVERFLOWING, kinds="iu", special=True)
def gen_overflowing_products(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Near the square root of the largest: the product of two just overflows"""
    root = int(_edges(dtype)[1] ** 0.5)
    return root + (counting(shape) + input_idx) % 3
