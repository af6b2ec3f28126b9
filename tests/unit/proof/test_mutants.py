"""A fixed sample of `benchmarks/mutants.py`: every mistake that changes a result is refused, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import mutants
from mutation.editing import KINDS
from mutation.judging import Tally

FUNCTIONS = (("mlp", 0), ("descent", 1), ("lookup", 1))


def clean(tally: Tally, least: int) -> None:
    """At least so many mutants change a result, and none survives."""
    assert not tally.survivors, "\n".join(tally.survivors)
    assert not tally.alarms, "\n".join(tally.alarms)
    assert sum(row.changing for row in tally.rows.values()) >= least


def test_there_are_many_kinds_and_many_of_them_were_public() -> None:
    assert len(KINDS) >= 30
    assert sum(bool(kind.public) for kind in KINDS.values()) >= 12


@pytest.mark.parametrize("name", FUNCTIONS, ids=str)
def test_no_mutant_of_a_function_survives(name: tuple[str, int]) -> None:
    clean(mutants.of_functions(name, 1), 8)


def test_no_mutant_of_a_training_step_survives() -> None:
    pytest.importorskip("torch")
    clean(mutants.of_steps(("mlp tensor parallel", {}), 1), 25)


def test_no_mistake_far_out_survives() -> None:
    clean(mutants.of_large("summed, 16", 1), 15)


def test_no_mutant_of_an_order_survives() -> None:
    clean(mutants.of_functions(("orders", 0), 3), 12)


def test_no_wrong_rule_survives() -> None:
    clean(mutants.of_rules("einsums", 1), 1)


@pytest.mark.parametrize("source", ["random graphs", "functions", "more functions", "large functions"])
def test_no_correct_program_is_refused(source: str) -> None:
    clean(mutants.of_correct((source, 0), 30), 0)
