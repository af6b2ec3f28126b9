"""Models of `transformers` in bf16, with batches: compute-bound, launch-bound and tiny, for `gpu_step`."""

from __future__ import annotations

from typing import Any

import torch
import transformers

Batch = dict[str, torch.Tensor]
SIZES = {
    # layers, width, heads, kv heads, between, batch, tokens (pictures: their side and that of a patch)
    "large": {
        "llama": (4, 2048, 16, 8, 5632, 8, 2048, 32000),
        "gpt2": (4, 2048, 16, 16, 8192, 8, 2048, 50257),
        "qwen2": (4, 2048, 16, 2, 11008, 8, 2048, 151936),
        "vit": (4, 1280, 16, 16, 5120, 256, (224, 14), 1000),
    },
    # For one rank of eight, whose part must be large enough to keep a GPU busy.
    "wide": {
        "llama": (4, 4096, 32, 8, 14336, 8, 2048, 128256),
        "gpt2": (4, 4096, 32, 32, 16384, 8, 2048, 50257),
        "qwen2": (4, 3584, 28, 4, 18944, 8, 2048, 152064),
        "vit": (4, 2048, 16, 16, 8192, 512, (224, 14), 1000),
    },
    "small": {
        "llama": (4, 256, 8, 4, 704, 8, 64, 1000),
        "gpt2": (4, 256, 8, 8, 1024, 8, 64, 1000),
        "qwen2": (4, 256, 8, 4, 704, 8, 64, 1000),
        "vit": (4, 192, 8, 8, 768, 8, (64, 8), 1000),
    },
    "tiny": {
        "llama": (2, 64, 8, 4, 128, 8, 16, 128),
        "gpt2": (2, 64, 8, 8, 128, 8, 16, 128),
        "qwen2": (2, 64, 8, 4, 128, 8, 16, 128),
        "vit": (2, 64, 8, 8, 128, 8, (16, 4), 16),
    },
}


def model_of(name: str, size: str, device: str) -> tuple[torch.nn.Module, Batch]:
    """A model in bf16 and a batch, both the same at every call."""
    layers, width, heads, kv, between, batch, tokens, words = SIZES[size][name.removesuffix("-cache")]
    torch.manual_seed(0)
    common = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    if name == "vit":
        side, patch = tokens
        config = transformers.ViTConfig(
            **common, intermediate_size=between, image_size=side, patch_size=patch, num_labels=words
        )
        cls = transformers.ViTForImageClassification
    elif name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=words, n_positions=tokens, n_embd=width, n_layer=layers, n_head=heads, n_inner=between,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        cls = transformers.GPT2LMHeadModel
    else:
        more = {"vocab_size": words, "intermediate_size": between, "num_key_value_heads": kv}
        more["use_cache"] = name.endswith("-cache")
        config, cls = (
            (transformers.Qwen2Config(**common, **more), transformers.Qwen2ForCausalLM)
            if name == "qwen2"
            else (transformers.LlamaConfig(**common, **more), transformers.LlamaForCausalLM)
        )
    with torch.device(device):
        model = cls(config).to(torch.bfloat16).train()
        if name == "vit":
            pixels = torch.randn(batch, 3, side, side, dtype=torch.bfloat16)
            return model, {"pixel_values": pixels, "labels": torch.randint(0, words, (batch,))}
        ids = torch.randint(0, words, (batch, tokens))
    return model, {"input_ids": ids, "labels": ids.clone()}


def loss_of(out: Any) -> Any:
    return out.loss
