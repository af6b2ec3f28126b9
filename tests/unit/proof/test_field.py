"""Ops over a prime field: against Python's whole numbers, against NumPy, and against the rule book's promises."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from math import inf, nan
from operator import mul
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardwright.frontends.numpy import evaluate
from shardwright.ir.graph import TensorType
from shardwright.proof.fields.field import FieldArrays, prepare_field
from shardwright.proof.fields.handlers import HANDLERS, handler_of, opaque
from shardwright.proof.fields.modular import EXACT, PRIMES, Field, FieldArray
from shardwright.proof.fields.pointwise import OpCall
from shardwright.rules import records
from shardwright.spec.collective import REDUCTIONS
from shardwright.spec.rule import RulePattern, Transfer

P = PRIMES[0]
FIELD = Field(P)
ARRAYS = FieldArrays(FIELD)
Ints = NDArray[np.int64]


def numbers(array: Any) -> FieldArray:
    """Whole numbers as elements of the field whose heights are the numbers themselves."""
    whole = np.asarray(array)
    return FieldArray(FIELD.mod(whole.astype(np.float64)), whole.astype(np.float64))


def randoms(seed: int, shape: tuple[int, ...] = (6, 5)) -> FieldArray:
    return FIELD.random(np.random.default_rng(seed), shape)


def run(op: str, *operands: Any, shape: tuple[int, ...] = (), of: str = "f32", **attrs: Any) -> FieldArray:
    return prepare_field(0, P)(op, attrs, [TensorType(shape, of)])(operands)[0]


def same(left: FieldArray, right: FieldArray) -> bool:
    return bool(np.array_equal(left.residue, right.residue))


# -- arithmetic -----------------------------------------------------------------------------------------


def test_the_primes_are_primes_below_two_to_the_twenty() -> None:
    for p in PRIMES:
        assert p < 1 << 20
        assert all(p % d for d in range(2, int(p**0.5) + 1))


residues = st.integers(0, P - 1)


@given(residues, residues, residues)
def test_arithmetic_is_that_of_whole_numbers(a: int, b: int, c: int) -> None:
    x, y, z = (numbers(n) for n in (a, b, c))
    assert int(FIELD.add(x, y).residue) == (a + b) % P
    assert int(FIELD.subtract(x, y).residue) == (a - b) % P
    assert int(FIELD.multiply(x, y).residue) == a * b % P
    assert int(run("negative", x).residue) == -a % P
    left = run("divide", FIELD.add(x, y), z)
    assert same(left, FIELD.add(run("divide", x, z), run("divide", y, z))), "linear in x, even where z is 0"
    if c:
        assert int(run("reciprocal", z).residue) == pow(c, -1, P)
        assert int(run("divide", x, z).residue) == a * pow(c, -1, P) % P


@pytest.mark.parametrize("p", PRIMES)
def test_products_of_matrices_are_exact(p: int) -> None:
    field = Field(p)
    assert field.longest * (p - 1) ** 2 <= EXACT
    rng = np.random.default_rng(p)
    for k in (0, 1, 7, field.longest, field.longest + 1, 2 * field.longest + 5):
        a, b = rng.integers(p - 3, p, (2, k)), rng.integers(p - 3, p, (k, 3))
        made = field.matmul(*(FieldArray(x.astype(np.float64), x.astype(np.float64)) for x in (a, b)))
        right = [[sum(int(x) * int(y) for x, y in zip(row, column)) % p for column in b.T] for row in a]
        assert made.residue.tolist() == right


@given(st.lists(residues, max_size=9))
def test_sums_and_products_of_many(values: list[int]) -> None:
    row = numbers(np.array(values, np.int64))
    assert int(run("reduce_sum", row, axis=None).residue) == sum(values) % P
    assert int(run("reduce_prod", row, axis=(0,)).residue) == reduce(mul, values, 1) % P
    sums, products = run("cumsum", row, axis=0), run("cumprod", row, axis=0)
    assert sums.residue.tolist() == [sum(values[: i + 1]) % P for i in range(len(values))]
    assert products.residue.tolist() == [reduce(mul, values[: i + 1]) % P for i in range(len(values))]


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_written_number_is_what_it_is(value: float) -> None:
    """Floats are fractions, so they have a place in the field."""
    residue, height = FIELD.constant(value)
    over, under = value.as_integer_ratio()
    assert residue * under % P == over % P
    assert height == value
    assert 0 <= residue < P


def test_numbers_that_are_none() -> None:
    assert FIELD.constant(inf)[0] == FIELD.constant(-inf)[0] == 0
    assert FIELD.constant(inf)[1] > 1e9 > -1e9 > FIELD.constant(-inf)[1]
    assert 0 <= FIELD.constant(nan)[0] < P
    assert FIELD.constant((1.5, 2.0)) == FIELD.constant((1.5, 2.0)) != FIELD.constant((2.0, 1.5))


def test_combining_is_what_collectives_need() -> None:
    parts = [randoms(seed) for seed in range(3)]
    total = ARRAYS.combine("sum", parts)
    assert same(total, ARRAYS.combine("sum", parts[::-1]))
    assert same(run("multiply", ARRAYS.combine("avg", parts), numbers(3)), total)
    assert same(
        ARRAYS.combine("max", parts), run("negative", ARRAYS.combine("min", [run("negative", p) for p in parts]))
    )
    nothing = {kind: run(f"reduce_{kind}", randoms(0, (6, 5, 0)), axis=(2,)) for kind in ("sum", "prod", "max", "min")}
    for kind, neutral in nothing.items():
        assert same(ARRAYS.combine(kind, [neutral, parts[0]]), parts[0])
        assert same(ARRAYS.combine(kind, [parts[0], neutral]), parts[0])
    for kind in ("sum", "prod"):
        assert same(ARRAYS.combine(kind, [parts[0], ARRAYS.neutral_like(kind, parts[0])]), parts[0])


# -- hashes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["exp", "sin", "gelu", "square", "log"])
def test_a_hash_is_not_linear(op: str) -> None:
    x, y = randoms(1, (1000,)), randoms(2, (1000,))
    of_sum, sum_of = run(op, FIELD.add(x, y)), FIELD.add(run(op, x), run(op, y))
    assert (of_sum.residue == sum_of.residue).mean() < 0.01
    of_product, product_of = run(op, FIELD.multiply(x, y)), FIELD.multiply(run(op, x), run(op, y))
    assert (of_product.residue == product_of.residue).mean() < 0.01
    scaled = run(op, FIELD.scale(x, 3.0))
    assert (scaled.residue == FIELD.scale(run(op, x), 3.0).residue).mean() < 0.01


def test_a_hash_depends_on_op_attributes_key_and_operands() -> None:
    x, y = randoms(1), randoms(2)
    made = [run("power", x, y), run("power", y, x), run("hypot", x, y), run("power", x, y, n=1), run("sin", x)]
    made += [prepare_field(1, P)("power", {}, [TensorType(())])([x, y])[0]]
    made += [prepare_field(0, P)("divmod", {}, [TensorType(())] * 2)([x, y])[r] for r in (0, 1)]
    for left, right in combinations(made, 2):
        assert (left.residue == right.residue).mean() < 0.1


def test_a_hash_does_not_depend_on_where_an_element_stands() -> None:
    x, y = randoms(1), randoms(2)
    whole = run("power", x, y)
    for i in range(6):
        part = run("power", x.map(lambda z, i=i: z[i]), y.map(lambda z, i=i: z[i]))  # type: ignore[misc]
        assert np.array_equal(part.residue, whole.residue[i])
    row = y.map(lambda z: z[0])
    assert np.array_equal(run("power", x, row).residue[0], whole.residue[0])


def test_hashes_spread_over_the_field() -> None:
    made = run("sin", numbers(np.arange(20000))).residue
    assert len(np.unique(made)) > 19500
    assert abs(made.mean() / P - 0.5) < 0.02
    truth = run("less", numbers(np.arange(20000)), numbers(0), of="bool").truth
    assert abs(truth.mean() - 0.5) < 0.02, "true as often as false"


def test_a_cast_is_linear_only_between_floats() -> None:
    x, y = randoms(1), randoms(2)
    for dtype, linear, rising in (("f16", True, True), ("i32", False, True), ("bool", False, False)):
        of_sum = run("cast", FIELD.add(x, y), of=dtype)
        assert same(of_sum, FIELD.add(run("cast", x, of=dtype), run("cast", y, of=dtype))) == linear
        of_max = run("cast", FIELD.larger(x, y), of=dtype)
        assert same(of_max, FIELD.larger(run("cast", x, of=dtype), run("cast", y, of=dtype))) == rising


def test_an_opaque_op_needs_everything() -> None:
    x = randoms(1)
    call = OpCall("mystery", {}, (TensorType((6, 5)),))
    (whole,) = opaque(FIELD, call, [x])  # type: ignore[misc]
    other = x.map(np.copy)
    other.residue[5, 4] = (other.residue[5, 4] + 1) % P
    (changed,) = opaque(FIELD, call, [other])  # type: ignore[misc]
    assert (whole.residue == changed.residue).mean() < 0.1
    (half,) = opaque(FIELD, OpCall("mystery", {}, (TensorType((3, 5)),)), [x.map(lambda z: z[:3])])  # type: ignore[misc]
    assert (whole.residue[:3] == half.residue).mean() < 0.1


# -- NumPy ----------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
A, B, C = (RNG.integers(-9, 10, (4, 3)) for _ in range(3))
CUBE, VECTOR, OTHER = (RNG.integers(-9, 10, shape) for shape in ((2, 4, 3), (3,), (3, 5)))
BITS = A > 0
INDEX = np.array([2, 0, 2, 1, 1])
NATIVE: list[tuple[str, list[Any], dict[str, Any]]] = [
    *((op, [A, B], {}) for op in ("add", "subtract", "multiply", "maximum", "minimum", "fmax", "fmin")),
    *((op, [A], {}) for op in ("negative", "positive", "copy")),
    ("where", [BITS, A, VECTOR], {}),
    ("clip", [A, np.array(-2), np.array(4)], {}),
    *((f"reduce_{kind}", [A], {"axis": (1,), "keepdims": False}) for kind in ("sum", "prod", "max", "min")),
    *((f"reduce_{kind}", [BITS], {"axis": (0,), "keepdims": True}) for kind in ("any", "all")),
    *((f"reduce_{kind}", [CUBE], {"axis": (0, 2), "keepdims": True}) for kind in ("sum", "prod", "max", "min")),
    ("matmul", [A, OTHER], {}),
    ("matmul", [CUBE, OTHER], {}),
    ("matmul", [CUBE, VECTOR], {}),
    ("matmul", [VECTOR, OTHER], {}),
    ("matmul", [VECTOR, VECTOR], {}),
    ("matmul", [CUBE[:1], RNG.integers(-9, 9, (2, 3, 2))], {}),
    ("dot", [CUBE, OTHER], {}),
    ("vdot", [VECTOR, VECTOR], {}),
    ("outer", [VECTOR, INDEX], {}),
    ("tensordot", [CUBE, A], {"axes": ((1, 2), (0, 1))}),
    ("tensordot", [CUBE, OTHER], {"axes": ((-1,), (0,))}),
    *(
        ("einsum", operands, {"equation": equation})
        for equation, operands in (
            ("bij,jk->bik", [CUBE, OTHER]),
            ("...j,jk->k...", [CUBE, OTHER]),
            ("ij,ij,ij->j", [A, B, C]),
            ("ij,j", [A, VECTOR]),
            ("ii->i", [OTHER[:, :3]]),
            ("ij->", [A]),
            ("i,j,k->kji", [VECTOR, VECTOR, VECTOR]),
            ("ij,i", [A[:, :1], A[:, 0]]),
        )
    ),
    ("transpose", [CUBE], {"permutation": (2, 0, 1)}),
    ("reshape", [CUBE], {"shape": (8, 3)}),
    ("broadcast_to", [VECTOR], {"shape": (2, 3)}),
    ("concatenate", [[A, B]], {"axis": 1}),
    ("slice", [CUBE], {"start": (None, 1, None), "stop": (None, 4, None), "step": (None, 2, None)}),
    ("update_slice", [A, B[1:3]], {"start": (1, None), "stop": (3, None), "step": (1, None)}),
    ("flip", [CUBE], {"axis": (0, 2)}),
    ("roll", [CUBE], {"axis": (0, 2), "shift": (1, -2)}),
    ("pad", [A], {"low": (1, 0), "high": (0, 2), "value": 7, "shape": (5, 5)}),
    ("take", [A, INDEX], {"axis": 1}),
    ("take", [CUBE, INDEX.reshape(5, 1) % 2], {"axis": 0}),
    ("take_along_axis", [A, np.abs(B) % 3], {"axis": 1}),
    ("scatter", [A, np.array([2, 0]), B[:, :2]], {"axis": 1}),
    ("cumsum", [CUBE], {"axis": 1}),
    ("cumprod", [CUBE], {"axis": 2}),
    ("tril", [CUBE], {"k": -1}),
    ("triu", [CUBE], {"k": 1}),
    ("full", [], {"value": 4, "shape": (2, 3)}),
    ("arange", [], {"start": 3, "step": 2, "shape": (5,)}),
    ("core.take", [OTHER, np.array([0, 4, 6]), np.array(3)], {"axis": 0, "size": 9}),
    ("core.arange", [np.array(4)], {"start": 3, "step": 2, "shape": (5,)}),
    ("core.triangle", [A, np.array(2), np.array(1)], {"k": 0, "lower": True}),
    ("core.triangle", [A, np.array(1), np.array(2)], {"k": 1, "lower": False}),
]


@pytest.mark.parametrize(("op", "operands", "attrs"), NATIVE, ids=[f"{op}{i}" for i, (op, _, _) in enumerate(NATIVE)])
def test_an_op_means_what_it_means_to_numpy(op: str, operands: list[Any], attrs: dict[str, Any]) -> None:
    attrs = dict(attrs)
    shape = attrs.pop("shape", None)
    dtype = "bool" if op in ("reduce_any", "reduce_all") else "i64"
    if shape is None:
        shape = _shape(op, operands, attrs, dtype)
    (expected,) = evaluate(op, attrs, operands, [TensorType(shape, dtype)])
    ours = [list(map(numbers, operand)) if isinstance(operand, list) else numbers(operand) for operand in operands]
    made = run(op, *ours, shape=expected.shape, of=dtype, **attrs)
    assert made.shape == expected.shape
    assert np.array_equal(made.residue, expected.astype(np.int64) % P)


def _shape(op: str, operands: list[Any], attrs: dict[str, Any], dtype: str) -> tuple[int, ...]:
    """NumPy's kernels mostly find their shape themselves; any type will do to ask."""
    return tuple(evaluate(op, attrs, operands, [TensorType((1,), dtype)])[0].shape)


def test_the_place_of_an_extreme_in_all_of_a_tensor() -> None:
    assert 0 <= int(run("argmax", numbers(CUBE), axis=None).residue) < CUBE.size
    assert run("argmin", numbers(CUBE), axis=None, keepdims=True).shape == (1, 1, 1)


def test_an_index_points_at_something_whatever_it_is() -> None:
    table, index = randoms(1, (7, 2)), randoms(2, (4,))
    made = run("take", table, index, axis=0)
    assert np.array_equal(made.residue, table.residue[index.residue.astype(int) % 7])
    rows = [table.map(lambda z, s=s: z[s]) for s in (slice(0, 3), slice(3, 6), slice(6, 7), slice(7, 7))]  # type: ignore[misc]
    parts = [
        run("core.take", part, index, ARRAYS.number(start), shape=(4, 2), axis=0, size=7)
        for part, start in zip(rows, (0, 3, 6, 7))
    ]
    assert same(ARRAYS.combine("sum", parts), made)


# -- the rule book --------------------------------------------------------------------------------------


def test_every_op_with_a_meaning_is_known() -> None:
    unknown = [record.name for record in records() if record.meaning and handler_of(record.name) is None]
    assert unknown == []


def promises() -> list[tuple[str, Transfer]]:
    found = []
    for record in records():
        said = record.meaning if isinstance(record.meaning, str) else ""
        if said.startswith("pointwise") and isinstance(record.rule, str):
            found += [(record.name, row) for row in RulePattern.parse(record.rule).transfers]
    return found


@pytest.mark.parametrize(("op", "row"), promises(), ids=[f"{op}: {row}" for op, row in promises()])
def test_pending_values_pass_as_the_book_promises(op: str, row: Transfer) -> None:
    """Combining and then computing is computing and then combining, else a right program would raise an alarm."""
    assert op in HANDLERS
    kinds = REDUCTIONS if "P(any)" in row.operands else ("sum",)
    for kind in kinds:
        before, after = ([_kind(state, kind) for state in states] for states in (row.operands, row.results))
        pending = [[randoms(7 * i + part) for part in range(3)] for i in range(len(before))]
        whole = [ARRAYS.combine(how, parts) if how else parts[0] for how, parts in zip(before, pending)]
        split = [
            run(op, *(parts[device] if how else parts[0] for how, parts in zip(before, pending))) for device in range(3)
        ]
        assert after[0] is not None
        assert same(ARRAYS.combine(after[0], split), run(op, *whole))


def _kind(state: str, kind: str) -> str | None:
    return None if state == "R" else kind if state == "P(any)" else state[2:-1]


def test_order_is_some_order_that_no_function_keeps() -> None:
    """What is sorted or looked for is found by its element, so rounding before it is another program."""
    x = numbers(np.array([[3, 1, 2, 9, 4, 7]]))
    rounded = run("floor", x, shape=x.shape)
    for op in ("argsort", "argmax", "argmin"):
        shape = x.shape if op == "argsort" else (1,)
        places = [run(op, array, shape=shape, axis=1, of="i64").residue for array in (x, x, rounded)]
        assert np.array_equal(places[0], places[1])
        assert op != "argsort" or not np.array_equal(places[0], places[2])
    put = run("sort", x, shape=x.shape, axis=1)
    assert sorted(put.residue[0]) == sorted(x.residue[0])
