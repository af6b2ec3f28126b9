"""Random small problems: every solver and every reduction against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.errors import PlanInfeasible
from shardwright.optimize import FORBIDDEN, NumericProblem, ilp, reduce, solve
from shardwright.optimize.fold import fold
from shardwright.optimize.messages import Messages, ascend
from shardwright.optimize.presolve import thin, undominated

CASES = 300


def generate(seed: int) -> NumericProblem:
    """Up to 7 nodes; forbidden entries, parallel edges, ties, followers; memory in two of three.

    Every second problem is sparse, so that reductions bite; the others are dense, so that they leave a lot.
    """
    rng = np.random.default_rng(seed)
    dense = seed % 2 == 1
    nodes = int(rng.integers(4, 7)) if dense else int(rng.integers(1, 8))
    sizes = rng.integers(3, 5, nodes) if dense else rng.integers(1, 5, nodes)
    top = int(rng.choice([3, 20, 10**6]))
    forbid = float(rng.choice([0.0, 0.1] if dense else [0.0, 0.1, 0.35]))

    def entries(*shape: int) -> np.ndarray:
        values = rng.integers(0, top, shape)
        return np.where(rng.random(shape) < forbid, FORBIDDEN + rng.integers(0, 5, shape), values)

    costs = [entries(int(size)) for size in sizes]
    edges = []
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
    for number in rng.permutation(len(pairs))[: int(rng.integers(2 * nodes, 4 * nodes) if dense else 2 * nodes)]:
        i, j = pairs[number]
        table = entries(int(sizes[i]), int(sizes[j]))
        if not dense and rng.random() < 0.3:
            # The first decides the second.
            picks = rng.integers(0, sizes[j], sizes[i])
            table = np.where(np.arange(sizes[j]) == picks[:, None], table, FORBIDDEN)
        edges.append((i, j, table))
    usages, limits = [], []
    if seed % 3:
        moments = int(rng.integers(1, 7))
        for node in range(nodes):
            for _ in range(1 if dense else int(rng.integers(0, 3))):
                start, end = sorted(int(t) for t in rng.integers(0, moments + 1, 2))
                usages.append((node, start, end, rng.integers(0, 6, int(sizes[node]))))
        limits = rng.integers(3 * (seed % 5), 14, moments)
    return NumericProblem.build(costs, edges, usages, limits)


def every(problem: NumericProblem) -> np.ndarray:
    """All choices, one a row."""
    return np.indices([len(row) for row in problem.costs]).reshape(problem.nodes, -1).T


def brute(problem: NumericProblem) -> int | None:
    """The least cost of all choices, by trying each; None if none is allowed and fits."""
    choices = every(problem)
    columns = [row[choices[:, node]] for node, row in enumerate(problem.costs)]
    columns += [edge.table[choices[:, edge.first], choices[:, edge.second]] for edge in problem.edges]
    terms = np.stack(columns, 1)
    fits = (terms < FORBIDDEN).all(1)
    for moment, limit in enumerate(problem.limits):
        held = np.zeros(len(choices), np.int64)
        for usage in problem.usages:
            if usage.start <= moment < usage.end:
                held += usage.amounts[choices[:, usage.node]]
        fits &= held <= limit
    return int(terms[fits].sum(1).min()) if fits.any() else None


def agree(problem: NumericProblem, solver: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(PlanInfeasible):
            solve(problem, solver)
        return
    solution = solve(problem, solver)
    value = problem.evaluate(solution.choice)
    assert value.feasible
    assert value.cost == solution.cost
    assert solution.cost == solution.lower_bound == expected
    assert solution.optimal
    assert solution.gap == 0


@pytest.mark.parametrize("block", range(6))
def test_exact_solvers_equal_brute_force(block: int) -> None:
    infeasible = 0
    for seed in range(block * CASES // 6, (block + 1) * CASES // 6):
        problem = generate(seed)
        expected = brute(problem)
        infeasible += expected is None
        for solver in ("elimination", "ilp", "auto"):
            agree(problem, solver, expected)
    assert infeasible > 0


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


def test_messages_and_search_never_lie() -> None:
    """What they return fits and is priced rightly, and their bound is one."""
    exact = 0
    denied: list[str] = []
    for seed in range(60):
        problem = generate(1000 + seed)
        expected = brute(problem)
        if expected is None:
            continue
        for solver in ("messages", "search"):
            try:
                solution = solve(problem, solver)
            except PlanInfeasible as error:
                denied.append(error.fact)
                continue
            value = problem.evaluate(solution.choice)
            assert value.feasible
            assert solution.lower_bound <= expected <= solution.cost == value.cost
            exact += solution.optimal
    assert exact > 40
    # Only a proof may deny that there is a plan.
    assert all("was found" in fact for fact in denied)


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
