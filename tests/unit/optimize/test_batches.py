"""Message passing on problems with equal parts is message passing."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from shardwright.optimize import NumericProblem, solve
from shardwright.optimize.batches import Batches, Link
from shardwright.optimize.core import batches_of, solve_core, sweep
from shardwright.optimize.messages import Messages
from shardwright.optimize.narrow import narrow


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
    batches, messages = batches_of(problem), Messages(problem)
    for _ in range(6):
        assert batches.sweep() == pytest.approx(messages.sweep(), abs=1e-9)
    choice = [int(pick[0]) for pick in batches.round()]
    assert choice == messages.round().tolist()
    assert batches.evaluate(batches.round()) == problem.evaluate(choice).cost


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_one_and_the_optimum_is_found(seed: int) -> None:
    problem = random_problem(seed)
    best = solve(problem, "elimination")
    assert best.optimal
    found = sweep(batches_of(problem))
    assert found.lower_bound <= best.cost <= found.cost
    core = solve_core(problem)
    assert problem.evaluate(core.choice).cost == best.cost == core.lower_bound
    messages = solve_core(problem, "messages")
    assert messages.lower_bound <= best.cost <= problem.evaluate(messages.choice).cost


def test_batches_are_the_same_as_one_by_one() -> None:
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
    batches = Batches([np.stack([cost] * count), np.stack([other] * count), shared[None]], links)
    edges = [(i, count + i, inner) for i in range(count)] + [(count + i, i + 1, onward) for i in range(count - 1)]
    edges += [(i, 2 * count, to_all) for i in range(count)]
    problem = NumericProblem.build([*[cost] * count, *[other] * count, shared], edges)
    messages = Messages(problem)
    for _ in range(8):
        assert batches.sweep() == pytest.approx(messages.sweep(), abs=1e-9)
    choice = np.concatenate(batches.round())
    assert choice.tolist() == messages.round().tolist()
    assert batches.evaluate(batches.round()) == problem.evaluate(choice).cost


@pytest.mark.parametrize("seed", range(6))
def test_coarse_messages_are_near_and_others_start_from_them(seed: int) -> None:
    """In half the bytes; from where they are, a bound in full is one from the first sweep on."""
    problem = random_problem(seed)
    fine, best = batches_of(problem), solve(problem, "elimination").cost
    coarse = Batches(fine.costs, fine.links, coarse=True)
    assert {box.dtype for boxes in coarse.boxes for box in boxes} == {np.dtype(np.float32)}
    for _ in range(8):
        assert coarse.sweep() == pytest.approx(fine.sweep(), rel=1e-5, abs=1e-3)
    again = batches_of(problem)
    for mine, theirs in zip(again.boxes, coarse.boxes):
        for box, message in zip(mine, theirs):
            box[:] = message
    assert fine.sweep() - 1e-3 <= again.sweep() <= best + 1e-9


def test_a_preference_decides_between_equals_and_goes_again() -> None:
    """Two variables that must agree on one of three equal strategies."""
    apart = 100 * (1 - np.eye(3, dtype=np.int64))
    problem = NumericProblem.build([[0, 0, 0], [0, 0, 0]], [(0, 1, apart)])
    batches = batches_of(problem)
    batches.nudge(1e-3)
    for _ in range(4):
        batches.sweep()
    assert [int(pick[0]) for pick in batches.round()] == [0, 0]
    batches.nudge(0.0)
    assert not batches.nudged
    assert sweep(batches).cost == 0


def least_with(problem: NumericProblem, variable: int) -> list[int]:
    """For every strategy of a variable what the best choice with it costs, by trying all choices."""
    found = [1 << 60] * len(problem.costs[variable])
    for choice in product(*(range(len(row)) for row in problem.costs)):
        found[choice[variable]] = min(found[choice[variable]], problem.evaluate(choice).cost)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_slack_is_what_a_strategy_costs_beyond_the_bound_at_least(seed: int) -> None:
    problem = random_problem(seed, nodes=6)
    batches = batches_of(problem)
    sharp = False
    for _ in range(5):
        before = batches.sweep()
        slack, _ = batches.slack()
        for variable, row in enumerate(slack):
            for beyond, cost in zip(row.tolist(), least_with(problem, variable)):
                assert before + beyond <= cost + 1e-6
                sharp = sharp or before + beyond > cost - 1e-6
    assert sharp, "a slack of nothing would be right too"


@pytest.mark.parametrize("seed", range(20))
def test_a_narrow_problem_has_all_choices_within_the_room(seed: int) -> None:
    problem = random_problem(seed, nodes=6)
    batches = batches_of(problem)
    for _ in range(4):
        bound = batches.sweep()
    slack, _ = batches.slack()
    room = 25.0
    few = narrow(batches, slack, room)
    for choice in product(*(range(len(row)) for row in problem.costs)):
        cost = problem.evaluate(choice).cost
        inside = all(pick in kept for pick, kept in zip(choice, few.kept))
        assert inside or cost > bound + room - 1e-6
        if inside:
            picks = [np.flatnonzero(kept == pick) for pick, kept, now in zip(choice, few.kept, few.place) if now >= 0]
            assert few.batches.evaluate(picks) + few.offset == cost
            assert [int(row[0]) for row in few.wide(picks)] == list(choice)


def test_members_of_a_batch_keep_what_any_of_them_needs() -> None:
    costs = np.array([[0, 50, 90], [50, 0, 90]])
    few = narrow(batches := Batches([costs], []), batches.slack()[0], 10.0)
    assert few.kept[0].tolist() == [0, 1]
    assert few.batches.costs[0].tolist() == [[0, 50], [50, 0]]
