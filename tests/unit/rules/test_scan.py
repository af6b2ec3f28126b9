"""Cumulative ops, sorting, the place of an extreme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from by_execution import check, text
from shardwright.errors import RuleError

X = (np.arange(48.0) * 7 % 11).reshape(4, 6, 2)


def test_cumulative() -> None:
    rule = text("cumsum", [(4, 6)], [(4, 6)], axis=1)
    assert rule == "i j -> i j ; j: whole ; P(sum) -> P(sum) ; P(avg) -> P(avg) | i=4 j=6"
    assert text("cumprod", [(4,)], [(4,)], axis=0) == "i -> i ; i: whole ; P(prod) -> P(prod) | i=4"


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    ("op", "run", "kinds"),
    [
        ("cumsum", np.cumsum, ["sum", "avg"]),
        ("cumprod", np.cumprod, ["prod"]),
        ("sort", np.sort, []),
        ("argsort", np.argsort, []),
        ("argmax", np.argmax, []),
        ("argmin", np.argmin, []),
    ],
)
def test_by_execution(op: str, run: Callable[..., Any], kinds: list[str], axis: int) -> None:
    split, moved = check(op, lambda x: run(x, axis), [X], axis=axis)
    assert split == [name for d, name in enumerate("ijk") if d != axis]
    assert moved == [f"P({kind}) -> P({kind})" for kind in kinds]


def test_sort() -> None:
    assert text("sort", [(4, 6)], [(4, 6)], axis=1) == "i j -> i j ; j: whole | i=4 j=6"
    assert text("argsort", [(4, 6)], [(4, 6)], axis=0) == "i j -> i j ; i: whole | i=4 j=6"


def test_a_sort_of_all_there_is_passes_nothing_on() -> None:
    assert text("sort", [(6,)], [(6,)], axis=0) == "i -> i ; i: whole blocked | i=6"
    assert text("sort", [(1, 6)], [(1, 6)], axis=1) == "i j -> i j ; j: whole blocked | i=1 j=6"


def test_sorting_several_at_once() -> None:
    shapes = [(4, 6)] * 2
    assert text("sort", shapes, shapes, axis=1) == "i j, i j -> i j, i j ; j: whole | i=4 j=6"


def test_top_k_is_as_large_as_its_operand() -> None:
    assert text("top_k", [(4, 6)], [(4, 2), (4, 2)]) == "i j -> i j, i j ; j: whole blocked | i=4 j=6"


@pytest.mark.parametrize(
    ("result", "attrs", "rule"),
    [
        ((4,), {"axis": 1, "keepdims": False}, "i j -> i ; j: whole"),
        ((4, 1), {"axis": 1, "keepdims": True}, "i j -> i 1 ; j: whole"),
        ((), {"axis": None}, "i j -> () ; i: whole ; j: whole"),
        ((1, 1), {"axis": None, "keepdims": True}, "i j -> 1 1 ; i: whole ; j: whole"),
    ],
)
def test_argmax(result: Any, attrs: dict[str, Any], rule: str) -> None:
    assert text("argmax", [(4, 6)], [result], **attrs) == f"{rule} | i=4 j=6"
    assert text("argmin", [(4, 6)], [result], **attrs) == f"{rule} | i=4 j=6"


@pytest.mark.parametrize("op", ["cumsum", "sort", "argmax"])
def test_an_axis_out_of_range(op: str) -> None:
    with pytest.raises(RuleError, match="axis 2 of a tensor with 2 dims"):
        text(op, [(4, 6)], [(4, 6)], axis=2)
