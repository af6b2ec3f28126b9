"""shard_map: the seeds' programs literally, specs in all their forms, and what users meet."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.cost import hardware_of, program_cost
from shardwright.errors import SpecError
from shardwright.rules.registry import forget

MESH = "dp=2, tp=4"


def transformer_block(x, w_q, w_k, w_v, w_o, w_ff1, w_ff2):
    # Attention
    q = x @ w_q
    k = x @ w_k
    v = x @ w_v
    # (simplified - real attention would have softmax etc.)
    attn = q @ k.T @ v
    attn_out = attn @ w_o

    # FFN
    h = (x + attn_out) @ w_ff1
    h = h @ w_ff2

    return x + h


def diamond(x, w1, w2):
    h = x @ w1
    branch1 = h + 1
    branch2 = h * 2
    return branch1 @ branch2.T


def normal(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def block_arguments(dtype: Any = np.float64) -> list[np.ndarray]:
    shapes = [(16, 32), (32, 32), (32, 32), (32, 32), (32, 32), (32, 64), (64, 32)]
    return [normal(*shape, dtype=dtype) / 8 for shape in shapes]


@pytest.mark.parametrize(
    "specs",
    [
        (P("dp", None), *[P()] * 6),
        (P("dp", None), P(None, "tp"), P(None, "tp"), P(None, "tp"), P("tp", None), P(None, "tp"), P("tp", None)),
        (P(None, "tp"), *[P("tp", None)] * 6),
        (P(("dp", "tp"), None), *[P("dp", "tp")] * 6),
        (None, P(None, "tp"), None, None, None, None, None),
    ],
)
def test_transformer_block_with_manual_specs(specs: Any) -> None:
    args = block_arguments()
    mapped = sw.shard_map(transformer_block, MESH, in_specs=specs)
    np.testing.assert_allclose(mapped(*args), transformer_block(*args), rtol=1e-10)
    assert mapped.executed is not None
    assert mapped.executed.collectives == mapped.program(*args).collectives
    assert not mapped.program(*args).notes


def test_transformer_block_automatically(capsys: pytest.CaptureFixture[str]) -> None:
    args = block_arguments()
    mapped = sw.shard_map(transformer_block, MESH, auto_sharding=True, debug=True)
    np.testing.assert_allclose(mapped(*args), transformer_block(*args), rtol=1e-10)
    printed = capsys.readouterr().out
    assert "[Solver] Analyzing Node 0: matmul" in printed
    assert "[Solver] Fixed-point reached after" in printed
    assert "WARNING" not in printed


@pytest.mark.parametrize("auto", [False, True])
def test_diamond(auto: bool) -> None:
    args = [normal(16, 8), normal(8, 12), normal(3, 3)]
    specs = None if auto else (P("dp", None), P(None, "tp"), None)
    mapped = sw.shard_map(diamond, MESH, in_specs=specs, auto_sharding=auto)
    np.testing.assert_allclose(mapped(*args), diamond(*args), rtol=1e-10)


def kinds(mapped: Any, *args: Any) -> list[str]:
    return [collective.kind for collective in mapped.program(*args).collectives]


def test_a_matmul_split_along_k_reduces_once() -> None:
    x, w = normal(16, 32), normal(32, 8)
    mapped = sw.shard_map(np.matmul, MESH, in_specs=(P(None, "tp"), P("tp", None)))
    assert kinds(mapped, x, w) == ["all_reduce"]
    assert "all_reduce" in str(mapped.program(x, w))
    scattered = sw.shard_map(np.matmul, MESH, in_specs=(P(None, "tp"), P("tp", None)), out_specs=P("tp", None))
    assert kinds(scattered, x, w) == ["reduce_scatter"]
    for each in (mapped, scattered):
        np.testing.assert_allclose(each(x, w), x @ w)


@pytest.mark.parametrize("specs", [(P("dp", None), P()), (P(), P(None, "tp")), (P("dp", None), P(None, "tp"))])
def test_a_matmul_split_along_m_or_n_needs_nothing(specs: Any) -> None:
    x, w = normal(16, 32), normal(32, 8)
    mapped = sw.shard_map(np.matmul, MESH, in_specs=specs)
    assert kinds(mapped, x, w) == []
    np.testing.assert_allclose(mapped(x, w), x @ w)


def test_the_solver_itself_chooses_k() -> None:
    x, w = normal(8, 1 << 15), normal(1 << 15, 8)
    mapped = sw.shard_map(np.matmul, "tp=4", auto_sharding=True)
    np.testing.assert_allclose(mapped(x, w), x @ w)
    assert "all_reduce" in kinds(mapped, x, w)


def test_float16_and_a_large_matmul() -> None:
    args = block_arguments(np.float16)
    mapped = sw.shard_map(transformer_block, MESH, in_specs=(P("dp", None), *[P(None, "tp")] * 6))
    found = mapped(*args)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, transformer_block(*args), rtol=2e-2, atol=2e-2)


def test_a_gigabyte_over_8_devices() -> None:
    """A weight of 1 GiB in float32; two columns are enough to see that it is right."""
    x = np.ones((2, 1 << 14), np.float32)
    w = np.broadcast_to(np.arange(1 << 14, dtype=np.float32) / (1 << 14), (1 << 14, 1 << 14))
    mapped = sw.shard_map(np.matmul, MESH, in_specs=(P(), P(None, ("dp", "tp"))))
    found = mapped(x, w)
    assert w.nbytes == 1 << 30
    for column in (0, 1, -1):
        np.testing.assert_allclose(found[:, column], np.float64(w[0, column]) * len(w), rtol=1e-3)


# -- arguments and specs --------------------------------------------------------------------------------


def test_trees_of_arguments_and_results() -> None:
    def layer(params: dict[str, Any], x: Any, scale: float = 1.0) -> dict[str, Any]:
        h = np.maximum(x @ params["w"] + params["b"], 0) * scale
        return {"h": h, "sums": (h.sum(0), h.mean())}

    params = {"w": normal(8, 12), "b": normal(12)}
    x = normal(4, 8)
    mapped = sw.shard_map(layer, MESH, in_specs=({"w": P(None, "tp"), "b": P("tp")}, P("dp", None)))
    found, expected = mapped(params, x, scale=2.0), layer(params, x, scale=2.0)
    np.testing.assert_allclose(found["h"], expected["h"])
    np.testing.assert_allclose(found["sums"][0], expected["sums"][0])
    np.testing.assert_allclose(found["sums"][1], expected["sums"][1])
    by_name = sw.shard_map(layer, MESH, in_specs={"x": P("dp", None)})
    np.testing.assert_allclose(by_name(params, x)["h"], layer(params, x)["h"])


def test_compiled_once_for_a_signature() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return x + 1

    mapped = sw.shard_map(f, MESH, in_specs=(P("dp"),))
    mapped(normal(4))
    mapped(normal(4) * 2)
    assert len(calls) == 1
    mapped(normal(6))
    assert len(calls) == 2


def test_constraints_inside_a_function() -> None:
    def f(x: Any) -> Any:
        y = sw.with_sharding_constraint(x * 2, P(None, "tp"))
        return y + 1

    x = normal(8, 8)
    mapped = sw.shard_map(f, MESH, in_specs=(P("tp", None),))
    np.testing.assert_allclose(mapped(x), x * 2 + 1)
    program = mapped.program(x)
    assert [c.kind for c in program.collectives] == ["all_to_all"]
    assert str(program.values[program.outputs[0]].spec) == "[_, tp]"
    assert np.array_equal(sw.with_sharding_constraint(x, P("dp")), x), "outside a trace nothing happens"


def test_a_users_spec_is_never_overwritten() -> None:
    mapped = sw.shard_map(
        transformer_block, MESH, in_specs=(P(None, "tp"), *[None] * 6), out_specs=P("tp", None), auto_sharding=True
    )
    args = block_arguments()
    program = mapped.program(*args)
    assert str(program.values[program.inputs[0]].spec) == "[_, tp]"
    assert str(program.values[program.outputs[0]].spec) == "[tp, _]"
    np.testing.assert_allclose(mapped(*args), transformer_block(*args), rtol=1e-10)


def test_torch_placements_and_uneven_shards() -> None:
    dt = pytest.importorskip("torch.distributed.tensor")
    x = normal(7, 5)
    mapped = sw.shard_map(np.tanh, MESH, in_specs=([dt.Replicate(), dt.Shard(0)],))
    np.testing.assert_allclose(mapped(x), np.tanh(x))
    assert str(mapped.program(x).values[0].spec) == "[tp, _]"


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((P("zz"),), "no axis 'zz'"),
        ((P("dp", "dp"),), "used twice"),
        ((P("dp", None, None),), "speaks of 3 dims, the tensor has 2"),
        ((P("dp"), P("dp")), "2 in_specs for 1 positional arguments"),
        ({"y": P("dp")}, "names 'y'"),
    ],
)
def test_bad_specs(specs: Any, message: str) -> None:
    with pytest.raises((SpecError, sw.MeshError), match=message):
        sw.shard_map(np.tanh if not isinstance(specs, dict) else (lambda x: x), MESH, in_specs=specs)(normal(4, 4))


@pytest.mark.usefixtures("kept_book")
def test_an_op_without_a_rule_runs_replicated_and_says_so() -> None:
    forget("cumsum")
    x = normal(8, 4)
    mapped = sw.shard_map(lambda x: np.cumsum(x, axis=0) + 1, MESH, in_specs=(P("dp"),))
    np.testing.assert_allclose(mapped(x), np.cumsum(x, axis=0) + 1)
    assert any("cumsum has no rule and runs replicated" in note for note in mapped.program(x).notes)
    assert "cumsum has no rule" in str(mapped.program(x))


# -- who decides ----------------------------------------------------------------------------------------


def cost_of(mapped: Any, *args: Any) -> int:
    lowered = mapped.plan(*args)
    return program_cost(lowered.program, hardware_of("virtual"), lowered.graph).objective


@pytest.mark.parametrize("fn", [transformer_block, diamond])
def test_the_planner_is_never_dearer_than_the_simple_solver(fn: Any) -> None:
    args = block_arguments() if fn is transformer_block else [normal(16, 8), normal(8, 12), normal(3, 3)]
    planned = sw.shard_map(fn, MESH, auto_sharding=True)
    simple = sw.shard_map(fn, MESH, auto_sharding=True, solver="simple")
    np.testing.assert_allclose(simple(*args), fn(*args), rtol=1e-10)
    assert cost_of(planned, *args) <= cost_of(simple, *args)


def test_the_lines_of_both_solvers(capsys: pytest.CaptureFixture[str]) -> None:
    args = block_arguments()
    for solver in ("auto", "simple"):
        mapped = sw.shard_map(transformer_block, MESH, auto_sharding=True, debug=True, solver=solver)
        mapped.program(*args)
        printed = capsys.readouterr().out
        assert len(re.findall(r"^\[Solver\] Analyzing Node \d+: matmul$", printed, re.MULTILINE)) == 8
        assert len(re.findall(r"^  > Selected Strategy: \S", printed, re.MULTILINE)) == 8
        assert len(re.findall(r"^\[Solver\] Fixed-point reached after \d+ iterations$", printed, re.MULTILINE)) == 1
        costs = re.findall(r"^  > Costs: DP=(\S+), MP=(\S+)$", printed, re.MULTILINE)
        assert len(costs) == 8
        if solver == "auto":  # the plan is the cheaper of the two, unless it splits an op neither way
            best = cost_of(mapped, *args)
            assert all(min(map(float, pair)) >= best * 0.99 for pair in costs)
            assert any(min(map(float, pair)) <= best * 1.01 for pair in costs)


def test_the_hardware_decides() -> None:
    x, w = normal(8, 1 << 15), normal(1 << 15, 8)
    assert kinds(sw.shard_map(np.matmul, "tp=4", auto_sharding=True), x, w) == ["all_reduce"]
    assert kinds(sw.shard_map(np.matmul, "tp=4", auto_sharding=True, hardware="h100"), x, w) == []


def test_automatic_sharding_keeps_the_users_word() -> None:
    x, w = normal(16, 32), normal(32, 8)
    mapped = sw.shard_map(np.matmul, MESH, in_specs=(P(None, "tp"), None), out_specs=P("dp", None), auto_sharding=True)
    lowered = mapped.plan(x, w)
    assert str(lowered.complete.inputs[0]) == "[_, tp]"
    assert str(lowered.complete.outputs[0]) == "[dp, _]"
    np.testing.assert_allclose(mapped(x, w), x @ w)
    opened = sw.shard_map(np.matmul, MESH, in_specs=("[?, tp+?]", None), auto_sharding=True)
    assert str(opened.plan(x, w).complete.inputs[0]).endswith("tp]")


def test_a_module_is_sharded_automatically(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)).double()
    x = torch.randn(64, 32, dtype=torch.float64)
    mapped = sw.shard_map(model, MESH, auto_sharding=True, debug=True)
    torch.testing.assert_close(mapped(x), model(x))
    printed = capsys.readouterr().out
    assert "[Solver] Analyzing Node" in printed
    assert "WARNING" not in printed
    assert any(not spec.is_replicated for spec in mapped.plan(x).complete.inputs)
