"""Constraints of a plan: kept in the lowered Program, or refused with the smallest set that contradicts."""

from __future__ import annotations

import re

import numpy as np
import pytest

import shardwright as sw
from shardwright.api.planning import Learning, planner_of
from shardwright.errors import MeshError, PlanInfeasible, SpecError
from shardwright.frontends.base import capture_source
from shardwright.plans.requests import requests_of, splits
from shardwright.proof import check_identity, check_structure
from shardwright.solve.recipes import RECIPES

MESH = "dp=2, tp=4"


def mlp(x, w1, w2):
    return np.maximum(x @ w1, 0) @ w2


def block(x, wq, wk, wv, wo):
    q, k, v = x @ wq, x @ wk, x @ wv
    scores = np.exp(q @ k.T)
    mixed = (scores / scores.sum(1, keepdims=True)) @ v
    return x + np.tanh(mixed @ wo)


def diamond(x, w):
    h = x @ w
    return (h + 1) @ (h * 2).T


def shapes(*sizes):
    return [sw.ShapeDtype(size, np.float32) for size in sizes]


MLP = shapes((4096, 4096), (4096, 16384), (16384, 4096))
PROGRAMS = {
    "mlp": (mlp, shapes((64, 64), (64, 128), (128, 64))),
    "block": (block, shapes((64, 64), *[(64, 64)] * 4)),
    "diamond": (diamond, shapes((64, 32), (32, 64))),
}


def split_over(made, name, axis):
    """Copies of a value in the Program that are split over an axis."""
    graph, on = made.complete.graph, made.program.mesh.axis(axis)
    return [
        local.name
        for local in made.program.values
        if local.origin is not None and graph.values[local.origin].name == name and splits(local.spec, on)
    ]


def gathered(made):
    """Bytes that each all_gather of the Program leaves on a device."""
    program = made.program
    return [program.values[i.results[0]].padded_bytes for i in program.instrs if i.op == "all_gather"]


def planner(fn, args, mesh, constraints):
    source = capture_source(fn, tuple(args), {})
    return planner_of(source, sw.DeviceMesh(mesh), requests_of(constraints), "h100", Learning())


def home(made, name):
    graph = made.complete.graph
    value = graph.by_name[name]
    if value in graph.inputs:
        return str(made.complete.inputs[graph.inputs.index(value)])
    n, r = graph.values[value].producer
    return str(made.complete.decisions[n].homes[r])


# -- pins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "constraints",
    [
        {"w1": "[_, tp]", "5": "[dp, tp]"},
        [sw.pin("w1", sw.P(None, "tp")), {"%5": "[dp, tp]"}],
        (sw.pin("w1", "[_, tp]"), [sw.pin("5", "[dp, tp]")]),
    ],
)
def test_inputs_and_intermediate_values_are_pinned(constraints):
    fn, args = PROGRAMS["mlp"]
    made = sw.plan(fn, *args, mesh=MESH, constraints=constraints)
    assert (home(made, "w1"), home(made, "5")) == ("[_, tp]", "[dp, tp]")
    check_structure(made.program)
    check_identity(made.complete.graph, made.program, rounds=1)
    arrays = [np.random.default_rng(i).standard_normal(a.shape).astype(np.float32) for i, a in enumerate(args)]
    np.testing.assert_allclose(made(*arrays), fn(*arrays), rtol=2e-5, atol=1e-4)
    assert home(sw.plan(fn, *args, mesh=MESH), "w1") != "[_, tp]"


def test_a_pin_that_no_way_of_the_node_leaves_is_made_by_a_reshard():
    fn, args = PROGRAMS["mlp"]
    made = sw.plan(fn, *args, mesh=MESH, constraints={"3": "[tp+dp, _]"})
    assert home(made, "3") == "[tp+dp, _]"
    check_identity(made.complete.graph, made.program, rounds=1)


def test_patterns_are_of_inputs_first_and_the_first_of_a_mapping_counts():
    made = sw.plan(mlp, *PROGRAMS["mlp"][1], mesh=MESH, constraints={"w1": "[dp, _]", "*": "[tp, _]"})
    assert [home(made, name) for name in ("x", "w1", "w2")] == ["[tp, _]", "[dp, _]", "[tp, _]"]
    with pytest.raises(PlanInfeasible, match="these 2 together"):  # not of one mapping: both hold
        sw.plan(
            mlp, *PROGRAMS["mlp"][1], mesh=MESH, constraints=[sw.pin("w1", "[dp, _]"), sw.pin("*", "[tp, _]")]
        )  # fmt: skip


def test_what_is_left_open_may_be_cut_further():
    fn, args = PROGRAMS["mlp"]
    large = shapes((1 << 16, 512), (512, 512), (512, 512))
    assert home(sw.plan(fn, *large, mesh=MESH, constraints={"x": "[dp+?, _]"}), "x") == "[dp+tp, _]"
    assert home(sw.plan(fn, *large, mesh=MESH, constraints={"x": "[dp, _]"}), "x") == "[dp, _]"
    assert home(sw.plan(fn, *args, mesh=MESH, constraints={"x": "[tp+?, dp]"}), "x") == "[tp, dp]"


@pytest.mark.parametrize(
    ("constraints", "error", "words"),
    [
        ({"w11": "[_, tp]"}, SpecError, "did you mean 'w1'"),
        (sw.pin("nothing*", "[_, tp]"), SpecError, "nothing is called so"),
        (sw.forbid("w11", "tp"), SpecError, "did you mean 'w1'"),
        (sw.forbid("w1", "pp"), MeshError, "pp"),
        ({"w1": "[_, _, tp]"}, SpecError, "w1"),
        ("w1", SpecError, "cannot be a str"),
        ([3], SpecError, "cannot be a int"),
    ],
)
def test_wrong_constraints_are_refused(constraints, error, words):
    with pytest.raises(error, match=re.escape(words)):
        sw.plan(mlp, *PROGRAMS["mlp"][1], mesh=MESH, constraints=constraints)


def test_amounts_are_bytes_or_text():
    assert sw.cap_gather("1.5 MiB").bytes == 3 * 2**19
    assert str(sw.cap_gather("64 MiB")) == 'cap_gather("64 MiB")'
    for wrong in ("many", -1, 1.5, True):
        with pytest.raises(SpecError):
            sw.cap_gather(wrong)
    with pytest.raises(SpecError, match="no amount of memory"):
        sw.plan(mlp, *PROGRAMS["mlp"][1], mesh=MESH, memory="much")
    for wrong in ((3, "dp"), ("x", 3), ("", "dp")):
        with pytest.raises(SpecError):
            sw.forbid(*wrong)


# -- forbidden axes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_no_copy_of_a_value_is_split_over_a_forbidden_axis(program, axis):
    """Every value that the plan splits over an axis, forbidden in turn."""
    fn, args = PROGRAMS[program]
    free = sw.plan(fn, *args, mesh=MESH, hardware="virtual")
    names = [value.name for value in free.complete.graph.values if split_over(free, value.name, axis)]
    assert names
    for name in names:
        made = sw.plan(fn, *args, mesh=MESH, hardware="virtual", constraints=sw.forbid(name, axis))
        assert split_over(made, name, axis) == []
        assert made.cost.objective >= free.cost.objective
        check_structure(made.program)
    check_identity(made.complete.graph, made.program, rounds=1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_axis_is_forbidden_for_everything(program):
    fn, args = PROGRAMS[program]
    made = sw.plan(fn, *args, mesh=MESH, hardware="virtual", constraints=[sw.forbid("*", "tp")])
    assert all(not split_over(made, value.name, "tp") for value in made.complete.graph.values)
    assert any(split_over(made, value.name, "dp") for value in made.complete.graph.values)


def test_copies_count_not_only_where_a_value_lies():
    """A whole input is cut for the op that reads it; that copy is a split, too."""
    large = shapes((1 << 16, 512), (512, 512), (512, 512))
    free = sw.plan(mlp, *large, mesh=MESH, constraints={"x": "[_, _]"})
    assert home(free, "x") == "[_, _]"
    assert split_over(free, "x", "tp")
    made = sw.plan(mlp, *large, mesh=MESH, constraints=[{"x": "[_, _]"}, sw.forbid("x", "tp")])
    assert split_over(made, "x", "tp") == []
    asked = planner(mlp, large, MESH, [{"x": "[_, _]"}, sw.forbid("x", "tp")])
    assert [str(request) for request in asked.broken(free.data)] == ['forbid("x", "tp")']


def test_pins_elsewhere_do_not_bring_a_forbidden_axis_in():
    """Tensors of one type: what one of them may be, another may not, even on the way."""
    fn, args = PROGRAMS["block"]
    pins = [sw.pin("wq", "[dp, tp]"), sw.pin("wk", "[tp, dp]"), sw.pin("x", "[_, dp]")]
    made = sw.plan(fn, *args, mesh=MESH, hardware="virtual", constraints=[*pins, sw.forbid("x", "tp")])
    assert split_over(made, "x", "tp") == []
    assert home(made, "wq") == "[dp, tp]"
    check_identity(made.complete.graph, made.program, rounds=1)


def test_state_is_not_split_where_its_next_value_must_not_be():
    torch = pytest.importorskip("torch")
    model, x = torch.nn.Linear(16, 16).double(), torch.randn(8, 16, dtype=torch.float64)
    step = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss": lambda out: out.square().mean()}
    free = sw.plan(model, x, mesh="d=4", hardware="virtual", recipe="zero3", **step)
    graph = free.complete.graph
    state = {graph.values[graph.inputs[i]].name: graph.values[graph.outputs[o]].name for i, o in graph.updates}
    after = state["weight"]
    assert after != "weight"
    assert split_over(free, after, "d")
    made = sw.plan(model, x, mesh="d=4", hardware="virtual", constraints=sw.forbid(after, "d"), **step)
    assert split_over(made, after, "d") == []
    with pytest.raises(PlanInfeasible, match="recipe 'zero3' does not keep"):
        sw.plan(
            model, x, mesh="d=4", hardware="virtual", recipe="zero3", constraints=sw.forbid(after, "d"), **step
        )  # fmt: skip


# -- capped gathers -------------------------------------------------------------------------------------------


def gathering(x, w):
    return np.tanh(x @ w) @ w.T


GATHERING = shapes((8192, 1024), (1024, 1024))
ZERO3 = {"x": "[d, _]", "w": "[d, _]"}


def test_no_gather_leaves_more_than_the_cap():
    free = sw.plan(gathering, *GATHERING, mesh="d=8", constraints=ZERO3)
    assert max(gathered(free)) == 2**22  # the whole weight
    for cap in (2**22 - 1, "2 MiB", 0):
        made = sw.plan(gathering, *GATHERING, mesh="d=8", constraints=[ZERO3, sw.cap_gather(cap)])
        assert max(gathered(made), default=0) <= sw.cap_gather(cap).bytes
        assert made.cost.objective > free.cost.objective
        check_structure(made.program)
    same = sw.plan(gathering, *GATHERING, mesh="d=8", constraints=[ZERO3, sw.cap_gather("4 MiB")])
    assert same.cost == free.cost


# -- recipes beside the planner -----------------------------------------------------------------------------------


def test_a_recipe_that_breaks_a_constraint_is_not_taken():
    fn, args = PROGRAMS["mlp"]
    bound = planner(fn, args, "d=8", [sw.forbid("x", "d"), sw.cap_gather(0)])
    free = planner(fn, args, "d=8", None)
    made = {name: bound.by_recipe(name) for name in RECIPES}
    assert 'forbid("x", "d")' in map(str, bound.broken(made["dp"]))
    assert free.broken(free.by_recipe("dp")) == []
    assert bound.broken(made["replicated"]) == []
    assert bound.broken(bound.best()) == []
    with pytest.raises(PlanInfeasible, match="recipe 'dp' does not keep"):
        sw.plan(fn, *args, mesh="d=8", recipe="dp", constraints=sw.forbid("x", "d"))


# -- contradictions -----------------------------------------------------------------------------------------------


def refused(*args, **about):
    with pytest.raises(PlanInfeasible) as caught:
        sw.plan(*args, **about)
    return caught.value


def users(error):
    return [text for label, text in error.rows if label == "user"]


def objective(line):
    return float(re.search(r"([0-9.]+) ms a step", line)[1])


def test_two_that_contradict_among_five_that_do_not():
    harmless = [
        {"w1": "[tp, _]"}, sw.forbid("x", "tp"), sw.pin("x", "[dp, _]"), sw.cap_gather("4 GiB"), sw.forbid("w1", "dp"),
    ]  # fmt: skip
    assert not refused_words(harmless)
    pair = [sw.pin("w2", "[_, dp]"), sw.forbid("w2", "dp")]
    for constraints in ([*harmless, *pair], [pair[1], *harmless, pair[0]], [*harmless[:3], *pair, *harmless[3:]]):
        error = refused(mlp, *MLP, mesh=MESH, constraints=constraints, memory="64 GiB")
        assert sorted(users(error)) == ['forbid("w2", "dp")', 'pin("w2", "[_, dp]")']
    lines = error.help.splitlines()
    assert len(lines) == 2
    assert objective(lines[0]) <= objective(lines[1])
    for dropped in pair:
        kept = [item for item in constraints if item is not dropped]
        (line,) = [line for line in lines if str(dropped) in line]
        made = sw.plan(mlp, *MLP, mesh=MESH, constraints=kept, memory="64 GiB")
        assert objective(line) == pytest.approx(made.cost.objective / 1e9, abs=1e-3)


def refused_words(constraints):
    try:
        sw.plan(mlp, *MLP, mesh=MESH, constraints=constraints, memory="64 GiB")
    except PlanInfeasible as error:
        return users(error)
    return []


def test_the_smallest_of_several_contradictions_is_named():
    """Three that contradict only together come first; two of the others already do."""
    three = {"in_specs": ("[d, _]",), "out_specs": "[_, _]"}
    constraints = [sw.cap_gather(1000), sw.pin("1", "[_, d]"), sw.forbid("1", "d")]
    error = refused(lambda x: np.tanh(x), *shapes((512, 64)), mesh="d=4", constraints=constraints, **three)
    assert sorted(users(error)) == ['forbid("1", "d")', 'pin("1", "[_, d]")']
    assert "relaxing one of them is not enough" in error.help


def test_a_gather_that_cannot_be_avoided():
    args = shapes((512, 64))
    about = {"mesh": "d=4", "in_specs": ("[d, _]",), "out_specs": "[_, _]"}

    def fn(x):
        return np.tanh(x)

    size = 512 * 64 * 4
    error = refused(fn, *args, constraints=sw.cap_gather(size - 1), **about)
    assert len(users(error)) == 3
    assert f"cap_gather({size - 1})" in users(error)
    assert len(error.help.splitlines()) == 3
    made = sw.plan(fn, *args, constraints=sw.cap_gather(size), **about)
    assert gathered(made) == [size]


def test_in_specs_are_words_too():
    error = refused(
        mlp, *MLP, mesh=MESH, in_specs=("[dp, _]", None, None), constraints=[{"x": "[tp, _]", "w1": "[_, tp]"}]
    )
    assert sorted(users(error)) == ['"x": "[tp, _]"', "in_specs: x = [dp, _]"]
    error = refused(mlp, *MLP, mesh=MESH, out_specs="[dp, _]", constraints=[sw.forbid("6", "dp")])
    assert sorted(users(error)) == ['forbid("6", "dp")', "out_specs: output 0 = [dp, _]"]


def test_constraints_inside_the_program_are_words_too():
    def fn(x, w):
        return sw.with_sharding_constraint(x @ w, "[dp, _]") * 2

    args = shapes((64, 32), (32, 64))
    made = sw.plan(fn, *args, mesh=MESH)
    (constrained,) = [n.results[0] for n in made.complete.graph.nodes if n.op == "core.constraint"]
    name = made.complete.graph.values[constrained].name
    error = refused(fn, *args, mesh=MESH, constraints=sw.forbid(name, "dp"))
    assert len(users(error)) == 2
    assert "test_constraints.py" in str(error)


def test_too_little_memory_names_the_least_that_is_enough():
    error = refused(mlp, *MLP, mesh=MESH, constraints=[sw.forbid("x", "tp"), {"w1": "[_, tp]"}], memory="1 MiB")
    assert users(error) == ['memory="1 MiB"']
    need = int(re.search(r"memory=(\d+)", error.help)[1])
    about = {"mesh": MESH, "constraints": [sw.forbid("x", "tp"), {"w1": "[_, tp]"}]}
    made = sw.plan(mlp, *MLP, memory=need, **about)
    assert made.memory <= need
    refused(mlp, *MLP, memory=need * 9 // 10, **about)


def test_memory_against_a_pin():
    """A weight of 4 GiB that must be whole and 3 GiB of memory do not go together; without either there is a plan."""
    wide = shapes((256, 16384), (16384, 65536), (65536, 16384))
    harmless = [sw.forbid("x", "tp"), sw.cap_gather("64 GiB")]
    about = {"mesh": MESH, "memory": "3 GiB"}
    assert sw.plan(mlp, *wide, constraints=harmless, **about).memory <= 3 * 2**30
    whole = {"w1": "[_, _]"}
    error = refused(mlp, *wide, constraints=[harmless[0], whole, harmless[1]], **about)
    assert sorted(users(error)) == ['"w1": "[_, _]"', 'memory="3 GiB"']
    lines = error.help.splitlines()
    assert len(lines) == 2
    assert sum(line.startswith("without ") for line in lines) == 1
    (need,) = [int(found[1]) for line in lines if (found := re.search(r"memory=(\d+)", line))]
    assert need > 4 * 2**30
    made = sw.plan(mlp, *wide, constraints=[harmless[0], whole, harmless[1]], mesh=MESH, memory=need)
    assert made.memory <= need


def test_the_text_of_an_error():
    error = refused(
        lambda x: x + 1, *shapes((8, 8)), mesh="d=4", constraints=[sw.pin("x", "[d, _]"), sw.forbid("x", "d")]
    )  # fmt: skip
    text = re.sub(r"[0-9.]+ (ms|us)", "T", str(error))
    assert text == (
        "no plan was found that keeps these 2 together\n"
        '  user  pin("x", "[d, _]")\n'
        '  user  forbid("x", "d")\n'
        '  help  without forbid("x", "d") there is a plan: T a step\n'
        '        without pin("x", "[d, _]") there is a plan: T a step'
    )
