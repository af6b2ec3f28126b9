"""Values made from attributes, and triangles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from by_execution import check, text


@pytest.mark.parametrize(
    ("op", "shape", "rule"),
    [
        ("full", (4, 6), "-> i j ; i: new ; j: new | i=4 j=6"),
        ("full", (), "-> ()"),
        ("arange", (6,), "-> i ; i: new form(arange) | i=6"),
        ("core.constant", (4, 6), "-> i j ; i: new whole ; j: new whole | i=4 j=6"),
        ("core.constant", (), "-> ()"),
    ],
)
def test_made(op: str, shape: Any, rule: str) -> None:
    assert text(op, [], [shape]) == rule


@pytest.mark.parametrize("op", ["tril", "triu"])
def test_triangles(op: str) -> None:
    rule = text(op, [(2, 4, 6)], [(2, 4, 6)], k=1)
    form = {"tril": "lower_triangle", "triu": "upper_triangle"}[op]
    assert rule == f"b0 r c -> b0 r c ; r: form({form}) ; c: form({form}) ; P(any) -> P(any) | b0=2 r=4 c=6"
    split, moved = check(op, lambda x: getattr(np, op)(x, 1), [np.arange(48.0).reshape(2, 4, 6)], k=1)
    assert split == ["b0"]
    assert len(moved) == 5
