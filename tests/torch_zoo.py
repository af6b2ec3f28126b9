"""Small models of every kind, in one place: tests of capture, of the virtual mesh and of real processes share them."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import nn

torch.backends.opt_einsum.enabled = False  # type: ignore[assignment]  # else graphs depend on whether it is installed


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(8, 24), nn.Linear(8, 8), causal

    def forward(self, x, mask=None):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal and mask is None)
        return self.out(made.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(8), Attention(), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(11, 8), Block(), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return F.cross_entropy(self.head(self.block(self.embed(ids))).flatten(0, 1), ids.flatten())


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)), inplace=True)
        x = x + self.conv2(x)
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1).flatten(1))


class Experts(nn.Module):
    """Each token goes to its two best experts; all experts compute, the others count for nothing."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 12) / 3), nn.Parameter(torch.randn(4, 12, 8) / 3)

    def forward(self, x):
        best, which = self.gate(x).topk(2, -1)
        weight = torch.zeros(*x.shape[:-1], 4).scatter(-1, which, best.softmax(-1))
        hidden = F.silu(torch.einsum("bsd,edh->besh", x, self.up))
        return torch.einsum("besh,ehd,bse->bsd", hidden, self.down, weight).square().mean()


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.take, self.keep = nn.Linear(6, 5), nn.Linear(5, 5)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 5)
        seen = torch.empty(x.shape[1], x.shape[0], 5)
        for t in range(x.shape[1]):
            state = torch.tanh(self.take(x[:, t]) + self.keep(state))
            seen[t] = state
        return seen.square().sum()


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.last = nn.Conv2d(4, 1, 1)

    def forward(self, x):
        small = F.silu(self.norm(self.inner(self.down(x))))
        wide = F.interpolate(F.avg_pool2d(small, 2), scale_factor=2, mode="nearest")
        return self.last(torch.cat([x, self.up(small + wide)], 1)).abs().mean()


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.users = nn.EmbeddingBag(13, 4, mode="sum"), nn.Embedding(7, 4)
        self.top = nn.Linear(8, 1)

    def forward(self, items, users, clicked):
        both = torch.cat([self.items(items), self.users(users)], -1)
        return F.binary_cross_entropy_with_logits(self.top(both).squeeze(-1), clicked)


class ResNet(nn.Module):
    """Convolutions with batch norm, a shortcut that is projected, pooling: as ResNet begins."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.short, self.norm3 = nn.Conv2d(8, 16, 1, stride=2, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x, labels):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=1, padding=1)
        deep = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        x = F.relu(deep + self.norm3(self.short(x)))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


class LanguageModel(nn.Module):
    """A causal language model of `transformers`, with the loss computed in the model's own precision.

    The library's loss and its norms go through float32, where sums in another order differ by more than 1e-10.
    """

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        for module in inner.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = _norm.__get__(module)

    def forward(self, ids, labels):
        logits = self.inner(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _norm(self, x):
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


def llama(**config):
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    defaults = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4,
    }  # fmt: skip
    return LanguageModel(transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**defaults, **config})))


def gpt2(**config):
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    defaults = {
        "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1,
    }  # fmt: skip
    return LanguageModel(transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**defaults, **config})))


def tokens(count, length, vocabulary):
    ids = torch.randint(0, vocabulary, (count, length))
    return {"ids": ids, "labels": ids.roll(-1, 1)}


MEGATRON = {
    "*.q_proj.weight": "[tp, _]", "*.k_proj.weight": "[tp, _]", "*.v_proj.weight": "[tp, _]",
    "*.gate_proj.weight": "[tp, _]", "*.up_proj.weight": "[tp, _]", "*.o_proj.weight": "[_, tp]",
    "*.down_proj.weight": "[_, tp]", "*.embed_tokens.weight": "[tp, _]", "*.lm_head.weight": "[tp, _]",
}  # fmt: skip
"""Column after row; the vocabulary is split at both ends."""
MEGATRON_GPT2 = {
    "*.mlp.c_fc.weight": "[_, tp]", "*.mlp.c_fc.bias": "[tp]", "*.mlp.c_proj.weight": "[tp, _]",
    "*.attn.c_proj.weight": "[tp, _]", "*.wte.weight": "[tp, _]",
}  # fmt: skip
BATCH = {"ids": "[dp, _]", "labels": "[dp, _]"}
SEQUENCE = {"ids": "[dp, tp]", "labels": "[dp, tp]"}


def _cases():
    return {
        "llama megatron": (llama, lambda: tokens(6, 8, 96), {**BATCH, **MEGATRON}),
        "llama zero3": (llama, lambda: tokens(8, 8, 96), "zero3"),
        "llama sequence": (llama, lambda: tokens(2, 8, 96), SEQUENCE),
        "llama mixed": (
            lambda: llama(vocab_size=97, num_key_value_heads=2),
            lambda: tokens(6, 7, 97),
            {**BATCH, "*.q_proj.weight": "[tp, dp]", "*.down_proj.weight": "[dp, tp]", "*.norm.weight": "[tp]"},
        ),
        "gpt2 megatron": (gpt2, lambda: tokens(6, 8, 96), {**BATCH, **MEGATRON_GPT2}),
        "gpt2 uneven": (
            lambda: gpt2(vocab_size=50257, n_embd=20, n_layer=1),
            lambda: tokens(6, 5, 50257),
            {**BATCH, **MEGATRON_GPT2},
        ),
        "gpt2 odd": (
            lambda: gpt2(vocab_size=101, n_embd=20, n_layer=1),
            lambda: tokens(6, 5, 101),
            {**BATCH, **MEGATRON_GPT2},
        ),
        "gpt2 zero3": (gpt2, lambda: tokens(8, 8, 96), "zero3"),
        "resnet": (
            ResNet,
            lambda: {"x": torch.randn(6, 3, 12, 12), "labels": torch.randint(0, 5, (6,))},
            {"x": "[dp, _, _, _]", "labels": "[dp]", "conv2.weight": "[tp, _, _, _]"},
        ),
        "experts": (Experts, lambda: {"x": torch.randn(6, 3, 8)}, {"x": "[dp, _, _]", "up": "[tp, _, _]",
                                                                       "down": "[tp, _, _]"}),
        "cell": (Cell, lambda: {"x": torch.randn(6, 4, 6)}, {"x": "[dp, _, _]", "take.weight": "[tp, _]"}),
        "unet": (
            UNet,
            lambda: {"x": torch.randn(6, 2, 8, 8)},
            {"x": "[dp, _, _, _]", "inner.weight": "[_, tp, _, _]"},
        ),
        "recommender": (
            Recommender,
            lambda: {"items": torch.randint(0, 13, (6, 3)), "users": torch.randint(0, 7, (6,)),
                     "clicked": torch.rand(6).round()},
            {"users": "[dp]", "clicked": "[dp]", "users.weight": "[tp, _]", "items.weight": "[_, tp]"},
        ),
    }  # fmt: skip


CASES = _cases()
"""Name -> how to make a model, how to make a batch, and shardings for a mesh with axes dp and tp."""


def case(name):
    """A model, a batch, and shardings of parameters and batch."""
    make, data, specs = CASES[name]
    model, batch = make(), data()
    if specs == "zero3":  # also where it does not divide: shards are uneven, or empty
        cut = {**dict(model.named_parameters()), **batch}
        specs = {key: "[dp+tp" + ", _" * (tensor.dim() - 1) + "]" for key, tensor in cut.items()}
    return model, batch, specs
