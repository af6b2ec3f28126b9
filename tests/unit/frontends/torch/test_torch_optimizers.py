"""Any optimizer is captured as it is, options stay alive, and what a program cannot follow is noticed or refused."""

from __future__ import annotations

import copy
import math
import time
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import shardwright as sw  # noqa: E402
import shardwright.torch as swt  # noqa: E402
from optimizer_zoo import CAPTURED, REFUSED, Counting, Lion, Muon  # noqa: E402
from shardwright.errors import TraceError  # noqa: E402
from shardwright.frontends.base import OPTIMIZER, OPTION  # noqa: E402
from shardwright.frontends.torch import capture, capture_step  # noqa: E402

MESHES = {"2": "d=2", "3": "d=3", "2x2": "a=2, b=2"}


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def square(out):
    return out.square().mean()


def several(optimizer):
    return optimizer if isinstance(optimizer, list) else [optimizer]


def eager_step(model, optimizer, x):
    loss = square(model(x))
    loss.backward()
    for one in several(optimizer):
        one.step()
        one.zero_grad()
    return loss.detach()


@pytest.fixture(params=[torch.float64, torch.float32], ids=["f64", "f32"])
def dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    torch.manual_seed(0)
    yield request.param
    torch.set_default_dtype(before)


@pytest.fixture
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def both(make):
    model = MLP()
    eager = copy.deepcopy(model)
    return model, make(list(model.parameters())), eager, make(list(eager.parameters()))


class Runs:
    """Steps by `Captured.__call__`, captured again where the fingerprint says so."""

    def __init__(self, model, optimizer, x):
        self.given, self.programs = (model, optimizer), 0
        self.again(x)

    def again(self, x):
        model, optimizer = self.given
        self.captured = capture_step(model, x, loss=square, optimizer=optimizer)
        self.fingerprint, self.programs = self.captured.fingerprint(), self.programs + 1

    def __call__(self, x):
        if self.captured.fingerprint() != self.fingerprint:
            self.again(x)
        return self.captured(x)


class Sharded:
    """The same on a virtual mesh, with state in shards: the step notices by itself."""

    def __init__(self, model, optimizer, x, mesh):
        self.step = swt.shard_step(model, x, mesh=mesh, loss=square, optimizer=optimizer, hardware="virtual")
        self.sync, self.sources = self.step.sync, set()

    def __call__(self, x):
        made = self.step(x)
        self.sources.add(id(self.step._last))
        return made

    @property
    def programs(self):
        return len(self.sources)


def assert_same(dtype, model, optimizer, eager, theirs):
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for ours, right in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(ours, right, rtol=tolerance, atol=tolerance)
    for one, other in zip(several(optimizer), several(theirs)):
        for ours, right in zip(model.parameters(), eager.parameters()):
            assert one.state.get(ours, {}).keys() == other.state.get(right, {}).keys()
            for key, value in other.state.get(right, {}).items():
                held = one.state[ours][key]
                assert type(held) is type(value)
                if isinstance(value, torch.Tensor):
                    assert held.dtype == value.dtype
                torch.testing.assert_close(
                    torch.as_tensor(held), torch.as_tensor(value), rtol=10 * tolerance, atol=tolerance
                )
        for group, right in zip(one.param_groups, other.param_groups):
            for key, value in right.items():
                if key != "params":
                    assert type(group[key]) is type(value)
                    numbers = isinstance(value, int | float) and not isinstance(value, bool)
                    assert group[key] == (pytest.approx(value, rel=tolerance) if numbers else value)


PROGRAMS = {"radam": 2, "asgd": 2, "dampened": 2, "born of the gradient": 2, "counting": 2}


@pytest.mark.parametrize("name", CAPTURED)
def test_ten_steps_as_in_eager(name, dtype):
    if name == "torch's muon" and dtype == torch.float32:
        pytest.skip("computes in bfloat16, where a last bit of float32 is another number")
    model, optimizer, eager, theirs = both(CAPTURED[name])
    step = Runs(model, optimizer, torch.randn(6, 6))
    for _ in range(10):
        x = torch.randn(6, 6)
        torch.testing.assert_close(step(x), eager_step(eager, theirs, x))
    assert_same(dtype, model, optimizer, eager, theirs)
    assert step.programs == PROGRAMS.get(name, 1)


@pytest.mark.parametrize("mesh", [pytest.param(m, marks=[pytest.mark.long] * (m != "2x2")) for m in MESHES])
@pytest.mark.parametrize("name", CAPTURED)
def test_ten_sharded_steps_as_in_eager(name, mesh, double):
    model, optimizer, eager, theirs = both(CAPTURED[name])
    step = Sharded(model, optimizer, torch.randn(6, 6), MESHES[mesh])
    for _ in range(10):
        x = torch.randn(6, 6)
        torch.testing.assert_close(step(x), eager_step(eager, theirs, x))
    step.sync()
    assert_same(torch.float64, model, optimizer, eager, theirs)
    assert step.programs == PROGRAMS.get(name, 1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_program_is_refused_by_name(name, double):
    make, words = REFUSED[name]
    model = MLP()
    optimizer = make(list(model.parameters()))
    attributes = {key: value for key, value in vars(optimizer).items() if isinstance(value, int | float)}
    with pytest.raises(TraceError) as caught:
        capture_step(model, torch.randn(6, 6), loss=square, optimizer=optimizer)
    for word in words:
        assert word in str(caught.value)
    assert attributes == {key: value for key, value in vars(optimizer).items() if isinstance(value, int | float)}
    assert "step" not in vars(optimizer)
    assert all(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])


# -- options --------------------------------------------------------------------------------------------------

ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
CHANGES = {
    "lr": ("AdamW", ADAM, {"lr": 0.02}),
    "betas": ("AdamW", ADAM, {"betas": (0.7, 0.8)}),
    "eps": ("AdamW", ADAM, {"eps": 0.1}),
    "weight_decay": ("AdamW", ADAM, {"weight_decay": 0.3}),
    "weight_decay to 0": ("AdamW", ADAM, {"weight_decay": 0.0}),
    "weight_decay from 0": ("Adam", {**ADAM, "weight_decay": 0}, {"weight_decay": 0.2}),
    "maximize": ("AdamW", ADAM, {"maximize": True}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum": 0.5}),
    "momentum to 0": ("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum": 0.0}),
    "momentum from 0": ("SGD", {"lr": 0.1}, {"momentum": 0.9}),
    "momentum and dampening from 0": ("SGD", {"lr": 0.1}, {"momentum": 0.9, "dampening": 0.3}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, {"dampening": 0.5}),
    "dampening from 0": ("SGD", {"lr": 0.1, "momentum": 0.9}, {"dampening": 0.5}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9}, {"nesterov": True}),
    "alpha": ("RMSprop", {"lr": 0.01, "alpha": 0.9}, {"alpha": 0.5}),
    "rmsprop's eps and lr": ("RMSprop", {"lr": 0.01}, {"eps": 0.1, "lr": 0.1}),
    "radam's betas": ("RAdam", {"lr": 0.01}, {"betas": (0.5, 0.6)}),
    "a tensor for a rate": ("AdamW", {"lr": 0.01}, {"lr": torch.tensor(0.02, dtype=torch.float64)}),
}


@pytest.mark.parametrize("way", ["captured", "sharded"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_option_that_changes_acts_as_in_eager(name, way, double):
    kind, before, after = CHANGES[name]
    model, optimizer, eager, theirs = both(lambda p: getattr(torch.optim, kind)(p, **before))
    x = torch.randn(6, 6)
    step = Runs(model, optimizer, x) if way == "captured" else Sharded(model, optimizer, x, "d=2")
    for i in range(6):
        if i == 3:
            optimizer.param_groups[0].update(after)
            theirs.param_groups[0].update(after)
        x = torch.randn(6, 6)
        step(x)
        eager_step(eager, theirs, x)
    if way == "sharded":
        step.sync()
    for ours, right in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)


def test_amsgrad_is_noticed(double):
    model, optimizer, *_ = both(lambda p: torch.optim.Adam(p, lr=0.01))
    step = Runs(model, optimizer, torch.randn(6, 6))
    optimizer.param_groups[0]["amsgrad"] = True
    assert step.captured.fingerprint() != step.fingerprint
    with pytest.raises(TraceError, match="capture the program again"):
        step.captured(torch.randn(6, 6))


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop", "NAdam"])
def test_one_cycle_with_cycled_momentum(kind, double):
    given = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {"betas": (0.9, 0.99)}
    model, optimizer, eager, theirs = both(lambda p: getattr(torch.optim, kind)(p, lr=0.01, **given))
    cycles = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=14) for o in (optimizer, theirs)]
    step = Sharded(model, optimizer, torch.randn(6, 6), "d=2")
    for _ in range(12):
        x = torch.randn(6, 6)
        step(x)
        eager_step(eager, theirs, x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # schedulers warn if an optimizer has not stepped
            for cycle in cycles:
                cycle.step()
    step.sync()
    assert_same(torch.float64, model, optimizer, eager, theirs)
    assert step.programs == 1


@pytest.mark.parametrize("kind", ["AdamW", "RAdam", "Adafactor"])
def test_load_state_dict(kind, double):
    model, optimizer, eager, theirs = both(lambda p: getattr(torch.optim, kind)(p, lr=0.01, weight_decay=0.1))
    for _ in range(4):
        eager_step(eager, theirs, torch.randn(6, 6))
    theirs.param_groups[0]["lr"] = 0.03
    step = Runs(model, optimizer, torch.randn(6, 6))
    model.load_state_dict(eager.state_dict())
    optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for _ in range(4):
        x = torch.randn(6, 6)
        step(x)
        eager_step(eager, theirs, x)
    assert_same(torch.float64, model, optimizer, eager, theirs)


def test_numbers_that_nobody_reads_are_no_inputs_and_groups_have_their_own(double):
    model = MLP()
    groups = [{"params": model.up.parameters(), "lr": 0.1}, {"params": model.down.parameters(), "momentum": 0.5}]
    captured = capture_step(model, torch.randn(6, 6), loss=square, optimizer=torch.optim.SGD(groups, lr=0.2))
    about = {about.name: about.role for about in captured.inputs_are}
    assert {name for name in about if name.startswith("optimizer.")} == {
        "optimizer.lr.0", "optimizer.lr.1", "optimizer.momentum.1"
    }  # fmt: skip
    assert about["optimizer.momentum.1"] == OPTION
    assert about["down.weight.momentum_buffer"] == OPTIMIZER
    assert "up.weight.momentum_buffer" not in about


def test_a_step_count_in_the_groups_is_state(double):
    model = MLP()
    captured = capture_step(model, torch.randn(6, 6), loss=square, optimizer=Counting(model.parameters()))
    about = {about.name: about.role for about in captured.inputs_are}
    assert about["optimizer.k"] == OPTIMIZER
    assert about["optimizer.lr"] == OPTION
    assert "optimizer.state.all.product" in about


def test_frozen_parameters_have_no_state(double):
    for kind in ("Adam", "NAdam"):
        model = MLP()
        model.up.requires_grad_(False)
        optimizer = getattr(torch.optim, kind)(model.parameters())
        captured = capture_step(model, torch.randn(6, 6), loss=square, optimizer=optimizer)
        names = set(captured.names)
        assert "down.weight.exp_avg" in names
        assert not {name for name in names if name.startswith("up.") and "exp_avg" in name}
        captured(torch.randn(6, 6))
        assert model.up.weight not in optimizer.state or not optimizer.state[model.up.weight]


def test_a_parameter_that_is_unfrozen_later_counts_its_own_steps(double):
    model, optimizer, eager, theirs = both(lambda p: torch.optim.AdamW(p, lr=0.01))
    for one in (model, eager):
        one.up.requires_grad_(False)
    step = Sharded(model, optimizer, torch.randn(6, 6), "d=2")
    for i in range(6):
        x = torch.randn(6, 6)
        if i == 3:
            for one in (model, eager):
                one.up.requires_grad_(True)
        step(x)
        eager_step(eager, theirs, x)
    step.sync()
    assert_same(torch.float64, model, optimizer, eager, theirs)


def test_several_optimizers(double):
    model = MLP()
    optimizers = (torch.optim.SGD(model.up.parameters(), lr=0.1), torch.optim.AdamW(model.down.parameters()))
    captured = capture_step(model, torch.randn(6, 6), loss=square, optimizer=optimizers)
    assert {"optimizer.0.lr", "optimizer.1.lr", "optimizer.1.betas.0"} <= set(captured.names)
    assert captured.is_of(model, optimizers)
    assert captured.is_of(model, optimizers[0])
    assert not captured.is_of(model, [optimizers[0], torch.optim.SGD(model.down.parameters())])
    plan = sw.plan(model, torch.randn(6, 6), mesh="d=2", optimizer=optimizers, loss=square, hardware="virtual")
    assert swt.shard_step(model, plan=plan, optimizer=optimizers) is not None
    with pytest.raises(TraceError, match=r"same parameter, up\.weight"):
        capture_step(
            model, torch.randn(6, 6), loss=square, optimizer=[*optimizers, torch.optim.SGD([model.up.weight], lr=0.1)]
        )


# -- what else belongs to a step ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AdamW", "RMSprop"])
def test_hooks_act_or_are_refused(kind, double):
    model, optimizer, eager, theirs = both(lambda p: getattr(torch.optim, kind)(p, lr=0.01))

    def clip(optimizer, args, kwargs):
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)

    def decay(optimizer, args, kwargs):
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.mul_(0.99)

    for one in (optimizer, theirs):
        one.register_step_pre_hook(clip)
        one.register_step_post_hook(decay)
    step = Runs(model, optimizer, torch.randn(6, 6))
    for _ in range(3):
        x = torch.randn(6, 6)
        step(x)
        eager_step(eager, theirs, x)
    assert_same(torch.float64, model, optimizer, eager, theirs)
    seen = []
    optimizer.register_step_post_hook(lambda *args: seen.append(1))
    assert step.captured.fingerprint() != step.fingerprint
    with pytest.raises(TraceError, match=r"hook .*lambda.* does nothing to tensors"):
        step(torch.randn(6, 6))


def test_a_scheduler_inside_of_the_program_is_refused(double):
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train(x):
        square(model(x)).backward()
        optimizer.step()
        schedule.step()

    with pytest.raises(TraceError, match=r"changes optimizer\.lr"):
        capture(train, torch.randn(6, 6))
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_two_steps_in_one_program(double):
    model, optimizer, eager, theirs = both(lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5))

    def train(model, optimizer, x):
        for part in x:
            square(model(part)).backward()
            optimizer.step()
            optimizer.zero_grad()

    captured = capture(train, model, optimizer, torch.randn(2, 6, 6))
    for _ in range(3):
        x = torch.randn(2, 6, 6)
        captured(model, optimizer, x)
        train(eager, theirs, x)
    assert_same(torch.float64, model, optimizer, eager, theirs)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # what PyTorch's compiler imports
def test_functions_under_a_compiler_run_as_they_are_written(double):
    compiled = torch.compile(lambda g, lr: g.sign() * lr)

    class Signed(Muon):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(compiled(p.grad, group["lr"]))

    model = MLP()
    captured = capture_step(model, torch.randn(6, 6), loss=square, optimizer=Signed(model.parameters()))
    assert "optimizer.lr" in captured.names


@pytest.mark.parametrize("kind", ["AdamW", "RMSprop"])
def test_half_types_take_numbers_unrounded(kind):
    """As eager does: a learning rate rounded to bfloat16 is another one."""
    torch.manual_seed(0)
    model = MLP().bfloat16()
    eager = copy.deepcopy(model)
    make = getattr(torch.optim, kind)
    optimizer, theirs = make(model.parameters(), lr=0.0123), make(eager.parameters(), lr=0.0123)
    captured = capture_step(model, torch.randn(6, 6).bfloat16(), loss=square, optimizer=optimizer)
    for i in range(3):
        x = torch.randn(6, 6).bfloat16()
        captured(x)
        eager_step(eager, theirs, x)
        for ours, right in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(ours, right, rtol=2**-6, atol=2**-8)
            if i == 0:  # one rounding each, in the same place
                for key, value in theirs.state[right].items():
                    torch.testing.assert_close(optimizer.state[ours][key], value, rtol=2**-7, atol=0)


# -- the fingerprint ------------------------------------------------------------------------------------------


def _changes(model, optimizer):
    yield "eval", lambda: model.eval()
    yield "part", lambda: model.down.eval()
    yield "frozen", lambda: model.up.weight.requires_grad_(False)
    yield "module", lambda: setattr(model, "down", nn.Linear(8, 4))
    yield "parameter", lambda: setattr(model.down, "weight", nn.Parameter(torch.randn(4, 8)))
    yield "new module", lambda: setattr(model, "more", nn.Linear(8, 4))
    yield "group", lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.randn(3))]})
    yield "structural", lambda: optimizer.param_groups[0].update(maximize=True)
    yield "guard", lambda: optimizer.param_groups[0].update(weight_decay=0.0)
    yield "hook", lambda: optimizer.register_step_pre_hook(lambda *args: None)


@pytest.mark.parametrize("which", [name for name, _ in _changes(None, None)])
def test_the_fingerprint_sees(which, double):
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    captured = capture_step(model, torch.randn(6, 6), loss=square, optimizer=optimizer)
    before = captured.fingerprint()
    optimizer.param_groups[0].update(lr=0.5, betas=(0.1, 0.2), eps=1e-3, weight_decay=0.2)
    captured(torch.randn(6, 6))
    assert captured.fingerprint() == before == captured.captured_for
    dict(_changes(model, optimizer))[which]()
    assert captured.fingerprint() != before
    with pytest.raises(TraceError, match="capture the program again"):
        captured(torch.randn(6, 6))


def test_the_fingerprint_reads_no_tensor_where_state_is_kept(double, monkeypatch):
    model = MLP()
    step = swt.shard_step(
        model, torch.randn(6, 6), mesh="d=2", loss=square, optimizer=torch.optim.RAdam(model.parameters()),
        hardware="virtual",
    )  # fmt: skip
    first = step.source.fingerprint()
    seen = []
    for _ in range(7):
        step(torch.randn(6, 6))
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "__float__", lambda tensor: pytest.fail("a tensor is read"))
            seen.append(step.source.fingerprint() == first)
    assert seen == [True] * 4 + [False] * 3  # from the sixth step on RAdam is rectified


def test_the_fingerprint_is_cheap():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(170)))
    optimizer = torch.optim.AdamW(model.parameters())
    captured = capture_step(model, torch.randn(2, 2), loss=square, optimizer=optimizer)
    calls = min(_seconds(captured.fingerprint) for _ in range(20))
    assert len(list(model.modules())) > 500
    assert math.isfinite(calls)  # 0.3 ms here; a test that asserts a time fails on a loaded machine


def _seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def test_guards_of_counts_that_are_equal_are_asked_once(double):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    captured = capture_step(model, torch.randn(2, 2), loss=square, optimizer=torch.optim.RAdam(model.parameters()))
    (watch,) = captured.watches
    assert len(watch.guards) > 20
    assert len([guard for guard in watch._asked if guard.leaves & watch.counts.keys()]) == 1


def test_state_that_is_gone_is_named(double):
    model = MLP()
    optimizer = Lion(model.parameters())
    eager_step(model, optimizer, torch.randn(6, 6))
    captured = capture_step(model, torch.randn(6, 6), loss=square, optimizer=optimizer)
    optimizer.state.clear()
    with pytest.raises(TraceError, match=r"up\.weight\.\w+ is gone"):
        captured(torch.randn(6, 6))
