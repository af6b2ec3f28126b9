"""A PyTorch model planned for 4 devices within a limit of memory, then trained beside eager PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import torch

import shardwright as sw


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x: Any, target: Any) -> Any:
        out = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return (out - target).square().mean()


def main() -> None:
    torch.manual_seed(0)
    model, x, target = Model().double(), torch.randn(16, 64).double(), torch.randn(16, 64).double()
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3) for m in (model, eager))
    plan = sw.plan(model, x, target, optimizer=ours, mesh="d=4", memory="600 KiB")
    print(repr(plan))
    step = plan.step()
    for number in range(3):
        loss = eager(x, target)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        print(f"step {number}: {step(x, target):.9f} on 4 devices, {loss:.9f} on one")
    step.sync()  # back into the model
    print("largest difference of a weight", f"{(model.up.weight - eager.up.weight).abs().max():.0e}")
    assert torch.allclose(model.up.weight, eager.up.weight, atol=1e-9)


if __name__ == "__main__":
    main()
