"""Optimizer steps by fused kernels: the numbers of eager PyTorch, live options, nothing copied, plans that travel."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import shardwright as sw
import shardwright.torch as swt
from shardwright.cost.profile import HELD, RESIDENT, program_memory
from shardwright.frontends.torch.steps.updates import ADAM, STATE
from shardwright.run.torch import TorchEngine, emit
from shardwright.run.torch.private import OperatorMode

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-3, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3, amsgrad=True),
    "maximize": lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-3, weight_decay=0.1, maximize=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    "groups": lambda p: torch.optim.AdamW(
        [{"params": p[::2], "weight_decay": 0.3, "lr": 2e-2}, {"params": p[1::2], "weight_decay": 0.0}], lr=1e-3
    ),
}
SHARDED: dict[str, dict[str, str]] = {
    "dp": {"input": "[dp, _]"},
    "tp": {"input": "[dp, _]", "0.weight": "[tp, _]", "0.bias": "[tp]", "2.weight": "[_, tp]"},
    "zero1": {"input": "[dp, _]", "0.weight.exp_avg": "[dp, _]", "0.weight.exp_avg_sq": "[dp, _]"},
    "zero3": {"input": "[dp, _]", "0.weight": "[_, dp]", "2.weight": "[dp, _]"},
}


@pytest.fixture(autouse=True)
def in_double() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def models() -> tuple[Any, Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    return model, copy.deepcopy(model), torch.randn(10, 4, 6)


def loss(y: Any) -> Any:
    return y.square().mean()


def eager(model: Any, optimizer: Any, x: Any) -> Any:
    found = loss(model(x))
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    return found.detach()


def alone() -> TorchEngine:
    return TorchEngine("x=1", device="cpu", check=False)


def close(model: Any, other: Any, optimizer: Any, others: Any) -> None:
    for left, right in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
        for key, value in others.state[right].items():
            if value is not None:
                torch.testing.assert_close(optimizer.state[left][key], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("specs", ["alone", *SHARDED])
def test_ten_steps_are_those_of_eager_pytorch(name: str, specs: str) -> None:
    if specs == "zero1" and name in ("sgd", "momentum", "nesterov"):
        pytest.skip("it keeps other state")
    model, other, batches = models()
    optimizer, theirs = (OPTIMIZERS[name](list(m.parameters())) for m in (model, other))
    where = {"mesh": "x=1", "engine": alone(), "specs": {}} if specs == "alone" else {
        "mesh": "dp=2, tp=2", "specs": SHARDED[specs]}  # fmt: skip
    step = swt.shard_step(model, batches[0], optimizer=optimizer, loss=loss, **where)
    for x in batches:
        torch.testing.assert_close(step(x), eager(other, theirs, x), rtol=1e-12, atol=1e-12)
    assert sum(instr.op in STATE for instr in step.programs["step"].instrs) == 4
    step.sync()
    close(model, other, optimizer, theirs)


@pytest.mark.parametrize("form", [{}, {"accumulate": 2}, {"on_nonfinite": "skip"}, {"clip_grad_norm": 0.05}], ids=str)
def test_options_stay_alive(form: dict[str, Any]) -> None:
    """A schedule that moves learning rate and betas, changes by hand, and a state dict that is loaded."""
    model, other, batches = models()
    optimizer, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3) for m in (model, other))
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20, cycle_momentum=True)
        for o in (optimizer, theirs)
    ]
    step = swt.train_step(
        model, batch=batches[0], data="global", mesh="x=1", optimizer=optimizer, loss=loss, engine=alone(), **form
    )
    for n, x in enumerate(batches):
        step(x)
        found = sum(loss(other(part)) / form.get("accumulate", 1) for part in x.chunk(form.get("accumulate", 1)))
        found.backward()
        if "clip_grad_norm" in form:
            torch.nn.utils.clip_grad_norm_(other.parameters(), form["clip_grad_norm"])
        theirs.step()
        theirs.zero_grad()
        for o, schedule in zip((optimizer, theirs), schedules):
            schedule.step()
            if n == 4:
                o.param_groups[0]["weight_decay"], o.param_groups[0]["eps"] = 0.5, 1e-2
        if n == 6:
            step.sync()
            optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
            step.load()
    step.sync()
    close(model, other, optimizer, theirs)


def test_nothing_of_the_size_of_a_parameter_is_made() -> None:
    """No second copy of parameters or moments exists at any time: their memory is that of the first step."""
    model = torch.nn.Linear(64, 48, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(4, 64)
    step = swt.shard_step(model, x, mesh="x=1", optimizer=optimizer, loss=loss, specs={}, engine=alone())
    step(x)
    before = sorted(shard.data_ptr() for shard in step.state if shard.numel() == 64 * 48)
    made: list[str] = []

    class Look(OperatorMode):  # type: ignore[misc]
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = op(*args, **(kwargs or {}))
            known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
            if isinstance(found, torch.Tensor) and found.numel() == 64 * 48:
                made.extend([str(op)] if found.untyped_storage().data_ptr() not in known else [])
            return found

    with Look():
        step(x)
    assert made == ["aten.mm.default"], "the gradient, and nothing else"
    assert sorted(shard.data_ptr() for shard in step.state if shard.numel() == 64 * 48) == before
    assert 4 <= program_memory(step.program, RESIDENT) / (64 * 48 * 8) < 4.2, "parameter, gradient, moments"
    assert program_memory(step.program, HELD) / (64 * 48 * 8) > 7


def test_who_keeps_the_state_finds_it_as_it_was() -> None:
    model, _, (x, *_) = models()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = swt.shard_step(model, x, mesh="x=1", optimizer=optimizer, loss=loss, specs={}, engine=alone())
    held = [x, *(shard.clone() for shard in step.state)]
    before = [tensor.clone() for tensor in held]
    (first, *_), _ = step.compiled.run(held)
    assert all(torch.equal(left, right) for left, right in zip(held, before))
    torch.testing.assert_close(step(x), first)


def test_what_a_step_returns_is_not_written_over_later() -> None:
    model, _, (x, *_) = models()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    returned = swt.train_step(
        model, batch=x, data="global", mesh="x=1", optimizer=optimizer, engine=alone(),
        loss=lambda y: (loss(y), model[0].bias.detach()),
    )  # fmt: skip
    _, first = returned(x)
    kept = first.clone()
    _, second = returned(x)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)
    seen = returned.evaluate(x)[1]
    kept = seen.clone()
    returned(x)
    assert torch.equal(seen, kept)


def test_all_parameters_are_one_call() -> None:
    model, _, (x, *_) = models()
    optimizer = OPTIMIZERS["groups"](list(model.parameters()))
    step = swt.shard_step(model, x, mesh="dp=2", optimizer=optimizer, loss=loss, specs={"input": "[dp, _]"})
    for more, count in (({"taking": True}, 2), ({}, 0), ({"taking": True, "fused": False}, 0)):
        module = emit(step.program, 0, stand_ins=True, **more)
        names = [str(getattr(node.target, "__name__", node.target)) for node in module.graph.nodes]
        assert names.count("fused_adam") == count, "one for each group of options"
    assert "copy_.default" in " ".join(names), "plain operators write into donated state"


@pytest.mark.parametrize("layout", ["transposed", "gaps", "gradient"])
def test_tensors_that_do_not_lie_alike(layout: str) -> None:
    """Kernels take memory as it comes; what lies otherwise is brought into line."""
    from shardwright.run.torch.updates import fused_adam

    tensors = [torch.randn(4, 6).abs() for _ in range(4)]
    want = [tensor.clone() for tensor in tensors]
    if layout == "transposed":
        tensors = [tensor.t().contiguous().t() for tensor in tensors]
    elif layout == "gaps":
        tensors = [torch.stack([tensor, tensor], -1)[..., 0] for tensor in tensors]
    else:
        tensors[1] = tensors[1].t().contiguous().t()
    numbers = [torch.tensor(number) for number in (1.0, 1e-2, 0.9, 0.99, 1e-3, 0.1)]
    for p, g, m, v in (tensors, want):
        count, *options = numbers
        fused_adam([p], [g], [m], [v], [], [count], *options, decoupled=True, maximize=False)
    for left, right in zip(tensors, want):
        torch.testing.assert_close(left, right)


def test_plans_travel() -> None:
    model, other, (x, *_) = models()
    make = OPTIMIZERS["adamw"]
    plan = sw.plan(model, x, mesh="dp=2", optimizer=make(list(model.parameters())), loss=loss, recipe="zero1")
    assert [rewrite.name for rewrite in plan.data.rewrites] == ["updates"]
    assert any(node.op == ADAM for node in plan.graph.nodes)
    assert not any(node.op == ADAM for node in plan.source.graph.nodes)
    loaded = sw.load_plan(plan.to_json(), other, x, optimizer=make(list(other.parameters())), loss=loss)
    assert str(loaded.program).split("#")[0] == str(plan.program).split("#")[0]
    assert loaded.verify().program == plan.verify().program
    torch.testing.assert_close(loaded.step()(x), plan.step()(x))
