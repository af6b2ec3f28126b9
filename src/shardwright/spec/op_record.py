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
    slots: tuple[int | None, ...] | None = None
    """For ops with optional or list operands: how many tensors each parameter has, None for an absent one."""

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def has(self, slot: int) -> bool:
        """Whether the operand at this place of the op's parameters is there."""
        return slot < len(self.operands) if self.slots is None else self.slots[slot] is not None

    def at(self, slot: int) -> Shape:
        """The shape of the operand at this place; of the first, if it is a list."""
        if self.slots is None:
            return self.operands[slot]
        return self.operands[sum(count or 0 for count in self.slots[:slot])]


def slots_of(operands: Sequence[object]) -> tuple[int | None, ...] | None:
    """What `Call.slots` says of these operands: None if each is one tensor."""
    if all(isinstance(operand, int) for operand in operands):
        return None
    return tuple(None if o is None else len(o) if isinstance(o, tuple | list) else 1 for o in operands)


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What a framework says of an operator: from this, rules of whole families are made."""

    name: str
    """As it stands in graphs: ``aten.add.Tensor``."""
    short: str
    """Without namespace and overload: ``add``."""
    tags: frozenset[str]
    parameters: tuple[tuple[str, str], ...]
    """Name and kind of each: ``tensor``, ``tensors`` (a list) or ``other``."""
    results: tuple[str, ...]

    @property
    def tensors(self) -> tuple[tuple[str, str], ...]:
        return tuple(parameter for parameter in self.parameters if parameter[1] != "other")


Translation = Callable[[Mapping[str, Any], int, int], tuple[str, Mapping[str, Any]]]
"""From an op's attributes, the rank of its first operand and of its first result to another op that is the same."""

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
    same_as: Translation | None = None
    """The op of another vocabulary that computes the same: its rule and its meaning hold for this one."""

    def bind(
        self,
        operands: Sequence[Sequence[int]],
        results: Sequence[Sequence[int]],
        attrs: Mapping[str, Any] | None = None,
        slots: tuple[int | None, ...] | None = None,
    ) -> OpShardingRule:
        """The rule of one call."""
        call = Call(tuple(map(tuple, operands)), tuple(map(tuple, results)), attrs or {}, slots)
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
