"""Models of `transformers` by name: ``hf:llama-3-8b``, or ``hf:path/config.json``.

They are built on the meta device from their configuration: nothing is downloaded, no weight is made, and no code that
came with a configuration is run.
"""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import SpecError, near_misses

PREFIX = "hf:"
KINDS = {
    "causal": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM", "seq2seq": "AutoModelForSeq2SeqLM",
    "image": "AutoModelForImageClassification",
}  # fmt: skip
OPTIMIZERS = ("adamw", "sgd", "none")
BATCH, SEQUENCE = 8, 2048


def known_models() -> dict[str, dict[str, Any]]:
    """The list that comes with the project."""
    return tomllib.loads(files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))


def model_program(
    name: str, batch: int | None, sequence: int | None, dtype: str | None, optimizer: str | None
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A training step of the model (or its forward pass), as `shardwright.plan` takes it."""
    about = _described(name)
    if optimizer not in (None, *OPTIMIZERS):
        raise SpecError(f"no optimizer is called {optimizer!r} here", rows=[("known", ", ".join(OPTIMIZERS))],
                        help=near_misses(optimizer, OPTIMIZERS))  # fmt: skip
    import torch
    import transformers

    config = _config(about, transformers)
    kind = about.get("kind") or _kind(config)
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    length = sequence or min(SEQUENCE, longest or SEQUENCE)
    if kind != "image" and longest is not None and length > longest:
        raise SpecError(f"--seq {length} is more than the {longest} positions of {name!r}", help=f"at most {longest}")
    with torch.device("meta"):
        make = getattr(transformers, KINDS[kind])
        try:
            model = make.from_config(config).to(_dtype(dtype, torch))
        except (ValueError, TypeError, AttributeError) as error:
            raise SpecError(f"transformers makes no {kind} model of {name!r}: {error}") from None
        arguments = _batch(torch, kind, config, batch or BATCH, length, next(model.parameters()).dtype)
    if optimizer == "none":
        model.eval()
        return model, (), arguments
    optim: Any = torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW
    return model, (), {"optimizer": optim(model.parameters(), lr=1e-3), **arguments}


def _described(name: str) -> dict[str, Any]:
    if not name.endswith(".json"):
        known = known_models()
        if name not in known:
            raise SpecError(
                f"no model is called {name!r}", rows=[("known", ", ".join(known))],
                help=near_misses(name, known) or "name one of these, or a file: hf:path/config.json",
            )  # fmt: skip
        return known[name]
    try:
        config = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"no configuration can be read from {name!r}: {error.strerror}") from None
    except ValueError as error:
        raise SpecError(f"{name!r} is no JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise SpecError(f"{name!r} names no model_type", help="give the config.json of a model of transformers")
    return {"config": config}


def _config(about: dict[str, Any], transformers: Any) -> Any:
    given = {key: value for key, value in about["config"].items() if key not in ("auto_map", "architectures")}
    kind = given.pop("model_type")
    try:
        config = transformers.AutoConfig.for_model(kind, **given)
    except (ValueError, TypeError, KeyError) as error:
        raise SpecError(f"transformers knows no configuration {kind!r} like this: {str(error)[:500]}") from None
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if getattr(config, "sliding_window", None) == 0:
        config.sliding_window = None
    config.architectures = about["config"].get("architectures")
    return config


def _kind(config: Any) -> str:
    """Of a configuration from a file: by the architecture that it names."""
    names = " ".join(config.architectures or ())
    if "ForMaskedLM" in names:
        return "masked"
    if "ImageClassification" in names or hasattr(config, "image_size"):
        return "image"
    return "seq2seq" if getattr(config, "is_encoder_decoder", False) else "causal"


def _dtype(name: str | None, torch: Any) -> Any:
    known = ("bfloat16", "float16", "float32", "float64")
    short = {"bf16": "bfloat16", "f16": "float16", "fp16": "float16", "f32": "float32", "fp32": "float32"}
    chosen = short.get(name or "", name) or "bfloat16"
    if chosen not in known:
        raise SpecError(f"no element type is called {name!r}", rows=[("known", ", ".join(known))],
                        help=near_misses(chosen, known))  # fmt: skip
    return getattr(torch, chosen)


def _batch(torch: Any, kind: str, config: Any, batch: int, length: int, dtype: Any) -> dict[str, Any]:
    if kind == "image":
        size, channels = config.image_size, getattr(config, "num_channels", 3)
        return {
            "pixel_values": torch.empty(batch, channels, size, size, dtype=dtype),
            "labels": torch.empty(batch, dtype=torch.long),
        }
    ids = torch.empty(batch, length, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}
