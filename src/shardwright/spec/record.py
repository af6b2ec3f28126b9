"""`OpRecord`: all that the rule book knows of an op.

Propagation, costing, lowering and proving read the record and never test an op's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .rule import OpShardingRule, RulePattern, Transfer
from .sharding import Shape


class Flow(Enum):
    """How eagerly shardings pass through an op during propagation."""

    POINTWISE = "pointwise"
    VIEW = "view"
    FORWARD = "forward"
    BROADCAST = "broadcast"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Call:
    """What a rule may depend on: the shapes of one call and its attributes."""

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)


RuleText = str | tuple[str, Mapping[str, int]]
"""A rule's text, with sizes for the factors that shapes do not give."""
RuleSource = str | Callable[[Call], RuleText | OpShardingRule]


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op of the rule book.

    ``rule`` is text, or a function of the call for rules that depend on attributes.  ``transfers`` is the
    table of pending reductions.  ``cost`` names the cost class; ``meaning`` what the op computes exactly, for
    the proof; ``forms`` the local forms by factor.
    """

    name: str
    rule: RuleSource
    transfers: tuple[Transfer, ...] = ()
    flow: Flow = Flow.OTHER
    cost: str = "memory"
    meaning: str | None = None
    forms: Mapping[str, str] = field(default_factory=dict)
    view: bool = False
    alias: bool = False
    random: bool = False
    in_place: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    doc: str = ""
    beyond: str = ""
    """Why the rule leaves out what discovery finds of the op."""

    def bind(
        self,
        operands: Sequence[Sequence[int]],
        results: Sequence[Sequence[int]],
        attrs: Mapping[str, Any] | None = None,
    ) -> OpShardingRule:
        """The rule of one call."""
        call = Call(tuple(map(tuple, operands)), tuple(map(tuple, results)), attrs or {})
        said = self.rule if isinstance(self.rule, str) else self.rule(call)
        if isinstance(said, OpShardingRule):
            return said
        text, sizes = (said, {}) if isinstance(said, str) else said
        return _pattern(text).bind(call.operands, call.results, {**self.sizes, **sizes})


_patterns: dict[str, RulePattern] = {}


def _pattern(text: str) -> RulePattern:
    found = _patterns.get(text)
    if found is None:
        found = _patterns[text] = RulePattern.parse(text)
    return found
