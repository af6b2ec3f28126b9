"""A router's count of its own tokens is read after an all-reduce in place has made it everybody's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from .mappings import summed
from .models import numbers

SOURCE = "NVIDIA/Megatron-LM#7452, finding 10 (and #7481)"
MESH = {"tp": 2}
PLACEMENTS = dict.fromkeys(("x", "mask"), Shard(0))
OUTPUTS = ("gradient of router.weight",)
EXPERTS, TOP, FACTOR, WIDTH = 4, 2, 0.5, 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def routed(self, x: Any, mask: Any) -> tuple[Any, Any, Any]:
        """A loss for every token, how often it goes to each expert, and with what chance."""
        chances = self.router(x).softmax(-1)
        top = chances.topk(TOP, dim=-1)
        taken = torch.zeros_like(chances).scatter(1, top.indices, 1.0) * mask[:, None]
        out = torch.einsum("te,td,edf->tf", taken * chances, x, self.experts)
        return out.square().mean(-1) * mask, taken, chances * mask[:, None]


def single() -> Any:
    model = Model()

    def step(x: Any, mask: Any) -> Any:
        losses, taken, chances = model.routed(x, mask)
        count = mask.sum()
        balance = EXPERTS * (taken.sum(0) / (TOP * count) * chances.sum(0) / count).sum()
        loss = losses.sum() / count
        (loss + FACTOR * balance).backward()
        return loss, balance

    return step


def reduced(x: Any, group: Any) -> Any:
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


def counts(taken: Any, group: Any, before: bool) -> tuple[Any, Any, Any]:
    """Tokens of each expert on all ranks, tokens here, tokens on all ranks."""
    by_expert = taken.sum(0)
    here = by_expert.sum() / TOP
    everywhere = reduced(by_expert, group)
    if not before:
        here = by_expert.sum() / TOP  # wrong: contiguous() has not copied, and this is everywhere's
    return everywhere, here, everywhere.sum() / TOP


def parallel(mesh: Any, before: bool) -> Any:
    model, tp = Model(), mesh.get_group()

    def step(x: Any, mask: Any) -> Any:
        losses, taken, chances = model.routed(x, mask)
        everywhere, here, total = counts(taken.detach(), tp, before)
        balance = EXPERTS * (everywhere / (TOP * total) * chances.sum(0) / total).sum()
        (losses.sum() + FACTOR * balance * here * tp.size()).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=tp)
            parameter.grad /= total
        return summed(losses.sum().detach(), tp) / total, summed(balance.detach(), tp)

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, False)


def right(mesh: Any) -> Any:
    return parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return numbers(8, WIDTH, seed=4), torch.tensor([1, 1, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
