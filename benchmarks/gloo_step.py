"""Whole AdamW steps on gloo processes beside DDP and FSDP2: ratios of medians, steps of all in turn.

    python benchmarks/gloo_step.py [--ranks 2] [--steps 30]

GPT-2 from `transformers`, four layers, of two widths; ours by the recipes dp and zero3, theirs with fused AdamW.  Also
counts how often each of ours starts communication, and how long the same step takes when nothing overlaps, for
asynchronous must never be slower than synchronous: ``at once`` waits for every bucket where it is started, ``in turn``
has no buckets either.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

WIDTHS = (64, 384)
RECIPES = ("dp", "zero3")


def model_of(width: int) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=width, n_layer=4, n_head=4, vocab_size=1024, n_positions=128, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def theirs(width: int, recipe: str, ids: Any) -> Callable[[], Any]:
    import torch
    from torch.distributed.fsdp import fully_shard

    model = model_of(width)
    if recipe == "dp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        for block in model.transformer.h:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> Any:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def at_once(program: Any) -> Any:
    """The same buckets, each waited for where it is started."""
    waits = {event.members: event for event in program.order if event.kind == "wait"}
    rest = (event for event in program.order if event.kind != "wait")
    both = ([e, waits[e.members]] if e.kind == "start" else [e] for e in rest)
    return replace(program, order=tuple(event for events in both for event in events))


ORDERS: dict[str, Callable[[Any], Any] | None] = {
    "ours": None, "at once": at_once, "in turn": lambda program: replace(program, order=())
}  # fmt: skip


def ours(width: int, recipe: str, ids: Any, ranks: int, order: str = "ours") -> tuple[Callable[[], Any], int]:
    import torch

    import shardwright.torch as swt

    model = model_of(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = swt.train_step(
        model, optimizer=optimizer, batch={"input_ids": ids, "labels": ids}, mesh=f"dp={ranks}", recipe=recipe,
        data="local", verify="off",
    )  # fmt: skip
    ordered = ORDERS[order]
    if ordered is not None:
        part = step._last.parts[0]
        part.compiled = step.engine.compile(ordered(part.program))
    step(input_ids=ids, labels=ids)
    return lambda: step(input_ids=ids, labels=ids), step.executed.starts


def worker(steps: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for width in WIDTHS:
        ids = torch.randint(0, 1024, (4, 64), generator=torch.Generator().manual_seed(rank))
        for recipe in RECIPES:
            made = {name: ours(width, recipe, ids, ranks, name) for name in ORDERS}
            starts, alone = made["ours"][1], made["in turn"][1]
            calls = {**{name: run for name, (run, _) in made.items()}, "theirs": theirs(width, recipe, ids)}
            times: dict[str, list[float]] = {name: [] for name in calls}
            for n in range(steps + 3):
                for name, call in calls.items():
                    dist.barrier()
                    begin = time.perf_counter()
                    call()
                    if n >= 3:
                        times[name].append(time.perf_counter() - begin)
            found = {name: statistics.median(values) * 1e3 for name, values in times.items()}
            if rank == 0:
                row = {"width": width, "recipe": recipe, "ranks": ranks, "starts": starts, "alone": alone}
                print(json.dumps({**row, **{name: round(ms, 2) for name, ms in found.items()}}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if "RANK" in os.environ:
        worker(options.steps)
        return
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    done = subprocess.run(
        [*launch, __file__, f"--steps={options.steps}"], capture_output=True, text=True, timeout=1800, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    print(
        "| width | recipe | starts (each alone) | ours, ms | at once, ms | in turn, ms | theirs, ms | ours / theirs "
        "| ours / at once |\n" + "|---" * 9 + "|"
    )
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            ratios = " | ".join(f"{row['ours'] / row[other]:.2f}" for other in ("theirs", "at once"))
            print(
                f"| {row['width']} | {row['recipe']} | {row['starts']} ({row['alone']}) | {row['ours']} "
                f"| {row['at once']} | {row['in turn']} | {row['theirs']} | {ratios} |"
            )


if __name__ == "__main__":
    main()
