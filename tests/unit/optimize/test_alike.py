"""Variables that are alike are swept at once, and say what they say one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from shardwright.optimize import NumericProblem, solve
from shardwright.optimize.alike import alike, split
from shardwright.optimize.core import sweep


def towers(seed: int, layers: int = 5, towers: int = 2) -> NumericProblem:
    """Equal layers on each other, side by side: in each layer a few variables, some linked to the next layer's."""
    rng = random.Random(seed)
    sizes = [rng.randint(2, 4) for _ in range(4)]
    pairs = [(0, 1, 0), (1, 2, 0), (2, 3, 0), (0, 3, 0), (3, 0, 1), (1, 1, 1)]
    tables = [[[rng.randint(0, 40) for _ in range(sizes[b])] for _ in range(sizes[a])] for a, b, _ in pairs]
    costs, edges = [], []
    for tower in range(towers):
        first = tower * layers * 4
        for layer in range(layers):
            costs += [[rng.randint(0, 40) for _ in range(size)] for size in sizes]
            for (a, b, up), table in zip(pairs, tables):
                if layer + up < layers:
                    edges.append((first + 4 * layer + a, first + 4 * (layer + up) + b, table))
    return NumericProblem.build(costs, edges)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_found_and_the_bound_are_those_of_the_problem(seed: int) -> None:
    problem = towers(seed)
    parts = alike(problem)
    assert len(parts.batches.batches) < problem.nodes / 2
    assert parts.batches.evaluate(parts.batches.round()) == problem.evaluate(parts.choice(parts.batches.round())).cost
    found, best = sweep(parts.batches), solve(problem, "elimination")
    assert best.optimal
    assert found.lower_bound <= best.cost <= found.cost == problem.evaluate(parts.choice(found.picks)).cost


def test_neighbours_are_in_different_batches() -> None:
    """A ring of equal variables: no two that are linked may be visited at once."""
    table = np.arange(4).reshape(2, 2)
    problem = NumericProblem.build([[0, 1]] * 6, [(i, i + 1, table) for i in range(5)])
    parts = alike(problem)
    for edge in problem.edges:
        assert parts.batch[edge.first] != parts.batch[edge.second]


def test_split_is_greedy() -> None:
    first, second = np.array([0, 1, 1, 2, 0]), np.array([0, 1, 2, 3, 4])
    assert [first[part].tolist() for part in split(first, second, True, True)] == [[0, 1, 2], [1, 0]]
    assert [first[part].tolist() for part in split(first, second, False, True)] == [[0, 1, 1, 2, 0]]
    assert [second[part].tolist() for part in split(second, first, False, True)] == [[0, 1, 3], [2, 4]]
