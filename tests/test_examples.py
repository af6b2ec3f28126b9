"""The examples run as they stand; those that take long only in `make test-long`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
FOLDER = Path(__file__).parents[1] / "examples"
SHORT = {
    "shard_by_hand.py": ["by hand: equal to NumPy True", "chosen: equal to NumPy True"],
    "plan_and_train.py": ["step 2: ", "on 4 devices"],
    "read_a_plan.py": ["read again: True True"],
    "prove_mine.py": ["gradient of down.weight is not what", "proven equal to the single program on dp=2"],
}
LONG = {
    "own_operator.py": ["P(sum), R -> P(sum)", "bilinear in x and scale"],
    "train_llama.py": ["step"],
    "finetune_lora.py": [""],
}
ELSEWHERE = {"demo.py"}
"""Run by test_readme.py."""


def run(name: str, folder: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, FOLDER / name], cwd=folder, capture_output=True, text=True, timeout=580, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SHORT)
def test_short_ones(name: str, tmp_path: Path) -> None:
    said = run(name, tmp_path)
    assert all(words in said for words in SHORT[name]), said


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_long_ones(name: str, tmp_path: Path) -> None:
    said = " ".join(run(name, tmp_path).split())
    assert all(words in said for words in LONG[name]), said


def test_all_of_them_are_run_and_listed() -> None:
    files = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
    assert files == {*SHORT, *LONG, *ELSEWHERE}
    text = (FOLDER / "README.md").read_text()
    assert all(f"]({name})" in text for name in files)
