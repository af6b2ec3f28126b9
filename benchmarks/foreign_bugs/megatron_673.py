"""The loss of a rank is its part of the sequence's; gradients are averaged over it, without the factor for that."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import Shard

from .mappings import summed
from .models import LM_GRADIENTS, Lm, token_losses, tokens

SOURCE = "NVIDIA/Megatron-LM#673 (the factor taken out, as it proposes)"
MESH = {"dp": 2, "cp": 2}
PLACEMENTS = dict.fromkeys(("ids", "labels"), (Shard(0), Shard(1)))
OUTPUTS = LM_GRADIENTS


def single() -> Any:
    model = Lm()

    def step(ids: Any, labels: Any) -> Any:
        loss = token_losses(model(ids), labels).mean()
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, factor: int) -> Any:
    model, cp, ranks = Lm(), mesh["cp"].get_group(), mesh.size()

    def step(ids: Any, labels: Any) -> Any:
        loss = token_losses(model(ids), labels).sum() / (labels.numel() * cp.size())  # wrong: averaged once more below
        (loss * factor).backward()  # wrong: by 1, where gradients are averaged over dp and cp
        for parameter in model.parameters():
            parameter.grad /= ranks
            dist.all_reduce(parameter.grad)
        whole = summed(loss.detach(), cp)
        return summed(whole, mesh["dp"].get_group()) / mesh["dp"].size()

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, 1)


def right(mesh: Any) -> Any:
    return parallel(mesh, mesh["cp"].size())


def inputs() -> tuple[Any, ...]:
    return tokens(4, 6), tokens(4, 6, seed=2)
