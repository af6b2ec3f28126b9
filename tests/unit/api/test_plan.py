"""Plans: found, priced from their Programs, proven, run, written and read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from shardwright.api.explain import MOST, differences
from shardwright.cost import RESIDENT, hardware_of, memory_profile, program_cost
from shardwright.errors import GraphError, PlanInfeasible, ShardwrightError, TraceError
from shardwright.plans import VERSION, duration, read_plan
from shardwright.proof import check_identity, check_structure
from shardwright.solve.recipes import RECIPES


def mlp(x, w1, w2):
    return np.maximum(x @ w1, 0) @ w2


def shapes(batch, width, inner, dtype=np.float32):
    return [sw.ShapeDtype(shape, dtype) for shape in ((batch, width), (width, inner), (inner, width))]


CASES = {
    "large batch": (shapes(65536, 512, 512), "d=8"),
    "wide layers": (shapes(16, 16384, 65536), "d=8"),
    "two axes": (shapes(4096, 4096, 16384), "dp=2, tp=4"),
    "heads": (shapes(48, 96, 48 * 4), "a=4, b=8"),
    "batch 6": (shapes(6, 50257, 12), "a=2, b=3"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_reported_is_what_the_program_says(case):
    args, mesh = CASES[case]
    made = sw.plan(mlp, *args, mesh=mesh)
    graph = made.complete.graph
    priced = program_cost(made.program, made.hardware, graph)
    assert (made.cost.compute, made.cost.communication) == (priced.compute, priced.communication)
    assert made.cost.objective == priced.objective
    assert made.memory == memory_profile(made.program, RESIDENT).peak
    assert made.lower_bound <= made.cost.objective
    assert 0 <= made.gap < 1
    check_structure(made.program)
    if case in ("heads", "batch 6"):  # the numbers of the others fill gigabytes
        check_identity(graph, made.program, rounds=1)


def test_large_batches_are_split_by_batch_and_wide_layers_by_width():
    batch = sw.plan(mlp, *CASES["large batch"][0], mesh="d=8")
    assert batch.specs["x"] == "[d, _]"
    assert batch.collectives == []
    wide = sw.plan(mlp, *CASES["wide layers"][0], mesh="d=8")
    assert (wide.specs["w1"], wide.specs["w2"]) == ("[_, d]", "[d, _]")
    assert [c.kind for c in wide.collectives] == ["reduce_scatter"]  # nobody asked for a whole result
    whole = sw.plan(mlp, *CASES["wide layers"][0], mesh="d=8", out_specs="[_, _]")
    assert [c.kind for c in whole.collectives] == ["all_reduce"]
    assert whole.cost.objective > wide.cost.objective


@pytest.mark.parametrize("case", ["two axes", "batch 6"])
def test_never_worse_than_a_recipe(case):
    args, mesh = CASES[case]
    made = sw.plan(mlp, *args, mesh=mesh)
    for name in RECIPES:
        assert made.cost.objective <= sw.plan(mlp, *args, mesh=mesh, recipe=name).cost.objective


def test_a_plan_runs_on_what_it_was_made_for():
    """Other names, numbers or shapes of arguments are refused, not guessed at."""
    x, w = np.random.default_rng(0).standard_normal((2, 8, 8))
    made = sw.plan(lambda x, w: x @ w - w.sum(), x, w, mesh="d=8", hardware="virtual")
    np.testing.assert_allclose(made(x, w), x @ w - w.sum())
    for args, kwargs in (((x,), {}), ((x, w, x), {}), ((x[:4], w), {}), ((), {"w": w, "x": x})):
        with pytest.raises(TraceError):
            made(*args, **kwargs)


def test_factors_smaller_than_the_axis_go_on_in_the_next():
    """A summed dim of 4 on an axis of 8: two devices share each of its parts."""
    args = [sw.ShapeDtype(shape, np.float32) for shape in ((4096, 1024), (1024, 4), (4, 1024))]
    made = sw.plan(lambda x, a, b: x @ a @ b, *args, mesh="d=8")
    check_identity(made.complete.graph, made.program, rounds=1)
    made = sw.plan(lambda x, w: x @ w, *[sw.ShapeDtype(shape, np.float32) for shape in ((24, 4), (4, 4))], mesh="d=16")
    check_identity(made.complete.graph, made.program, rounds=1)


def test_a_plan_runs():
    args = [np.random.default_rng(i).standard_normal(a.shape) for i, a in enumerate(shapes(16, 32, 64))]
    made = sw.plan(mlp, *args, mesh="dp=2, tp=4", constraints={"w1": "[_, tp]", "w2": "[tp, _]"})
    np.testing.assert_allclose(made(*args), mlp(*args))
    assert made.specs["w1"] == "[_, tp]"


def test_memory_is_a_limit():
    args = shapes(64, 4096, 16384)
    free = sw.plan(mlp, *args, mesh="d=8", recipe="replicated")
    tight = sw.plan(mlp, *args, mesh="d=8", memory=free.memory // 4)
    assert tight.memory <= free.memory // 4
    with pytest.raises(PlanInfeasible):
        sw.plan(mlp, *args, mesh="d=8", memory=1000)
    with pytest.raises(PlanInfeasible, match="the plan needs"):
        sw.plan(mlp, *args, mesh="d=8", memory=free.memory // 4, recipe="replicated")


# -- as data --------------------------------------------------------------------------------------------


def test_json_there_and_back():
    args, mesh = CASES["two axes"]
    made = sw.plan(mlp, *args, mesh=mesh)
    loaded = sw.load_plan(made.to_json(), mlp, *args)
    assert loaded.data == made.data
    assert loaded.to_json() == made.to_json()
    assert str(loaded.program) == str(made.program)
    assert made.diff(loaded) == []
    other = sw.plan(mlp, *args, mesh=mesh, recipe="dp")
    assert any("objective" in line for line in made.diff(other))


def test_json_is_read_strictly():
    args, mesh = CASES["two axes"]
    text = sw.plan(mlp, *args, mesh=mesh).to_json()
    record = json.loads(text)
    for wrong, words in (
        (text.replace(f'"version": {VERSION}', '"version": 99'), "not a plan of this version"),
        (json.dumps({**record, "extra": 1}), "unknown field 'extra'"),
        (json.dumps({**record, "memory": float("nan")}), "NaN is not JSON"),
        (json.dumps({**record, "pieces": [{**record["pieces"][0], "outputs": [999]}]}), "refers to text 999"),
        (text[:-1] + ', "memory": 1}', "stands twice"),
        ("[]", "not an object"),
    ):
        with pytest.raises(GraphError, match=words):
            read_plan(wrong)
    with pytest.raises(GraphError, match="another program"):
        sw.load_plan(text, lambda x, w1, w2: x @ w1 @ w2, *args)


ASKED = [
    {"w1": "[_, tp]", "w*": sw.P("tp", None)},
    [sw.pin("5", "[dp, tp]"), sw.forbid("x", "tp")],
    sw.cap_gather("1 GiB"),
    sw.cap_gather(2**31),
]


def test_a_plan_says_what_it_was_asked_for():
    """Everything as it was written, in the file and when it is read again."""
    args, mesh = CASES["two axes"]
    about = {"in_specs": ("[dp, _]", None, None), "out_specs": "[dp, _]", "constraints": ASKED, "memory": "2 GiB"}
    made = sw.plan(mlp, *args, mesh=mesh, **about)
    assert json.loads(made.to_json())["asked"] == [
        {"kind": "in_specs", "says": [["x", "[dp, _]"]]},
        {"kind": "out_specs", "says": [["output 0", "[dp, _]"]]},
        {"kind": "mapping", "says": [["w1", "[_, tp]"], ["w*", "[tp, _]"]]},
        {"kind": "pin", "says": ["5", "[dp, tp]"]},
        {"kind": "forbid", "says": ["x", "tp"]},
        {"kind": "cap_gather", "says": "1 GiB"},
        {"kind": "cap_gather", "says": 2**31},
        {"kind": "memory", "says": "2 GiB"},
    ]
    assert [str(request) for request in made.data.asked.written] == [
        "in_specs: x = [dp, _]", "out_specs: output 0 = [dp, _]", '"w1": "[_, tp]"', '"w*": "[tp, _]"',
        'pin("5", "[dp, tp]")', 'forbid("x", "tp")', 'cap_gather("1 GiB")',
        "cap_gather(2147483648)", 'memory="2 GiB"',
    ]  # fmt: skip
    loaded = sw.load_plan(made.to_json(), mlp, *args)
    assert loaded.data.asked == made.data.asked
    assert loaded.data == made.data
    assert loaded.to_json() == made.to_json()


def test_a_recipe_is_asked_for_and_nothing_is_nothing():
    args, mesh = CASES["two axes"]
    free, forced = sw.plan(mlp, *args, mesh=mesh), sw.plan(mlp, *args, mesh=mesh, recipe="dp", memory=2**40)
    assert free.data.asked.written == ()
    assert [str(r) for r in forced.data.asked.written] == [f"memory={2**40} (1024.00 GiB)", 'recipe="dp"']
    lines = free.diff(forced)
    assert f"asked for only there: memory={2**40} (1024.00 GiB)" in lines
    assert 'asked for only here: recipe="dp"' in forced.diff(free)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([{"kind": "pin", "says": ["x"]}], "pin of a plan says ('x',)"),
        ([{"kind": "pin", "says": ["x", 3]}], "pin of a plan says"),
        ([{"kind": "pin", "says": "x"}], "pin of a plan says 'x'"),
        ([{"kind": "mapping", "says": [["x", "[d]"], "y"]}], "mapping of a plan says"),
        ([{"kind": "mapping", "says": {"x": "[d]"}}], "field 'says' of what was asked for is a dict"),
        ([{"kind": "memory", "says": -1}], "memory of a plan says -1"),
        ([{"kind": "memory", "says": True}], "memory of a plan says True"),
        ([{"kind": "memory", "says": 1.5}], "is a float"),
        ([{"kind": "memory", "says": "much"}], "no amount of memory"),
        ([{"kind": "memory", "says": float("nan")}], "NaN is not JSON"),
        ([{"kind": "recipe", "says": 3}], "recipe of a plan says 3"),
        ([{"kind": "wish", "says": "x"}], "a plan cannot be asked for 'wish'"),
        ([{"kind": "recipe"}], "no field 'says'"),
        ([{"kind": "recipe", "says": "dp", "more": 1}], "unknown field 'more'"),
        (["recipe"], "is not an object"),
        ({}, "field 'asked' of plan is a dict"),
    ],
)
def test_what_was_asked_for_is_read_strictly(asked, words):
    args, mesh = CASES["batch 6"]
    record = json.loads(sw.plan(mlp, *args, mesh=mesh).to_json())
    with pytest.raises(ShardwrightError, match=re.escape(words)):
        sw.load_plan(json.dumps({**record, "asked": asked}), mlp, *args)


def test_a_file_of_an_older_version_is_refused():
    args, mesh = CASES["batch 6"]
    record = json.loads(sw.plan(mlp, *args, mesh=mesh).to_json())
    del record["asked"]
    with pytest.raises(GraphError, match="no field 'asked'"):
        read_plan(json.dumps(record))
    with pytest.raises(GraphError, match=r"not a plan of this version: 'shardwright\.plan' 2") as caught:
        read_plan(json.dumps({**record, "version": 2}))
    assert "plan again" in caught.value.help


def test_nothing_looks_like_no_time_that_is_some():
    for time in (1, 999, 10**5, 10**6, 10**8, 123_456_789_000, 5 * 10**12):
        for beside in (None, 1, 10**6, 10**9, 10**13):
            for sign in ("", "+"):
                for some in (time, -time):
                    assert re.search("[1-9]", duration(some, sign, beside))
        assert float(duration(0, beside=time).split()[0]) == 0.0
    assert [duration(10**k) for k in (0, 3, 5, 6, 8, 9, 12)] == [
        "0.001 ns", "1.000 ns", "0.100 us", "1.000 us", "0.100 ms", "1.000 ms", "1.000 s",
    ]  # fmt: skip


def test_small_programs_take_time_too():
    """On a machine of which a nanosecond is much: tables, traces and plans say more than zeros."""
    args = [sw.ShapeDtype(shape, np.float32) for shape in ((8, 8), (8, 8), (8, 8))]
    made = sw.plan(mlp, *args, mesh="d=2")
    assert 0 < made.cost.objective < 10**8
    told = [str(made), made.trace(), made.explain("x"), sw.compare(mlp, *args, mesh="d=2")]
    for text in told:
        figures = re.findall(r"([0-9.]+) (?:s|ms|us|ns)\b", text)
        assert figures
        assert any(float(figure) > 0 for figure in figures)
    assert re.search(r"[1-9][0-9.]* [un]s  matmul", made.trace())
    assert " us a step" in repr(made)
    assert "KiB" in str(made) or "bytes" in str(made)
    rows = sw.compare(mlp, *args, mesh="d=2").splitlines()[1:]
    assert all(re.search(r"[1-9]", re.findall(r"([0-9.]+) [mun]?s", row)[0]) for row in rows)


def test_explain_trace_and_compare():
    args, mesh = CASES["large batch"]
    made = sw.plan(mlp, *args, mesh=mesh)
    text = made.explain("x")
    assert "[d, _] (chosen)" in text
    assert "+0.000 ms" in text
    with pytest.raises(GraphError, match="did you mean 'w1'"):
        made.explain("w11")
    assert "test_plan.py" in made.trace()
    assert "matmul" in made.trace()
    lines = sw.compare(mlp, *args, mesh=mesh).splitlines()
    assert lines[0].split()[:2] == ["plan", "step"]
    assert {"dp", "zero3", "replicated"} <= {line.split()[0] for line in lines[1:]}


def test_explain_of_an_intermediate_value():
    args, mesh = CASES["two axes"]
    made = sw.plan(mlp, *args, mesh=mesh)
    text = made.explain("%5")
    lines = text.splitlines()
    assert lines[0].startswith("5: f32[4096, 16384], made by node 2 maximum at ")
    rows = [line for line in lines if line.startswith("[")]
    assert 3 <= len(rows) <= MOST
    assert sum("(chosen)" in row for row in rows) == 1
    costs = [float(re.search(r"  ([0-9.]+) ms", row)[1]) for row in rows]
    assert costs == sorted(costs)
    assert "(chosen)" in rows[0]
    told = [line for line in lines if re.match(r"  [+-][0-9.]+ [mu]s  ", line)]
    assert told
    assert "test_plan.py" in told[0]


def test_what_forces_a_choice_is_said():
    args, mesh = CASES["large batch"]
    made = sw.plan(mlp, *args, mesh=mesh, constraints=[sw.pin("x", "[_, d]"), sw.forbid("w1", "d")])
    text = made.explain("x")
    assert 'kept there by pin("x", "[_, d]")' in text
    assert re.search(r"\[d, _\] +[0-9.]+ ms +-[0-9.]+ ms", text)  # what it would save to lie otherwise
    assert 'never split otherwise: forbid("w1", "d")' in made.explain("w1")
    assert "kept there by" not in sw.plan(mlp, *args, mesh=mesh).explain("x")


@pytest.mark.parametrize("name", ["x", "w1", "3", "5"])
def test_the_differences_between_two_plans_add_up(name):
    """What is listed is all there is: collectives and local work together are the objective."""
    args, mesh = CASES["two axes"]
    made = sw.plan(mlp, *args, mesh=mesh)
    planner = made.planner
    here = made.data
    graph = made.complete.graph
    chosen = made.complete.homes[graph.by_name[name]]
    rank = graph.type(graph.by_name[name]).rank
    other_spec = next(
        spec
        for spec in (sw.ShardingSpec.parse(text, planner.mesh) for text in ("[_, tp]", "[tp, _]"))
        if not spec.same_layout(chosen) and spec.rank == rank
    )
    other = planner.assigned({graph.by_name[name]: other_spec}, False, "auto", 30.0)
    there = planner.priced(other.complete, "other")
    lines = differences(here, there, planner, most=10**6)
    total = sum(float(line.split()[0]) / {"ms": 1, "us": 1e3}[line.split()[1]] for line in lines)
    assert lines
    assert total == pytest.approx((there.cost.objective - here.cost.objective) / 1e9, abs=1e-3 * len(lines))


# -- solvers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["auto", "elimination", "ilp", "search", "messages", "simple"])
def test_solvers_by_name(solver):
    args, mesh = CASES["heads"]
    made = sw.plan(mlp, *args, mesh=mesh, solver=solver)
    best = sw.plan(mlp, *args, mesh=mesh)
    assert made.cost.objective >= best.cost.objective
    assert made.lower_bound <= best.cost.objective
    assert made.lower_bound > 0
    check_structure(made.program)
    if solver == "simple":
        assert made.solver == "simple"


def test_no_such_solver():
    with pytest.raises(ShardwrightError, match="did you mean 'simple'"):
        sw.plan(mlp, *CASES["heads"][0], mesh="a=4, b=8", solver="simpel")
    with pytest.raises(ShardwrightError, match="did you mean 'elimination'"):
        sw.shard_map(mlp, "a=4", auto_sharding=True, solver="eliminate").program(*[np.ones((8, 8))] * 3)


def test_the_simple_solver_keeps_constraints_or_says_that_it_does_not():
    args, mesh = CASES["large batch"]
    pinned = sw.plan(mlp, *args, mesh=mesh, solver="simple", constraints={"x": "[_, d]"})
    assert pinned.specs["x"] == "[_, d]"
    with pytest.raises(PlanInfeasible, match="forbid"):
        sw.plan(mlp, *args, mesh=mesh, solver="simple", constraints=sw.forbid("x", "d"))


def test_hardware_from_a_file(tmp_path: Path):
    from shardwright.cost import write_hardware

    write_hardware(hardware_of("a100"), tmp_path / "mine.toml")
    made = sw.plan(mlp, *CASES["two axes"][0], mesh="dp=2, tp=4", hardware=str(tmp_path / "mine.toml"))
    assert made.cost.objective > sw.plan(mlp, *CASES["two axes"][0], mesh="dp=2, tp=4").cost.objective
    with pytest.raises(ShardwrightError):
        sw.plan(mlp, *CASES["two axes"][0], mesh="dp=2, tp=4", hardware="h1000")


# -- training steps of PyTorch --------------------------------------------------------------------------


def test_a_training_step_is_planned_and_runs():
    torch = pytest.importorskip("torch")
    import copy

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)).double()
    eager, x = copy.deepcopy(model), torch.randn(8, 16, dtype=torch.float64)
    ours, theirs = (torch.optim.AdamW(m.parameters(), eps=1e-3) for m in (model, eager))
    made = sw.plan(
        model, x, mesh="dp=2, tp=2", optimizer=ours, loss=lambda out: out.square().mean(), hardware="virtual"
    )
    check_structure(made.program)
    check_identity(made.complete.graph, made.program)
    for name in RECIPES:
        other = sw.plan(
            model, x, mesh="dp=2, tp=2", optimizer=ours, loss=lambda out: out.square().mean(), hardware="virtual",
            recipe=name,
        )  # fmt: skip
        assert made.cost.objective <= other.cost.objective
    for _ in range(2):
        loss = eager(x).square().mean()
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(made(x), loss.detach())
    for left, right in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(left, right)
    again = sw.load_plan(made.to_json(), model, x, optimizer=ours, loss=lambda out: out.square().mean())
    assert (again.collectives, again.specs) == (made.collectives, made.specs)
