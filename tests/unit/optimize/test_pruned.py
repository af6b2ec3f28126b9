"""Strategies that others beat: looking at likely ones first leaves out what comparing all pairs does."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.optimize.compact import FEW, _Once
from shardwright.optimize.problem import Ints


def needed(cost: Ints, tables: list[Ints], each: bool) -> list[int]:
    """Strategies that no other one beats: of two that beat each other the first."""

    def beats(a: int, b: int) -> bool:
        parts = [cost[b] - cost[a], *((table[b] - table[a]).min() for table in tables)]
        return all(part >= 0 for part in parts) if each else sum(parts) >= 0

    every = range(cost.size)
    return [b for b in every if not any(a != b and beats(a, b) and (a < b or not beats(b, a)) for a in every)]


def alike(rng: np.random.Generator, count: int, columns: tuple[int, ...]) -> tuple[Ints, list[Ints]]:
    """Strategies of which many are others that cost a little more somewhere, or nothing more."""
    few = max(2, count // 5)
    of = np.append(np.arange(few), rng.integers(0, few, count - few))
    more = rng.integers(0, 3, count) * (of != np.arange(count))
    cost = rng.integers(0, 60, few)[of] + more * rng.integers(0, 4, count)
    tables = []
    for width in columns:
        table = rng.integers(0, 25, (few, width))[of]
        tables.append(table + more[:, None] * (rng.random((count, width)) < 0.2) * rng.integers(-1, 6, (count, width)))
    order = rng.permutation(count)
    return cost[order], [np.ascontiguousarray(table[order]) for table in tables]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("count", [FEW - 1, FEW + 1, 40, 90])
def test_what_is_left(each: bool, count: int) -> None:
    left = 0
    for seed in range(25):
        rng = np.random.default_rng([seed, count])
        cost, tables = alike(rng, count, ((3,), (30, 2), (17, 40, 1))[seed % 3])
        found = _Once().useful(cost, tables, each)
        kept = list(range(count)) if found is None else found.tolist()
        assert kept == needed(cost, tables, each), seed
        left += len(kept)
    assert 25 < left < 25 * count * 0.9


def test_all_equal_leaves_the_first() -> None:
    found = _Once().useful(np.full(50, 7), [np.ones((50, 9), np.int64)], False)
    assert found is not None
    assert found.tolist() == [0]


def test_equal_arrays_are_one() -> None:
    """Also where the numbers that are looked at first, and their sum, are alike."""
    once, big = _Once(), np.zeros((20, 20), np.int64)
    other = big.copy()
    other[3, 4], other[3, 5] = 1, -1
    assert once.array(big) is once.array(big.copy()) is big
    assert once.array(other) is other
    assert once.array(other.copy()) is other
    assert once.array(big.reshape(40, 10)) is not big
