"""The kernels that rules of StableHLO's forms are run against, themselves against definitions."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from calls import call
from stablehlo_kernels import spread

RNG = np.random.default_rng(3)
Array = np.ndarray[Any, Any]


def matrices(*shape: int) -> Array:
    return RNG.standard_normal((*shape, shape[-1])) + 4 * np.eye(shape[-1])


def like(x: Array) -> list[Any]:
    return [(x.shape, x.dtype)]


def test_decompositions() -> None:
    a = matrices(2, 4)
    symmetric = a @ a.swapaxes(1, 2)
    lower = call("cholesky", [symmetric], like(a))
    np.testing.assert_allclose(lower @ lower.swapaxes(1, 2), symmetric)
    upper = call("cholesky", [symmetric], like(a), lower=False)
    np.testing.assert_allclose(upper.swapaxes(1, 2) @ upper, symmetric)
    assert not np.triu(lower, 1).any()
    assert not np.tril(upper, -1).any()
    vectors, values = call("eigh", [symmetric], [*like(a), ((2, 4), "f8")])
    np.testing.assert_allclose(symmetric @ vectors, vectors * values[:, None, :])
    assert np.isnan(call("cholesky", [-symmetric], like(a))).all()


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 3, 3)])
def test_reflectors(shape: tuple[int, ...]) -> None:
    a = RNG.standard_normal(shape)
    packed, factors = call("qr", [a], [*like(a), ((2, 3), "f8")])
    q = call("householder_product", [packed, factors], like(a))
    np.testing.assert_allclose(q @ np.triu(packed[:, :3]), a)
    np.testing.assert_allclose(q.swapaxes(1, 2) @ q, np.broadcast_to(np.eye(3), (2, 3, 3)), atol=1e-12)


@pytest.mark.parametrize(("left", "lower", "unit", "turned"), list(product([True, False], repeat=4)))
def test_triangular_solve(left: bool, lower: bool, unit: bool, turned: bool) -> None:
    a, b = matrices(2, 3), RNG.standard_normal((2, 3, 3))
    attrs = {"left_side": left, "lower": lower, "unit_diagonal": unit, "transpose_a": turned}
    x = call("triangular_solve", [a, b], like(b), **attrs)
    matrix = np.tril(a) if lower else np.triu(a)
    if unit:
        matrix = np.where(np.eye(3), 1, matrix)
    matrix = matrix.swapaxes(1, 2) if turned else matrix
    np.testing.assert_allclose(matrix @ x if left else x @ matrix, b)


def test_transforms() -> None:
    x = RNG.standard_normal((2, 6, 5))
    half = call("fft", [x], [((2, 6, 3), "c16")], fft_type="RFFT", fft_length=(6, 5))
    np.testing.assert_allclose(half, np.fft.rfft2(x))
    back = call("fft", [half], [(x.shape, "f8")], fft_type="IRFFT", fft_length=(6, 5))
    np.testing.assert_allclose(back, x)
    turned = call("fft", [x + 0j], [(x.shape, "c16")], fft_type="IFFT", fft_length=(5,))
    np.testing.assert_allclose(turned, np.fft.ifft(x))


def test_largest() -> None:
    x = np.array([[2.0, 7, 7, 1], [np.nan, -3, 0, 5]])
    values, places = call("top_k", [x], [((2, 3), "f8"), ((2, 3), "i4")])
    np.testing.assert_array_equal(values, [[7, 7, 2], [5, 0, -3]])
    np.testing.assert_array_equal(places, [[1, 2, 0], [3, 2, 1]])
    where = np.arange(8).reshape(4, 2)
    best, found = call("approx_top_k", [x.T, where, x[0, 0], where[0, 0]], [((1, 2), "f8"), ((1, 2), "i8")], axis=0)
    np.testing.assert_array_equal(best, [[7, 5]])
    np.testing.assert_array_equal(found, [[2, 7]])


def test_spread() -> None:
    x = np.array([1, 2, 3])
    assert spread(x, [(1, 2)], [2], 0).tolist() == [0, 1, 0, 2, 0, 3, 0, 0]
    assert spread(x, [(-1, 0)], [2], 0).tolist() == [0, 2, 0, 3]
    assert spread(x, [(-2, -1)], [2], 9).tolist() == [2, 9]
    assert spread(x, [(0, -2)], [1], 0).tolist() == [1]
    assert spread(x[:0], [(1, 1)], [3], 7).tolist() == [7, 7]


def test_reduce_window() -> None:
    x = np.arange(1.0, 13).reshape(3, 4)
    attrs = {"window_dimensions": (2, 2), "window_strides": (1, 2), "padding": ((0, 0), (1, 1))}
    found = call("reduce_window", [x, np.array(0.0)], [((2, 3), "f8")], combine=("add",), **attrs)
    padded = np.pad(x, ((0, 0), (1, 1)))
    expected = [[padded[i : i + 2, 2 * j : 2 * j + 2].sum() for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(found, expected)
    attrs = {"window_dimensions": (1, 2), "base_dilations": (1, 2), "window_dilations": (1, 2)}
    found = call("reduce_window", [x, np.array(-9.0)], [((3, 5), "f8")], combine=("max",), **attrs)
    np.testing.assert_array_equal(found[0], [2, -9, 3, -9, 4])


def test_select_and_scatter() -> None:
    x = np.array([[4, 2, 8, 2, 9, 1, 1, 5]])
    attrs = {"window_dimensions": (1, 3), "window_strides": (1, 2), "padding": ((0, 0), (1, 0))}
    found = call("select_and_scatter", [x, np.array([[1, 2, 3, 4]]), np.array(10)], like(x), **attrs)
    np.testing.assert_array_equal(found, [[11, 10, 12, 10, 13, 10, 10, 14]])


@pytest.mark.parametrize(
    ("features", "batches", "attrs"),
    [
        (1, 1, {}),
        (1, 1, {"window_strides": (2, 1), "padding": ((1, 2), (-1, 0)), "window_reversal": (True, False)}),
        (1, 1, {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2)}),
        (2, 1, {"rhs_dilation": (2, 1)}),
        (1, 3, {"padding": ((0, 1), (1, 0))}),
    ],
)
def test_convolution(features: int, batches: int, attrs: dict[str, Any]) -> None:
    """Element by element: the window at a place, times the filter, over the features of the group."""
    image, filters = RNG.standard_normal((3, 5, 6, 4)), RNG.standard_normal((2, 2, 4 // features, 6))
    padding = attrs.get("padding", ((0, 0), (0, 0)))
    x = spread(image, ((0, 0), *padding, (0, 0)), (1, *attrs.get("lhs_dilation", (1, 1)), 1), 0)
    w = filters[::-1] if attrs.get("window_reversal") else filters
    by, strides = attrs.get("rhs_dilation", (1, 1)), attrs.get("window_strides", (1, 1))
    rows, columns = ((x.shape[1 + d] - by[d] - 1) // strides[d] + 1 for d in (0, 1))
    expected = np.zeros((3 // batches, rows, columns, 6))
    for b, i, j, o in product(*map(range, expected.shape)):
        group = o // (6 // (features * batches))
        image_of = x[b + (group * (3 // batches) if batches > 1 else 0)]
        first = (group if features > 1 else 0) * filters.shape[2]
        for u, v, f in product(range(2), range(2), range(filters.shape[2])):
            place = image_of[i * strides[0] + u * by[0], j * strides[1] + v * by[1], first + f]
            expected[b, i, j, o] += place * w[u, v, f, o]
    counts = {"feature_group_count": features, "batch_group_count": batches}
    found = call("convolution", [image, filters], [(expected.shape, "f8")], dims="b01f,01io->b01f", **counts, **attrs)
    np.testing.assert_allclose(found, expected)


def test_gather_and_scatter() -> None:
    x, index = np.arange(20.0).reshape(5, 4), np.array([[3], [-2], [9]])
    numbers = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1}
    found = call("stablehlo.gather", [x, index], [((3, 4), "f8")], slice_sizes=(1, 4), **numbers)
    np.testing.assert_array_equal(found, x[[3, 0, 4]])
    numbers = {"update_window_dims": (1,), "inserted_window_dims": (0,), "index_vector_dim": 1}
    made = call(
        "stablehlo.scatter", [x, index, np.ones((3, 4))], like(x),
        combine="add", scatter_dims_to_operand_dims=(0,), **numbers,
    )  # fmt: skip
    np.testing.assert_array_equal(made - x, [[0] * 4, [0] * 4, [0] * 4, [1] * 4, [0] * 4])
    at = np.array([[1, 2]])
    made = call(
        "stablehlo.scatter", [x, at, np.ones((1, 4))], like(x),
        combine=None, scatter_dims_to_operand_dims=(0, 1), **numbers,
    )  # fmt: skip
    assert made[1].tolist() == [4, 5, 1, 1]


def test_slices_stay_inside() -> None:
    x = np.arange(20.0).reshape(5, 4)
    starts = [np.array(9), np.array(-1)]
    np.testing.assert_array_equal(call("dynamic_slice", [x, *starts], [((2, 3), "f8")]), x[3:, :3])
    made = call("dynamic_update_slice", [x, np.zeros((2, 3)), *starts], like(x))
    assert not made[3:, :3].any()
    np.testing.assert_array_equal(made[:3], x[:3])


def test_elements() -> None:
    x = np.arange(6, dtype="f4").reshape(2, 3)
    halves = call("bitcast_convert", [x], [((2, 3, 2), "u2")])
    np.testing.assert_array_equal(halves, x[..., None].view("u2"))
    np.testing.assert_array_equal(call("bitcast_convert", [halves], like(x)), x)
    features = [np.array(v, "f4") for v in ([2, 2, 2], [1, 1, 1], [0, 1, 2], [4, 4, 4])]
    normed = call("batch_norm_inference", [x, *features], like(x), feature_index=1, epsilon=0.0)
    np.testing.assert_array_equal(normed, [[1, 1, 1], [4, 4, 4]])
    np.testing.assert_array_equal(call("reverse", [x], like(x), dimensions=(1,)), x[:, ::-1])
