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
from .sharding import Shape

REDUCED_BY = ("sum", "max", "min", "prod")
SAME = "same"
"""What is said of a factor in a result that does not depend on it: every device computes that result alike."""
FLAG_WORDS = ("whole", "permuted", "new", "blocked")

Dim = tuple[str, ...]
Tensor = tuple[Dim, ...]
ELLIPSIS: Dim = ("...",)
ONE: Dim = ("1",)
"""A dim of size 1 that is broadcast: it has no factor to split."""


@dataclass(frozen=True, slots=True)
class FactorNote:
    """What is said of a factor after a semicolon, for all results or for one."""

    factor: str
    words: tuple[str, ...]
    result: int | None = None

    def __str__(self) -> str:
        where = "" if self.result is None else f"@{self.result}"
        return f"{self.factor}{where}: {' '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A line of the table of pending reductions: operands pending like this leave results pending like that.

    ``P(any)`` stands for any kind, the same in every place.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.operands)} -> {', '.join(self.results)}"


@dataclass(frozen=True, slots=True)
class RulePattern:
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

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    notes: tuple[FactorNote, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    @classmethod
    def parse(cls, text: str) -> RulePattern:
        from .notation import parse_rule

        return parse_rule(text)[0]

    def __str__(self) -> str:
        sides = [_side_text(self.operands), _side_text(self.results)]
        clauses = [" -> ".join(sides).strip(), *map(str, self.notes), *map(str, self.transfers)]
        return " ; ".join(clauses)

    def bind(
        self,
        operand_shapes: Sequence[Sequence[int]],
        result_shapes: Sequence[Sequence[int]] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> OpShardingRule:
        """Give every factor its size, from the shapes of one call."""
        from .bind import bind

        return bind(self, operand_shapes, result_shapes, sizes or {})


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor with its size and what may be done with it."""

    name: str
    size: int
    whole: bool = False
    permuted: bool = False
    blocked: bool = False
    broadcast: bool = False
    """Stands for a ``1``: a size-1 dim that other tensors do not have."""
    form: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        flags = (("whole", self.whole), ("permuted", self.permuted), ("blocked", self.blocked))
        words = tuple(word for word, on in flags if on)
        return (*words, f"form({self.form})") if self.form else words


Mapped = tuple[tuple[int, ...], ...]
"""One tensor: the factors of each dim, major to minor, as indices."""


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
        from .bind import rule_from_pattern
        from .notation import parse_rule

        return rule_from_pattern(*parse_rule(text))

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


def _side_text(tensors: Sequence[Tensor]) -> str:
    def dim_text(dim: Dim) -> str:
        return dim[0] if len(dim) == 1 else f"({' '.join(dim)})"

    return ", ".join(" ".join(map(dim_text, tensor)) or "()" for tensor in tensors)


def factor_name(index: int) -> str:
    """i, j, k, ... z, then f18, f19, ...

    >>> [factor_name(i) for i in (0, 1, 17, 18)]
    ['i', 'j', 'z', 'f18']
    """
    return chr(ord("i") + index) if index < 18 else f"f{index}"
