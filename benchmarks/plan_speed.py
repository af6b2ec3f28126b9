"""How long planning a Llama-3-8B training step takes, without capture, and how good the plan is.

    python benchmarks/plan_speed.py                       # the targets' cases that fit in a few minutes
    python benchmarks/plan_speed.py --layers 4 --mesh x=4,y=8 --memory 60

One AdamW step of ``--layers`` decoder blocks between embedding and head, bf16, batch 8 x 4096.  Columns: `ways` lists
the ways of all nodes, `problem` prices all moves and writes down the problem of the bound, `bound` solves it, `solve`
brings the solution back, and where that costs more than the bound solves for the plan too; seconds of one core.  `gap`
is how far the plan may lie above the best, `peak` the most memory that the process held.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import resource
import time
from itertools import pairwise
from math import prod

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers

from shardwright import DeviceMesh
from shardwright.cost import hardware_of, program_cost
from shardwright.frontends.torch import capture_step
from shardwright.ir.graph import Graph
from shardwright.lower import lower
from shardwright.solve.assign import Assigner

CASES = [(1, "d=8"), (1, "x=4,y=8"), (4, "d=8"), (32, "d=8")]
COLUMNS = ("layers", "mesh", "nodes", "ways", "problem", "bound", "solve", "total", "cost ms", "gap", "solver", "peak")


def model_of(layers: int) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model: torch.nn.Module = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    return model


def llama(layers: int) -> Graph:
    model = model_of(layers)
    ids = torch.empty(8, 4096, dtype=torch.long, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return capture_step(lambda **batch: model(**batch).loss, optimizer=optimizer, input_ids=ids, labels=ids).graph


def measure(
    graph: Graph, layers: int, mesh: str, hardware: str, memory: float | None, limit: float | None
) -> list[str]:
    about = hardware_of(hardware)
    marks = [time.process_time()]
    limit_bytes = None if memory is None else int(memory * 2**30)
    assigner = Assigner(graph, DeviceMesh(mesh), about, memory=limit_bytes)
    marks.append(time.process_time())
    assigner.terms(bound=True)
    marks.append(time.process_time())
    assigner.optimum(True, "auto", limit)
    marks.append(time.process_time())
    again = time.process_time()
    found = assigner.solve(time_limit=limit)
    whole = time.process_time() - again
    ways, problem, bound = (b - a for a, b in pairwise(marks))
    rest = max(0.0, whole - bound)  # `solve` does the bound's part once more; its tables are there
    priced = program_cost(lower(found.complete), about, graph)
    assert priced.objective == found.cost.objective, "the price is not that of the Program"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = [f"{s:.2f}" for s in (ways, problem, bound, rest, ways + problem + bound + rest)]
    cost, gap = f"{found.cost.objective / 1e9:.3f}", f"{100 * found.gap:.4f}%"
    late = " (time limit)" if found.timed_out else ""
    return [str(layers), mesh, str(len(graph.nodes)), *seconds, cost, gap, found.solver + late, f"{peak:.2f} GiB"]


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
    told = parser.parse_args()
    torch.set_num_threads(1)
    # Asking for an op's parts imports much of torch once; that is not planning.
    importlib.import_module("torch._dynamo")

    cases = CASES if told.layers is None else [(told.layers, told.mesh)]
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    graphs: dict[int, Graph] = {}
    for layers, mesh in cases:
        if layers not in graphs:
            graphs[layers] = llama(layers)
        row = measure(graphs[layers], layers, mesh, told.hardware, told.memory, told.time_limit)
        print("| " + " | ".join(row) + " |", flush=True)
    print(autoparallel(*cases[-1]))


if __name__ == "__main__":
    main()
