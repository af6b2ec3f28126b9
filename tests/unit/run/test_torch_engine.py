"""The engine in one process, and the virtual mesh on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from by_hand import Said, compile_graph
from shardwright.errors import GraphError, MeshError, SpecError
from shardwright.frontends.torch import capture, prepare
from shardwright.run import Engine, VirtualEngine
from shardwright.run.torch import TorchArrays, TorchEngine, assemble, scatter
from shardwright.run.torch.ranks.safety import program_digest
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec

torch.set_num_threads(1)


# -- arrays ---------------------------------------------------------------------------------------------


def test_scatter_shows_and_assemble_joins() -> None:
    mesh = DeviceMesh("x=3")
    spec, whole = ShardingSpec.of("[_, x]", mesh, 2), torch.arange(10.0).reshape(2, 5)
    shards = scatter(whole, spec)
    assert [tuple(shard.shape) for shard in shards] == [(2, 2), (2, 2), (2, 1)]
    assert all(shard.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() for shard in shards)
    assert torch.equal(assemble(shards, spec, (2, 5)), whole)
    everywhere = ShardingSpec.replicate(mesh, 2)
    assert assemble([whole] * 3, everywhere, (2, 5)) is whole


def test_combine() -> None:
    arrays = TorchArrays()
    parts = [torch.tensor([1, 2]), torch.tensor([4, 3])]
    assert arrays.combine("avg", parts).tolist() == [2, 2]
    assert arrays.combine("avg", parts).dtype == torch.int64
    assert arrays.combine("prod", parts).tolist() == [4, 6]
    assert arrays.combine("max", [torch.tensor([False]), torch.tensor([True])]).tolist() == [True]
    assert arrays.neutral_like("prod", parts[0]).tolist() == [1, 1]
    with pytest.raises(SpecError, match="a pending sum of booleans"):
        arrays.combine("sum", [torch.tensor([True])] * 2)


def test_the_virtual_mesh_runs_programs_of_tensors() -> None:
    x, w = torch.randn(6, 5, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    captured = capture(lambda x, w: torch.relu(x @ w).sum(0), x, w)
    mesh = DeviceMesh("dp=2, tp=3")
    specs = [ShardingSpec.of(text, mesh, 2) for text in ("[dp, tp]", "[tp, _]")]
    program = compile_graph(captured.graph, mesh, Said(dict(zip(captured.graph.inputs, specs)))).program
    engine = VirtualEngine(mesh, prepare, TorchArrays())
    outputs, executed = engine.compile(program).run([scatter(t, spec) for t, spec in zip((x, w), specs)])
    local = program.values[program.outputs[0]]
    found = assemble(outputs[0], local.spec, local.type.shape)
    torch.testing.assert_close(found, torch.relu(x @ w).sum(0), rtol=1e-12, atol=1e-12)
    assert executed.collectives == program.collectives


# -- one process ----------------------------------------------------------------------------------------


def test_a_mesh_of_one_needs_no_others() -> None:
    engine = TorchEngine("x=1")
    assert isinstance(engine, Engine)
    assert engine.name == "torch"
    assert engine.supports_distributed()
    x = torch.arange(6.0).reshape(3, 2).t()
    for found in (engine.all_reduce_sum(x), engine.all_gather(x), engine.reduce_scatter(x), engine.all_to_all(x),
                  engine.broadcast(x), engine.permute(x, [(0, 0)]), engine.all_reduce(x, "max", "x")):  # fmt: skip
        assert torch.equal(found, x)
    assert engine.all_gather(torch.tensor(2.0)).tolist() == [2.0]
    assert engine.permute(x, []).tolist() == torch.zeros_like(x).tolist()
    assert engine.assemble(engine.scatter(x, "[x, _]"), "[x, _]", (2, 3)).tolist() == x.tolist()


def test_a_program_on_one_device_checks_its_inputs() -> None:
    x = torch.randn(4, 3)
    graph = capture(lambda x: x.t() * 2, x).graph
    compiled = TorchEngine("x=1").compile(compile_graph(graph, DeviceMesh("x=1"), Said({})).program)
    outputs, executed = compiled.run([x.requires_grad_()])
    assert torch.equal(outputs[0], x.t() * 2)
    assert not outputs[0].requires_grad
    assert executed.collectives == []
    with pytest.raises(GraphError, match=r"x is f64\[4, 3\], not f32\[4, 3\]"):
        compiled([x.double()])
    with pytest.raises(GraphError, match="2 inputs, not 1"):
        compiled([x, x])


def test_several_devices_need_several_processes() -> None:
    with pytest.raises(MeshError, match="a mesh of 4 devices, but this is one process") as caught:
        TorchEngine("dp=2, tp=2")
    assert "torchrun --nproc-per-node 4" in str(caught.value)
    program = compile_graph(capture(torch.tanh, torch.ones(2)).graph, DeviceMesh("x=2"), Said({})).program
    with pytest.raises(MeshError, match="the program is for another mesh"):
        TorchEngine("x=1").compile(program)


def test_members_and_pairs_are_checked() -> None:
    engine = TorchEngine("x=1")
    with pytest.raises(SpecError, match="member 1 cannot be a target here"):
        engine.permute(torch.ones(2), [(0, 1)])
    with pytest.raises(MeshError, match="no member 3 in a group of 1"):
        engine.broadcast(torch.ones(2), 3)
    with pytest.raises(SpecError, match="all_to_all cuts dim 0"):
        engine.all_to_all(torch.ones(()))


# -- what ranks compare ---------------------------------------------------------------------------------


def test_the_digest_sees_what_a_program_does_and_not_where_it_stands() -> None:
    def f(x: Any) -> Any:
        return torch.tanh(x)

    def g(x: Any) -> Any:
        return torch.tanh(x)

    def digest(fn: Callable[..., Any], tensor: Any, mesh: str = "x=2") -> str:
        return program_digest(compile_graph(capture(fn, tensor).graph, DeviceMesh(mesh), Said({})).program)

    x = torch.ones(4)
    assert digest(f, x) == digest(g, x)
    assert len({digest(f, x), digest(f, x.double()), digest(torch.sin, x), digest(f, x, "y=2")}) == 4


def test_one_process_loads_state_whatever_its_device() -> None:
    """Nobody asks for a backend that is not there."""
    from types import SimpleNamespace

    from shardwright.run.torch.ranks.loading import _carrier

    assert _carrier(SimpleNamespace(device=torch.device("cuda"))).type == "cpu"
