"""Random programs against themselves on one device; and planted faults, which must be found and shrunk."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shardwright.api import Plan, proven
from shardwright.cli import main
from shardwright.fuzz import (
    Call,
    Case,
    Fill,
    FuzzProgram,
    Name,
    Ref,
    Request,
    draw_cases,
    draw_program,
    fuzz_programs,
    judge,
    judging,
    script_of,
    shrink,
    torch_words,
)  # fmt: skip
from shardwright.fuzz.judging import compare, split
from shardwright.fuzz.numpy_words import WORDS
from shardwright.fuzz.script import LINES
from shardwright.rules import registry
from shardwright.run import virtual
from shardwright.solve.planner import Planner

SAMPLE, LONG = 20, 1000
BY_SEED = 7_000_000
"""Programs of the tests are not those of a session that begins at 0."""


@pytest.mark.parametrize("batch", [0, 2])  # in the other ones the planner looks for memory for long
def test_numpy_programs(batch: int) -> None:
    check("numpy", range(BY_SEED + batch * SAMPLE, BY_SEED + (batch + 1) * SAMPLE))


def test_torch_programs() -> None:
    pytest.importorskip("torch")
    check("torch", range(BY_SEED, BY_SEED + 6))


@pytest.mark.long
@pytest.mark.parametrize("frontend", ["numpy", "torch"])
def test_more_programs(frontend: str) -> None:
    if frontend == "torch":
        pytest.importorskip("torch")
    check(frontend, range(2 * BY_SEED, 2 * BY_SEED + (LONG if frontend == "numpy" else LONG // 4)))


def check(frontend: str, seeds: range) -> None:
    tally = fuzz_programs(seeds, frontend)
    assert not tally.failures, "\n\n".join(f"seed {failure.seed}:\n{failure.script}" for failure in tally.failures)
    assert tally.programs == len(seeds)
    assert tally.verdicts["ok"] > 0.8 * 2 * len(seeds), "most are to be run, not refused"
    assert tally.sensitive < 0.02 * 2 * len(seeds)


# -- what is drawn --------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same() -> None:
    for seed in range(20):
        assert list(draw_cases(seed)) == list(draw_cases(seed))


def test_every_word_is_said_and_every_way_taken() -> None:
    """A word that never fits would be tested in appearance only."""
    spoken, ways, meshes, told = set(), set(), set(), set()
    for seed in range(400):
        for case in draw_cases(seed):
            spoken |= {call.function for call in case.program.calls}
            ways.add(case.request.way)
            meshes |= {int(axis.partition("=")[2]) for axis in case.request.mesh.split(",")}
            told |= {what for what, said in (
                ("memory", case.request.memory), ("uneven", case.request.uneven), ("reload", case.request.reload),
                ("inner", case.program.constraints), ("pending", "//" in str(case.request)),
                ("parts", ":(1)" in str(case.request)), ("later parts", re.search(r":\([2-6]\)", str(case.request))),
                ("out", case.request.out_specs), ("printed", case.request.printed),
                *((kind, True) for kind, *_ in case.request.asked),
                ("empty", any(0 in fill.shape for fill in case.program.inputs)),
            ) if said}  # fmt: skip
    assert ways == {"by hand", "automatic", "simple", "planned"}
    assert meshes == {1, 2, 3, 4, 6}
    assert told == {"memory", "uneven", "reload", "inner", "pending", "parts", "later parts", "out", "printed",
                    "forbid", "cap_gather", "empty"}  # fmt: skip
    functions = {"np.matmul", "np.einsum", "np.reshape", "[]", "[]=", "np.concatenate", "np.pad", "np.roll", "np.take",
                 "np.take_along_axis", "np.cumsum", "np.sort", "np.argmax", "swn.softmax", "swn.layer_norm",
                 "swn.attention", "np.nanmean", "np.select", "np.vstack", "np.inner",
                 ".astype", "np.where", "np.tril", "np.repeat", "np.sum", "np.var"}  # fmt: skip
    assert functions <= spoken
    assert len(spoken) > 100
    assert len(WORDS) > 25


@pytest.mark.long
def test_every_word_is_said_in_torch() -> None:
    pytest.importorskip("torch")
    spoken = {call.function for seed in range(600) for call in draw_program(seed, "torch").calls}
    functions = {"torch.scatter", "torch.scatter_add", "torch.scatter_reduce", "torch.index_put", "torch.index_fill",
                 "torch.gather", "F.embedding", "torch.cumsum", "torch.cumprod", "torch.cummax", "torch.sort",
                 "torch.topk", "torch.median", "F.conv1d", "F.conv2d", "F.batch_norm", "F.group_norm", "F.layer_norm",
                 "F.scaled_dot_product_attention", "[]=", ".add_", ".zero_", ".to", "F.pad",
                 "torch.unbind", ".index_put_", "torch.index_copy", "torch.masked_scatter", "torch.select_scatter",
                 "F.conv3d", "F.conv_transpose1d", "F.instance_norm", "torch.kron"}  # fmt: skip
    assert functions <= spoken
    assert any(f"torch.{name}" in spoken for name in torch_words.OF_TRUTH)
    assert any(f"torch.{name}" in spoken for name in torch_words.OF_INTEGERS)
    assert len(spoken) > 150


def test_plans_that_take_long_are_on_small_meshes_mostly() -> None:
    requests = [case.request for seed in range(800) for case in draw_cases(seed)]
    long = [request for request in requests if request.uneven or request.memory is not None]
    large = [request for request in long if request.mesh.count("=") == 3]
    assert 0 < len(large) < 0.15 * len(long)


def test_a_program_prints_as_what_it_computes() -> None:
    """The script of a case, run as a reader would, prints the numbers that the program gives."""
    for seed in range(12):
        case = next(iter(draw_cases(seed)))
        shown = printed(script_of(Case(replace(case.program, constraints=()), Request("d=2"))))
        wanted = printed_values(case.program)
        assert shown.startswith(wanted + "\n" + wanted), f"{seed}\n{shown}\n{wanted}"


def printed(script: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), np.errstate(all="ignore"):
        exec(compile(script, "<script>", "exec"), {"__name__": "script"})
    return out.getvalue()


def printed_values(program: FuzzProgram) -> str:
    with np.errstate(all="ignore"):
        return "\n".join(map(str, program(*program.arguments())))


# -- planted faults -------------------------------------------------------------------------------------


ALL_REDUCE, ALL_GATHER = virtual._Compiler.all_reduce, virtual._Compiler.all_gather


def is_float(shards: Any) -> bool:
    """The proof runs the same engine on numbers of a field, and would see a fault there first."""
    return "float" in str(getattr(shards[0], "dtype", ""))


def dropped_sum(self: Any, instr: Any) -> Any:
    """An all_reduce that keeps each device's part."""
    read = instr.as_node().inputs[0]
    return lambda env: [env[read]]


def dropped_sum_of_floats(self: Any, instr: Any) -> Any:
    read, right = instr.as_node().inputs[0], ALL_REDUCE(self, instr)
    return lambda env: [env[read]] if is_float(env[read]) else right(env)


def stale_gather(self: Any, instr: Any) -> Any:
    """An all_gather that brings zeros."""
    read, right = instr.as_node().inputs[0], ALL_GATHER(self, instr)
    return lambda env: [[x * 0 for x in made] if is_float(env[read]) else made for made in right(env)]


PROVEN_OR_RUN = ("VerifyError", "numbers")
"""The proof sees it first, unless it has shown the same lemma before."""
MATMUL = FuzzProgram(
    (Fill((6, 4), "float64", 1), Fill((4, 6), "float64", 2), Fill((6, 6), "float64", 3)),
    (
        Call("np.tanh", (Ref(2),)),
        Call("np.matmul", (Ref(0), Ref(1))),
        Call("np.add", (Ref(4), Ref(3))),
        Call("np.reshape", (Ref(5), (2, 18))),
        Call("np.sum", (Ref(6),), (("axis", 0),)),
        Call(".astype", (Ref(7), Name("np.float32"))),
    ),
    (8, 6),
)


@pytest.mark.parametrize(
    ("kinds", "instruction", "fault"),
    [
        (PROVEN_OR_RUN, "all_reduce", dropped_sum),
        (("numbers",), "all_reduce", dropped_sum_of_floats),
        (("numbers",), "all_gather", stale_gather),
    ],
)
def test_a_broken_collective_is_found_and_shrunk(
    kinds: tuple[str, ...], instruction: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual._Compiler, instruction, fault)
    tally = fuzz_programs(range(200), most=1)
    (failure,) = tally.failures[:1]
    assert failure.verdict.kind in kinds
    assert len(failure.smallest.program.calls) <= 3
    assert len(failure.script.splitlines()) <= LINES
    assert judge(failure.smallest).kind in kinds
    monkeypatch.undo()
    assert judge(failure.smallest).kind == "ok", "what was found is the planted fault, nothing else"


@pytest.mark.parametrize(
    ("op", "was", "wrong", "seeds"),
    [("sort", ": whole", ": ", range(238, 260)), ("roll", ": permuted", ": ", range(27, 60)),
     ("reduce_max", ": max", ": sum", range(40, 60))],
)  # fmt: skip
def test_a_wrong_rule_is_found_and_shrunk(
    op: str, was: str, wrong: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project's own rules are not tried before they are used: it takes a program, and its proof or its numbers."""
    record = registry.lookup(op)

    def planted(call: Any) -> Any:
        assert callable(record.rule)
        parts = str(record.rule(call)).replace(was, wrong).split(" ; ")
        return " ; ".join(part for part in parts if not part.strip().endswith(":"))

    monkeypatch.setitem(registry._records, op, replace(record, rule=planted))
    registry._changed()
    try:
        (failure, *_) = fuzz_programs(seeds, most=1).failures
        assert failure.verdict.kind in PROVEN_OR_RUN
        assert len(failure.smallest.program.calls) <= 2
        assert len(failure.script.splitlines()) <= LINES
    finally:
        monkeypatch.undo()
        registry._changed()
    assert judge(failure.smallest).kind == "ok"


def test_what_is_shrunk_keeps_what_makes_it_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual._Compiler, "all_reduce", dropped_sum_of_floats)
    case = Case(MATMUL, Request("x=3, y=2", in_specs=("[x, y]", "[y, _]", None), out_specs=("[_]", None)))
    verdict = judge(case)
    assert verdict.kind == "numbers"
    small = shrink(case, verdict)
    assert [call.function for call in small.program.calls] in (["np.matmul"], ["np.sum"])
    assert len(script_of(small, verdict).splitlines()) <= 10


def test_predictions_are_held_against_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(MATMUL, Request("x=2", in_specs=("[_, x]", None, None)))
    made = split(case)
    assert judge(case).kind == "ok"
    meter = virtual._Meter
    keep = meter.collective
    monkeypatch.setattr(meter, "collective", lambda *a: keep(*a)._replace(bytes=8))
    assert judge(case).kind == "collectives"
    monkeypatch.undo()
    monkeypatch.setattr(type(made), "memory", property(lambda self: self.data.memory - 8))
    assert judge(case).kind == "peak"
    monkeypatch.undo()
    monkeypatch.setattr(type(made), "lower_bound", property(lambda self: self.data.cost.objective + 1))
    assert judge(case).kind == "bound"


def test_what_was_asked_is_read_off_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where planning forgets what is forbidden, or capped, the plan is no longer what was asked for."""
    monkeypatch.setattr(Planner, "broken", lambda self, plan: [])
    pinned = Request("x=2, y=1", "planned", in_specs=("[_, x]", None, None))
    assert judge(Case(MATMUL, pinned)).kind == "ok"
    assert judge(Case(MATMUL, replace(pinned, asked=(("forbid", "*", "y"),)))).kind == "ok"
    monkeypatch.setattr(judging, "_request", lambda *_: [])
    assert judge(Case(MATMUL, replace(pinned, asked=(("forbid", "*0", "x"),)))).kind == "asked"
    gathered = replace(pinned, out_specs=("[_]", None))
    assert judge(Case(MATMUL, replace(gathered, asked=(("cap_gather", 1 << 20, ""),)))).kind == "ok"
    plan = split(Case(MATMUL, gathered))
    gathers = [plan.program.values[i.results[0]] for i in plan.program.instrs if i.op == "all_gather"]
    assert gathers
    most = max(local.padded_bytes for local in gathers)
    assert judge(Case(MATMUL, replace(gathered, asked=(("cap_gather", most - 1, ""),)))).kind == "asked"


def test_a_plan_from_its_file_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(MATMUL, Request("x=2", in_specs=("[_, x]", None, None), reload=True))
    assert judge(case).kind == "ok"

    def other(text: str, program: FuzzProgram, *args: Any, hardware: str) -> Any:
        return split(replace(case, request=replace(case.request, in_specs=())))

    monkeypatch.setattr(judging, "load_plan", other)
    assert judge(case).kind == "file"


def test_a_fault_in_printing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(MATMUL, Request("x=2", printed=True))
    assert judge(case).kind == "ok"

    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("no rows")

    monkeypatch.setattr(Plan, "text", broken)
    assert judge(case).kind == "raw IndexError"


def test_a_fault_in_planning_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("lost")

    monkeypatch.setattr(proven, "prove", broken)
    verdict = judge(Case(MATMUL, Request("x=2")))
    assert verdict.kind == "raw KeyError"
    assert "lost" in verdict.told


# -- what counts as equal -------------------------------------------------------------------------------


def test_roundings_are_allowed_and_no_more() -> None:
    expected = MATMUL(*MATMUL.arguments())
    assert compare(MATMUL, expected, expected) == (False, "")
    single = float(np.finfo(np.float32).eps)
    near = [expected[0] * np.float32(1 + single), expected[1]]
    assert compare(MATMUL, near, expected)[1] == ""
    for wrong in (
        [expected[0] + np.float32(0.01), expected[1]],
        [expected[0].astype(np.float64), expected[1]],
        [expected[0], expected[1][:1]],
        [expected[0], np.where(expected[1] > 1, np.nan, expected[1])],
    ):
        assert compare(MATMUL, wrong, expected)[1]


def test_double_precision_programs_are_held_to_double_precision() -> None:
    program = replace(MATMUL, calls=MATMUL.calls[:-1], returned=(7,))
    expected = program(*program.arguments())
    assert compare(program, [expected[0] + 1e-10], expected)[1]


def test_programs_keep_their_meaning_when_what_nobody_reads_is_left_out() -> None:
    for seed in range(30):
        program = draw_program(seed)
        short = program.only(program.read())
        with np.errstate(all="ignore"):
            for a, b in zip(program(*program.arguments()), short(*short.arguments()), strict=True):
                np.testing.assert_array_equal(a, b)


# -- the command line -----------------------------------------------------------------------------------


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner().invoke
    done = run(main, ["fuzz", "--programs", "3", "--seed", "7"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("seeds 7 to 9: 3 programs, 6 splits: ")
    monkeypatch.setattr(virtual._Compiler, "all_reduce", dropped_sum)
    done = run(main, ["fuzz", "--programs", "200", "--most", "1"])
    assert done.exit_code == 1
    assert any(f"# {kind}" in done.output for kind in PROVEN_OR_RUN)
    assert "import numpy as np" in done.output


def test_the_command_prints_json_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, out = CliRunner().invoke, tmp_path / "found"
    monkeypatch.setattr(virtual._Compiler, "all_reduce", dropped_sum)
    asked = ["fuzz", "--programs", "200", "--most", "1", "-o", str(out)]
    done = run(main, [*asked, "--json"])
    assert done.exit_code == 1
    assert out.read_text() == done.output
    found = json.loads(done.output)
    assert found["verdicts"]["ok"] > 0
    failure, *_ = found["failures"]
    assert "import numpy as np" in failure["script"]
    done = run(main, asked)
    assert failure["script"] in out.read_text()
    assert run(main, ["fuzz", "-o", str(tmp_path)]).exit_code == 2
