"""How long planning a Llama-3 training step takes, the user's whole call and the planner alone, and how good plans are.

    python benchmarks/plan_speed.py                       # the targets' cases
    python benchmarks/plan_speed.py --calls               # of them the user's calls only
    python benchmarks/plan_speed.py --layers 4 --mesh x=4,y=8 --memory 60
    python benchmarks/plan_speed.py --equal               # network as fast as the node: axes that are nearly equal

One AdamW step of ``--layers`` decoder blocks between embedding and head, bf16, batch 8 x 4096.  All seconds are CPU
seconds of one core.  The first table is `sw.plan`, from the model to a priced plan, recipes tried beside it; `call with
proof` goes on until its Program is proven; `capture` is a part of the call, taken by itself.  The second is another
part, the planner: `seconds` without capture, recipes and lowering; `gap` is how far the plan may lie above the best,
`peak` the most memory that the process held so far, `holds` what the plan holds on a device.  Every plan is lowered and
priced again from its Program.
Without arguments it ends with what depth costs: 4, 32 and 128 layers by turns.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers

import shardwright as sw
from shardwright import DeviceMesh
from shardwright.cost import RESIDENT, Hardware, hardware_of, program_cost, program_memory
from shardwright.frontends.torch import capture_step
from shardwright.ir.graph import Graph
from shardwright.lower import lower
from shardwright.plans import Asked
from shardwright.propagation.complete import Complete
from shardwright.solve.exact import best_plan

CASES: list[tuple[int, str, float | None]] = [
    (1, "d=8", None), (1, "x=4,y=8", None), (1, "x=2,y=4,z=8", None),
    (4, "d=8", None), (32, "d=8", None), (128, "d=8", None),
    (4, "x=8,y=8", None), (32, "x=8,y=8", None), (128, "x=8,y=8", None), (32, "x=2,y=4,z=8", None),
    (32, "d=8", 45), (32, "x=8,y=8", 14), (32, "x=2,y=4,z=8", 14),
]  # fmt: skip
CALLS = [
    ("8B", 32, "d=8"), ("8B", 32, "x=8,y=8"), ("8B", 32, "x=2,y=4,z=8"), ("8B", 32, "x=64,y=8"), ("70B", 80, "x=8,y=8"),
]  # fmt: skip
SIZES = {"8B": (4096, 14336, 32), "70B": (8192, 28672, 64)}
"""Hidden size, that between, and heads."""
CALL_COLUMNS = (
    "model",
    "layers",
    "mesh",
    "nodes",
    "sw.plan, seconds",
    "call with proof",
    "part: capture",
    "cost ms",
    "gap",
    "solver",
)
COLUMNS = ("layers", "mesh", "nodes", "limit", "seconds", "cost ms", "gap", "holds", "solver", "peak")


def model_of(layers: int, size: str = "8B") -> torch.nn.Module:
    hidden, between, heads = SIZES[size]
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=hidden, intermediate_size=between, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model: torch.nn.Module = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    return model


def step_of(layers: int, size: str = "8B") -> tuple[Callable[..., Any], dict[str, Any]]:
    """The loss, and what capture and `sw.plan` take beside it; the batch by the names that the model knows."""
    model = model_of(layers, size)
    ids = torch.empty(8, 4096, dtype=torch.long, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=input_ids, labels=labels).loss
        return found

    return loss, {"optimizer": optimizer, "input_ids": ids, "labels": ids}


def llama(layers: int, size: str = "8B") -> Graph:
    fn, about = step_of(layers, size)
    return capture_step(fn, **about).graph


def call(size: str, layers: int, mesh: str, about: Hardware) -> list[str]:
    """The user's call."""
    fn, given = step_of(layers, size)
    began = time.process_time()
    plan = sw.plan(fn, mesh=mesh, hardware=about, **given)
    seconds = time.process_time() - began
    plan.verify()
    proven = time.process_time() - began
    began = time.process_time()
    nodes = len(capture_step(fn, **given).graph.nodes)
    capture = time.process_time() - began
    return [
        size, str(layers), mesh, str(nodes), f"{seconds:.2f}", f"{proven:.2f}", f"{capture:.2f}",
        f"{plan.cost.objective / 1e9:.3f}", f"{100 * plan.gap:.6f}%", plan.solver,
    ]  # fmt: skip


def show(columns: Sequence[str], rows: Iterable[list[str]]) -> None:
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def measure(
    graph: Graph, layers: int, mesh: str, about: Hardware, memory: float | None, limit: float | None
) -> list[str]:
    lowering = 0.0

    def held(complete: Complete) -> int:
        nonlocal lowering
        began = time.process_time()
        found = program_memory(lower(complete), RESIDENT)
        lowering += time.process_time() - began
        return found

    asked = Asked.fixing(graph, memory=None if memory is None else int(memory * 2**30))
    began = time.process_time()
    found = best_plan(graph, DeviceMesh(mesh), about, asked, time_limit=limit, measure=held)
    seconds = time.process_time() - began - lowering
    program = lower(found.complete)
    assert program_cost(program, about, graph).objective == found.objective, "the price is not that of the Program"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    late = " (time limit)" if found.timed_out else ""
    holds = f"{program_memory(program, RESIDENT) / 2**30:.2f} GiB"
    return [
        str(layers), mesh, str(len(graph.nodes)), "-" if memory is None else f"{memory:g} GiB", f"{seconds:.2f}",
        f"{found.objective / 1e9:.3f}", f"{100 * found.gap:.6f}%", holds,
        found.solver + late, f"{peak:.2f} GiB",
    ]  # fmt: skip


def depth(graphs: dict[int, Graph], mesh: str, about: Hardware, runs: int) -> str:
    """What depth costs, as ratios of the best of several runs, taken by turns: single ones are too noisy."""
    best = dict.fromkeys(graphs, float("inf"))
    for _ in range(runs):
        for layers, graph in graphs.items():
            began = time.process_time()
            best_plan(graph, DeviceMesh(mesh), about)
            best[layers] = min(best[layers], time.process_time() - began)
    layers = sorted(best)
    ratios = [f"{b} layers take {best[b] / best[a]:.2f} times {a}" for a, b in pairwise(layers)]
    return f"on {mesh}: {', '.join(ratios)} (best of {runs})"


def autoparallel(layers: int, mesh: str) -> str:
    """The nearest peer on the same model: forward and backward without the optimizer, its own costs, no bound."""
    if importlib.util.find_spec("autoparallel") is None:
        return "AutoParallel is not installed: no comparison"
    from autoparallel.api import AutoParallel  # type: ignore[import-not-found]
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    axes = DeviceMesh(mesh).axes
    world = prod(axis.size for axis in axes)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        devices = init_device_mesh("cuda", [axis.size for axis in axes], mesh_dim_names=[axis.name for axis in axes])

        def inputs() -> tuple[torch.Tensor]:
            return (torch.randint(0, 128256, (8, 4096), device="cuda"),)

        began = time.process_time()
        with AutoParallel(model_of(layers), inputs, devices) as planner:
            planner.optimize_placement()
        return f"AutoParallel: {time.process_time() - began:.1f} s for {layers} layers on {mesh}"
    except Exception as error:  # its interface is young; a failed comparison is no failed measurement
        return f"AutoParallel did not plan {layers} layers on {mesh}: {type(error).__name__}: {error}"
    finally:
        torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--mesh", default="d=8")
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--memory", type=float, help="GiB per device")
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--calls", action="store_true", help="the user's calls only")
    parser.add_argument("--equal", action="store_true", help="the network as fast as the links inside a node")
    told = parser.parse_args()
    torch.set_num_threads(1)
    # Asking for an op's parts imports much of torch once; that is not planning.
    importlib.import_module("torch._dynamo")

    cases = CASES if told.layers is None else [(told.layers, told.mesh, told.memory)]
    about = hardware_of(told.hardware)
    if told.equal:
        about = replace(about, network=about.default_link)
    call("8B", 1, "d=2", about)  # rules of ops are read once
    if told.layers is None or told.calls:
        calls = CALLS if told.layers is None else [("8B", told.layers, told.mesh)]
        show(CALL_COLUMNS, (call(*case, about) for case in calls))
    if told.calls:
        return
    graphs: dict[int, Graph] = {}

    def rows() -> Iterator[list[str]]:
        for layers, mesh, memory in cases:
            if layers not in graphs:
                graphs[layers] = llama(layers)
            yield measure(graphs[layers], layers, mesh, about, memory, told.time_limit)

    print()
    show(COLUMNS, rows())
    if told.layers is None:
        deep = {layers: graphs[layers] for layers in (4, 32, 128)}
        print(depth(deep, "d=8", about, 9), depth(deep, "x=8,y=8", about, 3), sep="\n")
    print(autoparallel(*cases[-1][:2]))


if __name__ == "__main__":
    main()
