"""Message passing on problems with equal parts is message passing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from shardwright.solve.numeric import NumericProblem, solve
from shardwright.solve.numeric.lots import Link, Lots
from shardwright.solve.numeric.messages import Messages
from shardwright.solve.window import lots_of, solve_core, sweep


def random_problem(seed: int, nodes: int = 9) -> NumericProblem:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 4) for _ in range(nodes)]
    costs = [[rng.randint(0, 40) for _ in range(size)] for size in sizes]
    edges = [
        (i, j, [[rng.randint(0, 40) for _ in range(sizes[j])] for _ in range(sizes[i])])
        for i in range(nodes)
        for j in range(i)
        if rng.random() < 0.35
    ]
    return NumericProblem.build(costs, edges)


@pytest.mark.parametrize("seed", range(20))
def test_every_variable_for_itself_is_the_same_as_ever(seed: int) -> None:
    problem = random_problem(seed)
    lots, messages = lots_of(problem), Messages(problem)
    for _ in range(6):
        assert lots.sweep() == pytest.approx(messages.sweep(), abs=1e-9)
    choice = [int(pick[0]) for pick in lots.round()]
    assert choice == messages.round().tolist()
    assert lots.evaluate(lots.round()) == problem.evaluate(choice).cost


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_one_and_the_optimum_is_found(seed: int) -> None:
    problem = random_problem(seed)
    best = solve(problem, "elimination")
    assert best.optimal
    found = sweep(lots_of(problem))
    assert found.lower_bound <= best.cost <= found.cost
    core = solve_core(problem)
    assert problem.evaluate(core.choice).cost == best.cost == core.lower_bound
    messages = solve_core(problem, "messages")
    assert messages.lower_bound <= best.cost <= problem.evaluate(messages.choice).cost


def test_lots_are_the_same_as_one_by_one() -> None:
    """A chain of five equal links, with one variable that all of them read."""
    rng = np.random.default_rng(1)
    count, size, wide = 5, 4, 3
    cost, other, shared = (rng.integers(0, 30, n) for n in (size, wide, 2))
    inner, onward, to_all = (rng.integers(0, 30, shape) for shape in ((size, wide), (wide, size), (size, 2)))
    every = np.arange(count)
    links = [
        Link(0, 1, every, every, inner),
        Link(0, 1, every[1:], every[:-1], np.ascontiguousarray(onward.T)),
        Link(0, 2, every, np.zeros(count, np.int64), to_all),
    ]
    lots = Lots([np.stack([cost] * count), np.stack([other] * count), shared[None]], links)
    edges = [(i, count + i, inner) for i in range(count)] + [(count + i, i + 1, onward) for i in range(count - 1)]
    edges += [(i, 2 * count, to_all) for i in range(count)]
    problem = NumericProblem.build([*[cost] * count, *[other] * count, shared], edges)
    messages = Messages(problem)
    for _ in range(8):
        assert lots.sweep() == pytest.approx(messages.sweep(), abs=1e-9)
    choice = np.concatenate(lots.round())
    assert choice.tolist() == messages.round().tolist()
    assert lots.evaluate(lots.round()) == problem.evaluate(choice).cost


def test_a_preference_decides_between_equals_and_goes_again() -> None:
    """Two variables that must agree on one of three equal strategies."""
    apart = 100 * (1 - np.eye(3, dtype=np.int64))
    problem = NumericProblem.build([[0, 0, 0], [0, 0, 0]], [(0, 1, apart)])
    lots = lots_of(problem)
    lots.nudge(1e-3)
    for _ in range(4):
        lots.sweep()
    assert [int(pick[0]) for pick in lots.round()] == [0, 0]
    lots.nudge(0.0)
    assert not lots.nudged
    assert sweep(lots).cost == 0
