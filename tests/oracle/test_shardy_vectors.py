"""Shardy's vectors: the small set that ships with the tests, and the full one where it is at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shardy_vectors import is_called, judge, run_file

HERE = Path(__file__).parent
DATA = sorted((HERE / "data").glob("*.json"))
FULL = HERE.parents[2] / "shared" / "vectors"
# Where every plain case must pass; what is skipped there needs control flow, or the neighbours of an op.
FULL_FILES = {
    "propagation.json": 206,
    "reshard_to_collectives.json": 65,
    "import.json": 17,
    "rules.json": 86,
    "insert_explicit_reshards.json": 196,
    "jax_cases.json": 16,
}


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_small_set(path: Path) -> None:
    outcome = run_file(path)
    assert not outcome.failed, "\n".join(outcome.failed)
    assert outcome.passed >= 15


@pytest.mark.parametrize("name", FULL_FILES)
def test_full_set(name: str) -> None:
    path = FULL / name
    if not path.exists():
        pytest.skip("the full set of vectors is not at hand")
    outcome = run_file(path)
    assert not outcome.failed, "\n".join(outcome.failed)
    assert outcome.passed >= FULL_FILES[name]


def test_the_script_prints_counts_per_file() -> None:
    command = [sys.executable, str(HERE / "shardy_vectors.py"), *map(str, DATA)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(DATA)
    assert all(" passed, 0 failed, " in line for line in done.stdout.splitlines())


# -- the judge itself must bite -------------------------------------------------------------------------


def records(name: str) -> list[dict]:
    return json.loads((HERE / "data" / f"{name}.json").read_text())


def test_a_changed_expectation_fails() -> None:
    record = next(r for r in records("propagation") if r["func"] == "multi_axes")
    assert judge(record) == ""
    record["expected"]["args"][1]["sharding"]["dims"][0]["axes"] = ["b"]
    assert "where Shardy has" in judge(record)


def test_a_changed_rule_fails() -> None:
    record = next(r for r in records("rules") if r["case"] == "dot_matrix_matrix")
    assert judge(record) == ""
    record["rule"]["reduction"] = []
    assert "where Shardy has" in judge(record)


def test_a_cheaper_list_of_collectives_would_fail_us() -> None:
    record = next(r for r in records("reshard_to_collectives") if r["func"].startswith("all_gather"))
    assert judge(record) == ""
    record["expected"].update(ops=[], returns=[0])
    assert "bytes where Shardy needs 0" in judge(record)


def test_a_callee_is_told_by_axes_from_nowhere() -> None:
    record = next(r for r in records("propagation") if r["func"] == "no_conflict")
    assert not is_called(record)
    record["expected"]["args"][2]["sharding"]["dims"][0]["axes"] = ["z"]
    assert is_called(record)
