"""The loss is multiplied by the size of context parallel, and gradients are divided by that of data parallel alone."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import Shard

from .mappings import summed
from .models import LM_GRADIENTS, Lm, token_losses, tokens

SOURCE = "NVIDIA/Megatron-LM#906"
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


class Buffer:
    """Gradients side by side, reduced at once."""

    def __init__(self, model: Any, averaged_over: int) -> None:
        self.model, self.averaged_over = model, averaged_over

    def reduce(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad *= 1 / self.averaged_over  # wrong: cp is in the loss, and not in here
            dist.all_reduce(parameter.grad)


def parallel(mesh: Any, averaged_over: int) -> Any:
    model, cp = Lm(), mesh["cp"].get_group()
    buffer = Buffer(model, averaged_over)

    def step(ids: Any, labels: Any) -> Any:
        loss = token_losses(model(ids), labels).sum() / (labels.numel() * cp.size())
        (loss * cp.size()).backward()  # wrong: in here, and not in what gradients are divided by
        buffer.reduce()
        whole = summed(loss.detach(), cp)
        return summed(whole, mesh["dp"].get_group()) / mesh["dp"].size()

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, mesh["dp"].size())


def right(mesh: Any) -> Any:
    return parallel(mesh, mesh.size())


def inputs() -> tuple[Any, ...]:
    return tokens(4, 6), tokens(4, 6, seed=2)
