"""Indexing, writing, and arrays that share memory: what a program does to one of them, the others must see."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import TraceError
from shardwright.frontends.numpy import ShapeDtype, trace

Case = Callable[..., Any]
I = np.array([2, 0, -1])  # noqa: E741
GRID = np.array([[0, 1], [2, 3]])
MASK = np.array([True, False, True, True, False])

KEYS: list[Any] = [
    0, -1, 4, 5, (1, 2), (1, 2, 3), (1, 2, 3, 0), slice(None), slice(1, 3), slice(-2, None), slice(None, None, 2),
    slice(None, None, -1),
    slice(4, None, -2), slice(3, 1), slice(0, 0), slice(9), slice(1, 9, 3), slice(1, 2, -1), (slice(None), 1),
    (slice(1, 3), slice(None, None, -2)),
    (0, slice(None), slice(2)), None, (None, 0), (slice(None), None, 1, None), Ellipsis, (Ellipsis, 0), (0, Ellipsis),
    (0, Ellipsis, -1),
    (Ellipsis, None), (), (np.int64(1), slice(None)), np.array(2), (slice(None), Ellipsis, slice(None), slice(None)),
    (slice(-100, 100), slice(None, None, -3)), (Ellipsis, Ellipsis), 1.5, "a",
]  # fmt: skip
ARRAYS: list[Any] = [
    I, [0, 1], [], GRID, (slice(None), I), (slice(None), GRID), (Ellipsis, I), (I, slice(None), slice(1, 3)), (0, I),
    (I, 0), (0, slice(None), I),
    (I, slice(None), 0), (slice(None), 0, I), (None, I), (I, None), (0, None, I), (slice(None, None, -1), I),
    (I, Ellipsis, 1), (slice(1, 3), I, 2),
    (1, I, 2), MASK, (MASK, 0), (slice(None), np.array([True, False, True, False])), [True, False, True, False, True],
    np.array([5]), np.array([-6]),
    np.array([0.5]), np.ones((5, 4), bool), np.arange(20).reshape(5, 4) % 3 == 0, np.ones(4, bool),
    (Ellipsis, np.array([1, 1, 0])),
]  # fmt: skip


@pytest.mark.parametrize("key", [*KEYS, *ARRAYS], ids=repr)
@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_read(key: Any, dtype: str, agree_or_fail: Case, numbers: Case) -> None:
    agree_or_fail(lambda x: x[key], numbers((5, 4, 3), dtype))


@pytest.mark.parametrize("key", [key for key in KEYS if key != 1.5], ids=repr)
def test_read_of_other_shapes(key: Any, agree_or_fail: Case, numbers: Case) -> None:
    for shape in ((), (5,), (0, 3), (1, 1, 1)):
        agree_or_fail(lambda x: x[key], numbers(shape, "f4"))


def _put(key: Any, value: Any) -> Case:
    def fn(x: Any, *values: Any) -> Any:
        x = x + x
        x[key] = values[0] if values else value
        return x

    return fn


@pytest.mark.parametrize("key", [*KEYS, *ARRAYS], ids=repr)
def test_write(key: Any, agree_or_fail: Case, numbers: Case) -> None:
    x = numbers((5, 4, 3), "f4")
    for value in (7, 1.5, True, np.float64(2), np.arange(3.0)):
        agree_or_fail(_put(key, value), x)
    try:
        part = x[key]
    except Exception:
        return
    if np.size(part):
        agree_or_fail(_put(key, None), x, numbers(np.shape(part), "f8", 1))
        agree_or_fail(_put(key, None), x, numbers((1, *np.shape(part)), "i8", 1))
        agree_or_fail(_put(key, None), x, numbers(np.shape(part)[1:], "f4", 1))


@pytest.mark.parametrize("value", [3, 1.7, 300, -1, 2j, np.nan, True, "a", np.int64(300), np.arange(4)], ids=repr)
@pytest.mark.parametrize("dtype", ["f4", "i8", "u1", "?", "c8"])
def test_a_written_value_is_cast(value: Any, dtype: str, agree_or_fail: Case, numbers: Case) -> None:
    agree_or_fail(_put(slice(1, 2), value), numbers((3, 4), dtype))


def test_index_arrays_may_be_traced(agree: Case, numbers: Case) -> None:
    x, i = numbers((5, 4), "f4"), np.array([[3, -1], [0, 2]])
    assert [node.op for node in agree(lambda x, i: x[i], x, i).graph.nodes] == ["take"]
    agree(lambda x, i: x[:, i[0]], x, i)
    agree(lambda x, i: x[i[0, 0]], x, i)
    agree(lambda x, i: x[1, i], x, i)
    agree(lambda x, i: np.take(x, i, axis=1), x, i)
    agree(lambda x, i: _put(i[0], -1)(x), x, i)
    agree(lambda x, i: _put((slice(1, 3), i[0]), -1)(x), x, i)
    agree(lambda x, i: _put(i[0, 0], -1)(x), x, i)


def test_rows_with_their_own_column(agree: Case, numbers: Case) -> None:
    x, labels = numbers((5, 4), "f4"), np.array([0, 3, -1, 2, 1])
    traced = agree(lambda x, labels: x[np.arange(5), labels], x, labels)
    assert [node.op for node in traced.graph.nodes] == ["reshape", "take_along_axis", "reshape"]
    agree(lambda x, labels: x[labels % 5, np.arange(4)], x, labels[:4])
    agree(lambda x: x[np.arange(5), [0, 1, 2, 3, 0]], x)
    deep, index = numbers((2, 3, 4), "f8"), np.array([[0, 1, 2], [3, -1, -4]])
    agree(lambda x, i: x[np.arange(2)[:, None], np.arange(3), i], deep, index)
    agree(lambda x, i: x[np.arange(2)[:, None], i % 3, np.arange(4)], deep, np.ones((2, 4), int))
    agree(lambda x: x[np.arange(5), np.array([1])], x)


def test_the_gradient_of_cross_entropy(agree: Case, numbers: Case) -> None:
    def gradient(p: Any, labels: Any) -> Any:
        p = p.copy()
        p[np.arange(len(labels)), labels] -= 1
        return p / len(labels)

    traced = agree(gradient, numbers((5, 4), "f4"), np.array([0, 3, -1, 2, 1]))
    assert not traced.consts
    agree(gradient, numbers((5, 4), "f4"), np.array([0, 3, 1, 2, 1], "u1"))


def test_arrays_on_several_dims_are_refused(numbers: Case) -> None:
    for key in ((I, I), (I, slice(None), I), (np.arange(4), np.array([0, 1, 2, 3]))):
        with pytest.raises(TraceError, match=r"only as x\[np\.arange\(n\), index\]") as caught:
            trace(lambda x, key=key: x[key], ShapeDtype((5, 4, 3)))
        assert "take_along_axis" in str(caught.value)


def test_masks(agree: Case, agree_or_fail: Case, numbers: Case) -> None:
    x = numbers((5, 4), "f4")
    traced = agree(lambda x: _put(x > 0, 0)(x), x)
    assert [node.op for node in traced.graph.nodes][-1] == "where"
    agree(lambda x: _put(x[:, 0] > 0, x[0])(x), x)
    agree(lambda x: _put((x[:, 0] > 0, Ellipsis), 3)(x), x)
    agree(lambda x: _put(MASK, np.arange(4))(x), x)
    agree(lambda x: _put(MASK, np.arange(12.0).reshape(3, 4))(x), x)
    agree_or_fail(lambda x: _put(np.ones(4, bool), 0)(x), x)
    with pytest.raises(TraceError, match=r"x\[mask\] = values"):
        trace(lambda x: _put(x > 0, x[0] + np.ones((3, 1)))(x), x)
    with pytest.raises(TraceError, match="a boolean cannot be an index"):
        trace(lambda x: x[True], x)


def test_bounds_that_are_traced_are_refused() -> None:
    with pytest.raises(TraceError, match="a traced value has no numbers, but an index needs"):
        trace(lambda x, n: x[:n], ShapeDtype((5,)), ShapeDtype((), int))


# In-place operators.


def _in_place(op: str) -> Case:
    space: dict[str, Any] = {}
    exec(f"def fn(x, y):\n    z = x + 0\n    alias = z\n    z {op} y\n    return z, alias", space)
    made: Case = space["fn"]
    return made


@pytest.mark.parametrize("op", ["+=", "-=", "*=", "/=", "//=", "%=", "**=", "@=", "<<=", ">>=", "&=", "|=", "^="])
def test_in_place_operators(op: str, agree_or_fail: Case, numbers: Case) -> None:
    worked = 0
    for dtype in ("f4", "i8", "u1", "?", "c8"):
        for second in ("f4", "f8", "i8", "?"):
            x, y = numbers((3, 3), dtype), np.abs(numbers((3, 3), second, 1)) + 1
            worked += agree_or_fail(_in_place(op), x, y) is not None
            agree_or_fail(_in_place(op), x[0], y)
            worked += agree_or_fail(lambda x, op=op: _in_place(op)(x, 2), x) is not None
    assert worked


def test_numbers_are_not_changed_in_place(agree: Case, numbers: Case) -> None:
    def fn(x: Any) -> Any:
        total = x.sum()
        before = total
        total += 1
        first = x[0]
        first *= 2
        return total, before, first, x

    agree(fn, numbers((3,), "f4"))


# Memory.

SHARED: dict[str, Case] = {}


def shared(fn: Case) -> Case:
    SHARED[fn.__name__] = fn
    return fn


@shared
def write_a_row(x: Any) -> Any:
    row = x[1]
    row += 10
    return x, row


@shared
def write_a_part_of_a_part(x: Any) -> Any:
    part = x[1:, ::2]
    corner = part[-1]
    corner[...] = 7
    x[0] = part[0].sum()
    return x, part, corner


@shared
def siblings(x: Any) -> Any:
    a, b = x[:2], x[1:]
    a *= 2
    b -= 1
    a[0, 0] = 5
    return x, a, b


@shared
def rows_in_a_loop(x: Any) -> Any:
    for i, row in enumerate(x):
        row *= i
    return x


@shared
def through_a_transpose(x: Any) -> Any:
    t = x.T
    t[0] = 1
    x[1] = 2
    m = np.moveaxis(x, 0, 1)
    m[2, 1] = 9
    return x, t, m


@shared
def through_flips_and_ones(x: Any) -> Any:
    up, wide = x[::-1], x[None, :, :, None]
    up[0] = 1
    wide[0, 1, 2, 0] = 4
    np.squeeze(wide)[2, 2] = 8
    np.flip(x, 1)[0, 0] = 3
    np.expand_dims(x, 0)[0, 0, 0] = 6
    np.rot90(x)[0] += 1
    return x, up, wide


@shared
def parts_of_a_split(x: Any) -> Any:
    for i, part in enumerate(np.array_split(x, 2)):
        part += i
    np.unstack(x, axis=1)[0][...] = 3
    return x


@shared
def element_by_element(x: Any) -> Any:
    x[0, 0] += 1
    x[1, 1] *= x[0, 0]
    x[2, :] = x[0, :] + x[:, 0]
    return x


@shared
def swap(x: Any) -> Any:
    x[0], x[1] = x[1].copy(), x[0].copy()
    return x


@shared
def copies_are_apart(x: Any) -> Any:
    y, z, w, v = x.copy(), x.astype(x.dtype), x[[0, 1]], copy.deepcopy(x)
    flat = x.flatten()
    y[0] = z[1] = w[0] = v[2] = 1
    flat[0] = 2
    return x, y, z, w, v, flat


@shared
def fill_and_sort(x: Any) -> Any:
    y = x[1:]
    y.sort(axis=1)
    x[0].fill(4)
    return x, y


@shared
def real_part(x: Any) -> Any:
    x.real[0] = 3
    return x


@shared
def reshape_and_forget(x: Any) -> Any:
    y = x.reshape(-1)
    y[3] = 1
    return y


@shared
def a_buffer(x: Any) -> Any:
    made = np.zeros_like(x, shape=(4, *x.shape))
    for i in range(4):
        made[i] = x * i
    made += np.ones(x.shape)
    return made


@shared
def window_written_with_itself(x: Any) -> Any:
    x[:, :2] = x[:, 1:3]
    x[::-1] = x.copy()
    return x


@pytest.mark.parametrize("name", sorted(SHARED))
def test_memory_that_is_shared(name: str, agree: Case, numbers: Case) -> None:
    agree(lambda x: SHARED[name](x), numbers((3, 3) if name == "element_by_element" else (3, 4), "f8"))


def test_an_item_that_is_updated_is_written_once(numbers: Case) -> None:
    def fn(x: Any) -> Any:
        x[1:3] += 1
        return x

    assert [node.op for node in trace(fn, numbers((4, 2), "f4")).graph.nodes] == [
        "slice",
        "full",
        "add",
        "update_slice",
    ]


def test_broadcast_arrays_are_read_only(agree_or_fail: Case, numbers: Case) -> None:
    agree_or_fail(lambda x: _put(0, 1)(np.broadcast_to(x, (2, 3))), numbers((3,), "f4"))

    def fn(x: Any) -> Any:
        np.broadcast_to(x, (2, 3))[0] = 1
        return x

    agree_or_fail(fn, numbers((3,), "f4"))


def test_a_view_or_a_copy_must_be_said() -> None:
    def through_a_reshape(x: Any) -> Any:
        y = x.reshape(-1)
        y[0] = 1
        return x

    def under_a_reshape(x: Any) -> Any:
        y = x.reshape(2, 2, 3)
        x[0] = 1
        return y

    def through_a_ravel(x: Any) -> Any:
        x = x[::2, 0]
        x.ravel()[0] = 1  # a copy, since x has gaps
        return x

    for fn in (through_a_reshape, under_a_reshape, through_a_ravel):
        with pytest.raises(TraceError, match="through an array that may share its memory") as caught:
            trace(fn, ShapeDtype((4, 3)))
        assert ".reshape(...).copy()" in str(caught.value)


def test_what_the_function_writes_to_is_told(numbers: Case) -> None:
    def fn(x: Any, y: Any) -> Any:
        y[0] = 1
        y.T[1] += 1
        return x + y

    x = numbers((3, 3), "f4")
    traced = trace(fn, x, x.copy())
    assert traced.written == ("y",)
    before = x.copy()
    traced(x, x)
    np.testing.assert_array_equal(x, before)


@given(st.data())
def test_any_basic_key(data: st.DataObject) -> None:
    """Reading and writing by random keys, one through another."""
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    small = st.integers(-5, 5)
    bound = st.none() | small
    entry = st.builds(slice, bound, bound, st.none() | small.filter(bool)) | st.none() | st.just(Ellipsis) | small
    keys = data.draw(st.lists(st.lists(entry, max_size=4).map(tuple), min_size=1, max_size=3))
    x = np.arange(float(np.prod(shape))).reshape(shape)

    def fn(x: Any) -> Any:
        parts = [x]
        for key in keys:
            parts.append(parts[-1][key])
            if np.ndim(parts[-1]):
                parts[-1][...] = parts[-1] * 2 + 1
        return parts

    try:
        expected = fn(x.copy())
    except IndexError:
        with pytest.raises((IndexError, TraceError)) as caught:
            trace(fn, x)
        assert isinstance(caught.value, IndexError) or isinstance(caught.value.__cause__, IndexError)
        return
    for found, right in zip(trace(fn, x)(x), expected):
        np.testing.assert_array_equal(found, right)
