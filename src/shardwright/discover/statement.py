"""The smallest statement of what was found: rules over all shapes and keyword values, with conditions.

A rule's terms are placements, or `ShardedOn` an expression in ``d``, a dim of the reference tensor.  Expressions and
conditions carry the text a person reads and the Python that emitted code evaluates, over these names:
``d``; ``rank[i]`` and ``shape[i]`` of tensor input i; and the operator's own arguments by name, dims made
non-negative (``dim``; a list of dims is a tuple, None being all dims).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .operator import Operator, Sample
from .placement import Placement, R


@dataclass(frozen=True, slots=True)
class Expr:
    """A dim, or a truth, as text for people and as Python."""

    text: str
    code: str
    uses: frozenset[str] = frozenset()
    """Arguments of the operator that it reads."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ShardedOn:
    """Sharded on the dim that the expression gives."""

    dim: Expr
    broadcasts: bool = False
    """Replicated instead where the input is broadcast along the dim: there it has size 1, or the dim is negative."""

    def __str__(self) -> str:
        return f"S({self.dim})"


Term = Placement | ShardedOn

FRAME = -1
"""As a rule's reference: the frame that all inputs are broadcast to, dims aligned from the right."""


@dataclass(frozen=True)
class Rule:
    """Inputs lying like this give outputs lying like that, without communication, where the condition holds."""

    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    conditions: tuple[Expr, ...] = ()
    """All must hold."""
    reference: int | None = None
    """The tensor input whose dims ``d`` runs over; FRAME for the dims that all inputs are broadcast to, from the
    right (``range(max(rank))``); None where the rule has no ``d``."""
    grade: str = "empty"
    """The shards it holds on: even, uneven, empty (each including those before)."""
    justification: str = ""
    counterexamples: tuple[str, ...] = ()
    """Cases that force the conditions: where they fail, the rule does."""
    witnesses: int = 0
    """Calls on which it was seen to hold."""
    silent: bool = False
    """Whether it gives wrong numbers on empty shards, where the library does not refuse the call."""
    narrows: bool = False
    """Whether a result may be no multiple of an input along d: cut evenly, the input does not make that even."""

    @property
    def unconditional(self) -> bool:
        return not self.conditions

    @property
    def all_replicated(self) -> bool:
        return all(term is R for term in (*self.inputs, *self.outputs))

    def __str__(self) -> str:
        when = f" WHEN {' and '.join(map(str, self.conditions))}" if self.conditions else ""
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}{when}"


@dataclass(frozen=True, slots=True)
class Made:
    """An ATen call that a composite makes."""

    overload: str
    dtensor: str
    """Whether PyTorch's DTensor has a rule for it."""


@dataclass(frozen=True)
class Statement:
    """All that is known of an operator's sharding."""

    operator: Operator
    rules: tuple[Rule, ...]
    variants: tuple[Rule, ...] = ()
    """Rules of calls with another number of tensors: without an optional one, or with a list of another length."""
    tensors: tuple[tuple[str, ...], ...] = ()
    """The tensors that the rules speak of, by argument; then those that each set of variants does."""
    category: str = ""
    """pointwise, reduction, contraction, ...: found by test."""
    dim_parameters: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    """bilinear in input, other; monotone; ..."""
    factor_lines: tuple[tuple[str, str], ...] = ()
    """The rule in factor notation, each with the calls it is for: ``("a k, a k -> a k ; k: whole", "dim=1")``."""
    samples: tuple[Sample, ...] = ()
    fresh_calls: tuple[Sample, ...] = ()
    """Some of the calls that the rules were attacked with, for the tests of emitted code."""
    swept: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keyword values tried, by argument."""
    generators: tuple[tuple[str, str], ...] = ()
    """The input generators used: name and what they aim at."""
    adversarial: tuple[tuple[str, str], ...] = ()
    worlds: tuple[int, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    """Rules that passed but say nothing, with the reason."""
    leftover: tuple[str, ...] = ()
    """Valid cases that no rule of the statement covers."""
    held_out: tuple[int, int] = (0, 0)
    """Rows of fresh calls drawn when the statement was finished: those it is right about, and all."""
    disagreements: tuple[str, ...] = ()
    """Held-out cases that the statement gets wrong."""
    fresh: int = 0
    """Fresh calls that the rules were attacked with."""
    refuted: tuple[str, ...] = ()
    """Rows of rules that were narrowed or dropped for fresh calls on which they failed."""
    confirmed: str = ""
    """What was tried again on a mesh of two axes and in float32."""
    restricted: str = ""
    """Which combinations were tried, where there were too many for all."""
    inserts: int = 0
    """How many dims the operator adds before its dim arguments count: 1 for unsqueeze, whose dim may be the rank."""
    refused: str = ""
    """Why nothing could be judged; empty if it could."""
    combinations: int = 0
    makes: tuple[Made, ...] = ()
    """The ATen calls that it makes, where these are several."""

    def names(self, rule: Rule) -> tuple[str, ...]:
        """The arguments that a rule's tensors are; empty where that is not known."""
        return next((names for names in self.tensors if len(names) == len(rule.inputs)), ())

    @property
    def every_rule(self) -> tuple[Rule, ...]:
        return (*self.rules, *self.variants)
