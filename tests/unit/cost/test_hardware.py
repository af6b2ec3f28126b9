"""The figures: sane, named, and refused where no machine can have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright import DeviceMesh, MeshError
from shardwright.cost import H100, Hardware, Link, LinkTable
from shardwright.cost.hardware import NO_OVERLAP, VIRTUAL, HardwareError, Overlap, Roofline, hardware_of

LINK = Link(alpha=1e-6, beta=10**9)


def test_the_preset_says_where_its_figures_come_from() -> None:
    assert "NVIDIA" in H100.source
    assert "NCCL" in H100.source


def test_narrower_types_are_not_slower() -> None:
    assert H100.peak("f32") <= H100.peak("bf16") == H100.peak("f16") <= H100.peak("f8e4m3")


def test_a_type_that_is_not_listed_runs_like_the_first() -> None:
    assert H100.peak("i32") == H100.peak("f32")


def test_times_are_whole_picoseconds() -> None:
    assert H100.launch_ps == 3_480_000
    assert isinstance(VIRTUAL.default_link, Link)
    assert VIRTUAL.default_link.alpha_ps == 10_000
    assert Link(0.0, 1, launch=5.6e-6).launch_ps == 5_600_000


def test_an_axis_may_have_a_link_of_its_own() -> None:
    slow = H100.with_link("dp", LINK)
    assert slow.link("dp") == LINK
    assert slow.link(DeviceMesh("dp=2").axes[0]) == LINK
    assert slow.link("tp") == H100.default_link
    assert slow.with_link("dp", H100.default_link).link("dp") == H100.default_link


def test_links_of_axes_that_the_mesh_does_not_have_are_refused() -> None:
    H100.with_link("dp", LINK).check(DeviceMesh("dp=2, tp=4"))
    with pytest.raises(MeshError, match="no axis 'dpp'"):
        H100.with_link("dpp", LINK).check(DeviceMesh("dp=2, tp=4"))


def test_memory_can_be_set() -> None:
    assert H100.with_memory(123).memory == 123


def test_equal_hardware_is_equal_and_hashable() -> None:
    assert {H100, replace(H100, source="elsewhere")} == {H100}


@pytest.mark.parametrize(
    "wrong",
    [{"flops": ()}, {"flops": (("f32", 0),)}, {"bandwidth": 0}, {"memory": -1}, {"launch": -1.0}, {"flops_percent": 0}],
    ids=str,
)
def test_impossible_figures_are_refused(wrong: dict[str, object]) -> None:
    parts = {"name": "x", "flops": (("f32", 1),), "bandwidth": 1, "memory": 1, "default_link": LINK}
    Hardware(**parts)  # type: ignore[arg-type]
    with pytest.raises(HardwareError):
        Hardware(**{**parts, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"alpha": -1.0, "beta": 1}, {"alpha": 0.0, "beta": 0}], ids=str)
def test_impossible_links_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(HardwareError):
        Link(**wrong)  # type: ignore[arg-type]


# -- by name --------------------------------------------------------------------------------------------

PRESETS = ["a100", "h100", "h200", "b200", "cpu"]
UNITS = {"a100": 108, "h100": 132, "h200": 132, "b200": 148}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_where_its_figures_come_from(name: str) -> None:
    found = hardware_of(name)
    assert len(found.source.split()) > 10
    assert isinstance(found.default_link, LinkTable)
    assert hardware_of(name) is found


@pytest.mark.parametrize("name", PRESETS[:4])
def test_gpus_come_in_nodes_of_eight(name: str) -> None:
    found = hardware_of(name)
    assert (found.node, found.nodes) == (8, None)
    assert found.network is not None
    assert "aiconfigurator" in found.source
    assert found.overlap != NO_OVERLAP


def test_newer_gpus_are_not_slower() -> None:
    a100, h100, h200, b200 = (hardware_of(name) for name in PRESETS[:4])
    peaks = [found.peak("bf16") for found in (a100, h100, h200, b200)]
    assert peaks == sorted(peaks)
    assert a100.bandwidth < h100.bandwidth < h200.bandwidth < b200.bandwidth
    assert (h200.memory, b200.memory) == (141 * 10**9, 180 * 10**9)


def test_a_number_of_nodes_may_be_said() -> None:
    assert hardware_of("h100x4") == hardware_of("H100", nodes=4)
    hardware_of("h100x4").check(DeviceMesh("dp=4, tp=8"))
    hardware_of("h100").check(DeviceMesh("dp=64, tp=8"))
    with pytest.raises(HardwareError, match="a mesh of 64 devices on 4 nodes of 8") as caught:
        hardware_of("h100x4").check(DeviceMesh("dp=8, tp=8"))
    assert "8 nodes would do" in str(caught.value)


@pytest.mark.parametrize("name", ["h10", "h100x0", "h100x", "x4", ""])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(HardwareError, match="no hardware is called") as caught:
        hardware_of(name)
    assert "h100" in str(caught.value)


@pytest.mark.parametrize("wrong", [7, None, ["h100"]], ids=str)
def test_what_is_no_hardware_is_refused(wrong: object) -> None:
    with pytest.raises(HardwareError, match="is no hardware"):
        hardware_of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [0, -1, True, 1.5])
def test_impossible_numbers_of_nodes_are_refused(nodes: object) -> None:
    with pytest.raises(HardwareError, match="is no number of nodes"):
        hardware_of("h100", nodes=nodes)  # type: ignore[arg-type]


def test_a_machine_without_a_network_has_one_node() -> None:
    with pytest.raises(HardwareError, match="no network"):
        hardware_of("cpux4")
    with pytest.raises(HardwareError, match="has no network"):
        hardware_of("cpu", links={"dp": "network"})


def test_links_are_named() -> None:
    found = hardware_of("h100", links={"dp": "network", "tp": "nvlink", "ep": LINK})
    assert (found.link("dp"), found.link("tp"), found.link("ep")) == (found.network, found.default_link, LINK)
    with pytest.raises(HardwareError, match="no link called 'nvlnk'") as caught:
        hardware_of("h100", links={"dp": "nvlnk"})
    assert "did you mean 'nvlink'?" in str(caught.value)


def test_binding_a_mesh_checks_it() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    assert H100.on(mesh).mesh == mesh
    assert H100.on(mesh).on(mesh) == H100.on(mesh)
    with pytest.raises(MeshError, match="no axis 'ep'"):
        H100.with_link("ep", LINK).on(mesh)


# -- classes and overlap --------------------------------------------------------------------------------


def test_a_class_without_constants_of_its_own_has_the_machine_s() -> None:
    own = replace(H100, classes=(("attention", Roofline(1e-6, 150, 100)),))
    assert own.roofline("attention").flops_percent == 150
    assert own.roofline("matmul") == Roofline(H100.launch, H100.flops_percent, H100.bytes_percent)


@pytest.mark.parametrize(
    "wrong",
    [{"launch": -1e-6}, {"flops_percent": -1}, {"bytes_percent": -1}, {"scores": -1}, {"units": -1}],
    ids=str,
)
def test_impossible_constants_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(HardwareError, match="must not be below 0"):
        Roofline(**wrong)


@pytest.mark.parametrize("name", PRESETS[:4])
def test_gpus_know_scores_and_units(name: str) -> None:
    found = hardware_of(name)
    assert (found.roofline("attention").units, found.roofline("matmul").units) == (UNITS[name], 0)
    assert found.roofline("attention").scores > 10**12
    assert "H200" in found.source
    assert ("not measured" in found.source) == (name != "h200")


def test_plain_copies_are_not_costed_as_transposing_ones() -> None:
    h200 = hardware_of("h200")
    assert h200.roofline("memory").bytes_percent < 1.2 * h200.roofline("pointwise").bytes_percent


def test_what_shows_is_a_share() -> None:
    half = Overlap(weight=50, gradient=0)
    assert (half.shown("weight", 101), half.shown("gradient", 101), half.shown(None, 101)) == (51, 0, 101)
    assert H100.with_overlap(None).overlap == NO_OVERLAP
    for wrong in (-1, 101):
        with pytest.raises(HardwareError):
            Overlap(weight=wrong)


@pytest.mark.parametrize("wrong", [{"node": 0}, {"nodes": 0}, {"network": LINK}], ids=str)
def test_impossible_nodes_are_refused(wrong: dict[str, object]) -> None:
    parts = {"name": "x", "flops": (("f32", 1),), "bandwidth": 1, "memory": 1, "default_link": LINK}
    with pytest.raises(HardwareError):
        Hardware(**{**parts, **wrong})  # type: ignore[arg-type]
