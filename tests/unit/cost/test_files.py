"""Hardware as TOML: round trips, and errors that name the field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright import DeviceMesh
from shardwright.cost import H100, Link, Overlap, Roofline, alpha_beta, hardware_of, hardware_text, parse_hardware
from shardwright.cost.files import preset_names, read_hardware, write_hardware
from shardwright.cost.hardware import VIRTUAL, HardwareError

GOOD = """
schema = 1
name = "ours"
memory_gb = 80
bandwidth_gbs = 3350
[tflops]
f32 = 66.9
[compute]
launch_us = 3.2
[node]
devices = 8
[node.link]
bytes = [1024, 1048576]
all_reduce.2 = [5.9, 14.7]
all_reduce.8 = [15.6, 25.4]
[network.link]
latency_us = 10
rate_gbs = 40
[axes]
dp = "network"
"""


def test_a_file_is_hardware(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(GOOD)
    found = hardware_of(str(path))
    assert found == hardware_of(path) == read_hardware(path)
    assert (found.name, found.peak("f32"), found.launch_ps) == ("ours", 66_900_000_000_000, 3_200_000)
    assert found.network == found.link("dp") == Link(10e-6, 40 * 10**9)


@pytest.mark.parametrize(
    "hardware",
    [
        *(hardware_of(name) for name in preset_names()),
        VIRTUAL,
        hardware_of("h100x4", links={"dp": "network", "tp": "nvlink"}),
        replace(H100, overlap=Overlap(10, 0), classes=(("sort", Roofline(1e-6, 5, 300)),)),
        replace(H100, classes=(("attention", Roofline(1e-6, 5, 300, 3_360_000_000_001, 0)),)),
        replace(H100, classes=(("attention", Roofline(1e-6, 5, 300, 0, 132)),)),
        replace(H100, source='a "quoted" \\ text\nof two lines', name="ü"),
    ],
    ids=lambda hardware: hardware.name,
)
def test_reading_what_was_written_gives_the_same(hardware: object, tmp_path: Path) -> None:
    assert parse_hardware(hardware_text(hardware)) == hardware  # type: ignore[arg-type]
    write_hardware(hardware, tmp_path / "x.toml")  # type: ignore[arg-type]
    again = read_hardware(tmp_path / "x.toml")
    assert (again, again.source) == (hardware, hardware.source)  # type: ignore[attr-defined]


def test_scores_and_units_may_be_said_of_attention() -> None:
    said = "[compute.attention]\nlaunch_us = 5\ntscores = 3.36\nunits = 132\n[node]"
    found = parse_hardware(GOOD.replace("[node]", said))
    assert found.roofline("attention") == Roofline(5e-6, 100, 100, 3_360_000_000_000, 132)
    assert found.roofline("matmul").units == 0
    plain = hardware_text(parse_hardware(GOOD))
    assert "tscores" not in plain
    assert "units" not in plain


def test_a_mesh_is_not_written() -> None:
    assert parse_hardware(hardware_text(H100.on(DeviceMesh("d=8")))) == H100


def test_alpa_has_no_file() -> None:
    with pytest.raises(HardwareError, match="no file form"):
        hardware_text(alpha_beta())


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (("schema = 1", "schema = 2"), "schema is 2, not 1"),
        (("schema = 1", ""), "schema is None, not 1"),
        (("memory_gb = 80", ""), "memory_gb is missing"),
        (("memory_gb = 80", "memory_gb = true"), "memory_gb must be a number, not True"),
        (("memory_gb = 80", "memory_gb = -80"), "memory_gb is -80"),
        (("memory_gb = 80", "memory_gb = nan"), "memory_gb is nan"),
        (("memory_gb = 80", "memory_gb = 0"), "memory and percentages must be above 0"),
        (('name = "ours"', "name = 3"), "name must be text, not 3"),
        (("memory_gb", "memory_gib"), "unknown field memory_gib"),
        (("launch_us", "lauch_us"), "unknown field compute.lauch_us"),
        (("[compute]", "[compute.matmull]"), "unknown field compute.matmull"),
        (
            ("[compute]", "[compute.matmul]\nflops_percent = 1.5\n[compute]"),
            "compute.matmul.flops_percent must be a whole",
        ),
        (("[node]", "[compute.attention]\ntscores = -1\n[node]"), "compute.attention.tscores is -1"),
        (("[node]", '[compute.attention]\ntscores = "3"\n[node]'), "compute.attention.tscores must be a number"),
        (("[node]", "[compute.attention]\ntscores = inf\n[node]"), "compute.attention.tscores is inf"),
        (("[node]", "[compute.attention]\nunits = -132\n[node]"), "the figures of a cost class must not be below 0"),
        (("[node]", "[compute.attention]\nunits = 1.5\n[node]"), "compute.attention.units must be a whole number"),
        (("[node]", "[compute.attention]\nunit = 132\n[node]"), "unknown field compute.attention.unit"),
        (("[node]", "[compute.sort]\nunits = 132\n[node]"), "unknown field compute.sort.units"),
        (("launch_us = 3.2", "tscores = 3.2"), "unknown field compute.tscores"),
        (("f32 = 66.9", "float32 = 66.9"), "unknown field tflops.float32"),
        (("f32 = 66.9", ""), "one type is needed"),
        (("devices = 8", 'devices = "8"'), "node.devices must be a whole number, not '8'"),
        (("all_reduce.2 = [5.9, 14.7]", "all_reduce.two = [5.9, 14.7]"), "all_reduce.two must name a group size"),
        (("all_reduce.2 = [5.9, 14.7]", "allreduce.2 = [5.9, 14.7]"), "unknown field node.link.allreduce"),
        (("[5.9, 14.7]", "[5.9]"), "1 times for 2 messages"),
        (("[5.9, 14.7]", "[5.9, 1.0]"), "must not fall"),
        (("[5.9, 14.7]", '[5.9, "x"]'), "must be a list of numbers"),
        (("[5.9, 14.7]", "[5.9, inf]"), "not finite"),
        (("[1024, 1048576]", "[1024, 1048576.5]"), "must be whole numbers"),
        (("[1024, 1048576]", "1024"), "must be a list of numbers"),
        (("rate_gbs = 40", ""), "network.link.rate_gbs is missing"),
        (('dp = "network"', 'dp = "internet"'), "no link called 'internet'"),
        (('dp = "network"', "dp = 1"), "axes.dp must be text"),
        (("[axes]", "[overlap]\nweight = 200\n[axes]"), "between 0 and 100 percent"),
        (("[node]\ndevices = 8\n", ""), "how many devices a node has"),
        (("schema = 1", "schema = = 1"), "is not TOML"),
        (("schema = 1", "schema = 1\nschema = 1"), "is not TOML"),
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_wrong_file_says_what_is_wrong(change: tuple[str, str], fact: str, tmp_path: Path) -> None:
    assert change[0] in GOOD
    path = tmp_path / "wrong.toml"
    path.write_text(GOOD.replace(change[0], change[1], 1))
    with pytest.raises(HardwareError) as caught:
        read_hardware(path)
    assert fact in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_table_must_be_one() -> None:
    with pytest.raises(HardwareError, match="compute must be a table"):
        parse_hardware(GOOD.replace("[compute]\nlaunch_us = 3.2", "").replace("[tflops]", "compute = 3\n[tflops]"))


def test_near_misses_are_named() -> None:
    with pytest.raises(HardwareError) as caught:
        parse_hardware(GOOD.replace("bandwidth_gbs", "bandwith_gbs"))
    assert "did you mean 'bandwidth_gbs'?" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="cannot read the hardware file") as caught:
        hardware_of(str(tmp_path / "none.toml"))
    assert "No such file" in str(caught.value)
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(HardwareError, match="not text"):
        hardware_of(tmp_path / "bad.toml")
