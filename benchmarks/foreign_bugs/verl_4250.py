"""Labels are made by shifting the words of this rank's part: its last one gets the part's first word."""

from __future__ import annotations

from typing import Any

from .mappings import average_gradients, part, summed
from .models import LM_GRADIENTS, Lm, token_losses, tokens

SOURCE = "verl-project/verl#4250, bug 1"
MESH = {"cp": 2}
OUTPUTS = ("output", *LM_GRADIENTS)


def single() -> Any:
    model = Lm()

    def step(ids: Any) -> Any:
        loss = token_losses(model(ids), ids.roll(-1, dims=1)).mean()
        loss.backward()
        return loss

    return step


def parallel(mesh: Any, shift_first: bool) -> Any:
    model, cp = Lm(), mesh.get_group()

    def step(ids: Any) -> Any:
        mine = part(ids, cp, 1)
        if shift_first:
            labels = part(ids.roll(-1, dims=1), cp, 1)
        else:
            labels = mine.roll(-1, dims=1)  # wrong: the next part's first word is due
        loss = token_losses(model(mine), labels).mean()
        loss.backward()
        average_gradients(model, cp)
        return summed(loss.detach(), cp) / cp.size()

    return step


def wrong(mesh: Any) -> Any:
    return parallel(mesh, False)


def right(mesh: Any) -> Any:
    return parallel(mesh, True)


def inputs() -> tuple[Any, ...]:
    return (tokens(2, 8),)
