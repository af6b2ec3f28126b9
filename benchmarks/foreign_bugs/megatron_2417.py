"""Tokens are counted over context parallel where the loss is made, and once more where gradients are finished."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import Shard

from .mappings import summed
from .models import LM_GRADIENTS, Lm, token_losses, tokens

SOURCE = "after the description of NVIDIA/Megatron-LM#2417 (loss scaling with context parallel)"
MESH = {"dp": 2, "cp": 2}
PLACEMENTS = dict.fromkeys(("ids", "labels", "mask"), (Shard(0), Shard(1)))
OUTPUTS = LM_GRADIENTS


def single() -> Any:
    model = Lm()

    def step(ids: Any, labels: Any, mask: Any) -> Any:
        loss = (token_losses(model(ids), labels) * mask).sum() / mask.sum()
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, counted_over: str) -> Any:
    model, cp = Lm(), mesh["cp"].get_group()

    def loss_of(ids: Any, labels: Any, mask: Any) -> tuple[Any, Any, Any]:
        """A sum for the backward pass, and what is reported, of the whole sequence."""
        loss = (token_losses(model(ids), labels) * mask).sum()
        return loss, summed(loss.detach(), cp), summed(mask.sum(), cp)

    def finish(count: Any) -> Any:
        dist.all_reduce(count, group=mesh[counted_over].get_group() if counted_over else None)  # wrong: cp is in it
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= count

    def step(ids: Any, labels: Any, mask: Any) -> Any:
        loss, whole, count = loss_of(ids, labels, mask)
        loss.backward()
        dp = mesh["dp"].get_group()
        reported = summed(whole, dp) / summed(count, dp)
        finish(count)
        return reported

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, "")


def right(mesh: Any) -> Any:
    return parallel(mesh, "dp")


def inputs() -> tuple[Any, ...]:
    mask = (tokens(4, 6, seed=3) > 3).float()
    return tokens(4, 6), tokens(4, 6, seed=2), mask
