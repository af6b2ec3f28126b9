"""A loss by chunks keeps the parts of their gradients and calls them whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)  # fmt: skip

SOURCE = "pytorch/torchtitan#3412"
MESH = {"tp": 2}
OUTPUTS = ("gradient of up.weight", "gradient of up.bias", "gradient of down.weight", "gradient of down.bias")
WIDTH, HIDDEN, WORDS, CHUNKS = 6, 8, 10, 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


def single() -> Any:
    model = Model()

    def step(x: Any, labels: Any) -> Any:
        loss = F.cross_entropy(model.head(model(x)), labels, reduction="sum") / labels.numel()
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, keep_placements: bool) -> Any:
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(use_local_output=False),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    model = parallelize_module(Model(), mesh, plan)

    def step(x: Any, labels: Any) -> Any:
        states = model(x)
        losses, gradients, placements = [], [], states.placements
        with loss_parallel():
            for chunk, some in zip(states.detach().chunk(CHUNKS), labels.chunk(CHUNKS)):
                chunk = chunk.requires_grad_()
                loss = F.cross_entropy(model.head(chunk), some, reduction="sum") / labels.numel()
                loss.backward()
                losses.append(loss.detach().full_tensor())
                gradients.append(chunk.grad.to_local())
                if keep_placements:
                    placements = chunk.grad.placements
        gradient = DTensor.from_local(torch.cat(gradients), mesh, placements)  # wrong: those of the states
        states.backward(gradient.redistribute(mesh, [Replicate()]))
        return sum(losses)

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, False)


def right(mesh: Any) -> Any:
    return parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 9, 4, 5, 2, 7, 7, 1])
