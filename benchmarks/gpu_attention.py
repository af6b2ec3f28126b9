"""Kernels of attention on a GPU: each against the formula, and how long it takes, as rows of the table of times.

    python benchmarks/gpu_attention.py [--out times.toml]

bf16, queries on their own and in groups that share keys; all keys, causal, a window, and later queries of a split
sequence.  The rows go into ``src/shardwright/run/torch/attention_times.toml``, by which kernels are chosen.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shardwright.errors import SpecError
from shardwright.ir.graph import TensorType
from shardwright.run.torch.attention import BACKWARD, FORWARD, choose_attention

SEES = ("all", "causal", "window")
LARGEST = 0.03  # of the largest number: bf16 has 8 bits
KERNELS = ("cudnn", "flash", "efficient")
CASES = (  # batch, heads, key heads, queries, keys, width, offset
    (8, 16, 4, 512, 512, 64, 0), (8, 16, 16, 1024, 1024, 64, 0), (64, 16, 16, 197, 197, 64, 0),
    (8, 16, 4, 2048, 2048, 128, 0), (8, 4, 1, 2048, 2048, 128, 0), (2, 32, 8, 8192, 8192, 128, 0),
    (8, 25, 25, 1024, 1024, 64, 0), (1, 8, 2, 2048, 16384, 128, 14336),
)  # fmt: skip


def run_op(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def timed(work: Any, repeats: int = 9) -> float:
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


def off(found: Any, expected: Any) -> float:
    scale = expected.float().abs().max().clamp_min(1e-6)
    return float((found.float() - expected.float()).abs().max() / scale)


def one(case: tuple[int, ...], sees: str) -> list[str]:
    """A case of all kernels; rows of the table."""
    batch, heads, served, queries, keys, width, offset = case
    device = torch.device("cuda")
    torch.manual_seed(0)
    shape, other = (batch, heads, queries, width), (batch, served, keys, width)
    query, grad = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
    key, value = (torch.randn(other, device=device, dtype=torch.bfloat16) for _ in range(2))
    attrs: dict[str, Any] = {
        "dropout_p": 0.0, "is_causal": sees == "causal", "scale": width**-0.5, "enable_gqa": served != heads,
        "draw": -1, "mask_grad": False,
    }  # fmt: skip
    if sees == "window":
        attrs["sees"] = f"i-{keys // 4 - 1} <= j <= i"
    given = [TensorType(tuple(t.shape), "bf16") for t in (query, key, value)]
    types: dict[str, list[Any]] = {
        FORWARD: [*given, None],
        BACKWARD: [given[0], *given, None, given[0], TensorType(shape[:-1], "f32")],
    }

    def run(op: str, kernel: str, operands: list[Any]) -> Any:
        chosen = choose_attention(op, attrs, types[op], device, offset, kernel)
        assert chosen is not None
        return chosen(run_op, operands)

    inputs = [query, key, value, None]
    expected = run(FORWARD, "math", inputs)
    grads = run(BACKWARD, "math", [grad, *inputs, *expected])
    ms: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
    for name in KERNELS:
        label = f"{shape} {other} {sees} {offset} {name}"
        try:
            found = run(FORWARD, name, inputs)
            handed = [grad, *inputs, *found]
            worst = max(off(a, b) for a, b in zip([*found, *run(BACKWARD, name, handed)], [*expected, *grads]))
            ms["forward"][name] = round(timed(partial(run, FORWARD, name, inputs)), 4)
            ms["backward"][name] = round(timed(partial(run, BACKWARD, name, handed)), 4)
            print(f"{label}: off {worst:.4f}", "WRONG" if worst > LARGEST else "", flush=True)
        except SpecError:
            continue
        except Exception as error:
            print(f"{label}: {type(error).__name__} {str(error)[:300]}", flush=True)
    name = torch.cuda.get_device_name().split()[-1]
    return [
        f'[[case]]\ndevice = "{name}"\ndirection = "{direction}"\nsees = "{sees}"\nbatch_heads = {batch * heads}\n'
        f"queries = {queries}\nkeys = {keys}\nwidth = {width}\n"
        f"ms = {{ {', '.join(f'{kernel} = {time}' for kernel, time in times.items())} }}\n"
        for direction, times in ms.items()
        if times
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row for case in CASES for sees in SEES if not (case[-1] and sees == "all") for row in one(case, sees)]
    print("\n".join(rows))
    if options.out:
        options.out.write_text("\n".join(rows))


if __name__ == "__main__":
    main()
