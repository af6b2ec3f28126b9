"""Collectives: the laws that any model must obey, and the measurements it was fitted to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright import DeviceMesh, ShardingSpec, SpecError, reshard
from shardwright.cost import H100, Link, communication_cost
from shardwright.cost.comm import sent_cost, steps_cost
from shardwright.spec.collective import COLLECTIVES, collective_bytes

MESH = DeviceMesh("a=2, b=4, one=1")
A, B, ONE = MESH.axes
EIGHT = DeviceMesh("d=8").axes
SIZES = st.integers(0, 2**32)


@given(st.sampled_from(COLLECTIVES), SIZES, SIZES)
def test_time_grows_with_bytes(kind: str, x: int, y: int) -> None:
    small, large = sorted((x, y))
    assert communication_cost(kind, EIGHT, small, H100) <= communication_cost(kind, EIGHT, large, H100)


@given(SIZES)
def test_an_all_reduce_lies_between_its_half_and_its_two_halves(size: int) -> None:
    whole = communication_cost("all_reduce", EIGHT, size, H100)
    scatter = communication_cost("reduce_scatter", EIGHT, size, H100)
    gather = communication_cost("all_gather", EIGHT, -(-size // 8), H100)
    assert scatter <= whole <= scatter + gather


@given(SIZES)
def test_an_all_to_all_is_no_dearer_than_gathering_everything(size: int) -> None:
    assert communication_cost("all_to_all", EIGHT, size, H100) <= communication_cost("all_gather", EIGHT, size, H100)


@pytest.mark.parametrize(
    ("kind", "full", "microseconds"),
    [
        ("all_reduce", 2**10, 15.6),
        ("all_reduce", 2**20, 25.4),
        ("all_reduce", 2**26, 324),
        ("all_gather", 2**10, 10.4),
        ("all_gather", 2**20, 17.1),
        ("all_gather", 2**26, 208),
    ],
)
def test_near_what_was_measured_on_eight_gpus(kind: str, full: int, microseconds: float) -> None:
    put_in = full // 8 if kind == "all_gather" else full
    modelled = communication_cost(kind, EIGHT, put_in, H100) / 10**6
    assert 1 / 1.6 < modelled / microseconds < 1.6


@pytest.mark.parametrize(
    ("kind", "steps"), [("all_gather", 7), ("reduce_scatter", 7), ("all_to_all", 7), ("all_reduce", 14)]
)
def test_an_empty_message_costs_a_launch_and_the_steps_of_its_ring(kind: str, steps: int) -> None:
    link = H100.default_link
    assert communication_cost(kind, EIGHT, 0, H100) == link.launch_ps + steps * link.alpha_ps


@pytest.mark.parametrize("kind", ["slice", "to_partial"])
def test_local_steps_cost_nothing(kind: str) -> None:
    assert communication_cost(kind, EIGHT, 10**9, H100) == 0


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_alone_nobody_talks(kind: str) -> None:
    assert communication_cost(kind, (ONE,), 10**9, H100) == 0
    assert communication_cost(kind, (), 10**9, H100) == 0


def test_the_slowest_axis_decides() -> None:
    slow = H100.with_link("a", Link(alpha=1e-5, beta=10**9, launch=1e-5))
    assert communication_cost("all_reduce", (B,), 2**20, slow) == communication_cost("all_reduce", (B,), 2**20, H100)
    both = communication_cost("all_reduce", (A, B), 2**20, slow)
    assert both > communication_cost("all_reduce", (A, B), 2**20, H100)
    assert both > communication_cost("all_reduce", (A,), 2**20, slow)
    # An axis of one device has no say.
    idle = H100.with_link("one", Link(alpha=1.0, beta=1))
    assert communication_cost("all_reduce", (B, ONE), 2**20, idle) == communication_cost(
        "all_reduce", (B,), 2**20, H100
    )


def test_from_the_bytes_put_in_or_from_those_sent() -> None:
    for kind in COLLECTIVES:
        sent = collective_bytes(kind, 8, 12345)
        assert sent_cost(kind, EIGHT, sent, H100) == communication_cost(kind, EIGHT, 12345, H100)


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
