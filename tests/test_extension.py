"""Adding a thing is one file: each is written to a temporary folder, found there, planned with, proven and run.

Nothing else is changed for it; and each has a wrong twin that is noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost.hardware import hardware_of
from shardwright.cost.program import program_cost
from shardwright.errors import PlanInfeasible, SpecError, VerifyError
from shardwright.frontends.numpy import ops
from shardwright.frontends.numpy.define import forget_op
from shardwright.numpy import check_op
from shardwright.optimize import NumericError, NumericProblem, solve, solver_names, solvers
from shardwright.proof import check_identity, check_structure

Write = Callable[[ModuleType | None, str, str], Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file and import it: by itself, or as one more file of a package that lists its folder."""
    before = set(sys.modules)

    def written(package: ModuleType | None, name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        if package is None:
            monkeypatch.syspath_prepend(tmp_path)
            return import_module(name)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        return import_module(f"{package.__name__}.{name}")

    yield written
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]


def proven(plan: Any) -> None:
    check_structure(plan.program)
    check_identity(plan.complete.graph, plan.program)


# -- an op ------------------------------------------------------------------------------------------------

OP = '''
"""Rows scaled by what they sum to, plus a bias."""

import numpy as np
from shardwright.numpy import op


def exact(a, x, w, *, power):
    scaled = a.multiply(a.apply("tanh", x), a.sum(x, axis=1, keepdims=True))
    return a.add(scaled, a.multiply(w, power))


@op(
    "mine.scaled",
    rule="i j, j -> i j ; j: {j}",
    meaning=exact,
    samples=[((6, 4), (4,), {{"power": 2}}), ("n m", "m", {{"power": 3}})],
    cost="pointwise",
)
def scaled(x, w, *, power):
    return np.tanh(x) * np.sum(x, axis=1, keepdims=True) + w * {power}
'''


@pytest.fixture(autouse=True)
def _no_ops_left() -> Iterator[None]:
    yield
    forget_op("mine.scaled")


@pytest.mark.parametrize("package", [None, ops], ids=["a user's module", "a file of the folder"])
def test_an_op_is_one_file(write: Write, package: ModuleType | None) -> None:
    scaled = write(package, "mine_op", OP.format(j="whole", power="power")).scaled
    rng = np.random.default_rng(0)
    x, w, v = rng.normal(size=(12, 8)), rng.normal(size=8), rng.normal(size=(8, 6))

    def model(x: Any, w: Any, v: Any) -> Any:
        return np.maximum(scaled(x, w, power=2), 0) @ v

    expected = np.maximum(np.tanh(x) * x.sum(1, keepdims=True) + 2 * w, 0) @ v
    np.testing.assert_allclose(model(x, w, v), expected)
    plan = sw.plan(model, x, w, v, mesh="d=4", in_specs=("[d, _]", None, None))
    assert [node.op for node in plan.complete.graph.nodes].count("mine.scaled") == 1
    assert not plan.collectives
    proven(plan)
    np.testing.assert_allclose(plan(x, w, v), expected)
    checked = check_op("mine.scaled")
    assert (checked.wrong, checked.splits) == ((), 1)


def test_a_rule_that_claims_too_much_is_noticed(write: Write) -> None:
    """Of a part of a row only a part of its sum is known: by execution and by the proof."""
    scaled = write(None, "loose_op", OP.format(j="blocked", power="power")).scaled
    with pytest.raises(VerifyError, match="differs from the unsharded result"):
        check_op("mine.scaled")
    plan = sw.plan(
        lambda x, w: scaled(x, w, power=2), np.ones((12, 8)), np.ones(8), mesh="d=4",
        in_specs=("[_, d]", "[d]"), out_specs="[_, d]",
    )  # fmt: skip
    assert not plan.collectives
    with pytest.raises(VerifyError, match="differs"):
        check_identity(plan.complete.graph, plan.program)


def test_a_meaning_of_another_function_is_noticed(write: Write) -> None:
    write(None, "other_op", OP.format(j="whole", power="3"))
    with pytest.raises(VerifyError, match=r"what mine.scaled is said to mean differs"):
        check_op("mine.scaled")


# -- a solver ---------------------------------------------------------------------------------------------

SOLVER = '''
"""Coordinate descent: each node takes what is best beside its neighbours, until nothing changes."""

import numpy as np
from shardwright.optimize import Accepts

NAME = "descent"
ACCEPTS = Accepts(memory=False)
seen = []


def solve(problem, search):
    seen.append(problem.nodes)
    choice = np.array([row.argmin() for row in problem.costs])
    before = None
    while before != choice.tolist():
        before = choice.tolist()
        for node, row in enumerate(problem.costs):
            cost = row.astype(float)
            for edge in problem.edges:
                if edge.first == node:
                    cost = cost + edge.table[:, choice[edge.second]]
                elif edge.second == node:
                    cost = cost + edge.table[choice[edge.first]]
            choice[node] = cost.argmin()
        search.offer(choice)
    return True
'''
WRONG = '''
"""Offers what it should not."""

from shardwright.optimize import Accepts

NAME = "descent"
ACCEPTS = Accepts()


def solve(problem, search):
    search.offer({choice})
    return True
'''


def circle(x: Any, y: Any, z: Any, w: Any) -> Any:
    """Products that read each other: what reductions alone do not solve."""
    p, q, r, s = x @ y, y @ z, z @ w, w @ x
    return p @ q + q @ r + r @ s + s @ p + p * r + q * s


def arrays() -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(64, 64)) for _ in range(4)]


def test_a_solver_is_one_file(write: Write) -> None:
    args = arrays()
    with pytest.raises(SpecError, match="no solver is called 'descent'"):
        sw.plan(circle, *args, mesh="x=2, y=2", solver="descent")
    solver = write(solvers, "descent", SOLVER)
    assert "descent" in solver_names()
    plan = sw.plan(circle, *args, mesh="x=2, y=2", solver="descent")
    priced = program_cost(plan.program, hardware_of("h100"), plan.complete.graph)
    assert plan.cost.objective == priced.compute + priced.communication - priced.hidden
    assert solver.seen
    assert plan.cost.objective >= sw.plan(circle, *args, mesh="x=2, y=2").cost.objective
    proven(plan)
    np.testing.assert_allclose(plan(*args), circle(*args))


def test_what_a_solver_does_not_take_is_not_handed_to_it(write: Write) -> None:
    write(solvers, "descent", SOLVER)
    triangle = [(i, j, [[0, 3, 5], [4, 0, 3], [3, 5, 0]]) for i in range(5) for j in range(i)]
    free = NumericProblem.build([[0, 1, 2]] * 5, triangle)
    assert solve(free, "descent").cost == solve(free).cost == 0
    tight = NumericProblem.build([[0, 1, 2]] * 5, triangle, [(i, 0, 1, [3, 2, 1]) for i in range(5)], [11])
    with pytest.raises(NumericError, match="takes no problem with limits of memory"):
        solve(tight, "descent")


def test_a_solver_that_is_gone_is_not_listed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(solvers, "descent", SOLVER)
    assert "descent" in solver_names()
    monkeypatch.undo()
    assert "descent" not in solver_names()


def test_a_forbidden_choice_is_priced_and_refused(write: Write) -> None:
    write(solvers, "wrong", WRONG.format(choice="[0] * problem.nodes"))
    never = 10**18
    table = [[never, 3, 5], [4, 0, 3], [3, 5, 0]]
    problem = NumericProblem.build([[0, 1, 2]] * 5, [(i, j, table) for i in range(5) for j in range(i)])
    assert solve(problem).cost == 5
    with pytest.raises(PlanInfeasible, match="no choice that is allowed and fits was found by this solver"):
        solve(problem, "descent")


def test_a_choice_of_nothing_that_there_is_is_refused(write: Write) -> None:
    write(solvers, "wrong", WRONG.format(choice="[999] * problem.nodes"))
    with pytest.raises(NumericError, match="a choice names one existing strategy per node"):
        sw.plan(circle, *arrays(), mesh="x=2, y=2", solver="descent")


def test_a_bad_choice_is_no_worse_than_a_recipe(write: Write) -> None:
    """It is priced as it will be lowered, beside all recipes."""
    write(solvers, "wrong", WRONG.format(choice="[len(row) - 1 for row in problem.costs]"))
    args = arrays()
    plan = sw.plan(circle, *args, mesh="x=2, y=2", solver="descent")
    priced = program_cost(plan.program, hardware_of("h100"), plan.complete.graph)
    assert plan.cost.objective == priced.compute + priced.communication - priced.hidden
    assert plan.cost.objective <= sw.plan(circle, *args, mesh="x=2, y=2", recipe="dp").cost.objective
    proven(plan)
