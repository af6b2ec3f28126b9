"""The command line: what verbs print and write, what their help says, and how wrong things end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardwright as sw
from shardwright.cli.exits import INTERNAL, INTERRUPTED, NO, USAGE, ending
from shardwright.cli.group import main
from shardwright.cli.models import known_models
from shardwright.plans import read_plan

PROGRAM = """
import numpy as np
import shardwright as sw

def mlp(x, w1, w2):
    return np.maximum(x @ w1, 0) @ w2

def program():
    return mlp, [sw.ShapeDtype(shape, np.float32) for shape in ((4096, 512), (512, 512), (512, 512))]

def small():
    return mlp, [sw.ShapeDtype(shape, np.float32) for shape in ((8, 12), (12, 16), (16, 4))]
"""
VERBS = {
    "plan", "explain", "compare", "verify", "prove", "run", "discover", "audit", "calibrate", "rules", "presets",
    "doctor", "fuzz",
}  # fmt: skip


@pytest.fixture
def where(tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    return f"{tmp_path / 'prog.py'}:program"


@pytest.fixture
def small(where):
    return where.replace(":program", ":small")


def run(*words, env=None):
    done = CliRunner().invoke(main, list(map(str, words)), env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def refused(*words, said=(), code=USAGE):
    """One message on stderr, without frames."""
    done = run(*words)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    for text in (said,) if isinstance(said, str) else said:
        assert text in done.stderr, done.stderr
    return done


def test_the_verbs():
    assert set(main.commands) == VERBS
    text = run("--help").output
    assert all(f"\n  {verb} " in text for verb in VERBS)


# -- what they print and write --------------------------------------------------------------------------------


def test_a_plan_and_what_reads_it(small, tmp_path):
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    done = run("plan", small, "--mesh", "a=2, b=2", "-o", out, "--html", page, "--trace")
    assert done.exit_code == 0, done.output
    assert "exposed communication" in done.stdout
    assert "forward: " in done.stdout
    assert read_plan(out.read_text())["meshes"] == ["a=2, b=2"]
    assert page.read_text().startswith("<!doctype html>")
    assert "proven equal" in run("verify", out, small).stdout
    shown = run("run", out, small)
    assert shown.exit_code == 0, shown.output
    assert "equal to the program on one device" in shown.stdout
    assert "plan.json: " in run("compare", out, small).stdout
    assert "(chosen)" in run("explain", out, small, "x").stdout


def test_json_everywhere(small, tmp_path):
    plan = json.loads(run("plan", small, "--mesh", "d=2", "--json").stdout)
    assert plan["step_ps"] == plan["compute_ps"] + plan["exposed_ps"]
    assert json.loads(run("run", small, "--mesh", "d=2", "--json").stdout)["equal"] is True
    assert json.loads(run("verify", small, "--mesh", "d=2", "--json").stdout)["instructions"] > 0
    assert {row["name"] for row in json.loads(run("compare", small, "--mesh", "d=2", "--json").stdout)} > {"dp"}
    assert "(chosen)" in json.loads(run("explain", small, "x", "--mesh", "d=2", "--json").stdout)["text"]
    assert "h100" in json.loads(run("presets", "--json").stdout)
    assert json.loads(run("presets", "--models", "--json").stdout).keys() == known_models().keys()
    assert json.loads(run("rules", "exp", "--json").stdout)["op"] == "exp"
    assert json.loads(run("doctor", "--json").stdout)["packages"]["numpy"]
    out = tmp_path / "doctor.json"
    run("doctor", "--json", "-o", out)
    assert json.loads(out.read_text())["shardwright"]


def test_options_of_planning_are_shared(where):
    shared = {
        "--mesh",
        "--hardware",
        "--memory",
        "--pin",
        "--forbid",
        "--cap-gather",
        "--recipe",
        "--solver",
        "--uneven",
    }
    for verb in ("plan", "compare", "explain", "verify", "run"):
        options = {name for option in main.commands[verb].params for name in option.opts}
        assert shared <= options, verb
        assert {"--json", "-o"} <= options, verb
    pinned = run("plan", where, "--mesh", "d=8", "--pin", "x=[_, d]", "--cap-gather", "1GiB", "--all")
    assert "  x: [_, d]\n" in pinned.stdout


@pytest.mark.parametrize("verb", ["plan", "compare", "explain"])
def test_help_says_what_a_program_is(verb, tmp_path):
    """And its example runs as it stands."""
    text = run(verb, "--help").output
    assert "PROGRAM is FILE.py:NAME (or module:NAME), which names a function without" in text
    assert "(fn, args) or (fn, args, keywords)" in text
    lines = [line[6:] for line in text.splitlines() if line.startswith(" " * 6)]
    first = lines.index("# train.py")
    last = next(i for i, line in enumerate(lines) if line.startswith("$ "))
    (tmp_path / "train.py").write_text("\n".join(lines[first:last]) + "\n")
    command = lines[last].removeprefix("$ shardwright ").replace("train.py", str(tmp_path / "train.py"))
    done = run(*shlex.split(command))
    assert done.exit_code == 0, done.output


def test_rules_say_where_they_stand():
    shown = run("rules", "matmul", "--shapes", "8 16, 16 4 -> 8 4").stdout
    assert "m k, k n -> m n" in shown
    assert "shardwright/rules/" in shown
    refused("rules", "matmull", said="did you mean 'matmul'")
    refused("rules", "matmul", "--shapes", "8x16, 16x4", said="write sizes with spaces")
    refused("presets", "h1000", said="did you mean 'h100'")
    assert "data sheet" in run("presets", "h100").stdout


def test_models_by_name(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "auto_map": {"AutoModelForCausalLM": "evil--code.Model"},
    }))  # fmt: skip
    done = run("plan", f"hf:{tmp_path}/config.json", "--batch", "4", "--seq", "32", "--mesh", "d=2")
    assert done.exit_code == 0, done.output
    assert "LlamaForCausalLM on (d=2)" in done.stdout
    assert "layers.0-1" in done.stdout
    refused("plan", "hf:lama-3-8b", "--mesh", "d=2", said="did you mean 'llama-3-8b'")
    refused("plan", f"hf:{tmp_path}/none.json", "--mesh", "d=2", said="no configuration can be read")
    refused("plan", "hf:gpt2", "--seq", "4096", "--mesh", "d=2", said="1024 positions")
    refused("plan", "hf:gpt2", "--dtype", "bfloat17", "--mesh", "d=2", said="did you mean 'bfloat16'")
    refused("plan", "hf:gpt2", "--optimizer", "adam", "--mesh", "d=2", said="did you mean 'adamw'")
    for text, said in (("{", "is no JSON"), ("[]", "names no model_type"), ('{"model_type": "lama"}', "knows no")):
        (tmp_path / "config.json").write_text(text)
        refused("plan", f"hf:{tmp_path}/config.json", "--mesh", "d=2", said=said)


# -- how wrong things end -------------------------------------------------------------------------------------


def test_the_answer_is_no(where):
    clash = refused("plan", where, "--mesh", "d=8", "--pin", "x=[_, d]", "--forbid", "x=d", code=NO)
    assert 'without forbid("x", "d") there is a plan' in clash.stderr
    refused("plan", where, "--mesh", "d=8", "--memory", "1KiB", code=NO, said="PlanInfeasible")


def test_wrong_words(where, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    saved = str(tmp_path / "plan.json")
    for wrong, words in (
        (["plan", "nowhere.py:f", "--mesh", "d=8"], "there is no file"),
        (["plan", "no.such.module:f", "--mesh", "d=8"], "cannot be imported"),
        (["plan", "..:f", "--mesh", "d=8"], "is no module"),
        (["plan", "prog.py", "--mesh", "d=8"], "does not say which program"),
        (["plan", where.replace("program", "progrm"), "--mesh", "d=8"], "has no function"),
        (["plan", where], "--mesh is not given"),
        (["plan", where, "--mesh", "2x4"], 'write "a=2, b=4"'),
        (["plan", where, "--mesh", ""], "the mesh has no axis"),
        (["plan", where, "--mesh", "d=8", "--memory", "many"], "no amount of memory"),
        (["plan", where, "--mesh", "d=8", "--pin", "x"], "does not say of what"),
        (["plan", where, "--mesh", "d=8", "--solver", "ipl"], "no solver is called 'ipl'"),
        (["plan", where, "--mesh", "d=8", "--hardware", "h10"], "did you mean 'h100'"),
        (["plan", where, "--mesh", "d=8", "--hardware", "none.toml"], "none.toml"),
        (["plan", where, "--mesh", "d=8", "--time-limit", "-1"], "seconds"),
        (["plan", where, "--mesh", "d=8", "--batch", "4"], "--batch is for models by name"),
        (["verify", saved, where], "this JSON is no plan"),
        (["verify", where.partition(":")[0], where], "prog.py"),
        (["verify", saved], "for its program, which is not named"),
        (["verify", "none.json", where], "no plan can be read from 'none.json'"),
        (["verify", saved, where, "--memory", "1GiB"], "--memory says nothing beside a saved plan"),
        (["run", "a.json", where, "more"], "3 names where there is"),
        (["explain", where, "--mesh", "d=8"], "explain needs a program and the name of a value"),
        (["explain", where, "w11", "--mesh", "d=8"], "did you mean"),
        (["discover", "torch.crosss"], "did you mean"),
        (["discover", "--all", "--jobs", "0"], "--jobs"),
    ):
        refused(*wrong, said=words)
    assert run("plan").exit_code == USAGE
    assert run("plann").exit_code == USAGE
    assert run("plan", where, "--mehs", "d=8").exit_code == USAGE


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--mesh", "d=8", "-o"], ["plan", "--mesh", "d=8", "--html"], ["calibrate", "-o"], ["doctor", "-o"],
        ["compare", "--mesh", "d=8", "-o"], ["run", "--mesh", "d=8", "-o"], ["prove", "-o"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_files_that_cannot_be_written(words, where, tmp_path, monkeypatch):
    """Said before any work is done, as other errors of the user are."""
    monkeypatch.setattr("shardwright.cli.programs.load_program", None)
    monkeypatch.setattr("shardwright.cli.checking.call_target", None)
    target = [] if words[0] in ("calibrate", "doctor") else [where]
    for path, said in ((tmp_path / "no" / "plan.json", "there is no folder"), (tmp_path, "is a folder")):
        refused(words[0], *target, *words[1:], path, said=(said, words[-1] if words[-1] == "--html" else "--out"))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can make a file")
def test_a_folder_that_only_seems_writable(where):
    """Root may write everywhere, as permissions say; the kernel says otherwise."""
    refused("plan", where, "--mesh", "d=8", "-o", "/proc/nope.json", said="cannot be written")
    refused("audit", "dtensor", "-o", "/proc/nope.md", said="cannot be written")


def test_pipes_are_not_opened_beforehand(where, tmp_path):
    """That would wait for a reader, or end what he reads."""
    os.mkfifo(tmp_path / "pipe")
    refused("plan", where, "--mesh", "2x4", "-o", tmp_path / "pipe", said='write "a=2, b=4"')


def test_looking_leaves_no_file_behind(where, tmp_path):
    refused("plan", where, "--mesh", "2x4", "-o", tmp_path / "plan.json", said="")
    assert not (tmp_path / "plan.json").exists()


def test_folders_that_cannot_be_made_are_no_faults_of_ours():
    assert ending(OSError(28, "No space left on device", "rules")) == (USAGE, "'rules': No space left on device")
    assert ending(OSError(2, "No such file", f"{Path(sw.__file__).parent}/lost"))[0] == INTERNAL


def test_a_file_that_is_refused_when_it_is_written(where, tmp_path, monkeypatch):
    def full(self, text, **about):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    for option in ("-o", "--html"):
        refused("plan", where, "--mesh", "d=8", option, tmp_path / "plan.out",
                said="cannot be written: No space left on device")  # fmt: skip


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
    ids=" ".join,
)
def test_files_in_the_way_of_folders(words, tmp_path):
    (tmp_path / "file").write_text("")
    refused(*words, str(tmp_path / "file" / "inner"), said="no folder")


PROGRAMS = {
    "mlp takes arguments": ("mlp", ""),
    "has no function 'progrm'": ("progrm", ""),
    "did you mean 'program'": ("progrm", ""),
    "must return (fn, args) or (fn, args, keywords), not a int": ("other", "def other(): return 3"),
    "not (int, list)": ("other", "def other(): return 3, []"),
    "args is a list or a tuple, also of one argument": ("other", "def other(): return mlp, np.ones(3)"),
    "keywords say mesh, which the command line says": ("other", "def other(): return *program(), {'mesh': 'd=8'}"),
    "other fails: KeyError: 'lost'": ("other", "def other(): return {}['lost']"),
    "prog.py fails: ZeroDivisionError": ("other", "1 / 0"),
    "TraceError: bad fails: RuntimeError: ours\n  at          prog.py:": (
        "other",
        "def bad(x): raise RuntimeError('ours')\ndef other(): return bad, [np.ones(3)]",
    ),
}


@pytest.mark.parametrize("words", PROGRAMS)
def test_programs_that_are_none(words, tmp_path):
    name, more = PROGRAMS[words]
    (tmp_path / "prog.py").write_text(PROGRAM + more)
    for verb in (["plan"], ["compare"], ["explain"]):
        rest = ["x"] if verb == ["explain"] else []
        refused(*verb, f"{tmp_path / 'prog.py'}:{name}", *rest, "--mesh", "d=8", said=words)


def test_what_is_not_installed_is_named(tmp_path):
    (tmp_path / "prog.py").write_text("import torch\n")
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from shardwright.cli import main; main()"
    for words in (["plan", f"{tmp_path}/prog.py:program", "--mesh", "d=2"], ["plan", "hf:gpt2", "--mesh", "d=2"]):
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path, *words], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == USAGE, done.stderr
        assert done.stderr.splitlines() == [
            "this needs torch, which is not installed: pip install 'shardwright[torch]'"
        ]


def test_faults_of_ours_and_debug(where, monkeypatch):
    monkeypatch.setattr("shardwright.solve.planner.Planner.priced", lambda self, *args: args[99])
    monkeypatch.setattr("shardwright.cli.exits._of_a_library", lambda file: False)
    monkeypatch.setattr("shardwright.cli.exits.PACKAGE", Path(__file__).parent)  # the fault is this test's
    refused("plan", where, "--mesh", "d=8", code=INTERNAL, said=("a fault of shardwright", "IndexError", "--debug"))
    done = run("--debug", "plan", where, "--mesh", "d=8")
    assert "Traceback" in done.stderr


def test_ctrl_c(tmp_path):
    (tmp_path / "prog.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    # A shell that starts this in the background has interrupts ignored, and children inherit that.
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "from shardwright.cli import main; main()"
    command = [sys.executable, "-c", start, "plan", f"{tmp_path}/prog.py:f", "--mesh", "d=2"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert done.stdout is not None
    assert done.stdout.readline() == "here\n"
    time.sleep(0.1)
    done.send_signal(signal.SIGINT)
    _, said = done.communicate(timeout=30)
    assert (done.returncode, said) == (INTERRUPTED, "interrupted\n")


# -- run ------------------------------------------------------------------------------------------------------

STEP = """
import torch
def step():
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.LayerNorm(12), torch.nn.Linear(12, 6)){how}
    return model, [torch.empty(12, 6, device="{device}")], dict(
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2), loss=lambda y: y.square().mean())
"""


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_steps_run_beside_the_program(tmp_path, device):
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(STEP.format(how=f".to('{device}')", device=device).replace("empty", "zeros"))
    for mesh in ("d=3", "a=2, b=2"):
        done = run("run", f"{tmp_path}/job.py:step", "--mesh", mesh, "--recipe", "zero3", "--json")
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        assert answer["collectives"] > 0
        assert answer["peak_bytes"] > 0
        assert {item["name"] for item in answer["outputs"]} >= {"new 0.weight", "output 0"}


def test_a_plan_that_is_wrong_is_found(small, monkeypatch):
    """Proof switched off, a result is changed on its way: run says no."""
    from shardwright.run.runner import Runner

    whole = Runner.whole
    monkeypatch.setattr(Runner, "whole", lambda self, i, held: whole(self, i, held) * 1.5)
    done = refused("run", small, "--mesh", "d=2", code=NO)
    assert "NOT EQUAL" in done.stdout
    assert "TOO MUCH" in done.stdout


def test_what_this_machine_cannot_hold(tmp_path):
    (tmp_path / "big.py").write_text(PROGRAM.replace("4096, 512", "2**26, 2**14").replace("512, 512", "2**14, 2**14"))
    said = ("--mesh", "d=8", "--memory", "100TiB")
    refused("run", f"{tmp_path}/big.py:program", *said, said="this machine has")
