"""One rank of a tensor-parallel Llama block, alone on a GPU: does the emitted program run there, and equal the CPU's?

    PYTHONPATH=src python benchmarks/gpu_block.py

Collectives are replaced by local ops of the same shapes, so one device suffices; the CPU runs the same stand-ins.
Forward, backward and AdamW, bf16.  Prints what ran, the largest differences, and the time of a step.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import shardwright.torch as swt
from shardwright import DeviceMesh
from shardwright.run.torch import emit, shard


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Block(nn.Module):
    """Grouped-query attention and a gated MLP, as in Llama."""

    def __init__(self, width: int, heads: int, served: int, inner: int) -> None:
        super().__init__()
        self.heads, self.served, self.size = heads, served, width // heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, served * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q = self.q(y).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k, v = (f(y).unflatten(-1, (self.served, self.size)).transpose(1, 2) for f in (self.k, self.v))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(made.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


SPECS = {
    "x": "[_, _, _]", "q.weight": "[tp, _]", "k.weight": "[tp, _]", "v.weight": "[tp, _]", "o.weight": "[_, tp]",
    "gate.weight": "[tp, _]", "up.weight": "[tp, _]", "down.weight": "[_, tp]",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--full", action="store_true", help="the sizes of Llama-3-8B, timed; without comparison")
    options = parser.parse_args()
    torch.manual_seed(0)
    width, heads, served, inner, tokens = (4096, 32, 8, 14336, 4096) if options.full else (512, 16, 8, 1024, 256)
    model = Block(width, heads, served, inner).to(torch.bfloat16)
    x = torch.randn(2, tokens, width, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    captured = swt.capture_step(model, x, optimizer=optimizer, loss=lambda out: out.float().square().mean())
    lowered = swt.shard_captured(captured, DeviceMesh("tp=8"), specs=SPECS)
    program = lowered.program
    inputs = [shard(value, spec, 0) for value, spec in zip(captured.inputs(x), lowered.complete.inputs)]
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {options.device}")
    kinds = sorted({c.kind for c in program.collectives})
    print(f"{len(program.instrs)} instructions, {len(program.collectives)} collectives ({', '.join(kinds)})")
    there = emit(program, 0, device=options.device, stand_ins=True)
    moved = [value.to(options.device) for value in inputs]
    found = there(*moved)
    attention = sorted({str(n.target) for n in there.graph.nodes if "attention" in str(n.target)})
    print("attention by", ", ".join(attention))
    if options.device != "cpu":
        torch.cuda.synchronize()
        for _ in range(3):
            there(*moved)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            there(*moved)
        torch.cuda.synchronize()
        print(f"{(time.perf_counter() - start) * 100:.2f} ms a step")
    if options.full:
        return 0
    here = emit(program, 0, device="cpu", stand_ins=True)(*inputs)
    worst = 0.0
    for value, one, other in zip(program.outputs, found, here):
        off = float((one.float().cpu() - other.float()).norm() / other.float().norm().clamp_min(1e-6))
        worst = max(worst, off)
        assert one.shape == other.shape, program.values[value].name
        assert off < 0.02, (program.values[value].name, off)
    print(f"equal: {len(found)} outputs, differences of at most {worst:.4f} of their norm (bf16 keeps 8 bits)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
