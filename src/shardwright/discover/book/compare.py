"""Rules against the oracle: which rows a rule claims, which of them hold, and which hold that it lacks.

What is common to the books of all frameworks; `numpy` and `torch` bring the calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...rules.registry import find
from ...spec.rule import OpShardingRule
from ..inputs.adversarial import shuffled
from ..judging.encode import kinds_for
from ..judging.oracle import MOST_COMBINATIONS, check, refute
from ..operator import Operator, Sample
from ..placement import KINDS, P, Placement, R, S, at_least, parse_placement
from ..table import Inputs, Table, folded

SHUFFLES = 8
"""Orders of a call's numbers that a row beyond the book must withstand."""

Row = tuple[Inputs, tuple[Placement, ...]]
Study = tuple[Operator, Sample, list[Sample], OpShardingRule]
"""An operator, a call of it, the same call on other numbers, and what the book says of it."""


@dataclass(frozen=True)
class Comparison:
    """One op: rows that the book claims and that do not hold, and rows that hold and that it lacks."""

    op: str
    calls: int
    rows: int
    wrong: tuple[str, ...]
    beyond: tuple[str, ...]
    explanation: str
    """What the record says of the rows that it lacks."""
    splits: int = 0
    """Runs on a mesh, one a factor and mesh."""
    uncovered: int = 0
    """Calls of which the record says nothing; they run replicated."""

    @property
    def unexplained(self) -> bool:
        return bool(self.wrong) or (bool(self.beyond) and not self.explanation)


def compare(op: str, studies: Iterable[Study], most: int = MOST_COMBINATIONS, compounds: bool = True) -> Comparison:
    """Hold the rule of an op against the oracle on these calls; `most` combinations of inputs are tried for each.

    Without `compounds`, what is claimed of the major part of a dim is not asked for: the oracle cuts dims as it likes.
    """
    wrong: dict[str, None] = {}
    beyond: dict[str, None] = {}
    calls = rows = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator, sample, variants, rule in studies:
            table = check(operator, sample, variants=variants, most=most)
            if table.refused:
                continue
            calls += 1
            claimed = list(claimed_rows(rule, sample))
            asked = claimed if compounds else [*claimed_rows(rule, sample, compounds=False)]
            rows += len(asked)
            shapes = " ".join(str(list(shape)) for shape in sample.shapes)
            for inputs, outputs in asked:
                if not _borne_out(operator, table, variants, inputs, outputs):
                    wrong[f"{_text(inputs, outputs)} on {shapes}"] = None
            for inputs, outputs in _found(table):
                known = any(_implies(row, (inputs, outputs)) for row in claimed)
                if not known and _tells(table, inputs, outputs) and _withstands(operator, sample, inputs, outputs):
                    beyond[_text(inputs, outputs)] = None
    record = find(op)
    return Comparison(op, calls, rows, tuple(wrong), tuple(beyond), record.beyond if record else "")


def _found(table: Table) -> Iterator[Row]:
    for inputs, outputs in folded(table).items():
        if all(outputs) and any(p is not R for p in inputs):
            yield inputs, tuple(sorted(found, key=str)[0] for found in outputs)


def _tells(table: Table, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool:
    """Whether a row beyond the book is more than an accident of small sizes: something is split that has a size."""
    sharded = [table.sample.shapes[i][p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
    by_accident = any(p.kind != "S" and constant for p, constant in zip(outputs, table.constant))
    return all(size > 1 for size in sharded) and not by_accident


def _withstands(operator: Operator, sample: Sample, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool:
    """Whether a row beyond the book is more than an accident of these numbers: other orders do not refute it."""
    orders = [shuffled(operator, sample, seed) for seed in range(SHUFFLES)]
    others = [other for other in orders if other is not None]
    return all(refute(operator, others, inputs, o, p) is None for o, p in enumerate(outputs))


def _borne_out(
    operator: Operator, table: Table, variants: Sequence[Sample], inputs: Inputs, outputs: tuple[Placement, ...]
) -> bool:
    """Whether the row was found; where not all rows were tried, it is tried now."""
    if all(table.holds(inputs, o, p) or (inputs, o, p) in table.dropped for o, p in enumerate(outputs)):
        return True
    if not table.restricted:
        return False
    return all(refute(operator, (table.sample, *variants), inputs, o, p) is None for o, p in enumerate(outputs))


# ---- the book's side ----------------------------------------------------------------------------------------


def claimed_rows(rule: OpShardingRule, sample: Sample, compounds: bool = True) -> Iterator[Row]:
    """What the rule says of one mesh axis: each factor that may be split, and each line of the transfer table."""
    for f, factor in enumerate(rule.factors):
        if factor.size <= 1 or factor.whole or factor.permuted or factor.form:
            continue
        if not compounds and any(f in dim and len(dim) > 1 for tensor in rule.tensors for dim in tensor):
            continue
        inputs = [_placed(mapped, f) for mapped in rule.operands]
        outputs = [_placed(mapped, f) for mapped in rule.results]
        for o, reduced in enumerate(rule.reductions):
            outputs[o] = next((P(kind) for g, kind in reduced if g == f), outputs[o])
        if None in (*inputs, *outputs):
            continue  # the minor part of a compound dim: no placement of one axis says that
        yield tuple(p for p in inputs if p), tuple(p for p in outputs if p)
    yield from transfer_rows(rule, sample)


def transfer_rows(rule: OpShardingRule, sample: Sample) -> Iterator[Row]:
    """The lines of the transfer table."""
    for transfer in rule.transfers:
        for kind in KINDS if "P(any)" in (*transfer.operands, *transfer.results) else ("",):
            states = [state.replace("any", kind) if kind else state for state in transfer.operands]
            results = [state.replace("any", kind) if kind else state for state in transfer.results]
            ins = tuple(map(parse_placement, states))
            if len(ins) == len(sample.tensors) and _can_lie(ins, sample):
                yield ins, tuple(map(parse_placement, results))


def _can_lie(inputs: Inputs, sample: Sample) -> bool:
    return all(
        p.kind != "P" or p.reduce in kinds_for(array, role)
        for p, array, role in zip(inputs, sample.tensors, sample.roles)
    )


def _placed(mapped: Sequence[Sequence[int]], factor: int) -> Placement | None:
    """Where a factor puts a tensor: on the dim of which it is the major part; None if it is a minor part."""
    for dim, factors in enumerate(mapped):
        if factor in factors:
            return S(dim) if factors[0] == factor else None
    return R


def _implies(row: Row, other: Row) -> bool:
    """Whether a row of the book says as much: pending averages follow from sums, equal copies are a pending max."""
    return any(
        all(at_least(theirs, mine) for mine, theirs in zip(ins, other[0]))
        and all(at_least(mine, theirs) for mine, theirs in zip(outs, other[1]))
        for ins, outs in (row, _averaged(row))
    )


def _averaged(row: Row) -> Row:
    def swap(p: Placement) -> Placement:
        return P("avg") if p is P("sum") else p

    return tuple(map(swap, row[0])), tuple(map(swap, row[1]))


def _text(inputs: Inputs, outputs: tuple[Placement, ...]) -> str:
    return f"{', '.join(map(str, inputs))} -> {', '.join(map(str, outputs))}"


def text_of(comparisons: Sequence[Comparison], show: Callable[[Comparison], bool] = lambda c: True) -> str:
    """A line an op that differs, and the counts."""
    lines = []
    for c in comparisons:
        if c.wrong:
            lines.append(f"{c.op}: WRONG  {'; '.join(c.wrong)}")
        if c.beyond and show(c):
            lines.append(f"{c.op}: beyond the book  {'; '.join(c.beyond)}")
            lines.append(f"    {c.explanation or 'NOT EXPLAINED'}")
    agree = sum(not c.wrong and not c.beyond for c in comparisons)
    explained = sum(bool(c.beyond) and not c.unexplained for c in comparisons)
    bad = sum(c.unexplained for c in comparisons)
    calls, rows = sum(c.calls for c in comparisons), sum(c.rows for c in comparisons)
    splits = sum(c.splits for c in comparisons)
    also = f", {splits} splits run on a mesh" if splits else ""
    lines.append(
        f"{len(comparisons)} ops, {calls} calls, {rows} claimed rows{also}: "
        f"{agree} agree, {explained} differ with a reason, {bad} need work"
    )
    return "\n".join(lines)
