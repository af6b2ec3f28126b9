"""The audit finds the seven known faults of DTensor 2.13 from samples, each with a script; and no artefact."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="the samples are OpInfo's")

from click.testing import CliRunner

from shardwright.cli import main
from shardwright.discover.audit.cases import case_of, difference, evened, examine, simplified
from shardwright.discover.audit.causes import causes
from shardwright.discover.audit.judge import Entry
from shardwright.discover.audit.operators import Audit, audit_all, audit_operator, audit_overload
from shardwright.discover.audit.report import render_markdown
from shardwright.discover.audit.samples import calls_of, cubes, value_groups, varied
from shardwright.discover.audit.scripts import script, script_name
from shardwright.discover.operator import Sample, Slot
from shardwright.discover.placement import P, S
from shardwright.discover.torch.ops import torch_operator
from shardwright.discover.torch.samples import samples_of
from torch_versions import of_torch_2_13


@cache
def found(name):
    return tuple(audit_operator(name))


def wrong(name, overload, kind="rule"):
    return [e for e in found(name) if (e.verdict, e.overload, e.kind) == ("wrong", overload, kind)]


SEVEN = {
    "norm inf": ("torch.linalg.vector_norm", "aten.linalg_vector_norm.default", "rule", "P(max) -> P(max)"),
    "norm -inf": ("torch.linalg.vector_norm", "aten.linalg_vector_norm.default", "rule", "P(min) -> P(min)"),
    "triangular": (
        "torch.linalg.solve_triangular",
        "aten.linalg_solve_triangular.default",
        "rule",
        "R, S(0) -> S(0)",
    ),
    "fill": ("torch.fill", "aten.fill_.Scalar", "rule", "P(sum) -> P(sum)"),
    "threshold": ("torch.nn.functional.threshold", "aten.threshold.default", "rule", "P(max) -> P(max)"),
    "cross": ("torch.linalg.cross", "aten.linalg_cross.default", "cache", "S(0), S(0): dim=0 after dim=-1"),
    "convolution": ("torch.nn.functional.conv1d", "aten.convolution.default", "dispatch", "S(1), S(1), R"),
}


@of_torch_2_13
@pytest.mark.parametrize("case", SEVEN)
def test_each_of_the_seven_is_found_and_its_script_shows_it(case, tmp_path):
    name, overload, kind, rule = SEVEN[case]
    entries = wrong(name, overload, kind)
    (entry,) = [e for e in entries if any(text.startswith(rule) for text in (e.rule, *e.ways))]
    compile(entry.script, "script", "exec")
    assert "shardwright" not in entry.script
    path = tmp_path / script_name(entry.overload, entry.rule)
    path.write_text(entry.script)
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "AssertionError: expected" in ran.stderr


@of_torch_2_13
@pytest.mark.parametrize(
    "name",
    [
        "torch.bmm",
        "torch.Tensor.view",
        "torch.reshape",
        "torch.Tensor.expand",
        "torch.nn.functional.dropout",
        "torch.add",
    ],
)
def test_artefacts_of_other_validators_are_not_reported(name):
    assert not [entry for entry in found(name) if entry.verdict == "wrong" and entry.kind == "rule"]


MISSING = {
    "aten.sum.dim_IntList": {"P(avg) -> P(avg)"},
    "aten.mean.dim": {"P(sum) -> P(sum)"},
    "aten.cumsum.default": {"P(sum) -> P(sum)", "P(avg) -> P(avg)"},
    "aten.sub.Tensor": {"R, P(max) -> P(min)", "R, P(min) -> P(max)"},
    "aten.gather.default": {f"P({kind}), R -> P({kind})" for kind in ("sum", "avg", "max", "min")},
    "aten.abs.default": set(),
    "aten.exp.default": set(),
    "aten.relu.default": set(),
    "aten.maximum.default": set(),
}


@of_torch_2_13
@pytest.mark.parametrize("overload", MISSING)
def test_only_true_rules_are_called_missing(overload):
    """Where DTensor's own validator also names false ones: those that hold by saturation, or for one number only."""
    missing = {entry.rule for entry in audit_operator(overload) if entry.verdict == "missing"}
    assert {rule for rule in missing if "prod" not in rule} == MISSING[overload]


@of_torch_2_13
def test_a_pending_norm_is_right():
    norms = [e for e in found("torch.linalg.vector_norm") if "_NormP" in e.rule]
    assert norms
    assert all(e.verdict == "correct" or e.kind == "empty" for e in norms)


def test_a_script_of_a_right_call_ends_well(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    sample = Sample((Slot(0), [1]), {"keepdim": True}, (array,), ("data",))
    case = case_of(torch_operator("aten.sum.dim_IntList"), sample, (S(1),), 3)
    given, fault, doubt = examine(case)
    assert (fault, doubt, given.placements) == (None, "", ("P(sum)",))
    from shardwright.discover.audit.cases import Fault

    path = tmp_path / "right.py"
    path.write_text(script(Fault(case, "nothing", False, given), "sum"))
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout == "DTensor gives what is expected\n"


@of_torch_2_13
def test_a_fault_is_made_smaller_and_rounder():
    array = np.random.default_rng(0).normal(size=(6, 8))
    sample = Sample((Slot(0), 0.123), {}, (array,), ("data",))
    _, fault, _ = examine(case_of(torch_operator("aten.fill_.Scalar"), sample, (P("sum"),), 4))
    assert fault is not None
    small = simplified(fault).case
    assert (small.world, small.parts[0][0].shape) == (2, (2, 2))
    assert all((part == np.round(part)).all() for part in small.parts[0])


def test_differences_are_told_in_words():
    one = np.array([1.0, 2.0, np.nan])
    assert difference(one, one) == ""
    assert difference(one[:2], one) == "of shape [2] instead of [3]"
    assert difference(one + np.array([0, 1, 0]), one) == "wrong in 1 of 3 elements, by up to 1"
    assert difference(np.array([True, False]), np.array([True, True])) == "wrong in 1 of 2 elements"


@of_torch_2_13
def test_samples_reach_overloads_and_their_in_place_forms():
    operator = torch_operator("torch.nn.functional.threshold")
    calls = calls_of([(operator, samples_of(operator, 8))], limit=3)
    assert set(calls) == {"aten.threshold.default", "aten.threshold_.default"}
    assert all(1 <= len(samples) <= 6 for samples in calls.values())


def test_calls_that_differ_in_one_argument():
    operator = torch_operator("aten.linalg_cross.default")
    samples = varied(operator, samples_of(operator, 8), 4)
    assert any(cube.shapes == ((3, 3), (3, 3)) for sample in samples for cube in cubes(operator, sample))
    groups = list(value_groups(operator, samples))
    assert {name for name, _ in groups} == {"dim"}
    assert all(len({call.shapes for call in group}) == 1 and len(group) > 1 for _, group in groups)


def test_an_audit_goes_to_json_and_back_and_reads_as_a_document():
    audit = audit_all(["torch.fill", "aten.neg.default"], jobs=2, limit=3)
    assert not audit.failures
    assert Audit.from_dict(audit.as_dict()) == audit
    assert {"aten.fill_.Scalar", "aten.neg.default"} == set(audit.overloads())  # fill itself has no rule
    text = render_markdown(audit)
    assert text.startswith("# Audit of PyTorch DTensor's sharding rules\n")
    (cause,) = audit.causes()
    assert cause.overloads == ("aten.fill_.Scalar",)
    assert "### 1. `aten.fill_.Scalar`" in text
    assert f"`{cause.shown.rule}`: {cause.shown.reason}" in text
    assert audit.correct() == ["aten.neg.default"]
    assert audit.commit in text


def entry(overload, rule, reason, kind="rule", script="x"):
    return Entry("wrong", overload, rule, reason, "self: [2]", kind, script=script)


def test_entries_of_one_mistake_are_one_cause_and_the_most_harmful_is_first():
    entries = [
        entry("aten.fft_c2c.default", "S(1) -> S(1)", "raises RuntimeError: no empty ones", "empty"),
        entry("aten.threshold.default", "P(max) -> P(max)", "the result is wrong in 1 of 2 elements"),
        entry("aten._to_copy.default", "P(max) -> P(max)", "raises RuntimeError: reduce_op max of complex"),
        entry("aten.threshold_.default", "P(min) -> P(min)", "the result is wrong in 2 of 2 elements"),
        entry("aten._fft_r2c.default", "P(max) -> P(max)", "raises RuntimeError: reduce_op max of complex"),
        entry("aten.nll_loss_forward.default", "S(0), S(0), R -> P(avg), P(sum)", "output 0 is wrong", script=""),
        entry("aten.nll_loss2d_forward.default", "S(0), S(0), R -> P(avg), P(sum)", "output 0 is wrong"),
    ]
    found = causes(entries)
    assert [set(cause.overloads) for cause in found] == [
        {"aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"},
        {"aten.threshold.default", "aten.threshold_.default"},
        {"aten._to_copy.default", "aten._fft_r2c.default"},
        {"aten.fft_c2c.default"},
    ]
    assert [cause.silent for cause in found] == [True, True, False, False]
    assert found[0].shown.overload == "aten.nll_loss2d_forward.default"  # the one with a script
    assert found[0].link.endswith("/185167")


FORGOTTEN = {
    "a range taken from the data": ("aten.histc.default", "min=1; max=1"),
    "a flag given by place": ("aten.logsumexp.default", "keepdim=True"),
    "a weighted mean": ("aten.nll_loss_forward.default", "weight: "),
    "classes that are left out": ("aten.nll_loss2d_forward.default", "ignore_index="),
}


@of_torch_2_13
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.long) if "histc" in FORGOTTEN[c][0] else c for c in FORGOTTEN]
)
def test_forgotten_arguments_are_found_on_even_shards(case):
    """By calls made for it: other flags, equal numbers, classes that occur, tensors that may be left out."""
    overload, argument = FORGOTTEN[case]
    audit = audit_all([overload], jobs=1, missing=False)
    (cause,) = audit.causes()
    assert cause.shown.kind == "rule"
    assert any(argument in e.sample for e in cause.entries)


@of_torch_2_13
def test_an_operator_that_refuses_empty_tensors_is_no_wrong_rule():
    entries = audit_all(["aten.amax.default"], jobs=1, missing=False)
    assert entries.of("wrong") == []
    assert {e.kind for e in entries.of("refuses")} == {"empty"}
    assert entries.correct() == ["aten.amax.default"]
    assert "## Operators that refuse empty shards" in render_markdown(entries)


@of_torch_2_13
@pytest.mark.long
def test_scripts_fail_under_gloo_too(tmp_path):
    (cause,) = audit_all(["aten.threshold.default"], jobs=1, missing=False).causes()
    path = tmp_path / "fault.py"
    path.write_text(cause.shown.script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 1
    assert "AssertionError: expected" in ran.stderr


@of_torch_2_13
def test_the_audit_of_some_operators_is_a_check():
    wrong = CliRunner().invoke(main, ["audit", "dtensor", "--op", "aten.fill_.Scalar", "--wrong-only", "--jobs", "1"])
    assert wrong.exit_code == 1
    right = CliRunner().invoke(main, ["audit", "dtensor", "--op", "aten.neg.default", "--wrong-only", "--jobs", "1"])
    assert right.exit_code == 0
    unknown = CliRunner().invoke(main, ["audit", "dtensor", "--op", "aten.no_such.default"])
    assert unknown.exit_code == 2


def test_an_op_that_draws_numbers_cannot_be_judged():
    entries = audit_operator("aten.bernoulli.default", limit=2)
    assert [(e.verdict, e.reason) for e in entries] == [("cannot judge", "its numbers are random")]


@of_torch_2_13
def test_samples_that_happen_to_be_cut_unevenly_are_no_uneven_fault():
    """`ldl_solve` with one right side for a batch: dim 0 of the batch and of the right side are cut alike."""
    numbers = np.random.default_rng(3).standard_normal((2, 5, 5))
    pivots = np.broadcast_to(np.arange(1, 6, dtype=np.int32), (2, 5)).copy()
    tensors = (numbers, pivots, numbers[0])
    call = Sample((Slot(0), Slot(1), Slot(2)), {}, tensors, ("data", "index", "data"))
    entries = audit_overload("aten.linalg_ldl_solve.default", [call], missing=False)
    kinds = {e.rule: e.kind for e in entries if e.verdict == "wrong"}
    assert kinds["S(0), S(0), S(0) -> S(0)"] == "rule"
    operator = torch_operator("aten._adaptive_avg_pool2d_backward.default")
    sample = Sample((Slot(0), Slot(1)), {}, (np.ones((3, 5, 3)), np.ones((3, 4, 3))), ("data", "data"))
    even = evened(case_of(operator, sample, (S(1), S(1)), 2))
    assert even.sample.shapes == ((4, 6, 4), (4, 4, 4))
    assert examine(even)[1] is None  # on even shards the windows lie alike
