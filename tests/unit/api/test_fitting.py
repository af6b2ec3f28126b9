"""What does not fit says what would: each way that is named is planned here as it is written, and fits."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.api import fitting as fitting_module
from shardwright.api.fitting import fitting
from shardwright.cost.hardware import hardware_of
from shardwright.errors import PlanInfeasible
from shardwright.frontends.torch.framework import TORCH
from shardwright.plans import duration

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import shardwright.torch as swt  # noqa: E402

MIB = 2**20
WIDER = re.compile(r'with mesh="([^"]+)" there is a plan: ([0-9.]+ \w+) a step, ([0-9.]+) MiB a device')
SMALLER = re.compile(
    r"with accumulate=(\d+) there is a plan: at most (\d+) times ([0-9.]+ \w+) a step, ([0-9.]+) MiB a device"
)
AGAIN = re.compile(
    r"with torch.utils.checkpoint around each block of (\w+) there is a plan: "
    r"([0-9.]+ \w+) a step, ([0-9.]+) MiB a device"
)


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, too."""
    monkeypatch.setattr(fitting_module, "SECONDS", 240.0)


def machine(memory: float) -> Any:
    return hardware_of("h100").with_memory(int(memory * MIB))


class Wide(torch.nn.Module):
    """Activations of a large batch, beside little state."""

    def __init__(self, size: int = 256) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


def training(batch: int = 4096, **about: Any) -> sw.Plan:
    model = Wide()
    optimizer = torch.optim.AdamW(model.parameters())
    return sw.plan(model, torch.zeros(batch, 256), optimizer=optimizer, loss=lambda out: out.square().mean(), **about)


def refused(make: Any, *args: Any, **about: Any) -> PlanInfeasible:
    with pytest.raises(PlanInfeasible) as caught:
        make(*args, **about)
    return caught.value


def picoseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"us": 10**6, "ms": 10**9}[unit]


@pytest.mark.parametrize("recipe", [None, "zero3"])
def test_ways_to_fit_are_plans_that_fit(recipe: str | None) -> None:
    """Their prices are those of the plan, which may be better where it is given more time."""
    about: dict[str, Any] = {"mesh": "dp=2", "hardware": machine(16), "recipe": recipe}
    error = refused(training, **about)
    wider, smaller = WIDER.search(error.help), SMALLER.search(error.help)
    assert wider is not None
    assert smaller is not None
    assert smaller[1] == smaller[2]
    bigger = training(**{**about, "mesh": wider[1]})
    cut = training(**about, accumulate=int(smaller[1]))
    for plan, time, memory in ((bigger, *wider.groups()[1:]), (cut, *smaller.groups()[2:])):
        assert max(plan.memory, float(memory) * MIB) <= about["hardware"].usable_memory
        assert plan.cost.objective <= picoseconds(time) + picoseconds(f"0.0005 {time.split()[1]}")
        if recipe is not None:
            assert (duration(plan.cost.objective), f"{plan.memory / MIB:.2f}") == (time, memory)
    assert "larger mesh" in error.help.splitlines()[0]  # what was said without them


def test_a_batch_that_is_cut_already_is_cut_further() -> None:
    about: dict[str, Any] = {"mesh": "dp=2", "hardware": machine(16)}
    smaller = SMALLER.search(refused(training, **about, accumulate=2).help)
    assert smaller is not None
    assert int(smaller[1]) >= 4
    assert training(**about, accumulate=int(smaller[1])).memory <= about["hardware"].usable_memory


def test_a_step_that_accumulates_as_told_fits_where_it_runs() -> None:
    def step(**about: Any) -> Any:
        torch.manual_seed(0)
        model = Wide(16)
        return swt.train_step(
            model, optimizer=torch.optim.AdamW(model.parameters()), batch=torch.zeros(1024, 16), mesh="dp=2",
            recipe="zero3", loss=lambda out: out.square().mean(), **about,
        )  # fmt: skip

    hardware = machine(step().plan.memory / 3 / MIB)
    found = SMALLER.search(refused(step, hardware=hardware).help.replace("KiB", "MiB"))
    assert found is not None
    made = step(hardware=hardware, accumulate=int(found[1]))
    made(torch.ones(1024, 16))
    assert made.executed.peak_bytes <= hardware.usable_memory


def test_only_what_helps_is_said() -> None:
    """State alone is too large for the mesh, so that no batch is small enough; a recipe without cuts never fits."""
    error = refused(training, 1024, mesh="dp=2", hardware=machine(4))
    assert WIDER.search(error.help) is not None
    assert SMALLER.search(error.help) is None
    error = refused(training, 1024, mesh="dp=2", hardware=machine(4), recipe="replicated")
    assert "there is a plan" not in error.help


def test_requests_are_kept_on_a_larger_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting_module, "EACH", 60.0)
    shapes = [sw.ShapeDtype(shape, np.float32) for shape in ((64, 1024), (1024, 4096), (4096, 1024))]

    def mlp(x: Any, w: Any, v: Any) -> Any:
        return sw.with_sharding_constraint(np.maximum(x @ w, 0), "[dp, tp]") @ v

    asked: dict[str, Any] = {"constraints": {"w": "[_, tp]"}, "hardware": machine(8)}
    error = refused(sw.plan, mlp, *shapes, mesh="dp=1, tp=4", **asked)
    found = WIDER.search(error.help)
    assert found is not None
    assert found[1] == "dp=2, tp=4"  # and not the first that is tried, which has the most devices
    plan = sw.plan(mlp, *shapes, mesh=found[1], **asked)
    assert plan.specs["w"] == "[_, tp]"
    assert plan.memory <= asked["hardware"].usable_memory


def test_where_memory_is_not_the_reason_nothing_is_tried() -> None:
    x = sw.ShapeDtype((64, 64), np.float32)
    constraints = [sw.pin("x", "[d, _]"), sw.forbid("x", "d")]
    error = refused(sw.plan, np.tanh, x, mesh="d=2", constraints=constraints)
    assert "mesh=" not in error.help


def test_a_model_that_takes_one_batch_size_only_is_refused_as_before() -> None:
    class Fixed(Wide):
        def forward(self, x: Any) -> Any:
            return super().forward(x.view(4096, 256))

    model = Fixed()
    optimizer = torch.optim.AdamW(model.parameters())
    error = refused(
        sw.plan, model, torch.zeros(4096, 256), optimizer=optimizer, loss=lambda out: out.square().mean(),
        mesh="dp=2", hardware=machine(16),
    )  # fmt: skip
    assert WIDER.search(error.help) is not None
    assert SMALLER.search(error.help) is None


class Deep(torch.nn.Module):
    """Four blocks, in a list or not."""

    def __init__(self, again: bool, listed: bool) -> None:
        super().__init__()
        parts = [Wide(64) for _ in range(4)]
        if listed:
            self.parts = torch.nn.ModuleList(parts)
        for i, part in enumerate(() if listed else parts):
            setattr(self, f"part{i}", part)
        self.again = again

    def forward(self, x: Any) -> Any:
        parts = getattr(self, "parts", None) or [getattr(self, f"part{i}") for i in range(4)]
        for part in parts:
            x = checkpoint(part, x, use_reentrant=False) if self.again else part(x)
        return x


def deep(again: bool, memory: float, listed: bool = True) -> sw.Plan:
    model, x = Deep(again, listed), torch.zeros(4096, 64)
    return sw.plan(
        model, x, optimizer=torch.optim.AdamW(model.parameters()), loss=lambda out: out.square().mean(),
        mesh="dp=2", hardware=machine(memory), recipe="zero3",
    )  # fmt: skip


def between(listed: bool = True) -> float:
    return (deep(False, 1000, listed).memory + deep(True, 1000, listed).memory) / 2 / MIB


def test_checkpoints_are_tried_around_blocks() -> None:
    """The plan that is named is that of the model with checkpoints in it."""
    memory = between()
    help = refused(deep, False, memory).help
    found = AGAIN.search(help)
    assert found is not None
    plan = deep(True, memory)
    assert ("parts", duration(plan.cost.objective), f"{plan.memory / MIB:.2f}") == found.groups()
    assert "are activations" not in help
    assert AGAIN.search(refused(deep, False, memory / 20).help or "") is None


def test_checkpoints_save_no_more_than_is_said() -> None:
    """Where blocks are in no list that they could be found in."""
    memory = between(listed=False)
    error = refused(deep, False, memory, False)
    found = re.search(r"zero3 needs ([0-9.]+) MiB a device, of which ([0-9.]+) MiB are activations", error.help)
    assert found is not None
    assert 0 < float(found[1]) - deep(True, memory, False).memory / MIB <= float(found[2]) + 0.01
    assert "are activations" not in (refused(deep, False, 1, False).help or "")  # far from enough


def test_a_model_is_as_it_was_behind_a_try() -> None:
    """Also where a block is not fit for it."""

    def forward(x: Any) -> Any:
        raise ZeroDivisionError

    model = torch.nn.Sequential(Wide(8), torch.nn.Sequential(Wide(8), torch.nn.ReLU()), torch.nn.ReLU())
    model[0].forward = forward
    with suppress(ZeroDivisionError), TORCH.checkpointed(model) as lists:
        assert lists == ("Sequential",)
        assert model[0].forward is not forward
        assert "forward" in vars(model[1])
        assert not any("forward" in vars(part) for part in (model[2], *model[0].children(), *model[1].children()))
        model(torch.zeros(2, 8))
        pytest.fail("the block is not fit")
    assert model[0].forward is forward
    assert "forward" not in vars(model[1])


def test_no_time_no_ways() -> None:
    plan = training(mesh="dp=2")
    short = plan.planner.keeping(())
    assert fitting(short, "auto", 0.0, None) == []
