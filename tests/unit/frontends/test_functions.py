"""Every supported function, against a direct call: the same dtype, shape and numbers, or the same kind of error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shardwright.errors import TraceError
from shardwright.frontends.numpy import ShapeDtype, supported, trace
from shardwright.frontends.numpy.functions.ufuncs import ELEMENTWISE

SHAPES: list[tuple[int, ...]] = [(4, 6), (1, 1), (0, 3), (3, 0), (), (5,), (2, 3, 4)]
FEW: list[tuple[int, ...]] = [(4, 6), (0, 3), ()]
DTYPES = ["f4", "f8", "f2", "i8", "?", "c8"]
MORE_DTYPES = [*DTYPES, "i4", "u1", "c16"]
Case = Callable[..., Any]


def axes(function: Any, *options: dict[str, Any], keep: bool = True) -> dict[str, Case]:
    """A reduction over all dims, over one, over several, kept and not."""
    name = function.__name__
    said: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": -1}]
    said += [{"axis": (0, -1), "keepdims": True}, {"keepdims": True}, {"axis": ()}] if keep else []
    return {f"{name} {given}": lambda x, given=given: function(x, **given) for given in [*said, *options]}


ONE: dict[str, Case] = {
    # reductions
    **axes(np.sum, {"dtype": np.float64, "axis": 0}, {"dtype": np.int8}),
    **axes(np.prod, {"dtype": np.float32}),
    **axes(np.max), **axes(np.min), **axes(np.any), **axes(np.all), **axes(np.ptp), **axes(np.count_nonzero),
    **axes(np.mean, {"dtype": np.float32}, {"dtype": np.float64, "axis": 0}, {"dtype": np.complex128}),
    **axes(np.var, {"ddof": 1}, {"axis": 0, "ddof": 1.5}, {"correction": 1}, {"dtype": np.float64}),
    **axes(np.std, {"ddof": 1, "axis": 0}),
    **axes(np.argmax, {"axis": 0, "keepdims": True}, {"keepdims": True}, keep=False),
    **axes(np.argmin, {"axis": 0, "keepdims": True}, keep=False),
    **axes(np.cumsum, {"axis": 0, "dtype": np.float32}, keep=False), **axes(np.cumprod, keep=False),
    **axes(np.nansum), **axes(np.nanprod), **axes(np.nanmean), **axes(np.nancumsum, keep=False),
    **axes(np.nancumprod, keep=False),
    "cumulative_sum": lambda x: np.cumulative_sum(x, axis=-1),
    "cumulative_prod": lambda x: np.cumulative_prod(x, axis=0),
    "average of": np.average, "average axis": lambda x: np.average(x, axis=0),
    "trace": np.trace, "trace offset": lambda x: np.trace(x, 1),
    # views
    "reshape": lambda x: np.reshape(x, -1), "reshape 2": lambda x: x.reshape(2, -1),
    "reshape F": lambda x: x.reshape((-1, 2), order="F"),
    "reshape same": lambda x: x.reshape(x.shape), "ravel": np.ravel, "ravel F": lambda x: np.ravel(x, "F"),
    "flatten": lambda x: x.flatten(), "transpose": np.transpose, "T": lambda x: x.T, "mT": lambda x: x.mT,
    "transpose axes": lambda x: x.transpose(1, 0),
    "transpose list": lambda x: np.transpose(x, [-1, *range(x.ndim - 1)]),
    "swapaxes": lambda x: np.swapaxes(x, 0, -1), "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "moveaxis two": lambda x: np.moveaxis(x, (0, 1), (-1, 0)), "rollaxis": lambda x: np.rollaxis(x, -1),
    "rollaxis end": lambda x: np.rollaxis(x, 0, x.ndim),
    "expand_dims": lambda x: np.expand_dims(x, (0, -1)), "squeeze": np.squeeze, "squeeze axis": lambda x: x.squeeze(0),
    "atleast_1d": np.atleast_1d, "atleast_2d": np.atleast_2d, "atleast_3d": np.atleast_3d,
    "atleast two": lambda x: np.atleast_2d(x, x),
    "broadcast_to": lambda x: np.broadcast_to(x, (2, *x.shape)), "broadcast_to 3": lambda x: np.broadcast_to(x, (3, 3)),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[:1]), "flip": np.flip, "flip 0": lambda x: np.flip(x, 0),
    "fliplr": np.fliplr, "flipud": np.flipud, "rot90": np.rot90, "rot90 2": lambda x: np.rot90(x, 2),
    "rot90 3": lambda x: np.rot90(x, -1, (1, 0)), "rot90 0": lambda x: np.rot90(x, 4),
    "diagonal": np.diagonal, "diagonal offset": lambda x: np.diagonal(x, -1, 1, 0),
    "matrix_transpose": np.matrix_transpose,
    "linalg.diagonal": lambda x: np.linalg.diagonal(x, offset=1), "linalg.trace": np.linalg.trace,
    "linalg.matrix_transpose": np.linalg.matrix_transpose, "permute_dims": np.permute_dims,
    # joining and cutting
    "concatenate": lambda x: np.concatenate([x, x, x]), "concatenate -1": lambda x: np.concatenate((x, x * 2), axis=-1),
    "concatenate None": lambda x: np.concatenate([x, x], axis=None),
    "concatenate dtype": lambda x: np.concatenate([x, x], dtype=np.complex128),
    "concatenate const": lambda x: np.concatenate([x, np.ones(x.shape)]),
    "stack": lambda x: np.stack([x, x]), "stack -1": lambda x: np.stack([x, x, x], axis=-1),
    "vstack": lambda x: np.vstack([x, x]),
    "hstack": lambda x: np.hstack([x, x]), "dstack": lambda x: np.dstack([x, x]),
    "column_stack": lambda x: np.column_stack([x, x]),
    "append": lambda x: np.append(x, 2.0), "append axis": lambda x: np.append(x, x, axis=0),
    "split": lambda x: np.split(x, 2), "split at": lambda x: np.split(x, [1, 2, 9], axis=-1),
    "array_split": lambda x: np.array_split(x, 3, axis=-1), "hsplit": lambda x: np.hsplit(x, 2),
    "vsplit": lambda x: np.vsplit(x, 2),
    "dsplit": lambda x: np.dsplit(x, 2), "unstack": np.unstack, "unstack 1": lambda x: np.unstack(x, axis=1),
    "repeat": lambda x: np.repeat(x, 3), "repeat axis": lambda x: x.repeat(2, axis=0),
    "repeat one": lambda x: np.repeat(x, 1, axis=-1),
    "repeat each": lambda x: np.repeat(x, np.arange(x.shape[0]), axis=0), "tile": lambda x: np.tile(x, 2),
    "tile 3": lambda x: np.tile(x, (2, 1, 3)), "tile 1": lambda x: np.tile(x, 1), "roll": lambda x: np.roll(x, 2),
    "roll axis": lambda x: np.roll(x, -1, axis=0), "roll two": lambda x: np.roll(x, (1, 2), axis=(0, -1)),
    "roll same": lambda x: np.roll(x, (1, 2), axis=(0, 0)), "pad": lambda x: np.pad(x, 1),
    "pad sides": lambda x: np.pad(x, ((1, 2),), constant_values=3), "pad dict": lambda x: np.pad(x, {0: (1, 0)}),
    "pad each": lambda x: np.pad(x, ((0, 1), (2, 0))), "diff": np.diff, "diff 2": lambda x: np.diff(x, 2, axis=0),
    "diff ends": lambda x: np.diff(x, prepend=0, append=x),
    # choosing
    "where": lambda x: np.where(x > 0, x, 0), "where weak": lambda x: np.where(x == 0, 1.5, x),
    "where const": lambda x: np.where(np.ones(x.shape, bool), x, -x if x.dtype != bool else x),
    "clip": lambda x: np.clip(x, 0, 2), "clip low": lambda x: np.clip(x, 1, None), "clip high": lambda x: x.clip(max=1),
    "clip float": lambda x: np.clip(x, -0.5, 1.5), "clip none": lambda x: np.clip(x, None, None),
    "clip wide": lambda x: np.clip(x, -300, 300),
    "clip array": lambda x: np.clip(x, x[..., :1], 3), "select": lambda x: np.select([x > 1, x > 0], [x, x * 2], 7),
    "round": np.round, "round 2": lambda x: x.round(2), "round -1": lambda x: np.round(x, -1),
    "around": lambda x: np.around(x),
    "fix": np.fix, "real": np.real, "imag": np.imag, "x.real": lambda x: x.real, "angle": np.angle,
    "angle deg": lambda x: np.angle(x, deg=True), "nan_to_num": np.nan_to_num, "isposinf": np.isposinf,
    "isneginf": np.isneginf,
    "isreal": np.isreal, "iscomplex": np.iscomplex, "isclose": lambda x: np.isclose(x, x + 1),
    "isclose weak": lambda x: np.isclose(x, 1),
    "allclose": lambda x: np.allclose(x, x), "array_equal": lambda x: np.array_equal(x, x + 0),
    "array_equal nan": lambda x: np.array_equal(x, x, equal_nan=True),
    "astype f4": lambda x: x.astype(np.float32), "astype ?": lambda x: x.astype(bool),
    "astype same": lambda x: x.astype(x.dtype),
    "np.astype": lambda x: np.astype(x, np.complex64), "copy": np.copy, "x.copy": lambda x: x.copy(),
    "conj": lambda x: x.conj(),
    "take": lambda x: np.take(x, [0, -1]), "take axis": lambda x: x.take([[0, 1], [2, 0]], axis=-1),
    "take clip": lambda x: np.take(x, [-7, 99], axis=0, mode="clip"),
    "take wrap": lambda x: np.take(x, [-7, 99], axis=0, mode="wrap"),
    "take one": lambda x: np.take(x, 1, axis=-1),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argsort(x, axis=-1), axis=-1),
    "take_along_axis 1": lambda x: np.take_along_axis(x, np.zeros((1,) * x.ndim, int), axis=0),
    "take_along_axis None": lambda x: np.take_along_axis(x, np.array([0, 1]), axis=None),
    "sort": np.sort, "sort 0": lambda x: np.sort(x, axis=0), "sort None": lambda x: np.sort(x, axis=None),
    "argsort": np.argsort, "argsort stable": lambda x: np.argsort(x, axis=0, stable=True),
    "argsort kind": lambda x: x.argsort(kind="stable"),
    "tril": np.tril, "triu": np.triu, "tril 1": lambda x: np.tril(x, 1), "triu -1": lambda x: np.triu(x, k=-1),
    "diag": np.diag,
    "diag 1": lambda x: np.diag(x, 1), "diag -2": lambda x: np.diag(x, -2),
    # making
    "zeros_like": np.zeros_like, "ones_like": np.ones_like, "full_like": lambda x: np.full_like(x, 3),
    "zeros_like shape": lambda x: np.zeros_like(x, dtype=np.int8, shape=(2, 3)),
    "full_like traced": lambda x: np.full_like(x, x.sum()),
    "zeros like": lambda x: np.zeros((2, 3), like=x) + x.sum(),
    "ones like": lambda x: np.ones(4, dtype=np.int16, like=x),
    "full like": lambda x: np.full((2, 2), 7, like=x), "arange like": lambda x: np.arange(1, 9, 3, like=x),
    "arange like f": lambda x: np.arange(0.5, 3, like=x), "array like": lambda x: np.array([1, 2.5], like=x),
    "array like traced": lambda x: np.asarray([x, x + 1], like=x),
    # contractions
    "dot": lambda x: np.dot(x, x), "dot T": lambda x: np.dot(x, x.T), "x.dot": lambda x: x.dot(2),
    "matmul T": lambda x: x @ x.mT,
    "matmul": lambda x: x @ x, "vdot": lambda x: np.vdot(x, x), "outer": lambda x: np.outer(x, x),
    "inner": lambda x: np.inner(x, x),
    "tensordot": lambda x: np.tensordot(x, x, axes=x.ndim), "tensordot 0": lambda x: np.tensordot(x, x, axes=0),
    "tensordot pairs": lambda x: np.tensordot(x, x, axes=([0, -1], [0, -1])),
    "tensordot one": lambda x: np.tensordot(x, x, axes=(0, 0)),
    "kron": lambda x: np.kron(x, x), "kron 1": lambda x: np.kron(x, np.array([1, 2])),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "einsum implicit": lambda x: np.einsum("ij , kj", x, x), "einsum dots": lambda x: np.einsum("...i->...", x),
    "einsum diagonal": lambda x: np.einsum("ii->i", x @ x.T),
    "einsum lists": lambda x: np.einsum(x, [0, 1], x, [2, 1], [2, 0]),
    "einsum lists dots": lambda x: np.einsum(x, [Ellipsis, 0]),
    "einsum stretch": lambda x: np.einsum("ij,ij->i", x, x[:, :1]),
    "einsum three": lambda x: np.einsum("ij,kj,k->i", x, x, x[:, 0]),
    "einsum F": lambda x: np.einsum("Ab,b...->A...", x, x.T),
    "einsum dtype": lambda x: np.einsum("ij->j", x, dtype=np.complex128), "vecdot": lambda x: np.vecdot(x, x),
    "matvec": lambda x: np.matvec(x, x[0]), "vecmat": lambda x: np.vecmat(x[:, 0], x),
    "linalg.outer": lambda x: np.linalg.outer(x, x),
    "linalg.vecdot": lambda x: np.linalg.vecdot(x, x, axis=0), "linalg.matmul": lambda x: np.linalg.matmul(x, x.mT),
    "linalg.tensordot": lambda x: np.linalg.tensordot(x, x, axes=1),
    "multi_dot": lambda x: np.linalg.multi_dot([x, x.T, x, x[0]]),
    "multi_dot 3": lambda x: np.linalg.multi_dot([x[:, 0], x, x.T]),
    "matrix_power": lambda x: np.linalg.matrix_power(x.T @ x, 5),
    "matrix_power 3": lambda x: np.linalg.matrix_power(x.T @ x, 3),
    "matrix_power 1": lambda x: np.linalg.matrix_power(x.T @ x, 1),
    # norms
    **{f"norm {given}": lambda x, given=given: np.linalg.norm(x, **given) for given in (
        {}, {"axis": 0}, {"axis": -1, "keepdims": True}, {"ord": 1, "axis": 0}, {"ord": np.inf, "axis": -1},
        {"ord": -np.inf, "axis": -1},
        {"ord": 0, "axis": 0}, {"ord": 3, "axis": 0}, {"ord": 2.5, "axis": -1, "keepdims": True}, {"ord": "fro"},
        {"ord": 1}, {"ord": -1},
        {"ord": np.inf}, {"ord": -np.inf}, {"axis": (0, 1)}, {"ord": "fro", "axis": (-1, 0), "keepdims": True},
        {"keepdims": True},
        {"ord": np.inf, "axis": (-1, -2), "keepdims": True},
    )},
    "vector_norm": np.linalg.vector_norm,
    "vector_norm axis": lambda x: np.linalg.vector_norm(x, axis=-1, ord=1, keepdims=True),
    "vector_norm all": lambda x: np.linalg.vector_norm(x, ord=1, keepdims=True), "matrix_norm": np.linalg.matrix_norm,
    "matrix_norm 1": lambda x: np.linalg.matrix_norm(x, ord=1, keepdims=True),
    # about arrays
    "shape": lambda x: np.zeros(np.shape(x)) + x, "ndim": lambda x: x * np.ndim(x),
    "size": lambda x: x * np.size(x, -1),
    "result_type": lambda x: x.astype(np.result_type(x, np.float32)),
    "can_cast": lambda x: x * np.can_cast(x.dtype, np.int8),
    "iscomplexobj": lambda x: x * np.iscomplexobj(x), "isrealobj": lambda x: x * np.isrealobj(x),
    # methods of ufuncs
    "add.reduce": lambda x: np.add.reduce(x), "add.reduce dtype": lambda x: np.add.reduce(x, axis=-1, dtype=np.float64),
    "maximum.reduce": lambda x: np.maximum.reduce(x, axis=None),
    "multiply.reduce": lambda x: np.multiply.reduce(x, keepdims=True),
    "logical_or.reduce": lambda x: np.logical_or.reduce(x, axis=-1),
    "add.accumulate": lambda x: np.add.accumulate(x, axis=-1),
    "multiply.accumulate": lambda x: np.multiply.accumulate(x), "add.outer": lambda x: np.add.outer(x, x),
    "less.outer": lambda x: np.less.outer(x, np.arange(2)),
}  # fmt: skip

# What NumPy adds up in another order than a program that splits well, and powers of NumPy's scalars.
CLOSE = {
    "norm {}", "norm {'keepdims': True}", "norm {'ord': 'fro'}", "norm {'ord': 3, 'axis': 0}", "vecmat", "inner",
}  # fmt: skip
TOLERANCE = {"e": 2e-3, "f": 1e-6, "d": 1e-13, "F": 1e-6, "D": 1e-13}


@pytest.mark.parametrize("name", sorted(ONE))
def test_function_of_one_array(name: str, agree_or_fail: Case, numbers: Case) -> None:
    worked = 0
    for dtype in DTYPES:
        for shape in SHAPES if dtype == "f4" else FEW:
            x = numbers(shape, dtype)
            close = TOLERANCE.get(x.dtype.char, 0.0) if name in CLOSE else 0.0
            quick = dtype != "f4" and shape != (4, 6)
            worked += agree_or_fail(ONE[name], x, close=close, quick=quick) is not None
    assert worked


@pytest.mark.parametrize("ufunc", [*ELEMENTWISE, np.fabs], ids=lambda ufunc: ufunc.__name__)
def test_ufunc(ufunc: np.ufunc, agree_or_fail: Case, numbers: Case) -> None:
    worked = 0
    for dtype in MORE_DTYPES:
        for shape in SHAPES if dtype == "f4" else FEW:
            args = [numbers(shape, dtype, seed) for seed in range(ufunc.nin)]
            worked += agree_or_fail(ufunc, *args, quick=shape != (4, 6)) is not None
    assert worked >= 3


@pytest.mark.parametrize("dtype", MORE_DTYPES)
def test_promotion(dtype: str, agree_or_fail: Case, numbers: Case) -> None:
    """Python's numbers are weak, NumPy's are not; integers that do not fit are refused, or compare as they are."""
    x = numbers((3, 4), dtype)
    for ufunc in (np.add, np.subtract, np.true_divide, np.power, np.less, np.equal, np.maximum, np.arctan2, np.ldexp):
        for other in (2, -1, 300, 2**70, 1.5, 1e300, 2j, True, np.float32(2), np.int8(3), np.float64(1), [1, 2, 3, 4]):
            agree_or_fail(lambda x, u=ufunc, o=other: u(x, o), x, quick=True)
            agree_or_fail(lambda x, u=ufunc, o=other: u(o, x), x, quick=True)
        for second in MORE_DTYPES:
            agree_or_fail(ufunc, x, numbers((4,), second, 3), quick=True)
            agree_or_fail(ufunc, x, numbers((), second, 3), quick=True)


OPERATORS: list[Case] = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: x // y,
    lambda x, y: x % y, lambda x, y: divmod(x, y), lambda x, y: x**y, lambda x, y: x << y, lambda x, y: x >> y,
    lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: x == y, lambda x, y: x != y,
    lambda x, y: x < y, lambda x, y: x <= y, lambda x, y: x > y, lambda x, y: x >= y, lambda x, y: -x + +y,
    lambda x, y: ~x, lambda x, y: abs(x), lambda x, y: 2 - x, lambda x, y: 2 / x, lambda x, y: 7 // x,
    lambda x, y: 7 % x,
    lambda x, y: divmod(7, x), lambda x, y: 2**x, lambda x, y: 1 << x, lambda x, y: 9 >> x, lambda x, y: 3 & x,
    lambda x, y: 3 | x, lambda x, y: 3 ^ x, lambda x, y: x**2, lambda x, y: x**0.5, lambda x, y: x**-1,
    lambda x, y: x**3,
    lambda x, y: np.ones((2, 3)) @ x, lambda x, y: np.float32(2) * x, lambda x, y: np.arange(4) - x,
]  # fmt: skip


@pytest.mark.parametrize("n", range(len(OPERATORS)))
def test_operator(n: int, agree_or_fail: Case, numbers: Case) -> None:
    worked = 0
    for dtype in ("f4", "i8", "u1", "?", "c8"):
        args = numbers((3, 4), dtype), np.abs(numbers((4,), dtype, 1)) + 1
        worked += agree_or_fail(OPERATORS[n], *args) is not None
    assert worked


TWO: dict[str, tuple[Case, list[tuple[tuple[int, ...], ...]]]] = {
    "matmul": (
        np.matmul,
        [
            ((2, 3), (3, 4)),
            ((5, 2, 3), (3, 4)),
            ((3,), (3, 4)),
            ((2, 3), (3,)),
            ((3,), (3,)),
            ((2, 1, 4, 3), (5, 3, 2)),
            ((2, 3), (2, 3)),
            ((), (3,)),
            ((0, 3), (3, 2)),
            ((2, 0), (0, 2)),
        ],
    ),
    "dot": (
        np.dot,
        [
            ((2, 3), (3, 4)),
            ((3,), (3,)),
            ((2, 3), (3,)),
            ((4, 2, 3), (5, 3, 2)),
            ((), (2, 3)),
            ((2, 3), (4, 5)),
            ((0,), (0,)),
        ],
    ),
    "inner": (np.inner, [((2, 3), (4, 3)), ((3,), (3,)), ((), (2,)), ((2, 3), (3, 4))]),
    "vdot": (np.vdot, [((2, 3), (3, 2)), ((3,), (3,)), ((3,), (4,))]),
    "outer": (np.outer, [((2,), (3,)), ((2, 2), (3,)), ((), (2,))]),
    "tensordot": (
        lambda a, b: np.tensordot(a, b, ((1,), (0,))),
        [((2, 3), (3, 4)), ((2, 3, 5), (3, 4)), ((2, 3), (4, 3))],
    ),
    "kron": (np.kron, [((2, 3), (3, 2)), ((2,), (3, 2)), ((2, 3), ())]),
    "cross": (np.cross, [((4, 3), (4, 3)), ((3,), (4, 3)), ((3,), (4,))]),
    "cross axes": (lambda a, b: np.cross(a, b, axisa=0, axisc=0), [((3, 4), (4, 3))]),
    "where": (lambda a, b: np.where(a, b, a), [((2, 3), (3,)), ((2, 1), (3,)), ((), ()), ((2,), (3,))]),
    "average": (
        lambda a, w: np.average(a, axis=0, weights=w * w + 1),
        [((3, 4), (3,)), ((3, 4), (3, 4)), ((3, 4), (4,))],
    ),
    "average axes": (lambda a, w: np.average(a, axis=(1, 0), weights=w * w + 1, returned=True), [((3, 4, 2), (4, 3))]),
    "average keep": (lambda a, w: np.average(a, weights=w * w + 1, keepdims=True), [((3, 4), (3, 4)), ((3, 4), (4,))]),
    "isclose": (np.isclose, [((2, 3), (3,))]),
    "allclose": (np.allclose, [((2, 3), (3,))]),
    "array_equal": (np.array_equal, [((2,), (2,))]),
    "broadcast_arrays": (np.broadcast_arrays, [((2, 1), (3,)), ((2,), (3,))]),
    "concatenate": (
        lambda a, b: np.concatenate([a, b, a], 1),
        [((2, 3), (2, 1)), ((2, 3), (3, 3)), ((2, 0), (2, 2)), ((2,), (2,))],
    ),
    "stack": (lambda a, b: np.stack([a, b], 1), [((2, 3), (2, 3)), ((2, 3), (3, 2)), ((), ())]),
    "vstack": (lambda a, b: np.vstack([a, b]), [((3,), (2, 3)), ((2, 3), (2, 2))]),
    "column_stack": (lambda a, b: np.column_stack([a, b]), [((3,), (3, 2))]),
    "einsum": (
        lambda a, b: np.einsum("bij,bjk->bik", a, b),
        [((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (2, 3, 5)), ((2, 3, 4), (2, 4))],
    ),
    "einsum dots": (
        lambda a, b: np.einsum("...ij,...j", a, b),
        [((2, 3, 4), (4,)), ((3, 4), (2, 4)), ((2, 3, 4), (2, 4))],
    ),
    "clip": (lambda a, b: np.clip(a, b, b + 1), [((2, 3), (3,))]),
    "copyto": (lambda a, b: (a := a.copy(), np.copyto(a, b), a)[2], [((2, 3), (3,))]),
    "copyto where": (lambda a, b: (a := a.copy(), np.copyto(a, b, where=b > 0), a)[2], [((2, 3), (3,))]),
}


@pytest.mark.parametrize("name", sorted(TWO))
def test_function_of_two_arrays(name: str, agree_or_fail: Case, numbers: Case) -> None:
    function, shapes = TWO[name]
    for first, second in shapes:
        worked = 0
        for left, right in (
            ("f8", "f8"),
            ("f4", "f4"),
            ("f4", "f8"),
            ("i8", "f4"),
            ("c8", "f4"),
            ("i4", "i8"),
            ("?", "?"),
        ):
            args = numbers(first, left), numbers(second, right, 1)
            close = TOLERANCE.get(np.result_type(*args).char, 0.0) if name == "inner" else 0.0
            worked += agree_or_fail(function, *args, close=close) is not None
        if (first, second) == shapes[0]:
            assert worked >= 3


NAN: dict[str, Case] = {
    **axes(np.nansum), **axes(np.nanprod), **axes(np.nanmean, {"dtype": np.float32}), **axes(np.nanmax),
    **axes(np.nanmin),
    **axes(np.nanvar, {"ddof": 1, "axis": 0}, {"correction": 1}), **axes(np.nanstd, {"ddof": 1, "axis": -1}),
    **axes(np.nancumsum, keep=False), **axes(np.nancumprod, keep=False),
    **axes(np.max), **axes(np.min), **axes(np.sum), **axes(np.mean), **axes(np.var), **axes(np.argmax, keep=False),
    "nanargmax": lambda x: np.nanargmax(x[:2], axis=-1),
    "nanargmin": lambda x: np.nanargmin(x[:2], axis=1, keepdims=True),
    "nan_to_num": np.nan_to_num, "nan_to_num said": lambda x: np.nan_to_num(x, nan=1, posinf=2, neginf=3),
    "sort": np.sort, "argsort": np.argsort, "clip": lambda x: np.clip(x, -1, 1),
    "isclose": lambda x: np.isclose(x, x, equal_nan=True),
    "isposinf": np.isposinf, "isneginf": np.isneginf, "maximum": lambda x: np.maximum(x, x[::-1]), "tril": np.tril,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NAN))
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8"])
def test_nan_and_inf(name: str, dtype: str, agree_or_fail: Case, numbers: Case) -> None:
    x = numbers((5, 6), dtype)
    if dtype != "i8":
        x[0, 1] = x[2, 2] = np.nan
        x[1, 0] = x[3, 3] = np.inf
        x[3, 4] = -np.inf
        x[4] = np.nan
    assert agree_or_fail(NAN[name], x) is not None


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c8", "i4"])
@pytest.mark.parametrize("function", [np.sum, np.mean, np.var, np.std, np.prod], ids=lambda function: function.__name__)
def test_long_sums_round_as_numpy_does(function: Case, dtype: str, agree: Case, numbers: Case) -> None:
    """NumPy adds in blocks whose order depends on memory; the steps must see the same memory."""
    x = numbers((70, 90), dtype)
    for array in (x, np.asfortranarray(x), x[::2, ::3], x.T):
        for axis in (None, 0, 1):
            agree(lambda x, axis=axis: function(x, axis=axis), array, quick=True)


def test_a_mean_over_more_elements_than_a_half_can_count(agree: Case) -> None:
    x = np.random.default_rng(0).uniform(size=(3000, 2)).astype("f2")
    for axis in (None, 0):
        agree(lambda x, axis=axis: (x.mean(axis), x.var(axis), x.std(axis, ddof=1)), x)


METHODS: list[Case] = [
    lambda x: (x.sum(), x.sum(0), x.sum(axis=1, keepdims=True), x.sum(dtype=np.float64)),
    lambda x: (x.mean(), x.max(1), x.min(axis=0), x.prod(0), x.var(ddof=1), x.std(), x.any(), x.all(0)),
    lambda x: (x.argmax(), x.argmin(1), x.cumsum(), x.cumprod(1), x.argsort(), x.take([0, 1], axis=1), x.clip(0, 1)),
    lambda x: (
        x.reshape(-1),
        x.reshape((6, 4)),
        x.reshape(2, 2, 6),
        x.ravel(),
        x.flatten("F"),
        x.transpose(),
        x.transpose((1, 0)),
    ),
    lambda x: (
        x.swapaxes(0, 1),
        x.squeeze(),
        x.astype("i4"),
        x.astype(np.float16, copy=False),
        x.dot(x.T),
        x.round(),
        x.conj(),
    ),
    lambda x: (x.real, x.imag, x.repeat(2), x.copy(), x.diagonal(), x.trace(), x.T, x.mT, x.conjugate()),
    lambda x: (x * x.size, x * x.ndim, x * len(x), x * x.nbytes, x * x.itemsize, x * x.shape[1], x.astype(x.dtype)),
    lambda x: [row * i for i, row in enumerate(x)],
    lambda x: sum(x),
    lambda x: max(row.ndim for row in x) * x,
]


@pytest.mark.parametrize("n", range(len(METHODS)))
@pytest.mark.parametrize("dtype", ["f8", "f2", "c16"])
def test_methods(n: int, dtype: str, agree: Case, numbers: Case) -> None:
    agree(METHODS[n], numbers((4, 6), dtype))


def test_ufunc_with_a_dtype(agree: Case, numbers: Case) -> None:
    agree(lambda x, y: np.add(x, y, dtype=np.float64), numbers((3,), "f4"), numbers((3,), "f4", 1))
    agree(lambda x: np.multiply(x, 2, dtype=np.float32), numbers((3,), "f2"))


def test_programs_are_made_of_few_ops() -> None:
    """What NumPy composes is composed here too, so that rules are needed for few ops."""

    def ops(function: Case) -> list[str]:
        return [node.op for node in trace(function, ShapeDtype((4, 6), np.float32)).graph.nodes]

    assert ops(np.mean) == ["reduce_sum", "full", "divide"]
    assert ops(np.var) == ["reduce_sum", "full", "divide", "subtract", "square", "reduce_sum", "full", "divide"]
    assert ops(lambda x: np.clip(x, 0, 1)) == ["full", "maximum", "full", "minimum"]
    assert ops(lambda x: np.stack([x, x])) == ["reshape", "reshape", "concatenate"]
    assert ops(lambda x: np.repeat(x, 2, axis=0)) == ["reshape", "broadcast_to", "reshape"]
    assert ops(lambda x: x[::-2]) == ["slice", "flip"]
    assert ops(lambda x: np.linalg.norm(x, axis=1)) == ["multiply", "reduce_sum", "sqrt"]


def test_only_a_reshape_that_merges_moved_dims_owns_bytes() -> None:
    def heads(x: Any) -> Any:
        return x.reshape(2, 3, 4).transpose(1, 0, 2).reshape(3, 8)

    nodes = trace(heads, ShapeDtype((6, 4))).graph.nodes
    assert [(node.op, node.views) for node in nodes] == [
        ("reshape", ((0, 0),)),
        ("transpose", ((0, 0),)),
        ("reshape", ()),
    ]


UNKNOWN = {
    "numpy.fft.fft": lambda x: np.fft.fft(x),
    "numpy.median": lambda x: np.median(x),
    "numpy.maximum.accumulate": lambda x: np.maximum.accumulate(x),
    "numpy.add.at": lambda x: np.add.at(x, [0], 1),
    "numpy.add.reduceat": lambda x: np.add.reduceat(x, [0, 1]),
    "numpy.isnat": lambda x: np.isnat(x),
}


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_an_unknown_function_is_named(name: str) -> None:
    with pytest.raises(TraceError, match=f"{name} is not supported in a traced function") as caught:
        trace(UNKNOWN[name], ShapeDtype((4, 4)))
    assert "pass the result as an argument" in str(caught.value)
    assert "test_functions.py" in str(caught.value)


def test_a_near_miss_is_offered() -> None:
    with pytest.raises(TraceError, match=r"did you mean 'numpy\.nanmean'"):
        trace(lambda x: np.nanmedian(x), ShapeDtype((4,)))


ARGUMENTS = {
    "out= of numpy.sum": lambda x: np.sum(x, out=np.zeros(())),
    "out= of numpy.add": lambda x: np.add(x, x, out=np.zeros(4)),
    "out= of numpy.dot": lambda x: np.dot(x, x, np.zeros(())),
    "where= of numpy.add": lambda x: np.add(x, x, where=x > 0),
    "where= of numpy.sum": lambda x: np.sum(x, where=x > 0),
    "initial= of numpy.max": lambda x: np.max(x, initial=0),
    "casting= of numpy.add": lambda x: np.add(x, x, casting="no"),
    "mode= of numpy.pad": lambda x: np.pad(x, 1, mode="edge"),
    "order= of numpy.ravel": lambda x: np.ravel(x[None], order="K"),
    "dtype= of numpy.maximum.reduce": lambda x: np.maximum.reduce(x, dtype=np.float32),
    "constant_values= of numpy.pad": lambda x: np.pad(x, 1, constant_values=(0, 1)),
    "copy= of numpy.nan_to_num": lambda x: np.nan_to_num(x, copy=False),
    "ord=2 of numpy.linalg.norm": lambda x: np.linalg.norm(x[None], 2),
    "dtype= of numpy.matmul": lambda x: np.matmul(x, x, dtype=np.float32),
}


@pytest.mark.parametrize("argument", sorted(ARGUMENTS))
def test_an_unsupported_argument_is_named(argument: str) -> None:
    with pytest.raises(TraceError, match=argument.replace(".", r"\.")):
        trace(ARGUMENTS[argument], ShapeDtype((4,)))


DATA_DEPENDENT = {
    "numpy.nonzero": lambda x: np.nonzero(x),
    "numpy.unique": lambda x: np.unique(x),
    "numpy.argwhere": lambda x: np.argwhere(x),
    "numpy.compress": lambda x: x.compress([True, False]),
    "numpy.where(condition)": lambda x: np.where(x > 0),
    "numpy.repeat": lambda x: np.repeat(x, x),
    "x[mask]": lambda x: x[x > 0],
}


@pytest.mark.parametrize("name", sorted(DATA_DEPENDENT))
def test_shapes_that_depend_on_numbers_are_refused(name: str) -> None:
    with pytest.raises(TraceError, match="depends on numbers, which a traced value does not have") as caught:
        trace(DATA_DEPENDENT[name], ShapeDtype((4,), int))
    assert f"the shape of {name}" in str(caught.value)
    assert "help" in str(caught.value)


def test_what_is_supported_can_be_listed() -> None:
    names = supported()
    assert len(names) > 130
    assert {"numpy.sum", "numpy.linalg.norm", "numpy.einsum"} <= set(names)
