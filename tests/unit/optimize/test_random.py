"""Random small problems: reductions, messages and the integer program against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from random_problems import brute, every, generate
from shardwright.errors import PlanInfeasible
from shardwright.optimize import ilp, reduce
from shardwright.optimize.fold import fold
from shardwright.optimize.messages import Messages, ascend
from shardwright.optimize.presolve import thin, undominated


def test_the_integer_program_alone_equals_brute_force() -> None:
    """Without a bound from anywhere, and with all strategies in its scope."""
    checked = 0
    for seed in range(9000, 9060):
        try:
            folded = fold(generate(seed))
        except PlanInfeasible:
            continue
        problem = folded.problem
        if problem.nodes == 0 or (problem.limits.size and problem.limits.min() < 0):
            continue
        messages = Messages(problem)
        messages.sweep()
        found = ilp.solve(problem, ilp.scope(messages), np.inf)
        expected = brute(problem)
        assert found.finished
        assert (found.choice is None) == (expected is None)
        if found.choice is not None:
            assert problem.evaluate(found.choice).feasible
            assert problem.evaluate(found.choice).cost == expected
            checked += 1
    assert checked > 15


def test_reductions_keep_the_optimum_and_know_the_way_back() -> None:
    smaller = 0
    for seed in range(3000, 3100):
        problem = generate(seed)
        expected = brute(problem)
        try:
            small = reduce(problem)
        except PlanInfeasible:
            assert expected is None
            continue
        if small.problem.nodes == 0:
            choice = small.back(np.zeros(0, np.int64))
            assert problem.evaluate(choice).feasible
            assert problem.evaluate(choice).cost == small.offset == expected
            smaller += 1
            continue
        inner = brute(small.problem)
        assert (inner is None) == (expected is None)
        if inner is None:
            continue
        assert inner + small.offset == expected
        for choice in every(small.problem)[:200]:
            value = small.problem.evaluate(choice)
            if value.feasible:
                whole = problem.evaluate(small.back(choice))
                assert whole.feasible
                assert whole.cost == value.cost + small.offset
        smaller += small.problem.nodes < problem.nodes
    assert smaller > 30


@pytest.mark.parametrize("name", ["thin", "fold", "undominated"])
def test_each_pass_alone_keeps_the_optimum(name: str) -> None:
    for seed in range(5000, 5080):
        problem = generate(seed)
        expected = brute(problem)
        try:
            if name == "thin":
                offset, small = 0, thin(problem)
            elif name == "fold":
                offset, small = (folded := fold(problem)).offset, folded.problem
            else:
                kept = undominated(problem)
                offset, small = 0, problem if kept is None else kept.problem
        except PlanInfeasible:
            assert expected is None
            continue
        fits = bool((small.limits >= 0).all())
        if small.nodes == 0:
            assert expected == (offset if fits else None)
        else:
            inner = brute(small)
            assert expected == (None if inner is None else inner + offset)


def test_reduced_costs_are_bounds_on_what_uses_them() -> None:
    """No choice with a strategy, or a pair, costs less than the bound plus what message passing says of it."""
    checked = 0
    for seed in range(7000, 7070):
        try:
            problem = fold(generate(seed)).problem
        except PlanInfeasible:
            continue
        if problem.nodes < 2 or brute(problem) is None:
            continue
        checked += 1
        messages = Messages(problem)
        ascend(messages, np.inf, steps=10)
        total, pairs = messages.reduced()
        tables = dict(pairs)
        for choice in every(problem)[::5]:
            value = problem.evaluate(choice)
            if not value.feasible:
                continue
            slack = value.cost - messages.bound + 1e-6 * max(1, abs(value.cost))
            assert all(total[messages.of(node)][pick] <= slack for node, pick in enumerate(choice))
            for number, edge in enumerate(problem.edges):
                assert tables[number][choice[edge.first], choice[edge.second]] <= slack
    assert checked > 20
