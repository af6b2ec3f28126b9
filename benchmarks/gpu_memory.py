"""Peak memory of one rank against its prediction: ``PYTHONPATH=src python benchmarks/gpu_memory.py``

A Llama-3-8B-like training step (fewer layers), split over 8 devices by a recipe; rank 0's program runs alone on a GPU,
collectives replaced by local ops of the same shapes.  What PyTorch's allocator held at most is compared with the
profile of the Program.
"""

from __future__ import annotations

import argparse
import sys

import torch
from gpu_block import Block
from torch import nn

import shardwright as sw
from shardwright.cost import memory_profile
from shardwright.cost.profile import RESIDENT
from shardwright.frontends.torch import torch_dtype
from shardwright.run.torch import emit


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(128256, 4096)
        self.blocks = nn.ModuleList(Block(4096, 32, 8, 14336) for _ in range(layers))
        self.head = nn.Linear(4096, 128256, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--recipes", nargs="*", default=["dp", "zero1", "zero3"])
    options = parser.parse_args()
    with torch.device("meta"):
        model = Model(options.layers).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.empty(options.batch, options.tokens, dtype=torch.long, device="meta")
    for recipe in options.recipes:
        made = sw.plan(
            model, mesh="d=8", optimizer=optimizer, loss=lambda out: out, recipe=recipe, ids=ids, labels=ids,
            hardware="h200",
        )  # fmt: skip
        program = made.program
        predicted = {"resident": memory_profile(program, RESIDENT).peak, "metered": memory_profile(program).peak}
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        module = emit(program, 0, device="cuda", stand_ins=True)
        before = torch.cuda.memory_allocated()
        inputs = []
        for value in program.inputs:
            local = program.values[value]
            shape, dtype = local.local_shape(0), torch_dtype(local.type.dtype)
            inputs.append(torch.zeros(shape, dtype=dtype, device="cuda"))
        held = torch.cuda.memory_allocated() - before
        with torch.no_grad():
            made_here = module(*inputs)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        del made_here, inputs, module
        figures = ", ".join(f"{k} {v / 2**30:.3f} GiB ({100 * (v / peak - 1):+.1f}%)" for k, v in predicted.items())
        print(f"{recipe}: held at most {peak / 2**30:.3f} GiB (inputs {held / 2**30:.3f}); predicted {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
