"""`SimpleSolver`: whole programs, the user's word, memory, a price from outside, and what it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

from shardwright import DeviceMesh, DimSpec, Graph, GraphExtractor, MeshError, Program, ShardingSpec
from shardwright.cost import H100, Hardware, program_cost, program_memory
from shardwright.lower import lower
from shardwright.propagation import rule_of, run_hierarchical_propagation_pass
from shardwright.propagation.complete import complete
from shardwright.solve import PlanInfeasible, SimpleSolver, Solution, solve
from shardwright.solve.simple import evaluation

MESH = DeviceMesh("dp=2, tp=4")
Build = Callable[..., Graph]
LINES = [
    r"\[Solver\] Analyzing Node \d+: \S+",
    r"  > Costs: DP=(\d\.\d\de[+-]\d\d|inf), MP=(\d\.\d\de[+-]\d\d|inf)",
    r"  > Selected Strategy: .+",
    r"\[Solver\] Propagation iteration \d+: changed=(True|False)",
    r"\[Solver\] Fixed-point reached after \d+ iterations",
]


def program_of(graph: Graph, mesh: DeviceMesh, solution: Solution, outputs: Mapping[int, str] | None = None) -> Program:
    """What a solution becomes."""
    specs = [solution.specs[value.id] for value in graph.values]
    asked = {i: ShardingSpec.parse(text, mesh) for i, text in (outputs or {}).items()}
    pinned, forced = solution.pinned, solution.forced
    return lower(complete(graph, mesh, specs, rule_of, pinned=pinned, out_specs=asked, forced=forced))


def chosen(solution: Solution) -> list[str]:
    return [node["strategy"] for node in solution.nodes.values() if node["strategy"] != "Propagated"]


CASES = [
    ("mlp", (128, 4096, 16384)),
    ("mlp", (1024, 4096, 16384)),
    ("mlp", (64, 256, 512)),
    ("diamond", (64, 256, 256)),
    ("diamond", (2048, 4096, 4096)),
]


# -- whole programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(64, 256, 1024), (2048, 1024, 4096)], ids=str)
@pytest.mark.parametrize("mesh", ["dp=2, tp=4", "d=8", "a=2, b=2, c=2", "d=3"])
@pytest.mark.parametrize("which", ["transformer_block", "diamond"])
def test_every_node_is_solved_soon_and_without_warning(
    which: str, mesh: str, sizes: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    graph = request.getfixturevalue(which)(*sizes)
    solution = solve(graph, mesh)
    assert sorted(solution.nodes) == list(range(len(graph.nodes)))
    assert sorted(solution.specs) == list(range(len(graph.values)))
    for n, node in enumerate(graph.nodes):
        assert len(solution.nodes[n]["operands"]) == len(node.inputs)
        assert len(solution.nodes[n]["results"]) == len(node.results)
    assert solution.iterations <= 3
    assert not [line for line in solution.log if "WARNING" in line]


@pytest.mark.parametrize("which", ["transformer_block", "diamond", "mlp"])
def test_the_cost_is_that_of_the_lowered_program(which: str, request: pytest.FixtureRequest) -> None:
    graph = request.getfixturevalue(which)(512, 512, 2048)
    solution = solve(graph, MESH)
    program = program_of(graph, MESH, solution)
    cost = program_cost(program, H100)
    assert (solution.cost, solution.compute, solution.communication) == (cost.total, cost.compute, cost.communication)
    assert solution.memory <= program_memory(program)


def test_the_plan_beats_doing_everything_everywhere(transformer_block: Build) -> None:
    graph = transformer_block(2048, 4096, 16384)
    alone = solve(graph, "d=1").cost
    assert solve(graph, "d=8").cost < alone / 6
    assert solve(graph, MESH).cost < alone / 6


def test_more_devices_are_never_worse(transformer_block: Build) -> None:
    graph = transformer_block(1024, 1024, 4096)
    costs = [solve(graph, f"d={n}").cost for n in (1, 2, 4, 8)]
    assert costs == sorted(costs, reverse=True)


def test_equal_runs_are_equal_and_json_is_plain(transformer_block: Build) -> None:
    graph = transformer_block(512, 512, 2048)
    first, second = solve(graph, MESH), solve(graph, MESH)
    assert first == second
    from_json = SimpleSolver(MESH).solve(GraphExtractor(graph).to_json())
    assert from_json == first
    text = json.dumps(first.to_json(), allow_nan=False)
    assert json.loads(text) == first.to_json()
    assert set(json.loads(text)["nodes"]) == {str(n) for n in range(len(graph.nodes))}
    assert json.dumps(first.nodes)


# -- the user's word ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"x": "[_, tp]"},
        {"x": "[tp, dp]", "w_ff1": "[_, _]"},
        {"mid": "[_, dp+tp]"},
        {"out": "[_, _]"},
        {"h": "[tp, _]"},
    ],
    ids=str,
)
def test_given_shardings_are_kept(given: dict[str, str], transformer_block: Build) -> None:
    graph = transformer_block(512, 512, 2048)
    solution = solve(graph, MESH, given)
    program = program_of(graph, MESH, solution)
    inputs = dict(zip(graph.inputs, program.locals_of(program.inputs)))
    for name, text in given.items():
        value = graph.by_name[name]
        assert str(solution.specs[value]) == text
        assert str(solution.pinned[value]) == text
        if value in inputs:
            assert str(inputs[value].spec) == text
        else:
            maker = graph.node_of(value)
            assert maker is not None
            assert solution.nodes[maker]["results"] == [text]


def test_open_dims_are_filled_and_closed_ones_left(matmul: Build) -> None:
    solution = solve(matmul(4096, 4096, 4096), MESH, {"x": "[dp+?, _]"})
    spec = solution.pinned[0]
    assert spec.dims[0].axes[0].name == "dp"
    assert not spec.dims[1].axes
    assert not any(dim.open for dim in spec.dims)


def test_everything_given_replicated_is_still_divided(matmul: Build) -> None:
    """Cutting what everybody has is free; only the result has to be put together."""
    graph = matmul(4096, 4096, 4096)
    same = "[_, _]"
    solution = solve(graph, "d=8", {"x": same, "w": same, "y": same})
    assert chosen(solution) != ["Replicated"]
    assert solution.cost < solve(graph, "d=1").cost
    assert {str(solution.specs[v]) for v in range(3)} == {same}


def test_outputs_are_as_asked(mlp: Build) -> None:
    graph = mlp(1024, 1024, 4096)
    solution = solve(graph, MESH, out_specs={0: "[_, _]"})
    program = program_of(graph, MESH, solution, {0: "[_, _]"})
    assert str(program.values[program.outputs[0]].spec) == "[_, _]"
    assert solution.cost == program_cost(program, H100).total


def test_another_mesh_is_refused(matmul: Build) -> None:
    solver = SimpleSolver(MESH)
    assert solver.solve(matmul(8, 8, 8), MESH, {}).nodes
    with pytest.raises(MeshError, match="another mesh"):
        solver.solve(matmul(8, 8, 8), DeviceMesh("d=8"))


# -- memory ---------------------------------------------------------------------------------------------


def with_memory(gigabytes: float) -> Hardware:
    return H100.with_memory(int(gigabytes * 10**9))


def test_a_weight_that_does_not_fit_is_sharded(matmul: Build) -> None:
    """17 GB of weight, and the batch comes split: data parallel only where the weight fits whole."""
    graph = matmul(8192, 65536, 65536)
    roomy = solve(graph, "d=8", {"x": "[d, _]"}, hardware=with_memory(80))
    assert chosen(roomy) == ["Data Parallel (Split M)"]
    assert str(roomy.specs[1]) == "[_, _]"
    tight = solve(graph, "d=8", {"x": "[d, _]"}, hardware=with_memory(16))
    assert tight.specs[1].sharded_axes
    assert tight.memory <= 16 * 10**9
    assert tight.cost > roomy.cost
    assert "  > Costs: DP=inf, MP=" in "\n".join(tight.log)


@pytest.mark.parametrize("percent", [90, 60, 45])
def test_weights_that_do_not_fit_together_are_sharded(mlp: Build, percent: int) -> None:
    graph = mlp(16384, 4096, 16384, layers=6, dtype="bf16")
    roomy = solve(graph, MESH)
    assert chosen(roomy) == ["Data Parallel (Split M)"] * 12
    limit = roomy.memory * percent // 100
    tight = solve(graph, MESH, hardware=H100.with_memory(limit))
    assert tight.memory <= limit
    assert tight.cost > roomy.cost


def test_a_program_that_fits_nowhere_is_refused(mlp: Build, matmul: Build) -> None:
    with pytest.raises(PlanInfeasible, match="fits on no device"):
        solve(matmul(4096, 4096, 4096), MESH, hardware=with_memory(0.001))
    with pytest.raises(PlanInfeasible, match="no plan was found that fits in memory") as caught:
        solve(mlp(64, 4096, 4096, layers=4), "d=2", hardware=with_memory(0.1))
    assert "bytes at the peak" in str(caught.value)


def test_a_given_sharding_that_does_not_fit_is_named(mlp: Build) -> None:
    graph = mlp(64, 4096, 4096, layers=2)
    same = {f"w{i}_{layer}": "[_, _]" for i in (1, 2) for layer in (0, 1)}
    with pytest.raises(PlanInfeasible) as caught:
        solve(graph, "d=8", same, hardware=with_memory(0.15))
    assert "user    %w1_0 = [_, _], 67108864 bytes" in str(caught.value)


# -- a price from outside -------------------------------------------------------------------------------


def test_a_price_decides(mlp: Build) -> None:
    """Whoever prices can steer: here, by counting what is replicated."""
    graph = mlp(1024, 1024, 4096)
    w1 = graph.by_name["w1_0"]

    def price(specs: Mapping[int, ShardingSpec]) -> int:
        assert sorted(specs) == list(range(len(graph.values)))
        return 1 + 10 * (str(specs[w1]) != "[dp, tp]")

    solution = solve(graph, MESH, price=price)
    assert solution.cost == 1
    assert str(solution.specs[w1]) == "[dp, tp]"
    assert solution.forced == {}


@pytest.mark.parametrize("which", ["transformer_block", "diamond"])
def test_a_price_that_reads_shardings_loosely_still_beats_the_plain_plans(
    which: str, request: pytest.FixtureRequest
) -> None:
    """A pipeline that spreads the shardings again and forces nothing: never worse than splitting nothing."""
    graph = request.getfixturevalue(which)(64, 256, 1024)

    def price(specs: Mapping[int, ShardingSpec]) -> int:
        opened = {v: spec.replace(dims=[DimSpec(dim.axes, True) for dim in spec.dims]) for v, spec in specs.items()}
        found = run_hierarchical_propagation_pass(graph, opened, rule_of)
        return program_cost(lower(complete(graph, MESH, found.specs, rule_of)), H100).total

    solution = solve(graph, MESH, price=price)
    assert solution.cost == price(solution.specs)
    assert solution.cost <= solve(graph, "d=1").cost


def test_a_price_that_sees_forced_axes_may_use_them(mlp: Build) -> None:
    graph = mlp(128, 4096, 16384)
    calls: list[Mapping[int, object]] = []

    def price(specs: Mapping[int, ShardingSpec], forced: Mapping[int, object]) -> int:
        calls.append(forced)
        placed = [specs[value.id] for value in graph.values]
        return program_cost(lower(complete(graph, MESH, placed, rule_of, forced=forced)), H100).total  # type: ignore[arg-type]

    solution = solve(graph, MESH, price=price)
    assert all(sorted(forced) == [0, 2] for forced in calls)
    assert solution.cost == solve(graph, MESH).cost


# -- what it prints -------------------------------------------------------------------------------------


def test_debug_prints_these_lines_and_no_others(transformer_block: Build) -> None:
    lines: list[str] = []
    solution = SimpleSolver(MESH, debug=True, log=lines.append).solve(transformer_block())
    assert tuple(lines) == solution.log
    for line in lines:
        assert any(re.fullmatch(form, line) for form in LINES), line
    assert [line for line in lines if "Analyzing" in line] == [
        f"[Solver] Analyzing Node {n}: matmul" for n in (0, 1, 2, 4, 5, 6, 8, 9)
    ]
    assert lines[-3:] == [
        "[Solver] Propagation iteration 1: changed=True",
        "[Solver] Propagation iteration 2: changed=False",
        "[Solver] Fixed-point reached after 2 iterations",
    ]


@pytest.mark.parametrize(("which", "sizes"), CASES, ids=str)
def test_the_selected_strategy_is_the_cheapest_shown(
    which: str, sizes: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    log = solve(request.getfixturevalue(which)(*sizes), MESH).log
    for costs, selected in pairwise(log):
        if "> Costs" in costs:
            data, model = map(float, re.findall(r"[\d.]+e\+\d+", costs))
            if selected.startswith("  > Selected Strategy: Data Parallel") and "Model" not in selected:
                assert data <= model
            elif "Model" in selected:
                assert model <= data


def test_without_debug_nothing_is_printed(matmul: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert SimpleSolver(MESH).solve(matmul(64, 64, 64)).log
    assert capsys.readouterr().out == ""
    SimpleSolver(MESH, debug=True).solve(matmul(64, 64, 64))
    assert "[Solver] Analyzing Node 0: matmul" in capsys.readouterr().out


def test_no_convergence_is_a_warning(matmul: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_ITERATIONS", 1)
    log = solve(matmul(4096, 64, 64), MESH).log
    assert log[-1] == "[Solver] WARNING: Did not converge after 1 iterations"


def test_an_unknown_op_is_told_and_runs_replicated() -> None:
    graph = Graph.parse("""graph f(%x: f32[4096, 64], %w: f32[64, 64]) {
      %y = matmul(%x, %w) : f32[4096, 64]
      %z = no.such_op(%y) : f32[4096, 64]
      return %z
    }""")
    solution = solve(graph, MESH)
    assert solution.log[0] == "[GraphExtractor] WARNING: Failed to get sharding_rule for node 1"
    assert solution.nodes[1]["operands"] == solution.nodes[1]["results"] == ["[_, _]"]


# -- small and odd --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "graph f(%x: f32[4]) { return %x }",
        "graph f() { return }",
        "graph f(%x: f32[]) { %y = exp(%x) : f32[] return %y, %y }",
        "graph f(%x: f32[0, 8], %w: f32[8, 4]) { %y = matmul(%x, %w) : f32[0, 4] return %y }",
        "graph f(%x: f32[5, 7]) { %y = matmul(%x, %x) : f32[5, 7] return %y }",
    ],
)
def test_odd_programs(text: str) -> None:
    graph = Graph.parse(text)
    for mesh in ("d=1", "d=8", "dp=2, tp=4"):
        solution = solve(graph, mesh)
        assert sorted(solution.nodes) == list(range(len(graph.nodes)))
        program_of(graph, DeviceMesh(mesh), solution)


def test_one_device_replicates(mlp: Build) -> None:
    solution = solve(mlp(64, 64, 64), "d=1")
    assert chosen(solution) == ["Replicated"] * 2
    assert solution.communication == 0
