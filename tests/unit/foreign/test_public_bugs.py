"""Bugs of public code bases, rebuilt in small: each is refused in just what it gets wrong, its repair is proven."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from foreign_bugs import Case, cases

import shardwright.torch as swt

CASES = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
LINES = (
    "gather_order",
    "grouped_heads",
    "megatron_1446",
    "megatron_2417",
    "megatron_673",
    "megatron_7452_1",
    "megatron_7452_11",
    "megatron_7452_2",
    "megatron_7452_3",
    "megatron_7452_4",
    "megatron_7452_8",
    "megatron_7452_9",
    "megatron_906",
    "nemo_rl_3788",
    "pytorch_160285",
    "pytorch_185167",
    "pytorch_190746",
    "tgi_1036",
    "titan_1805",
    "titan_3412",
)
"""Of these cases the line is named, of the others another one: who mends that adds the case here."""


def refused(case: Case) -> Any:
    return swt.prove(case.module.wrong, **case.arguments())


def test_there_are_many_and_few_need_a_hint() -> None:
    found = cases()
    assert len({case.source for case in found}) >= 14
    assert sum("#7452" in case.source for case in found) >= 6
    assert sum(case.hint for case in found) <= 2
    assert all(case.lines for case in found)


@CASES
def test_a_bug_is_refused_in_what_it_gets_wrong(case: Case) -> None:
    proof = refused(case)
    assert not proof
    assert {difference.name for difference in proof.differences} == set(case.outputs), proof


@CASES
def test_its_repair_is_proven(case: Case) -> None:
    proof = swt.prove(case.module.right, **case.arguments())
    assert proof, proof
    assert not proof.certificate.trusted


@CASES
def test_its_line_is_named(case: Case) -> None:
    cause = refused(case).cause
    named = [f"{cause.source.file}:{cause.source.line}", *cause.callers]
    found = {Path(place).name for place in named} & {f"{case.file.name}:{line}" for line in case.lines}
    assert bool(found) is (case.name in LINES), named
