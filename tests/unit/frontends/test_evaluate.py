"""Computing single ops, on whole arrays and on shards of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shardwright.errors import TraceError, UnknownOpError
from shardwright.frontends.numpy import evaluate, numpy_dtype, prepare, trace
from shardwright.frontends.numpy.kernels import KERNELS
from shardwright.ir.graph import TensorType
from shardwright.ir.nodes import ITEM_BYTES
from shardwright.rules import records

Case = Callable[..., Any]


def T(shape: tuple[int, ...], dtype: str = "f64") -> TensorType:
    return TensorType(shape, dtype)


def one(op: str, operands: list[Any], result: TensorType, **attrs: Any) -> np.ndarray:
    (made,) = evaluate(op, attrs, operands, [result])
    assert isinstance(made, np.ndarray)
    assert made.shape == result.shape
    assert made.dtype == numpy_dtype(result.dtype)
    return made


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "i64", "i8", "u8", "bool", "c64"])
def test_reductions_of_nothing_give_the_identity(dtype: str) -> None:
    kind = numpy_dtype(dtype)
    nothing, result = np.zeros((0, 2), kind), T((2,), dtype)
    how = {"axis": (0,), "keepdims": False}
    assert (one("reduce_sum", [nothing], result, **how) == 0).all()
    assert (one("reduce_prod", [nothing], result, **how) == 1).all()
    assert not one("reduce_any", [nothing], T((2,), "bool"), **how).any()
    assert one("reduce_all", [nothing], T((2,), "bool"), **how).all()
    lowest, highest = one("reduce_max", [nothing], result, **how), one("reduce_min", [nothing], result, **how)
    some = np.array([[3, 1], [2, 5]]).astype(kind)
    np.testing.assert_array_equal(np.maximum(lowest, some), some)
    np.testing.assert_array_equal(np.minimum(highest, some), some)
    if kind.kind == "f":
        assert (lowest == -math.inf).all()
        assert (highest == math.inf).all()
    for op in ("reduce_max", "reduce_min"):
        assert one(op, [nothing], T((1, 2), dtype), axis=(0,), keepdims=True).size == 2
        assert one(op, [nothing], T((), dtype), axis=(0, 1), keepdims=False).shape == ()
        assert one(op, [nothing], T((0,), dtype), axis=(1,), keepdims=False).size == 0
    assert (one("argmax", [nothing], T((2,), "i64"), axis=0, keepdims=False) == 0).all()
    assert one("argmin", [nothing], T((1, 2), "i64"), axis=0, keepdims=True).shape == (1, 2)


def test_the_place_of_an_extreme_without_an_axis() -> None:
    """Of all elements in their order; nothing to choose from gives 0."""
    x, nothing, number = np.array([[3.0, 9.0], [-1.0, 9.0]]), np.zeros((0, 2)), T((), "i64")
    assert one("argmax", [x], number, axis=None, keepdims=False) == np.argmax(x) == 1
    assert one("argmin", [x], number) == 2
    np.testing.assert_array_equal(one("argmax", [x], T((1, 1), "i64"), axis=None, keepdims=True), [[1]])
    assert one("argmax", [nothing], number, axis=None) == 0
    for of in (np.argmax, np.argmin):
        for how in ({}, {"keepdims": True}, {"axis": None}):
            np.testing.assert_array_equal(trace(of, x, **how)(x, **how), of(x, **how))


def test_sizes_come_from_the_result() -> None:
    """A shard has another shape than the whole, with the same attributes."""
    half = np.arange(6.0).reshape(2, 3)
    assert one("reshape", [half], T((3, 2))).shape == (3, 2)
    assert one("broadcast_to", [half], T((4, 2, 3))).shape == (4, 2, 3)
    assert (one("full", [], T((2, 5), "i32"), value=7) == 7).all()
    np.testing.assert_array_equal(one("arange", [], T((4,), "i64"), start=3, step=2), [3, 5, 7, 9])
    np.testing.assert_array_equal(one("arange", [], T((3,), "f32"), start=0.5, step=0.25), [0.5, 0.75, 1.0])
    assert one("arange", [], T((0,), "i64"), start=3, step=2).size == 0
    padded = one("pad", [half], T((4, 3)), low=(1, 0), high=(1, 0), value=9.0)
    np.testing.assert_array_equal(padded, np.pad(half, ((1, 1), (0, 0)), constant_values=9))


def test_the_outcome_is_cast_to_the_result() -> None:
    x = np.array([1, 2], "i4")
    assert one("add", [x, x], T((2,), "f32")).dtype == np.float32
    assert one("reduce_sum", [x], T((), "f64"), axis=(0,), keepdims=False) == 3.0
    assert one("cumsum", [np.array([True, True])], T((2,), "i64"), axis=0).tolist() == [1, 2]
    assert one("cast", [x], T((2,), "bool"), dtype="bool").all()
    assert one("concatenate", [[x, x]], T((4,), "i64"), axis=0).tolist() == [1, 2, 1, 2]
    fraction, whole = evaluate("modf", {}, [np.array([1.5])], [T((1,), "f32"), T((1,), "f32")])
    assert (fraction.dtype, whole.dtype) == (np.float32, np.float32)


def test_results_without_dims_are_arrays() -> None:
    x = np.array(2.0)
    for made in (
        one("add", [x, x], T(())),
        one("matmul", [np.ones(3), np.ones(3)], T(())),
        one("reduce_sum", [np.ones((2, 2))], T(()), axis=(0, 1), keepdims=False),
        one("take", [np.arange(3.0), np.array(1)], T(()), axis=0),
        *evaluate("divmod", {}, [x, x], [T(()), T(())]),
    ):
        assert isinstance(made, np.ndarray)


def test_updates_leave_their_operands_alone() -> None:
    x = np.zeros((3, 2))
    made = one("update_slice", [x, np.ones((1, 2))], T((3, 2)), start=(1, None), stop=(2, None), step=(1, None))
    assert made.sum() == 2
    made = one("scatter", [x, np.array([0, -1]), np.ones((2, 2))], T((3, 2)), axis=0)
    assert made.sum() == 4
    assert not x.any()
    first, second = (one("full", [], T(()), value=1.0) for _ in range(2))
    with pytest.raises(ValueError, match="read-only"):
        first += 1
    assert second == 1


def test_optional_operands() -> None:
    x = np.array([-2.0, 0.5, 3.0])
    assert one("clip", [x, np.float64(0), None], T((3,))).tolist() == [0.0, 0.5, 3.0]
    assert one("clip", [x, None, np.float64(1)], T((3,))).tolist() == [-2.0, 0.5, 1.0]


def test_functions_that_numpy_lacks() -> None:
    x = np.array([-2.0, -0.5, 0.0, 1.0, 50.0])
    same: Case = np.testing.assert_allclose
    same(one("erf", [x], T((5,))), [math.erf(v) for v in x])
    same(one("sigmoid", [x], T((5,))), 1 / (1 + np.exp(-x)))
    same(one("relu", [x], T((5,))), np.maximum(x, 0))
    same(one("silu", [x], T((5,))), x / (1 + np.exp(-x)))
    same(one("gelu", [x], T((5,))), [v * (1 + math.erf(v / 2**0.5)) / 2 for v in x])
    same(one("rsqrt", [x[3:]], T((2,))), x[3:] ** -0.5)
    same(one("fma", [x, x, x], T((5,))), x * x + x)
    assert one("erf", [x.astype("f2")], T((5,), "f16")).dtype == np.float16
    assert one("clz", [np.array([0, 1, 255], "u1")], T((3,), "u8")).tolist() == [8, 7, 0]
    assert one("clz", [np.array([-1, 4], "i4")], T((2,), "i32")).tolist() == [0, 29]
    made = one("complex", [x, np.full(5, math.inf)], T((5,), "c128"))
    same(made.real, x)
    np.testing.assert_array_equal(made.imag, math.inf)


def test_ops_of_other_frontends() -> None:
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(40.0).reshape(2, 4, 5)
    attrs = {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contracting": (2,), "rhs_contracting": (1,)}
    np.testing.assert_allclose(one("dot_general", [a, b], T((2, 3, 5)), **attrs), a @ b)
    np.testing.assert_allclose(one("dot_general", [a, b], T((2, 3, 4, 2, 4, 5))), np.tensordot(a, b, 0))
    row = np.arange(3.0)
    np.testing.assert_array_equal(one("broadcast_in_dim", [row], T((2, 3, 4)), broadcast_dimensions=(1,))[0, :, 0], row)
    assert one("broadcast_in_dim", [row], T((4, 3))).shape == (4, 3)
    for op, shape in (("squeeze", (3,)), ("expand_dims", (1, 3, 1)), ("flatten", (3,))):
        assert one(op, [row.reshape(1, 3)], T(shape)).shape == shape
    assert one("transpose", [a], T((4, 3, 2))).shape == (4, 3, 2)
    assert one("core.barrier", [row], T((3,))) is row


def test_complex_numbers_as_attributes() -> None:
    assert (one("full", [], T((2,), "c64"), value=(1.0, -2.0)) == 1 - 2j).all()
    padded = one("pad", [np.ones(1, "c8")], T((2,), "c64"), low=(1,), high=(0,), value=(0.0, 1.0))
    assert padded.tolist() == [1j, 1 + 0j]


def test_warnings_are_those_of_numpy() -> None:
    zero = np.zeros(2)
    with pytest.warns(RuntimeWarning, match="invalid value encountered in divide"):
        evaluate("divide", {}, [zero, zero], [T((2,))])
    with pytest.warns(RuntimeWarning, match="overflow encountered in exp"):
        evaluate("exp", {}, [np.array([1e4])], [T((1,))])
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        evaluate("log", {}, [zero], [T((2,))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate("reduce_max", {"axis": (0,)}, [np.zeros((0, 2))], [T((2,))])


def test_an_unknown_op_is_named() -> None:
    with pytest.raises(UnknownOpError, match="NumPy cannot compute op 'matmull'") as caught:
        prepare("matmull", {}, [T(())])
    assert "did you mean 'matmul'" in str(caught.value)


def test_unknown_element_types_are_named() -> None:
    for dtype in ("bf16", "token"):
        assert dtype in ITEM_BYTES
        with pytest.raises(TraceError, match=f"NumPy has no element type {dtype}"):
            evaluate("add", {}, [np.ones(1), np.ones(1)], [T((1,), dtype)])


def test_every_pointwise_rule_has_a_kernel() -> None:
    names = {record.name for record in records() if record.cost in ("pointwise", "view", "reduce")}
    ours = {name for name in names if not name.startswith(("stablehlo.", "core."))}
    assert len(ours & set(KERNELS)) > 90
