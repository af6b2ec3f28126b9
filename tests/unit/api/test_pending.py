"""Pending shardings at every door: the value of a tensor is the combination of the parts that devices hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright import P
from shardwright.errors import SpecError
from shardwright.frontends.numpy.arrays import NumpyArrays
from shardwright.run import assemble, scatter
from shardwright.spec.collective import REDUCTIONS
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.pending import pending_axes
from shardwright.spec.resharding.steps import permute_sources
from shardwright.spec.sharding import ShardingSpec
from strategies import meshes, shapes, specs

torch = pytest.importorskip("torch")
swt = pytest.importorskip("shardwright.torch")

KINDS = ["x", *(f"{kind}(x)" for kind in REDUCTIONS if kind != "sum")]
TYPES = ("float64", "float32", "int64", "int8", "bool", "complex128")
X = np.array([[3.0, -2.0, 0.5], [0.0, 7.0, -1.5]])


def has_meaning(spec: ShardingSpec, dtype: str) -> bool:
    kinds = set(pending_axes(spec))
    if len(kinds) > 1 and not kinds <= {"sum", "avg"}:
        return False
    if dtype == "bool":
        return not kinds & {"sum", "avg"}
    if dtype.startswith("int"):
        return "avg" not in kinds
    return not (dtype.startswith("complex") and kinds & {"max", "min"})


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    drawn = np.random.default_rng(seed).integers(-40, 40, shape)
    return drawn % 2 == 1 if dtype == "bool" else (drawn / 4 if dtype[0] in "fc" else drawn).astype(dtype)


# -- scatter and assemble -------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=150)
def test_scattered_parts_combine_to_the_array(data: st.DataObject) -> None:
    mesh = data.draw(meshes(max_size=4, devices=False))
    rank = data.draw(st.integers(0, 3))
    spec = data.draw(specs(mesh, rank, open=False, priorities=False, replicated=False))
    dtype = data.draw(st.sampled_from(TYPES))
    whole = numbers(data.draw(shapes(rank, 0, 7)), dtype)
    if not has_meaning(spec, dtype):
        with pytest.raises(SpecError, match="cannot be pending"):
            scatter(whole, spec)
        with pytest.raises(SpecError, match="cannot be pending"):
            assemble([whole] * mesh.size, spec, whole.shape)
        return
    parts = scatter(whole, spec)
    assert [part.shape for part in parts] == [spec.local_shape(whole.shape, p) for p in mesh]
    back = assemble(parts, spec, whole.shape)
    assert back.dtype == whole.dtype
    np.testing.assert_allclose(back, whole, rtol=1e-6)
    if "avg" not in pending_axes(spec):
        np.testing.assert_array_equal(back, whole)


@given(st.data())
@settings(max_examples=60)
def test_assembling_combines_parts_of_every_size(data: st.DataObject) -> None:
    """Parts that a program left, not only those that scattering makes: one kind at a time, along any axes."""
    mesh = data.draw(meshes(max_size=3, devices=False))
    spec = data.draw(specs(mesh, 2, open=False, priorities=False, replicated=False))
    kinds = pending_axes(spec)
    assume(len(kinds) == 1)
    ((kind, axes),) = kinds.items()
    shape = data.draw(shapes(2, 0, 5))
    # Devices that differ along other axes hold equal copies.
    at = [tuple(mesh.index_along(p, axis) for axis in axes) for p in mesh]
    wholes = {place: numbers(shape, "float64", seed) for seed, place in enumerate(dict.fromkeys(at))}
    parts = [wholes[at[p]][spec.local_slices(shape, p)] for p in mesh]
    expected = NumpyArrays().combine(kind, list(wholes.values()))
    np.testing.assert_allclose(assemble(parts, spec, shape), expected, rtol=1e-12)


def test_half_precision_tensors_scatter_and_assemble() -> None:
    from shardwright.run.torch import assemble as assemble_tensors
    from shardwright.run.torch import scatter as scatter_tensors

    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.bool):
        for kind in REDUCTIONS:
            spec = ShardingSpec.parse(f"[x, _] // {kind}(y)", DeviceMesh("x=3, y=2"))
            whole = torch.arange(10).reshape(5, 2).to(dtype)
            if not has_meaning(spec, str(dtype).removeprefix("torch.").replace("int32", "int64")):
                with pytest.raises(SpecError):
                    scatter_tensors(whole, spec)
                continue
            back = assemble_tensors(scatter_tensors(whole, spec), spec, whole.shape)
            assert back.dtype == dtype
            assert torch.equal(back, whole)


def test_a_whole_number_average_is_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError) as caught:
        sw.shard_map(lambda x: x + 1, "x=2", in_specs=(P(None, partial="avg(x)"),))(np.arange(4))
    assert "average of whole numbers" in str(caught.value)
    assert "in_specs" in str(caught.value)
    with pytest.raises(SpecError, match="sum and as a product"):
        sw.plan(lambda x: x + 1, X, mesh="x=2, y=2", out_specs=P(None, partial="x, prod(y)"), hardware="virtual")
    for pair, told in (("x, min(y)", "a sum and as a minimum"), ("max(x), min(y)", "a maximum and as a minimum")):
        with pytest.raises(SpecError, match=told):
            sw.shard_map(lambda x: x + 1, "x=2, y=2", in_specs=(P(None, partial=pair),))(X)
    with pytest.raises(SpecError, match="truth values"):
        sw.ones((3,), mesh="x=2", spec="[_] // x", dtype=bool)
    with pytest.raises(SpecError, match="truth values"):
        sw.asarray(torch.ones(3, dtype=torch.bool), mesh="x=2", spec="[_] // x")
    with pytest.raises(SpecError, match="8 bits"):
        sw.asarray(torch.ones(3).to(torch.float8_e4m3fn), mesh="x=2", spec="[_] // max(x)")


def test_what_is_pending_over_one_device_does_not_matter() -> None:
    """The arrangement of shards changes by a permute, which drops such axes."""
    x = np.arange(2.0)
    f = sw.shard_map(lambda x: np.flip(x, 0), "x=1, y=6, z=2", in_specs=("[z+y] // min(x)",), out_specs="[z+y]")
    np.testing.assert_array_equal(f(x), x[::-1])
    moved = sw.reshard("[z+y] // min(x)", "[z+y:(2)3+y:(1)2]", (2,), mesh="x=1, y=6, z=2")
    assert all(len(set(permute_sources(s.before, s.after))) == 12 for s in moved if s.kind == "collective_permute")


# -- programs ---------------------------------------------------------------------------------------------


def mixed(x: Any, y: Any) -> Any:
    doubled = x * 2.0 + y
    return doubled @ y.T, np.maximum(doubled, 0.5).sum(0), -x, np.exp(x / 8.0)


@given(st.data())
@settings(max_examples=25)
def test_programs_between_any_shardings_give_what_the_function_gives(data: st.DataObject) -> None:
    mesh = data.draw(st.sampled_from([DeviceMesh("x=2"), DeviceMesh("x=2, y=2"), DeviceMesh("x=4"), DeviceMesh("x=3")]))
    one = lambda rank: data.draw(  # noqa: E731
        specs(mesh, rank, open=False, priorities=False, replicated=False).filter(lambda s: has_meaning(s, "float64"))
    )
    x, y = numbers((4, 5), "float64", 1), numbers((4, 5), "float64", 2)
    ins, outs = (one(2), one(2)), (one(2), one(1), one(2), one(2))
    for got, want in zip(sw.shard_map(mixed, mesh, in_specs=ins, out_specs=outs)(x, y), mixed(x, y)):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_every_door(kind: str, framework: str) -> None:
    x = X if framework == "numpy" else torch.tensor(X)
    spec = P(None, None, partial=kind)

    def f(x: Any) -> Any:
        return x * 2.0

    def inside(x: Any) -> Any:
        return sw.with_sharding_constraint(x * 2.0, spec) + 1.0

    def last(x: Any) -> Any:
        return sw.with_sharding_constraint(x * 2.0, spec)

    same = np.testing.assert_allclose
    same(sw.shard_map(f, "x=2", in_specs=(spec,))(x), X * 2)
    same(sw.shard_map(f, "x=2", out_specs=spec)(x), X * 2)
    same(sw.shard_map(f, "x=2", in_specs=(P("x"),), out_specs=spec)(x), X * 2)
    same(sw.shard_map(inside, "x=2")(x), X * 2 + 1)
    same(sw.shard_map(last, "x=2", out_specs=spec)(x), X * 2)
    for about in (
        {"in_specs": (spec,)}, {"out_specs": spec}, {"constraints": {"x": spec}}, {"constraints": sw.pin("x", spec)},
    ):  # fmt: skip
        plan = sw.plan(f, x, mesh="x=2", hardware="virtual", **about)
        same(plan(x), X * 2)
        assert kind in (str(plan.specs["x"]) + str(plan.program.values[plan.program.outputs[0]].spec))
    same(sw.plan(inside, x, mesh="x=2", hardware="virtual")(x), X * 2 + 1)

    array = sw.asarray(x, mesh="x=2", spec=spec)
    assert str(array.spec) == f"[_, _] // {kind}"
    same(array.numpy(), X)
    same((array + 0).numpy(), X)
    same((array * array).numpy(), X * X)
    same(array.redistribute(P("x")).numpy(), X)
    for source in (P(), P("x"), P(None, "x")):
        turned = sw.asarray(x, mesh="x=2", spec=source).redistribute(spec)
        assert str(turned.spec) == f"[_, _] // {kind}"
        same(turned.numpy(), X)
        same((turned + 1).numpy(), X + 1)
        same(sw.with_sharding_constraint(turned, P("x")).numpy(), X)
    engine = None if framework == "numpy" else "virtual"
    same(sw.ones((2, 3), mesh="x=2", spec=spec, engine=engine).numpy(), np.ones((2, 3)))
    same(sw.zeros((2, 3), mesh="x=2", spec=spec, engine=engine).numpy(), np.zeros((2, 3)))
    drawn = sw.randn(2, 3, mesh="x=2", spec=spec, engine=engine)
    same(drawn.numpy(), sw.randn(2, 3, mesh="x=2").numpy())


def test_numpy_of_parts_that_differ_is_their_combination() -> None:
    spec = ShardingSpec.parse("[_] // x", DeviceMesh("x=2"))
    array = sw.ShardedArray([np.array([1.0, 2.0]), np.array([10.0, 20.0])], spec, (2,))
    np.testing.assert_array_equal(array.numpy(), [11.0, 22.0])
    np.testing.assert_array_equal((array * 3).numpy(), [33.0, 66.0])
    np.testing.assert_array_equal(np.asarray(array), [11.0, 22.0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_keeps_pending_state_and_reads_pending_batches(kind: str) -> None:
    def trained(sharded: bool) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.tensor(X)
        if sharded:
            specs = {"weight": P(None, None, partial=kind), "input": P(None, None, partial=kind)}
            step = swt.shard_step(
                model, x, mesh="x=2", optimizer=optimizer, loss=lambda out: out.square().mean(), specs=specs
            )
            losses = [float(step(x)) for _ in range(3)]
            step.sync()
        else:
            losses = []
            for _ in range(3):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
        return losses, model.weight.detach().clone()

    found, expected = trained(True), trained(False)
    np.testing.assert_allclose(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("solver", ["auto", "simple"])
@pytest.mark.parametrize("kind", ["max", "min", "prod"])
def test_what_is_pending_may_be_cut_before_it_is_reduced(kind: str, solver: str) -> None:
    """Half of it is sent then; a bound that does not know of it is above this plan."""
    x, w = torch.ones(2, 1, 5), torch.ones(1, 1, 3)

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv_transpose1d(x, w, stride=2)

    given = (f"[_, _, _] // {kind}(x)", None)
    mapped = sw.shard_map(program, "x=3, y=2", in_specs=given, auto_sharding=True, solver=solver)
    plan = mapped.plan(x, w)
    assert plan.lower_bound <= plan.cost.objective
    assert [instr.op for instr in plan.program.instrs][:2] == ["core.slice", "all_reduce"]
    torch.testing.assert_close(mapped(x, w), program(x, w))
