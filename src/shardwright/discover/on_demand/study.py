"""One call of an unknown op, studied: made small, run on what devices would hold, and stated as a rule.

The call is made on several sets of small shapes.  Dims that are equal in the program stay equal, dims of size 1 stay
so, and attributes stay as they are.  A rule is taken only if all of them give the same one and it is confirmed on two
mesh axes and in float32.  If the call itself is not too large, the rule must hold on its own size as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from time import process_time
from typing import Any

import numpy as np

from ...errors import UnknownOpError
from ...frontends.numpy import prepare as numpy_prepare
from ...frontends.numpy.arrays import NumpyArrays
from ...frontends.numpy.dtypes import numpy_dtype
from ...frontends.numpy.kernels import KERNELS
from ...ir.graph import Node, TensorType
from ...spec.rule import Mapped, OpShardingRule, RulePattern, Transfer
from ..analyse import factor_line
from ..calls.widen import runs
from ..inputs.adversarial import redraw, shuffled
from ..inputs.registry import Generator, generators_for, standard_generators
from ..judging.oracle import check, refute
from ..learn import Effort, state
from ..operator import Argument, NumpyLibrary, Operator, Sample, Slot
from ..placement import P, Placement, R, S
from ..report import as_dict
from ..table import Table
from .op_library import OpLibrary

EFFORT = Effort(samples=2, more=0, variants=12, combinations=8_000, attack=None)
POOLS = ((4, 6, 8, 10, 12, 14), (9, 15, 6, 21, 12, 27))
"""Small sizes for the different sizes of a call, in order; even ones and odd ones."""
LEAST = 4
"""A smaller size says little: two devices would hold one row each."""
MOST_ELEMENTS = 20_000
"""Of all tensors of a call that is studied."""
OWN_ELEMENTS = 1_000_000
"""Of all tensors of a call, results among them: the most for which a rule is tried on the call's own size."""
OWN_WORLDS = (2, 4)
OWN_SECONDS = 30.0
"""CPU time for that; what was not tried by then is taken to hold, as it does on small shapes."""
WIDE = {"f32": "f64", "f16": "f64", "bf16": "f64", "c64": "c128"}
"""Parts of a sum add up exactly enough only in these."""
NUMPY = {"f64": np.float64, "c128": np.complex128, "bool": np.bool_}
KINDS = ("sum", "max", "min", "prod", "avg")


def library_of(op: str) -> OpLibrary:
    """The library that has an op of this name."""
    if "torch" in sys.modules:
        from .study_torch import torch_library_of

        found = torch_library_of(op)
        if found is not None:
            return found
    if op in KERNELS:
        return OpLibrary(
            NumpyLibrary(), numpy_prepare, (f"numpy {op}", f"numpy {np.__version__}"), arrays=NumpyArrays(),
            cast=lambda array, dtype: np.asarray(array).astype(numpy_dtype(dtype)), plain=np.asarray,
        )  # fmt: skip
    raise UnknownOpError(f"nobody can compute {op}")


def study_call(
    library: OpLibrary, node: Node, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> dict[str, Any]:
    """The rule of a call with what it rests on, as plain data."""
    tried: list[Table] = []
    operator = None
    refused = library.refused
    for sizes in small_sizes(operands) if not refused else ():
        operator, sample = small_call(library, node, operands, results, sizes)
        if len(tried) < len(POOLS) and runs(operator, sample):
            tried.append(_table(operator, sample))
    shapes = [[list(shape) for shape in table.sample.shapes] for table in tried]
    answer = {"rule": "", "category": "", "tried": shapes, "confirmed": "", "refused": ""}
    if operator is None or not tried:
        return {**answer, "refused": refused or "it does not run on small float64 tensors"}
    reasons = dict.fromkeys(table.refused for table in tried if table.refused)
    if reasons:
        return {**answer, "refused": "; ".join(reasons)}
    lines = dict.fromkeys(factor_line(table) for table in tried)
    if len(lines) > 1 or not all(lines):
        return {**answer, "refused": "it does not split alike on all shapes, or not in a way that a rule can say"}
    statement = state(operator, tried, _generators(operator), EFFORT)
    failures = [text for text in statement.disagreements if text.startswith(("on two axes", "in float32"))]
    if failures:
        return {**answer, "refused": f"not confirmed {failures[0]}"}
    if any(rule.grade == "even" and not rule.all_replicated for rule in statement.every_rule):
        return {**answer, "refused": "it holds on even shards only"}
    said = as_dict(replace(statement, factor_lines=tuple((line, "") for line in lines)))["rule_book"]
    rule = _held(said[0]["rule"], tried)
    if not _splits(rule, tried):
        return {**answer, "refused": "no split of it is valid"}
    own = [list(type.shape) for type in operands]
    if runs_as_it_is(operands, results) and own not in shapes:
        answer["tried"] = [*shapes, own]
        failure = own_size_failure(library, node, operands, results, rule)
        if failure:
            return {**answer, "refused": failure}
    return {**answer, "rule": rule, "category": statement.category, "confirmed": statement.confirmed}


def runs_as_it_is(operands: Sequence[TensorType], results: Sequence[TensorType]) -> bool:
    """Whether a call is small enough to be tried on its own size."""
    return 0 < sum(prod(type.shape) for type in (*operands, *results)) <= OWN_ELEMENTS


def own_size_failure(
    library: OpLibrary, node: Node, operands: Sequence[TensorType], results: Sequence[TensorType], rule: str
) -> str:
    """Why a rule does not hold for a call on its own size; empty if it does."""
    operator, sample = small_call(library, node, operands, results, {})
    if not runs(operator, sample):
        return "it does not run on float64 tensors of the call's own size"
    bound = RulePattern.parse(rule).bind(sample.shapes, [type.shape for type in results], {})
    began = process_time()
    for inputs, outputs in _claims(bound):
        for o, placement in enumerate(outputs):
            if process_time() - began > OWN_SECONDS:
                return ""
            found = refute(operator, [sample], inputs, o, placement, OWN_WORLDS, "uneven")
            if found is not None:
                return f"it splits otherwise on the call's own size: {found}"
    return ""


def _claims(rule: OpShardingRule) -> Iterator[tuple[tuple[Placement, ...], tuple[Placement, ...]]]:
    """What a rule says of one mesh axis: given to a factor, or pending."""
    for f, factor in enumerate(rule.factors):
        if factor.whole or factor.permuted or factor.broadcast or factor.size < 2:
            continue
        if any(f in dim[1:] for tensor in rule.tensors for dim in tensor):
            continue  # not the outermost part of a dim: no shard of a tensor is cut so
        inputs = tuple(_cut(tensor, f) for tensor in rule.operands)
        reduced = [dict(result).get(f) for result in rule.reductions]
        yield inputs, tuple(P(how) if how else _cut(tensor, f) for tensor, how in zip(rule.results, reduced))
    for row in rule.transfers:
        yield from pending_claims(row)


def _cut(tensor: Mapped, factor: int) -> Placement:
    return next((S(d) for d, dim in enumerate(tensor) if factor in dim), R)


def small_sizes(operands: Sequence[TensorType]) -> Iterator[dict[int, int]]:
    """Sets of small sizes for the sizes of a call."""
    sizes = list(dict.fromkeys(size for type in operands for size in type.shape if size > 1))
    maps = [dict(zip(sizes, pool)) for pool in POOLS if len(sizes) <= len(pool)]
    # Sizes that belong together: the same ratios, as small as they can be.
    shared = next((part for part in (2**k for k in range(20, 0, -1)) if all(s % part == 0 for s in sizes)), 1)
    maps += [{size: size // part for size in sizes} for part in (shared // 2, shared // 4, 1) if part > 0]
    seen: list[dict[int, int]] = []
    for found in maps:
        full = {**found, 0: 0, 1: 1}
        count = sum(prod(full[size] for size in type.shape) for type in operands)
        if full not in seen and count <= MOST_ELEMENTS and all(size >= LEAST for size in found.values()):
            seen.append(full)
            yield full


def small_call(
    library: OpLibrary,
    node: Node,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
    sizes: Mapping[int, int],
) -> tuple[Operator, Sample]:
    """The call on small tensors of wide types."""

    def small(type: TensorType) -> TensorType:
        return TensorType(tuple(sizes.get(size, size) for size in type.shape), WIDE.get(type.dtype, type.dtype))

    run = library.prepare(node.op, dict(node.attrs), [small(type) for type in results])
    names = library.names if len(library.names) == len(operands) else tuple(f"x{i}" for i in range(len(operands)))
    arguments = tuple(Argument(f"operand{i}", tensor=True, default=None) for i in range(len(node.operands)))
    operator = Operator(node.op, lambda *given: run(list(given)), library.library, arguments)
    places = iter(range(len(operands)))
    slots = tuple(
        None if o is None else [Slot(next(places)) for _ in o] if isinstance(o, tuple) else Slot(next(places))
        for o in node.operands
    )
    arrays = tuple(_numbers(i, small(type)) for i, type in enumerate(operands))
    return operator, Sample(slots, {}, arrays, _roles(arrays, names), "small shapes")


def _numbers(i: int, type: TensorType) -> Any:
    random = np.random.default_rng(42 + i)
    dtype = NUMPY.get(type.dtype, np.int64)
    if dtype is np.int64:
        return random.integers(0, 2, type.shape)
    if dtype is np.bool_:
        return random.integers(0, 2, type.shape).astype(np.bool_)
    real = random.standard_normal(type.shape)
    return np.asarray(real if dtype is np.float64 else real + 1j * random.standard_normal(type.shape))


def _roles(arrays: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
    """Whole numbers beside numbers are positions; truth values are masks."""
    numbers = any(array.dtype.kind in "fc" for array in arrays)
    index = [a.dtype.kind in "iu" and (numbers or "ind" in name) for a, name in zip(arrays, names)]
    return tuple("mask" if a.dtype.kind == "b" else "index" if at else "data" for a, at in zip(arrays, index))


def _table(operator: Operator, sample: Sample) -> Table:
    """Every combination of placements, on these numbers and on others that false rules fail on."""
    variants: list[Sample] = []
    special: list[Sample] = []
    for generator in _generators(operator):
        again = redraw(operator, sample, generator)
        if again is not None:
            (special if generator.special else variants).append(again)
    mixed = shuffled(operator, sample)
    variants += [mixed] if mixed is not None else []
    worlds, most = EFFORT.worlds, EFFORT.combinations
    return check(operator, sample, variants=variants, special=special, worlds=worlds, most=most)


def _generators(operator: Operator) -> list[Generator]:
    """Those made for an op of that name, the standard ones, and some of those for all."""
    standard, every = standard_generators(), generators_for(operator.short_name)
    own, common = [g for g in every if "*" not in g.ops], [g for g in every if "*" in g.ops]
    room = max(1, EFFORT.variants - len(standard))
    # Every other one, so that NaN and Inf, which come last, are among them.
    return [*own, *standard, *common[:: max(1, len(common) // room)][:room]]


def _held(rule: str, tables: Sequence[Table]) -> str:
    """Without rows of pending tensors that some call did not show."""
    pattern = RulePattern.parse(rule)
    rows = [row for row in pattern.transfers if all(_holds(row, table) for table in tables)]
    return str(RulePattern(pattern.operands, pattern.results, pattern.notes, tuple(rows)))


def _holds(row: Transfer, table: Table) -> bool:
    return all(
        table.holds(inputs, o, placement)
        for inputs, outputs in pending_claims(row)
        for o, placement in enumerate(outputs)
    )


def pending_claims(row: Transfer) -> Iterator[tuple[tuple[Placement, ...], tuple[Placement, ...]]]:
    """A line about pending tensors, for each kind that it speaks of."""
    states = (*row.operands, *row.results)
    for kind in [k for k in KINDS if k != "avg"] if "P(any)" in states else [""]:
        placed = [R if s == "R" else P(kind or s.removeprefix("P(").removesuffix(")")) for s in states]
        yield tuple(placed[: len(row.operands)]), tuple(placed[len(row.operands) :])


def _splits(rule: str, tables: Sequence[Table]) -> bool:
    """Whether the rule lets any factor be split."""
    table = tables[0]
    bound = RulePattern.parse(rule).bind(table.sample.shapes, table.outputs, {})
    return any(
        not (factor.whole or factor.permuted or factor.broadcast) and factor.size > 1 for factor in bound.factors
    )
