"""Dims that do not divide are split when told: planned, proven and run."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import GraphError
from shardwright.plans import Request


def two_layers(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(x @ w, 0) @ v


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(np.float64) for shape in shapes]


@pytest.mark.parametrize("mesh", ["d=2", "d=4", "x=2, y=3"])
def test_planned_and_run(mesh: str) -> None:
    args = arrays((1021, 509), (509, 1531), (1531, 257))  # primes
    even = sw.plan(two_layers, *args, mesh=mesh)
    assert not even.collectives
    assert set(even.specs.values()) == {"[_, _]"}
    uneven = sw.plan(two_layers, *args, mesh=mesh, uneven=True)
    assert uneven.cost.objective < even.cost.objective
    assert uneven.memory < even.memory
    np.testing.assert_array_equal(uneven(*args), two_layers(*args))


def test_it_is_said_in_the_plan() -> None:
    args = arrays((31, 17), (17, 13), (13, 7))
    made = sw.plan(two_layers, *args, mesh="d=4", uneven=True)
    assert str(made.data.asked.written[-1]) == "uneven=True"
    with pytest.raises(GraphError, match="uneven of a plan says"):
        Request("uneven", "no")


def test_what_divides_is_split_evenly_all_the_same() -> None:
    args = arrays((1024, 512), (512, 1536), (1536, 256))
    costs = {sw.plan(two_layers, *args, mesh="d=4", uneven=uneven).cost.objective for uneven in (False, True)}
    assert len(costs) == 1
