"""What our rule book calls Shardy's ops, and how shardings flow through them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from shardwright.ir.core import CONSTRAINT
from shardwright.propagation.engine import OpView
from shardwright.propagation.factors import Direction
from shardwright.spec.op_record import Flow
from shardwright.spec.rule import Factor, OpShardingRule, factor_name

Shapes = list[tuple[int, ...]]

# Pointwise ops of StableHLO; where the book has another name for one, that name.
_POINTWISE = """
    abs add and=bitwise_and atan2=arctan2 cbrt ceil clamp=clip compare=equal complex convert=cast cosine=cos
    count_leading_zeros=clz divide exponential=exp exponential_minus_one=expm1 floor imag is_finite=isfinite log
    log_plus_one=log1p logistic=sigmoid maximum minimum multiply negate=negative not=invert or=bitwise_or
    popcnt=popcount power real reduce_precision=copy remainder round_nearest_afz=rint round_nearest_even=rint rsqrt
    select=where shift_left=left_shift shift_right_arithmetic=right_shift shift_right_logical=right_shift sign
    sine=sin sqrt subtract tan tanh xor=bitwise_xor
"""
POINTWISE = dict((word.split("=") * 2)[:2] for word in _POINTWISE.split())
PASSING = {"reshape", "transpose", "optimization_barrier"}
# Custom calls that compute each element from the elements in its place.
POINTWISE_CALLS = {
    "CompactWyHelper", "InspectSharding", "X64SplitHigh", "X64SplitLow", "MoveToDevice", "MoveToHost",
    "LayoutConstraint", "mhlo.erf", "xla.megascale.provide_metadata", "annotate_device_placement",
}  # fmt: skip


def ints(text: str | None) -> tuple[int, ...]:
    """Numbers of an MLIR attribute: ``array<i64: 0, 2>``, ``[0, 2]``, ``1 : i64``."""
    if text is None:
        return ()
    text = re.sub(r"i\d+\b|tensor<[^>]*>", "", text)
    return tuple(int(word) for word in re.findall(r"-?\d+", text))


def flow_of(op: str) -> Flow:
    dialect, _, name = op.partition(".")
    if op == CONSTRAINT or (dialect == "stablehlo" and name in POINTWISE):
        return Flow.POINTWISE
    if dialect == "stablehlo" and name in PASSING:
        return Flow.VIEW
    if name in ("dynamic_slice", "dynamic_update_slice"):
        return Flow.FORWARD
    return Flow.BROADCAST if name == "broadcast_in_dim" else Flow.OTHER


def view_of(op: str, rule: OpShardingRule | None, shapes: Shapes, attrs: dict[str, Any]) -> OpView | None:
    """``shapes`` are those of the operands."""
    if op == CONSTRAINT:
        return OpView(OpShardingRule.identity(shapes[0]), Flow.POINTWISE)
    if op == "sdy.propagation_barrier":
        allowed = Direction(int(attrs["allowed_direction"].split()[0]))
        return OpView(OpShardingRule.identity(shapes[0]), only=allowed)
    if op == "stablehlo.optimization_barrier":
        return OpView(side_by_side(shapes), Flow.VIEW)
    if op == "sdy.data_flow_edge":
        return None if rule is None else OpView.tie(rule.shape_of(rule.results[0]), len(rule.operands))
    return None if rule is None else OpView(rule, flow_of(op))


def side_by_side(shapes: Shapes) -> OpShardingRule:
    """Each operand passes to the result in its place; they share no factor."""
    factors: list[Factor] = []
    tensors = []
    for shape in shapes:
        start = len(factors)
        factors += [Factor(factor_name(start + d), size) for d, size in enumerate(shape)]
        tensors.append(tuple((start + d,) for d in range(len(shape))))
    return OpShardingRule(tuple(factors), tuple(tensors), tuple(tensors))


def book_call(op: str, attrs: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The op and attributes by which our rule book knows a StableHLO op; None if it does not."""
    name = op.removeprefix("stablehlo.")
    if name in POINTWISE:
        return POINTWISE[name], {}
    if name == "custom_call":
        return custom_call(attrs)
    if name not in ATTRS or is_cut_short(attrs):
        return None
    ours, read = ATTRS[name]
    return ours, read(attrs)


# XLA has ways of its own to split these, so Shardy lets through more (once less) than local execution alone could.
XLA = {"partitioner": "xla"}


def custom_call(attrs: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    target = attrs.get("call_target_name", "").strip('"')
    if target in POINTWISE_CALLS:
        return "copy", {}
    if target in ("ApproxTopK", "PartialReduce"):
        config = (attrs.get("mhlo.backend_config") or attrs["backend_config"]).replace("\\22", "")
        return "approx_top_k", {"axis": ints(config.partition("reduction_dim")[2])[0], **XLA}
    return {
        "X64Combine": ("complex", {}),
        "mhlo.topk": ("top_k", {}),
        "Qr": ("qr", {}),
        "QrDecompositionBlock": ("qr", {}),
        "ProductOfElementaryHouseholderReflectors": ("householder_product", {}),
        "Eigh": ("eigh", XLA),
    }.get(target)


def named(**names: str) -> Callable[[dict[str, str]], dict[str, Any]]:
    """Ours = theirs, each a list of numbers."""
    return lambda attrs: {ours: ints(attrs[theirs]) for ours, theirs in names.items() if theirs in attrs}


def number(ours: str, theirs: str) -> Callable[[dict[str, str]], dict[str, Any]]:
    return lambda attrs: {ours: ints(attrs[theirs])[0]}


def numbers_in(text: str) -> dict[str, tuple[int, ...]]:
    """Dimension numbers: ``#stablehlo.gather<offset_dims = [2, 3], index_vector_dim = 2>``."""
    return {key: ints(value) for key, value in re.findall(r"(\w+) = (\[[^\]]*\]|\d+)", text)}


def dot_numbers(attrs: dict[str, str]) -> dict[str, Any]:
    found = {key.removesuffix("_dimensions"): dims for key, dims in numbers_in(attrs["dot_dimension_numbers"]).items()}
    short = {"lhs_batching": "lhs_batch", "rhs_batching": "rhs_batch"}
    return {short.get(key, key): value for key, value in found.items()}


def lookup_numbers(attrs: dict[str, str]) -> dict[str, Any]:
    """Of gather and scatter; a number that is 0 is left out of the text."""
    found: dict[str, Any] = numbers_in(attrs.get("dimension_numbers") or attrs["scatter_dimension_numbers"])
    found["index_vector_dim"] = found.get("index_vector_dim", (0,))[0]
    return {**found, **named(slice_sizes="slice_sizes")(attrs), **XLA}


def is_cut_short(attrs: dict[str, Any]) -> bool:
    """Records keep the first 200 characters of an attribute."""
    return any(value.startswith("#") and not value.endswith(">") for value in attrs.values())


def mend(attrs: dict[str, Any], operands: Shapes) -> dict[str, Any]:
    """Of a long scatter the record loses the number of the index vector's dim: the one that updates lack."""
    text = attrs.get("scatter_dimension_numbers", ">")
    if text.endswith(">") or "scatter_dims_to_operand_dims" not in text.rpartition("]")[0]:
        return attrs
    found = numbers_in(text)
    index, update = operands[len(operands) // 2], operands[-1]
    points = [size for d, size in enumerate(update) if d not in found["update_window_dims"]]
    length = len(found["scatter_dims_to_operand_dims"])
    fits = [d for d in range(len(index)) if [*index[:d], *index[d + 1 :]] == points and index[d] == length]
    fits = fits or ([len(index)] if list(index) == points else [])
    if len(fits) != 1:
        return attrs
    return {**attrs, "scatter_dimension_numbers": f"{text.rpartition(']')[0]}], index_vector_dim = {fits[0]}>"}


def dense(text: str) -> tuple[int, ...]:
    """``dense<0> : tensor<2x2xi64>`` says one number for all."""
    found = ints(text.partition(":")[0])
    count = prod(int(size) for size in re.findall(r"(\d+)x", text.partition("tensor<")[2]))
    return found * count if len(found) == 1 else found


def windows(attrs: dict[str, str]) -> dict[str, Any]:
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    found: dict[str, Any] = {name: ints(attrs[name]) for name in names if name in attrs}
    if "padding" in attrs:
        flat = dense(attrs["padding"])
        found["padding"] = tuple(zip(flat[::2], flat[1::2]))
    return found


def convolution(attrs: dict[str, str]) -> dict[str, Any]:
    """``#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>``"""
    sides = re.findall(r"\[([^\]]*)\]", attrs["dimension_numbers"])
    image, kernel, out = ("".join(side.split(", ")) for side in sides)
    groups = ("feature_group_count", "batch_group_count")
    return {"dims": f"{image},{kernel}->{out}", **{name: ints(attrs[name])[0] for name in groups}, **XLA}


def solve(attrs: dict[str, str]) -> dict[str, Any]:
    turned = "NO_TRANSPOSE" not in attrs["transpose_a"]
    return {"left_side": attrs["left_side"] == "true", "transpose_a": turned, **XLA}


PLAIN = named()
# StableHLO's op: ours, and how its attributes are read.
ATTRS: dict[str, tuple[str, Callable[[dict[str, str]], dict[str, Any]]]] = {
    "dot": ("dot", PLAIN),
    "dot_general": ("dot_general", dot_numbers),
    "reduce": ("reduce_sum", named(axis="dimensions")),
    "reshape": ("reshape", PLAIN),
    "transpose": ("transpose", named(permutation="permutation")),
    "broadcast_in_dim": ("broadcast_in_dim", named(broadcast_dimensions="broadcast_dimensions")),
    "slice": ("slice", named(start="start_indices", stop="limit_indices", step="strides")),
    "pad": ("pad", named(low="edge_padding_low", high="edge_padding_high", interior="interior_padding")),
    "concatenate": ("concatenate", number("axis", "dimension")),
    "reverse": ("reverse", named(dimensions="dimensions")),
    "dynamic_slice": ("dynamic_slice", PLAIN),
    "dynamic_update_slice": ("dynamic_update_slice", lambda _: XLA),
    "sort": ("sort", number("axis", "dimension")),
    "fft": ("fft", named(fft_length="fft_length")),
    "cholesky": ("cholesky", PLAIN),
    "triangular_solve": ("triangular_solve", solve),
    "convolution": ("convolution", convolution),
    "reduce_window": ("reduce_window", windows),
    "select_and_scatter": ("select_and_scatter", windows),
    "gather": ("stablehlo.gather", lookup_numbers),
    "scatter": ("stablehlo.scatter", lookup_numbers),
    "bitcast_convert": ("bitcast_convert", PLAIN),
    "batch_norm_inference": ("batch_norm_inference", number("feature_index", "feature_index")),
    "rng_bit_generator": ("rng_bit_generator", PLAIN),
    "rng": ("rng", PLAIN),
    "all_gather": ("stablehlo.all_gather", number("all_gather_dim", "all_gather_dim")),
    "all_reduce": ("stablehlo.all_reduce", PLAIN),
    "all_to_all": (
        "stablehlo.all_to_all",
        lambda attrs: {name: ints(attrs[name])[0] for name in ("split_dimension", "concat_dimension")},
    ),
    "reduce_scatter": ("stablehlo.reduce_scatter", number("scatter_dimension", "scatter_dimension")),
    "collective_permute": ("stablehlo.collective_permute", PLAIN),
    "collective_broadcast": ("stablehlo.collective_broadcast", PLAIN),
}


def without_xla(rule: OpShardingRule) -> OpShardingRule:
    """What only XLA's rewriting can split passes, as Shardy says it."""
    factors = tuple(replace(factor, form=None) if factor.form == "xla" else factor for factor in rule.factors)
    return replace(rule, factors=factors)


def looks_around(op: str, attrs: dict[str, Any], expected: OpShardingRule) -> bool:
    """Whether Shardy made this rule by looking at other ops, which the record of a rule does not hold.

    A concatenation counts as a permutation if its parts are slices; X64Combine is blocked if it feeds a random
    generator.
    """
    if op == "stablehlo.concatenate":
        return any(factor.permuted for factor in expected.factors)
    combines = "X64Combine" in attrs.get("call_target_name", "")
    return combines and any(factor.blocked for factor in expected.factors)


def conservative(rule: OpShardingRule, shapes: Shapes) -> OpShardingRule:
    """What Shardy's conservative mode leaves of a rule: no factor passes on that is permuted or misfits a dim.

    It either blocks such a factor or gives each tensor one of its own, which says the same; here it is the latter.
    """
    kept = [not (factor.permuted or factor.blocked) for factor in rule.factors]
    for mapped, shape in zip(rule.tensors, shapes):
        for dim, size in zip(mapped, shape):
            for f in dim if rule.shape_of((dim,)) != (size,) else ():
                kept[f] = False
    factors = list(rule.factors)
    tensors = []
    for mapped in rule.tensors:
        dims = []
        for dim in mapped:
            lost = [f for f in dim if not kept[f]]
            dims.append(tuple(f for f in dim if kept[f]) + tuple(range(len(factors), len(factors) + len(lost))))
            factors += [Factor(factor_name(len(factors) + i), factors[f].size) for i, f in enumerate(lost)]
        tensors.append(tuple(dims))
    reductions = tuple(tuple((f, kind) for f, kind in result if kept[f]) for result in rule.reductions)
    count = len(rule.operands)
    return OpShardingRule(tuple(factors), tuple(tensors[:count]), tuple(tensors[count:]), reductions)


def canonical(rule: OpShardingRule) -> tuple[object, ...]:
    """A rule without the names and the order of its factors, and without those that connect nothing.

    A factor of one tensor alone, not reduced, is never split: whether that is said makes no difference.  Where a
    dim has no other, its size makes none either.
    """
    homes = [sum(any(f in dim for dim in tensor) for tensor in rule.tensors) for f in range(len(rule.factors))]
    alone = [count == 1 and f not in rule.reduced for f, count in enumerate(homes)]
    tensors = [[() if all(alone[f] for f in dim) else dim for dim in tensor] for tensor in rule.tensors]
    order: list[int] = []
    for tensor in tensors:
        for dim in tensor:
            order += [f for f in dim if f not in order]
    rename = {old: new for new, old in enumerate(order)}
    factors = []
    for f in order:
        factor = rule.factors[f]
        factors.append((factor.size, factor.whole and not alone[f], factor.permuted, factor.blocked, factor.form))
    mapped = tuple(tuple(tuple(rename[f] for f in dim) for dim in tensor) for tensor in tensors)
    reduced = tuple(tuple(sorted((rename[f], kind) for f, kind in result)) for result in rule.reductions)
    return tuple(factors), mapped, reduced
