"""The models that `plan_quality` plans: whole training steps, on the meta device, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What `sw.plan` takes: a module or function, its arguments, and keywords."""


def _tokens(count: int, length: int) -> torch.Tensor:
    return torch.empty(count, length, dtype=torch.long, device="meta")


def _language(model: nn.Module, count: int, length: int) -> Step:
    def loss(input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        return model(input_ids=input_ids, labels=labels).loss

    about = {"input_ids": _tokens(count, length), "labels": _tokens(count, length)}
    return loss, (), {"optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3), **about}


def llama(layers: int, count: int, length: int = 4096, size: str = "8B", again: bool = False) -> Step:
    """``again``: every layer is computed once more for its backward pass."""
    hidden, between, heads = {"8B": (4096, 14336, 32), "70B": (8192, 28672, 64)}[size]
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=hidden, intermediate_size=between, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, max_position_embeddings=length, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    if again:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    return _language(model, count, length)


def gpt2(count: int) -> Step:
    config = transformers.GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    return _language(model, count, 1024)


def t5(count: int, layers: int = 6) -> Step:
    config = transformers.T5Config(
        use_cache=False, dropout_rate=0.0, num_layers=layers, decoder_start_token_id=0, pad_token_id=0
    )
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config)
    return _language(model, count, 512)


def vit(count: int, layers: int = 24) -> Step:
    """ViT-L/16."""
    config = transformers.ViTConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16, intermediate_size=4096, num_labels=1000,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.ViTForImageClassification(config)
    images, labels = torch.empty(count, 3, 224, 224, device="meta"), _tokens(count, 1).flatten()

    def loss(pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        return model(pixel_values=pixel_values, labels=labels).loss

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return loss, (), {"optimizer": optimizer, "pixel_values": images, "labels": labels}


class _Block(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(32, out), nn.GroupNorm(32, out)])
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.silu(self.norms[0](self.first(x)))
        return torch.nn.functional.silu(self.norms[1](self.second(inner))) + self.skip(x)


class UNet(nn.Module):
    """Convolutions down, a middle, and up again beside what came down."""

    def __init__(self, widths: tuple[int, ...] = (128, 256, 512, 512)) -> None:
        super().__init__()
        self.into = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths))
        self.down = nn.ModuleList([_Block(a, b) for a, b in pairs])
        self.pool = nn.ModuleList([nn.Conv2d(b, b, 3, stride=2, padding=1) for _, b in pairs])
        self.middle = _Block(widths[-1], widths[-1])
        self.wide = nn.ModuleList([nn.ConvTranspose2d(b, b, 2, stride=2) for _, b in reversed(pairs)])
        self.up = nn.ModuleList([_Block(2 * b, a) for a, b in reversed(pairs)])
        self.out = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, beside = self.into(x), []
        for block, pool in zip(self.down, self.pool):
            x = block(x)
            beside.append(x)
            x = pool(x)
        x = self.middle(x)
        for wide, block in zip(self.wide, self.up):
            x = block(torch.cat([wide(x), beside.pop()], 1))
        return self.out(x)


def unet(count: int, size: int = 64) -> Step:
    with torch.device("meta"):
        model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    image = torch.empty(count, 4, size, size, device="meta")
    return model, (image,), {"optimizer": optimizer, "loss": lambda out: out.square().mean()}


class Experts(nn.Module):
    """A language model's layers with experts, each token going to all of them by weight (a dense mixture)."""

    def __init__(self, layers: int, width: int, experts: int, between: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.gates = nn.ModuleList([nn.Linear(width, experts, bias=False) for _ in range(layers)])
        into = [nn.Parameter(torch.empty(experts, width, between)) for _ in range(layers)]
        out = [nn.Parameter(torch.empty(experts, between, width)) for _ in range(layers)]
        self.into, self.out = nn.ParameterList(into), nn.ParameterList(out)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).flatten(0, 1)
        for gate, into, out, norm in zip(self.gates, self.into, self.out, self.norms):
            y = norm(x)
            weights = gate(y).softmax(-1)
            inner = torch.nn.functional.silu(torch.einsum("tm,emf->etf", y, into))
            x = x + torch.einsum("etf,efm,te->tm", inner, out, weights)
        return self.head(x)


def experts(count: int) -> Step:
    with torch.device("meta"):
        model = Experts(4, 1024, 8, 4096, 32000).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, (_tokens(count, 1024),), {"optimizer": optimizer, "loss": lambda out: out.float().square().mean()}


class Recommender(nn.Module):
    """Tables of users and things, their product and layers above."""

    def __init__(self, rows: int, width: int, tables: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        self.layers = nn.Sequential(
            nn.Linear(tables * width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.layers(torch.cat(found, -1))


def recommender(count: int) -> Step:
    with torch.device("meta"):
        model = Recommender(1_000_000, 64, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, (_tokens(count, 8),), {"optimizer": optimizer, "loss": lambda out: out.square().mean()}


MODELS: dict[str, Callable[[], Step]] = {
    "llama8b-b8": lambda: llama(32, 8),
    "llama8b-b16": lambda: llama(32, 16),
    "llama8b-b32": lambda: llama(32, 32),
    "llama8b-b64": lambda: llama(32, 64),
    "llama8b-b128": lambda: llama(32, 128),
    "llama8b-b512-again": lambda: llama(32, 512, again=True),
    "llama8b-b128-again": lambda: llama(32, 128, again=True),
    "llama8b-b8-8k": lambda: llama(32, 8, 8192),
    "llama8b-b64-8k": lambda: llama(32, 64, 8192),
    "llama70b-b64-again": lambda: llama(80, 64, size="70B", again=True),
    "llama4l-b8": lambda: llama(4, 8),
    "llama4l-b64": lambda: llama(4, 64),
    "llama4l-b16": lambda: llama(4, 16),
    "gpt2-b64": lambda: gpt2(64),
    "t5-b64": lambda: t5(64),
    "vit-b64": lambda: vit(64),
    "vit6l-b64": lambda: vit(64, 6),
    "t5small-b64": lambda: t5(64, 2),
    "unet-b16": lambda: unet(16),
    "experts-b64": lambda: experts(64),
    "recommender-b4096": lambda: recommender(4096),
}

__all__ = ["MODELS", "Step"]
