"""Bytes of results, and the peak of a list of steps."""

from __future__ import annotations

import pytest

from shardwright import DeviceMesh, OpShardingRule, ShardingSpec, SpecError
from shardwright.cost import memory_cost
from shardwright.cost.memory import peak_live
from shardwright.ir.graph import TensorType
from shardwright.ir.lifetimes import Use

MESH = DeviceMesh("dp=2, tp=4")
MATMUL = OpShardingRule.parse("m k, k n -> m n | m=10 k=16 n=8")
F32, F16 = TensorType((10, 8), "f32"), TensorType((10, 8), "f16")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("[_, _]", 320), ("[dp, _]", 160), ("[dp, tp]", 40), ("[tp, _]", 3 * 8 * 4), ("[_, _] // tp", 320)],
)
def test_a_matmul_makes_its_output(spec: str, expected: int) -> None:
    assert memory_cost(MATMUL, [ShardingSpec.parse(spec, MESH)], [F32]) == expected
    assert memory_cost(MATMUL, [ShardingSpec.parse(spec, MESH)], [F16]) == expected // 2


def test_operands_may_be_given_along_and_do_not_count() -> None:
    specs = [ShardingSpec.replicate(MESH, 2)] * 3
    types = [TensorType((10, 16)), TensorType((16, 8)), F32]
    assert memory_cost(MATMUL, specs, types) == 320


def test_a_view_makes_nothing() -> None:
    rule = OpShardingRule.parse("i j -> j i | i=10 j=8")
    spec = ShardingSpec.replicate(MESH, 2)
    assert memory_cost(rule, [spec], [F32]) == 320
    assert memory_cost(rule, [spec], [F32], views=[(0, 0)]) == 0


def test_every_result_counts() -> None:
    rule = OpShardingRule.parse("i -> i, () | i=8")
    specs = [ShardingSpec.replicate(MESH, 1), ShardingSpec.replicate(MESH, 0)]
    assert memory_cost(rule, specs, [TensorType((8,)), TensorType((), "i64")]) == 40


@pytest.mark.parametrize("count", [0, 2, 4])
def test_as_many_shardings_as_results_are_needed(count: int) -> None:
    with pytest.raises(SpecError, match="results"):
        memory_cost(MATMUL, [ShardingSpec.replicate(MESH, 2)] * count, [F32] * count)


def test_values_live_from_their_maker_to_their_last_reader() -> None:
    # 0 -> 1 -> 2 -> 3, each of 10 bytes: never more than two at once.
    chain = [Use((i,), (i + 1,)) for i in range(3)]
    assert peak_live([10] * 4, [0], chain, [3]) == 20
    # The last step also reads the first value: it stays.
    assert peak_live([10] * 4, [0], [*chain[:2], Use((0, 2), (3,))], [3]) == 30


def test_outputs_and_unread_inputs_stay() -> None:
    chain = [Use((0,), (1,)), Use((1,), (2,))]
    assert peak_live([10, 10, 10], [0], chain, [1, 2]) == 20
    assert peak_live([10, 10, 10, 7], [0, 3], chain, [2]) == 27


def test_what_nobody_reads_dies_at_once() -> None:
    assert peak_live([10, 5, 1], [0], [Use((0,), (1,)), Use((0,), (2,))], [2]) == 15


def test_a_view_owns_nothing_and_keeps_its_base() -> None:
    sizes = [10, 10, 10, 10]
    plain = [Use((0,), (1,)), Use((1,), (2,)), Use((2,), (3,))]
    assert peak_live(sizes, [0], plain, [3]) == 20
    shown = [Use((0,), (1,), ((0, 0),)), Use((1,), (2,)), Use((1, 2), (3,))]
    assert peak_live(sizes, [0], shown, [3]) == 30
    # A view of a view that is returned keeps the base for ever.
    chained = [Use((0,), (1,), ((0, 0),)), Use((1,), (2,), ((0, 0),)), Use((2,), (3,))]
    assert peak_live(sizes, [0], chained, [2, 3]) == 20


def test_nothing_to_do() -> None:
    assert peak_live([3, 4], [0, 1], [], [0]) == 7
    assert peak_live([], [], [], []) == 0
