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


@pytest.mark.parametrize("each", [3e-13, 0.0])
def test_the_rate_of_scores_is_found_again(each: float) -> None:
    draw = random.Random(1)
    samples, scores = [], []
    for _ in range(60):
        work, moved = 10 ** draw.uniform(-7, -3), 10 ** draw.uniform(-7, -3)
        scores.append(10 ** draw.uniform(5, 10))
        samples.append((work, moved, 5e-6 + 0.8 * work + 0.7 * moved + each * scores[-1]))
    found = fit_roofline(samples, scores=scores, units=132)
    assert found.launch == pytest.approx(5e-6, abs=1e-8)
    assert (found.flops_percent, found.bytes_percent, found.units) == (80, 70, 132)
    if each:
        assert found.scores == pytest.approx(1 / each, rel=0.01)
    else:
        assert found.scores == 0 or found.scores > 10**15


def test_without_arithmetic_there_is_no_constant_for_it() -> None:
    found = fit_roofline([(0.0, i * 1e-5, 1e-6 + i * 1.1e-5) for i in range(1, 20)])
    assert (found.flops_percent, found.bytes_percent, found.scores) == (0, 110, 0)


def test_every_sample_needs_its_scores() -> None:
    with pytest.raises(ValueError, match="1 numbers of scores for 2 samples"):
        fit_roofline([(1e-6, 0.0, 1e-6), (2e-6, 0.0, 2e-6)], scores=[1.0])
