"""Each rank of context parallel divides its loss by its own count of tokens, and the means are averaged."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Shard

from .mappings import average_gradients, summed
from .models import LM_GRADIENTS, Lm, token_losses, tokens

SOURCE = "NVIDIA/Megatron-LM#7452, finding 9"
MESH = {"cp": 2}
PLACEMENTS = dict.fromkeys(("ids", "labels", "mask"), Shard(1))
OUTPUTS = LM_GRADIENTS


def single() -> Any:
    model = Lm()

    def step(ids: Any, labels: Any, mask: Any) -> Any:
        loss = (token_losses(model(ids), labels) * mask).sum() / mask.sum()
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, local: bool) -> Any:
    model, cp = Lm(), mesh["cp"].get_group()

    def step(ids: Any, labels: Any, mask: Any) -> Any:
        total = (token_losses(model(ids), labels) * mask).sum()
        if local:
            loss = total / mask.sum()  # wrong: ranks do not count as many tokens
        else:
            loss = total / summed(mask.sum(), cp) * cp.size()
        loss.backward()
        average_gradients(model, cp)
        return summed(total.detach(), cp) / summed(mask.sum(), cp)

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, True)


def right(mesh: Any) -> Any:
    return parallel(mesh, False)


def inputs() -> tuple[Any, ...]:
    mask = (tokens(4, 6, seed=3) > 3).float()
    mask[:, 4:] = 0.0
    return tokens(4, 6), tokens(4, 6, seed=2), mask
