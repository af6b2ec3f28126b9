"""Between dims and factors: what a tensor's sharding says of each factor of an op, and back.

A dim made of several factors is filled from its major axis and its major factor on: a factor takes axes (or
parts of them) until it is fully split, then the next factor goes on.  Axes that fit no more, because what is
left of the factor and of the axis have no common divisor, *overflow*: they stay on the dim, and the factors
after them cannot be split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from ..spec.axes import Axes, AxisRef, axes_size
from ..spec.mesh import DeviceMesh
from ..spec.rule import Mapped, OpShardingRule
from ..spec.sharding import DimSpec, Partial, ShardingSpec


@dataclass(slots=True)
class FactorAxes:
    """One factor of one tensor."""

    axes: Axes = ()
    overflow: Axes = ()
    closed: bool = False
    minor_most: bool = True
    """Only the minor-most factor of a dim may be split unevenly."""


@dataclass(slots=True)
class TensorFactors:
    """One tensor in terms of factors."""

    factors: dict[int, FactorAxes]
    replicated: Axes = ()
    partial: Partial = ()

    @property
    def banned(self) -> Axes:
        """Axes that may not cut this tensor."""
        if self.partial:
            return self.replicated + tuple(axis for axis, _ in self.partial)
        return self.replicated


def project(mapped: Mapped, spec: ShardingSpec | None, sizes: Sequence[int]) -> TensorFactors:
    """Dims to factors; None is a tensor about which nothing is said."""
    found: dict[int, FactorAxes] = {}
    for d, dim in enumerate(mapped):
        axes: list[AxisRef] = list(spec.dims[d].axes) if spec is not None else []
        closed = spec is not None and not spec.dims[d].open
        last = len(dim) - 1
        blocked = False
        for place, f in enumerate(dim):
            if blocked:
                found[f] = FactorAxes((), (), True, place == last)
            elif place == last:
                found[f] = FactorAxes(tuple(axes), (), closed, True)
            else:
                taken, left = _take(axes, sizes[f])
                overflow = tuple(axes) if left > 1 else ()
                blocked = bool(overflow)
                found[f] = FactorAxes(taken, overflow, closed, False)
    if spec is None:
        return TensorFactors(found)
    return TensorFactors(found, spec.replicated, spec.partial)


def _take(axes: list[AxisRef], size: int) -> tuple[Axes, int]:
    """Move from the front of ``axes`` what splits a factor of this size; also say what is left of it."""
    taken: list[AxisRef] = []
    while axes:
        common = gcd(size, axes[0].size)
        if common == 1 and axes[0].size > 1:
            break
        if axes[0].size > common:
            major, axes[0] = axes[0].split(common)
            taken.append(major)
            size //= common
        else:
            size //= axes[0].size
            taken.append(axes.pop(0))
    return tuple(taken), size


def unproject(tensor: TensorFactors, mapped: Mapped, sizes: Sequence[int], mesh: DeviceMesh) -> ShardingSpec:
    """Factors to dims; axes of a minor factor under a major one that is not fully split are dropped."""
    dims: list[DimSpec] = []
    for dim in mapped:
        axes: list[AxisRef] = []
        closed = False
        for f in dim:
            factor = tensor.factors[f]
            closed |= factor.closed
            _append(axes, factor.axes)
            if factor.overflow:
                _append(axes, factor.overflow)
                break
            if axes_size(factor.axes) < sizes[f]:
                break
        dims.append(DimSpec(tuple(axes), not closed))
    return ShardingSpec.make(mesh, tuple(dims), tensor.partial, tensor.replicated)


def _append(axes: list[AxisRef], more: Axes) -> None:
    for i, axis in enumerate(more):
        if i == 0 and axes and axes[-1].can_merge(axis):
            axes[-1] = axes[-1].merge(axis)
        else:
            axes.append(axis)


@dataclass(slots=True)
class Projection:
    """All tensors of one op in terms of factors."""

    rule: OpShardingRule
    operands: list[TensorFactors]
    results: list[TensorFactors]

    @classmethod
    def of(cls, rule: OpShardingRule, specs: Sequence[ShardingSpec | None]) -> Projection:
        """``specs`` are those of the operands, then of the results."""
        sizes = rule.sizes
        tensors = [project(mapped, spec, sizes) for mapped, spec in zip(rule.tensors, specs)]
        count = len(rule.operands)
        return cls(rule, tensors[:count], tensors[count:])

    @property
    def tensors(self) -> list[TensorFactors]:
        return self.operands + self.results

    def specs(self, mesh: DeviceMesh) -> list[ShardingSpec]:
        sizes = self.rule.sizes
        return [unproject(t, mapped, sizes, mesh) for t, mapped in zip(self.tensors, self.rule.tensors)]

    def table(self, names: Sequence[str] = ()) -> str:
        """Factors by tensors as a table: what an op does with shardings, as Shardy's debug print shows it.

        >>> from shardwright.spec.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, tp=4")
        >>> rule = OpShardingRule.parse("m k, k n -> m n | m=8 k=16 n=4")
        >>> specs = [ShardingSpec.parse("[dp, tp]", mesh), None, None]
        >>> print(Projection.of(rule, specs).table(["x", "w", "h"]))
                m=8  k=16  n=4
        x       dp   tp    -
        w       -    ?     ?
        h       ?    -     ?
        """
        rule = self.rule
        shown = [f for f, factor in enumerate(rule.factors) if not factor.broadcast]
        names = names or [f"operand {i}" for i in range(len(self.operands))] + [
            f"result {i}" for i in range(len(self.results))
        ]
        width = max(8, *(len(name) + 2 for name in names)) if names else 8
        head = [f"{rule.factors[f].name}={rule.factors[f].size}" for f in shown]
        rows = []
        for name, tensor in zip(names, self.tensors):
            cells = []
            for f in shown:
                factor = tensor.factors.get(f)
                cells.append("-" if factor is None else str(DimSpec(factor.axes + factor.overflow, not factor.closed)))
            cells = [cell.removesuffix("+?") for cell in cells]
            rows.append((name, cells))
        widths = [max(len(head[i]), *(len(cells[i]) for _, cells in rows)) + 2 for i in range(len(shown))]
        lines = [" " * width + "".join(f"{word:<{w}}" for word, w in zip(head, widths))]
        lines += [f"{name:<{width}}" + "".join(f"{c:<{w}}" for c, w in zip(cells, widths)) for name, cells in rows]
        return "\n".join(line.rstrip() for line in lines)
