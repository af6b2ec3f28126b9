"""Whole AdamW steps on gloo processes beside DDP and FSDP2: ratios of medians, steps of all in turn.

    python benchmarks/gloo_step.py [--ranks 2] [--steps 30]

GPT-2 from `transformers`, four layers, of two widths; ours by the recipes dp and zero3, theirs with fused AdamW.  Also
counts how often each of ours starts communication, and how long the same order takes when nothing overlaps
(``in turn``), for asynchronous must never be slower than synchronous.
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


def ours(width: int, recipe: str, ids: Any, ranks: int, in_turn: bool = False) -> tuple[Callable[[], Any], int]:
    import torch

    import shardwright.torch as swt

    model = model_of(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = swt.train_step(
        model, optimizer=optimizer, batch={"input_ids": ids, "labels": ids}, mesh=f"dp={ranks}", recipe=recipe,
        data="local", verify="off",
    )  # fmt: skip
    if in_turn:
        part = step._last.parts[0]
        part.compiled = step.engine.compile(replace(part.program, order=()))
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
            run, starts = ours(width, recipe, ids, ranks)
            plain, alone = ours(width, recipe, ids, ranks, in_turn=True)
            calls = {"ours": run, "in turn": plain, "theirs": theirs(width, recipe, ids)}
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
        "| width | recipe | starts (each alone) | ours, ms | in turn, ms | theirs, ms | ours / theirs |\n"
        + "|---" * 7
        + "|"
    )
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            ratio = row["ours"] / row["theirs"]
            print(
                f"| {row['width']} | {row['recipe']} | {row['starts']} ({row['alone']}) | {row['ours']} "
                f"| {row['in turn']} | {row['theirs']} | {ratio:.2f} |"
            )


if __name__ == "__main__":
    main()
