"""Small models that several cases share, as one device runs them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, HIDDEN = 12, 6, 8


class Lm(nn.Module):
    """Scores of words for every token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, ids: Any) -> Any:
        return self.head(torch.tanh(self.up(self.embed(ids))))


LM_GRADIENTS = tuple(f"gradient of {name}" for name in ("embed.weight", "up.weight", "up.bias", "head.weight"))


def token_losses(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


def tokens(rows: int, columns: int, seed: int = 1) -> Any:
    return torch.randint(WORDS, (rows, columns), generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
