"""CPU time of a step from the call to its return: ours and FSDP2's, one rank on a fake group of 8.

    PYTHONPATH=src python benchmarks/gpu_fsdp.py                   # where a GPU is
    PYTHONPATH=src python benchmarks/gpu_fsdp.py --device cpu      # does it run

Collectives of a fake group return at once, so that what is left is Python and the launching of kernels: a step that is
bound by launches can be no faster.  Models of `transformers`, small; each block, and the rest, is sharded over all 8
(the recipe zero3; `fully_shard` of every block and of the model), AdamW fused, bf16.  The two take turns; medians.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from gpu_models import SIZES, loss_of, model_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore  # the only process group without processes

import shardwright.torch as swt
from shardwright.run.torch import TorchEngine

WAYS = 8
MODELS = ("llama", "gpt2", "vit")


def blocks_of(model: Any) -> list[Any]:
    """The layers of a model: the longest list of modules in it."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=len))


def ours(name: str, size: str, device: str, mesh: Any, form: str | None) -> Callable[[], Any]:
    model, batch = model_of(name, size, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = swt.train_step(
        model, optimizer=optimizer, batch=batch, loss=loss_of, recipe="zero3", mesh=f"dp={WAYS}", data="global",
        engine=TorchEngine(f"dp={WAYS}", device=device, check=False), hardware="h200", verify="off", compile=form,
    )  # fmt: skip
    return lambda: step(**batch)


def fsdp2(name: str, size: str, device: str, mesh: Any) -> Callable[[], Any]:
    model, batch = model_of(name, size, device)
    mine = {key: x.chunk(WAYS)[0] for key, x in batch.items()}
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> Any:
        loss = model(**mine).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def called(work: Callable[[], Any], device: str) -> tuple[float, float]:
    """Milliseconds that the process spends until the call returns, by its own clock and by the wall's."""
    if device == "cuda":
        torch.cuda.synchronize()
    wall, own = time.perf_counter(), time.process_time()
    work()
    return (time.process_time() - own) * 1e3, (time.perf_counter() - wall) * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--size", choices=tuple(SIZES), default="small")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--compile", action="store_true", help="also ours compiled")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    told = parser.parse_args(argv)
    if told.device == "cpu":
        torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=WAYS, store=FakeStore())
    mesh = init_device_mesh(told.device, (WAYS,), mesh_dim_names=("dp",))
    print("| model | ours: CPU ms, wall ms | FSDP2 | ratio of CPU time, of wall time |\n|---|---|---|---|")
    for name in told.models:
        works = {"ours": ours(name, told.size, told.device, mesh, None)}
        if told.compile:
            works["ours, compiled"] = ours(name, told.size, told.device, mesh, "on")
        works["FSDP2"] = fsdp2(name, told.size, told.device, mesh)
        for work in works.values():
            for _ in range(5):
                work()
        gc.collect()
        times: dict[str, list[tuple[float, float]]] = {key: [] for key in works}
        for _ in range(told.rounds):
            for key, work in works.items():
                times[key].append(called(work, told.device))
        median = {key: [statistics.median(column) for column in zip(*found)] for key, found in times.items()}
        theirs = median.pop("FSDP2")
        for key, mine in median.items():
            cells = [f"{own:.2f}, {wall:.2f}" for own, wall in (mine, theirs)]
            ratios = ", ".join(f"{a / b:.2f}" for a, b in zip(mine, theirs))
            print(f"| {name} {told.size}, {key} | {cells[0]} | {cells[1]} | {ratios} |", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
