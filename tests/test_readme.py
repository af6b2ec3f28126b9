"""The README is run: its Python prints what stands below it, and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n((?:(?!```).)*)```\s+```text\n(.*?)```", TEXT, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2
    assert len(EXAMPLES[0][0].splitlines()) == 12


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_print_what_the_readme_says(number: int, tmp_path: Path) -> None:
    code, expected = EXAMPLES[number]
    (tmp_path / "readme.py").write_text(code)
    done = subprocess.run([sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_commands_are_targets() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"^\$ make (\w+)", TEXT, re.MULTILINE)
    assert commands
    assert set(commands) <= targets


def test_the_demo_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "proven equal to the program as captured" in done.stdout


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
