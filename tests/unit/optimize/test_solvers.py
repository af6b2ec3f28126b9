"""`solve`: clocks, starts, progress, ties, words; and problems with structure that only some solvers see through."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardwright.errors import PlanInfeasible
from shardwright.optimize import Accepts, NumericError, NumericProblem, Progress, Search, reduce, solve, solver_names
from shardwright.optimize.elimination import TooWide, order
from shardwright.optimize.elimination import solve as eliminate
from shardwright.optimize.presolve import thin
from shardwright.optimize.repair import repair
from shardwright.optimize.solvers import listing
from shardwright.optimize.solvers.regions import part_solver


def grid(side: int, states: int, seed: int, memory: float | None = None) -> NumericProblem:
    """A square grid with random costs; with memory, all nodes are alive in a sliding window."""
    rng = np.random.default_rng(seed)
    nodes = side * side
    costs = [rng.integers(0, 1000, states) for _ in range(nodes)]
    edges = []
    for node in range(nodes):
        for other in ([node + 1] if (node + 1) % side else []) + ([node + side] if node + side < nodes else []):
            edges.append((node, other, rng.integers(0, 1000, (states, states))))
    if memory is None:
        return NumericProblem.build(costs, edges)
    # Cheap strategies hold much.
    usages = [(node, node, min(nodes, node + side), 1000 - costs[node]) for node in range(nodes)]
    return NumericProblem.build(costs, edges, usages, np.full(nodes, int(memory * side * 1000)))


def layers(count: int, seed: int = 0) -> NumericProblem:
    """Blocks that repeat: a chain of hubs, each with followers, leaves, and a triangle."""
    rng = np.random.default_rng(seed)
    states = 5
    hub_table, side = rng.integers(0, 100, (states, states)), rng.integers(0, 100, (states, states))
    follow = np.where(np.eye(states, dtype=bool), 1, 10**18)
    costs, edges, usages = [], [], []
    for layer in range(count):
        hub, follower, left, right = range(4 * layer, 4 * layer + 4)
        costs += [rng.integers(0, 50, states) for _ in range(4)]
        edges += [(hub, follower, follow), (hub, left, side), (follower, right, side.T), (left, right, hub_table)]
        if layer:
            edges.append((hub - 2, hub, hub_table))
        usages += [(node, 2 * layer, 2 * layer + 3, np.arange(states)[::-1] * 10) for node in (hub, left, right)]
    return NumericProblem.build(costs, edges, usages, np.full(2 * count + 3, 85))


@pytest.mark.parametrize("memory", [None, 0.45])
def test_exact_solvers_agree_on_larger_problems(memory: float | None) -> None:
    problem = grid(4, 3, 1, memory) if memory else grid(7, 4, 1)
    found = {name: solve(problem, name) for name in ("elimination", "ilp", "auto")}
    assert all(solution.optimal for solution in found.values())
    assert len({solution.cost for solution in found.values()}) == 1
    for name in ("messages", "search"):
        solution = solve(problem, name)
        assert solution.lower_bound <= found["ilp"].cost <= solution.cost


def test_layers_fold_and_solve() -> None:
    problem = layers(6)
    small = reduce(problem)
    assert small.problem.nodes <= problem.nodes * 3 // 4
    assert solve(problem, "ilp").cost == solve(problem, "elimination").cost == solve(problem).cost


def test_a_node_that_fits_nowhere_is_infeasible() -> None:
    problem = NumericProblem.build([[0, 0]], (), [(0, 0, 1, [5, 6])], [4])
    for solver in solver_names():
        with pytest.raises(PlanInfeasible, match="even the least usages exceed the limit by 1"):
            solve(problem, solver)


def test_neighbours_that_exclude_each_other_are_infeasible() -> None:
    problem = NumericProblem.build([[0, 0], [0]], [(0, 1, [[10**18], [10**18]])])
    with pytest.raises(PlanInfeasible, match="no strategy of node"):
        solve(problem)


def test_exact_solvers_prove_that_nothing_fits() -> None:
    """Each strategy has room alone, and each pair, but never three of the four."""
    never = 10**18
    equal = [[0, never], [never, 0]]
    problem = NumericProblem.build(
        [[0, 0, 9]] * 4,
        [(i, j, np.pad(equal, ((0, 1), (0, 1)), constant_values=3)) for i in range(4) for j in range(i)],
        [(i, t, t + 1, [2 * (t == 0), 2 * (t == 1), 2 * (t == 2)]) for i in range(4) for t in range(3)],
        [2, 2, 2],
    )
    for solver in ("elimination", "ilp", "auto"):
        with pytest.raises(PlanInfeasible):
            solve(problem, solver)


def test_too_wide_is_said() -> None:
    problem = grid(14, 8, 0)
    assert not order(problem.sizes, [(edge.first, edge.second) for edge in problem.edges]).nodes
    with pytest.raises(TooWide, match="entries would be needed"):
        eliminate(problem)
    with pytest.raises(NumericError, match="too wide for elimination"):
        solve(problem, "elimination")


def test_a_time_limit_returns_the_best_so_far_with_its_bound() -> None:
    problem = grid(12, 6, 3, 0.6)
    for solver in ("auto", "search", "messages", "ilp"):
        seen: list[Progress] = []
        solution = solve(problem, solver, time_limit=1.0, progress=seen.append)
        assert problem.evaluate(solution.choice).feasible
        assert solution.lower_bound <= solution.cost
        assert solution.optimal or solution.gap > 0
        costs = [step.cost for step in seen if step.cost is not None]
        assert costs == sorted(costs, reverse=True)
        assert costs[-1] == solution.cost


def test_a_start_is_never_lost() -> None:
    problem = grid(4, 3, 2, 0.5)
    best = solve(problem, "ilp")
    for solver in ("auto", "messages", "search", "ilp"):
        assert solve(problem, solver, start=best.choice).cost == best.cost


def test_a_start_that_reductions_drop_is_kept_or_beaten() -> None:
    problem = grid(12, 6, 3, 0.6)
    start = solve(problem, "messages").choice
    cost = problem.evaluate(start).cost
    assert solve(problem, "search", time_limit=0.5, start=start).cost <= cost


def test_a_choice_that_does_not_fit_is_repaired() -> None:
    problem = reduce(grid(5, 3, 4, 0.5)).problem
    greedy = np.array([row.argmin() for row in problem.costs])
    assert not problem.evaluate(greedy).feasible
    found = repair(problem, greedy, part_solver())
    assert found is not None
    assert problem.evaluate(found).feasible


def test_moments_within_other_moments_go() -> None:
    usages = [(0, 0, 6, [0, 4]), (1, 1, 3, [0, 4]), (2, 2, 5, [0, 4])]
    problem = thin(NumericProblem.build([[0, 0]] * 3, (), usages, [9] * 6))
    assert problem.limits.tolist() == [9]
    assert thin(NumericProblem.build([[0, 0]] * 3, (), usages, [12] * 6)).limits.size == 0


def test_costs_far_apart_are_still_exact() -> None:
    """One step of a large cost is worth more than all the small ones, and those still count."""
    rng = np.random.default_rng(5)
    nodes, states = 8, 3
    costs = [rng.integers(0, 3, states) + rng.choice([0, 10**11], states) for _ in range(nodes)]
    edges = [
        (i, j, rng.integers(0, 3, (states, states)) + rng.choice([0, 10**12], (states, states)))
        for i in range(nodes)
        for j in range(i)
    ]
    problem = NumericProblem.build(costs, edges)
    assert solve(problem, "ilp").cost == solve(problem, "elimination").cost


def test_a_single_byte_too_much_is_too_much() -> None:
    """One in 10^12 lies far below any solver's tolerance."""
    limit = 10**12
    usages = [(i, 0, 2, [limit // 4 + (i == 3), limit // 4 - 1, 0]) for i in range(4)]
    problem = NumericProblem.build(
        [[0, 2 + i, 50] for i in range(4)],
        [(i, j, np.full((3, 3), 1) - np.eye(3, dtype=int)) for i in range(4) for j in range(i)],
        usages,
        [limit, limit + 1],
    )
    assert not problem.evaluate([0, 0, 0, 0]).feasible
    for solver in ("ilp", "elimination", "auto"):
        solution = solve(problem, solver)
        assert (solution.cost, solution.optimal) == (2 + 3, True)


@pytest.mark.parametrize(("solver", "fact"), [("ilq", "did you mean 'ilp'"), ("magic", "no solver is called")])
def test_unknown_solvers_are_named(solver: str, fact: str) -> None:
    with pytest.raises(NumericError, match=fact):
        solve(grid(2, 2, 0), solver)


def _least(problem: NumericProblem, search: Search) -> bool:
    search.offer([int(row.argmin()) for row in problem.costs])
    return True


def test_solvers_of_other_packages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By entry point; one that cannot be loaded is passed over, and nobody takes the name of one of ours."""

    def broken() -> None:
        raise ImportError("no such thing")

    def point(load: Callable[[], Any]) -> Any:
        return SimpleNamespace(value="theirs", load=load)

    theirs = SimpleNamespace(NAME="least", ACCEPTS=Accepts(), solve=_least)
    taken = SimpleNamespace(NAME="ilp", ACCEPTS=Accepts(), solve=_least)
    lacking = SimpleNamespace(NAME="lacking", ACCEPTS=Accepts(library="no_such_library"), solve=_least)
    points = [point(broken), *(point(lambda one=one: one) for one in (theirs, taken, lacking))]
    with monkeypatch.context() as patch:
        patch.setattr(listing, "entry_points", lambda group: points if group == "shardwright.solvers" else [])
        assert {"least", "lacking", "ilp"} <= set(solver_names())
        assert "theirs could not be loaded: no such thing" in caplog.text
        problem = grid(4, 3, 2)
        solution = solve(problem, "least")
        assert (solution.solver, solution.cost) == ("least", problem.evaluate(solution.choice).cost)
        assert solution.lower_bound <= solve(problem, "ilp").cost <= solution.cost
        assert solve(problem, "ilp").optimal
        with pytest.raises(NumericError, match=r"(?s)'lacking' needs no_such_library.*pip install no_such_library"):
            solve(problem, "lacking")
    assert "least" not in solver_names()


def test_no_time_is_refused() -> None:
    with pytest.raises(NumericError, match="leaves no time"):
        solve(grid(2, 2, 0), time_limit=0)


def test_nothing_to_choose() -> None:
    solution = solve(NumericProblem.build([]))
    assert (solution.choice, solution.cost, solution.optimal) == ((), 0, True)


def test_the_same_choice_whatever_the_hash_seed() -> None:
    """Many equally good choices: which one is found must not depend on the order of sets."""
    code = (
        "import numpy as np\n"
        "from shardwright.optimize import NumericProblem, solve\n"
        "rng = np.random.default_rng(0)\n"
        "edges = [(i, j, rng.integers(0, 2, (3, 3))) for i in range(12) for j in range(i) if rng.random() < 0.4]\n"
        "held = [(i, i, min(12, i + 4), rng.integers(0, 3, 3)) for i in range(12)]\n"
        "problem = NumericProblem.build([rng.integers(0, 2, 3) for _ in range(12)], edges, held, [4] * 12)\n"
        "print([solve(problem, name).choice for name in ('auto', 'elimination', 'ilp', 'search')])\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "7")
    }
    assert len(found) == 1
