"""Adversarial vectors and matrices: cross products, norms, products of matrices, and what solvers need."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operator import Array
from .registry import Drawn, Shape, counting, generator, random, whole

CROSS = ("cross",)
NORMS = (
    *("vector_norm", "norm", "matrix_norm", "renorm", "normalize", "dist", "cdist", "pdist", "pairwise_distance"),
    *(
        "cosine_similarity",
        "cosine_embedding_loss",
        "frobenius_norm",
        "nuclear_norm",
        "rms_norm",
        "l1_loss",
        "norm_except_dim",
    ),
    *("local_response_norm", "clip_grad_norm", "weight_norm", "lp_pool1d", "lp_pool2d"),
)
PRODUCTS = (
    *("mm", "bmm", "matmul", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "vecdot", "inner", "outer"),
    *("ger", "addr", "einsum", "tensordot", "linear", "bilinear", "kron", "chain_matmul", "multi_dot", "matrix_power"),
    *("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    "scaled_dot_product_attention",
)
DEFINITE = ("cholesky", "cholesky_ex", "cholesky_inverse", "logdet")
SOLVERS = ("solve", "solve_ex", "inv", "inv_ex", "det", "slogdet", "lu", "lu_factor")
TRIANGULAR = ("solve_triangular", "triangular_solve", "cholesky_solve")


def vector_axis(shape: Shape) -> int:
    """The dim that likely holds vectors: the last of size 3, else the last."""
    threes = [axis for axis, size in enumerate(shape) if size == 3]
    return threes[-1] if threes else len(shape) - 1


def _along(shape: Shape, axis: int, values: Array) -> Array:
    """Values that vary along one dim only."""
    return values.reshape([-1 if a == axis else 1 for a in range(len(shape))])


def _component(shape: Shape) -> Array:
    """Of each element, which component of its vector it is."""
    if not shape:
        return np.zeros((), dtype=np.int64)
    axis = vector_axis(shape)
    return np.array(np.broadcast_to(_along(shape, axis, np.arange(shape[axis])), shape))


def _per_vector(shape: Shape, input_idx: int, salt: int, low: int, high: int) -> Array:
    """One random number for each vector."""
    if not shape:
        return whole(shape, input_idx, salt, low, high)
    axis = vector_axis(shape)
    one = tuple(1 if a == axis else size for a, size in enumerate(shape))
    return np.array(np.broadcast_to(whole(one, input_idx, salt, low, high), shape))


# Cross products


@generator(ops=CROSS, kinds="fci")
def gen_orthogonal(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Orthogonal vectors, each input along its own axis: the product is as long as it can be"""
    return np.where(_component(shape) == input_idx % 3, _per_vector(shape, input_idx, 201, 1, 9), 0)


@generator(ops=CROSS, kinds="fci")
def gen_parallel_scaled(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Parallel vectors of different lengths: the product is 0"""
    return whole(shape, 0, 202, -5, 5) * (1 + input_idx)


@generator(ops=CROSS, kinds="fci")
def gen_antiparallel(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Opposite vectors: the product is 0, and so is their sum"""
    return whole(shape, 0, 203, -5, 5) * (1 - 2 * (input_idx % 2))


@generator(ops=CROSS, kinds="fci")
def gen_unit_basis(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Unit vectors along the axes, another one for each vector"""
    return (_component(shape) == _per_vector(shape, input_idx, 204, 0, 2)).astype(np.float64)


@generator(ops=CROSS)
def gen_nearly_parallel(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Nearly parallel vectors: the product is small by cancellation"""
    return whole(shape, 0, 205, -5, 5) + whole(shape, input_idx, 206, -1, 1) / 1024


@generator(ops=(*CROSS, *PRODUCTS))
def gen_large_magnitudes(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Large numbers, whose products are still exact"""
    return whole(shape, input_idx, 207, -9, 9) * 2.0**10


@generator(ops=(*CROSS, *PRODUCTS))
def gen_small_magnitudes(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Small numbers, whose products are still exact"""
    return whole(shape, input_idx, 208, -9, 9) * 2.0**-10


@generator(ops=CROSS)
def gen_mixed_components(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """A large, a middling and a small component in each vector"""
    return whole(shape, input_idx, 209, -5, 5) * np.exp2(6.0 * (_component(shape) % 3) - 6)


@generator(ops=(*CROSS, *NORMS), kinds="fci")
def gen_zero_vectors(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Some vectors are 0"""
    return whole(shape, input_idx, 210, -5, 5) * (_per_vector(shape, input_idx, 211, 0, 1))


@generator(ops=CROSS, kinds="fci")
def gen_one_component(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Only the last component counts: the vectors are parallel to an axis"""
    component = _component(shape)
    return np.where(component == component.max(initial=0), whole(shape, input_idx, 212, 1, 5), 0)


@generator(ops=CROSS, kinds="fci")
def gen_cyclic(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Each input has the components of the one before, moved on by one"""
    return np.array([1.0, 2, -3])[(_component(shape) + input_idx) % 3] * _per_vector(shape, 0, 213, 1, 4)


# Norms


@generator(ops=NORMS, kinds="fci")
def gen_one_large_element(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """One element makes up nearly the whole norm, on the last shard"""
    found = whole(shape, input_idx, 221, -1, 1)
    found.reshape(-1)[-1:] = -1000 - input_idx
    return found


@generator(ops=NORMS, kinds="fci")
def gen_equal_magnitudes(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All magnitudes are equal, the signs are not"""
    return 2.0 * (1 - 2 * whole(shape, input_idx, 222, 0, 1))


@generator(ops=NORMS, kinds="fci")
def gen_negative_dominates(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The largest magnitude is negative: the maximum is not the norm"""
    return whole(shape, input_idx, 223, -9, 2)


@generator(ops=NORMS, kinds="fci")
def gen_pythagorean(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Threes and fours: Euclidean norms of pairs are whole"""
    return np.array([3.0, 4.0])[counting(shape) % 2] * (1 - 2 * whole(shape, input_idx, 224, 0, 1))


@generator(ops=NORMS)
def gen_below_one(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All magnitudes below 1: powers shrink them"""
    return whole(shape, input_idx, 225, -7, 7) / 8


@generator(ops=NORMS)
def gen_magnitudes_apart(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Large and small magnitudes side by side"""
    return whole(shape, input_idx, 226, 1, 3) * np.where(counting(shape) % 2 == 0, 2.0**8, 2.0**-8)


@generator(ops=NORMS, kinds="fci")
def gen_mostly_zero(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Most elements are 0: what ord=0 counts, and ord=-inf finds"""
    return np.where(counting(shape) % 4 == input_idx % 4, whole(shape, input_idx, 227, -5, 5), 0)


@generator(ops=NORMS, kinds="fci")
def gen_smallest_at_the_end(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The smallest magnitude stands last, and is negative"""
    position = counting(shape)
    found = (position.size - position + input_idx).astype(np.float64)
    found.reshape(-1)[-1:] *= -1
    return found


# Products of matrices: what is summed over must be complete


@generator(ops=PRODUCTS, kinds="fci")
def gen_cancelling_products(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Signs alternate along the last dim of the first and the next to last of the second: sums cancel"""
    if not shape:
        return np.ones(shape)
    axis = len(shape) - 1 if input_idx % 2 == 0 else max(len(shape) - 2, 0)
    signs = _along(shape, axis, 1 - 2 * (np.arange(shape[axis]) % 2)) if input_idx % 2 == 0 else 1
    return whole(shape, input_idx, 231, 1, 2) * signs


@generator(ops=PRODUCTS, kinds="fci")
def gen_identity(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Identity matrices, as far as the shape allows, after the first input"""
    return whole(shape, 0, 232, -5, 5) if input_idx == 0 else _eye(shape)


@generator(ops=PRODUCTS, kinds="fci")
def gen_rank_one(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Every row is a multiple of the first"""
    if len(shape) < 2:
        return whole(shape, input_idx, 233, -3, 3)
    column = whole((*shape[:-1], 1), input_idx, 234, -3, 3)
    row = whole((*shape[:-2], 1, shape[-1]), input_idx, 235, -3, 3)
    return column * row


@generator(ops=PRODUCTS, kinds="fci")
def gen_one_entry(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """One entry of each input counts: the last of the first, the first of the others"""
    found = np.zeros(shape)
    flat = found.reshape(-1)
    if flat.size:
        flat[-1 if input_idx == 0 else 0] = 3 + input_idx
    return found


@generator(ops=PRODUCTS, kinds="fci")
def gen_zero_rows_and_columns(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Every other slice of each dim is 0"""
    found = whole(shape, input_idx, 236, -5, 5)
    for axis, size in enumerate(shape):
        found = found * _along(shape, axis, (np.arange(size) + axis) % 2 if size > 1 else np.ones(size))
    return found


@generator(ops=PRODUCTS, kinds="fci")
def gen_small_whole(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Small whole numbers: every sum of products is exact"""
    return whole(shape, input_idx, 237, -3, 3)


@generator(ops=PRODUCTS)
def gen_uneven_scales(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Large and small numbers meet in the same sum"""
    return whole(shape, input_idx, 238, -3, 3) * np.exp2(whole(shape, input_idx, 239, -6, 6))


def _eye(shape: Shape) -> Array:
    if len(shape) < 2:
        return np.ones(shape)
    return np.array(np.broadcast_to(np.eye(shape[-2], shape[-1]), shape))


# Matrices that can be factored or solved; other shapes, such as right-hand sides, get small whole numbers


def _square(shape: Shape) -> bool:
    return len(shape) >= 2 and shape[-1] == shape[-2]


@generator(ops=(*DEFINITE, *SOLVERS, *TRIANGULAR), domain="posdef", kinds="f")
def gen_scaled_identity(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Multiples of the identity"""
    return (2.0 + input_idx) * _eye(shape) if _square(shape) else whole(shape, input_idx, 241, -3, 3)


@generator(ops=(*DEFINITE, *SOLVERS, *TRIANGULAR), domain="posdef", kinds="f")
def gen_wide_diagonal(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Diagonal matrices with entries far apart"""
    if not _square(shape):
        return whole(shape, input_idx, 242, -3, 3)
    return _eye(shape) * np.exp2(np.arange(shape[-1]) * 2.0 % 13 - 6)


@generator(ops=(*DEFINITE, *SOLVERS, *TRIANGULAR), domain="posdef", kinds="f")
def gen_second_difference(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The matrix of second differences: positive definite, neighbours coupled"""
    if not _square(shape):
        return whole(shape, input_idx, 243, -3, 3)
    n = shape[-1]
    return np.array(np.broadcast_to(2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1), shape))


@generator(ops=(*DEFINITE, *SOLVERS, *TRIANGULAR), domain="posdef", kinds="f")
def gen_equal_couplings(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Everything coupled with everything, equally"""
    if not _square(shape):
        return whole(shape, input_idx, 244, -3, 3)
    return np.ones(shape) + (shape[-1] + input_idx) * _eye(shape)


@generator(ops=(*DEFINITE, *SOLVERS, *TRIANGULAR), domain="posdef", kinds="f")
def gen_another_each(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Another positive-definite matrix in each batch"""
    if not _square(shape):
        return whole(shape, input_idx, 245, -3, 3)
    half = whole(shape, input_idx, 246, -2, 2)
    return half @ np.swapaxes(half, -1, -2) + 2 * _eye(shape)


@generator(ops=(*SOLVERS, *TRIANGULAR), domain="invertible", kinds="fc")
def gen_unit_diagonal(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Ones on the diagonal, small numbers below and above"""
    if not _square(shape):
        return whole(shape, input_idx, 247, -3, 3)
    small = whole(shape, input_idx, 248, -2, 2) / (8.0 * max(shape[-1], 1))
    return small * (1 - _eye(shape)) + _eye(shape)


@generator(ops=SOLVERS, domain="invertible", kinds="f")
def gen_permutation(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Permutation matrices: pivoting must swap rows"""
    if not _square(shape):
        return whole(shape, input_idx, 249, -3, 3)
    order = random(input_idx, 250).permutation(shape[-1])
    return np.array(_eye(shape)[..., order])
