"""The verbs of planning on the command line: what they print, what their help says, and how wrong things end."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardwright.cli.group import main
from shardwright.plans import read_plan

PROGRAM = """
import numpy as np
import shardwright as sw

def mlp(x, w1, w2):
    return np.maximum(x @ w1, 0) @ w2

def program():
    return mlp, [sw.ShapeDtype(shape, np.float32) for shape in ((4096, 512), (512, 512), (512, 512))]
"""


def test_commands(tmp_path: Path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    where, out = f"{tmp_path / 'prog.py'}:program", tmp_path / "plan.json"
    run = CliRunner()
    done = run.invoke(main, ["plan", where, "--mesh", "d=8", "--json", str(out), "--trace"])
    assert done.exit_code == 0, done.output
    assert "a step" in done.output
    assert read_plan(out.read_text())["meshes"] == ["d=8"]
    assert "zero3" in run.invoke(main, ["compare", where, "--mesh", "d=8"]).output
    assert "(chosen)" in run.invoke(main, ["explain", where, "x", "--mesh", "d=8"]).output
    pinned = run.invoke(main, ["plan", where, "--mesh", "d=8", "--pin", "x=[_, d]", "--cap-gather", "1GiB"])
    assert "  x: [_, d]\n" in pinned.output
    clash = run.invoke(main, ["plan", where, "--mesh", "d=8", "--pin", "x=[_, d]", "--forbid", "x=d"])
    assert clash.exit_code == 1
    assert 'without forbid("x", "d") there is a plan' in clash.output
    for wrong, words in (
        (["plan", "nowhere.py:f", "--mesh", "d=8"], "there is no file"),
        (["plan", where.replace("program", "progrm"), "--mesh", "d=8"], "has no function"),
        (["plan", where, "--mesh", "d=8", "--memory", "many"], "no amount of memory"),
        (["plan", where, "--mesh", "d=8", "--pin", "x"], "does not say of what"),
        (["plan", where, "--mesh", "d=8", "--solver", "ipl"], "no solver is called 'ipl'"),
    ):
        failed = run.invoke(main, wrong)
        assert failed.exit_code == 1
        assert words in failed.output


@pytest.fixture
def where(tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    return f"{tmp_path / 'prog.py'}:program"


def run(*words):
    done = CliRunner().invoke(main, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize("verb", ["plan", "compare", "explain"])
def test_help_says_what_a_program_is(verb, tmp_path):
    """And its example runs as it stands."""
    text = run(verb, "--help").output
    assert "FILE.py:NAME (or module:NAME) names a function without parameters" in text
    assert "(fn, args) or (fn, args, keywords)" in text
    lines = [line[6:] for line in text.splitlines() if line.startswith(" " * 6)]
    first = lines.index("# train.py")
    last = next(i for i, line in enumerate(lines) if line.startswith("$ "))
    (tmp_path / "train.py").write_text("\n".join(lines[first:last]) + "\n")
    command = lines[last].removeprefix("$ shardwright ").replace("train.py", str(tmp_path / "train.py"))
    done = run(*shlex.split(command))
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("command", [["plan"], ["calibrate"]])
def test_files_that_cannot_be_written(command, where, tmp_path, monkeypatch):
    """Said before any work is done, as other errors of the user are."""
    monkeypatch.setattr("shardwright.cli.planning.load_program", None)
    option = "--json" if command == ["plan"] else "--out"
    words = [where, "--mesh", "d=8"] if command == ["plan"] else []
    for path, said in ((tmp_path / "no" / "plan.json", "there is no folder"), (tmp_path, "is a folder")):
        done = run(*command, *words, option, str(path))
        assert done.exit_code == 1
        assert said in done.output
        assert option in done.output


def test_a_file_that_is_refused_when_it_is_written(where, tmp_path, monkeypatch):
    def full(self, text):
        raise OSError(28, "No space left on device")

    out = tmp_path / "plan.json"
    monkeypatch.setattr(Path, "write_text", full)
    done = run("plan", where, "--mesh", "d=8", "--json", str(out))
    assert done.exit_code == 1
    assert "cannot be written: No space left on device" in done.output


@pytest.mark.parametrize(
    "words",
    [
        ["discover", "torch.cross", "--emit"],
        ["discover", "--all", "--out"],
        ["discover", "--book", "torch", "--out"],
        ["audit", "dtensor", "--out"],
        ["audit", "dtensor", "--scripts"],
        ["audit", "dtensor", "--emit"],
    ],
)
def test_files_in_the_way_of_folders(words, tmp_path):
    (tmp_path / "file").write_text("")
    done = run(*words, str(tmp_path / "file" / "inner"))
    assert done.exit_code == 1
    assert "no folder" in done.output


PROGRAMS = {
    "mlp takes arguments": ("mlp", ""),
    "has no function 'progrm'": ("progrm", ""),
    "did you mean 'program'": ("progrm", ""),
    "must return (fn, args) or (fn, args, keywords), not a int": ("other", "def other(): return 3"),
    "not (int, list)": ("other", "def other(): return 3, []"),
    "args is a list or a tuple, also of one argument": ("other", "def other(): return mlp, np.ones(3)"),
    "keywords say mesh, which the command line says": ("other", "def other(): return *program(), {'mesh': 'd=8'}"),
}


@pytest.mark.parametrize("words", PROGRAMS)
def test_programs_that_are_none(words, tmp_path):
    name, more = PROGRAMS[words]
    (tmp_path / "prog.py").write_text(PROGRAM + more)
    for verb in (["plan"], ["compare"], ["explain"]):
        rest = ["x"] if verb == ["explain"] else []
        done = run(*verb, f"{tmp_path / 'prog.py'}:{name}", *rest, "--mesh", "d=8")
        assert done.exit_code == 1
        assert words in done.output


def test_limits_and_meshes_are_checked(where):
    for words, said in ((["--mesh", ""], "the mesh has no axis"), (["--mesh", "d=8", "--time-limit", "-1"], "seconds")):
        done = run("plan", where, *words)
        assert done.exit_code == 1
        assert said in done.output
