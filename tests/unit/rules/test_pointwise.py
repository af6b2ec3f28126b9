"""Pointwise ops: one rule for all, and what each lets pass of pending reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from by_execution import check, text
from shardwright.rules import lookup, records
from shardwright.spec.op_record import Flow

OURS: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "core.constraint": np.positive,
}
WITH_TRANSFERS = [record.name for record in records() if record.meaning == "pointwise" and record.transfers]
LEFT, RIGHT = np.arange(1.0, 9).reshape(4, 2), np.array([[0.5, -2.0]] * 4)
BELOW, ABOVE = np.full((4, 2), -1.0), np.full((4, 2), 1.0)
TRUTH = np.array([[True, False]] * 4)
OPERANDS = {"where": [TRUTH, LEFT, RIGHT], "clip": [LEFT, BELOW, ABOVE]}


@pytest.mark.parametrize(
    ("op", "operands", "result", "rule"),
    [
        ("exp", [(8, 4)], (8, 4), "b0 b1 -> b0 b1"),
        ("exp", [()], (), "() -> ()"),
        ("add", [(8, 4), (4,)], (8, 4), "b0 b1, b1 -> b0 b1"),
        ("add", [(8, 1), (1, 4)], (8, 4), "b0 1, 1 b1 -> b0 b1"),
        ("add", [(8, 4), ()], (8, 4), "b0 b1, () -> b0 b1"),
        ("where", [(4,), (8, 4), (8, 1)], (8, 4), "b1, b0 b1, b0 1 -> b0 b1"),
    ],
)
def test_broadcasting(op: str, operands: Any, result: Any, rule: str) -> None:
    assert text(op, operands, [result]).split(" | ")[0].split(" ; ")[0] == rule


@pytest.mark.parametrize("op", WITH_TRANSFERS)
def test_transfers_by_execution(op: str) -> None:
    arity = lookup(op).rule.split("->")[0].count("...")  # type: ignore[union-attr]
    operands = OPERANDS.get(op, [LEFT, RIGHT][:arity])
    split, moved = check(op, OURS.get(op) or getattr(np, op), operands)
    assert split == ["b0", "b1"]
    assert moved


def test_transfers_are_there() -> None:
    assert len(WITH_TRANSFERS) > 25
    assert "P(max) -> P(min)" in text("negative", [(4,)], [(4,)])
    assert "R, P(max) -> P(min)" in text("subtract", [(4,), (4,)], [(4,)])
    assert "P(sum), R" not in text("add", [(4,), (4,)], [(4,)])
    assert "P(" not in text("sqrt", [(4,)], [(4,)])
    assert "P(" not in text("cast", [(4,)], [(4,)])


@pytest.mark.parametrize(
    ("op", "operands", "run"),
    [("modf", [RIGHT], np.modf), ("frexp", [LEFT], np.frexp), ("divmod", [LEFT, RIGHT], np.divmod)],
)
def test_two_results(op: str, operands: list[Any], run: Callable[..., Any]) -> None:
    left = ", ".join(["b0 b1"] * len(operands))
    assert text(op, [(4, 2)] * len(operands), [(4, 2)] * 2) == f"{left} -> b0 b1, b0 b1 | b0=4 b1=2"
    assert check(op, run, operands) == (["b0", "b1"], [])


def test_two_results_with_broadcasting() -> None:
    assert text("divmod", [(4, 2), (2,)], [(4, 2)] * 2) == "b0 b1, b1 -> b0 b1, b0 b1 | b0=4 b1=2"


def test_they_flow_as_pointwise_ops() -> None:
    pointwise = [record for record in records() if record.meaning == "pointwise"]
    assert {record.flow for record in pointwise} == {Flow.POINTWISE}
    assert {record.cost for record in pointwise} == {"pointwise"}
