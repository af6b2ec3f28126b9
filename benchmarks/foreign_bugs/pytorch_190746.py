"""Within `loss_parallel`, a log_softmax that no cross entropy reads passes its gradient on as it is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

from .models import numbers

SOURCE = "pytorch/pytorch#190746"
MESH = {"tp": 2}
OUTPUTS = ("gradient of body.weight", "gradient of body.bias", "gradient of head.weight")


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 8, bias=False)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.body(x)))


def single() -> Any:
    policy = Policy()

    def step(x: Any, reference: Any) -> Any:
        loss = F.kl_div(F.log_softmax(policy(x), dim=-1), reference, reduction="sum", log_target=True)
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, context: Any) -> Any:
    plan = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    policy = parallelize_module(Policy(), mesh, plan)

    def step(x: Any, reference: Any) -> Any:
        with context():
            log_probs = F.log_softmax(policy(x), dim=-1)  # wrong: its gradient is that of a cross entropy
            target = DTensor.from_local(reference, mesh, [Replicate()])
            loss = (target.exp() * (target - log_probs)).sum()  # wrong: what this gives back is taken for its gradient
            loss.backward()
        return loss.full_tensor()

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, loss_parallel)


def right(mesh: Any) -> Any:
    return parallel(mesh, nullcontext)


def inputs() -> tuple[Any, ...]:
    return numbers(4, 6), numbers(4, 8, seed=2).log_softmax(-1)
