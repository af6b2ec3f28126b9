"""Ops by class: arithmetic, bytes, nothing; what splitting saves."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from shardwright import DeviceMesh, FactorSharding, OpShardingRule, RuleError, sharding_rule
from shardwright.cost import H100, Hardware, Roofline, compute_cost, hardware_of
from shardwright.cost.compute import (
    ARITHMETIC,
    CLASSES,
    SCORED,
    Work,
    cost_class,
    factor_axes,
    local_sizes,
    op_time,
    operations,
)
from shardwright.cost.files import preset_names
from shardwright.rules.registry import lookup, records
from shardwright.spec.axes import Axes

MESH = DeviceMesh("dp=2, tp=4")
DP, TP = MESH.axes
MATMUL = OpShardingRule.parse("m k, k n -> m n | m=512 k=1024 n=2048")
PLAIN = replace(H100, launch=0.0, flops_percent=100, bytes_percent=100, classes=())
"""No launch, no fitted factors: figures that can be worked out by hand."""


def axes(rule: OpShardingRule, **given: str) -> tuple[Axes, ...]:
    return FactorSharding.of(rule, MESH, given).axes


def test_a_matmul_is_its_flops_and_its_bytes() -> None:
    flops = 2 * 512 * 1024 * 2048
    touched = 4 * (512 * 1024 + 1024 * 2048 + 512 * 2048)
    expected = flops * 10**12 / PLAIN.peak("f32") + touched * 10**12 / PLAIN.bandwidth
    assert compute_cost(MATMUL, "matmul", axes(MATMUL), "f32", PLAIN) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("given", [{"m": "dp"}, {"k": "tp"}, {"m": "dp", "n": "tp"}, {"m": "dp+tp"}], ids=str)
def test_splitting_a_factor_divides_the_flops(given: dict[str, str]) -> None:
    chosen = axes(MATMUL, **given)
    ways = 1
    for over in chosen:
        for axis in over:
            ways *= axis.size
    whole = operations(MATMUL, "matmul", local_sizes(MATMUL, axes(MATMUL)))
    assert operations(MATMUL, "matmul", local_sizes(MATMUL, chosen)) * ways == whole
    assert compute_cost(MATMUL, "matmul", chosen, "f32", H100) < compute_cost(
        MATMUL, "matmul", axes(MATMUL), "f32", H100
    )


def test_uneven_shards_cost_as_much_as_the_largest() -> None:
    rule = OpShardingRule.parse("m k, k n -> m n | m=10 k=8 n=8")
    assert local_sizes(rule, axes(rule, m="tp")) == [3, 8, 8]
    padded = OpShardingRule.parse("m k, k n -> m n | m=12 k=8 n=8")
    costs = [compute_cost(r, "matmul", axes(r, m="tp"), "f32", H100) for r in (rule, padded)]
    assert costs[0] == costs[1]


def test_half_precision_is_faster() -> None:
    costs = [compute_cost(MATMUL, "matmul", axes(MATMUL), dtype, H100) for dtype in ("f32", "bf16", "f8e4m3")]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 3


@pytest.mark.parametrize("kind", ["pointwise", "reduce", "memory", "sort"])
def test_other_classes_cost_their_bytes(kind: str) -> None:
    rule = OpShardingRule.parse("i j -> i j | i=1024 j=512")
    expected = 2 * 4 * 1024 * 512 * 10**12 / PLAIN.bandwidth
    assert compute_cost(rule, kind, axes(rule), "f32", PLAIN) == pytest.approx(expected, abs=2)
    assert compute_cost(rule, kind, axes(rule, i="tp"), "f32", PLAIN) == pytest.approx(expected / 4, abs=2)


def test_each_tensor_may_have_its_own_type() -> None:
    rule = OpShardingRule.parse("i -> i | i=1000000")
    same, narrowed = (compute_cost(rule, "pointwise", axes(rule), t, PLAIN) for t in ("f32", ["f32", "bool"]))
    assert narrowed == pytest.approx(same * 5 / 8, abs=2)


def test_a_view_costs_nothing() -> None:
    rule = OpShardingRule.parse("i j -> j i | i=1024 j=512")
    assert compute_cost(rule, "view", axes(rule), "f32", H100) == 0


def test_a_lookup_does_not_read_its_table() -> None:
    small, large = (
        compute_cost(
            OpShardingRule.parse(f"v d, i -> i d ; v: whole | v={rows} d=64 i=32"), "gather", ((),) * 3, "f32", H100
        )
        for rows in (10_000, 10_000_000)
    )
    assert small == large


def test_a_convolution_does_not_multiply_by_the_image() -> None:
    attrs = {"dims": "b01f,01io->b01f"}
    for channels in (64, 96):
        rule = sharding_rule("convolution", [(8, 32, 32, channels), (3, 3, channels, 48)], [(8, 30, 30, 48)], attrs)
        assert operations(rule, "conv", rule.sizes) == 2 * (8 * 30 * 30 * 48) * (3 * 3 * channels)


def test_a_convolution_takes_64_input_channels_whatever_there_are() -> None:
    attrs = {"dims": "b01f,01io->b01f"}
    rule = sharding_rule("convolution", [(8, 32, 32, 3), (3, 3, 3, 48)], [(8, 30, 30, 48)], attrs)
    assert operations(rule, "conv", rule.sizes) == 2 * (8 * 30 * 30 * 48) * (3 * 3 * 64)


def test_a_bias_does_not_change_what_a_convolution_computes() -> None:
    """Nor does it on the way back, where each gradient that is wanted takes as much as the way there."""
    shapes = [(4, 64, 8, 8), (32, 64, 3, 3), (32,)]
    attrs: dict[str, Any] = {"groups": 1, "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False}
    there = 2 * (4 * 32 * 8 * 8) * (64 * 3 * 3)
    for operands in (shapes, shapes[:2]):
        rule = sharding_rule("aten.convolution", operands, [(4, 32, 8, 8)], attrs)
        assert operations(rule, "conv", rule.sizes) == there
    for wanted in itertools.product((True, False), repeat=3):
        if any(wanted):
            operands = [(4, 32, 8, 8), *shapes[:2]]
            results = [shape for shape, asked in zip(shapes, wanted) if asked]
            rule = sharding_rule("aten.convolution_backward", operands, results, {**attrs, "output_mask": wanted})
            assert operations(rule, "conv", rule.sizes) == there * sum(wanted[:2])


def test_an_op_of_no_elements_costs_its_launch() -> None:
    rule = OpShardingRule.parse("i -> i | i=0")
    assert compute_cost(rule, "pointwise", ((),), "f32", H100) == H100.roofline("pointwise").launch_ps


def test_costs_are_whole_numbers() -> None:
    assert type(compute_cost(MATMUL, "matmul", axes(MATMUL, m="dp"), "bf16", H100)) is int
    assert type(op_time("memory", 0, [1], [1], "f32", H100)) is int


def test_every_op_of_the_book_has_a_known_class() -> None:
    assert {record.cost for record in records()} <= set(CLASSES)


def test_a_record_brings_its_class_and_no_record_is_memory() -> None:
    assert cost_class(lookup("matmul")) == "matmul"
    assert cost_class(None) == "memory"


def test_an_unknown_class_is_an_error_that_names_the_near_one() -> None:
    with pytest.raises(RuleError, match="no cost class is called 'matmull'") as caught:
        cost_class("matmull")
    assert "did you mean 'matmul'?" in str(caught.value)
    with pytest.raises(RuleError) as caught:
        cost_class(replace(lookup("add"), cost="free"))
    assert "add" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("m k, k n -> m n | m=8 k=16 n=4", {"m": "dp", "k": "tp"}),
        ("m k, k n -> m n | m=8 k=16 n=4", {"n": "dp+tp"}),
        ("(a b) -> a b | a=2 b=8", {"a": "dp", "b": "tp"}),
    ],
)
def test_axes_can_be_read_off_the_shardings(text: str, given: dict[str, str]) -> None:
    rule = OpShardingRule.parse(text)
    chosen = FactorSharding.of(rule, MESH, given)
    assert factor_axes(rule, (*chosen.operand_specs, *chosen.result_specs)) == chosen.axes


ATTENTION = "b h q d, b h k d, b h k e -> b h q e | b=2 h=8 q=64 k=128 d=16 e=32"
BACKWARD = "b h q e, b h q d, b h k d, b h k e -> b h q d, b h k d, b h k e | b=2 h=8 q=64 k=128 d=16 e=32"


def test_attention_is_two_products_and_five_on_the_way_back() -> None:
    pairs = 2 * 8 * 64 * 128
    for text, expected in ((ATTENTION, 2 * pairs * (16 + 32)), (BACKWARD, 2 * pairs * (3 * 16 + 2 * 32))):
        rule = OpShardingRule.parse(text)
        local = local_sizes(rule, ((),) * len(rule.factors))
        assert operations(rule, "attention", local) == expected
        assert operations(rule, "attention", local, {"is_causal": False}) == expected
        # Of 128 keys 64 queries see half of the first 64.
        assert operations(rule, "attention", local, {"is_causal": True}) == expected // 4
        square = OpShardingRule.parse(text.replace("k=128", "k=64"))
        assert operations(square, "attention", square.sizes, {"is_causal": True}) == expected // 4


def test_attention_over_split_queries_takes_as_long_as_the_slowest_device() -> None:
    rule = OpShardingRule.parse(ATTENTION.replace("k=128", "k=64"))
    full = operations(rule, "attention", rule.sizes)
    q = [factor.name for factor in rule.factors].index("q")
    causal, window, prefix = ({"is_causal": True}, {"sees": "i-7 <= j <= i"}, {"sees": "j <= i or j < 48"})
    for ways in (1, 2, 4, 8):
        local = [size // ways if f == q else size for f, size in enumerate(rule.sizes)]
        # The last of n parts sees all keys before it, and half of its own.
        assert operations(rule, "attention", local, causal) == full * (2 * ways - 1) // (2 * ways**2)
        assert operations(rule, "attention", local, window) <= full * 8 // 64 // ways
        assert operations(rule, "attention", local, window) >= full * 6 // 64 // ways
        assert full * 48 // 64 // ways <= operations(rule, "attention", local, prefix) <= full // ways


def test_splitting_heads_divides_attention() -> None:
    rule = OpShardingRule.parse(ATTENTION)
    chosen = axes(rule, h="tp", b="dp")
    whole = operations(rule, "attention", local_sizes(rule, axes(rule)))
    assert operations(rule, "attention", local_sizes(rule, chosen)) * 8 == whole


def test_grouped_heads_count_by_query() -> None:
    plain = OpShardingRule.parse("b h q d, b h k d, b h k d -> b h q d | b=2 h=8 q=64 k=64 d=16")
    grouped = OpShardingRule.parse("b (h g) q d, b h k d, b h k d -> b (h g) q d | b=2 h=2 g=4 q=64 k=64 d=16")
    counts = [operations(r, "attention", local_sizes(r, ((),) * len(r.factors))) for r in (plain, grouped)]
    assert counts[0] == counts[1]


# -- scores and tiles -----------------------------------------------------------------------------------

SEEN = "b h q d, b h k d, b h k d -> b h q d | b={b} h={h} q={q} k={q} d={d}"
TILED = replace(PLAIN, bandwidth=10**30, classes=(("attention", Roofline(0.0, 100, 0, 10**12, 16)),))
"""One picosecond for a score; 16 tiles at once."""


def seen(b: int = 1, h: int = 1, q: int = 1024, d: int = 64, **causal: bool) -> Work:
    rule = OpShardingRule.parse(SEEN.format(b=b, h=h, q=q, d=d))
    return operations(rule, "attention", rule.sizes, {"is_causal": True} if causal.get("causal") else None)


def took(work: int, hardware: Hardware = TILED) -> int:
    return op_time("attention", work, [], [], "f32", hardware)


def test_scores_and_tiles_are_counted() -> None:
    for text, scores, tiles in ((ATTENTION, 1, 1), (BACKWARD, 3, 1), (BACKWARD.replace("k=128", "k=129"), 3, 2)):
        rule = OpShardingRule.parse(text)
        keys = rule.sizes[[f.name for f in rule.factors].index("k")]
        found = operations(rule, "attention", rule.sizes)
        assert (found.scores, found.tiles, found.uneven) == (scores * 2 * 8 * 64 * keys, 2 * 8 * tiles, False)
        causal = operations(rule, "attention", rule.sizes, {"is_causal": True})
        assert (causal.scores, causal.tiles, causal.uneven) == (scores * 2 * 8 * 64 * 64 // 2, found.tiles, True)


def test_grouped_heads_tile_by_query() -> None:
    grouped = OpShardingRule.parse("b (h g) q d, b h k d, b h k d -> b (h g) q d | b=1 h=2 g=4 q=300 k=300 d=16")
    found = operations(grouped, "attention", grouped.sizes)
    assert (found.scores, found.tiles) == (8 * 300 * 300, 8 * 3)


def test_attention_without_batch_or_heads_is_counted() -> None:
    rule = OpShardingRule.parse("q d, k d, k d -> q d | q=256 k=512 d=16")
    found = operations(rule, "attention", rule.sizes)
    assert (found, found.scores, found.tiles) == (4 * 256 * 512 * 16, 256 * 512, 2)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind not in SCORED])
def test_other_classes_have_no_scores(kind: str) -> None:
    found = operations(MATMUL, kind, MATMUL.sizes)
    assert (found.scores, found.tiles, found.stretch(132)) == (0, 0, (1, 1))


def test_a_full_device_takes_products_and_scores() -> None:
    work = seen(b=4, h=8, q=1024)
    expected = work * 10**12 / TILED.peak("f32") + work.scores
    assert took(work) == pytest.approx(expected, abs=2)
    assert took(seen(b=4, h=8, q=1024, d=32)) == pytest.approx(expected - work * 10**12 / TILED.peak("f32") / 2, abs=2)


def test_few_tiles_take_as_long_as_a_full_device() -> None:
    full, half, one = (took(seen(h=h, q=1024)) for h in (2, 1, 1))  # 16, 8 and 8 tiles for 16 units
    assert full == pytest.approx(half, abs=2)
    assert half == one
    assert took(seen(h=4, q=1024)) == pytest.approx(2 * full, abs=2)


def test_causal_saves_nothing_where_the_last_tile_decides() -> None:
    assert took(seen(h=2, causal=True)) == pytest.approx(took(seen(h=2)), abs=2)
    assert took(seen(h=512, causal=True)) == pytest.approx(took(seen(h=512)) / 2, rel=0.01)
    between = took(seen(h=8, causal=True)) / took(seen(h=8))
    assert 0.5 < between < 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [2, 3, 8, 40, 132, 1000])
def test_splitting_never_costs_and_a_stretch_is_none_below_one(size: int, causal: bool) -> None:
    whole, split = (took(seen(h=h, causal=causal)) for h in (size, -(-size // 2)))
    assert split <= whole + 2
    for units in (0, 1, 16, 132):
        times, over = seen(h=size, causal=causal).stretch(units)
        assert times >= over > 0


def test_without_constants_for_them_scores_and_tiles_cost_nothing() -> None:
    work = seen(h=1, causal=True)
    without = replace(PLAIN, classes=())
    assert took(work, without) == took(int(work), without)
    assert took(int(work)) < took(work)


def test_a_number_of_operations_is_a_number() -> None:
    work = seen()
    assert isinstance(work, int)
    assert (work, hash(work)) == (4 * 1024 * 1024 * 64, hash(int(work)))
    assert type(took(work)) is int


def test_no_queries_take_no_time() -> None:
    assert took(seen(q=0)) == 0
    assert seen(q=0).stretch(132) == (1, 1)


def test_a_split_is_costed_by_its_own_tiles() -> None:
    rule = OpShardingRule.parse(SEEN.format(b=2, h=8, q=512, d=64))
    by_rule = [compute_cost(rule, "attention", axes(rule, **given), "f32", TILED) for given in ({}, {"h": "tp"})]
    assert by_rule == [took(seen(b=2, h=8, q=512)), took(seen(b=2, h=2, q=512))]


def test_a_class_may_have_constants_of_its_own() -> None:
    rule = OpShardingRule.parse("i -> i | i=1000000")
    own = replace(PLAIN, classes=(("sort", Roofline(1e-6, 100, 300)),))
    plain = compute_cost(rule, "sort", axes(rule), "f32", PLAIN)
    assert compute_cost(rule, "sort", axes(rule), "f32", own) == pytest.approx(10**6 + 3 * plain, abs=3)
    assert compute_cost(rule, "pointwise", axes(rule), "f32", own) == plain


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("kind", ARITHMETIC)
@pytest.mark.parametrize("size", [64, 1024, 8192, 65536])
def test_no_op_is_faster_than_the_peak(name: str, kind: str, size: int) -> None:
    """Fitted constants below 100% promise more than the peak where bytes count for little."""
    hardware = hardware_of(name)
    for dtype in dict(hardware.flops):
        flops = 2 * size**3
        time = op_time(kind, Work(flops), [2 * size * size] * 2, [2 * size * size], dtype, hardware)
        assert time * hardware.peak(dtype) >= flops * 10**12
        assert time > op_time(kind, Work(flops // 8), [size * size // 2] * 2, [size * size // 2], dtype, hardware)


def test_rows_that_begin_anywhere_take_longer_unless_a_compiler_pads_them() -> None:
    odd, even = (OpShardingRule.parse(f"m k, k n -> m n | m=2048 k=4096 n={n}") for n in (50257, 50264))
    h200 = hardware_of("h200")

    def time(rule: OpShardingRule, dtype: str, hardware: Hardware) -> int:
        return compute_cost(rule, "matmul", axes(rule), dtype, hardware)

    assert time(odd, "bf16", h200) > 4 * time(even, "bf16", h200)
    assert time(odd, "f32", h200) < time(even, "f32", h200)  # other units, for which it does not matter
    assert time(odd, "bf16", h200.as_compiled()) < time(even, "bf16", h200)
    # Cut over four devices, a row of 12,565 is as bad.
    assert not operations(odd, "matmul", local_sizes(odd, axes(odd, n="tp"))).is_aligned(2)


def test_pointwise_ops_of_several_types_or_shapes_take_longer() -> None:
    h200 = hardware_of("h200")
    size = 2**26

    def time(*sizes: int) -> int:
        return op_time("pointwise", 0, sizes[:-1], sizes[-1:], "bf16", h200) - h200.roofline("pointwise").launch_ps

    alike, unlike = time(size, size, size), time(size, size // 64, size)
    assert unlike / (2 * size + size // 64) == pytest.approx(alike / (3 * size) * 182 / 120, rel=1e-3)
    assert time(size, 4, size) / (2 * size) == pytest.approx(alike / (3 * size), rel=1e-3)  # a number costs nothing


def test_attention_computes_whole_tiles() -> None:
    h200 = hardware_of("h200")

    def time(tokens: int) -> int:
        text = f"b h q d, b h k d, b h k e -> b h q e | b=64 h=16 q={tokens} k={tokens} d=128 e=128"
        rule = OpShardingRule.parse(text)
        spent = op_time("attention", operations(rule, "attention", rule.sizes), [1], [1], "bf16", h200)
        return spent - h200.roofline("attention").launch_ps

    assert time(257) == pytest.approx(time(384), rel=0.01)
    assert time(257) > 1.8 * time(256)
    assert time(1) < 0.02 * time(128)


def test_a_lookup_reads_whole_sectors() -> None:
    """Rows of one number take as long to read as rows of eight, so cutting a table finer saves only what is written."""
    rule = OpShardingRule.parse("v d, n -> n d | v=1000000 d=64 n=65536")

    def read(ways: int) -> int:
        columns = DeviceMesh(f"d={ways}").axes if ways > 1 else ()
        time = compute_cost(rule, "gather", ((), columns, ()), ("f32", "i64", "f32"), H100)
        written = op_time("gather", 0, [], [4 * 65536 * 64 // ways], "f32", H100)
        return time - written

    assert read(1) > 1.9 * read(2) > 3 * read(4)
    assert read(64) == read(32) == read(16) == read(8)
