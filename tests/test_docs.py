"""The documentation is run: Python blocks in order, each printing what stands below it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardwright.cli.group import main

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
PRINTING = [page for page in PAGES if "```text" in (ROOT / "docs" / page).read_text()]
MARK = "----8<----"


@pytest.mark.parametrize("page", PRINTING)
def test_blocks_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```(?:\s+```text\n(.*?)```)?", text, re.DOTALL)
    (tmp_path / "page.py").write_text(f'\nprint("{MARK}")\n'.join(code for code, _ in blocks))
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [part.strip() for part in done.stdout.split(MARK)] == [said.strip() for _, said in blocks]


def test_commands_exist() -> None:
    for page in PAGES:
        for command in re.findall(r"^\$ shardwright (\w+)", (ROOT / "docs" / page).read_text(), re.MULTILINE):
            assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0, command


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text()):
            assert (ROOT / "docs" / target).exists(), target
