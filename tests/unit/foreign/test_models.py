"""Whole models under PyTorch's own parallelism: its test Transformer, and `transformers`' Llama."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import shardwright.torch as swt

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
DATA = ("dp", "replica")
"""Axes over which the batch is split."""


def wrapped(model: Any, layers: Any, how: str, mesh: Any) -> Any:
    if "ddp" in how:
        return nn.parallel.DistributedDataParallel(model)
    if "fsdp" in how or "hsdp" in how:
        over = mesh if "hsdp" in how else mesh["dp"]
        for layer in layers:
            fully_shard(layer, mesh=over)
        fully_shard(model, mesh=over)
    return model


def placements(mesh: dict[str, int]) -> tuple[Any, ...]:
    return tuple(Shard(0) if axis in DATA else Replicate() for axis in mesh)


def cases(*quick: tuple[str, dict[str, int]], slow: list[tuple[str, dict[str, int]]]) -> Any:
    return pytest.mark.parametrize(
        ("how", "mesh"),
        [*quick, *(pytest.param(*case, marks=pytest.mark.long) for case in slow)],
        ids=lambda item: item if isinstance(item, str) else "x".join(map(str, item.values())),
    )


def transformer(ranks: int) -> Any:
    pytest.importorskip("expecttest")  # PyTorch's own test modules need it
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    torch.manual_seed(0)
    width, heads = (24, 6) if ranks % 3 == 0 else (16, 4)
    return Transformer(ModelArgs(dropout_p=0.0, vocab_size=16, dim=width, n_heads=heads, n_layers=2))


@cases(
    ("tp", {"tp": 2}), ("tp, sp", {"tp": 3}), ("fsdp", {"dp": 2}), ("hsdp", {"replica": 2, "dp": 2}),
    ("tp, fsdp", {"dp": 2, "tp": 2}), ("ddp", {"dp": 3}),
    slow=[("tp", {"tp": 3}), ("tp", {"tp": 4}), ("tp, sp", {"tp": 2}), ("tp, sp", {"tp": 4}), ("fsdp", {"dp": 3}),
          ("fsdp", {"dp": 4}), ("hsdp", {"replica": 2, "dp": 3}), ("tp, sp, fsdp", {"dp": 2, "tp": 3}),
          ("tp, sp, fsdp", {"dp": 2, "tp": 2}), ("ddp", {"dp": 2}), ("ddp", {"dp": 4})],
)  # fmt: skip
def test_pytorchs_transformer(how: str, mesh: dict[str, int]) -> None:
    tp = mesh.get("tp", 1)

    def parallel(torch_mesh: Any) -> Any:
        model = transformer(tp)
        if "tp" in how:
            model = model.parallelize(model, torch_mesh["tp"], "sp" in how)
        return wrapped(model, model.layers, how, torch_mesh)

    ids = torch.arange(144).reshape(12, 12) * 7 % 16
    weights = torch.arange(1.0, 17.0)
    given = {"tokens": placements(mesh)} if set(mesh) & set(DATA) else None
    proof = swt.prove(parallel, like=transformer(tp), mesh=mesh, inputs=(ids,), placements=given,
                      loss=lambda out: (out.square() * weights).mean())  # fmt: skip
    assert proof, proof
    assert "gradient of tok_embeddings.weight" in proof.certificate.shown
    assert not proof.certificate.trusted


def llama(ranks: int) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    heads, groups = (6, 6) if ranks == 3 else (8, 4) if ranks == 4 else (6, 2)
    config = transformers.LlamaConfig(
        vocab_size=48, hidden_size=4 * heads, intermediate_size=36, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=groups, max_position_embeddings=32, head_dim=4,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def llama_plan(sequence: bool) -> dict[str, Any]:
    """Tensor parallel; with ``sequence``, what lies between the layers is cut along the sequence."""
    between = Shard(1) if sequence else Replicate()
    local = not sequence
    plan: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=between, use_local_output=local
        ),
        "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
        **dict.fromkeys(
            [f"model.layers.*.self_attn.{name}_proj" for name in "qkv"]
            + ["model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj"],
            ColwiseParallel(),
        ),
        **dict.fromkeys(
            ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"],
            RowwiseParallel(output_layouts=between, use_local_output=local),
        ),
    }
    if sequence:
        plan["model.norm"] = plan["model.layers.*.input_layernorm"] = SequenceParallel()
        plan["model.layers.*.post_attention_layernorm"] = SequenceParallel()
        plan["model.layers.*.self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
            use_local_output=True,
        )
        plan["model.layers.*.mlp"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        )
    return plan


@cases(
    ("tp", {"tp": 2}), ("tp, fsdp", {"dp": 2, "tp": 2}),
    slow=[("tp", {"tp": 3}), ("tp", {"tp": 4}), ("fsdp", {"dp": 2}), ("fsdp", {"dp": 3}), ("fsdp", {"dp": 4}),
          ("hsdp", {"replica": 2, "dp": 2}), ("hsdp", {"replica": 2, "dp": 3}), ("tp, fsdp", {"dp": 2, "tp": 3}),
          ("tp, sp", {"tp": 2}), ("tp, sp", {"tp": 3}), ("ddp", {"dp": 2}), ("ddp", {"dp": 4})],
)  # fmt: skip
def test_llama(how: str, mesh: dict[str, int]) -> None:
    tp = mesh.get("tp", 1)

    def parallel(torch_mesh: Any) -> Any:
        model = llama(tp)
        if "tp" in how:
            parallelize_module(model, torch_mesh["tp"], llama_plan("sp" in how))
        return wrapped(model, model.model.layers, how, torch_mesh)

    ids = torch.arange(144).reshape(12, 12) * 7 % 48
    given = dict.fromkeys(("input_ids", "labels"), placements(mesh)) if set(mesh) & set(DATA) else None
    proof = swt.prove(parallel, like=llama(tp), mesh=mesh, inputs={"input_ids": ids, "labels": ids}, placements=given)
    assert proof, proof
    assert not proof.certificate.trusted
