"""Adversarial inputs for every operator, and samples redrawn with them.

Redrawing respects what each tensor may hold: positions stay in range, sorted tensors sorted, positive-definite ones
so, and operators whose tensors belong together (factors and their pivots) are left alone.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np

from ..operator import Array, Operator, Sample, leaves, slots_in
from . import arithmetic as adversarial_arithmetic
from . import index as adversarial_index
from . import linear as adversarial_linear
from . import order as adversarial_order
from .registry import EVERY, Domain, Drawn, Generator, Shape, cast, counting, generator, plain_name, whole

FAMILIES = (adversarial_arithmetic, adversarial_index, adversarial_linear, adversarial_order)

log = logging.getLogger(__name__)

BELONG_TOGETHER = frozenset(
    (
        *("lu_solve", "lu_unpack", "ldl_solve", "ormqr", "householder_product", "orgqr", "geqrf", "sampled_addmm"),
        *("max_unpool1d", "max_unpool2d", "max_unpool3d", "fractional_max_pool2d", "fractional_max_pool3d", "ctc_loss"),
        *(
            "gru",
            "lstm",
            "rnn_tanh",
            "rnn_relu",
            "tensorinv",
            "tensorsolve",
            "multi_head_attention_forward",
            "unravel_index",
            "segment_reduce",
        ),
    )
)
"""Their tensors are legal only as they came."""

FINITE_ONLY = frozenset(
    (
        *(
            "svd",
            "svdvals",
            "svd_lowrank",
            "pca_lowrank",
            "pinv",
            "pinverse",
            "eig",
            "eigvals",
            "eigh",
            "eigvalsh",
            "qr",
        ),
        *(
            "lstsq",
            "matrix_rank",
            "cond",
            "ldl_factor",
            "ldl_factor_ex",
            "lobpcg",
            "matrix_norm",
            "nuclear_norm",
            "cov",
        ),
        *("histogram", "histogramdd", "histc", "matrix_exp", "corrcoef", "multinomial", "lu_factor", "lu_factor_ex"),
    )
)
"""LAPACK may loop for ever on NaN; histograms refuse it."""

FIXED_POSITIONS = frozenset(("pivots", "LU_pivots", "offsets", "lengths", "batch_sizes", "repeats", "target_lengths"))
"""Positions that obey more than a range."""

DOMAINS: dict[str, dict[str | int, Domain]] = {
    "searchsorted": {"sorted_sequence": "sorted"},
    "bucketize": {"boundaries": "sorted"},
    "histogram": {"bins": "sorted"},
    "histogramdd": {"bins": "sorted"},
    **{name: {0: "posdef"} for name in ("cholesky", "cholesky_ex", "cholesky_inverse", "logdet", "ldl_factor")},
    **{
        name: {0: "invertible"} for name in ("solve", "solve_ex", "inv", "inv_ex", "det", "slogdet", "solve_triangular")
    },
    **{name: {0: "invertible"} for name in ("lu", "lu_factor", "lu_factor_ex", "matrix_power")},
    **{name: {1: "invertible"} for name in ("triangular_solve", "cholesky_solve")},
    **{
        name: {0: "positive"} for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "digamma", "pow")
    },
    **{name: {0: "positive"} for name in ("float_power", "multinomial", "poisson", "polygamma", "mvlgamma", "kl_div")},
    **{name: {0: "positive", 1: "positive"} for name in ("igamma", "igammac", "zeta", "gammainc", "gammaincc")},
    **{name: {1: "positive"} for name in ("xlogy", "xlog1py")},
    **{name: {0: "unit"} for name in ("acos", "asin", "atanh", "erfinv", "logit", "bernoulli", "ndtri", "arccos")},
    **{name: {0: "unit"} for name in ("arcsin", "arctanh", "entr")},
    "binary_cross_entropy": {0: "unit", 1: "unit"},
    "quantile": {"q": "unit"},
    "nanquantile": {"q": "unit"},
    "gaussian_nll_loss": {"var": "positive"},
    "batch_norm": {"running_var": "positive"},
    "instance_norm": {"running_var": "positive"},
    "normal": {"std": "positive"},
    "acosh": {0: "positive"},
    "dirichlet": {0: "positive"},
}
"""What an operator asks of a tensor, by its argument or its number."""

NONZERO_DIVISORS = frozenset(("div", "floor_divide", "remainder", "fmod", "addcdiv"))
"""Whole divisors must not be 0: the library raises."""


# For all operators


@generator(ops=(EVERY,), kinds="fci")
def gen_ties(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Whole numbers from -2 to 2: ties everywhere, exact sums"""
    return whole(shape, input_idx, 1, -2, 2)


@generator(ops=(EVERY,))
def gen_rounded(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Multiples of a half, of both signs"""
    return whole(shape, input_idx, 2, -9, 9) / 2


@generator(ops=(EVERY,))
def gen_wide_exponents(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Mixed signs and exponents far apart"""
    reach = min(int(np.finfo(dtype).maxexp) // 4, 20) if dtype.kind == "f" else 8
    sign = 1 - 2 * whole(shape, input_idx, 3, 0, 1)
    return sign * np.exp2(whole(shape, input_idx, 4, -reach, reach))


@generator(ops=(EVERY,))
def gen_signed_zeros(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Zeros of both signs among ones"""
    position = counting(shape) + input_idx
    return np.where(position % 3 == 2, 1.0, np.copysign(0.0, 1 - 2 * (position % 2)))


@generator(ops=(EVERY,), kinds="fciu")
def gen_one_nonzero(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """A single element that is not 0, on the last shard"""
    found = np.zeros(shape)
    found.reshape(-1)[-1:] = 5 + input_idx
    return found


@generator(ops=(EVERY,), kinds="fci")
def gen_descending(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Falls from positive to negative, the largest on the first shard"""
    position = counting(shape)
    return position.size // 2 - position + input_idx


@generator(ops=(EVERY,), kinds="fci")
def gen_cancelling(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Neighbours cancel"""
    position = counting(shape)
    return (position // 2 % 5 + 1 + input_idx) * (1 - 2 * (position % 2))


@generator(ops=(EVERY,), special=True)
def gen_nan(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """NaN here and there, elsewhere in each input"""
    return np.where((counting(shape) + 2 * input_idx) % 5 == 3, np.nan, whole(shape, input_idx, 5, -4, 4))


@generator(ops=(EVERY,), special=True)
def gen_infinities(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Infinities of both signs here and there"""
    position = counting(shape) + 2 * input_idx
    found = np.where(position % 7 == 3, np.inf, whole(shape, input_idx, 6, -4, 4))
    return np.where(position % 7 == 5, -np.inf, found)


@generator(ops=(EVERY,), special=True)
def gen_denormals(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Numbers below the smallest normal one, of both signs"""
    smallest = float(np.finfo(dtype).smallest_subnormal) if dtype.kind == "f" else 1.0
    return whole(shape, input_idx, 7, -9, 9) * smallest


@generator(ops=(EVERY,), special=True)
def gen_huge(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """A quarter of the largest number: a few of them overflow"""
    largest = float(np.finfo(dtype).max) if dtype.kind == "f" else 2.0**30
    return (1 - 2 * whole(shape, input_idx, 8, 0, 1)) * (largest / 4)


# Redrawing


def redraw(operator: Operator, sample: Sample, made: Generator) -> Sample | None:
    """The same call with the generator's values; None where it does not apply.

    Numbers are redrawn by a generator of numbers, positions by one of positions; the other tensors stay.
    """
    name = plain_name(operator.short_name)
    if name in BELONG_TOGETHER or (made.special and name in FINITE_ONLY):
        return None
    names = sample.tensor_names(operator)
    sorter = next((i for i, called in enumerate(names) if called == "sorter"), None)
    tensors = list(sample.tensors)
    changed = False
    for number, (tensor, role) in enumerate(zip(sample.tensors, sample.roles)):
        if role != made.role or tensor.dtype.kind not in made.kinds or _is_result(operator, sample, number):
            continue
        if role == "index":
            drawn = None if names[number] in FIXED_POSITIONS or number == sorter else _positions(made, tensor, number)
        else:
            domain = domain_of(name, names[number], number)
            drawn = _numbers(made, tensor, number, "any" if domain == "sorted" and sorter is not None else domain)
            if drawn is not None and name in NONZERO_DIVISORS and number > 0 and drawn.dtype.kind in "iu":
                drawn = np.where(drawn == 0, np.ones_like(drawn), drawn)
        if drawn is not None:
            tensors[number], changed = drawn, True
    if not changed:
        return None
    if sorter is not None:  # it names the order of the boundaries, which are new
        order = np.argsort(tensors[0], axis=-1, kind="stable") if tensors[0].ndim else tensors[sorter]
        tensors[sorter] = order.astype(tensors[sorter].dtype)
    return sample.with_tensors(tuple(tensors), made.name)


def shuffled(operator: Operator, sample: Sample, seed: int = 7) -> Sample | None:
    """The same call with each tensor's own numbers in another order; None where the order is what makes them legal."""
    name = plain_name(operator.short_name)
    names = sample.tensor_names(operator)
    if name in BELONG_TOGETHER or "sorter" in names:
        return None
    rng = np.random.default_rng(seed)
    tensors = []
    for number, (tensor, role) in enumerate(zip(sample.tensors, sample.roles)):
        ordered = role != "data" or domain_of(name, names[number], number) in ("sorted", "posdef", "invertible")
        tensors.append(tensor if ordered else rng.permutation(tensor.reshape(-1)).reshape(tensor.shape))
    return sample.with_tensors(tuple(tensors), f"{sample.label}, shuffled")


def _is_result(operator: Operator, sample: Sample, number: int) -> bool:
    """Whether the tensor is room for a result: its values are never read."""
    rooms = {argument.name for argument in operator.arguments if argument.keyword_only} & set(operator.mutates)
    held = (value for name, value in sample.kwargs.items() if name == "out" or name in rooms)
    return any(slot.index == number for value in held for slot in slots_in(value))


def domain_of(operator: str, name: str, number: int) -> Domain:
    """What an operator asks of a tensor, by its plain name and the argument's name or number."""
    asked = DOMAINS.get(operator, {})
    return asked.get(name.partition("[")[0]) or asked.get(number) or "any"


def _numbers(made: Generator, tensor: Array, number: int, domain: Domain) -> Array | None:
    try:
        drawn: Array = made.make(tensor.shape, tensor.dtype, "cpu", number)
    except (IndexError, ValueError, TypeError, RuntimeError) as error:  # a user's, written for other shapes
        log.warning("%s does not apply to %s%s: %s", made.name, tensor.dtype, list(tensor.shape), error)
        return None
    if domain in ("any", made.domain) or (made.domain == "posdef" and domain == "invertible"):
        return drawn
    if made.special:
        return None
    return conformed(drawn, domain)


def _positions(made: Generator, tensor: Array, number: int) -> Array:
    """Drawn positions, within the range of those that the tensor holds: that range is legal."""
    if tensor.size == 0:
        return tensor.copy()
    low, high = int(tensor.min()), int(tensor.max())
    drawn: Array = made.make(tensor.shape, np.dtype(np.int64), "cpu", number)
    return np.asarray(low + drawn % (high - low + 1)).astype(tensor.dtype)


def conformed(values: Array, domain: Domain) -> Array:
    """Values moved into a domain, keeping what they can of ties and order.

    >>> conformed(np.array([2.0, -1.0, 2.0]), "sorted"), conformed(np.array([-2.0, 0.0]), "positive")
    (array([-1.,  2.,  2.]), array([2.  , 0.25]))
    """
    if domain == "sorted":
        return np.sort(values, axis=-1) if values.ndim else values
    if domain == "positive":
        return cast(np.where(values == 0, 0.25 if values.dtype.kind in "fc" else 1, np.abs(values)), values.dtype)
    if domain == "unit":
        if values.dtype.kind not in "fc":
            return values
        size = np.abs(values)
        return np.asarray((size + 0.125) / (size + 1), dtype=values.dtype)
    if domain in ("posdef", "invertible"):
        return _solvable(values, definite=domain == "posdef")
    return values


def _solvable(values: Array, definite: bool) -> Array:
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.size == 0:
        return values
    largest = np.abs(values).max()
    scaled = values / largest if largest > 0 else values
    size = values.shape[-1]
    if definite:
        scaled = scaled @ np.conj(np.swapaxes(scaled, -1, -2))
    # a dominant diagonal: invertible, and definite if the rest is
    return np.asarray(scaled + (size + 1) * np.eye(size), dtype=values.dtype)


def legal(operator: Operator, sample: Sample) -> bool:
    """Whether the call runs and gives some finite number (or has nothing to give)."""
    library = operator.library
    args, kwargs = sample.fill([library.tensor(array.copy()) for array in sample.tensors])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = leaves(operator.call(*args, **kwargs))
        arrays = [library.array(value) for value in results if library.is_tensor(value)]
    except Exception:  # whatever the library raises: the call is not legal
        return False
    return bool(arrays) and all(a.size == 0 or bool(np.isfinite(a).any()) for a in arrays)
