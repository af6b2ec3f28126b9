"""Every solver that is listed: against brute force, against recipes, and against what the lowered Program costs.

A solver says in ``ACCEPTS`` what it takes and whether it proves; that is what it is held to.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from random_problems import brute, generate
from shardwright.cost.hardware import hardware_of
from shardwright.cost.program import program_cost
from shardwright.errors import PlanInfeasible, ShardwrightError
from shardwright.numpy import gelu, softmax
from shardwright.optimize import NumericProblem, solve, solver_named, solver_names
from shardwright.proof import check_identity, check_structure
from shardwright.solve.recipes import DISTINCT

SOLVERS = solver_names()
EXACT = [name for name in SOLVERS if solver_named(name).ACCEPTS.exact]
OTHERS = [name for name in SOLVERS if name not in EXACT]
CASES = 300


def test_the_solvers_that_there_are() -> None:
    assert SOLVERS == ("auto", "elimination", "ilp", "messages", "search")
    assert EXACT == ["auto", "elimination", "ilp"]


# -- against brute force ----------------------------------------------------------------------------------


def taken(solver: str, problem: NumericProblem) -> bool:
    return solver_named(solver).ACCEPTS.memory or not problem.limits.size


@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("solver", EXACT)
def test_an_exact_solver_equals_brute_force(solver: str, block: int) -> None:
    infeasible = 0
    for seed in range(block * CASES // 6, (block + 1) * CASES // 6):
        problem = generate(seed)
        if not taken(solver, problem):
            continue
        expected = brute(problem)
        if expected is None:
            infeasible += 1
            with pytest.raises(PlanInfeasible):
                solve(problem, solver)
            continue
        solution = solve(problem, solver)
        value = problem.evaluate(solution.choice)
        assert value.feasible
        assert value.cost == solution.cost
        assert solution.cost == solution.lower_bound == expected
        assert solution.optimal
        assert solution.gap == 0
    assert infeasible > 0


@pytest.mark.parametrize("solver", OTHERS)
def test_a_solver_without_proof_never_lies(solver: str) -> None:
    """What it returns fits and is priced rightly, and its bound is one."""
    optimal = 0
    denied: list[str] = []
    for seed in range(60):
        problem = generate(1000 + seed)
        expected = brute(problem) if taken(solver, problem) else None
        if expected is None:
            continue
        try:
            solution = solve(problem, solver)
        except PlanInfeasible as error:
            denied.append(error.fact)
            continue
        value = problem.evaluate(solution.choice)
        assert value.feasible
        assert solution.lower_bound <= expected <= solution.cost == value.cost
        optimal += solution.optimal
    assert optimal > 15
    # Only a proof may deny that there is a plan.
    assert all("was found" in fact for fact in denied)


# -- against recipes and Programs -------------------------------------------------------------------------


def mlp(x: Any, up: Any, down: Any) -> Any:
    return gelu(x @ up) @ down


def attend(x: Any, q: Any, k: Any, v: Any) -> Any:
    return softmax((x @ q) @ (x @ k).T) @ (x @ v)


def circle(x: Any, y: Any, z: Any, w: Any) -> Any:
    """Products that read each other: what reductions alone do not solve."""
    p, q, r, s = x @ y, y @ z, z @ w, w @ x
    return p @ q + q @ r + r @ s + s @ p + p * r + q * s


PROGRAMS = {
    "circle": (circle, [(64, 64)] * 4),
    "mlp": (mlp, [(512, 256), (256, 1024), (1024, 256)]),
    "attention": (attend, [(256, 512), (512, 512), (512, 512), (512, 512)]),
}
CALLS = [(name, mesh) for name in PROGRAMS for mesh in ("d=4", "x=2, y=2") if (name, mesh) != ("circle", "x=2, y=2")]
"""All that elimination does not refuse as too wide."""


def planned(name: str, mesh: str, **asked: Any) -> Any:
    fn, shapes = PROGRAMS[name]
    return sw.plan(fn, *(sw.ShapeDtype(shape, np.float32) for shape in shapes), mesh=mesh, hardware="h100", **asked)


@cache
def recipes(name: str, mesh: str) -> dict[str, int]:
    found = {}
    for recipe in DISTINCT:
        try:
            found[recipe] = planned(name, mesh, recipe=recipe).cost.objective
        except ShardwrightError:
            continue
    return found


@pytest.mark.parametrize(("name", "mesh"), CALLS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_plan_is_never_worse_than_a_recipe_and_costs_what_its_program_does(solver: str, name: str, mesh: str) -> None:
    plan = planned(name, mesh, solver=solver)
    assert recipes(name, mesh)
    assert all(plan.cost.objective <= cost for cost in recipes(name, mesh).values())
    assert plan.lower_bound <= plan.cost.objective
    priced = program_cost(plan.program, hardware_of("h100"), plan.complete.graph)
    assert (plan.cost.compute, plan.cost.communication) == (priced.compute, priced.communication)
    check_structure(plan.program)
    check_identity(plan.complete.graph, plan.program)
