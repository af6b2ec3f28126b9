"""Contractions: products summed over shared factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from by_execution import check, text
from shardwright.errors import RuleError
from shardwright.rules import sharding_rule

A = np.arange(24.0).reshape(2, 4, 3) % 5
B = np.arange(36.0).reshape(2, 3, 6) % 7


def rule_of(op: str, operands: Any, result: Any, **attrs: Any) -> str:
    return text(op, operands, [result], **attrs).split(" | ")[0].split(" ; ")[0]


@pytest.mark.parametrize(
    ("operands", "result", "rule"),
    [
        ([(8, 16), (16, 4)], (8, 4), "m k, k n -> m n"),
        ([(16,), (16,)], (), "k, k -> ()"),
        ([(16,), (16, 4)], (4,), "k, k n -> n"),
        ([(8, 16), (16,)], (8,), "m k, k -> m"),
        ([(2, 8, 16), (16,)], (2, 8), "b0 m k, k -> b0 m"),
        ([(16,), (2, 16, 4)], (2, 4), "k, b0 k n -> b0 n"),
        ([(2, 8, 16), (16, 4)], (2, 8, 4), "b0 m k, k n -> b0 m n"),
        ([(2, 1, 8, 16), (3, 16, 4)], (2, 3, 8, 4), "b0 1 m k, b1 k n -> b0 b1 m n"),
    ],
)
def test_matmul(operands: Any, result: Any, rule: str) -> None:
    assert rule_of("matmul", operands, result) == rule


@pytest.mark.parametrize(
    ("operands", "result", "rule"),
    [
        ([(16,), (16,)], (), "k, k -> ()"),
        ([(8, 16), (16, 4)], (8, 4), "a0 k, k b0 -> a0 b0"),
        ([(2, 8, 16), (3, 16, 4)], (2, 8, 3, 4), "a0 a1 k, b0 k b1 -> a0 a1 b0 b1"),
        ([(), (3, 4)], (3, 4), "(), b0 b1 -> b0 b1"),
    ],
)
def test_dot(operands: Any, result: Any, rule: str) -> None:
    assert rule_of("dot", operands, result) == rule


def test_dot_general() -> None:
    attrs = {"lhs_batch": (0,), "rhs_batch": (2,), "lhs_contracting": (2,), "rhs_contracting": (0,)}
    assert rule_of("dot_general", [(2, 8, 16), (16, 4, 2)], (2, 8, 4), **attrs) == "b0 m0 k0, k0 n0 b0 -> b0 m0 n0"
    with pytest.raises(RuleError, match="as many batch or contracting dims"):
        rule_of("dot_general", [(2, 8), (8, 2)], (2, 2), lhs_contracting=(1,), rhs_contracting=())


def test_tensordot() -> None:
    assert rule_of("tensordot", [(2, 3, 4), (4, 3, 5)], (2, 5), axes=((1, 2), (1, 0))) == "m0 k0 k1, k1 k0 n0 -> m0 n0"


@pytest.mark.parametrize(
    ("equation", "operands", "result", "rule"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], (2, 4), "i j, j k -> i k"),
        ("ij,jk", [(2, 3), (3, 4)], (2, 4), "i j, j k -> i k"),
        ("ba", [(2, 3)], (3, 2), "b a -> a b"),
        ("...ij,...jk", [(5, 2, 3), (5, 3, 4)], (5, 2, 4), "b0 i j, b0 j k -> b0 i k"),
        ("i, j , ij ->", [(2,), (3,), (2, 3)], (), "i, j, i j -> ()"),
        ("Ii->iI", [(2, 3)], (3, 2), "i_ i -> i i_"),
    ],
)
def test_einsum(equation: str, operands: Any, result: Any, rule: str) -> None:
    assert rule_of("einsum", operands, result, equation=equation) == rule


def test_the_dims_of_a_diagonal_are_whole() -> None:
    for equation, operand, result in (("ii->i", (3, 3), (3,)), ("iij->j", (3, 3, 2), (2,))):
        rule = sharding_rule("einsum", [operand], [result], {"equation": equation})
        assert {factor.name for factor in rule.factors if factor.whole} == {"i", "i1"}
        assert not rule.reduced


def test_outer_and_vdot() -> None:
    assert rule_of("outer", [(3,), (4,)], (3, 4)) == "m, n -> m n"
    assert rule_of("vdot", [(3,), (3,)], ()) == "k, k -> ()"


def test_by_execution() -> None:
    bilinear = ["P(sum), R -> P(sum)", "R, P(sum) -> P(sum)"]
    assert check("matmul", np.matmul, [A, B]) == (["b0", "m", "n"], bilinear)
    assert check("matmul", np.matmul, [A, B], ways=3) == (["k", "n"], bilinear)
    products = [*bilinear, "P(prod), P(prod) -> P(prod)"]
    assert check("outer", np.outer, [A[0, :, 0], B[0, 0]]) == (["m", "n"], products)
    split, moved = check("einsum", lambda a, b: np.einsum("bmk,bkn->mn", a, b), [A, B], equation="bmk,bkn->mn")
    assert (split, moved) == (["b", "m", "n"], bilinear)


def test_two_sizes_are_an_error_that_names_both() -> None:
    with pytest.raises(RuleError, match=r"factor 'k' has two sizes: 16 \(operand 0 dim 1\) and 15 \(operand 1 dim 0\)"):
        rule_of("matmul", [(8, 16), (15, 4)], (8, 4))
