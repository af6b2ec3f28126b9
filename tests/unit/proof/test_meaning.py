"""Meanings that records carry: arithmetic over a field, and what the proof finds with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from planned import plan

from shardwright.errors import VerifyError
from shardwright.ir.graph import Graph, GraphBuilder
from shardwright.proof import check_identity
from shardwright.proof.fields.meaning import FieldArithmetic
from shardwright.proof.fields.modular import PRIMES, Field
from shardwright.rules.registry import forget, rule

FIELD = Field(PRIMES[0], 7)
A = FieldArithmetic(FIELD)


@pytest.fixture(autouse=True)
def book() -> Iterator[None]:
    yield
    forget("test.meant")


def meant(text: str, meaning: Callable[..., Any], shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> Graph:
    """A graph of one op with this rule and meaning, and a function after it that is linear in nothing."""
    rule("test.meant", text, meaning=meaning, cost="matmul")  # worth splitting
    b = GraphBuilder("meant")
    inputs = [b.input(shape, name=name) for shape, name in zip(shapes, "xyz")]
    return b.finish([b.op("sin", [b.op("test.meant", inputs, [result])], [result])])


LINEAR: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda a, x, y: a.add(x, a.multiply(y, 3)),
    "subtract": lambda a, x, y: a.subtract(a.negative(x), y),
    "matmul": lambda a, x, y: a.matmul(x, a.transpose(y)),
    "einsum": lambda a, x, y: a.einsum("ij,kj->ki", x, y),
    "sum": lambda a, x, y: a.sum(a.multiply(x, y), axis=1, keepdims=True),
    "prod": lambda a, x, y: a.prod(a.add(x, y), axis=0),
    "cumsum": lambda a, x, y: a.cumsum(x, axis=1),
    "moves": lambda a, x, y: a.concatenate([a.flip(x, 0), a.roll(y, 2, 1)], axis=1),
    "views": lambda a, x, y: a.broadcast_to(a.reshape(x, (3, 4, 1)), (3, 4, 2)),
    "cut": lambda a, x, y: a.add(x[:, 1:3], a.full((3, 2), 5)),
    "take": lambda a, x, y: a.take(x, 2, axis=1),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_whole_numbers_are_computed_exactly(name: str) -> None:
    """Of small whole numbers a field and NumPy say the same."""
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 6, (3, 4)), rng.integers(0, 6, (3, 4))
    found = LINEAR[name](A, FIELD.counting(x), FIELD.counting(y))
    expected = LINEAR[name](np, x, y)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.residue, expected % FIELD.p)


def test_order_goes_by_height() -> None:
    x, y = FIELD.counting(np.array([1, 5, 3])), FIELD.counting(np.array([2, 2, 2]))
    assert A.maximum(x, y).residue.tolist() == [2, 5, 3]
    assert A.minimum(x, y).residue.tolist() == [1, 2, 2]
    assert (int(A.max(x).residue), int(A.min(x).residue)) == (5, 1)
    assert A.where(x, 7, 8).residue.tolist() == [7, 7, 7]  # odd is true
    assert (np.diff(np.sort(A.rising("mine", x).height)) > 0).all()


def test_functions_are_told_apart_by_their_names() -> None:
    x = FIELD.counting(np.arange(12).reshape(3, 4))
    same = [A.apply("mine", x), A.apply("mine", x)]
    np.testing.assert_array_equal(same[0].residue, same[1].residue)
    assert (A.apply("yours", x).residue != same[0].residue).any()
    np.testing.assert_array_equal(A.apply(np.tanh, x).residue, A.apply("tanh", x).residue)


def test_a_function_along_a_dim_reads_all_of_it() -> None:
    x = np.arange(12).reshape(3, 4)
    changed = x.copy()
    changed[1, 2] += 1
    before, after = (A.along("mine", FIELD.counting(v), axis=1).residue for v in (x, changed))
    assert (before != after).any(axis=1).tolist() == [False, True, False]
    assert (before != after)[1].all()
    moved = A.along("mine", FIELD.counting(x.T), axis=0)
    np.testing.assert_array_equal(moved.residue.T, before)
    assert A.along("mine", FIELD.counting(x[:, :0]), axis=1).shape == (3, 0)


def test_a_program_is_proven_by_a_carried_meaning() -> None:
    graph = meant(
        "i k, k j -> i j", lambda a, x, y: a.apply("mine", a.matmul(x, y)), [(6, 4), (4, 10)], (6, 10)
    )  # fmt: skip
    check_identity(graph, plan(graph, "d=2, e=3", {"x": "[d, _]", "y": "[_, e]"}))


def test_a_rule_that_claims_too_much_is_found_out() -> None:
    """What is a function along a dim cannot be computed in parts of that dim."""
    graph = meant("i j -> i j", lambda a, x: a.along("mine", x, axis=1), [(6, 8)], (6, 8))
    check_identity(graph, plan(graph, "d=2", {"x": "[d, _]"}))
    with pytest.raises(VerifyError, match="differs"):
        check_identity(graph, plan(graph, "d=2", {"x": "[_, d]"}))


def test_a_sum_that_is_none_is_found_out() -> None:
    graph = meant("i k, k j -> i j", lambda a, x, y: a.apply("mine", a.matmul(x, y)), [(6, 40), (40, 3)], (6, 3))
    with pytest.raises(VerifyError, match="differs"):
        check_identity(graph, plan(graph, "d=2", {"x": "[_, d]", "y": "[d, _]"}))
