"""Cases whose answer is known, and small ones where every choice can be tried."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from math import prod

import pytest

from shardwright import DeviceMesh, Graph, Program, ShardingSpec
from shardwright.cost import H100, Link
from shardwright.lower import lower
from shardwright.propagation import rule_of
from shardwright.propagation.complete import complete
from shardwright.solve import Problem, Solution, solve
from shardwright.solve.simple.evaluation import Evaluator
from shardwright.solve.simple.solver import uniform
from shardwright.solve.simple.strategies import strategies

MESH = DeviceMesh("dp=2, tp=4")
Build = Callable[..., Graph]


def program_of(graph: Graph, mesh: DeviceMesh, solution: Solution, outputs: dict[int, str] | None = None) -> Program:
    """What a solution becomes."""
    specs = [solution.specs[value.id] for value in graph.values]
    asked = {i: ShardingSpec.parse(text, mesh) for i, text in (outputs or {}).items()}
    pinned, forced = solution.pinned, solution.forced
    return lower(complete(graph, mesh, specs, rule_of, pinned=pinned, out_specs=asked, forced=forced))


def kinds(program: Program) -> list[str]:
    return [item.kind for item in program.collectives]


def chosen(solution: Solution) -> list[str]:
    return [node["strategy"] for node in solution.nodes.values() if node["strategy"] != "Propagated"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_tall_skinny_batch_is_data_parallel(mlp: Build, dtype: str) -> None:
    graph = mlp(65536, 512, 512, dtype=dtype)
    solution = solve(graph, "d=8")
    assert chosen(solution) == ["Data Parallel (Split M)"] * 2
    assert kinds(program_of(graph, DeviceMesh("d=8"), solution)) == []
    assert solution.communication == 0


def test_a_small_batch_with_wide_layers_is_column_then_row(mlp: Build) -> None:
    graph = mlp(128, 4096, 16384)
    solution = solve(graph, "d=8")
    assert chosen(solution) == ["Model Parallel (Split N)", "Model Parallel (Split K)"]
    program = program_of(graph, DeviceMesh("d=8"), solution)
    assert kinds(program) == ["all_reduce"]
    assert str(solution.specs[graph.by_name["w1_0"]]) == "[_, d]"
    assert str(solution.specs[graph.by_name["w2_0"]]) == "[d, _]"


def test_layer_after_layer_column_and_row_alternate(mlp: Build) -> None:
    """Six products on a small batch: one reduction for each pair of layers."""
    graph = mlp(256, 4096, 16384, layers=3)
    solution = solve(graph, "d=4", out_specs={0: "[_, _]"})
    assert chosen(solution) == ["Model Parallel (Split N)", "Model Parallel (Split K)"] * 3
    assert kinds(program_of(graph, DeviceMesh("d=4"), solution, {0: "[_, _]"})) == ["all_reduce"] * 3


def test_a_long_inner_dim_is_split(matmul: Build) -> None:
    graph = matmul(16, 4_194_304, 16)
    solution = solve(graph, "d=8")
    assert chosen(solution) == ["Model Parallel (Split K)"]
    assert kinds(program_of(graph, DeviceMesh("d=8"), solution)) == ["all_reduce"]
    assert solution.nodes[0]["rule"].endswith("// d")


def test_two_axes_are_used_together_where_it_pays(matmul: Build, mlp: Build) -> None:
    square = solve(matmul(4096, 4096, 4096), MESH)
    assert set(re.findall(r"dp|tp", square.nodes[0]["rule"])) == {"dp", "tp"}
    assert len(chosen(square)[0].split(" + ")) == 2  # M/a N/b reads less than M/ab
    both = solve(mlp(1024, 4096, 16384), MESH)
    assert chosen(both) == [
        "Data Parallel (Split M over dp) + Model Parallel (Split N over tp)",
        "Data Parallel (Split M over dp) + Model Parallel (Split K over tp)",
    ]


def test_what_is_too_small_to_split_is_not_split_at_a_price(diamond: Build) -> None:
    """An all_gather takes longer than doing all of a tiny product everywhere."""
    graph = diamond(64, 256, 256)
    solution = solve(graph, MESH)
    assert kinds(program_of(graph, MESH, solution)) == []
    assert chosen(solution)[0] == "Replicated"


def test_a_slow_axis_is_left_to_data(mlp: Build) -> None:
    """The same program; where tp is a slow network, nothing goes over it."""
    graph = mlp(1024, 4096, 16384)
    slow = H100.with_link("tp", Link(alpha=1e-4, beta=10**9, launch=1e-4))
    axes = {c.axis for c in program_of(graph, MESH, solve(graph, MESH, hardware=slow)).collectives}
    assert axes <= {"dp"}


@pytest.mark.parametrize("mesh", ["dp=2, tp=4", "a=2, b=2, c=2"])
def test_cutting_the_devices_into_axes_costs_nothing(mesh: str, mlp: Build) -> None:
    """Whatever one axis of eight can do, two or three can."""
    graph = mlp(4096, 4096, 16384, dtype="bf16")
    assert solve(graph, mesh).cost <= solve(graph, "d=8").cost


def test_a_batched_product_is_split_by_its_batch() -> None:
    graph = Graph.parse("""graph f(%q: f32[64, 512, 64], %k: f32[64, 64, 512], %v: f32[64, 512, 64]) {
      %s = matmul(%q, %k) : f32[64, 512, 512]
      %o = matmul(%s, %v) : f32[64, 512, 64]
      return %o
    }""")
    solution = solve(graph, "d=8")
    assert all(text.startswith("Data Parallel") for text in chosen(solution))
    assert {str(solution.specs[v]) for v in range(5)} == {"[d, _, _]"}
    assert kinds(program_of(graph, DeviceMesh("d=8"), solution)) == []


def test_a_convolution_is_split_by_batch_or_features() -> None:
    graph = Graph.parse("""graph f(%x: f32[256, 32, 32, 64], %w: f32[3, 3, 64, 64]) {
      %y = convolution(%x, %w) {dims="b01f,01io->b01f"} : f32[256, 30, 30, 64]
      return %y
    }""")
    solution = solve(graph, "d=8")
    assert str(solution.specs[0]) == "[d, _, _, _]"
    assert solution.communication == 0


def test_a_program_without_products_is_split_too() -> None:
    graph = Graph.parse("""graph f(%x: f32[4096, 4096]) {
      %a = exp(%x) : f32[4096, 4096]
      %b = add(%a, %x) : f32[4096, 4096]
      return %b
    }""")
    solution = solve(graph, "d=8")
    assert all(spec.sharded_axes for spec in solution.specs.values())
    assert solution.communication == 0


@pytest.mark.parametrize("mesh", ["d=8", "dp=2, tp=4"])
@pytest.mark.parametrize("sizes", [(32, 64, 64), (64, 256, 1024), (1024, 1024, 4096), (16384, 512, 512)], ids=str)
@pytest.mark.parametrize("which", ["transformer_block", "diamond", "mlp"])
def test_doing_the_same_everywhere_is_never_better(
    which: str, sizes: tuple[int, ...], mesh: str, request: pytest.FixtureRequest
) -> None:
    """Not splitting anything among it: where the program is small, that is hard to beat."""
    graph = request.getfixturevalue(which)(*sizes)
    problem = Problem.parse(graph, mesh)
    evaluator = Evaluator(problem, None)
    plans = uniform({n: strategies(problem, n) for n in problem.strategic})
    assert "Replicated" in {plan[0].text for plan in plans}
    assert solve(graph, mesh).cost <= min(evaluator(plan).cost for plan in plans)


CASES = [
    ("mlp", (128, 4096, 16384)),
    ("mlp", (1024, 4096, 16384)),
    ("mlp", (64, 256, 512)),
    ("diamond", (64, 256, 256)),
    ("diamond", (2048, 4096, 4096)),
]


@pytest.mark.parametrize(("which", "sizes"), CASES, ids=str)
def test_no_other_choice_of_strategies_is_better(
    which: str, sizes: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    graph = request.getfixturevalue(which)(*sizes)
    problem = Problem.parse(graph, MESH)
    offered = [strategies(problem, n) for n in problem.strategic]
    assert prod(map(len, offered)) == 256
    evaluator = Evaluator(problem, None)
    best = min(evaluator(dict(zip(problem.strategic, plan))).cost for plan in product(*offered))
    assert solve(graph, MESH).cost == best
