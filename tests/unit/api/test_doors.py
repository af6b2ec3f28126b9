"""Nothing reaches an engine unproven: a collective is dropped after lowering, and every door refuses.

Doors are read from the front rows and the command line, so that a new name has to be put on one of the lists here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shardwright as sw
import shardwright.numpy as swn
from shardwright import P
from shardwright.cli import main
from shardwright.errors import ShardwrightError, VerifyError
from shardwright.ir.program import Program
from shardwright.lower import lower

torch = pytest.importorskip("torch")
import shardwright.torch as swt  # noqa: E402

RUN_NOTHING = {
    "sw": {
        "DeviceMesh", "Graph", "P", "PlanInfeasible", "ShapeDtype", "ShardingSpec", "ShardwrightError", "cap_gather",
        "compare", "forbid", "numpy", "pin", "reshard", "rule", "trace", "asarray", "randn",
    },
    "swt": {"Captured", "capture", "capture_step", "constrain", "data_rank", "program_hash", "prove"},
    "swn": {
        # Functions of arrays: traced within a program, plain NumPy outside of one.
        "attention", "cross_entropy", "gelu", "layer_norm", "log_softmax", "logsumexp", "op", "relu", "silu", "softmax",
        # These run an op on parts to find out whether its rule is true.
        "Sample", "check_op",
    },
    "command line": {"audit", "calibrate", "compare", "discover", "doctor", "explain", "plan", "presets",
                     "prove", "rules"},
}  # fmt: skip
"""Names that hand no Program to an engine."""


def without_a_collective(program: Program) -> Program:
    """The first reduction is gone: its operand claims to be finished; what is left of one that scatters is a slice."""
    for n, instr in enumerate(program.instrs):
        read = instr.inputs[0] if instr.op in ("all_reduce", "reduce_scatter") else None
        if read is None or read in program.inputs:
            continue
        values = list(program.values)
        values[read] = replace(values[read], spec=values[read].spec.replace(partial=()))
        if instr.op == "all_reduce":
            kept = replace(instr, op="copy", attrs=(), axes=(), bytes=0)
        else:
            kept = replace(instr, op="core.slice", attrs=(("dim", instr.attr("dim")),), bytes=0)
        return replace(program, values=tuple(values), instrs=(*program.instrs[:n], kept, *program.instrs[n + 1 :]))
    return program


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering forgets a collective, wherever it is called."""
    for room in ("api.arrays.eager", "solve.planner", "lower.pieces"):
        monkeypatch.setattr(f"shardwright.{room}.lower", lambda complete: without_a_collective(lower(complete)))
    # What leaves out a collective may take less than any plan could, which the planner would say first.
    monkeypatch.setattr("shardwright.solve.planner.Planner.bounded", lambda self, plan, bound: plan)


LONG = 2**15
"""So much is summed over that reducing costs less than gathering."""
X, W = (np.random.default_rng(0).normal(size=shape) / LONG**0.25 for shape in ((4, LONG), (LONG, 2)))
SPLIT = (P(None, "tp"), P("tp", None))


def product(x: Any, w: Any) -> Any:
    return np.tanh(x @ w)


def planned(**about: Any) -> Any:
    return sw.plan(product, X, W, mesh="tp=2", in_specs=SPLIT, **about)


def network() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()
    x = torch.randn(4, 8, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), x


def loss(y: Any) -> Any:
    return y.square().sum()


def trained(**about: Any) -> Any:
    model, optimizer, x = network()
    plan = sw.plan(model, x, mesh="dp=2", recipe="dp", optimizer=optimizer, loss=loss, **about)
    return plan, x


def step_of_plan() -> Any:
    plan, x = trained()
    return plan.step()(x)


def step_by_specs() -> Any:
    model, optimizer, x = network()
    return swt.shard_step(model, x, mesh="dp=2", specs={"input": "[dp, _]"}, optimizer=optimizer, loss=loss)(x)


def step_in_pieces() -> Any:
    model, optimizer, x = network()
    return swt.train_step(model, batch=(x,), mesh="dp=2", recipe="dp", optimizer=optimizer, loss=loss, accumulate=2)(x)


def sharded_arrays() -> Any:
    x, w = sw.asarray(X, mesh="tp=2", spec=SPLIT[0]), sw.asarray(W, mesh="tp=2", spec=SPLIT[1])
    return np.tanh(x @ w)


def sharded_tensors() -> Any:
    x, w = (sw.asarray(torch.from_numpy(a), mesh="tp=2", spec=s) for a, s in zip((X, W), SPLIT))
    return torch.tanh(x @ w)


def loaded() -> Any:
    return sw.load_plan(planned().to_json(), product, X, W)(X, W)


DOORS: dict[str, Callable[[], Any]] = {
    "sw.shard_map": lambda: sw.shard_map(product, "tp=2", in_specs=SPLIT)(X, W),
    "sw.plan": lambda: planned()(X, W),
    "sw.Plan": step_of_plan,
    "sw.load_plan": loaded,
    "sw.verify": lambda: sw.verify(planned()),
    "sw.ShardedArray": sharded_arrays,
    "sw.with_sharding_constraint": lambda: sw.shard_map(
        lambda x, w: sw.with_sharding_constraint(product(x, w), P(None, None)), "tp=2", in_specs=SPLIT
    )(X, W),
    "swt.ShardedTensor": sharded_tensors,
    "swt.ShardedStep": step_of_plan,
    "swt.shard_step": step_by_specs,
    "swt.train_step": step_in_pieces,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses(door: str, broken: None) -> None:
    with pytest.raises(VerifyError) as error:
        DOORS[door]()
    assert {"instruction", "wrong first"} & {label for label, _ in error.value.rows}, str(error.value)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_opens(door: str) -> None:
    DOORS[door]()


def test_every_name_is_a_door_or_runs_nothing() -> None:
    rows = {"sw": sw.__all__, "swt": swt.__all__, "swn": swn.__all__, "command line": list(main.commands)}
    for row, names in rows.items():
        doors = {name.split(".")[1] for name in DOORS if name.startswith(f"{row}.")}
        doors |= {"fuzz", "run", "verify"} if row == "command line" else set()
        assert doors | RUN_NOTHING[row] == set(names), row
        assert not doors & RUN_NOTHING[row], row


def test_it_can_be_left_out_and_says_so(broken: None) -> None:
    plan = planned(verify="off")
    wrong = plan(X, W)
    assert not np.allclose(wrong, product(X, W))
    assert 'not proven, verify="off"' in str(plan)
    assert json.loads(plan.to_json())["certificate"] is None
    mapped = sw.shard_map(product, "tp=2", in_specs=SPLIT, verify="off")
    assert not np.allclose(mapped(X, W), product(X, W))
    assert 'verify="off"' in str(mapped.plan(X, W))
    assert 'verify="off"' in str(sw.load_plan(planned().to_json(), product, X, W, verify="off"))
    with pytest.raises(ShardwrightError, match="'on' or 'off'"):
        planned(verify=False)


def test_a_plan_says_how_far_it_is() -> None:
    plan = planned()
    assert repr(plan).endswith("not yet proven")
    assert "  proof   not yet proven\n" in str(plan)
    plan(X, W)
    assert repr(plan).endswith("; proven")
    assert "  proof   proven\n" in str(plan)
    certificate = plan.certificate
    assert certificate is not None
    assert certificate == plan.verify() == sw.verify(plan)
    record = json.loads(plan.to_json())["certificate"]
    assert record == certificate.to_json()
    assert record["program"] == certificate.program


def test_a_certificate_in_a_file_is_not_believed(broken: None) -> None:
    plan = planned()
    with pytest.MonkeyPatch.context() as whole:
        whole.setattr("shardwright.solve.planner.lower", lower)
        good = planned()
        good.verify()
    again = sw.load_plan(good.to_json(), product, X, W)
    assert again.certificate is None
    with pytest.raises(VerifyError):
        again(X, W)
    with pytest.raises(VerifyError):
        plan(X, W)


PROGRAM = f"""
import numpy as np
def product(x, w):
    return np.tanh(x @ w)
def program():
    return product, [np.ones((4, {LONG})), np.ones(({LONG}, 2))]
"""


def test_the_command_line_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "plan.json").write_text(planned().to_json())
    monkeypatch.setattr("shardwright.solve.planner.Planner.best", None)  # the planner is not asked
    target = f"{tmp_path / 'job.py'}:program"
    done = CliRunner().invoke(main, ["verify", str(tmp_path / "plan.json"), target])
    assert done.exit_code == 0, done.output
    assert "proven equal to the program as captured" in done.output
    with pytest.MonkeyPatch.context() as faulty:
        faulty.setattr("shardwright.solve.planner.lower", lambda complete: without_a_collective(lower(complete)))
        done = CliRunner().invoke(main, ["verify", str(tmp_path / "plan.json"), target])
    assert done.exit_code == 1
    assert "VerifyError" in done.output
