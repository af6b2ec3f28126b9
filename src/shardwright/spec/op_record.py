"""`OpRecord`: all that the rule book knows of an op.

Propagation, costing, lowering and proving read the record and never test an op's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

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
    origin: str = ""
    """Who says so, where it is not the framework itself."""

    @property
    def tensors(self) -> tuple[tuple[str, str], ...]:
        return tuple(parameter for parameter in self.parameters if parameter[1] != "other")


Translation = Callable[[Mapping[str, Any], int, int], tuple[str, Mapping[str, Any]]]
"""From an op's attributes, the rank of its first operand and of its first result to another op that is the same."""

RuleText = str | tuple[str, Mapping[str, int]]
"""A rule's text, with sizes for the factors that shapes do not give."""
RuleSource = str | Callable[[Call], RuleText | OpShardingRule]


class Arithmetic(Protocol):
    """All that an op's exact meaning computes with: ``meaning(arithmetic, *operands, **attrs)``.

    Names and arguments are NumPy's; plain numbers are operands, too.  The proof hands in arithmetic modulo a prime,
    where sums do not depend on their order; a check of the op itself hands in NumPy's floats.  What is no sum, product
    or movement is said to be *some* function: by `apply`, `rising` or `along`, with a function or its name.  So a
    meaning uses no property of a function beyond those that it states.
    """

    def add(self, x: Any, y: Any) -> Any: ...
    def subtract(self, x: Any, y: Any) -> Any: ...
    def multiply(self, x: Any, y: Any) -> Any: ...
    def divide(self, x: Any, y: Any) -> Any: ...
    def negative(self, x: Any) -> Any: ...
    def maximum(self, x: Any, y: Any) -> Any: ...
    def minimum(self, x: Any, y: Any) -> Any: ...
    def where(self, condition: Any, x: Any, y: Any) -> Any: ...
    def matmul(self, x: Any, y: Any) -> Any: ...
    def einsum(self, equation: str, *operands: Any) -> Any: ...
    def sum(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any: ...
    def prod(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any: ...
    def max(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any: ...
    def min(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any: ...
    def cumsum(self, x: Any, axis: int) -> Any: ...
    def full(self, shape: Shape, value: Any) -> Any: ...
    def reshape(self, x: Any, shape: Any) -> Any: ...
    def transpose(self, x: Any, axes: Any = None) -> Any: ...
    def broadcast_to(self, x: Any, shape: Shape) -> Any: ...
    def concatenate(self, parts: Sequence[Any], axis: int = 0) -> Any: ...
    def flip(self, x: Any, axis: Any) -> Any: ...
    def roll(self, x: Any, shift: Any, axis: Any) -> Any: ...
    def take(self, x: Any, index: Any, axis: int) -> Any: ...

    def apply(self, function: Function, *operands: Any) -> Any:
        """Some function of the operands, element by element: equal in, equal out, and nothing more."""

    def rising(self, function: Function, x: Any) -> Any:
        """The same of one operand, and larger for what is larger: maxima and minima pass through it."""

    def along(self, function: Function, x: Any, axis: int) -> Any:
        """Some function of all elements along a dim together, which keeps the shape: ``function(x, axis=axis)``."""


Function = str | Callable[..., Any]
"""A function, or its name: the name tells two apart in the proof, the function computes in a check."""
Meaning = Callable[..., Any]
"""``meaning(arithmetic, *operands, **attrs)``; returns one array, or a tuple for several results."""


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op of the rule book.

    ``rule`` is text, or a function of the call for rules that depend on attributes.  ``transfers`` is the
    table of pending reductions.  ``cost`` names the cost class; ``meaning`` is what the op computes exactly, for
    the proof: a function over `Arithmetic`, or words that the proof knows; ``forms`` the local forms by factor.
    """

    name: str
    rule: RuleSource
    transfers: tuple[Transfer, ...] = ()
    flow: Flow = Flow.OTHER
    cost: str = "memory"
    meaning: str | Meaning | None = None
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
    origin: str = ""
    """Who gave the record, where it did not come with the project: then its rule is tried before it is used."""

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
