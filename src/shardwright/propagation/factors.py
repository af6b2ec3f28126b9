"""How axes spread along the factors of one op: the *basic* and the *aggressive* strategy.

Both find, per factor, the longest list of axes on which all tensors agree (their compatible major axes), then
cut it where it would conflict.  The basic strategy propagates a list only if no tensor of the op objects, so
every tensor that has the factor ends up the same.  The aggressive one, the default, asks each tensor
separately: what fits one tensor goes there even if it does not fit another.  Where two factors want the same
axis on one tensor, the factor whose axes come from the larger tensor wins, then (pointwise ops) the one that
is split more ways, then the one that comes first.  Semantics are those of Shardy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntFlag
from math import gcd, prod
from typing import Protocol

from ..spec.axes import Axes, AxisRef, axes_size, is_prefix, is_strict_prefix, prefix_without_overlap
from .project import FactorAxes, Projection, TensorFactors


class Direction(IntFlag):
    """In which direction axes may flow through an op."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3


class Strategy(Protocol):
    def __call__(
        self, projection: Projection, directions: Sequence[Direction], *, pointwise: bool, conservative: bool
    ) -> set[int]:
        """Extend the factor axes in ``projection``; return which tensors changed (operands, then results)."""
        ...


def basic(
    projection: Projection, directions: Sequence[Direction], *, pointwise: bool, conservative: bool = False
) -> set[int]:
    """All tensors of the op or none."""
    changed: set[int] = set()
    for f, direction in enumerate(directions):
        size = projection.rule.sizes[f]
        axes = _agreed_axes(projection, f, direction)

        def fit(axis: AxisRef, before: int, f: int = f, size: int = size) -> AxisRef | None:
            kept: AxisRef | None = axis
            for tensor in projection.tensors:
                kept = _clear_of_other_factors(kept, tensor, f)
                if kept is not None and f in tensor.factors:
                    kept = _fit_within_factor(kept, before, tensor.factors[f], size, tensor.banned)
                if kept is None:
                    return None
            return kept

        axes = _cut_at_conflict(axes, fit, conservative)
        for t, tensor in enumerate(projection.tensors):
            factor = tensor.factors.get(f)
            if factor is not None and is_strict_prefix(factor.axes, axes):
                factor.axes = axes
                changed.add(t)
    return changed


def aggressive(
    projection: Projection, directions: Sequence[Direction], *, pointwise: bool, conservative: bool = False
) -> set[int]:
    """Each tensor on its own."""
    agreed = [_agreed_axes(projection, f, direction) for f, direction in enumerate(directions)]
    if not any(agreed):
        return set()
    order = _preference(projection, agreed, pointwise)
    changed: set[int] = set()
    first_result = len(projection.operands)
    # Results first: pointwise operands look at them below.
    for t, tensor in [*enumerate(projection.results, first_result), *enumerate(projection.operands)]:
        for f in order:
            axes = _fit_tensor(tensor, f, agreed[f], projection.rule.sizes[f], conservative)
            if pointwise and t < first_result:
                axes = _no_further_than_results(projection, f, axes)
            if is_strict_prefix(tensor.factors[f].axes if f in tensor.factors else axes, axes):
                tensor.factors[f].axes = axes
                changed.add(t)
    return changed


# -- agreement ------------------------------------------------------------------------------------------


def _agreed_axes(projection: Projection, f: int, direction: Direction) -> Axes:
    """The longest list compatible with every tensor, ignoring conflicts with other factors."""
    if direction == Direction.NONE:
        return ()
    leading, following = projection.operands, projection.results
    if direction == Direction.BACKWARD:
        leading, following = following, leading
    axes: Axes = ()
    extend = True
    for tensors in (leading, following):
        for tensor in tensors:
            factor = tensor.factors.get(f)
            if factor is not None:
                axes, extend = _agree(axes, factor.axes, extend)
        # One-way: the tensors at the far end can object, but not add.
        extend = extend and direction == Direction.BOTH
    return axes


def _agree(old: Axes, new: Axes, extend: bool) -> tuple[Axes, bool]:
    """Merge two lists; also say whether the result may still grow."""
    if not new:
        return old, extend
    if old == new:
        return old, extend
    for i in range(min(len(old), len(new))):
        mine, other = old[i], new[i]
        if mine == other:
            continue
        if other.prefix_of(mine):
            # The shorter list may be extended only at its end.
            return (old, extend) if i == len(new) - 1 else ((*old[:i], other), False)
        if mine.prefix_of(other):
            if not extend or i < len(old) - 1:
                return (*old[:i], mine), False
            return new, True
        return old[:i], False
    if len(new) > len(old) and extend:
        return new, True
    return old, extend


# -- conflicts ------------------------------------------------------------------------------------------


def _cut_at_conflict(axes: Axes, fit: Callable[[AxisRef, int], AxisRef | None], conservative: bool) -> Axes:
    """Keep axes up to the first that does not fit; of that one keep the part that does."""
    before = 1
    for i, axis in enumerate(axes):
        kept = fit(axis, before)
        if kept is None or (conservative and not kept.is_whole):
            return axes[:i]
        if kept != axis:
            return (*axes[:i], kept)
        before *= axis.size
    return axes


def _clear_of_other_factors(axis: AxisRef | None, tensor: TensorFactors, f: int) -> AxisRef | None:
    for other, factor in tensor.factors.items():
        if axis is None:
            return None
        if other != f:
            if factor.overflow:
                axis = prefix_without_overlap(axis, factor.overflow)
            if axis is not None and factor.axes:
                axis = prefix_without_overlap(axis, factor.axes)
    return axis


def _fit_within_factor(axis: AxisRef, before: int, factor: FactorAxes, size: int, banned: Axes) -> AxisRef | None:
    """What of ``axis`` may stand in this factor, after axes that already split it ``before`` ways."""
    kept = prefix_without_overlap(axis, banned) if banned else axis
    if kept is None:
        return None
    if any(mine.contains(kept) for mine in factor.axes):
        return kept
    if not factor.closed and not factor.overflow:
        if factor.minor_most:
            return kept
        # A factor with others below it must be split evenly.
        common = kept.size if size == 0 else gcd(kept.size, size // before if size % before == 0 else 1)
        if common == kept.size:
            return kept
        if common > 1:
            return AxisRef(kept.name, kept.pre, common, kept.full)
    if factor.axes and factor.axes[-1].prefix_of(kept):
        return factor.axes[-1]
    return None


def _fit_tensor(tensor: TensorFactors, f: int, axes: Axes, size: int, conservative: bool) -> Axes:
    factor = tensor.factors.get(f)
    if factor is None or not axes:
        return ()
    banned = tensor.banned
    axes = _cut_at_conflict(
        axes, lambda axis, before: _fit_within_factor(axis, before, factor, size, banned), conservative
    )
    if not is_strict_prefix(factor.axes, axes):
        return ()
    return _cut_at_conflict(axes, lambda axis, _: _clear_of_other_factors(axis, tensor, f), conservative)


def _no_further_than_results(projection: Projection, f: int, axes: Axes) -> Axes:
    """Between operands of a pointwise op, do not spread what the result cannot take.

    Otherwise ``add(a: [x], b: [?]) -> [_]`` would gather both operands instead of one.
    """
    for result in projection.results:
        factor = result.factors.get(f)
        if factor is not None and is_strict_prefix(factor.axes, axes):
            axes = factor.axes
    return axes


# -- preference -----------------------------------------------------------------------------------------


def _preference(projection: Projection, agreed: Sequence[Axes], pointwise: bool) -> list[int]:
    """Factors in the order in which they may claim axes."""
    source = [(-1, -1)] * len(agreed)  # per factor: size and index of the largest tensor its axes come from
    sizes = projection.rule.sizes
    for t, tensor in enumerate(projection.tensors):
        elements = prod(sizes[f] for f in tensor.factors)
        for f, factor in tensor.factors.items():
            if agreed[f] and elements > source[f][0] and is_prefix(agreed[f], factor.axes):
                source[f] = elements, t

    def key(f: int) -> tuple[int, int, int, int]:
        elements, t = source[f]
        return -elements, -axes_size(agreed[f]) if pointwise else 0, t, f

    return sorted((f for f in range(len(agreed)) if agreed[f]), key=key)
