"""Label smoothing over a vocabulary that is cut takes this rank's part for all of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .mappings import Copy, part, summed
from .models import numbers

SOURCE = "NVIDIA/Megatron-LM#7452, finding 1 (and #737, #7464)"
MESH = {"tp": 2}
OUTPUTS = ("output", "gradient of body.weight", "gradient of body.bias", "gradient of head.weight")
WORDS, SMOOTHING = 8, 0.1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, WORDS, bias=False)

    def forward(self, x: Any, labels: Any) -> Any:
        logs = self.head(torch.tanh(self.body(x))).log_softmax(-1)
        smoothing = SMOOTHING * WORDS / (WORDS - 1)
        target = logs.gather(1, labels[:, None]).squeeze(1)
        return -((1 - smoothing) * target + smoothing * logs.mean(-1)).mean()


class CrossEntropy(torch.autograd.Function):
    """Of scores that are cut over the vocabulary; the gradient needs no collective."""

    @staticmethod
    def forward(ctx: Any, scores: Any, labels: Any, group: Any, smooth_globally: bool) -> Any:
        highest = scores.max(-1).values
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        scores = scores - highest[:, None]
        here = scores.shape[-1]
        mine = labels - group.rank() * here
        outside = (mine < 0) | (mine >= here)
        mine = mine.masked_fill(outside, 0)
        target = scores.gather(1, mine[:, None]).squeeze(1).masked_fill(outside, 0.0)
        target = summed(target, group)
        total = summed(scores.exp().sum(-1), group)
        logs = scores - total.log()[:, None]
        if smooth_globally:
            words = here * group.size()
            mean = summed(logs.sum(-1), group) / words
        else:
            words = here
            mean = logs.mean(-1)  # wrong: of this rank's words
        smoothing = SMOOTHING * words / (words - 1)
        ctx.save_for_backward(scores.exp() / total[:, None], mine, outside)
        ctx.smoothing, ctx.words = smoothing, words
        return (1 - smoothing) * (total.log() - target) - smoothing * mean

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        probabilities, mine, outside = ctx.saved_tensors
        taken = torch.zeros_like(probabilities).scatter(1, mine[:, None], (1 - ctx.smoothing) * (~outside)[:, None])
        return (probabilities - taken - ctx.smoothing / ctx.words) * grad[:, None], None, None, None


class Parallel(Model):
    def __init__(self, mesh: Any, smooth_globally: bool) -> None:
        super().__init__()
        self.group, self.smooth_globally = mesh.get_group(), smooth_globally
        self.head.weight = nn.Parameter(part(self.head.weight.detach(), self.group, 0))

    def forward(self, x: Any, labels: Any) -> Any:
        x = Copy.apply(torch.tanh(self.body(x)), self.group)
        return CrossEntropy.apply(self.head(x), labels, self.group, self.smooth_globally).mean()


def single() -> Any:
    return Model()


def wrong(mesh: Any) -> Any:
    return Parallel(mesh, False)


def right(mesh: Any) -> Any:
    return Parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return numbers(4, 6), torch.tensor([0, 7, 3, 4])
