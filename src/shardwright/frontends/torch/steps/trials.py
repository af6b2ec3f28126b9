"""Runs of an optimizer's step that were tried aside, and comparing them node by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from ....errors import TraceError
from ....ir.graph import TensorType
from ..compute import prepare
from ..dtypes import torch_dtype
from ..recording.recorder import Recorded
from .numbers import Numbers, Term

_NUDGE = 1 + 2.0**-12
"""Far above rounding, far below what a decision should turn on."""
_TINY = 2.0**-60


@dataclass
class Trial:
    """What one run did."""

    nodes: list[Recorded]
    inputs: dict[int, str]
    """Value to name: parameters, gradients, state, options."""
    constants: dict[int, Any]
    """Value to tensor: what the step came upon."""
    ends: dict[str, int]
    """What everything is after the run, by name."""
    tree: dict[str, Any]
    """What there is in the state after the run; see `own_steps`."""
    firsts: dict[str, int]
    """State that was made in the run: what it was then."""
    numbers: Numbers
    types: list[TensorType]

    def alive(self, stop: Mapping[int, Any]) -> list[Recorded]:
        """The nodes that something comes of, not looking behind some values."""
        wanted = set(self.ends.values()) - set(stop)
        found = []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.results):
                wanted.update(value for value in node.reads() if value not in stop)
                found.append(node)
        return found[::-1]

    def counts(self) -> dict[str, Term]:
        """Numbers that steps change, how each comes from itself and options; without those that depend on data."""
        names = set(self.inputs.values())
        found = {}
        for name, end in self.ends.items():
            if name in self.numbers.values and name in names:
                term = self.numbers.term_of(end)
                if term is not None and term.leaf != name:
                    found[name] = term
        return found


@dataclass(frozen=True, slots=True)
class Difference:
    one: Recorded | None
    other: Recorded | None
    attribute: str = ""


def difference(one: Trial, other: Trial, cut: Mapping[int, str] | None = None) -> Difference | None:
    """The first node in which two runs differ.  ``cut`` names values of the first run that the other is given."""
    cut = cut or {}
    given = {name: value for value, name in other.inputs.items()}
    same = {value: given.get(name) for value, name in (one.inputs | dict(cut)).items()}
    constants = list(other.constants.items())
    for value, tensor in one.constants.items():
        same[value] = next((there for there, known in constants if _equal(known, tensor)), None)
    for left, right in zip_longest(one.alive(cut), other.alive({})):
        if left is None or right is None or left.op != right.op:
            return Difference(left, right)
        if left.attrs != right.attrs:
            names = [name for name in left.attrs if left.attrs[name] != right.attrs.get(name)]
            return Difference(left, right, names[0] if names else "")
        if _mapped(left.operands, same) != right.operands:
            return Difference(left, right)
        same.update(zip(left.results, right.results))
    if any(same.get(value, -1) != other.ends.get(name) for name, value in one.ends.items()):
        return Difference(None, None)
    return None


def _mapped(operands: tuple[Any, ...], same: Mapping[int, Any]) -> tuple[Any, ...]:
    return tuple(
        tuple(same.get(item) for item in operand) if isinstance(operand, tuple)
        else None if operand is None else same.get(operand, -1)
        for operand in operands
    )  # fmt: skip


def _equal(one: Any, other: Any) -> bool:
    return one is other or (
        one.shape == other.shape and one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    )


# -- what state begins with -----------------------------------------------------------------------------------


_LIKE = tuple(f"aten.{name}" for kind in ("zeros", "ones", "full", "empty") for name in (f"{kind}_like", f"new_{kind}"))
"""Ops that ask of their operand how it is shaped, not for its numbers."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to make state that a first step begins with, from parameters and options."""

    nodes: tuple[Recorded, ...]
    inputs: dict[int, str]
    result: int
    types: dict[int, TensorType]
    host: float | None
    """The number it is, where it is one that is known."""

    def make(self, read: Any, device: Any) -> Any:
        values = {value: read(name) for value, name in self.inputs.items()}
        with torch.no_grad():
            for node in self.nodes:
                if node.op in _LIKE:
                    value, like = node.reads()[0], self.types[node.reads()[0]]
                    given = torch.zeros((), dtype=torch_dtype(like.dtype), device=device).expand(like.shape)
                    values.setdefault(value, given)
                operands = [
                    [values[item] for item in operand] if isinstance(operand, tuple)
                    else None if operand is None else values[operand]
                    for operand in node.operands
                ]  # fmt: skip
                types = [self.types[value] for value in node.results]
                values.update(zip(node.results, prepare(node.op, dict(node.attrs), types, device)(operands)))
        return values[self.result].detach().clone()


def start_of(trial: Trial, name: str, allowed: frozenset[str]) -> Start | None:
    """None where it takes anything but what is ``allowed``: a gradient, data, or a draw."""
    result = trial.firsts[name]
    wanted, nodes = {result}, []
    for node in reversed(trial.nodes):
        if not wanted.isdisjoint(node.results):
            if node.op.startswith("random."):
                return None
            wanted.update(() if node.op in _LIKE else node.reads())
            nodes.append(node)
    made = {value for node in nodes for value in node.results}
    inputs = {value: trial.inputs.get(value, "") for value in wanted - made}
    wanted.update(value for node in nodes for value in node.reads())
    if not allowed.issuperset(inputs.values()):
        return None
    term = trial.numbers.term_of(result)
    host = term.value(trial.numbers.values.__getitem__) if term is not None else None
    return Start(tuple(nodes[::-1]), inputs, result, {value: trial.types[value] for value in wanted}, host)


# -- other numbers --------------------------------------------------------------------------------------------


def nudged(trial: Trial, counts: Mapping[str, Term]) -> dict[str, float]:
    """Values of options and counts as they might be in a later step, with which all decisions fall as they did."""
    guards = list(trial.numbers.guards.values())
    known = dict(trial.numbers.values)
    outcomes = [guard.outcome(known.__getitem__) for guard in guards]

    def same(values: Mapping[str, float]) -> bool:
        return [guard.outcome(values.__getitem__) for guard in guards] == outcomes

    later = {**known, **{name: term.value(known.__getitem__) for name, term in counts.items()}}
    values = later if same(later) else known
    concerned = {name for guard in guards for name in guard.leaves}
    for name, value in list(values.items()):
        if name not in counts:
            other = {**values, name: value * _NUDGE if value else _TINY}
            if name not in concerned or same(other):
                values = other
    return values


# -- refusing -------------------------------------------------------------------------------------------------


def moving_constant(kind: str, found: Difference) -> TraceError:
    node = found.one or found.other
    rows = [("op", node.op)] if node is not None else []
    if node is not None and node.source is not None:
        rows.append(("at", str(node.source)))
    if found.one is not None and found.other is not None and found.attribute:
        values = [side.attrs[found.attribute] for side in (found.one, found.other)]
        return TraceError(
            f"the step of {kind} computes with a number that changes from step to step and is no input of the program: "
            "captured, it would be wrong from the second step on",
            rows=[*rows, ("number", f"{found.attribute}={values[0]!r} in one step, {values[1]!r} in another")],
            help='count steps in self.state[p]["step"] or in param_groups, and compute with +, *, ** and math',
        )
    return TraceError(
        f"the step of {kind} does other things each time it runs",
        rows=rows,
        help="decide by options in param_groups and by numbers in the state, such as a step count",
    )
