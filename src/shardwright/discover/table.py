"""What the oracle found for one sample: which placements are valid, on which shards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from .judging.encode import kinds_for
from .operator import Sample
from .placement import COPIES, P, Placement, R, at_least

Inputs = tuple[Placement, ...]

FEWEST = 4
"""Elements that a tensor must have to tell something."""

GRADES = ("even", "uneven", "empty")
"""The shards a rule holds on, each word including those before it: equal ones; unequal; some without elements."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Local computation turns inputs that lie like this into output number `output` lying like that."""

    inputs: Inputs
    output: int
    placement: Placement
    grade: str = "even"


@dataclass
class Table:
    """Every input combination of one sample that some output placement makes valid."""

    sample: Sample
    outputs: tuple[tuple[int, ...], ...]
    """The shape of each output."""
    kinds: tuple[tuple[str, ...], ...] = ()
    """The reductions that each output may be pending on, by its dtype."""
    constant: tuple[bool, ...] = ()
    """Whether each output has one value everywhere: then copies may be equal by accident."""
    valid: dict[Inputs, tuple[frozenset[Placement], ...]] = field(default_factory=dict)
    """Per input combination, the placements each output may have; combinations without any are left out."""
    grades: dict[tuple[Inputs, int, Placement], str] = field(default_factory=dict)
    seen: dict[tuple[Inputs, int, Placement], set[str]] = field(default_factory=dict)
    """The shards on which a placement was seen to hold."""
    silent: set[tuple[Inputs, int, Placement]] = field(default_factory=set)
    """Placements that fail on empty shards with wrong numbers: the library does not refuse such a call."""
    unread: frozenset[int] = frozenset()
    """Inputs whose numbers the results of this call do not depend on: whatever they were pending on would do."""
    judged: set[Inputs] | None = None
    """The input combinations that were tried, where not all were: of the others nothing is known."""
    answers: dict[tuple[Inputs, tuple[Placement, ...]], bool | None] | None = None
    """Of a call on which single rows were tried: whether each holds; None where the call cannot tell."""
    dropped: dict[tuple[Inputs, int, Placement], str] = field(default_factory=dict)
    """What passed but says nothing (a constant output, say), with the reason."""
    errors: Mapping[Inputs, str] = field(default_factory=dict)
    """Why an input combination cannot run at all, as the library put it."""
    combinations: int = 0
    """Pairs of input and output placements judged."""
    restricted: str = ""
    """Which combinations were tried, where there were too many for all."""
    runs: int = 0
    refused: str = ""
    """Why nothing could be judged."""

    def holds(self, inputs: Inputs, output: int, placement: Placement) -> bool:
        found = self.valid.get(inputs)
        return found is not None and placement in found[output]

    def row_holds(self, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool | None:
        """Whether a row is valid; None where that is not known: not tried, or it says nothing here."""
        if self.answers is not None:
            return self.answers.get((inputs, outputs))
        if self.judged is not None and inputs not in self.judged:
            return None
        if any(inputs[i].kind == "P" for i in self.unread):
            return None
        if any((inputs, index, p) in self.dropped for index, p in enumerate(outputs)):
            return None
        tensors = zip(inputs, self.sample.tensors, self.sample.roles)
        if any(p.kind == "P" and p.reduce not in kinds_for(array, role) for p, array, role in tensors):
            return None  # a part of an index is no index; whole numbers have no average
        if any(p.kind == "P" and p.reduce not in kinds for p, kinds in zip(outputs, self.kinds)):
            return None
        return all(self.holds(inputs, index, p) for index, p in enumerate(outputs))

    def rows(self) -> Iterator[tuple[Inputs, tuple[frozenset[Placement], ...]]]:
        """Input combinations for which every output has a placement."""
        for inputs, outputs in self.valid.items():
            if all(outputs):
                yield inputs, outputs


def strongest(found: frozenset[Placement]) -> frozenset[Placement]:
    """Without the placements that another one implies (equal copies are also a pending max)."""
    return frozenset(p for p in found if not any(q is not p and at_least(q, p) for q in found))


def folded(table: Table) -> dict[Inputs, tuple[frozenset[Placement], ...]]:
    """The table without rows that another row implies.

    A replicated input is a special pending max; so `R -> P(max)` says nothing beside `P(max) -> P(max)`.  And a
    rule for averages that also holds with every `avg` replaced by `sum` is that rule.  All-replicated stays.
    """
    rows = {inputs: tuple(strongest(found) for found in outputs) for inputs, outputs in table.rows()}
    kept: dict[Inputs, tuple[frozenset[Placement], ...]] = {}
    for inputs, outputs in rows.items():
        rest = []
        for index, found in enumerate(outputs):
            stay = {p for p in found if not _implied(rows, table, inputs, index, p)}
            rest.append(frozenset(stay))
        if all(p is R for p in inputs):
            kept[inputs] = tuple(frozenset({R}) if R in found else found for found in outputs)
        elif any(rest):
            kept[inputs] = tuple(r or found for r, found in zip(rest, outputs))
    return kept


def _implied(
    rows: Mapping[Inputs, tuple[frozenset[Placement], ...]], table: Table, inputs: Inputs, output: int, p: Placement
) -> bool:
    summed = tuple(_as_sum(q) for q in inputs)
    if (summed, _as_sum(p)) != (inputs, p) and table.holds(summed, output, _as_sum(p)):
        return True
    return any(at_least(q, p) for other in _weaker(rows, inputs) for q in rows[other][output])


def _weaker(rows: Collection[Inputs], inputs: Inputs) -> Iterator[Inputs]:
    """The other rows of which these inputs are a special case."""
    choices = [COPIES if p is R else (p,) for p in inputs]
    if prod(map(len, choices)) < len(rows):  # of a list of tensors there are thousands of rows
        found: Iterable[Inputs] = (other for other in product(*choices) if other in rows)
    else:
        found = (other for other in rows if all(map(at_least, inputs, other)))
    return (other for other in found if other != inputs)


def _as_sum(placement: Placement) -> Placement:
    return P("sum") if placement.kind == "P" and placement.reduce == "avg" else placement
