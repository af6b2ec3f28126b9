"""A small Llama fine-tuned with low-rank adapters: the base is frozen, only the adapters are trained.

    torchrun --nproc-per-node 4 examples/finetune_lora.py
    python examples/finetune_lora.py                         # the same on a virtual mesh, in one process

Frozen parameters have no gradients and no optimizer state, so memory is that of the base in shards and of the
adapters.  At the end the adapters alone are saved.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers

import shardwright.torch as swt

VOCABULARY, LENGTH, BATCH = 128, 32, 16


class Adapted(torch.nn.Module):
    """A frozen linear layer, and a product of two thin matrices that is trained beside it."""

    def __init__(self, base: torch.nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Any) -> Any:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=4,
        )  # fmt: skip
        self.llama = transformers.LlamaForCausalLM(config).requires_grad_(False)
        for layer in self.llama.model.layers:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name)))
            for name in ("gate_proj", "up_proj", "down_proj"):
                setattr(layer.mlp, name, Adapted(getattr(layer.mlp, name)))

    def forward(self, ids: Any) -> Any:
        logits = self.llama(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def sentences(count: int, seed: int) -> Any:
    """Words that count upwards from anywhere."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.randint(0, VOCABULARY, (count, 1), generator=draw)
    return (first + torch.arange(LENGTH)) % VOCABULARY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="dp=2, tp=2")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save", help="a file for the adapters")
    said = parser.parse_args()
    torch.manual_seed(0)
    model = Model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-2)
    data = "local" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "global"
    rank, ranks = swt.data_rank(said.mesh)
    part = sentences(BATCH, 0).chunk(ranks)[rank]
    step = swt.train_step(model, optimizer=optimizer, batch=(part,), mesh=said.mesh, data=data, clip_grad_norm=1.0)
    tell = print if step.leads else lambda *_: None
    sizes = [sum(p.numel() for p in found) for found in (trained, list(model.parameters()))]
    tell(f"trains {sizes[0]} of {sizes[1]} numbers\n{step.plan}")
    for n in range(said.steps):
        loss = step(sentences(BATCH, n).chunk(ranks)[rank])
        if n % 10 == 9:
            tell(f"step {n + 1:3}: loss {float(loss):.4f}")
    whole = step.full_state_dict()
    if said.save and step.leads:
        adapters = {name: t for name, t in whole["model"].items() if name.endswith((".down", ".up"))}
        torch.save(adapters, Path(said.save))
        tell(f"{len(adapters)} adapters in {said.save}")


if __name__ == "__main__":
    main()
