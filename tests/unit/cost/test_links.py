"""Tables: what stands in them, what lies between, and what no table may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost import Link, LinkTable
from shardwright.cost.hardware import AlphaBetaLink, HardwareError

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
TABLE = LinkTable.of(
    [1000, 2000, 4000],
    {
        "all_reduce": {2: [10.0, 12.0, 16.0], 4: [20.0, 23.0, 29.0]},
        "reduce_scatter": {2: [8.0, 9.0, 11.0], 4: [12.0, 13.0, 15.0]},
        "all_gather": {2: [8.0, 9.0, 11.0], 4: [12.0, 13.0, 15.0]},
    },
)


def us(table: LinkTable, kind: str, ways: int, message: int) -> float:
    return table.time(kind, ways, message) / 10**6


def test_what_was_measured_is_told() -> None:
    assert [us(TABLE, "all_reduce", 2, size) for size in TABLE.sizes] == [10.0, 12.0, 16.0]
    assert [us(TABLE, "reduce_scatter", 4, size) for size in TABLE.sizes] == [12.0, 13.0, 15.0]


def test_between_messages_time_is_a_straight_line() -> None:
    assert us(TABLE, "all_reduce", 2, 3000) == 14.0
    # A message may be a fraction.
    assert TABLE.time("all_reduce", 2, 4501, 3) == 11_000_667


def test_beyond_the_last_message_the_last_rate_goes_on() -> None:
    assert us(TABLE, "all_reduce", 2, 40_000) == 16 + 36 * 2


def test_below_the_first_message_there_is_latency() -> None:
    assert us(TABLE, "all_reduce", 2, 0) == pytest.approx(10, rel=0.002)
    assert TABLE.time("all_reduce", 2, 0) < TABLE.time("all_reduce", 2, 1) < TABLE.time("all_reduce", 2, 1000)


def test_between_group_sizes_devices_that_send_as_much_are_compared() -> None:
    # Three devices with a message of 1500 send 1000 bytes: so do two with 2000, and four with 1333.
    middle = TABLE.time("all_gather", 3, 1500)
    assert middle == pytest.approx(
        (TABLE.time("all_gather", 2, 2000) + TABLE.time("all_gather", 4, 4000, 3)) / 2, abs=2
    )


def test_beyond_the_largest_group_latency_grows_with_each_doubling() -> None:
    times = [TABLE.time("all_reduce", ways, 0) for ways in (4, 8, 16, 32)]
    steps = [b - a for a, b in zip(times, times[1:])]  # noqa: RUF007
    assert all(step == pytest.approx(10 * 10**6, rel=0.01) for step in steps)
    assert times[1] < TABLE.time("all_reduce", 12, 0) < times[2]


def test_a_smaller_group_than_any_measured_costs_as_the_smallest() -> None:
    table = LinkTable.of([1000], {"all_reduce": {4: [20.0]}})
    # Two devices send half of 1500, four three quarters of 1000.
    assert table.time("all_reduce", 2, 1500) == table.time("all_reduce", 4, 1000)


def test_a_kind_that_was_not_measured_costs_as_its_like() -> None:
    assert TABLE.time("all_to_all", 2, 2000) == TABLE.time("all_gather", 2, 2000)
    bare = LinkTable.of([1000], {"all_reduce": {2: [10.0]}})
    assert bare.time("all_gather", 2, 1000) == 10 * 10**6
    assert bare.time("reduce_scatter", 2, 1000) == 10 * 10**6 - 10**4
    assert TABLE.time("collective_permute", 8, 1000) == TABLE.time("all_to_all", 2, 2000)


def test_a_table_that_breaks_the_laws_is_priced_by_the_cheapest_way() -> None:
    broken = LinkTable.of(
        [2**20, 2**21],
        {
            "all_reduce": {2: [100.0, 200.0]},
            "reduce_scatter": {2: [300.0, 400.0]},
            "all_gather": {2: [10.0, 20.0]},
            "all_to_all": {2: [900.0, 900.0]},
        },
    )
    assert us(broken, "reduce_scatter", 2, 2**20) == pytest.approx(99.9)
    assert us(broken, "all_reduce", 2, 2**20) == 100.0
    assert us(broken, "all_to_all", 2, 2**20) == pytest.approx(1.04 * 20)
    dear = LinkTable.of([2**20], {"all_reduce": {2: [500.0]}, "reduce_scatter": {2: [30.0]}, "all_gather": {2: [20.0]}})
    assert us(dear, "all_reduce", 2, 2**20) == pytest.approx(30 + 20 + 20, rel=0.001)


@st.composite
def tables(draw: st.DrawFn) -> LinkTable:
    """Anything that may have been measured."""
    sizes = sorted(draw(st.sets(st.integers(1, 2**24), min_size=1, max_size=4)))
    rows: dict[str, dict[int, list[float]]] = {}
    for kind in KINDS:
        for ways in draw(st.sets(st.sampled_from([2, 3, 4, 8]), min_size=kind == "all_reduce", max_size=3)):
            times = draw(st.lists(st.floats(1.0, 1e4), min_size=len(sizes), max_size=len(sizes)))
            rows.setdefault(kind, {})[ways] = sorted(times)
    return LinkTable.of(sizes, rows)


@given(tables(), st.integers(2, 40), st.integers(0, 2**30), st.integers(0, 2**30))
def test_any_table_obeys_the_laws(table: LinkTable, ways: int, x: int, y: int) -> None:
    small, large = sorted((x, y))
    for kind in (*KINDS, "collective_permute"):
        assert 0 < table.time(kind, ways, small) <= table.time(kind, ways, large)
    reduce, scatter, gather, exchange = (table.time(kind, ways, small) for kind in KINDS)
    assert scatter <= reduce <= scatter + gather + table.time("all_gather", ways, 0)
    assert exchange <= 1.05 * table.time("all_gather", ways, max(2**20, small * ways))


@pytest.mark.parametrize(
    ("sizes", "rows", "fact"),
    [
        ([], {}, "must be above 0 and grow"),
        ([0, 1], {}, "must be above 0 and grow"),
        ([2, 1], {}, "must be above 0 and grow"),
        ([1], {}, "needs times of all_reduce"),
        ([1], {"all_gather": {2: [1.0]}}, "needs times of all_reduce"),
        ([1], {"allreduce": {2: [1.0]}}, "no collective is called 'allreduce'"),
        ([1], {"all_reduce": {1: [1.0]}}, "two devices at least"),
        ([1], {"all_reduce": {2: [1.0, 2.0]}}, "2 times for 1 messages"),
        ([1, 2], {"all_reduce": {2: [2.0, 1.0]}}, "must not fall"),
        ([1], {"all_reduce": {2: [0.0]}}, "above 0"),
    ],
)
def test_impossible_tables_are_refused(sizes: list[int], rows: dict[str, dict[int, list[float]]], fact: str) -> None:
    with pytest.raises(HardwareError, match=fact):
        LinkTable.of(sizes, rows)


def test_a_series_stands_once() -> None:
    with pytest.raises(HardwareError, match="stands twice"):
        LinkTable((1,), (("all_reduce", 2, (5,)), ("all_reduce", 2, (5,))))


def test_equal_tables_are_equal_and_hashable() -> None:
    again = LinkTable(TABLE.sizes, TABLE.times)
    assert {again, TABLE} == {TABLE}


def test_a_ring_sends_its_bytes_at_one_rate() -> None:
    ring = Link(alpha=1e-6, beta=10**9, launch=5e-6)
    # Seven steps, each with an eighth of the message.
    assert ring.time("all_gather", 8, 8000) == (5 + 7 + 7) * 10**6
    assert ring.time("all_reduce", 8, 8000) == (5 + 14 + 14) * 10**6
    assert ring.time("collective_permute", 8, 8000) == (5 + 1 + 8) * 10**6


@pytest.mark.parametrize("wrong", [(-1.0, 1.0), (1.0, -1.0)])
def test_impossible_parameters_of_alpa_are_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(HardwareError):
        AlphaBetaLink(*wrong)
