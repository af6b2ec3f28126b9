"""Reductions: a factor that is missing on the right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from by_execution import check, text
from shardwright.errors import RuleError
from shardwright.rules import sharding_rule

X = (np.arange(48.0) * 7 % 11 / 4 - 1).reshape(4, 6, 2)


@pytest.mark.parametrize(
    ("result", "attrs", "rule"),
    [
        ((8,), {"axis": 1}, "i j -> i"),
        ((8,), {"axis": -1}, "i j -> i"),
        ((), {}, "i j -> ()"),
        ((), {"axis": (0, 1)}, "i j -> ()"),
        ((8, 1), {"axis": (1,), "keepdims": True}, "i j -> i 1"),
        ((1, 1), {"axis": None, "keepdims": True}, "i j -> 1 1"),
        ((8, 6), {"axis": ()}, "i j -> i j"),
    ],
)
def test_sum(result: Any, attrs: dict[str, Any], rule: str) -> None:
    passing = " ; P(sum) -> P(sum) ; P(avg) -> P(avg) | i=8 j=6"
    assert text("reduce_sum", [(8, 6)], [result], **attrs) == rule + passing


def test_the_kind_is_said_unless_it_is_sum() -> None:
    assert text("reduce_max", [(8, 6)], [(8,)], axis=1) == "i j -> i ; j: max ; P(max) -> P(max) | i=8 j=6"
    assert text("reduce_any", [(8, 6)], [(8,)], axis=1) == "i j -> i ; j: max | i=8 j=6"


@pytest.mark.parametrize(
    ("op", "run", "kinds"),
    [
        ("reduce_sum", np.sum, ["sum", "avg"]),
        ("reduce_max", np.max, ["max"]),
        ("reduce_min", np.min, ["min"]),
        ("reduce_prod", np.prod, ["prod"]),
        ("reduce_any", np.any, []),
        ("reduce_all", np.all, []),
    ],
)
@pytest.mark.parametrize("axis", [(1,), (0, 2), (0, 1, 2)])
def test_by_execution(op: str, run: Callable[..., Any], kinds: list[str], axis: tuple[int, ...]) -> None:
    x = X > 0 if op in ("reduce_any", "reduce_all") else X
    split, moved = check(op, lambda x: run(x, axis), [x], axis=axis)
    assert split == ["i", "j", "k"]
    assert moved == [f"P({kind}) -> P({kind})" for kind in kinds]


def test_several_at_once_with_initial_values() -> None:
    rule = sharding_rule("reduce_sum", [(8, 6), (8, 6), (), ()], [(8,), (8,)], {"axis": (1,)})
    assert str(rule) == "i j, i j, (), () -> i, i | i=8 j=6"
    assert rule.reductions == (((1, "sum"),), ((1, "sum"),))


def test_an_axis_out_of_range() -> None:
    with pytest.raises(RuleError, match="axis 2 of a tensor with 2 dims"):
        text("reduce_sum", [(8, 6)], [(8,)], axis=2)
