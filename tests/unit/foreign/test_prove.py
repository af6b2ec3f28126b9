"""`prove` on small programs: the wrappers that people use, on several meshes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwright.torch as swt

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 12)
        self.b = nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return self.b(torch.relu(self.a(x)))


def mlp() -> Mlp:
    torch.manual_seed(0)
    return Mlp()


def tensor_parallel(mesh: Any) -> Any:
    return parallelize_module(mlp(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})


def sharded(mesh: Any) -> Any:
    model = mlp()
    for layer in (model.a, model.b):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def data_parallel(mesh: Any) -> Any:
    return nn.parallel.DistributedDataParallel(mlp())


def both(mesh: Any) -> Any:
    model = parallelize_module(mlp(), mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
    for layer in (model.a, model.b):
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def loss(out: Any) -> Any:
    return out.square().mean()


X = torch.arange(96.0).reshape(12, 8).sin()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_tensor_parallel(ranks: int) -> None:
    proof = swt.prove(tensor_parallel, like=mlp(), mesh={"tp": ranks}, inputs=(X,))
    assert proof, proof
    assert "gradient of a.bias" in proof.certificate.shown
    assert not proof.certificate.trusted


@pytest.mark.parametrize("make", [sharded, data_parallel])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_data_parallel(make: Any, ranks: int) -> None:
    proof = swt.prove(make, like=mlp(), mesh={"dp": ranks}, inputs=(X,), loss=loss, placements={"x": Shard(0)})
    assert proof, proof


@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 2}, {"dp": 2, "tp": 3}])
def test_two_axes(mesh: dict[str, int]) -> None:
    placements = {"x": (Shard(0), Replicate())}
    proof = swt.prove(both, like=mlp(), mesh=mesh, inputs=(X,), loss=loss, placements=placements)
    assert proof, proof


def test_every_rank_may_take_the_whole_batch() -> None:
    """Then averaged gradients are the same gradients."""
    assert swt.prove(data_parallel, like=mlp(), mesh={"dp": 2}, inputs=(X,), loss=loss)


def test_a_sum_for_a_mean_is_refused() -> None:
    placements = {"x": Shard(0)}
    proof = swt.prove(data_parallel, like=mlp(), mesh={"dp": 2}, inputs=(X,), loss=lambda out: out.square().sum(),
                      placements=placements)  # fmt: skip
    assert not proof
    wrong = {difference.name: difference.looks_like for difference in proof.differences}
    names = [f"gradient of {layer}.{kind}" for layer in "ab" for kind in ("weight", "bias")]
    assert wrong == dict.fromkeys(names, "2 times too small")


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        return self.norm(x).square().mean()


def normed() -> Normed:
    torch.manual_seed(0)
    return Normed()


def test_buffers_are_compared() -> None:
    """Statistics of a part of the batch are not those of the batch."""
    whole = swt.prove(lambda: normed(), like=normed(), mesh="dp=2", inputs=(X,))
    assert "norm.running_mean" in whole.certificate.shown
    part = swt.prove(lambda: normed(), like=normed(), mesh="dp=2", inputs=(X,), placements={"x": Shard(0)})
    assert {"norm.running_mean", "norm.running_var"} <= {difference.name for difference in part.differences}


def test_only_a_loss_may_be_each_ranks_own() -> None:
    """What a row-parallel layer makes without its all-reduce is no output."""

    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(mlp().a.weight.detach().chunk(2, 1)[torch.distributed.get_rank()].clone())

        def forward(self, x: Any) -> Any:
            return x.chunk(2, 1)[torch.distributed.get_rank()] @ self.weight.T

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(mlp().a.weight.detach().clone())

        def forward(self, x: Any) -> Any:
            return x @ self.weight.T

    proof = swt.prove(lambda: Row(), like=Whole(), mesh="tp=2", inputs=(X,))
    assert [(d.name, d.looks_like) for d in proof.differences] == [("output", "P(sum) over tp")]
    mean = swt.prove(sharded, like=mlp(), mesh="dp=2", inputs=(X,), loss=loss, placements={"x": Shard(0)})
    assert ("output.1", "P(avg) over dp") in mean.certificate.placed


def test_fsdp_of_parameters_that_were_cut_by_hand() -> None:
    """Megatron's way: each rank keeps some columns as a plain parameter, and FSDP2 cuts those again."""
    import torch.distributed as dist

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, group: Any) -> Any:
            ctx.group = group
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            grad = grad.clone()
            dist.all_reduce(grad, group=ctx.group)
            return grad, None

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, group: Any) -> Any:
            x = x.clone()
            dist.all_reduce(x, group=group)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Parameter(torch.randn(8, 12)), nn.Parameter(torch.randn(12, 8))

        def forward(self, x: Any) -> Any:
            return torch.tanh(torch.tanh(x @ self.a) @ self.b)

    class Cut(Whole):
        def __init__(self, mesh: Any) -> None:
            super().__init__()
            self.group, tp = mesh["tp"].get_group(), mesh["tp"].get_local_rank()
            self.a = nn.Parameter(self.a.detach().chunk(2, 1)[tp].clone())
            self.b = nn.Parameter(self.b.detach().chunk(2, 0)[tp].clone())

        def forward(self, x: Any) -> Any:
            x = Copy.apply(x, self.group)
            return torch.tanh(Reduce.apply(torch.tanh(x @ self.a) @ self.b, self.group))

    def parallel(mesh: Any) -> Any:
        return fully_shard(Cut(mesh), mesh=mesh["dp"])

    placements = {"x": (Shard(0), Replicate())}
    proof = swt.prove(parallel, like=Whole(), mesh="dp=2, tp=2", inputs=(X,), loss=loss, placements=placements)
    assert proof, proof


def test_a_choice_by_one_number_is_looked_at_often() -> None:
    """A norm of one rank's part is compared with a bound, in the place of the whole norm."""

    def single(x: Any) -> Any:
        return torch.where(x.square().sum() > 1, x, -x)

    def parallel(x: Any) -> Any:
        return torch.where(x.chunk(2)[torch.distributed.get_rank()].square().sum() > 1, x, -x)

    assert swt.prove(lambda: single, like=single, mesh="d=2", inputs=(X,))
    for size in range(2, 12):  # other programs have other functions
        assert not swt.prove(lambda: parallel, like=single, mesh="d=2", inputs=(X[:size],))
