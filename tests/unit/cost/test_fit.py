"""From measurements to figures."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.fit import fit_roofline, growing


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_times_grow(times: list[float]) -> None:
    found = growing(times)
    assert len(found) == len(times)
    assert all(a < b for a, b in pairwise(found))


def test_what_grows_is_kept() -> None:
    assert growing([1.0, 2.0, 5.0]) == [1.0, 2.0, 5.0]


def test_an_outlier_does_not_move_its_neighbours() -> None:
    found = growing([5.0, 5.1, 50.0, 5.2, 5.3, 6.0])
    assert max(found) == 6.0
    assert found[:2] == [5.0, 5.1]


@pytest.mark.parametrize("true", [(3e-6, 0.9, 1.1), (0.0, 1.5, 0.0), (1e-5, 0.0, 2.0)])
def test_constants_are_found_again(true: tuple[float, float, float]) -> None:
    draw = random.Random(0)
    samples = []
    for _ in range(60):
        work, moved = 10 ** draw.uniform(-7, -3), 10 ** draw.uniform(-7, -3)
        samples.append((work, moved, max(1e-9, true[0] + true[1] * work + true[2] * moved)))
    found = fit_roofline(samples)
    assert found.launch == pytest.approx(true[0], abs=1e-8)
    assert (found.flops_percent, found.bytes_percent) == (round(100 * true[1]), round(100 * true[2]))


def test_some_wild_measurements_do_not_matter() -> None:
    samples = [(i * 1e-5, 0.0, 2e-6 + i * 1e-5) for i in range(1, 40)]
    samples[7] = (samples[7][0], 0.0, 50 * samples[7][2])
    assert fit_roofline(samples).flops_percent == pytest.approx(100, abs=1)
