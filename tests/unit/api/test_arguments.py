"""What users hand to `plan` and its kin: wrong things are said to be wrong, odd but right ones are planned."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import GraphError, MeshError, ShardwrightError, SpecError, TraceError
from shardwright.proof import check_structure


def fn(x, w):
    return x @ w


ARGS = [sw.ShapeDtype(shape, np.float32) for shape in ((64, 32), (32, 64))]


def wrong(words, error=SpecError, mesh="d=4", **about):
    with pytest.raises(error, match=re.escape(words)) as caught:
        sw.plan(fn, *ARGS, mesh=mesh, **about)
    return str(caught.value)


@pytest.mark.parametrize("mesh", ["", " ", {}])
def test_a_mesh_has_an_axis(mesh):
    text = wrong("the mesh has no axis", MeshError, mesh)
    assert 'write mesh="dp=2, tp=4"' in text
    with pytest.raises(MeshError, match="the mesh has no axis"):
        sw.shard_map(fn, mesh, auto_sharding=True).program(np.ones((8, 8)), np.ones((8, 8)))


@pytest.mark.parametrize("limit", [-1, 0, math.nan, math.inf, "10", True, [3]])
def test_a_time_limit_is_seconds(limit):
    assert "write time_limit=30" in wrong(f"time_limit takes seconds, more than 0, not {limit!r}", time_limit=limit)
    with pytest.raises(SpecError, match="time_limit takes seconds"):
        sw.shard_map(fn, "d=4", auto_sharding=True, time_limit=limit)


def test_a_time_limit_is_any_number_of_seconds():
    for limit in (None, 1, 0.5, np.float64(2.0)):
        assert sw.plan(fn, *ARGS, mesh="d=4", time_limit=limit).cost.objective > 0


@pytest.mark.parametrize("name", [None, 3, "", "ipl"])
def test_solvers_and_recipes_are_named(name):
    wrong(f"no solver is called {name!r}", solver=name)
    if name is not None:
        wrong(f"no recipe is called {name!r}", recipe=name)


@pytest.mark.parametrize("what", ["optimizer", "loss"])
def test_training_is_for_pytorch(what):
    """What would say nothing is refused."""
    text = wrong(f"{what}= is for programs of PyTorch", **{what: lambda out: out})
    assert "leave it out" in text
    with pytest.raises(SpecError, match=f"{what}= is for programs of PyTorch"):
        sw.load_plan(sw.plan(fn, *ARGS, mesh="d=4").to_json(), fn, *ARGS, **{what: 3})


def test_what_is_called_and_how():
    with pytest.raises(SpecError, match="takes a function or a module, not a int"):
        sw.plan(3, *ARGS, mesh="d=4")
    with pytest.raises(TraceError, match="fn cannot be called so: missing a required argument: 'w'"):
        sw.plan(fn, ARGS[0], mesh="d=4")
    with pytest.raises(TraceError, match="did you mean 'memory'") as caught:
        sw.plan(fn, *ARGS, mesh="d=4", memroy="1 GiB")
    assert isinstance(caught.value, TypeError)
    assert "fn(x, w)" in str(caught.value)
    with pytest.raises(TraceError, match="cannot be called so"):
        sw.load_plan(sw.plan(fn, *ARGS, mesh="d=4").to_json(), fn)
    assert sw.plan(np.add, ARGS[0], ARGS[0], mesh="d=4").specs  # builtins do not say how they are called


def test_in_specs_of_a_wrong_kind():
    wrong("in_specs cannot be a int", in_specs=3)


def test_wrong_things_given_to_a_plan():
    made = sw.plan(fn, *ARGS, mesh="d=4")
    for wrong_thing, words in (
        (lambda: made.explain(3), "a value is named by text, not by 3"),
        (lambda: made.diff(3), "cannot be compared with a int"),
        (lambda: sw.load_plan(3, fn, *ARGS), "takes a plan's JSON as text or a file, not a int"),
        (lambda: sw.load_plan("no-plan.json", fn, *ARGS), "no plan can be read from 'no-plan.json'"),
        (lambda: sw.compare(fn, *ARGS, mesh="d=4", plans=[3]), "takes what sw.plan returned, not a int"),
        (lambda: sw.compare(fn, *ARGS, mesh="d=4", recipe="dp"), "compare shows all recipes"),
    ):
        with pytest.raises(ShardwrightError, match=re.escape(words)):
            wrong_thing()
    with pytest.raises(GraphError, match="not JSON") as caught:
        sw.load_plan("{", fn, *ARGS)
    assert "read_text" not in str(caught.value)
    assert "given 0: " in sw.compare(fn, *ARGS, mesh="d=4", plans=made)
    assert "mine: " in sw.compare(fn, *ARGS, mesh="d=4", plans={"mine": made})


# -- odd, but right ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", ["d=1", "a=1, b=4", "a=4, b=1", "a=1, b=1"])
def test_axes_of_one_device(mesh):
    x, w = np.random.default_rng(0).standard_normal((2, 8, 8))
    made = sw.plan(fn, x, w, mesh=mesh, hardware="virtual")
    check_structure(made.program)
    np.testing.assert_allclose(made(x, w), x @ w)
    assert "(chosen)" in made.explain("x")
    assert sw.compare(fn, x, w, mesh=mesh)


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (lambda x: x, [(8, 8)]),
        (lambda x: (x, x), [(8, 8)]),
        (lambda x, y: (x, x + y), [(8, 8), (8, 8)]),
        (lambda x: None, [(8, 8)]),
        (lambda x: (), [(8, 8)]),
        (lambda: np.ones(4), []),
        (lambda x: x + 1, [()]),
        (fn, [(0, 8), (8, 8)]),
        (fn, [(8, 0), (0, 8)]),
        (lambda x: x.sum(0), [(0, 8)]),
    ],
)
def test_programs_with_little_in_them(program, args):
    arrays = [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(args)]
    made = sw.plan(program, *arrays, mesh="d=4", hardware="virtual")
    check_structure(made.program)
    assert made.gap == 0.0
    for got, want in zip(_listed(made(*arrays)), _listed(program(*arrays)), strict=True):
        np.testing.assert_allclose(got, want)
    for name in made.specs:
        assert "(chosen)" in made.explain(name)
    assert sw.load_plan(made.to_json(), program, *arrays).specs == made.specs
    assert "plan" in sw.compare(program, *arrays, mesh="d=4")
    assert isinstance(made.trace(), str)


def _listed(results):
    return [] if results is None else list(results) if isinstance(results, tuple) else [results]
