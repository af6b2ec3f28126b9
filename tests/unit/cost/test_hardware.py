"""The figures: sane, named, and refused where no machine can have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright import DeviceMesh, MeshError
from shardwright.cost import H100, Hardware, Link
from shardwright.cost.hardware import HardwareError

LINK = Link(alpha=1e-6, beta=10**9)


def test_the_preset_says_where_its_figures_come_from() -> None:
    assert "NVIDIA" in H100.source
    assert "NCCL" in H100.source


def test_narrower_types_are_not_slower() -> None:
    assert H100.peak("f32") <= H100.peak("bf16") == H100.peak("f16") <= H100.peak("f8e4m3")


def test_a_type_that_is_not_listed_runs_like_the_first() -> None:
    assert H100.peak("i32") == H100.peak("f32")


def test_times_are_whole_picoseconds() -> None:
    assert H100.launch_ps == 3_200_000
    assert isinstance(H100.default_link.alpha_ps, int)
    assert H100.default_link.launch_ps == 5_600_000


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
