"""Every op of a step by itself: its time on the device beside its price, by op and by cost class.

    PYTHONPATH=src python benchmarks/gpu_ops.py --out ops.jsonl            # where the GPU is
    PYTHONPATH=src python benchmarks/gpu_ops.py --report ops.jsonl         # the tables again

Rank 0 of a plan is walked op by op with real values; each kind of call (op, shapes, strides) is repeated and timed by
the device's own clock, so that the time to launch it does not count.  One row a kind: what it is, how often, how long,
and what the preset says.  What constants are fitted to comes from GPT-2 and ViT alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_models import SIZES
from gpu_running import inputs_of, interpret, synchronize
from gpu_step import MODELS, RECIPES, free, plan_of

from shardwright.cost import program_cost
from shardwright.cost.compute import cost_class
from shardwright.frontends.torch.steps.updates import STATE
from shardwright.rules.registry import find
from shardwright.run.torch import emit

REPEATS = 8
PS_PER_US = 10**6


def timed(call: Callable[[], Any], device: str) -> float:
    """Microseconds of the device for one call."""
    for _ in range(2):
        call()
    if device != "cuda":
        began = time.perf_counter()
        for _ in range(REPEATS):
            call()
        return (time.perf_counter() - began) * 1e6 / REPEATS
    # The device is kept busy until all calls are queued, so that it never waits for the host.
    torch.cuda._sleep(400_000 * REPEATS)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPEATS):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / REPEATS


def shown(x: Any) -> Any:
    """What tells one call from another: shapes, types and strides."""
    if isinstance(x, torch.Tensor):
        kind = str(x.dtype).removeprefix("torch.")
        return [kind, list(x.shape), "" if x.is_contiguous() else list(x.stride())]
    if isinstance(x, list | tuple):
        return [shown(part) for part in x]
    return x if isinstance(x, bool | int | float | str | None) else str(x)


def rows_of(name: str, size: str, recipe: str, told: argparse.Namespace) -> list[dict[str, Any]]:
    plan = plan_of(name, size, recipe, told)
    program = plan.program
    priced = program_cost(program, plan.hardware, plan.graph).times
    words = SIZES[size][name.removesuffix("-cache")][-1]
    module = emit(program, 0, device=told.device, stand_ins=True, fused=True, donated=True)
    free(told.device)
    inputs = inputs_of(plan, 0, words, told.device)
    updates = sum(time for time, i in zip(priced, program.instrs) if i.op in STATE)
    found: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()

    def visit(node: Any, call: Any) -> Any:
        nonlocal updates
        if "collective" in node.meta:
            return call()
        at = node.meta.get("instr")
        args = shown([*call.args, call.keywords])
        key = json.dumps([str(node.target), args])
        row = found.get(key)
        made = None
        if row is None:
            kind = cost_class(find(program.instrs[at].op)) if at is not None else "update"
            op = program.instrs[at].op if at is not None else str(getattr(node.target, "__name__", node.target))
            row = {"model": name, "size": size, "recipe": recipe, "op": op, "class": kind, "target": str(node.target)}
            row |= {"args": args, "count": 0, "predicted": 0.0, "us": timed(call, told.device)}
            made = call()
            row["made"] = shown(made)
            found[key] = row
        row["count"] += 1
        if at is None:
            row["predicted"] = updates / PS_PER_US
            updates = 0  # of all calls of a kernel together
        elif at not in seen:
            seen.add(at)
            row["predicted"] += priced[at] / PS_PER_US  # of all its calls
        return call() if made is None else made

    interpret(module, inputs, visit)
    synchronize(told.device)
    return list(found.values())


def report(rows: Sequence[dict[str, Any]]) -> None:
    by_case: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_case[row["model"], row["size"], row["recipe"]].append(row)
    for case, mine in by_case.items():
        total, said = sum(r["us"] * r["count"] for r in mine), sum(r["predicted"] for r in mine)
        print(f"\n## {' '.join(case)}: {total / 1e3:.2f} ms on the device, predicted {said / 1e3:.2f}")
        for title in ("class", "op"):
            sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
            for r in mine:
                one = sums[r[title]]
                one[0] += r["us"] * r["count"] / 1e3
                one[1] += r["predicted"] / 1e3
                one[2] += r["count"]
            for key, (took, predicted, count) in sorted(sums.items(), key=lambda item: -item[1][0])[:14]:
                ratio = f"{predicted / took:.2f}" if took else "-"
                print(f"  {key:34} {count:5} x  {took:8.3f} ms  predicted {predicted:8.3f}  {ratio}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["llama", "gpt2", "qwen2", "vit"])
    parser.add_argument("--size", choices=tuple(SIZES), default="wide")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["dp", "zero3", "megatron"])
    parser.add_argument("--mesh", default="dp=2, tp=4")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path)
    told = parser.parse_args(argv)
    told.plans = None
    if told.report:
        report([json.loads(line) for line in told.report.read_text(encoding="utf-8").splitlines()])
        return 0
    rows = []
    for name in told.models:
        for recipe in told.recipes:
            rows += rows_of(name, told.size, recipe, told)
            print(name, recipe, flush=True)
            if told.out:
                told.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            free(told.device)
    report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
