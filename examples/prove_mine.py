"""Parallel code as you would write it: the proof names what a wrong gradient is, and accepts the code repaired."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import shardwright.torch as swt


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 8, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


def data_parallel(repaired: bool) -> Any:
    """A step on each rank: its rows of the batch; gradients are to be averaged over ranks."""

    def make() -> Any:
        torch.manual_seed(0)
        model = Mlp()

        def step(x: Any) -> Any:
            mine = x.chunk(2)[dist.get_rank()]
            loss = model(mine).square().mean() / 2
            loss.backward()
            dist.all_reduce(loss.detach())
            for parameter in model.parameters() if repaired else [model.up.weight]:
                dist.all_reduce(parameter.grad)
            return None

        step.model = model  # type: ignore[attr-defined]
        return step

    return make


def single() -> Any:
    torch.manual_seed(0)
    model = Mlp()

    def step(x: Any) -> Any:
        model(x).square().mean().backward()
        return None

    step.model = model  # type: ignore[attr-defined]
    return step


def main() -> None:
    for repaired in (False, True):
        proof = swt.prove(data_parallel(repaired), like=single(), mesh="dp=2", inputs=(torch.randn(4, 8),))
        print("all gradients are added up:" if repaired else "one gradient is not added up:")
        print(proof)
        assert bool(proof) == repaired


if __name__ == "__main__":
    main()
