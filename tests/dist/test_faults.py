"""Faults on real processes: every rank ends, naming the rank and the reason, and no process is left."""

from __future__ import annotations

import re

import pytest
from fault_table import CASES, TWO_JOBS, Case
from launch import launch


SHORT = (
    "kill in a step", "kill of rank 0", "stop of rank 0", "exception", "hang in user code", "other program", "other batch",
    "other lr in the last steps", "rank 1 missing", "Ctrl-C",
)  # fmt: skip
"""One of each kind; the others are like them, and need not run every time."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.long] * (case.name not in SHORT)) for case in CASES]
)
def test_fault(case: Case) -> None:
    case.check(case.run(case.short))


def test_two_jobs_on_one_port() -> None:
    """Nobody waits for ever, and nobody trains with a process of the other job without a word."""
    TWO_JOBS.check(TWO_JOBS.run())


@pytest.mark.parametrize("kind", ["refused", "data"])
def test_what_is_no_fault(kind: str) -> None:
    """A mistake that all ranks make alike; other inputs, where ranks are to have their own."""
    done = launch("faults.py", kind, "1", ranks=2)
    for text in done.outputs:
        assert re.search("went on", text), str(done)
    assert done.code == 0, str(done)
    assert done.left == ()
