"""Every rank: models of the zoo train on four processes as eager PyTorch does on one; sharded tensors by hand."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))
from counting import Counted, started

import shardwright as sw
import shardwright.torch as swt
import torch_zoo as zoo

MESH = "dp=2, tp=2"


def train(case: str) -> None:
    torch.manual_seed(0)
    model, batch, specs = zoo.case(case)
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-3) for m in (model, eager))
    step = swt.shard_step(model, mesh=MESH, optimizer=ours, specs=specs, **batch)
    assert step.engine.name == "torch"
    for _ in range(3):
        loss = eager(**batch)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        with Counted() as counted:
            found = step(**batch)
        torch.testing.assert_close(found, loss.detach(), rtol=1e-10, atol=1e-10)
        assert step.executed.collectives == step.collectives
        assert counted.counts == started(step.program), (counted.counts, step.collectives)
        assert sum(counted.counts.values()) == step.executed.starts < len(step.collectives)
    step.sync()
    for left, right in zip((*model.parameters(), *model.buffers()), (*eager.parameters(), *eager.buffers())):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


def strategies() -> None:
    """Three ways to split, by what is sharded; each process holds one shard, and numbers are those of one device."""
    mesh = "w=4"
    whole = torch.from_numpy(sw.randn(128, 64, mesh="one=1").numpy())
    other = torch.from_numpy(sw.randn(64, 32, mesh="one=1", seed=1).numpy())
    a = sw.randn(128, 64, mesh=mesh, engine="torch")
    b = sw.randn(64, 32, mesh=mesh, spec="[_, _]", seed=1, engine="torch")
    assert a.shards.shape == (32, 64)

    def collectives() -> list[str]:
        found = [entry.name for entry in sw.log.events("collective")]
        sw.log.clear()
        return found

    collectives()
    c = a @ b
    assert collectives() == []
    torch.testing.assert_close(c.full_tensor(), whole @ other)
    assert [entry.event for entry in sw.log.entries][-1] == "gather"
    collectives()
    for total, expected in (
        (a.sum(), whole.sum()), (a.mean(), whole.mean()), (a.redistribute("[_, w]").sum(), whole.sum()),
    ):  # fmt: skip
        torch.testing.assert_close(total.full_tensor(), expected)
    assert [name for name in collectives() if name != "all_to_all"] == ["all_reduce"] * 3
    a, b = (
        sw.asarray(whole, mesh=mesh, spec="[_, w]", engine="torch"),
        sw.asarray(other, mesh=mesh, spec="[w, _]", engine="torch"),
    )
    collectives()
    c = a @ b
    assert collectives() == ["all_reduce"]
    torch.testing.assert_close(c.full_tensor(), whole @ other)


def mapped() -> None:
    """shard_map on a PyTorch mesh, with placements as specs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    x, w = torch.randn(6, 8), torch.randn(8, 5)
    f = sw.shard_map(lambda x, w: x @ w, mesh, in_specs=([Shard(0), Shard(1)], [Replicate(), Shard(0)]))
    torch.testing.assert_close(f(x, w), x @ w)
    assert [c.kind for c in f.executed.collectives] == ["all_reduce"]


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    for case in zoo.CASES:
        train(case)
        print(f"passed {case}", flush=True)
    strategies()
    print("passed strategies", flush=True)
    mapped()
    print("passed mapped", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
