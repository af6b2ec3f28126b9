"""Sharding rules: what an op does, in named factors.

`RulePattern` is a rule as written, ``"... m k, ... k n -> ... m n"``; `OpShardingRule` is a pattern bound to
the shapes of one call, so every factor has a size and ``...`` has become factors of its own.

What a factor is follows from where it stands.  In operands and in a result it *passes through*; missing from
a result it is *reduced* in that result (by sum unless a note says otherwise, and not at all if that says ``same``);
only on the right it is *new*.
Notes say the rest: ``whole`` (never split), ``permuted`` (may be split, but data then moves between
neighbours), ``blocked`` (not propagated), ``form(name)`` (a local form computes it when split).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from ..errors import RuleError
from .axes import Axes, axes_text
from .bind import bind, bind_sized
from .notation import read_rule
from .rule_parts import ONE, SAME, Factor, FactorNote, Mapped, Pattern, Tensor, Transfer
from .sharding import Shape

__all__ = ["Factor", "FactorNote", "Mapped", "OpShardingRule", "RulePattern", "Transfer", "factor_name", "parse_rule"]


class RulePattern(Pattern):
    """A rule as written.

    >>> str(RulePattern.parse("m k,k n->m n"))
    'm k, k n -> m n'
    >>> RulePattern.parse("m k, k j -> m n")
    Traceback (most recent call last):
    ...
    shardwright.errors.RuleError: factor 'n' appears on the right but on no input
        m k, k j -> m n
                      ^
      help  rename 'j' to 'n', or size it as a new factor: rule(..., n=4)
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> RulePattern:
        return parse_rule(text)[0]

    def bind(
        self,
        operand_shapes: Sequence[Sequence[int]],
        result_shapes: Sequence[Sequence[int]] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> OpShardingRule:
        """Give every factor its size, from the shapes of one call."""
        return OpShardingRule(*bind(self, operand_shapes, result_shapes, sizes or {}))


@dataclass(frozen=True)
class OpShardingRule:
    """A rule bound to shapes.

    ``reductions[r]`` lists, for result r, the factors reduced in it and how.

    >>> rule = RulePattern.parse("m k, k n -> m n").bind([(8, 16), (16, 4)])
    >>> print(rule)
    m k, k n -> m n | m=8 k=16 n=4
    >>> rule.reductions, rule == OpShardingRule.parse(str(rule))
    ((((1, 'sum'),),), True)
    """

    factors: tuple[Factor, ...]
    operands: tuple[Mapped, ...]
    results: tuple[Mapped, ...]
    reductions: tuple[tuple[tuple[int, str], ...], ...] = ()
    transfers: tuple[Transfer, ...] = ()
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.reductions) != len(self.results):
            object.__setattr__(self, "reductions", ((),) * len(self.results))
        key = (self.factors, self.operands, self.results, self.reductions, self.transfers)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def parse(cls, text: str) -> OpShardingRule:
        return cls(*bind_sized(*read_rule(text)))

    @classmethod
    def identity(cls, shape: Shape, operands: int = 1) -> OpShardingRule:
        """Every dim passes through: copies, constraints, pointwise ops."""
        factors = tuple(Factor(factor_name(i), size) for i, size in enumerate(shape))
        mapped = tuple((i,) for i in range(len(shape)))
        return cls(factors, (mapped,) * operands, (mapped,))

    # -- questions --------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(factor.size for factor in self.factors)

    @cached_property
    def tensors(self) -> tuple[Mapped, ...]:
        return self.operands + self.results

    @cached_property
    def reduced(self) -> frozenset[int]:
        """Factors that some result reduces."""
        return frozenset(factor for result in self.reductions for factor, _ in result)

    @cached_property
    def pass_through(self) -> tuple[bool, ...]:
        """Factors that cost nothing to split: not reduced, whole or permuted."""
        return tuple(
            not (factor.whole or factor.permuted or i in self.reduced) for i, factor in enumerate(self.factors)
        )

    @cached_property
    def flows(self) -> tuple[tuple[bool, bool], ...]:
        """For each factor, whether it passes through and whether it is blocked: all that directions depend on."""
        return tuple((passes, factor.blocked) for passes, factor in zip(self.pass_through, self.factors))

    @cached_property
    def new(self) -> frozenset[int]:
        """Factors that stand only in results."""
        old = {factor for tensor in self.operands for dim in tensor for factor in dim}
        return frozenset(range(len(self.factors))) - old

    def index(self, name: str) -> int:
        for i, factor in enumerate(self.factors):
            if factor.name == name:
                return i
        raise RuleError(f"the rule has no factor {name!r}", text=str(self))

    def shape_of(self, mapped: Mapped) -> Shape:
        return tuple(prod(self.sizes[factor] for factor in dim) for dim in mapped)

    # -- text -------------------------------------------------------------------------------------------

    @cached_property
    def pattern(self) -> RulePattern:
        notes = []
        for i, factor in enumerate(self.factors):
            words = factor.words
            kinds = {kind for result in self.reductions for f, kind in result if f == i}
            if i in self.new and not factor.broadcast:
                words = ("new", *words)
            if len(kinds) == 1 and (kinds != {"sum"} or factor.form):
                words = (*kinds, *words)
            if words:
                notes.append(FactorNote(factor.name, words))
            for r, result in enumerate(self.reductions):
                if len(kinds) > 1:
                    notes.extend(FactorNote(factor.name, (kind,), r) for f, kind in result if f == i)
                if self._is_same(i, r) and (kinds or not factor.form):
                    notes.append(FactorNote(factor.name, (SAME,), r))
        return RulePattern(
            tuple(self._named(tensor) for tensor in self.operands),
            tuple(self._named(tensor) for tensor in self.results),
            tuple(notes),
            self.transfers,
        )

    def _is_same(self, f: int, r: int) -> bool:
        """Neither in the result nor reduced in it, though it could be."""
        factor = self.factors[f]
        if factor.whole or factor.permuted or factor.broadcast or f in self.new:
            return False
        return all(f not in dim for dim in self.results[r]) and all(f != g for g, _ in self.reductions[r])

    def _named(self, mapped: Mapped) -> Tensor:
        return tuple(
            ONE if any(self.factors[f].broadcast for f in dim) else tuple(self.factors[f].name for f in dim)
            for dim in mapped
        )

    def __str__(self) -> str:
        sizes = " ".join(f"{f.name}={f.size}" for f in self.factors if not f.broadcast)
        return f"{self.pattern} | {sizes}" if sizes else str(self.pattern)

    def text_with(self, axes: Mapping[int, Axes]) -> str:
        """The rule with the axes of its factors: ``m/dp k/tp, k/tp n -> m/dp n // tp``."""
        pending = []
        for reduced in self.reductions:
            parts = []
            for factor, kind in reduced:
                for axis in axes.get(factor, ()):
                    parts.append(str(axis) if kind == "sum" else f"{kind}({axis})")
            # Joined by +, since a comma begins the next result.
            pending.append(" // " + "+".join(parts) if parts else "")

        def name(f: int) -> str:
            factor = self.factors[f]
            over = axes.get(f, ())
            return f"{factor.name}/{axes_text(over)}" if over else ("1" if factor.broadcast else factor.name)

        def side(tensors: Sequence[Mapped], suffixes: Sequence[str]) -> str:
            texts = []
            for mapped, suffix in zip(tensors, suffixes):
                dims = [name(d[0]) if len(d) == 1 else f"({' '.join(map(name, d))})" for d in mapped]
                texts.append((" ".join(dims) or "()") + suffix)
            return ", ".join(texts)

        left = side(self.operands, [""] * len(self.operands))
        text = f"{left} -> {side(self.results, pending)}".strip()
        notes = [str(note) for note in self.pattern.notes]
        return " ; ".join([text, *notes])


def parse_rule(text: str) -> tuple[RulePattern, dict[str, int]]:
    """A rule as written: its pattern, and the sizes that a bound rule's text carries."""
    pattern, sizes = read_rule(text)
    return RulePattern(pattern.operands, pattern.results, pattern.notes, pattern.transfers), sizes


def factor_name(index: int) -> str:
    """i, j, k, ... z, then f18, f19, ...

    >>> [factor_name(i) for i in (0, 1, 17, 18)]
    ['i', 'j', 'z', 'f18']
    """
    return chr(ord("i") + index) if index < 18 else f"f{index}"
