"""Every rank: ordinary training runs on four processes, against eager PyTorch on one.

Each rank gives its part of a batch; the last batch of an epoch is smaller; the learning rate and the betas move;
gradients are clipped and accumulated.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

import shardwright.torch as swt
import torch_zoo as zoo
from shardwright.errors import ShardwrightError, SpecError

RUNS = (
    ("llama megatron", "dp=2, tp=2", "specs"), ("gpt2 megatron", "dp=2, tp=2", "specs"), ("gpt2 zero3", "dp=4", "zero3"),
    ("llama zero3", "dp=2, tp=2", "zero3"), ("llama megatron", "dp=2, tp=2", "solver"), ("gpt2 odd", "dp=2, tp=2", "solver"),
)  # fmt: skip
"""Models, meshes, and who decides."""
PARTS = 2


def ids_of(model: Any, rows: int, step: int) -> Any:
    draw = torch.Generator().manual_seed(step)
    return torch.randint(0, model.inner.config.vocab_size, (rows, 6), generator=draw)


def mine(batch: Any, step: Any) -> Any:
    """This rank's part, as a `DistributedSampler` would hand it out."""
    return batch.chunk(step.data_ranks)[step.data_rank]


def train(case: str, mesh: str, how: str, steps: int) -> None:
    torch.manual_seed(dist.get_rank())  # ranks begin with different numbers; rank 0's count
    model, _, specs = zoo.case(case)
    torch.manual_seed(0)
    eager, _, _ = zoo.case(case)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-3) for m in (model, eager))
    rates = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1e-3, total_steps=steps + 1) for o in (ours, theirs)]
    about: dict[str, Any] = {"specs": specs} if how == "specs" else {"recipe": how}
    if how == "solver":  # weights are cut as asked, and all else as links that cost next to nothing allow
        asked = {key: spec for key, spec in specs.items() if key not in zoo.BATCH}
        about = {"hardware": "virtual", "constraints": asked}
    world, local = 8, 8 // (4 if mesh == "dp=4" else 2)
    example = ids_of(eager, local, 0)
    step = swt.train_step(
        model, optimizer=ours, batch={"ids": example, "labels": example}, mesh=mesh, data="local",
        clip_grad_norm=0.5, accumulate=PARTS, **about,
    )  # fmt: skip
    roles = {item.name: item.role for item in step.source.inputs_are}
    cut = [step.program.values[v] for v in step.program.inputs if roles[step.program.values[v].name] == "parameter"]
    assert sum(p.type.bytes for p in cut if p.spec.sharded_axes) >= sum(p.type.bytes for p in cut) / 2
    for n in range(steps):
        rows = world if n % 5 else 4 * PARTS  # one batch of each epoch is smaller
        rows = rows if n % 5 != 4 else world * 2
        batch = ids_of(eager, rows, n)
        # What a rank cuts into micro-batches is its own part: the same examples, in another order.
        total = torch.zeros(())
        parts = [torch.cat([p.chunk(PARTS)[k] for p in batch.chunk(step.data_ranks)]) for k in range(PARTS)]
        for part in parts:
            loss = eager(ids=part, labels=part) / PARTS
            loss.backward()
            total = total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(eager.parameters(), 0.5)
        theirs.step()
        theirs.zero_grad()
        given = mine(batch, step)
        found = step(ids=given, labels=given)
        torch.testing.assert_close(found, total, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(step.grad_norm, norm, rtol=1e-9, atol=1e-9)
        for rate in rates:
            rate.step()
    step.sync()
    for one, other in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def refuses() -> None:
    """Parts that do not fit together, and not saying what each rank gives."""
    model = zoo.MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if dist.get_rank() == 0 else 0.7)
    about: dict[str, Any] = {"optimizer": optimizer, "loss": torch.sum, "mesh": "dp=4", "recipe": "dp"}
    try:
        swt.train_step(model, batch=(torch.ones(4, 6),), **about)
    except SpecError as error:
        assert "data=" in str(error), error
    else:
        raise AssertionError("nobody said what a rank gives")
    step = swt.train_step(model, batch=(torch.ones(2, 6),), data="local", **about)
    assert optimizer.param_groups[0]["lr"] == 0.1, "rank 0's options are what all start with"
    step(torch.ones(2, 6))
    rank = dist.get_rank()
    for sizes in ((2, 2, 1, 2), (1, 2, 2, 2)):
        try:
            step(torch.ones(sizes[rank], 6))
        except SpecError as error:
            assert "examples" in str(error), error
        else:
            raise AssertionError(f"{sizes} went through")
    for sizes in ((2, 2, 2, 1), (2, 2, 2, 0), (2, 2, 2, 2)):
        step(torch.ones(sizes[rank], 6))
    try:
        step(torch.ones(2, 6).int())
    except ShardwrightError as error:
        assert "element types" in str(error), error
    step(torch.ones(2, 6))


def warns() -> None:
    """Once, where ranks say that they give parts, and all give the same."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("shardwright").addHandler(handler)
    model = zoo.MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for own in (True, False):
        first = torch.full((2, 6), float(own * dist.get_rank()))
        step = swt.train_step(model, batch=(first,), optimizer=optimizer, loss=torch.sum, mesh="dp=4", data="local")
        for n in range(5):
            assert len(lines) == (not own and n >= 3), (own, n, lines)
            step(first + n)
    assert len(lines) == 1, lines
    assert "the same on all ranks" in lines[0]


def main(steps: int, cases: list[str]) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for case, mesh, how in RUNS:
        if not cases or case in cases:
            train(case, mesh, how, steps)
            print(f"passed {case} {how}", flush=True)
    refuses()
    print("passed refusals", flush=True)
    warns()
    print("passed warnings", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(int(sys.argv[1]), sys.argv[2:])
    dist.destroy_process_group()
