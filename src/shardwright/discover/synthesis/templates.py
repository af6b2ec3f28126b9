"""Templates: rules without their conditions, and the rows that they mean in a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from ..placement import Placement, R, S
from ..table import Inputs, folded
from .cases import DimWord, Situation
from .conditions import Atom

Outputs = tuple[Placement, ...]
Row = tuple[int, Inputs, Outputs]
"""A valid row: the number of its situation, and what lies how."""

NO_DIM = -1
"""Of templates without ``d``."""


@dataclass(frozen=True)
class Template:
    """A rule without its condition: placements, and words for dims."""

    inputs: tuple[Placement | DimWord, ...]
    outputs: tuple[Placement | DimWord, ...]
    reference: int | None

    @cached_property
    def cost(self) -> int:
        return sum(term.cost for term in (*self.inputs, *self.outputs) if isinstance(term, DimWord))

    @cached_property
    def key(self) -> str:
        """Templates with equal keys are the same."""
        terms = (*self.inputs, *self.outputs)
        return str((self.reference, *(t if isinstance(t, Placement) else t.expr for t in terms)))

    def at(self, situation: Situation, d: int) -> tuple[Inputs, Outputs] | None:
        """The placements it means in a case, or None where it means none.

        An output dim that does not exist is kept: emitted code does not know the ranks of outputs, so the condition
        must rule such cases out.
        """
        inputs = [placed_at(term, situation, d, shape) for term, shape in zip(self.inputs, situation.shape)]
        outputs = [placed_at(term, situation, d, None) for term in self.outputs]
        if any(p is None for p in (*inputs, *outputs)):
            return None
        if self.reference is not None and all(p is R for p in inputs):
            return None
        return tuple(p for p in inputs if p is not None), tuple(p for p in outputs if p is not None)


def placed_at(
    term: Placement | DimWord, situation: Situation, d: int, shape: tuple[int, ...] | None
) -> Placement | None:
    if isinstance(term, Placement):
        return term
    dim = term.find(situation, d)
    if dim is None:
        return None
    if term.broadcasts and shape is not None and (dim < 0 or shape[dim] == 1):
        return R
    return S(dim) if dim >= 0 and (shape is None or dim < len(shape)) else None


def rows_of(number: int, situation: Situation) -> Iterator[Row]:
    for inputs, outputs in folded(situation.table).items():
        if _idle(situation, inputs, outputs):
            continue
        for combination in product(*(sorted(found, key=str) for found in outputs)):
            if label(situation, inputs, combination):
                yield number, inputs, combination


def _idle(situation: Situation, inputs: Inputs, outputs: tuple[frozenset[Placement], ...]) -> bool:
    """Whether an input that the call does not read is cut for nothing: replicated it does as well."""
    table = situation.table
    for place in table.unread:
        plain = (*inputs[:place], R, *inputs[place + 1 :])
        if inputs[place] is not R and all(found <= known for found, known in zip(outputs, table.valid.get(plain, ()))):
            return plain in table.valid
    return False


def claims(template: Template, atoms: Sequence[Atom], situation: Situation) -> Iterator[tuple[Inputs, Outputs]]:
    for d in dims_of(template, situation):
        placed = template.at(situation, d)
        if placed is not None and all(atom.holds(situation, d) for atom in atoms):
            yield placed


def dims_of(template: Template, situation: Situation) -> Iterable[int]:
    return (NO_DIM,) if template.reference is None else range(situation.rank_of(template.reference))


def label(situation: Situation, inputs: Inputs, outputs: Outputs) -> bool | None:
    """Whether a row is valid; None where this call cannot tell: not tried, dims of size 1, constant results."""
    sharded = [situation.shape[i][p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
    if any(p.kind == "S" and p.dim >= rank for p, rank in zip(outputs, situation.out_rank)):
        return False
    if sharded and max(sharded) <= 1:
        return None
    return situation.table.row_holds(inputs, outputs)


def row_text(situation: Situation, inputs: Inputs, outputs: Outputs) -> str:
    values = {name: value for name, value in situation.values.items() if value is not None}
    told = "".join(f", {name}={value!r}" for name, value in list(values.items())[:4])
    shapes = " ".join(str(list(shape)) for shape in situation.shape)
    return f"{', '.join(map(str, inputs))} -> {', '.join(map(str, outputs))} on {shapes}{told}"
