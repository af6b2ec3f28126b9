"""The engine in one process, the virtual mesh on tensors, and the watch over other ranks without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from by_hand import Said, compile_graph
from shardwright.errors import GraphError, MeshError, SpecError
from shardwright.frontends.torch import capture, prepare
from shardwright.run import Engine, VirtualEngine
from shardwright.run.torch import TorchArrays, TorchEngine, assemble, scatter
from shardwright.run.torch.safety import default_timeout, program_digest
from shardwright.run.torch.watch import Fault, Process, Watch
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


def test_the_timeout_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDWRIGHT_TIMEOUT", raising=False)
    assert default_timeout() == 300.0
    monkeypatch.setenv("SHARDWRIGHT_TIMEOUT", "12.5")
    assert default_timeout() == 12.5


# -- the watch ------------------------------------------------------------------------------------------


class Another:
    """A rank that exists in the store only."""

    def __init__(self, store: Any, rank: int, process: Process) -> None:
        store.set(f"who/{rank}", json.dumps([process.host, process.pid, process.started]))
        store.set(f"beat/{rank}", json.dumps([0, 0.0]))


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Not started: the tests look themselves, once a call."""
    made = Watch(dist.HashStore(), 0, timeout=0.2)
    made.ranks = {0, 1, 2}
    for rank in (1, 2):
        Another(made.store, rank, Process.this())
    yield made
    os.close(made._wake)
    os.close(made._waker)


def look(watch: Watch) -> str | None:
    watch._look()
    return None if watch.fault is None else str(watch.fault)


def test_nothing_is_wrong(watch: Watch) -> None:
    assert look(watch) is None
    watch.inside, watch.entered = time.monotonic(), 1
    assert look(watch) is None


def test_a_fault_that_was_told_is_seen_and_the_first_one_counts(watch: Watch) -> None:
    other = Watch(watch.store, 1, 1.0)
    assert str(other.tell(Fault((1,), "failed: ValueError: no"))) == "rank 1 failed: ValueError: no"
    assert look(watch) == "rank 1 failed: ValueError: no"
    late = Watch(watch.store, 2, 1.0)
    assert str(late.tell(Fault((2,), "failed later"))) == "rank 1 failed: ValueError: no"
    for one in (other, late):
        os.close(one._wake)
        os.close(one._waker)


def test_a_dead_process_is_seen(watch: Watch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    from shardwright.run.torch.watch import _host, _started

    Another(watch.store, 2, Process(_host(), child.pid, _started(child.pid) or ""))
    assert look(watch) is None
    child.kill()
    child.communicate()
    assert look(watch) == f"rank 2 died: its process {child.pid} is gone"


def test_silence_on_another_host_is_seen(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.run.torch.watch.SILENCE", 0.05)
    Another(watch.store, 2, Process("elsewhere", 1, "0"))
    assert look(watch) is None
    time.sleep(0.1)
    watch.store.set("beat/2", json.dumps([1, 1.0]))
    assert look(watch) is None
    time.sleep(0.1)
    assert look(watch) == "rank 2 gave no sign of life for 0 s"


def test_who_does_not_arrive_is_named(watch: Watch) -> None:
    watch.entered, watch.doing = 3, "step 3 (f)"
    watch.store.set("beat/1", json.dumps([3, 0.0]))
    watch.inside = time.monotonic() - 1.0
    assert look(watch) == "rank 2 did not arrive at step 3 (f) within 0.2 s"


def test_a_step_that_nobody_finishes(watch: Watch) -> None:
    watch.entered, watch.doing = 3, "step 3 (f)"
    for rank in (1, 2):
        watch.store.set(f"beat/{rank}", json.dumps([3, 0.0]))
    watch.inside = time.monotonic() - 1.0
    assert look(watch) == "ranks 0, 1, 2 did not finish step 3 (f) within 0.2 s; all have arrived"


def test_who_left_is_a_fault_for_those_who_wait_only(watch: Watch) -> None:
    watch.timeout, watch.doing = 60.0, "step 1 (f)"
    watch.store.set("left/1", "1")
    assert look(watch) is None
    watch.inside = time.monotonic() - 3.0
    assert look(watch) is None  # noticed now, and given time
    watch._left[1] -= 3.0
    assert look(watch) == "rank 1 ended while others wait for it in step 1 (f)"


def test_the_store_is_lost(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)

    class Gone:
        def set(self, *_: Any) -> None:
            raise RuntimeError("Broken pipe")

    watch.store = Gone()
    watch.inside = time.monotonic()
    for _ in range(2):
        assert look(watch) is None
    assert look(watch) == "rank 0 is gone, and the store with it (RuntimeError: Broken pipe)"
