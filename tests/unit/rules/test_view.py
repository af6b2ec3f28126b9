"""Views: ops that move no data."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from by_execution import check, text
from shardwright.errors import RuleError
from shardwright.rules import lookup
from shardwright.rules.view import reshape_rule
from shardwright.spec.rule import Mapped, OpShardingRule
from shardwright.spec.sharding import Shape

PASS = " ; P(any) -> P(any)"
X = np.arange(48.0).reshape(4, 6, 2)


@pytest.mark.parametrize(
    ("attrs", "rule"),
    [
        ({"permutation": (2, 0, 1)}, "i j k -> k i j"),
        ({"permutation": (0, -1, 1)}, "i j k -> i k j"),
        ({}, "i j k -> k j i"),
    ],
)
def test_transpose(attrs: dict[str, Any], rule: str) -> None:
    result = np.transpose(X, attrs.get("permutation")).shape
    assert text("transpose", [X.shape], [result], **attrs) == f"{rule}{PASS} | i=4 j=6 k=2"
    split, moved = check("transpose", lambda x: np.transpose(x, attrs.get("permutation")), [X], **attrs)
    assert (split, len(moved)) == (["i", "j", "k"], 5)


def test_no_order_of_dims() -> None:
    with pytest.raises(RuleError, match=r"\[0, 0\] is no order of 2 dims"):
        text("transpose", [(2, 3)], [(2, 3)], permutation=(0, 0))


@pytest.mark.parametrize(
    ("operand", "result", "dims", "rule"),
    [
        ((4, 6), (2, 4, 6), (1, 2), "j k -> i j k ; i: new"),
        ((4, 1), (4, 6), (0, 1), "i 1 -> i j ; j: new"),
        ((6, 4), (4, 6), (1, 0), "j i -> i j"),
        ((), (4,), (), "() -> i ; i: new"),
    ],
)
def test_broadcast_in_dim(operand: Any, result: Any, dims: Any, rule: str) -> None:
    found = text("broadcast_in_dim", [operand], [result], broadcast_dimensions=dims)
    assert found.split(" | ")[0] == rule + PASS


def test_broadcast_to() -> None:
    assert text("broadcast_to", [(6,)], [(4, 6)]).split(" | ")[0] == f"j -> i j ; i: new{PASS}"


@pytest.mark.parametrize(
    ("shape", "result", "rule"),
    [
        ((8, 4), (32,), "i j -> (i j)"),
        ((32,), (8, 4), "(i j) -> i j"),
        ((8, 4), (4, 8), "(i j) k -> i (j k)"),
        ((4, 1, 6), (4, 6), "i 1 j -> i j"),
        ((4, 6), (1, 4, 6, 1), "i j -> 1 i j 1"),
        ((3, 4), (4, 3), "i j -> k l ; i: whole ; j: whole ; k: new whole ; l: new whole"),
        ((), (1,), "() -> 1"),
        ((2, 0), (0, 5), "i j -> k l ; i: whole ; j: whole ; k: new whole ; l: new whole"),
    ],
)
def test_reshape(shape: Shape, result: Shape, rule: str) -> None:
    names = str(reshape_rule(shape, result).pattern).removesuffix(PASS)
    order = [letter for letter in dict.fromkeys(names) if letter in "ijklmnop"]
    renamed = "".join("ijklmnop"[order.index(c)] if c in order else c for c in names.split(" ; ")[0])
    assert renamed == rule.split(" ; ")[0]
    assert names.count("whole") == rule.count("whole")


@pytest.mark.parametrize("op", ["squeeze", "expand_dims", "flatten"])
def test_other_names_of_reshape(op: str) -> None:
    assert text(op, [(4, 1, 6)], [(4, 6)]) == text("reshape", [(4, 1, 6)], [(4, 6)])
    assert lookup(op).view


# -- any reshape ----------------------------------------------------------------------------------------


@st.composite
def shapes_of(draw: st.DrawFn, primes: tuple[int, ...]) -> Shape:
    """Put primes together to dims, with a few 1s between."""
    dims = [1]
    for prime in draw(st.permutations(primes)):
        if draw(st.booleans()):
            dims.append(1)
        dims[-1] *= prime
    return tuple(dims) if draw(st.booleans()) else tuple(dim for dim in dims if dim != 1)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Shape, Shape]:
    primes = tuple(draw(st.lists(st.sampled_from((2, 2, 2, 3, 5)), max_size=6)))
    return draw(shapes_of(primes)), draw(shapes_of(primes))


def offsets(rule: OpShardingRule, mapped: Mapped) -> dict[int, int]:
    """Of each factor, the number of blocks that stand before it in row-major order."""
    found, before = {}, 1
    for f in (f for dim in mapped for f in dim):
        found[f] = before
        before *= rule.sizes[f]
    return found


def shard(rule: OpShardingRule, mapped: Mapped, array: Any, f: int, ways: int, part: int) -> Any:
    """The part of a tensor that a device has if a factor, wherever it stands in its dim, is split evenly."""
    inner = [g for dim in mapped for g in dim]
    pieces = np.split(array.reshape([rule.sizes[g] for g in inner]), ways, inner.index(f))
    shape = [prod(rule.sizes[g] // (ways if g == f else 1) for g in dim) for dim in mapped]
    return pieces[part].reshape(shape)


@given(reshapes())
def test_reshape_of_anything(shapes: tuple[Shape, Shape]) -> None:
    shape, result = shapes
    rule = reshape_rule(shape, result)
    (operand,), (target,) = rule.operands, rule.results
    assert (rule.shape_of(operand), rule.shape_of(target)) == (shape, result)
    assert OpShardingRule.parse(str(rule)) == rule
    left, right = offsets(rule, operand), offsets(rule, target)
    x = np.arange(prod(shape)).reshape(shape)
    for f, factor in enumerate(rule.factors):
        if f not in left or f not in right:
            assert factor.whole or factor.broadcast
            continue
        assert left[f] == right[f]
        for ways in (w for w in (2, 3, 5) if factor.size % w == 0):
            for part in range(ways):
                here = shard(rule, operand, x, f, ways, part)
                there = shard(rule, target, x.reshape(result), f, ways, part)
                assert np.array_equal(here.reshape(there.shape), there)


@given(reshapes())
def test_reshape_names_all_that_is_common(shapes: tuple[Shape, Shape]) -> None:
    """Where both shapes have a dim boundary, no factor crosses it, and a dim that both have there is one factor."""
    shape, result = shapes
    rule = reshape_rule(shape, result)
    left, right = ([d for d in side if d != 1] for side in (shape, result))
    if left and right and left[0] == right[0]:
        first = next(dim for dim, size in zip(rule.operands[0], shape) if size != 1)
        assert len(first) == 1
        assert first[0] not in rule.new
        assert rule.pass_through[first[0]]
