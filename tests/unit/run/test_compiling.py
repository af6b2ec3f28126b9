"""`run/torch/compiling.py`: which form of a program runs, and that all of them train alike."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import shardwright.torch as swt
from shardwright.errors import ShardwrightError, SpecError
from shardwright.run.torch import TorchEngine, compiling

STEPS = 8


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = torch.nn.Linear(6, 10), torch.nn.LayerNorm(10), torch.nn.Linear(10, 3)

    def forward(self, x, y):
        return (self.down(torch.tanh(self.norm(self.up(x)))) - y).square().mean()


def trained(form: str | None, steps: int = STEPS, clip: float | None = None, device: str = "cpu"):
    """Losses, parameters and the step of a few steps, whose learning rate moves."""
    model = Model().to(device=device, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    batch = [torch.randn(5, n, generator=draw, dtype=torch.float64).to(device) for n in (6, 3)]
    step = swt.train_step(
        model, optimizer=optimizer, batch=batch, mesh="d=1", engine=TorchEngine("d=1", device=device), data="global",
        compile=form, clip_grad_norm=clip,
    )  # fmt: skip
    losses = []
    for i in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + i)
        losses.append(float(step(*batch)))
    step.sync()
    return losses, [p.detach().clone() for p in model.parameters()], step


def alike(form: str, **about) -> swt.Step:
    ours, plain = trained(form, **about), trained(None, **about)
    assert ours[0] == pytest.approx(plain[0], rel=1e-12)
    for a, b in zip(ours[1], plain[1]):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    return ours[2]


@pytest.fixture
def clock(monkeypatch):
    """Time passes only where a form says so."""
    now = SimpleNamespace(time=0.0, perf_counter=lambda: now.time)
    monkeypatch.setattr(compiling, "time", now)
    return now


@pytest.fixture
def compiler(monkeypatch, clock):
    """A compiler whose forms take as long, and hold as much, as a test says; CPUs are tried like GPUs."""
    said = SimpleNamespace(emitted=2.0, compiled=1.0, bytes=0, fails="", made=0)
    monkeypatch.setattr(compiling, "TRIED", ("cpu",))

    def compile_ahead(module, inputs):
        said.made += 1
        if said.fails == "compiling":
            raise RuntimeError("no such kernel\nand more")

        def call(*inputs):
            if said.fails == "running":
                raise RuntimeError("out of memory")
            clock.time += said.compiled
            return module(*inputs)

        return call

    def timed(self, trial, inputs):
        before = clock.time
        found = self.running(inputs)
        if self.form == compiling.EMITTED:
            clock.time += said.emitted
        trial.seconds.append(clock.time - before)
        trial.bytes = said.bytes if self.form == compiling.COMPILED else 1
        return found

    monkeypatch.setattr(compiling, "compile_ahead", compile_ahead)
    monkeypatch.setattr(compiling.Forms, "_timed", timed)
    return said


def test_the_faster_form_stays(compiler) -> None:
    step = alike("auto", steps=2 * (compiling.WARM + compiling.TIMED) + 1)
    assert compiler.made == 1
    assert step.forms["step"].startswith("step runs compiled: 1000.00 ms compiled, 2000.00 emitted")
    assert step.forms["step"] in step.compared()


def test_a_slower_form_goes(compiler) -> None:
    compiler.compiled = 2.1
    step = alike("auto", steps=2 * (compiling.WARM + compiling.TIMED) + 1)
    assert step.forms["step"].startswith("step runs emitted: that is faster (2100.00 ms compiled")


def test_a_form_that_does_not_fit_goes(compiler) -> None:
    compiler.bytes = 2**60
    step = alike("auto", steps=2 * (compiling.WARM + compiling.TIMED) + 1)
    assert "does not fit in" in step.forms["step"]
    assert step.forms["step"].startswith("step runs emitted")


def test_what_does_not_compile_runs_as_emitted(compiler) -> None:
    compiler.fails = "compiling"
    step = alike("auto")
    assert step.forms["step"] == "step runs emitted: it could not be compiled: RuntimeError: no such kernel"
    with pytest.raises(ShardwrightError, match="could not be compiled") as error:
        trained("on")
    assert "no such kernel" in str(error.value)


def test_state_survives_a_compiled_form_that_fails_where_memory_is_short(compiler, monkeypatch) -> None:
    compiler.fails = "running"
    monkeypatch.setattr(compiling, "GROWTH", 1e30)
    step = alike("auto")
    assert step.forms["step"] == "step runs emitted: the compiled form failed: RuntimeError: out of memory"


def test_pieces_have_forms_of_their_own(compiler) -> None:
    step = alike("auto", steps=12, clip=0.1)
    assert all("runs compiled" in text for text in step.forms.values())


def test_state_is_written_over_and_options_are_read_anew(compiler) -> None:
    """The compiled module gets state where it lies and gives the same memory back."""
    _, _, step = trained("on")
    given = [held.shards for name, held in step._state.items() if name == "up.weight"]
    before = [x.data_ptr() for x in given]
    step(*(torch.zeros(5, n, dtype=torch.float64) for n in (6, 3)))
    assert [held.shards.data_ptr() for name, held in step._state.items() if name == "up.weight"] == before


def test_on_other_devices_auto_is_as_emitted() -> None:
    _, _, step = trained("auto", steps=1)
    assert step.forms == {"step": "step runs emitted: that is what devices other than CUDA's do"}


def test_words_are_checked() -> None:
    with pytest.raises(SpecError, match="compile= is no 'atuo'") as error:
        trained("atuo", steps=0)
    assert "auto" in str(error.value)
    with pytest.raises(SpecError, match="for one CUDA device"):
        trained("graph", steps=0)
    model = Model()
    with pytest.raises(SpecError, match="the engine 'virtual' has nothing to compile"):
        swt.train_step(
            model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batch=[torch.zeros(4, 6), torch.zeros(4, 3)],
            mesh="d=2", engine="virtual", compile="on", data="global",
        )  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_inductor() -> None:
    assert "runs compiled" in alike("on").forms["step"]
    assert all("runs compiled" in text for text in alike("on", clip=0.1).forms.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")
@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("form", ["auto", "on", "graph"])
def test_on_a_gpu(form) -> None:
    step = alike(form, steps=16, device="cuda")
    assert form == "auto" or ("CUDA graph" if form == "graph" else "compiled") in step.forms["step"]
