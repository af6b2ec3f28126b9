"""What a plan is said to cost is what the lowered Program costs, and what is said to be wanted is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shardwright import DeviceMesh, Graph
from shardwright.cost import H100, program_cost, program_memory
from shardwright.lower import lower
from shardwright.solve import Problem
from shardwright.solve.simple.evaluation import Evaluator, Plan
from shardwright.solve.simple.strategies import strategies

MESH = DeviceMesh("dp=2, tp=4")
Build = Callable[..., Graph]


def plans(problem: Problem, count: int) -> list[Plan]:
    """Some plans, the same each time."""
    draw = random.Random(0)
    offered = {n: strategies(problem, n) for n in problem.strategic}
    return [{n: draw.choice(ways) for n, ways in offered.items()} for _ in range(count)]


@pytest.mark.parametrize("which", ["mlp", "diamond", "transformer_block"])
@pytest.mark.parametrize("given", [{}, {"x": "[dp, _]"}, {"x": "[_, tp]"}], ids=str)
def test_a_plan_costs_and_holds_what_the_program_does(
    which: str, given: dict[str, str], request: pytest.FixtureRequest
) -> None:
    build = request.getfixturevalue(which)
    graph = build(64, 256, 512)
    problem = Problem.parse(graph, MESH, given)
    evaluator = Evaluator(problem, None)
    for plan in plans(problem, 12):
        tried = evaluator(plan)
        program = lower(tried.complete)
        cost = program_cost(program, H100)
        assert (tried.parts.compute, tried.parts.communication) == (cost.compute, cost.communication)
        assert tried.peak == program_memory(program)
        assert tried.cost == cost.total


@pytest.mark.parametrize("home", ["[tp, _]", "[_, dp]", "[_, _]"])
def test_a_result_that_is_pinned_leaves_only_its_home(home: str) -> None:
    """Readers start from the pinned copy; what the op left before is gone."""
    graph = Graph.parse("""graph f(%x: f32[64, 256], %w: f32[256, 64]) {
      %h = matmul(%x, %w) : f32[64, 64]
      %a = matmul(%h, %h) : f32[64, 64]
      %b = add(%h, %a) : f32[64, 64]
      return %b
    }""")
    problem = Problem.parse(graph, MESH, {"h": home})
    evaluator = Evaluator(problem, None)
    for plan in plans(problem, 40):
        program = lower(evaluator(plan).complete)
        assert evaluator(plan).cost == program_cost(program, H100).total
        assert evaluator(plan).peak == program_memory(program)


def test_uneven_and_unknown_ops_too() -> None:
    graph = Graph.parse("""graph f(%x: f32[10, 7], %w: f32[7, 9]) {
      %h = matmul(%x, %w) : f32[10, 9]
      %u = no.such_op(%h) : f32[10, 9]
      %y = add(%u, %h) : f32[10, 9]
      return %y, %h
    }""")
    problem = Problem.parse(graph, MESH)
    for plan in plans(problem, 16):
        tried = Evaluator(problem, None)(plan)
        program = lower(tried.complete)
        assert tried.cost == program_cost(program, H100).total
        assert tried.peak == program_memory(program)


def test_forced_strategies_are_carried_out(transformer_block: Build) -> None:
    problem = Problem.parse(transformer_block(), MESH)
    for plan in plans(problem, 8):
        decisions = Evaluator(problem, None)(plan).complete.decisions
        assert {n: decisions[n].axes for n in plan} == {n: strategy.axes for n, strategy in plan.items()}


def test_a_plan_is_tried_once(mlp: Build) -> None:
    problem = Problem.parse(mlp(64, 256, 512), MESH)
    asked: list[int] = []

    def price(specs: object) -> int:
        asked.append(1)
        return 7

    evaluator = Evaluator(problem, price)
    (plan,) = plans(problem, 1)
    assert evaluator(plan) is evaluator(dict(plan))
    assert evaluator(plan).cost == 7
    assert len(asked) == 1
    assert evaluator.forced(plan) == {}


def test_what_a_seed_wants_is_known_to_the_ops_before_it(diamond: Build) -> None:
    """branch2 goes through a transpose into the second product: what that needs is turned back."""
    graph = diamond()
    problem = Problem.parse(graph, MESH)
    evaluator = Evaluator(problem, None)
    first = strategies(problem, 0)[0]
    for strategy in strategies(problem, 4):
        wants = {graph.values[value].name: spec for value, spec in evaluator.wants({0: first, 4: strategy}).items()}
        assert set(wants) == {"branch1", "branch2", "turned"}
        assert wants["branch1"] == strategy.operands[0]
        assert wants["turned"] == strategy.operands[1]
        assert wants["branch2"].dims == wants["turned"].dims[::-1]
    assert evaluator.wants({}) == {}


def test_nothing_is_cut_for_free_and_gathered_again(diamond: Build) -> None:
    problem = Problem.parse(diamond(), "d=8")
    replicated = {n: strategies(problem, n)[0] for n in problem.strategic}
    assert Evaluator(problem, None)(replicated).parts.communication == 0


def test_a_shared_reshard_is_paid_for_once() -> None:
    """Two readers of a K-split product: one reduction; the second reader finds the copy."""
    one, two = (
        Graph.parse(f"""graph f(%x: f32[512, 512], %w: f32[512, 512]) {{
          %h = matmul(%x, %w) : f32[512, 512]
          %a = exp(%h) : f32[512, 512]
          {more}
          return %a
        }}""")
        for more in ("", "%b = exp(%h) : f32[512, 512]")
    )
    costs = []
    for graph in (one, two):
        problem = Problem.parse(graph, "d=8")
        by_k = next(s for s in strategies(problem, 0) if "Split K" in s.text)
        tried = Evaluator(problem, None)({0: by_k})
        program = lower(tried.complete)
        assert len(program.collectives) == 1
        assert tried.cost == program_cost(program, H100).total
        costs.append(tried.parts.communication)
    assert costs[0] == costs[1]
