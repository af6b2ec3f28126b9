"""A training step does what eager PyTorch does: pieces, clipping, accumulation, other sizes, options that change."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwright as sw  # noqa: E402
import shardwright.torch as swt  # noqa: E402
from shardwright.cost.profile import RESIDENT, program_memory  # noqa: E402
from shardwright.errors import ShardwrightError, SpecError, TraceError  # noqa: E402

F = torch.nn.functional
BY_HAND = {"x": "[dp, _]", "y": "[dp, _]", "first.weight": "[tp, _]", "second.weight": "[_, tp]"}


class Net(torch.nn.Module):
    """Batch norm has buffers that every batch changes; without dropout, eager PyTorch draws the same numbers: none."""

    def __init__(self, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.norm = torch.nn.BatchNorm1d(16) if norm else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: Any, y: Any) -> Any:
        return F.mse_loss(self.second(self.dropout(torch.relu(self.norm(self.first(x))))), y)


@pytest.fixture(autouse=True)
def in_double() -> Any:
    before = torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def batches(*sizes: int, seed: int = 1) -> list[tuple[Any, Any]]:
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 8, generator=draw), torch.randn(n, 4, generator=draw)) for n in sizes]


def pair(norm: bool = False, **about: Any) -> tuple[Any, Any, Any, Any]:
    model = Net(norm)
    eager = copy.deepcopy(model)
    about = {"lr": 1e-2, "eps": 1e-3, **about}  # a larger eps: rounding of gradients near zero is not blown up
    return model, torch.optim.AdamW(model.parameters(), **about), eager, torch.optim.AdamW(eager.parameters(), **about)


def eager_step(model: Any, optimizer: Any, x: Any, y: Any, parts: int = 1, clip: float | None = None) -> Any:
    total = torch.zeros(())
    for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
        loss = model(a, b) / parts
        loss.backward()
        total = total + loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip) if clip is not None else None
    optimizer.step()
    optimizer.zero_grad()
    return total, norm


def equal(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


def equal_models(left: Any, right: Any) -> None:
    for one, other in zip((*left.parameters(), *left.buffers()), (*right.parameters(), *right.buffers()), strict=True):
        equal(one, other)


HOW: list[tuple[str, dict[str, Any]]] = [
    ("dp=2, tp=2", {"specs": BY_HAND}),
    ("dp=4", {"recipe": "zero3"}),
    ("dp=2, tp=2", {"hardware": "virtual"}),
    ("dp=3", {"specs": {"x": "[dp, _]", "y": "[dp, _]", "first.weight": "[dp, _]"}}),
]


FORMS = [(1, None, None), (2, None, None), (2, 0.1, None), (1, 0.1, "skip"), (2, None, "raise")]


@pytest.mark.parametrize(("mesh", "how"), HOW, ids=["by hand", "zero3", "planned", "three"])
@pytest.mark.parametrize(
    ("parts", "clip", "looked_at"),
    [(1, None, None), (2, None, None), (2, 0.1, None), (1, 0.1, "skip"), (2, None, "raise")],
)
def test_steps_are_those_of_eager_pytorch(mesh: str, how: Any, parts: int, clip: Any, looked_at: Any) -> None:
    """Over batches of several sizes: the last one of an epoch is smaller."""
    model, optimizer, eager, theirs = pair(norm=True)
    data = batches(12, 12, 6, 12, 6)
    step = swt.train_step(
        model, optimizer=optimizer, batch=data[0], mesh=mesh, clip_grad_norm=clip, accumulate=parts,
        on_nonfinite=looked_at, **how,
    )  # fmt: skip
    names = (
        ["step"] if parts == 1 and looked_at is None else ["gradients", *["norm"][: looked_at is not None], "update"]
    )
    assert list(step.programs) == names
    assert repr(step.plan).endswith("proven" if len(names) == 1 else f"proven, in {len(names)} pieces")
    for x, y in data:
        loss, norm = eager_step(eager, theirs, x, y, parts, clip)
        equal(step(x, y), loss)
        if clip is not None:
            equal(step.grad_norm, norm)
        peak = max(program_memory(program, RESIDENT) for program in step.programs.values())
        assert step.executed.peak_bytes == peak
        times = {"gradients": parts}
        sent = [c for name, program in step.programs.items() for c in program.collectives * times.get(name, 1)]
        assert sorted(step.executed.collectives) == sorted(sent)
    x, y = data[0]
    eager.eval()
    equal(step.evaluate(x, y), eager(x, y).detach())
    assert model.training
    step.sync()
    equal_models(model, eager)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert step.steps == len(data)


def test_the_step_goes_on_in_eager_pytorch_and_back() -> None:
    model, optimizer, eager, theirs = pair()
    first, second, third = batches(8, 8, 8)
    step = swt.train_step(model, optimizer=optimizer, batch=first, mesh="dp=2, tp=2", specs=BY_HAND)
    for at, (x, y) in enumerate((first, second, third)):
        loss, _ = eager_step(eager, theirs, x, y)
        if at == 1:
            step.sync()
            equal(eager_step(model, optimizer, x, y)[0], loss)
            step.load()
        else:
            equal(step(x, y), loss)
    step.sync()
    equal_models(model, eager)


def test_metrics_come_back_beside_the_loss() -> None:
    class Classifier(torch.nn.Linear):
        def forward(self, x: Any, labels: Any) -> Any:
            return super().forward(x), labels

    def loss(out: Any) -> Any:
        logits, labels = out
        right = logits.argmax(-1) == labels
        return {"loss": F.cross_entropy(logits, labels), "right": right.sum(), "logits": logits}

    model = Classifier(8, 3)
    eager = copy.deepcopy(model)
    x, labels = torch.randn(8, 8), torch.arange(8) % 3
    step = swt.train_step(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=loss,
        batch={"x": x, "labels": labels}, mesh="dp=2", recipe="dp", accumulate=2,
    )  # fmt: skip
    found = step(labels=labels, x=x)
    wanted = loss(eager(x, labels))
    assert found["right"] == wanted["right"]
    equal(found["loss"], wanted["loss"].detach())
    equal(found["logits"], wanted["logits"].detach())
    assert not found["logits"].requires_grad


def test_dropout_draws_anew_for_every_batch_that_adds_up() -> None:
    """Equal to the captured program on one device, whatever the mesh."""
    data = batches(8, 8)
    losses = []
    for mesh, how in (("dp=1", {}), ("dp=2, tp=2", {"specs": BY_HAND}), ("dp=4", {"recipe": "zero3"})):
        torch.manual_seed(3)
        model = Net(dropout=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = swt.train_step(model, optimizer=optimizer, batch=data[0], mesh=mesh, accumulate=2, **how)
        losses.append([step(*batch) for batch in (*data, data[0])])
    for other in losses[1:]:
        equal(torch.stack(other), torch.stack(losses[0]))
    x, y = data[0]
    doubled = (torch.cat([x[:4], x[:4]]), torch.cat([y[:4], y[:4]]))
    model = Net(dropout=0.5)
    step = swt.train_step(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), batch=doubled, mesh="dp=2",
                          recipe="dp", accumulate=2)  # fmt: skip
    key = next(held for name, held in step._state.items() if name == "random")
    step(*doubled)
    assert key.shards[0][1] == 2, "one draw for each of the two"


# -- gradients that are no numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_without_finite_gradients_is_skipped(parts: int) -> None:
    model, optimizer, eager, theirs = pair()
    good, bad = batches(8, 8)
    bad[0][-1, 0] = math.inf
    step = swt.train_step(model, optimizer=optimizer, batch=good, mesh="dp=2", recipe="zero3", accumulate=parts,
                          on_nonfinite="skip", clip_grad_norm=1.0)  # fmt: skip
    for batch in (good, bad, good):
        loss = step(*batch)
        if batch is good:
            equal(loss, eager_step(eager, theirs, *batch, parts, 1.0)[0])
    assert (step.steps, step.skipped) == (2, 1)
    step.sync()
    equal_models(model, eager)


def test_a_step_without_finite_gradients_is_refused() -> None:
    model, optimizer, eager, theirs = pair()
    good, bad = batches(8, 8)
    bad[0][0, 0] = math.nan
    step = swt.train_step(model, optimizer=optimizer, batch=good, mesh="dp=2", recipe="zero3", on_nonfinite="raise")
    with pytest.raises(ShardwrightError, match="the gradients of step 1 have the norm nan"):
        step(*bad)
    equal(step(*good), eager_step(eager, theirs, *good)[0])
    step.sync()
    equal_models(model, eager)


# -- other sizes ----------------------------------------------------------------------------------------


def test_sizes_that_nobody_planned_for() -> None:
    """Fewer examples than devices, one of them, more of them; at most eight programs."""
    model, optimizer, eager, theirs = pair()
    data = batches(8, 1, 3, 16, 8, 1)
    step = swt.train_step(model, optimizer=optimizer, batch=data[0], mesh="dp=4", recipe="zero3")
    for batch in data:
        equal(step(*batch), eager_step(eager, theirs, *batch)[0])
    assert step.engine.counts["load"] == 1
    for n in (2, 4, 5, 6):
        step(*batches(n)[0])
    before = [[shard.clone() for shard in held.shards] for held in step._state.values()]
    with pytest.raises(SpecError, match="8 shapes"):
        step(*batches(7)[0])
    after = [held.shards for held in step._state.values()]
    assert all(torch.equal(a, b) for old, new in zip(before, after) for a, b in zip(old, new))
    step(*data[0])


def test_decisions_are_kept_where_only_sizes_differ() -> None:
    model, optimizer, _, _ = pair()
    large, small = batches(8, 4)
    step = swt.train_step(model, optimizer=optimizer, batch=large, mesh="dp=2, tp=2", specs=BY_HAND)
    step(*small)
    mine, theirs = step.plan, step._last.plan
    assert mine is not theirs
    assert mine.specs == theirs.specs
    assert [d.axes for d in mine.complete.decisions] == [d.axes for d in theirs.complete.decisions]
    assert theirs.certificate is not None


@pytest.mark.parametrize("wrong", [(torch.zeros(8, 8, dtype=torch.float32),), (torch.zeros(2, 4, 8),), (None,)])
def test_a_call_that_is_refused_leaves_all_as_it_was(wrong: Any) -> None:
    model, optimizer, eager, theirs = pair()
    x, y = batches(8)[0]
    step = swt.train_step(model, optimizer=optimizer, batch=(x, y), mesh="dp=2", recipe="zero3")
    for _ in range(2):
        with pytest.raises(TraceError):
            step(*wrong, y)
        equal(step(x, y), eager_step(eager, theirs, x, y)[0])
    with pytest.raises(TraceError):
        step(x)
    step.sync()
    equal_models(model, eager)


@pytest.mark.parametrize("taken", [False, True])
def test_a_failure_between_pieces(taken: bool) -> None:
    """State that nobody has taken is there; what a program has taken is lost, and the last checkpoint is named."""
    model, optimizer, eager, theirs = pair()
    x, y = batches(8)[0]
    step = swt.train_step(model, optimizer=optimizer, batch=(x, y), mesh="dp=2", recipe="zero3", accumulate=2)
    equal(step(x, y), eager_step(eager, theirs, x, y, 2)[0])
    compiled = step._last.parts[1].compiled
    known = compiled.run

    def fail(inputs: list[Any], donate: bool = False) -> Any:
        if taken:
            inputs.clear()
        raise KeyboardInterrupt

    compiled.run = fail
    with pytest.raises(KeyboardInterrupt):
        step(x, y)
    compiled.run = known
    step.last_checkpoint = "runs/7"
    if taken:
        with pytest.raises(ShardwrightError, match="the last checkpoint is runs/7"):
            step(x, y)
        return
    equal(step(x, y), eager_step(eager, theirs, x, y, 2)[0])
    step.sync()
    equal_models(model, eager)


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    model, optimizer, _, _ = pair()
    step = swt.train_step(model, optimizer=optimizer, batch=batches(8)[0], mesh="dp=2", recipe="dp", accumulate=4)
    with pytest.raises(SpecError, match="a batch of 6 cannot be cut into 4 equal ones") as caught:
        step(*batches(6)[0])
    assert "4 or 8 examples" in str(caught.value)


# -- what changes between steps -------------------------------------------------------------------------


def test_what_cannot_change_without_a_new_program_is_noticed() -> None:
    model, _, eager, _ = pair(norm=True)
    optimizer, theirs = (torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (model, eager))
    x, y = batches(8)[0]
    step = swt.train_step(model, optimizer=optimizer, batch=(x, y), mesh="dp=2, tp=2", specs=BY_HAND)

    def both(change: Any) -> None:
        change(model)
        change(eager)
        for _ in range(2):
            equal(step(x, y), eager_step(eager, theirs, x, y)[0])

    both(lambda net: None)
    both(lambda net: net.eval())
    both(lambda net: net.train())
    assert step.engine.counts["compile"] == 2, "what was there before is known"
    both(lambda net: net.first.weight.requires_grad_(False))
    both(lambda net: net.first.weight.requires_grad_(True))
    step.sync()
    equal_models(model, eager)


def test_parameters_that_are_trained_later_have_steps_of_their_own() -> None:
    """Adam corrects by the steps that each parameter has taken."""
    model, optimizer, eager, theirs = pair()
    x, y = batches(8)[0]
    for net in (model, eager):
        net.first.weight.requires_grad_(False)
    step = swt.train_step(model, optimizer=optimizer, batch=(x, y), mesh="dp=2, tp=2", specs=BY_HAND)
    for n in range(8):
        if n in (2, 4, 6):
            for net in (model, eager):
                net.first.weight.requires_grad_(n != 4)
        equal(step(x, y), eager_step(eager, theirs, x, y)[0])
    step.sync()
    equal_models(model, eager)
    counts = [[float(o.state[p]["step"]) for p in net.parameters()] for net, o in ((model, optimizer), (eager, theirs))]
    assert counts[0] == counts[1] == [4.0, 8.0, 8.0, 8.0]


def test_state_that_a_program_does_not_read_is_kept() -> None:
    """The key of random numbers, while the model is in evaluation mode."""
    torch.manual_seed(3)
    model = Net(dropout=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batches(8)[0]
    step = swt.train_step(model, optimizer=optimizer, batch=(x, y), mesh="dp=2", recipe="dp", verify="off")
    for mode in (True, False, True):
        model.train(mode)
        step(x, y)
    assert step._state["random"].shards[0][1] == 2
    step.state_dict()


def test_schedulers_see_the_optimizer_step() -> None:
    """They warn where they step before the optimizer; warnings are errors here."""
    model, optimizer, eager, theirs = pair()
    x, y = batches(8)[0]
    ours, other = (torch.optim.lr_scheduler.LinearLR(o, 0.5, 1.0, 4) for o in (optimizer, theirs))
    step = swt.train_step(model, optimizer=optimizer, batch=(x, y), mesh="dp=2", recipe="zero3")
    for _ in range(5):
        equal(step(x, y), eager_step(eager, theirs, x, y)[0])
        ours.step()
        other.step()
    step.sync()
    equal_models(model, eager)


def test_gradients_add_up_where_there_is_no_optimizer() -> None:
    model, _, eager, _ = pair()
    first, second = batches(8, 8)
    step = swt.shard_step(model, *first, mesh="dp=2, tp=2", specs=BY_HAND)
    for batch in (first, second, *batches(3)):
        step(*batch)
        eager(*batch).backward()
    step.sync()
    for one, other in zip(model.parameters(), eager.parameters()):
        equal(one.grad, other.grad)


def test_gradients_that_were_there_count_once() -> None:
    model, optimizer, eager, theirs = pair()
    first, second = batches(8, 8)
    for net in (model, eager):
        net(*first).backward()
    step = swt.shard_step(model, *first, mesh="dp=2, tp=2", specs=BY_HAND, optimizer=optimizer)
    for batch in (second, first):
        equal(step(*batch), eager_step(eager, theirs, *batch)[0])
    step.sync()
    equal_models(model, eager)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, g: torch.rand(x.shape, generator=g), lambda x, g: torch.empty_like(x).normal_(generator=g),
        lambda x, g: torch.bernoulli(x.sigmoid(), generator=g), lambda x, g: torch.randperm(8, generator=g)[:, None],
    ],
)  # fmt: skip
def test_a_generator_of_its_own_is_refused(draw: Any) -> None:
    """Its numbers would be others than those of eager PyTorch, in silence."""
    model, x, own = torch.nn.Linear(8, 8), torch.randn(8, 8), torch.Generator().manual_seed(1)

    def noisy(x: Any) -> Any:
        return (model(x) + draw(x, own)).square().mean()

    with pytest.raises(TraceError, match="a generator of its own"):
        sw.plan(noisy, x, mesh="dp=2")


# -- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"accumulate": 0}, "accumulate="), ({"clip_grad_norm": -1.0}, "clip_grad_norm="), ({"data": "mine"}, "data="),
        ({"on_nonfinite": "ignore"}, "on_nonfinite="), ({"autocast": torch.float16}, "needs a scaled loss"),
        ({"init": "random"}, "init="), ({"data": "local"}, "virtual mesh"),
    ],
)  # fmt: skip
def test_options_are_looked_at(wrong: Any, says: str) -> None:
    model, optimizer, _, _ = pair()
    with pytest.raises(SpecError, match=says):
        swt.train_step(model, optimizer=optimizer, batch=batches(8)[0], mesh="dp=2", recipe="dp", **wrong)


def test_autocast_keeps_masters() -> None:
    torch.set_default_dtype(torch.float32)
    model, optimizer, eager, theirs = pair()
    x, y = (t.float() for t in batches(8)[0])
    step = swt.train_step(
        model, optimizer=optimizer, batch=(x, y), mesh="dp=2", recipe="zero3", autocast=torch.bfloat16
    )
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = eager(x, y)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(step(x, y), loss.detach(), rtol=2e-2, atol=2e-2)
    assert "bf16" in str(step.program)
    step.sync()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    for one, other in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_a_plan_trains_with_data_of_any_size() -> None:
    model, optimizer, eager, theirs = pair()
    large, small = batches(8, 4)
    plan = sw.plan(model, *large, mesh="dp=2", recipe="zero3", optimizer=optimizer)
    step = plan.step()
    for batch in (small, large, small):
        equal(step(*batch), eager_step(eager, theirs, *batch)[0])
    assert len(step._entries) == 2


def test_a_plan_of_a_step_in_pieces_trains(tmp_path: Any) -> None:
    """Planned, written, read and trained, with clipping and accumulation; another form is refused."""
    model, optimizer, eager, theirs = pair()
    large, small = batches(8, 4)
    form: dict[str, Any] = {"clip_grad_norm": 0.1, "accumulate": 2}
    plan = sw.plan(model, *large, mesh="dp=2", recipe="zero3", optimizer=optimizer, **form)
    (tmp_path / "plan.json").write_text(plan.to_json())
    again = sw.load_plan(tmp_path / "plan.json", model, *large, optimizer=optimizer, **form)
    with pytest.raises(SpecError, match="another form of the step"):
        swt.train_step(model, optimizer=optimizer, batch=large, plan=again, accumulate=2)
    step = swt.train_step(model, optimizer=optimizer, batch=small, plan=again, **form)
    for batch in (small, large):
        equal(step(*batch), eager_step(eager, theirs, *batch, 2, 0.1)[0])
    assert step.plan.specs == plan.specs
    step.sync()
    equal_models(model, eager)


def test_predicted_stands_beside_measured() -> None:
    """On the virtual mesh memory is predicted to the byte; a smaller batch needs less than was measured before."""
    model, optimizer, _, _ = pair()
    large, small = batches(8, 4)
    step = swt.train_step(model, optimizer=optimizer, batch=large, mesh="dp=2", recipe="zero3", accumulate=2)
    assert step.compared().count("not measured yet") == 2
    for batch in (large, large, large, small):
        step(*batch)
    line = step.compared()
    memory = line.partition("memory of a device: ")[2]
    predicted, measured = memory.removeprefix("predicted ").split(", measured ")
    assert predicted == measured
    assert "not measured" not in line
