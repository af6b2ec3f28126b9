"""Collectives: the laws that any model must obey, what was measured, and groups that span nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright import DeviceMesh, ShardingSpec, SpecError, reshard
from shardwright.cost import H100, Hardware, Link, alpha_beta, communication_cost, hardware_of
from shardwright.cost.comm import message, sent_cost, steps_cost
from shardwright.cost.hardware import VIRTUAL
from shardwright.spec.axes import AxisRef, axes_size
from shardwright.spec.collective import COLLECTIVES, collective_bytes

MESH = DeviceMesh("a=2, b=4, one=1")
A, B, ONE = MESH.axes
EIGHT = DeviceMesh("d=8").axes
SIZES = st.one_of(st.integers(0, 2**34), st.integers(0, 34).map(lambda i: 2**i), st.integers(0, 2**16))
MESHES = [DeviceMesh(text) for text in ("d=2", "d=3", "d=4", "d=7", "d=8", "d=12", "a=2, b=8", "a=4, b=8", "a=3, b=5")]


@st.composite
def placed(draw: st.DrawFn) -> tuple[Hardware, tuple[AxisRef, ...], int]:
    """A machine, the axes of a group on it, and its size."""
    mesh = draw(st.sampled_from(MESHES))
    name = draw(st.sampled_from(["a100", "h100", "h200", "b200", "cpu", "virtual"]))
    axes = draw(st.sampled_from([mesh.axes, mesh.axes[:1], mesh.axes[-1:]]))
    return hardware_of(name).on(mesh), axes, axes_size(axes)


@given(placed(), st.sampled_from(COLLECTIVES), SIZES, SIZES)
def test_time_grows_with_bytes(place: tuple[Hardware, tuple[AxisRef, ...], int], kind: str, x: int, y: int) -> None:
    hardware, axes, _ = place
    small, large = sorted((x, y))
    assert 0 < communication_cost(kind, axes, small, hardware) <= communication_cost(kind, axes, large, hardware)


@given(placed(), SIZES)
def test_an_all_reduce_lies_between_its_half_and_its_two_halves(
    place: tuple[Hardware, tuple[AxisRef, ...], int], size: int
) -> None:
    hardware, axes, ways = place
    whole = communication_cost("all_reduce", axes, size, hardware)
    scatter = communication_cost("reduce_scatter", axes, size, hardware)
    gather = communication_cost("all_gather", axes, -(-size // ways), hardware)
    latency = communication_cost("all_gather", axes, 0, hardware)
    assert scatter <= whole <= scatter + gather + latency


@given(placed(), st.integers(2**20, 2**36))
def test_an_all_to_all_is_no_dearer_than_gathering_everything(
    place: tuple[Hardware, tuple[AxisRef, ...], int], whole: int
) -> None:
    """From 1 MiB of the whole tensor on, within 5%: below that measurements break it."""
    hardware, axes, ways = place
    size = -(-whole // ways)
    dear = communication_cost("all_gather", axes, size, hardware)
    assert 100 * communication_cost("all_to_all", axes, size, hardware) <= 105 * dear


@pytest.mark.parametrize(
    ("kind", "full", "microseconds"),
    [
        ("all_reduce", 2**10, 15.6),
        ("all_reduce", 2**20, 25.4),
        ("all_reduce", 2**26, 324),
        ("all_gather", 2**10, 10.4),
        ("all_gather", 2**20, 17.1),
        ("all_gather", 2**26, 208),
        ("all_reduce", 2**29, 2111),
        ("all_gather", 2**29, 1402),
    ],
)
def test_near_what_was_measured_on_eight_gpus(kind: str, full: int, microseconds: float) -> None:
    put_in = full // 8 if kind == "all_gather" else full
    modelled = communication_cost(kind, EIGHT, put_in, H100) / 10**6
    assert modelled == pytest.approx(microseconds, rel=0.01)


@pytest.mark.parametrize(
    ("name", "full", "microseconds"),
    [("a100", 2**10, 21.8), ("a100", 2**26, 595), ("a100", 2**29, 4226), ("b200", 2**20, 30.1), ("b200", 2**29, 1335)],
)
def test_near_what_was_measured_on_other_machines(name: str, full: int, microseconds: float) -> None:
    modelled = communication_cost("all_reduce", EIGHT, full, hardware_of(name)) / 10**6
    assert modelled == pytest.approx(microseconds, rel=0.03)


@pytest.mark.parametrize(("mib", "bus"), [(16, 64), (16 * 1024, 382)])
def test_near_what_was_measured_between_nodes(mib: int, bus: float) -> None:
    """Bus bandwidth in GB/s of an all_reduce over 4 x 8 B200."""
    mesh = DeviceMesh("dp=4, tp=8")
    time = communication_cost("all_reduce", mesh.axes, mib * 2**20, hardware_of("b200x4").on(mesh)) / 10**12
    assert 2 * 31 / 32 * mib * 2**20 / time / 10**9 == pytest.approx(bus, rel=0.15)


@pytest.mark.parametrize(
    ("kind", "steps"), [("all_gather", 7), ("reduce_scatter", 7), ("all_to_all", 7), ("all_reduce", 14)]
)
def test_an_empty_message_costs_a_launch_and_the_steps_of_its_ring(kind: str, steps: int) -> None:
    link = Link(alpha=0.8e-6, beta=280 * 10**9, launch=5.6e-6)
    ring = replace(VIRTUAL, default_link=link)
    assert communication_cost(kind, EIGHT, 0, ring) == link.launch_ps + steps * link.alpha_ps


@pytest.mark.parametrize("kind", ["slice", "to_partial"])
def test_local_steps_cost_nothing(kind: str) -> None:
    assert communication_cost(kind, EIGHT, 10**9, H100) == 0


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_alone_nobody_talks(kind: str) -> None:
    assert communication_cost(kind, (ONE,), 10**9, H100) == 0
    assert communication_cost(kind, (), 10**9, H100) == 0


def test_the_slowest_level_decides_and_carries_its_part() -> None:
    slow = H100.with_link("a", Link(alpha=1e-5, beta=10**9, launch=1e-5))
    assert communication_cost("all_reduce", (B,), 2**20, slow) == communication_cost("all_reduce", (B,), 2**20, H100)
    both = communication_cost("all_reduce", (A, B), 2**20, slow)
    assert both > communication_cost("all_reduce", (A, B), 2**20, H100)
    # Inside first: a quarter is left for the slow axis.
    assert both == communication_cost("all_reduce", (A,), 2**18, slow)
    # Gathering: each member brings its own part, and gets the others' parts inside.
    gathered = communication_cost("all_gather", (A, B), 2**18, slow)
    assert gathered == communication_cost("all_gather", (A,), 2**18, slow)
    # Of an all_to_all everything may have to go far.
    exchanged = communication_cost("all_to_all", (A, B), 2**20, slow)
    assert exchanged == communication_cost("all_to_all", (A,), 2**20, slow)
    # An axis of one device has no say.
    idle = H100.with_link("one", Link(alpha=1.0, beta=1))
    assert communication_cost("all_reduce", (B, ONE), 2**20, idle) == communication_cost(
        "all_reduce", (B,), 2**20, H100
    )


def test_from_the_bytes_put_in_or_from_those_sent() -> None:
    for kind in COLLECTIVES:
        sent = collective_bytes(kind, 8, 12345)
        assert sent_cost(kind, EIGHT, sent, H100) == communication_cost(kind, EIGHT, 12345, H100)


def test_messages_are_what_nccl_calls_the_size() -> None:
    """From bytes put in to bytes sent to a message: the full buffer."""
    for ways in (2, 3, 8):
        for kind, put_in, full in (
            ("all_reduce", 7 * 24, 7 * 24),
            ("reduce_scatter", 7 * 24, 7 * 24),
            ("all_to_all", 7 * 24, 7 * 24),
            ("all_gather", 7 * 24, ways * 7 * 24),
            ("collective_permute", 7 * 24, 7 * 24),
        ):
            over, under = message(kind, ways, collective_bytes(kind, ways, put_in))
            assert over == full * under


def test_a_group_that_spans_nodes_uses_the_network() -> None:
    mesh = DeviceMesh("dp=4, tp=8")
    dp, tp = mesh.axes
    hardware = hardware_of("h100x4").on(mesh)
    inside = communication_cost("all_reduce", (tp,), 2**24, hardware)
    across = communication_cost("all_reduce", (dp,), 2**24, hardware)
    assert inside == communication_cost("all_reduce", EIGHT, 2**24, H100) < across
    # All at once: an eighth of the message for each card, hidden behind no faster link.
    assert communication_cost("all_reduce", (dp, tp), 2**24, hardware) == communication_cost(
        "all_reduce", (dp,), 2**21, hardware
    )
    # One axis over all devices is the same group; so is its inner part inside a node.
    flat = DeviceMesh("d=32")
    bound = hardware_of("h100x4").on(flat)
    for kind in COLLECTIVES:
        both = communication_cost(kind, flat.axes, 2**22, bound)
        assert both == communication_cost(kind, (dp, tp), 2**22, hardware)
    assert communication_cost("all_reduce", (flat.axis("d:(4)8"),), 2**24, bound) == inside
    assert communication_cost("all_reduce", (flat.axis("d:(1)4"),), 2**24, bound) == across


def test_devices_are_counted_not_axes() -> None:
    """tp outside, dp inside: now tp crosses nodes; and a strange order of devices is seen."""
    mesh = DeviceMesh("tp=8, dp=4")
    hardware = hardware_of("h100").on(mesh)
    tp, dp = mesh.axes
    assert hardware.split((tp,)) == (2, 4)
    assert hardware.split((dp,)) == (4, 1)
    woven = DeviceMesh((2, 8), ("a", "b"), device_ids=[*range(0, 16, 2), *range(1, 16, 2)])
    assert hardware_of("h100").on(woven).split((woven.axes[1],)) == (4, 2)
    assert hardware_of("h100").on(woven).split((woven.axes[0],)) == (2, 1)


def test_the_user_may_say_what_an_axis_runs_over() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    dp, _ = mesh.axes
    counted, told = hardware_of("h100").on(mesh), hardware_of("h100", links={"dp": "network"}).on(mesh)
    assert communication_cost("all_reduce", (dp,), 2**24, counted) < communication_cost(
        "all_reduce", (dp,), 2**24, told
    )


@pytest.mark.parametrize(
    ("kind", "put_in", "expected"),
    [
        ("all_gather", 256, 1 + 0.1 * 3 / 4 * 1024 + 0.1),
        ("all_reduce", 1024, 1 + 2 * 0.1 * 3 / 4 * 1024 + 0.01),
        ("reduce_scatter", 1024, 1 + 0.1 * 3 / 4 * 1024 + 0.001),
        ("all_to_all", 256, 1 + 0.1 * 3 / 16 * 1024 * 4 / 2 + 0.001),
    ],
)
def test_the_formulas_of_alpa(kind: str, put_in: int, expected: float) -> None:
    """On a tensor of 1 KiB over 4 devices."""
    four = DeviceMesh("x=4").axes
    assert communication_cost(kind, four, put_in, alpha_beta(1, 0.1)) == round(expected * 10**6)
    by_axis = alpha_beta({"x": 1, "y": 5}, {"x": 0.1, "y": 9})
    assert communication_cost(kind, four, put_in, by_axis) == round(expected * 10**6)


def test_costs_of_alpa_add_up_over_axes() -> None:
    mesh = DeviceMesh("x=2, y=2")
    x, y = mesh.axes
    hardware = alpha_beta({"x": 1, "y": 1}, {"x": 1, "y": 0.1})
    inner, outer = (communication_cost("all_reduce", (axis,), size, hardware) for axis, size in ((y, 1000), (x, 500)))
    assert communication_cost("all_reduce", (x, y), 1000, hardware) == inner + outer


def test_a_reshard_costs_each_step_once() -> None:
    source, target = ShardingSpec(MESH, ["a", "b"]), ShardingSpec(MESH, ["b", "a"])
    steps = reshard(source, target, (64, 64))
    assert len(steps) >= 1
    expected = sum(communication_cost(s.kind, s.axes, s.local_bytes, H100) for s in steps)
    assert steps_cost(steps, H100) == expected > 0
    assert steps_cost((), H100) == 0


def test_an_unknown_collective_is_an_error() -> None:
    with pytest.raises(SpecError, match="no collective is called 'allreduce'"):
        communication_cost("allreduce", EIGHT, 1, H100)
