"""Models that are too large to be: on the meta device, at smaller sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwright as sw
import shardwright.torch as swt

VOCAB, WIDTH, HEADS, INNER = 128256, 4096, 32, 14336


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def model() -> Model:
    with torch.device("meta"):
        return Model()


def tensor_parallel(mesh: Any) -> Any:
    made = parallelize_module(
        model(),
        mesh,
        {"embed": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())},
    )
    for block in made.blocks:
        plan: dict[str, Any] = dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel())
        plan["o"] = plan["down"] = RowwiseParallel()
        parallelize_module(block, mesh, plan)
    return made


def sharded(mesh: Any) -> Any:
    made = model()
    for block in made.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(made, mesh=mesh)


IDS = torch.arange(32).reshape(8, 4) * 3917 % VOCAB


def test_tensor_parallel() -> None:
    proof = swt.prove(tensor_parallel, like=model(), mesh="tp=4", inputs=(IDS,))
    assert proof, proof
    smaller = dict(proof.certificate.smaller)
    assert smaller[WIDTH] < 256
    assert smaller[VOCAB] < 256


def test_sharded() -> None:
    proof = swt.prove(sharded, like=model(), mesh="dp=4", inputs=(IDS,), placements={"ids": Shard(0)})
    assert proof, proof


def test_a_factor_is_found_at_small_sizes_too() -> None:
    def wrong(mesh: Any) -> Any:
        made = tensor_parallel(mesh)
        made.blocks[1].down.register_forward_hook(lambda module, args, out: out * 2)
        return made

    proof = swt.prove(wrong, like=model(), mesh="tp=2", inputs=(IDS,))
    assert not proof
    assert "output" in {difference.name for difference in proof.differences}


def test_what_it_costs() -> None:
    """The same program as the recipe's costs about the same."""

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(1024, 4096), nn.Linear(4096, 1024)

        def forward(self, x: Any) -> Any:
            return self.b(torch.relu(self.a(x)))

    def mine(mesh: Any) -> Any:
        return parallelize_module(Mlp(), mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})

    x = torch.randn(512, 1024)
    text = sw.compare(Mlp(), x, mesh="dp=1, tp=4", loss=lambda out: out.square().mean(), foreign={"mine": mine})
    rows = {line.split()[0]: line.split() for line in text.splitlines()}
    assert float(rows["mine"][1]) == pytest.approx(float(rows["megatron"][1]), rel=0.1)
    assert rows["mine"][-1] == rows["megatron"][-1] == "1"
