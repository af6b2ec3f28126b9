"""`FactorSharding`: for one op, which mesh axes each factor is given.

This is the choice that everything else follows from: the specs of all operands and results, and which
results are left pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from ..errors import SpecError
from .axes import Axes, AxisRef, axes_size, merge_axes
from .mesh import DeviceMesh
from .notation import parse_sharded_rule
from .rule import Mapped, OpShardingRule
from .sharding import DimSpec, ShardingSpec, sort_partial


@dataclass(frozen=True, slots=True)
class FactorSharding:
    """Axes for factors, by index into the rule.

    >>> mesh = DeviceMesh("dp=2, tp=4")
    >>> rule = OpShardingRule.parse("m k, k n -> m n | m=8 k=16 n=4")
    >>> chosen = FactorSharding.of(rule, mesh, {"m": "dp", "k": "tp"})
    >>> print(chosen)
    m/dp k/tp, k/tp n -> m/dp n // tp
    >>> print(*chosen.operand_specs, *chosen.result_specs)
    [dp, tp] [tp, _] [dp, _] // tp
    """

    rule: OpShardingRule
    mesh: DeviceMesh
    axes: tuple[Axes, ...]

    @classmethod
    def of(cls, rule: OpShardingRule, mesh: DeviceMesh, axes: Mapping[str, str | tuple[str, ...]]) -> FactorSharding:
        """From factor names and axis names, checked."""
        chosen: list[Axes] = [()] * len(rule.factors)
        for name, words in axes.items():
            split = words.split("+") if isinstance(words, str) else words
            chosen[rule.index(name)] = merge_axes(mesh.axis(word) for word in split)
        used: list[tuple[AxisRef, str]] = []
        for factor, given in zip(rule.factors, chosen):
            for axis in given:
                for other, place in used:
                    if axis.excludes(other):
                        fact = f"mesh axis {axis} is given to two factors: {place} and {factor.name}"
                        if not axis.overlaps(other):
                            fact = f"{other} of {place} and {axis} of {factor.name} cannot coexist"
                        raise SpecError(fact, rows=[("rule", str(rule))])
                used.append((axis, factor.name))
        made = cls(rule, mesh, tuple(chosen))
        made._check_majors()
        return made

    def _check_majors(self) -> None:
        """A minor factor of a dim can be split only under a fully split major one."""
        for tensor in self.rule.tensors:
            for dim in tensor:
                for major, minor in pairwise(dim):
                    if self.axes[minor] and axes_size(self.axes[major]) != self.rule.sizes[major]:
                        names = self.rule.factors[minor].name, self.rule.factors[major].name
                        raise SpecError(
                            f"factor {names[0]!r} is split under {names[1]!r}, which is not all split",
                            rows=[("rule", str(self.rule))],
                            help=f"split {names[1]!r} {self.rule.sizes[major]} ways first",
                        )

    @classmethod
    def parse(cls, text: str, mesh: DeviceMesh, rule: OpShardingRule) -> FactorSharding:
        """The inverse of ``str``; the rule brings the sizes."""
        _, axes = parse_sharded_rule(text, mesh)
        chosen = tuple(axes.get(factor.name, ()) for factor in rule.factors)
        return cls(rule, mesh, chosen)

    def __str__(self) -> str:
        return self.rule.text_with({f: axes for f, axes in enumerate(self.axes) if axes})

    @property
    def operand_specs(self) -> tuple[ShardingSpec, ...]:
        return tuple(self._spec(mapped) for mapped in self.rule.operands)

    @property
    def result_specs(self) -> tuple[ShardingSpec, ...]:
        """Specs of the results as local computation leaves them: pending where a split factor is reduced."""
        specs = []
        for mapped, reduced in zip(self.rule.results, self.rule.reductions):
            pending = [(axis, kind) for factor, kind in reduced for axis in self.axes[factor]]
            partial = sort_partial(pending, self.mesh)
            specs.append(ShardingSpec.make(self.mesh, self._spec(mapped).dims, partial))
        return tuple(specs)

    def _spec(self, mapped: Mapped) -> ShardingSpec:
        dims = []
        for dim in mapped:
            axes: list[AxisRef] = []
            for f in dim:
                axes.extend(self.axes[f])
                split = 1
                for axis in self.axes[f]:
                    split *= axis.size
                if split < self.rule.sizes[f]:
                    break  # a minor factor of a dim can be split only under a fully split major one
            dims.append(DimSpec(merge_axes(axes)))
        return ShardingSpec.make(self.mesh, tuple(dims))
