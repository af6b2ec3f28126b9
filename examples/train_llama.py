"""A small Llama trained on made-up text: planned, proven, on as many devices as there are processes.

    torchrun --nproc-per-node 4 examples/train_llama.py --mesh "dp=2, tp=2" --save runs/llama
    torchrun --nproc-per-node 2 examples/train_llama.py --mesh "dp=2" --save runs/llama --resume
    python examples/train_llama.py                             # the same on a virtual mesh, in one process

Every rank reads its own part of the data, as with DDP.  The learning rate is scheduled, gradients are clipped and
added up over micro-batches, the model is evaluated on the shards that are trained, and every few steps a checkpoint is
saved that loads on any other mesh.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers

import shardwright.torch as swt

VOCABULARY, LENGTH = 128, 32


class Model(torch.nn.Module):
    """Llama with its loss: the next token of every place."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=4,
        )  # fmt: skip
        self.llama = transformers.LlamaForCausalLM(config)

    def forward(self, ids: Any) -> Any:
        logits = self.llama(input_ids=ids, use_cache=False).logits
        return logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()


def loss(out: tuple[Any, Any]) -> tuple[Any, Any]:
    """The loss, and how many tokens are guessed right: a metric comes back beside the loss."""
    logits, wanted = out
    return F.cross_entropy(logits, wanted), (logits.argmax(-1) == wanted).sum()


def sentences(count: int, seed: int) -> Any:
    """Text of a language with one rule: the next word follows from the last one, with a few exceptions."""
    draw = torch.Generator().manual_seed(seed)
    words = [torch.randint(0, VOCABULARY, (count,), generator=draw)]
    for _ in range(LENGTH - 1):
        ruled = (words[-1] * 5 + 7) % VOCABULARY
        free = torch.randint(0, VOCABULARY, (count,), generator=draw)
        words.append(torch.where(torch.rand(count, generator=draw) < 0.9, ruled, free))
    return torch.stack(words, 1)


def batches(size: int, rank: int, ranks: int, start: int) -> Iterator[Any]:
    """This rank's part of one batch after the other, from step ``start`` on."""
    step = start
    while True:
        yield sentences(size, seed=step).chunk(ranks)[rank]
        step += 1


def main() -> None:
    said = options()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=said.lr, weight_decay=0.01)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=said.lr, total_steps=said.steps + 1)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    data = "local" if processes > 1 else "global"
    rank, ranks = swt.data_rank(said.mesh) if data == "local" else (0, 1)
    first = next(batches(said.batch, rank, ranks, 0))
    began = time.perf_counter()
    step = swt.train_step(
        model, optimizer=optimizer, loss=loss, batch=(first,), mesh=said.mesh, data=data, memory=said.memory,
        clip_grad_norm=1.0, accumulate=said.accumulate, on_nonfinite="skip",
    )  # fmt: skip
    tell = print if step.leads else lambda *_: None
    tell(f"planned, proven and compiled in {time.perf_counter() - began:.1f} s\n{step.plan}")
    saved = Path(said.save) / "last" if said.save else None
    if said.resume and saved is not None and saved.exists():
        rates.load_state_dict(step.restore(saved))
        tell(f"goes on after step {step.steps}")
    held_out = sentences(said.batch, seed=-1).chunk(ranks)[rank]
    stream = batches(said.batch, rank, ranks, step.steps)
    while step.steps + step.skipped < said.steps:
        value, right = step(next(stream))
        rates.step()
        if step.steps % said.every == 0 or step.steps == said.steps:
            checked, _ = step.evaluate(held_out)
            share = float(right) / (said.batch * (LENGTH - 1))
            tell(
                f"step {step.steps:4}: loss {float(value):.4f}, right {share:.2f}, held out {float(checked):.4f}, "
                f"norm {float(step.grad_norm):.2f}, lr {rates.get_last_lr()[0]:.1e}"
            )
            if saved is not None:
                step.save(saved, extra=rates.state_dict())
        if step.steps == 25:
            tell(step.compared())
    step.sync()  # the model has the trained parameters now, on every rank
    tell("done")


def options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="dp=2, tp=2")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16, help="sentences in a batch, over all ranks")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--memory", help="of a device, such as 8GiB")
    parser.add_argument("--save", help="a folder for checkpoints")
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations and checkpoints")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
