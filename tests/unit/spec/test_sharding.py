"""DimSpec, P and ShardingSpec."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from shardwright.errors import MeshError, SpecError
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import (
    CLOSED,
    OPEN,
    DimSpec,
    P,
    ShardingSpec,
    compute_global_shape,
    needs_reshard,
)
from shardwright.spec.tensors import tensor_text

MESH = DeviceMesh("dp=2, tp=4")
ONES = DeviceMesh("one=1, x=2")


def spec(text: str, mesh: DeviceMesh = MESH) -> ShardingSpec:
    return ShardingSpec.parse(text, mesh)


# -- writing one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dims",
    [
        ["dp", None],
        [("dp",), ()],
        [["dp"], "_"],
        [MESH.axis("dp"), CLOSED],
        [DimSpec(MESH.axes[:1]), DimSpec()],
        P("dp", None),
        ("dp", None),
    ],
)
def test_every_form_of_dims_says_the_same(dims: Any) -> None:
    assert ShardingSpec(MESH, dims) == spec("[dp, _]")
    assert hash(ShardingSpec(MESH, dims)) == hash(spec("[dp, _]"))


@pytest.mark.parametrize(
    "partial",
    ["max(dp), tp", {"dp": "max", "tp": "sum"}, [("tp", "sum"), ("dp", "max")], ["tp", (MESH.axis("dp"), "max")]],
)
def test_every_form_of_partial_says_the_same(partial: Any) -> None:
    assert ShardingSpec(MESH, [None], partial) == spec("[_] // max(dp), tp")


def test_a_single_axis_needs_no_list() -> None:
    tp = MESH.axis("tp")
    assert ShardingSpec(MESH, [None], "tp") == ShardingSpec(MESH, [None], tp) == spec("[_] // tp")
    assert ShardingSpec(MESH, [None], replicated="tp") == spec("[_] ~ tp")


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "avg"])
def test_partial_kinds(kind: str) -> None:
    assert ShardingSpec(MESH, [None], {"tp": kind}).partial == ((MESH.axis("tp"), kind),)


def test_two_axes_on_a_dim_keep_their_order() -> None:
    assert spec("[dp+tp]") != spec("[tp+dp]")
    assert spec("[dp+tp]").dims[0].parts == (2, 4)


def test_parts_of_one_axis_are_joined() -> None:
    assert ShardingSpec(MESH, [("tp:(1)2", "tp:(2)2")]) == spec("[tp]")


def test_pending_parts_of_one_axis_are_joined() -> None:
    assert spec("[_] // tp:(2)2, tp:(1)2") == spec("[_] // tp")
    assert spec("[_] // tp:(1)2, max(tp:(2)2)") != spec("[_] // tp")


def test_mesh_given_as_text() -> None:
    assert ShardingSpec("dp=2, tp=4", ["dp"]).mesh == MESH


def test_replicate() -> None:
    assert ShardingSpec.replicate(MESH, 2) == spec("[_, _]")
    assert ShardingSpec.replicate(MESH, 2, open=True) == spec("[?, ?]")


def test_open_dim() -> None:
    dp, tp = MESH.axes
    assert ShardingSpec(MESH, ["dp+?", ("tp", "?"), "?"]).dims == (DimSpec((dp,), True), DimSpec((tp,), True), OPEN)


def test_priority() -> None:
    assert ShardingSpec(MESH, ["dp!1", "?!0"]).dims == (DimSpec(MESH.axes[:1], False, 1), DimSpec((), True, 0))


# -- what cannot be -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "partial", "replicated"),
    [
        (["dp", "dp"], (), ()),
        ([("dp", "dp")], (), ()),
        (["tp", "tp:(2)2"], (), ()),
        (["dp"], "dp", ()),
        (["dp"], (), ["dp"]),
        ([None], "dp", ["dp"]),
        ([None], "dp, max(dp)", ()),
    ],
)
def test_an_axis_twice(dims: Any, partial: Any, replicated: Any) -> None:
    with pytest.raises(SpecError, match="is used twice"):
        ShardingSpec(MESH, dims, partial, replicated)


def test_an_axis_of_one_device_twice() -> None:
    with pytest.raises(SpecError, match="is used twice"):
        ShardingSpec(ONES, ["one", "one"])


def test_two_parts_of_an_axis_are_no_conflict() -> None:
    assert str(ShardingSpec(MESH, ["tp:(1)2", "tp:(2)2"])) == "[tp:(1)2, tp:(2)2]"


def test_unknown_axis() -> None:
    with pytest.raises(MeshError, match="no axis 'pp'"):
        ShardingSpec(MESH, ["pp"])


@pytest.mark.parametrize("entry", [3, 1.5, object()])
def test_unreadable_dim(entry: object) -> None:
    with pytest.raises(SpecError, match="as the axes of a dim"):
        ShardingSpec(MESH, [entry])


def test_unreadable_axis_in_a_dim() -> None:
    with pytest.raises(MeshError, match="None is no mesh axis"):
        ShardingSpec(MESH, [("dp", None)])


def test_unknown_partial_kind() -> None:
    with pytest.raises(SpecError, match="no pending reduction is called 'mean'"):
        ShardingSpec(MESH, [None], {"tp": "mean"})


def test_a_spec_where_dims_are_expected() -> None:
    with pytest.raises(SpecError, match="a sharding is given"):
        ShardingSpec(MESH, spec("[dp]"))  # type: ignore[arg-type]


# -- immutable ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mesh", "dims", "partial", "replicated"])
def test_a_spec_does_not_change(name: str) -> None:
    made = spec("[dp]")
    with pytest.raises(AttributeError, match="does not change"):
        setattr(made, name, ())
    assert made == spec("[dp]")


def test_a_dim_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        DimSpec().open = True  # type: ignore[misc]


def test_replace_makes_a_new_one() -> None:
    old = spec("[dp, _] // tp")
    assert old.replace(partial=()) == spec("[dp, _]")
    assert old == spec("[dp, _] // tp")


def test_replace_checks() -> None:
    with pytest.raises(SpecError, match="is used twice"):
        spec("[dp, _]").replace(partial="dp")


@pytest.mark.parametrize("made", [spec("[dp+?!1, _] // max(tp)"), spec("[_] ~ tp"), P("dp", None, partial="tp")])
def test_copies_are_equal(made: Any) -> None:
    assert copy.copy(made) == made
    assert copy.deepcopy(made) == made


# -- P --------------------------------------------------------------------------------------------------


def test_p_fills_up_with_uncut_dims() -> None:
    assert P("dp").bind(MESH, 3) == spec("[dp, _, _]")


def test_p_for_a_scalar() -> None:
    assert P().bind(MESH, 0) == spec("[]")


def test_p_too_long() -> None:
    with pytest.raises(SpecError, match="speaks of 2 dims, the tensor has 1"):
        P("dp", None).bind(MESH, 1)


def test_p_carries_partial_and_replicated() -> None:
    assert P(None, partial={"tp": "max"}, replicated="dp").bind(MESH, 1) == spec("[_] // max(tp) ~ dp")


def test_p_equality_and_hash() -> None:
    assert P("dp", None) != P("dp")
    assert P("dp") != P("dp", partial="tp")
    one, other = P(partial={"dp": "max", "tp": "sum"}), P(partial={"tp": "sum", "dp": "max"})
    assert one == other
    assert hash(one) == hash(other)


def test_p_repr_reads_back() -> None:
    made = P(("dp", "tp"), None, partial="tp", replicated="dp")
    assert repr(made) == "P(('dp', 'tp'), None, partial='tp', replicated=('dp',))"


# -- questions ------------------------------------------------------------------------------------------


def test_axes_in_use() -> None:
    made = spec("[tp:(1)2] // max(dp) ~ tp:(2)2")
    assert [str(axis) for axis in made.sharded_axes] == ["tp:(1)2"]
    assert [str(axis) for axis in made.used_axes] == ["tp:(1)2", "dp"]


@pytest.mark.parametrize(
    ("text", "expected"), [("[_, ?]", True), ("[] ~ dp", True), ("[dp]", False), ("[_] // dp", False)]
)
def test_is_replicated(text: str, expected: bool) -> None:
    assert spec(text).is_replicated is expected


@pytest.mark.parametrize("text", ["[one]", "[_] // one", "[one+?] ~ x"])
def test_an_axis_of_one_device_cuts_nothing(text: str) -> None:
    assert spec(text, ONES).is_replicated


def test_closed_is_the_layout_alone() -> None:
    assert spec("[dp+?!2, ?] // max(tp)").closed() == spec("[dp, _] // max(tp)")
    assert spec("[dp] ~ tp").closed() == spec("[dp]")


# -- shapes ---------------------------------------------------------------------------------------------


def sizes(text: str, shape: tuple[int, ...], mesh: DeviceMesh = MESH) -> list[tuple[int, ...]]:
    return [spec(text, mesh).local_shape(shape, position) for position in mesh]


def test_even_shards() -> None:
    assert sizes("[dp, tp]", (4, 8)) == [(2, 2)] * 8


def test_uneven_and_empty_shards() -> None:
    assert sizes("[tp]", (5,)) == [(2,), (2,), (1,), (0,)] * 2


def test_two_axes_cut_chunk_after_chunk() -> None:
    assert sizes("[dp+tp]", (5,)) == [(1,), (1,), (1,), (0,), (1,), (1,), (0,), (0,)]
    assert sizes("[tp+dp]", (5,)) == [(1,), (1,), (1,), (0,), (1,), (1,), (0,), (0,)]


def test_order_of_axes_says_who_holds_what() -> None:
    held = [spec("[tp+dp]").local_slices((8,), position)[0].start for position in MESH]
    assert held == [0, 2, 4, 6, 1, 3, 5, 7]


def test_sub_axes_cut_as_axes_do() -> None:
    assert [spec("[tp:(2)2]").local_slices((4,), p)[0].start for p in range(4)] == [0, 2, 0, 2]


def test_a_size_one_dim_over_many_devices() -> None:
    assert sizes("[x]", (1,), ONES) == [(1,), (0,)]


def test_scalar() -> None:
    assert sizes("[] // tp", ()) == [()] * 8


def test_padded_shape_is_the_largest() -> None:
    assert spec("[tp, dp]").padded_shape((5, 3)) == (2, 2)


@pytest.mark.parametrize(("shape", "expected"), [((8, 2), True), ((6, 2), False), ((0, 0), True)])
def test_divides(shape: tuple[int, int], expected: bool) -> None:
    assert spec("[tp, dp]").divides(shape) is expected


@pytest.mark.parametrize("ask", ["local_slices", "local_shape"])
def test_rank_is_checked(ask: str) -> None:
    with pytest.raises(SpecError, match="a sharding of 1 dims for a tensor of 2"):
        getattr(spec("[dp]"), ask)((4, 4), 0)


def test_rank_is_checked_without_a_position() -> None:
    for ask in (spec("[dp]").padded_shape, spec("[dp]").divides):
        with pytest.raises(SpecError):
            ask((4, 4))


# -- compute_global_shape -------------------------------------------------------------------------------


def test_global_shape_of_equal_shards() -> None:
    assert compute_global_shape((2, 3), spec("[dp+tp, _]")) == (16, 3)


@pytest.mark.parametrize("text", ["[tp, dp]", "[dp+tp, _]", "[tp:(2)2, _]"])
def test_global_shape_of_uneven_shards(text: str) -> None:
    made = spec(text)
    assert compute_global_shape([made.local_shape((5, 3), p) for p in MESH], made) == (5, 3)


def test_global_shape_of_a_scalar() -> None:
    assert compute_global_shape((), spec("[]")) == ()
    assert compute_global_shape([()] * 8, spec("[]")) == ()


def test_global_shape_needs_every_device() -> None:
    with pytest.raises(SpecError, match="2 local shapes for a mesh of 8 devices"):
        compute_global_shape([(1,), (1,)], spec("[tp]"))


def test_global_shape_checks_the_rank() -> None:
    with pytest.raises(SpecError, match="a sharding of 1 dims"):
        compute_global_shape((2, 2), spec("[tp]"))


# -- needs_reshard --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("[dp, _]", "[dp, _]", False),
        ("[dp, _]", "[dp+?!1, ?] ~ tp", False),
        ("[dp, _]", "[_, dp]", True),
        ("[dp+tp]", "[tp+dp]", True),
        ("[_] // tp", "[_]", True),
        ("[_] // tp", "[_] // max(tp)", True),
        ("[_]", "[_, _]", True),
        ("[tp]", "[tp:(1)2]", True),
    ],
)
def test_needs_reshard(source: str, target: str, expected: bool) -> None:
    assert needs_reshard(spec(source), spec(target)) is expected


def test_nothing_said_is_replicated() -> None:
    assert not needs_reshard(None, None)
    assert not needs_reshard(None, spec("[_]"))
    assert needs_reshard(spec("[dp]"), None)


@pytest.mark.parametrize(
    ("source", "target"), [("[one]", "[_]"), ("[x+one]", "[one+x]"), ("[_] // one", "[_] // max(one)")]
)
def test_an_axis_of_one_device_needs_no_reshard(source: str, target: str) -> None:
    assert not needs_reshard(spec(source, ONES), spec(target, ONES))


def test_another_mesh_needs_reshard_unless_both_are_replicated() -> None:
    other = DeviceMesh("dp=2, tp=4; devices=[7, 6, 5, 4, 3, 2, 1, 0]")
    assert needs_reshard(spec("[dp]"), spec("[dp]", other))
    assert not needs_reshard(spec("[_]"), spec("[_]", other))


# -- text -----------------------------------------------------------------------------------------------


def test_repr_names_the_mesh() -> None:
    assert repr(spec("[dp]")) == "<[dp] on dp=2, tp=4>"


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        ("[dp, _]", (16, 2048), "f32[16@dp, 2048]"),
        ("[dp+tp:(2)2]", (16,), "f32[16@dp+tp:(2)2]"),
        ("[] // dp, max(tp)", (), "f32[] // dp, max(tp)"),
    ],
)
def test_tensor_text(text: str, shape: tuple[int, ...], expected: str) -> None:
    assert tensor_text("f32", shape, spec(text)) == expected


def test_tensor_text_without_a_spec() -> None:
    assert tensor_text("i64", (2, 3)) == "i64[2, 3]"
