"""What programs do with memory, messages and element types is followed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import shardwright.torch as swt

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


def test_several_tensors_are_received_at_a_time() -> None:
    """Two sends and two receives are under way before one of them is waited for."""

    def parallel(mesh: Any) -> Any:
        rank, size = dist.get_rank(), dist.get_world_size()

        def step(x: Any, y: Any) -> Any:
            got = [torch.empty_like(x), torch.empty_like(y)]
            calls = [dist.P2POp(dist.isend, part, (rank + 1) % size) for part in (x, y)]
            calls += [dist.P2POp(dist.irecv, part, (rank - 1) % size) for part in got]
            for work in dist.batch_isend_irecv(calls):
                work.wait()
            return -got[1] + got[0]  # the second is looked at first

        return step

    def single(x: Any, y: Any) -> Any:
        return (x - y).roll(2, 0)

    x, y = torch.randn(6, 3), torch.randn(6, 3)
    placements = {name: Shard(0) for name in ("x", "y", "output")}
    proof = swt.prove(parallel, like=single, mesh={"cp": 3}, inputs=(x, y), placements=placements)
    assert proof, proof
    other = swt.prove(parallel, like=lambda x, y: x - y, mesh={"cp": 3}, inputs=(x, y), placements=placements)
    assert not other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_with_a_mask_in_any_precision(dtype: Any) -> None:
    class Attention(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    inputs = tuple(torch.randn(4, 2, 3, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    placements = {name: Shard(0) for name in ("q", "k", "v", "output", "cotangent.0")}
    proof = swt.prove(lambda mesh: Attention(), like=Attention(), mesh={"dp": 2}, inputs=inputs, placements=placements)
    assert proof, proof


@pytest.mark.parametrize("step", [False, True])
def test_a_rank_that_holds_no_row_of_a_parameter(step: bool) -> None:
    """FSDP2 gives nothing of 2 rows to ranks 2 and 3."""

    def model() -> Any:
        torch.manual_seed(0)
        return nn.Linear(5, 2)

    def trained(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x: Any) -> Any:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    made = trained if step else lambda model: model
    x = torch.randn(8, 5)
    proof = swt.prove(
        lambda mesh: made(fully_shard(model(), mesh=mesh)), like=made(model()), mesh={"dp": 4}, inputs=(x,),
        placements={"x" if step else "input": Shard(0)}, loss=None if step else lambda out: out.square().mean(),
    )  # fmt: skip
    assert proof, proof
    assert ("parameter of weight" in proof.certificate.shown) is step  # type: ignore[union-attr]
