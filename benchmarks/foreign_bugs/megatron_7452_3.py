"""A second loss, for the word after the next, is normalized by this rank's counts of tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from .mappings import summed
from .models import HIDDEN, WORDS, Lm, token_losses, tokens

SOURCE = "NVIDIA/Megatron-LM#7452, finding 3"
MESH = {"dp": 2}
PLACEMENTS = dict.fromkeys(("ids", "labels", "later", "mask"), Shard(0))
OUTPUTS = tuple(f"gradient of {name}" for name in ("embed.weight", "up.weight", "up.bias", "second.weight"))
FACTOR = 0.25


class TwoHeads(Lm):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, ids: Any, labels: Any, later: Any, mask: Any) -> tuple[Any, Any, Any]:
        """Two sums of losses, and how many tokens the second is of."""
        x = torch.tanh(self.up(self.embed(ids)))
        mask_later = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1)
        first = (token_losses(self.head(x), labels) * mask).sum()
        second = (token_losses(self.second(x), later) * mask_later).sum()
        return first, second, mask_later.sum()


def single() -> Any:
    model = TwoHeads()

    def step(ids: Any, labels: Any, later: Any, mask: Any) -> Any:
        first, second, count = model(ids, labels, later, mask)
        (first / mask.sum() + FACTOR * second / count).backward()
        return first / mask.sum()

    return step


def parallel(mesh: Any, globally: bool) -> Any:
    model, dp = TwoHeads(), mesh.get_group()

    def step(ids: Any, labels: Any, later: Any, mask: Any) -> Any:
        first, second, count = model(ids, labels, later, mask)
        total = summed(mask.sum(), dp)
        if globally:
            ratio = total / summed(count, dp)
        else:
            ratio = mask.sum() / count  # wrong: gradients are divided by all ranks' tokens below
        (first + FACTOR * second * ratio).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=dp)
            parameter.grad /= total
        return summed(first.detach(), dp) / total

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, False)


def right(mesh: Any) -> Any:
    return parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    mask = torch.ones(4, 5)
    mask[2:, 2:] = 0.0
    return tokens(4, 5), tokens(4, 5, seed=2), tokens(4, 5, seed=3), mask
