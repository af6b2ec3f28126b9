"""Plans and bounds of small graphs against all plans that there are."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from all_plans import Held, held
from shardwright import DeviceMesh
from shardwright.cost import H100
from shardwright.errors import BoundError
from shardwright.solve.recipes import RECIPES
from small_graphs import random_graph

MESHES = ("d=2", "d=4", "x=2, y=2")
NEAR = 0.03


def checked(seed: int, most: int) -> Held | None:
    """A graph of up to five nodes whose plan is within its gap of the best, and whose bound is not above that."""
    found = held(random_graph(seed, 1 + seed % 5), DeviceMesh(MESHES[seed % 3]), H100, most)
    if found is not None:
        assert found.plan.lower_bound <= found.best <= found.plan.cost.objective, seed
        assert found.best >= (1 - found.plan.gap) * found.plan.cost.objective - 1, seed
    return found


@pytest.mark.parametrize("seed", [7, 102, 112])
def test_the_best_of_all_plans(seed: int) -> None:
    """Communication that shows between neighbours alone (102), and state that nobody reads (112)."""
    found = checked(seed, 2_000)
    assert found is not None
    assert found.above <= 0.005


@pytest.mark.long
def test_the_best_of_all_plans_of_many_graphs() -> None:
    found = [one for seed in range(420) if (one := checked(seed, 20_000)) is not None]
    assert len(found) >= 200
    assert sum(one.above <= NEAR for one in found) >= 0.95 * len(found)


def test_pending_maxima_pass_through_like_sums() -> None:
    """Four kibibytes would be sent if the first maximum were finished before the second one is taken."""
    shape = sw.ShapeDtype((4096, 4096), np.float32)
    plan = sw.plan(lambda a: -a.max(axis=0).max(), shape, mesh="x=8", in_specs=("[x, _]",), hardware="virtual")
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_reduce", 7)]
    assert plan.gap == 0.0
    a = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32)
    assert plan(a) == -a.max()


@pytest.mark.parametrize("cap", [None, "1 GiB"])
def test_plans_of_more_than_a_thousand_seconds(cap: str | None) -> None:
    square = sw.ShapeDtype((2**19, 2**19), np.float32)
    constraints = [] if cap is None else [sw.cap_gather(cap)]
    plan = sw.plan(lambda a, b: a @ b, square, square, mesh="d=4", constraints=constraints, memory="9000 TiB")
    assert plan.cost.objective > 10**15
    assert plan.gap < 0.01
    assert plan.solver not in RECIPES


def test_a_bound_is_never_lowered() -> None:
    assert BoundError.unless(3, 3) == 3
    with pytest.raises(BoundError, match="less than the bound of 4 ps"):
        BoundError.unless(4, 3)
