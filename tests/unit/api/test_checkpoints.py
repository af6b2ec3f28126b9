"""Checkpoints of a training step in one process: stopped and gone on, on this mesh and on others, and refused files."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F

import shardwright as sw
import shardwright.torch as swt
from shardwright.errors import CheckpointError, ShardwrightError, SpecError
from shardwright.run.torch.checkpoints import folder, storing

ON_TWO = {"*first.weight*": "[tp, _]", "first.bias*": "[tp]", "*second.weight*": "[_, tp]"}
MESHES: dict[str, dict[str, Any]] = {
    "dp=4": {"recipe": "zero3"},
    "dp=2, tp=2": {"specs": {"x": "[dp, _]", "y": "[dp, _]", **ON_TWO}},
    "tp=2": {"specs": ON_TWO},
    "dp=1": {"recipe": "replicated"},
    "dp=3": {"specs": {"x": "[dp, _]", "y": "[dp, _]", "*first.weight*": "[dp, _]", "*second.bias*": "[dp]"}},
}


class Net(torch.nn.Module):
    """Persistent and other buffers, both changed by steps, dropout, and a tied weight."""

    def __init__(self, wide: int = 16) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, wide)
        self.norm = torch.nn.BatchNorm1d(wide)
        self.dropout = torch.nn.Dropout(0.2)
        self.second = torch.nn.Linear(wide, 4)
        self.same = self.first
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("fixed", torch.ones(()), persistent=False)

    def forward(self, x: Any, y: Any) -> Any:
        self.calls.add_(1)
        hidden = self.dropout(torch.relu(self.norm(self.first(x)))) * self.fixed
        return F.mse_loss(self.second(hidden) + 0.01 * self.calls, y)


@pytest.fixture(autouse=True)
def in_double() -> Any:
    before = torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


DRAW = torch.Generator().manual_seed(1)
DATA = [
    (torch.randn(12, 8, generator=DRAW, dtype=torch.float64), torch.randn(12, 4, generator=DRAW, dtype=torch.float64))
    for _ in range(6)
]


def adamw(parameters: Any, **more: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2, **more)


def made(mesh: str, seed: int = 0, optimizer: Any = adamw, model: Any = Net, **more: Any) -> Any:
    torch.manual_seed(seed)
    net = model()
    how = {**MESHES[mesh], "verify": "off", **more}
    return swt.train_step(net, optimizer=optimizer(net.parameters()), batch=DATA[0], mesh=mesh, **how)


def trained(step: Any, batches: Any) -> list[Any]:
    return [step(*batch) for batch in batches]


def optimizer_of(step: Any) -> Any:
    return next(root for _, root in step.source.roots if isinstance(root, torch.optim.Optimizer))


def tensors(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {key: leaf for name, part in tree.items() for key, leaf in tensors(part, f"{path}{name}.").items()}
    return {path: tree} if isinstance(tree, torch.Tensor) else {}


def equal(one: Any, other: Any) -> None:
    """Bit by bit: numbers, options and tensors."""
    left, right = tensors(one), tensors(other)
    assert left.keys() == right.keys()
    assert [key for key in left if not torch.equal(left[key], right[key])] == []
    assert one["optimizer"]["param_groups"] == other["optimizer"]["param_groups"]
    assert all(one["step"][key] == other["step"][key] for key in ("steps", "skipped"))


# -- going on -------------------------------------------------------------------------------------------


FORMS: list[dict[str, Any]] = [
    {},
    {"accumulate": 2, "clip_grad_norm": 0.1},
    {"clip_grad_norm": 1.0, "on_nonfinite": "skip"},
]


@pytest.mark.parametrize("form", FORMS, ids=["plain", "accumulate", "checked"])
@pytest.mark.parametrize("mesh", ["dp=4", "dp=2, tp=2"])
def test_stopping_and_going_on_changes_nothing(mesh: str, form: Any, tmp_path: Path) -> None:
    """With dropout, a schedule, and a smaller batch on the way."""
    whole = made(mesh, **form)
    stopped = made(mesh, **form)
    first, small, rest = DATA[:2], (DATA[2][0][:6], DATA[2][1][:6]), DATA[3:]
    losses = trained(whole, [*first, small])
    optimizer_of(whole).param_groups[0]["lr"] = 0.5e-2
    losses += trained(whole, rest)
    again = trained(stopped, [*first, small])
    optimizer_of(stopped).param_groups[0]["lr"] = 0.5e-2
    stopped.save(tmp_path / "at 3")
    assert stopped.last_checkpoint == str(tmp_path / "at 3")
    resumed = made(mesh, seed=7, **form)
    resumed.restore(tmp_path / "at 3")
    assert resumed.steps == 3
    again += trained(resumed, rest)
    assert all(torch.equal(a, b) for a, b in zip(losses, again, strict=True))
    equal(whole.state_dict(), resumed.state_dict())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> tuple[Path, dict[str, Any]]:
    """A checkpoint of a step on four devices, and its state."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        path = tmp_path_factory.mktemp("saved") / "run" / "3"
        step = made("dp=4")
        trained(step, DATA[:3])
        step.save(path)
        return path, step.full_state_dict()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("mesh", MESHES)
def test_going_on_elsewhere_is_starting_there_from_the_gathered_state(mesh: str, saved: Any) -> None:
    path, state = saved
    resumed, started = made(mesh, seed=8), made(mesh, seed=9)
    resumed.restore(path)
    equal(resumed.full_state_dict(), state)
    started.load_state_dict(copy.deepcopy(state))
    for batch in DATA[3:]:
        assert torch.equal(resumed(*batch), started(*batch))
    equal(resumed.state_dict(), started.state_dict())


def test_going_on_is_starting_from_modules_that_were_synced(tmp_path: Path) -> None:
    """Without dropout, whose key modules do not hold."""

    class Plain(Net):
        def __init__(self) -> None:
            super().__init__()
            self.dropout.p = 0.0

    step = made("dp=4", model=Plain)
    trained(step, DATA[:3])
    step.save(tmp_path / "c")
    step.sync()
    net, optimizer = copy.deepcopy((step.source.roots[0][1], optimizer_of(step)))
    started = swt.train_step(net, optimizer=optimizer, batch=DATA[0], mesh="dp=2, tp=2", **MESHES["dp=2, tp=2"])
    resumed = made("dp=2, tp=2", seed=3, model=Plain)
    resumed.restore(tmp_path / "c")
    for batch in DATA[3:]:
        assert torch.equal(resumed(*batch), started(*batch))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.99)),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "two groups": lambda p: _two_groups(list(p)),
}


def _two_groups(parameters: list[Any]) -> Any:
    return torch.optim.AdamW([{"params": parameters[:2], "lr": 1e-2}, {"params": parameters[2:], "weight_decay": 0.1}])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_state_and_option_of_an_optimizer(kind: str, tmp_path: Path) -> None:
    make = OPTIMIZERS[kind]
    step, fresh = made("dp=4", optimizer=make), made("tp=2", seed=5, optimizer=make)
    trained(step, DATA[:2])
    for g, group in enumerate(optimizer_of(step).param_groups):
        group.update(lr=0.003 + g, initial_lr=0.5)
    step.save(tmp_path / "c")
    fresh.restore(tmp_path / "c")
    for ours, theirs in zip(optimizer_of(fresh).param_groups, optimizer_of(step).param_groups, strict=True):
        assert {k: v for k, v in ours.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}
    equal(step.full_state_dict(), fresh.full_state_dict())
    step.sync()
    fresh.sync()
    for one, other in zip(optimizer_of(step).state.values(), optimizer_of(fresh).state.values(), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_rate_that_is_a_tensor_stays_that_tensor(tmp_path: Path) -> None:
    def make(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=torch.tensor(0.25))

    step, fresh = made("dp=4", optimizer=make), made("dp=4", optimizer=make)
    rate = optimizer_of(fresh).param_groups[0]["lr"]
    optimizer_of(step).param_groups[0]["lr"].fill_(0.125)
    step.save(tmp_path / "c")
    fresh.restore(tmp_path / "c")
    assert optimizer_of(fresh).param_groups[0]["lr"] is rate
    assert rate == 0.125


def test_what_is_frozen_is_restored_and_written_back(tmp_path: Path) -> None:
    """Frozen weights and adapters: modules have what the checkpoint has after `sync`."""

    class Frozen(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first.weight.requires_grad_(False)

    step, other = made("dp=4", model=Frozen), made("tp=2", seed=3, model=Frozen)
    trained(step, DATA[:2])
    step.save(tmp_path / "c")
    other.restore(tmp_path / "c")
    trained(other, DATA[2:4])
    trained(step, DATA[2:4])
    other.sync()
    model = other.source.roots[0][1]
    assert torch.equal(model.first.weight, step.state_dict()["model"]["first.weight"])
    torch.testing.assert_close(model.second.weight.detach(), step.state_dict()["model"]["second.weight"])


def test_state_that_shares_memory_is_restored_apart(tmp_path: Path) -> None:
    """Two buffers that a step leaves in one tensor, and that a checkpoint has in two."""

    class Sharing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)
            self.register_buffer("one", torch.zeros(4))
            self.register_buffer("two", torch.zeros(4))

        def forward(self, x: Any, y: Any) -> Any:
            out = self.linear(x) + self.one + self.two
            self.one = self.two = out.detach().mean(0)
            return F.mse_loss(out, y)

    torch.manual_seed(0)
    net = Sharing()
    net.one.fill_(1.0)
    step = swt.train_step(net, optimizer=adamw(net.parameters()), batch=DATA[0], mesh="dp=2", recipe="dp", verify="off")
    step.save(tmp_path / "apart")
    apart = step.state_dict()
    trained(step, DATA[:2])
    together = step.state_dict()
    step.restore(tmp_path / "apart")
    equal(step.state_dict(), apart)
    step.load_state_dict(together)
    equal(step.state_dict(), together)


def test_what_else_a_run_needs(tmp_path: Path) -> None:
    step, other = made("dp=4"), made("dp=3", seed=2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer_of(step), 0.1, total_steps=8)
    for batch in DATA[:3]:
        step(*batch)
        scheduler.step()
    with pytest.raises(CheckpointError, match="extra= of a checkpoint takes numbers"):
        step.save(tmp_path / "c", extra={"model": step})
    step.save(tmp_path / "c", extra={"scheduler": scheduler.state_dict(), "epoch": 2, "seen": {1: [2.5, "x"]}})
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer_of(other), 0.1, total_steps=8)
    extra = other.restore(tmp_path / "c")
    theirs.load_state_dict(extra["scheduler"])
    assert (extra["epoch"], extra["seen"]) == (2, {1: [2.5, "x"]})
    for batch in DATA[3:]:
        torch.testing.assert_close(step(*batch), other(*batch))
        scheduler.step()
        theirs.step()
        assert optimizer_of(step).param_groups[0]["lr"] == optimizer_of(other).param_groups[0]["lr"]
    step.save(tmp_path / "c")
    assert other.restore(tmp_path / "c") is None


def test_steps_of_every_maker_save(tmp_path: Path) -> None:
    """Of a plan, and one that has no optimizer."""
    torch.manual_seed(0)
    net = Net()
    plan = sw.plan(net, *DATA[0], mesh="dp=2", recipe="zero3", optimizer=adamw(net.parameters()), verify="off")
    planned, other = plan.step(), made("dp=4", seed=2)
    trained(planned, DATA[:2])
    planned.save(tmp_path / "c")
    other.restore(tmp_path / "c")
    equal(planned.state_dict(), other.state_dict())
    alone = swt.shard_step(torch.nn.Linear(8, 4), DATA[0][0], loss=torch.sum, mesh="dp=2", recipe="dp", verify="off")
    alone(DATA[0][0])
    alone.save(tmp_path / "d")
    assert alone.state_dict().keys() == {"model", "step"}
    alone.restore(tmp_path / "d")
    with pytest.raises(CheckpointError, match=r"not here +model\.bias, model\.weight"):
        other.restore(tmp_path / "d")


def test_skipped_steps_are_counted_on(tmp_path: Path) -> None:
    step = made("dp=4", on_nonfinite="skip")
    bad = (torch.full_like(DATA[0][0], torch.inf), DATA[0][1])
    trained(step, [DATA[0], bad, DATA[1]])
    step.save(tmp_path / "c")
    fresh = made("dp=4", on_nonfinite="skip")
    fresh.restore(tmp_path / "c")
    assert (fresh.steps, fresh.skipped) == (2, 1)


# -- what it looks like ---------------------------------------------------------------------------------


def test_names_are_those_of_the_model(saved: Any) -> None:
    """Tied names, too; a buffer that the model does not save is with the step if steps change it."""
    _, state = saved
    assert state["model"].keys() == Net().state_dict().keys()
    assert state["step"].keys() == {"steps", "skipped", "random", "buffers"}
    assert state["step"]["buffers"].keys() == {"calls"}
    assert state["optimizer"]["state"].keys() == dict(Net().named_parameters()).keys()
    assert state["optimizer"]["param_groups"] == [
        {"params": list(dict(Net().named_parameters())), "lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8,
         "weight_decay": 1e-2}
    ]  # fmt: skip


def test_a_plain_model_reads_it(saved: Any) -> None:
    path, state = saved
    model = Net()
    with pytest.warns(UserWarning, match="single process"):
        dcp.load({"model": model.state_dict()}, checkpoint_id=path)
    assert all(torch.equal(tensor, state["model"][name]) for name, tensor in model.state_dict().items())


def test_pytorch_saves_and_loads_the_state_dict(tmp_path: Path) -> None:
    step, other, third = made("dp=4"), made("dp=2, tp=2", seed=4), made("dp=3", seed=5)
    trained(step, DATA[:2])
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(step.state_dict(), checkpoint_id=tmp_path / "c")
    state = other.state_dict()
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=tmp_path / "c")
    other.load_state_dict(state)
    third.restore(tmp_path / "c")
    equal(step.state_dict(), other.state_dict())
    equal(step.state_dict(), third.state_dict())


def test_whole_tensors_for_safetensors(saved: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    _, state = saved
    safetensors.save_file(state["model"], tmp_path / "model.safetensors")
    model = Net()
    model.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model.norm.running_mean, state["model"]["norm.running_mean"])


def test_a_state_dict_is_a_snapshot() -> None:
    step = made("dp=4")
    state = step.state_dict()
    before = copy.deepcopy(state)
    trained(step, DATA[:1])
    equal(state, before)
    step.load_state_dict(state)
    trained(step, DATA[:2])
    equal(state, before)


def test_shardings_that_placements_cannot_say_are_saved_too(tmp_path: Path) -> None:
    odd = {"x": "[dp, _]", "y": "[dp, _]", "first.weight": "[tp+dp, _]", "second.weight": "[_, tp:(1)2]"}
    torch.manual_seed(0)
    net = Net()
    step = swt.train_step(net, optimizer=adamw(net.parameters()), batch=DATA[0], mesh="dp=2, tp=4", specs=odd,
                          verify="off")  # fmt: skip
    assert str(step._state["first.weight"].spec) == "[tp+dp, _]"
    trained(step, DATA[:2])
    step.save(tmp_path / "c")
    fresh = made("dp=3")
    fresh.restore(tmp_path / "c")
    equal(step.state_dict(), fresh.state_dict())


# -- files ----------------------------------------------------------------------------------------------


def test_a_kill_at_any_time_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: Any) -> None:
    """While shards are written, before the first rename, and between the two."""

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    path = tmp_path / "last"
    step = made("dp=4")
    trained(step, DATA[:1])
    step.save(path)
    before = step.state_dict()
    trained(step, DATA[1:2])
    rename = Path.rename

    def between(self: Path, target: Any) -> Any:
        return killed() if self.name == ".last.saving" else rename(self, target)

    for where, what in ((dcp.FileSystemWriter, "finish"), (storing, "finish"), (Path, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, between if where is Path else killed)
            with pytest.raises(Killed):
                step.save(path)
        fresh = made("dp=2, tp=2", seed=6)
        fresh.restore(path)
        equal(fresh.state_dict(), before)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".last.previous", ".last.saving"]
    step.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["last"]
    fresh.restore(path)
    equal(fresh.state_dict(), step.state_dict())


@pytest.mark.parametrize("path", ["", " ", "/", "a\0b", 7, b"ckpt", None])
def test_paths_are_looked_at(path: Any) -> None:
    step = made("dp=1")
    for call in (step.save, step.restore):
        with pytest.raises(SpecError, match=r"path|folder"):
            call(path)
    assert step.last_checkpoint is None


def test_what_is_no_checkpoint_is_neither_replaced_nor_read(tmp_path: Path) -> None:
    step = made("dp=1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    for name in ("notes", "file"):
        with pytest.raises(CheckpointError, match=r"no part of a checkpoint|a file is where"):
            step.save(tmp_path / name)
        with pytest.raises(CheckpointError, match=r"no \.metadata|a checkpoint is a folder"):
            step.restore(tmp_path / name)
    assert (tmp_path / "notes" / "thesis.tex").read_text() == "years of work"
    step.save(tmp_path / "100")
    with pytest.raises(CheckpointError, match="there is no checkpoint") as caught:
        step.restore(tmp_path / "101")
    assert str(tmp_path / "100") in str(caught.value)


def test_a_failed_step_names_the_checkpoint_and_goes_on_from_it(tmp_path: Path) -> None:
    step = made("dp=4", accumulate=2)
    trained(step, DATA[:1])
    step.save(tmp_path / "c")
    state = step.state_dict()
    part = step._last.parts[-1]

    class Broken:
        def run(self, inputs: list[Any], donate: bool = False) -> Any:
            inputs.clear()
            raise RuntimeError("no more memory")

    compiled, part.compiled = part.compiled, Broken()
    with pytest.raises(RuntimeError):
        step(*DATA[1])
    part.compiled = compiled
    for use in (step.state_dict, step.full_state_dict, lambda: step.save(tmp_path / "d")):
        with pytest.raises(ShardwrightError, match="no state") as caught:
            use()
        assert str(tmp_path / "c") in str(caught.value)
    step.restore(tmp_path / "c")
    equal(step.state_dict(), state)
    other = made("dp=4", seed=5, accumulate=2)
    other.restore(tmp_path / "c")
    assert torch.equal(step(*DATA[1]), other(*DATA[1]))


# -- what does not fit ----------------------------------------------------------------------------------


class Larger(Net):
    def __init__(self) -> None:
        super().__init__()
        self.third = torch.nn.Linear(4, 4)


class Wider(Net):
    def __init__(self) -> None:
        super().__init__(32)


class InSingle(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fixed = self.fixed.float()
        self.first.weight = torch.nn.Parameter(self.first.weight.float())

    def forward(self, x: Any, y: Any) -> Any:
        return super().forward(x.float(), y)


OTHERS = {
    "more tensors": ({"model": Larger}, "not in it +model.third.bias, model.third.weight"),
    "other shapes": ({"model": Wider}, r"model.first.weight +f64\[16, 8\] in it, f64\[32, 8\] here"),
    "no state": ({"optimizer": OPTIMIZERS["sgd"]}, "not here +optimizer.shared.optimizer.step, optimizer.state"),
    "other state": ({"optimizer": OPTIMIZERS["amsgrad"]}, r"not in it +optimizer.state.first.bias.max_exp_avg_sq"),
    "other groups": ({"optimizer": OPTIMIZERS["two groups"]}, "1 groups of parameters, the optimizer 2"),
    "other order": (
        {"optimizer": lambda p: torch.optim.AdamW(reversed(list(p)))}, "has other parameters in the checkpoint"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(kind: str, saved: Any) -> None:
    path, state = saved
    how, says = OTHERS[kind]
    step = made("tp=2" if kind != "more tensors" else "dp=1", seed=2, **how)
    before = copy.deepcopy(step.state_dict())
    for call, given in ((step.restore, path), (step.load_state_dict, state)):
        with pytest.raises(ShardwrightError, match=says):
            call(given)
        equal(step.state_dict(), before)
    assert step.last_checkpoint is None


def test_a_state_with_too_little_or_too_much_is_refused() -> None:
    step = made("dp=1")
    good = step.state_dict()
    for change, says in (
        (lambda s: s["model"].pop("first.bias"), "not in it +model.first.bias"),
        (lambda s: s["model"].update(more=torch.zeros(2)), "not here +model.more"),
        (lambda s: s["step"].pop("steps"), "how many steps"),
        (lambda s: s["step"].update(epoch=3), "not known +step.epoch"),
        (lambda s: s["optimizer"]["param_groups"][0].update(lr="fast"), "'lr' of group 0 is no number"),
        (lambda s: s["model"].update({"first.bias": good["model"]["first.bias"].float()}), "f32.* in it, f64.* here"),
    ):
        state = copy.deepcopy(good)
        change(state)
        with pytest.raises(CheckpointError, match=says):
            step.load_state_dict(state)
    with pytest.raises(CheckpointError, match="a state is a dict"):
        step.load_state_dict([good])


# -- files that want to run something -------------------------------------------------------------------


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


def copied(path: Path, to: Path) -> Path:
    to.mkdir()
    for file in path.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def rewritten(path: Path, change: Any) -> None:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def replaced(path: Path, key: str, thing: Any) -> None:
    """Something else in the place of a tensor or number."""
    torch.save(thing, path / "__9_0.distcp")

    def change(metadata: Any) -> None:
        for index, info in metadata.storage_data.items():
            if index.fqn == key:
                size = (path / "__9_0.distcp").stat().st_size
                info.relative_path, info.offset, info.length = "__9_0.distcp", 0, size

    rewritten(path, change)


@pytest.mark.parametrize("where", ["metadata", "inside", "shard", "number"])
def test_a_file_that_runs_something_is_refused_and_runs_nothing(where: str, saved: Any, tmp_path: Path) -> None:
    path, marker = copied(saved[0], tmp_path / "c"), tmp_path / "it ran"
    if where == "metadata":
        (path / ".metadata").write_bytes(pickle.dumps(Malicious(marker)))
    elif where == "inside":
        rewritten(path, lambda metadata: metadata.planner_data.update({"step.steps": Malicious(marker)}))
    else:
        replaced(path, "model.first.weight" if where == "shard" else "step.steps", Malicious(marker))
    step = made("dp=1")
    before = copy.deepcopy(step.state_dict())
    with pytest.raises(CheckpointError, match=r"posix\.system.* nothing of it was run"):
        step.restore(path)
    assert not marker.exists()
    equal(step.state_dict(), before)


def test_who_trusts_a_file_gets_what_it_does(saved: Any, tmp_path: Path) -> None:
    path, marker = copied(saved[0], tmp_path / "c"), tmp_path / "it ran"
    rewritten(path, lambda metadata: setattr(metadata.storage_meta, "modules", [Malicious(marker)]))
    step = made("dp=1")
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        step.restore(path)
    marker.unlink(missing_ok=True)  # writing the file ran nothing; reading it does
    step.restore(path, trusted=True)
    assert marker.exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b.distcp", "..", "a\\b"])
def test_files_outside_of_the_folder_are_refused(name: str, saved: Any, tmp_path: Path) -> None:
    path = copied(saved[0], tmp_path / "c")

    def change(metadata: Any) -> None:
        next(iter(metadata.storage_data.values())).relative_path = name

    rewritten(path, change)
    with pytest.raises(CheckpointError, match="not one of its folder"):
        made("dp=1").restore(path)


def _shorter(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-100])


def _scrambled(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    file.write_bytes(bytes(len(file.read_bytes())))


def _part_missing(path: Path) -> None:
    rewritten(path, lambda metadata: metadata.state_dict_metadata["model.first.weight"].chunks.clear())


def _no_file_for(path: Path) -> None:
    def change(metadata: Any) -> None:
        metadata.storage_data = {k: v for k, v in metadata.storage_data.items() if k.fqn != "model.first.weight"}

    rewritten(path, change)


@pytest.mark.parametrize(
    "damage",
    [
        _shorter, _scrambled, _part_missing, _no_file_for, lambda path: next(path.glob("*.distcp")).unlink(),
        lambda path: (path / ".metadata").write_bytes(b"garbage"),
        lambda path: (path / ".metadata").write_bytes(pickle.dumps({"a": 1})),
        lambda path: (path / ".metadata").write_bytes((path / ".metadata").read_bytes()[:-20]),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused_before_anything_is_changed(damage: Any, saved: Any, tmp_path: Path) -> None:
    path = copied(saved[0], tmp_path / "c")
    damage(path)
    step = made("dp=1", seed=4)
    before = copy.deepcopy(step.state_dict())
    with pytest.raises(CheckpointError, match=r"damaged|cannot be read"):
        step.restore(path)
    equal(step.state_dict(), before)


def test_names_of_folders() -> None:
    path = folder.checkpoint_path("runs/last")
    assert folder.saving_path(path).parent == folder.previous_path(path).parent == path.parent
