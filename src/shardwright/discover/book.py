"""Our own rule book against what discovery finds: ``shardwright discover --book numpy``.

Each sample of the NumPy frontend is traced; every node of the op becomes an operator (its kernel, attributes fixed)
with a sample of its own.  The rule's factors and transfer table say which rows should hold; the oracle says which do.
A row that does not hold is an error of the book.  A row that the book lacks is either taken up or explained in the
op's record (``beyond``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ShardwrightError
from ..frontends.numpy import prepare, trace
from ..frontends.numpy.samples import SAMPLES, arguments
from ..frontends.numpy.samples import Sample as Call
from ..ir.graph import Graph, Node, TensorType
from ..rules.registry import find, node_rule
from ..spec.rule import OpShardingRule
from .check import check
from .encode import kinds_for
from .operator import Array, NumpyLibrary, Operator, Role, Sample, Slot
from .placement import KINDS, P, Placement, R, S, at_least, parse_placement
from .table import Inputs, Table, folded

SIZES = ((6, 10), (4, 9))
"""Sizes of the dims that get split."""

Row = tuple[Inputs, tuple[Placement, ...]]


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

    @property
    def unexplained(self) -> bool:
        return bool(self.wrong) or (bool(self.beyond) and not self.explanation)


def check_book(ops: Sequence[str] | None = None) -> list[Comparison]:
    """Compare every op of the NumPy rule book, or these."""
    return [compare_op(op) for op in (ops or sorted(SAMPLES)) if SAMPLES.get(op)]


def compare_op(op: str) -> Comparison:
    """Compare the rule of one op on all its samples."""
    wrong: dict[str, None] = {}
    beyond: dict[str, None] = {}
    calls = rows = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator, sample, variants, rule in _studies(op):
            table = check(operator, sample, variants=variants)
            if table.refused:
                continue
            calls += 1
            claimed = list(claimed_rows(rule, sample, table))
            rows += len(claimed)
            shapes = " ".join(str(list(shape)) for shape in sample.shapes)
            for inputs, outputs in claimed:
                if not _borne_out(table, inputs, outputs):
                    wrong[f"{_text(inputs, outputs)} on {shapes}"] = None
            for inputs, outputs in _found(table):
                if not any(_implies(row, (inputs, outputs)) for row in claimed) and _tells(table, inputs, outputs):
                    beyond[_text(inputs, outputs)] = None
    record = find(op)
    return Comparison(op, calls, rows, tuple(wrong), tuple(beyond), record.beyond if record else "")


# ---- the oracle's side --------------------------------------------------------------------------------------


def _studies(op: str) -> Iterator[tuple[Operator, Sample, list[Sample], OpShardingRule]]:
    """Every node of the op in its samples, as an operator with a call of its own."""
    for call in SAMPLES[op]:
        for sizes in SIZES:
            drawn = _drawn(op, call, sizes, shift=0)
            again = _drawn(op, call, sizes, shift=1)
            for number, (graph, node, arrays) in enumerate(drawn):
                other = again[number][2] if number < len(again) else arrays
                same = [a.shape for a in other] == [a.shape for a in arrays]
                operator, sample = _as_operator(graph, node, arrays, call)
                yield operator, sample, [sample.with_tensors(tuple(other))] if same else [], node_rule(graph, node)


def _drawn(op: str, call: Call, sizes: tuple[int, int], shift: int) -> list[tuple[Graph, Node, list[Array]]]:
    """The op's nodes in a sample, with the arrays that reach them."""
    args = arguments(call, sizes, call.dtypes[0])
    if shift:  # other numbers of the same domain: the same ones in another order
        rng = np.random.default_rng(shift)
        args = [array if array.dtype.kind in "iu" and array is not args[0] else _mixed(array, rng) for array in args]
    try:
        traced = trace(call.fn, *args)
    except (ShardwrightError, ValueError):
        return []
    graph = traced.graph
    values: dict[int, Array] = dict(zip(graph.inputs, [*args, *map(np.asarray, traced.consts)]))
    found = []
    for node in graph.nodes:
        if node.op == op:
            found.append((graph, node, [values[value] for value in node.inputs]))
        values.update(zip(node.results, _computed(graph, node, [values[v] for v in node.inputs], None)))
    return found


def _mixed(array: Array, rng: np.random.Generator) -> Array:
    return np.asarray(rng.permutation(array.reshape(-1)).reshape(array.shape))


def _computed(graph: Graph, node: Node, flat: Sequence[Any], shape: Sequence[int] | None) -> tuple[Array, ...]:
    """A node on these arrays; `shape` is that of the first result, if it is another one than the node's."""
    types = list(graph.types(node.results))
    if shape is not None and tuple(shape) != types[0].shape:
        cut = [d for d, (here, there) in enumerate(zip(shape, types[0].shape)) if here != there]
        types = [TensorType(_cut(t.shape, types[0].shape, shape, cut), t.dtype) for t in types]
    rest = iter(flat)
    operands = [
        None if o is None else [next(rest) for _ in o] if isinstance(o, tuple) else next(rest) for o in node.operands
    ]
    return prepare(node.op, dict(node.attrs), types)(operands)


def _cut(mine: tuple[int, ...], first: tuple[int, ...], shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """A result's shape, cut where the first result's is."""
    return tuple(
        shape[d] if d in dims and len(mine) == len(first) and mine[d] == first[d] else size
        for d, size in enumerate(mine)
    )


def _as_operator(graph: Graph, node: Node, arrays: list[Array], call: Call) -> tuple[Operator, Sample]:
    def run(*flat: Any, shape: Sequence[int]) -> tuple[Array, ...]:
        return _computed(graph, node, flat, shape)

    indexed = call.domain == "index" or any(":" in text for text in call.shapes)
    roles: list[Role] = []
    for array in arrays:
        index = indexed and array.dtype.kind in "iu"
        roles.append("index" if index else "mask" if array.dtype.kind == "b" else "data")
    slots = tuple(map(Slot, range(len(arrays))))
    first = list(graph.types(node.results)[0].shape)
    return Operator(node.op, run, NumpyLibrary()), Sample(slots, {"shape": first}, tuple(arrays), tuple(roles))


def _found(table: Table) -> Iterator[Row]:
    for inputs, outputs in folded(table).items():
        if all(outputs) and any(p is not R for p in inputs):
            yield inputs, tuple(sorted(found, key=str)[0] for found in outputs)


def _tells(table: Table, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool:
    """Whether a row beyond the book is more than an accident of small sizes: something is split that has a size."""
    sharded = [table.sample.shapes[i][p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
    by_accident = any(p.kind != "S" and constant for p, constant in zip(outputs, table.constant))
    return all(size > 1 for size in sharded) and not by_accident


def _borne_out(table: Table, inputs: Inputs, outputs: tuple[Placement, ...]) -> bool:
    return all(table.holds(inputs, o, p) or (inputs, o, p) in table.dropped for o, p in enumerate(outputs))


# ---- the book's side ----------------------------------------------------------------------------------------


def claimed_rows(rule: OpShardingRule, sample: Sample, table: Table) -> Iterator[Row]:
    """What the rule says of one mesh axis: each factor that may be split, and each line of the transfer table."""
    for f, factor in enumerate(rule.factors):
        if factor.size <= 1 or factor.whole or factor.permuted or factor.form:
            continue
        inputs = [_placed(mapped, f) for mapped in rule.operands]
        outputs = [_placed(mapped, f) for mapped in rule.results]
        for o, reduced in enumerate(rule.reductions):
            outputs[o] = next((P(kind) for g, kind in reduced if g == f), outputs[o])
        if None in (*inputs, *outputs):
            continue  # the minor part of a compound dim: no placement of one axis says that
        yield tuple(p for p in inputs if p), tuple(p for p in outputs if p)
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
    lines.append(
        f"{len(comparisons)} ops, {calls} calls, {rows} claimed rows: "
        f"{agree} agree, {explained} differ with a reason, {bad} need work"
    )
    return "\n".join(lines)
