"""Every rank: emitted programs on real processes, against the virtual mesh and against what PyTorch counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

from by_hand import Said, compile_graph
from counting import Counted, started
from shardwright.cost import hardware_of
from shardwright.frontends.torch import capture, capture_step, prepare
from shardwright.ir.program import Program
from shardwright.lower import ordered
from shardwright.run import VirtualEngine
from shardwright.run.torch import TorchArrays, TorchEngine, scatter
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    hidden = torch.relu(x @ w + b)
    return (hidden @ v).softmax(-1), hidden.sum(0), hidden.t()


def lowered(captured: Any, mesh: str, specs: Sequence[str | None]) -> Program:
    on = DeviceMesh.of(mesh)
    said = {
        value: ShardingSpec.of(spec, on, captured.graph.type(value).rank)
        for value, spec in zip(captured.graph.inputs, specs)
        if spec is not None
    }
    return compile_graph(captured.graph, on, Said(said)).program


def check(program: Program, wholes: Sequence[Any], expected: Sequence[Any], compiler: str | None = None) -> None:
    engine = TorchEngine(program.mesh, timeout=60)
    compiled = engine.compile(program)
    locals_ = [engine.scatter(whole, program.values[v].spec) for whole, v in zip(wholes, program.inputs)]
    with Counted() as counted:
        outputs, executed = compiled.run(locals_)
    assert executed.collectives == program.collectives
    assert counted.counts == started(program), (counted.counts, program.collectives)
    assert sum(counted.counts.values()) == executed.starts
    virtual = VirtualEngine(program.mesh, prepare, TorchArrays()).compile(program)
    reference, _ = virtual.run([scatter(whole, program.values[v].spec) for whole, v in zip(wholes, program.inputs)])
    for value, output, parts, whole in zip(program.outputs, outputs, reference, expected):
        torch.testing.assert_close(output, parts[engine.position], rtol=1e-10, atol=1e-10)
        local = program.values[value]
        torch.testing.assert_close(engine.assemble(output, local.spec, local.type.shape), whole, rtol=1e-9, atol=1e-9)
    if compiler is not None:
        again = torch.compile(compiled.module, backend=compiler, fullgraph=True)(*locals_)
        for one, other in zip(outputs, again):
            torch.testing.assert_close(one, other)


def functions(sizes: tuple[int, int, int, int], compiler: str | None = None) -> Callable[[], None]:
    def run() -> None:
        generator = torch.Generator().manual_seed(0)
        n, i, h, o = sizes
        args = [
            torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((n, i), (i, h), (h,), (h, o))
        ]
        captured = capture(mlp, *args)
        for specs in (
            ("[dp, _]", "[_, tp]", "[tp]", "[tp, _]"),
            ("[dp, tp]", None, None, None),
            ("[dp+tp, _]", "[dp, tp]", None, "[_, dp]"),
        ):
            check(lowered(captured, "dp=2, tp=2", specs), args, mlp(*args), compiler)
        check(
            lowered(captured, "tp=2, dp=2; devices=[2, 0, 3, 1]", ("[dp, tp]", "[tp, _]", None, None)), args, mlp(*args)
        )

    return run


def turned() -> None:
    """A sum of what was turned is sent as it lies in memory, alone and with others."""

    def fn(x: Any, w: Any) -> Any:
        one, other = ((x @ w).view(2, 3, 2, 5).permute(2, 3, 0, 1), (x @ -w).t())
        return one.tanh().transpose(0, 2).reshape(6, 10), other.tanh()

    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((6, 4), (4, 10))]
    captured = capture(fn, *args)
    graph, on = captured.graph, DeviceMesh("dp=2, tp=2")
    said = {graph.inputs[0]: ShardingSpec.of("[_, dp+tp]", on, 2), graph.inputs[1]: ShardingSpec.of("[dp+tp, _]", on, 2)}
    for node in graph.nodes:
        if node.op in ("aten.mm", "aten.view", "aten.permute", "aten.t"):
            rank = graph.type(node.results[0]).rank
            said[node.results[0]] = ShardingSpec.of(f"[{', '.join('_' * rank)}] // dp, tp", on, rank)
    program = compile_graph(graph, on, Said(said)).program
    assert [c.kind for c in program.collectives] == ["all_reduce"] * 2
    check(program, args, fn(*args))
    check(ordered(program, hardware_of("h100")), args, fn(*args))


def training_step() -> None:
    """Forward, backward and the optimizer, with uneven weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(6, 5, dtype=torch.float64)
    captured = capture_step(model, x, optimizer=optimizer, loss=lambda out: out.square().mean())
    specs = {"input": "[dp, _]", "0.weight": "[tp, dp]", "0.bias": "[tp]", "2.weight": "[_, tp]"}
    names = [captured.graph.values[value].name for value in captured.graph.inputs]
    program = lowered(captured, "dp=2, tp=2", [specs.get(name) for name in names])
    inputs = [tensor.detach().clone() for tensor in captured.inputs(x)]
    from shardwright.frontends.torch import run_graph

    check(program, inputs, run_graph(captured.graph, inputs))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, work in {
        "even": functions((8, 4, 6, 4), "aot_eager"),
        "uneven": functions((5, 3, 7, 2)),
        "empty": functions((1, 3, 1, 2)),
        "turned": turned,
        "step": training_step,
    }.items():
        work()
        print(f"passed {name}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
