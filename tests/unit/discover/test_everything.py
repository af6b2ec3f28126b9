"""Many operators: processes with limits, files that are not made twice, counts."""

from __future__ import annotations

import os
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import yaml  # noqa: E402
from click.testing import CliRunner  # noqa: E402

from shardwright.cli.group import main  # noqa: E402
from shardwright.discover.book.numpy import compare_op  # noqa: E402
from shardwright.discover.everything import discover_all, file_of, summary  # noqa: E402
from shardwright.discover.isolate import isolated, run_isolated  # noqa: E402
from shardwright.rules import rule  # noqa: E402
from torch_versions import of_torch_2_13  # noqa: E402


def test_a_crash_a_hang_and_greed_are_results() -> None:
    assert isolated(lambda: {"answer": 42}).value == {"answer": 42}
    assert isolated(lambda: os.kill(os.getpid(), signal.SIGSEGV)).failure == "crashed (SIGSEGV)"
    assert "longer than its time limit" in isolated(lambda: time.sleep(60), seconds=0.3).failure
    assert "GiB" in isolated(lambda: len(bytearray(8 << 30)), memory=1 << 30).failure
    assert isolated(lambda: 1 / 0).failure == "ZeroDivisionError: division by zero"
    assert "JSON serializable" in isolated(lambda: object()).failure


def meet(folder: Path, key: str) -> list[str]:
    """Come, and wait for four to be there."""
    (folder / key).touch()
    while len(here := sorted(path.name for path in folder.iterdir())) < 4:
        time.sleep(0.01)
    return here


def test_tasks_run_side_by_side_and_leave_nobody_behind(tmp_path: Path) -> None:
    """Each waits for all the others, so they come to an end only if all run at once."""
    for jobs, seconds in ((4, 60.0), (2, 0.5)):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        tasks = [(str(i), partial(meet, folder, str(i))) for i in range(4)]
        found = list(run_isolated(tasks, jobs=jobs, seconds=seconds))
        assert sorted(outcome.key for outcome in found) == ["0", "1", "2", "3"]
        if jobs == 4:
            assert all(outcome.value == ["0", "1", "2", "3"] for outcome in found)
        else:
            assert any("time limit" in outcome.failure for outcome in found)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_reports_are_written_once(tmp_path: Path) -> None:
    names = ["neg", "randn_like", "cumsum"]
    first = {v.name: v for v in discover_all(names, tmp_path, jobs=2)}
    assert first["neg"].status == first["cumsum"].status == "rule found"
    assert (first["randn_like"].status, first["randn_like"].reason) == ("not judged", "its numbers are random")
    facts = yaml.safe_load(file_of(tmp_path, "cumsum").read_text())
    assert facts["statements"][0]["conditional_rules"][0]["condition"] == "d != dim"
    again = discover_all(names, tmp_path)
    assert all(verdict.cached for verdict in again)
    assert summary(again) == summary(list(first.values()))
    file_of(tmp_path, "neg").write_text("made_with: {torch: '0.1', discovery: 1}")
    assert [v.name for v in discover_all(names, tmp_path) if not v.cached] == ["neg"]


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    assert file_of(tmp_path, "../../etc/passwd").parent == tmp_path


SOME_OPS = ["add", "matmul", "reduce_max", "reshape", "take", "cumsum", "sort", "where", "concatenate", "transpose"]


@pytest.mark.parametrize("op", SOME_OPS)
def test_the_book_agrees_with_what_is_found(op: str) -> None:
    found = compare_op(op)
    assert found.calls
    assert found.rows
    assert found.wrong == ()
    assert not found.beyond or found.explanation


@pytest.mark.usefixtures("kept_book")
def test_a_wrong_line_of_the_book_is_found() -> None:
    rule("sort", "... -> ... ; P(max) -> P(max)", replace=True)
    found = compare_op("sort")
    assert any("P(max) -> P(max)" in text for text in found.wrong)
    assert any("S(" in text for text in found.wrong)


def test_the_command_line(tmp_path: Path) -> None:
    run = CliRunner().invoke
    shown = run(main, ["discover", "torch.cross", "--quick", "--emit", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "S(d), S(d)  -> S(d)    WHEN d != dim" in shown.output
    assert (tmp_path / "linalg_cross_strategy.py").exists()
    assert (tmp_path / "test_linalg_cross_strategy.py").exists()
    made = run(main, ["discover", "torch.neg", "--quick", "--yaml"])
    json = run(main, ["discover", "torch.neg", "--quick", "--json"])
    assert yaml.safe_load(made.output) == yaml.safe_load(json.output)
    wrong = run(main, ["discover", "torch.crosss"])
    assert wrong.exit_code == 2
    assert "did you mean" in wrong.output
    assert run(main, ["discover"]).exit_code == 2


@of_torch_2_13
def test_the_audit_command_writes_page_scripts_and_code(tmp_path: Path) -> None:
    page, scripts, code = tmp_path / "page.md", tmp_path / "scripts", tmp_path / "code"
    asked = ["audit", "dtensor", "--op", "torch.linalg.cross", "--jobs", "1", "--out", str(page)]
    shown = CliRunner().invoke(main, [*asked, "--scripts", str(scripts), "--emit", str(code)])
    assert shown.exit_code == 1, shown.output  # a rule is wrong
    assert "the cache's key leaves out 'dim'" in shown.output
    assert re.search(r"dim=\S+ after dim=", page.read_text())
    for name in re.findall(r"\]\(scripts/([^)]+)\)", page.read_text()):
        assert (scripts / name).exists()
    assert (code / "linalg_cross_strategy.py").exists()
