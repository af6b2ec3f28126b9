"""DeviceMesh: ways to write one, where devices stand, who talks to whom."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from shardwright.errors import MeshError, NotationError
from shardwright.spec.axes import AxisRef
from shardwright.spec.mesh import DeviceMesh

MESH = DeviceMesh("dp=2, tp=4")


# -- writing one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "same",
    [
        DeviceMesh("dp=2, tp=4"),
        DeviceMesh(" dp = 2,tp=4 "),
        DeviceMesh((2, 4), ("dp", "tp")),
        DeviceMesh([2, 4], ["dp", "tp"]),
        DeviceMesh({"dp": 2, "tp": 4}),
        DeviceMesh(MESH),
        DeviceMesh("dp=2, tp=4; devices=[0, 1, 2, 3, 4, 5, 6, 7]"),
        DeviceMesh((2, 4), ("dp", "tp"), device_ids=range(8)),
        DeviceMesh.of({"dp": 2, "tp": 4}),
    ],
)
def test_every_form_says_the_same(same: DeviceMesh) -> None:
    assert same == MESH
    assert hash(same) == hash(MESH)


def test_device_order_from_text() -> None:
    mesh = DeviceMesh("dp=2, tp=2; devices=[0, 2, 1, 3]")
    assert mesh.device_ids == (0, 2, 1, 3)
    assert not mesh.is_device_order_default
    assert mesh != DeviceMesh("dp=2, tp=2")


def test_of_returns_ours_as_it_is() -> None:
    assert DeviceMesh.of(MESH) is MESH


def test_meshes_differ_by_names_and_sizes() -> None:
    assert MESH not in (DeviceMesh("dp=4, tp=2"), DeviceMesh("tp=2, dp=4"), DeviceMesh("a=2, b=4"), "dp=2, tp=4")


def test_one_device_without_axes() -> None:
    mesh = DeviceMesh("")
    assert (mesh.size, mesh.ndim, mesh.coordinates(0), str(mesh)) == (1, 0, {}, "")
    assert DeviceMesh(str(DeviceMesh({}, device_ids=[3]))).device_ids == (3,)


def test_an_axis_may_be_called_devices() -> None:
    mesh = DeviceMesh("devices=2; devices=[1, 0]")
    assert (mesh.axis_names, mesh.device_ids) == (("devices",), (1, 0))


def test_copies_are_equal() -> None:
    mesh = DeviceMesh("x=3; devices=[2, 0, 1]")
    assert copy.deepcopy(mesh) == mesh


def test_copies_are_made_from_text() -> None:
    """Hashes of strings differ between processes, so a stored one must not travel with a copy."""
    mesh = DeviceMesh("x=3; devices=[2, 0, 1]")
    rebuild, (text,) = mesh.__reduce__()
    assert rebuild(text) in {mesh}


# -- other people's -------------------------------------------------------------------------------------


class Grid:
    """What is used of a torch tensor of ranks."""

    def __init__(self, ranks: list[list[int]]) -> None:
        self.array = np.array(ranks)
        self.shape = self.array.shape

    def flatten(self) -> np.ndarray:
        return self.array.flatten()


def test_torch_mesh() -> None:
    theirs = SimpleNamespace(mesh=Grid([[0, 1], [2, 3]]), mesh_dim_names=("dp", "tp"))
    assert DeviceMesh(theirs) == DeviceMesh("dp=2, tp=2")


def test_torch_mesh_without_names() -> None:
    theirs = SimpleNamespace(mesh=Grid([[4, 5, 6]]), mesh_dim_names=None)
    mesh = DeviceMesh(theirs)
    assert (mesh.axis_names, mesh.shape, mesh.device_ids) == (("dim_0", "dim_1"), (1, 3), (4, 5, 6))


def test_jax_mesh() -> None:
    devices = np.array([[SimpleNamespace(id=3), SimpleNamespace(id=1)]])
    mesh = DeviceMesh(SimpleNamespace(axis_names=("x", "y"), devices=devices))
    assert (mesh.shape, mesh.device_ids) == ((1, 2), (3, 1))


def test_jax_abstract_mesh() -> None:
    theirs = SimpleNamespace(axis_names=("x", "y"), axis_sizes=(2, 3))
    assert DeviceMesh(theirs) == DeviceMesh("x=2, y=3")


# -- what cannot be -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "names", "fact"),
    [
        ("dp=0", None, "axis 'dp' has size 0"),
        ({"dp": -2}, None, "axis 'dp' has size -2"),
        ({"dp": 2.0}, None, "not a whole number"),
        ({"dp": True}, None, "not a whole number"),
        ({"_": 2}, None, "'_' is no name"),
        ({"2d": 2}, None, "'2d' is no name"),
        ({"a b": 2}, None, "'a b' is no name"),
        ("dp=2, dp=4", None, "axis 'dp' stands twice"),
        ((2, 4), ("dp", "dp"), "axis 'dp' stands twice"),
        ((2, 4), ("dp",), "2 sizes but 1 axis names"),
        (8, ("dp",), "8 is no list of axis sizes"),
        ([2, 4], None, "the axes of the mesh have no names"),
        (None, None, "cannot read a mesh from NoneType"),
        ("x=2; devices=[0]", None, "1 device ids for a mesh of 2"),
        ("x=2; devices=[1, 1]", None, "a device id stands twice"),
    ],
)
def test_refused(axes: object, names: object, fact: str) -> None:
    with pytest.raises(MeshError, match=fact):
        DeviceMesh(axes, names)  # type: ignore[arg-type]


def test_negative_device_ids_are_refused() -> None:
    with pytest.raises(MeshError, match="negative"):
        DeviceMesh((1,), ("x",), device_ids=[-1])


@pytest.mark.parametrize("text", ["dp", "dp=", "dp=x", "=2", "dp=2 tp=4", "dp=2; devices=[0, 1", "dp=2!"])
def test_bad_text_has_a_caret(text: str) -> None:
    with pytest.raises(NotationError) as caught:
        DeviceMesh(text)
    assert caught.value.at is not None


# -- axes -----------------------------------------------------------------------------------------------


def test_axes_are_whole_and_in_order() -> None:
    assert MESH.axes == (AxisRef("dp", 1, 2, 2), AxisRef("tp", 1, 4, 4))
    assert MESH.axis_sizes == {"dp": 2, "tp": 4}


def test_sub_axis() -> None:
    assert MESH.axis("tp:(2)2") == MESH.sub_axis("tp", 2, 2) == AxisRef("tp", 2, 2, 4)


def test_a_sub_axis_that_is_all_of_it_is_the_axis() -> None:
    assert MESH.axis("tp:(1)4") == MESH.axis("tp")


@pytest.mark.parametrize("text", ["tp:(1)3", "tp:(3)2", "tp:(2)4", "tp:(0)2", "tp:(1)0"])
def test_a_sub_axis_must_divide(text: str) -> None:
    with pytest.raises(MeshError, match="is not a part of axis 'tp'"):
        MESH.axis(text)


@pytest.mark.parametrize("axis", ["pp", "pp:(1)2", AxisRef("pp", 1, 2, 2), AxisRef("tp", 1, 8, 8)])
def test_unknown_axis(axis: str | AxisRef) -> None:
    with pytest.raises(MeshError, match="the mesh has no axis"):
        MESH.axis(axis)


def test_an_axis_is_a_name() -> None:
    with pytest.raises(MeshError, match="None is no mesh axis"):
        MESH.axis(None)  # type: ignore[arg-type]


def test_order_is_mesh_order_then_major_to_minor() -> None:
    words = ["tp:(2)2", "dp", "tp:(1)2"]
    assert sorted(map(MESH.axis, words), key=MESH.order) == [MESH.axis(w) for w in ("dp", "tp:(1)2", "tp:(2)2")]


# -- devices --------------------------------------------------------------------------------------------


def test_positions_are_row_major() -> None:
    assert [MESH.coordinates(position) for position in (0, 3, 4)] == [
        {"dp": 0, "tp": 0},
        {"dp": 0, "tp": 3},
        {"dp": 1, "tp": 0},
    ]


def test_position_is_the_inverse_of_coordinates() -> None:
    assert [MESH.position(MESH.coordinates(position)) for position in MESH] == list(range(8))


def test_a_missing_coordinate_is_zero() -> None:
    assert MESH.position({"dp": 1}) == 4


@pytest.mark.parametrize("coordinates", [{"dp": 2}, {"tp": -1}, {"pp": 0}])
def test_coordinates_outside_the_mesh(coordinates: dict[str, int]) -> None:
    with pytest.raises(MeshError):
        MESH.position(coordinates)


@pytest.mark.parametrize("position", [-1, 8])
def test_positions_outside_the_mesh(position: int) -> None:
    with pytest.raises(MeshError, match="no position"):
        MESH.coordinates(position)


@pytest.mark.parametrize(
    ("axis", "along"),
    [
        ("dp", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("tp", [0, 1, 2, 3, 0, 1, 2, 3]),
        ("tp:(1)2", [0, 0, 1, 1, 0, 0, 1, 1]),
        ("tp:(2)2", [0, 1, 0, 1, 0, 1, 0, 1]),
    ],
)
def test_index_along(axis: str, along: list[int]) -> None:
    assert [MESH.index_along(position, MESH.axis(axis)) for position in MESH] == along


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        ([], ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,))),
        (["dp"], ((0, 4), (1, 5), (2, 6), (3, 7))),
        (["tp"], ((0, 1, 2, 3), (4, 5, 6, 7))),
        (["tp:(1)2"], ((0, 2), (1, 3), (4, 6), (5, 7))),
        (["tp:(2)2"], ((0, 1), (2, 3), (4, 5), (6, 7))),
        (["dp", "tp"], ((0, 1, 2, 3, 4, 5, 6, 7),)),
        (["tp", "dp"], ((0, 4, 1, 5, 2, 6, 3, 7),)),
    ],
)
def test_groups(axes: list[str], groups: tuple[tuple[int, ...], ...]) -> None:
    assert MESH.groups(axes) == groups
