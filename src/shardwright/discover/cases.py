"""The words of a statement: which dims and conditions a rule may speak of, and what they are worth in a case.

A *case* is a sample together with a dim ``d`` of a reference tensor.  An expression gives, in each case, the dim
of another tensor ("the same place counted from the right", "where d goes when dim is dropped"); an atom is true
or false.  To teach discovery a new word, add one line here.
"""

from __future__ import annotations

import itertools
import operator as operator_module
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from .operator import Operator
from .statement import FRAME, Expr
from .table import Table

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Situation:
    """A sample as conditions see it: ranks, sizes and arguments, dims made non-negative."""

    table: Table
    values: Mapping[str, Any]
    dims: Mapping[str, Dims]
    """Arguments that name dims of the first tensor, as non-negative dims; None as all of them."""
    rank: tuple[int, ...]
    shape: tuple[tuple[int, ...], ...]
    out_rank: tuple[int, ...]

    @staticmethod
    def of(operator: Operator, table: Table, dim_names: Sequence[str], inserts: int = 0) -> Situation:
        """`inserts`: how many dims the operator adds before its dim arguments count (1 for unsqueeze)."""
        values = table.sample.values(operator)
        shapes = table.sample.shapes
        rank = tuple(map(len, shapes))
        room = max(rank) + inserts
        dims = {name: found for name in dim_names if (found := as_dims(values.get(name), room)) is not None}
        return Situation(table, values, dims, rank, shapes, tuple(map(len, table.outputs)))

    def rank_of(self, reference: int) -> int:
        return max(self.rank) if reference == FRAME else self.rank[reference]

    @property
    def degenerate(self) -> bool:
        """Whether an input is empty, or it computes along dims of size 1 only: there too much holds."""
        if any(0 in shape for shape in self.shape):
            return True
        frame = max(self.shape, key=len)
        return any(
            dims and len(dims) < len(frame) and all(d < len(frame) and frame[d] == 1 for d in dims)
            for dims in self.dims.values()
        )


def rank_code(reference: int) -> str:
    """The rank of a reference tensor, as emitted code writes it."""
    return "max(rank)" if reference == FRAME else f"rank[{reference}]"


def as_dims(value: Any, rank: int) -> Dims | None:
    """An argument read as dims, or None if it cannot be."""
    if value is None:
        return tuple(range(rank))
    items = value if isinstance(value, (list, tuple)) else (value,)
    if not all(type(item) is int and -max(rank, 1) <= item < max(rank, 1) for item in items):
        return None
    if not items:
        return tuple(range(rank))
    return tuple(item % max(rank, 1) for item in items)


def dim_arguments(operator: Operator, tables: Sequence[Table], inserts: int = 0) -> tuple[str, ...]:
    """Arguments that name dims: called so, and readable so in every sample."""
    names: dict[str, None] = {}
    for table in tables:
        for name in table.sample.values(operator):
            if name.rstrip("s0123456789_") in ("dim", "axi", "axe"):
                names[name] = None
    return tuple(
        name
        for name in names
        if all(
            as_dims(table.sample.values(operator).get(name), max(map(len, table.sample.shapes)) + inserts) is not None
            for table in tables
        )
    )


def list_arguments(situations: Sequence[Situation], names: Sequence[str]) -> frozenset[str]:
    """Of the arguments that name dims, those that may name several: a list, or None for all."""
    return frozenset(
        name for name in names for s in situations if not isinstance(s.values.get(name), int) or name not in s.dims
    )


DimOf = Callable[[Situation, int], int | None]
"""The dim of a tensor that goes with dim d of the reference, or None where there is none."""


@dataclass(frozen=True)
class DimWord:
    """A way to say which dim of a tensor goes with ``d``."""

    expr: Expr
    find: DimOf
    cost: int
    broadcasts: bool = False
    """Where the tensor is broadcast along the dim (of size 1, or missing), it is replicated."""


def aligned_word(tensor: int) -> DimWord:
    """The dim of an input that broadcasting puts at dim d of the frame."""
    expr = Expr("d", f"d - max(rank) + rank[{tensor}]")
    return DimWord(expr, lambda s, d: d - max(s.rank) + s.rank[tensor], 0, broadcasts=True)


def dim_words(
    tensor: int, is_output: bool, reference: int, names: Sequence[str], lists: frozenset[str]
) -> Iterator[DimWord]:
    """Every way to name a dim of this tensor.  `names`: arguments that name dims; `lists`: those that may name many."""
    # A strategy is not told the ranks of its outputs, so they are counted from the inputs'.
    rank = "max(rank)" if is_output else f"rank[{tensor}]"

    def rank_of(s: Situation) -> int:
        return max(s.rank) if is_output else s.rank[tensor]

    def after(other: int, shift: int) -> DimWord:
        text = f"d+ndim{other}{shift or ''}"
        code = f"d + rank[{other}]{f' - {-shift}' if shift else ''}"
        return DimWord(Expr(text, code), lambda s, d: d + s.rank[other] + shift if other < len(s.rank) else None, 5)

    def from_right(place: int) -> DimWord:
        return DimWord(Expr(f"-{place}", f"{rank} - {place}"), lambda s, d: rank_of(s) - place, 4 + place)

    def at(place: int) -> DimWord:
        return DimWord(Expr(str(place), str(place)), lambda s, d: place, 4 + place)

    def moved(shift: int) -> DimWord:
        code = f"d {'+' if shift > 0 else '-'} {abs(shift)}"
        return DimWord(Expr(f"d{shift:+d}", code), lambda s, d: d + shift, 6)

    yield DimWord(Expr("d", "d"), lambda s, d: d, 0)
    yield DimWord(
        Expr("-k", f"d - {rank_code(reference)} + {rank}"), lambda s, d: d - s.rank_of(reference) + rank_of(s), 2
    )
    yield from (from_right(place) for place in (1, 2, 3))
    yield from (at(place) for place in (0, 1, 2))
    yield from (moved(shift) for shift in (1, -1))
    if is_output:
        yield from (after(other, shift) for other in (0, 1) if other != reference for shift in (0, -1))
    for name in names:
        yield from _words_by_argument(name, name in lists)
    single = [name for name in names if name not in lists]
    for one, two in itertools.combinations(single, 2):
        yield _exchanged(one, two)
        yield _carried(one, two)


def _words_by_argument(name: str, many: bool) -> Iterator[DimWord]:
    uses = frozenset((name,))
    inside = name if many else f"({name},)"
    yield DimWord(
        Expr(f"d without {name}", f"-1 if d in {inside} else d - sum(gone < d for gone in {inside})", uses),
        lambda s, d: None if name not in s.dims or d in s.dims[name] else d - sum(g < d for g in s.dims[name]),
        3,
    )
    if many:
        yield DimWord(
            Expr(f"place of d in {name}", f"{name}.index(d) if d in {name} else -1", uses),
            lambda s, d: s.dims[name].index(d) if d in s.dims.get(name, ()) else None,
            4,
        )
        return
    yield DimWord(
        Expr(f"d beside {name}", f"d + ({name} <= d)", uses),
        lambda s, d: None if name not in s.dims else d + (s.dims[name][0] <= d),
        3,
    )
    yield DimWord(Expr(name, name, uses), lambda s, d: s.dims[name][0] if name in s.dims else None, 4)


def _exchanged(one: str, two: str) -> DimWord:
    def find(s: Situation, d: int) -> int | None:
        first, second = s.dims[one][0], s.dims[two][0]
        return second if d == first else first if d == second else d

    code = f"{two} if d == {one} else {one} if d == {two} else d"
    return DimWord(Expr(f"d with {one} and {two} exchanged", code, frozenset((one, two))), find, 3)


def _carried(one: str, two: str) -> DimWord:
    """Dims that a diagonal takes out, or puts in."""

    def find(s: Situation, d: int) -> int | None:
        gone = (s.dims[one][0], s.dims[two][0])
        return None if d in gone else d - sum(g < d for g in gone)

    code = f"-1 if d in ({one}, {two}) else d - ({one} < d) - ({two} < d)"
    return DimWord(Expr(f"d without {one} and {two}", code, frozenset((one, two))), find, 3)


@dataclass(frozen=True)
class Atom:
    """A condition on a case, what it costs to say, and why it is needed."""

    expr: Expr
    holds: Callable[[Situation, int], bool]
    cost: int
    why: str


def dim_atoms(names: Sequence[str], reference: int, lists: frozenset[str]) -> Iterator[Atom]:
    """Conditions on where d lies.  `lists`: arguments that may name several dims."""
    for name in names:
        yield from _in_list(name) if name in lists else _against(name)
    for back in (1, 2, 3):
        yield _before_last(back, reference)
        yield _at_last(back, reference)
    for place in (0, 1):
        yield _at_place(place, True)
        yield _at_place(place, False)
    yield Atom(Expr("d >= 2", "d >= 2"), lambda s, d: d >= 2, 3, "the first two dims are computed along")


def _in_list(name: str) -> Iterator[Atom]:
    uses = frozenset((name,))
    yield Atom(
        Expr(f"d not in {name}", f"d not in {name}", uses),
        lambda s, d: d not in s.dims[name],
        1,
        f"the dims in {name} are computed along; slices along the others are independent",
    )
    why = f"only along {name} do the results of the shards combine so"
    yield Atom(Expr(f"d in {name}", f"d in {name}", uses), lambda s, d: d in s.dims[name], 1, why)


def _against(name: str) -> Iterator[Atom]:
    uses = frozenset((name,))

    def atom(word: str, test: Callable[[int, int], bool], cost: int, why: str) -> Atom:
        return Atom(
            Expr(f"d {word} {name}", f"d {word} {name}", uses), lambda s, d: test(d, s.dims[name][0]), cost, why
        )

    yield atom("!=", operator_module.ne, 1, f"{name} is computed along; slices along other dims are independent")
    yield atom("==", operator_module.eq, 1, f"only along {name} do the results of the shards combine so")
    yield atom("<", operator_module.lt, 2, f"dims before {name} are independent")
    yield atom(">", operator_module.gt, 2, f"dims after {name} are independent")


def _before_last(back: int, reference: int) -> Atom:
    text = "d != last" if back == 1 else f"d < ndim-{back}"
    why = "the last dims are computed together; those before them are a batch"
    return Atom(
        Expr(text, f"d < {rank_code(reference)} - {back}"), lambda s, d: d < s.rank_of(reference) - back, 2, why
    )


def _at_last(back: int, reference: int) -> Atom:
    text = "d == last" if back == 1 else f"d == ndim-{back}"
    why = "this dim alone is combined so"
    return Atom(
        Expr(text, f"d == {rank_code(reference)} - {back}"), lambda s, d: d == s.rank_of(reference) - back, 2, why
    )


def _at_place(place: int, sense: bool) -> Atom:
    text = f"d {'==' if sense else '!='} {place}"
    why = "this dim alone is combined so" if sense else f"dim {place} is computed along"
    return Atom(Expr(text, text), lambda s, d: (d == place) is sense, 3, why)


def size_atoms(reference: int, tensors: int) -> Iterator[Atom]:
    """Conditions on sizes along d, dims aligned from the right as broadcasting does."""
    if reference == FRAME:
        return
    for other in range(tensors):
        if other != reference:
            yield from _sizes_against(other, reference)
    yield Atom(
        Expr("size along d != 1", f"shape[{reference}][d] != 1"),
        lambda s, d: s.shape[reference][d] != 1,
        3,
        "a dim of size 1 is broadcast",
    )


def _sizes_against(other: int, reference: int) -> Iterator[Atom]:
    aligned = f"d - rank[{reference}] + rank[{other}]"
    there = f"shape[{other}][{aligned}]"

    def size(s: Situation, d: int) -> int:
        place = d - s.rank[reference] + s.rank[other]
        return s.shape[other][place] if 0 <= place < s.rank[other] else 1

    yield Atom(
        Expr(f"input {other} has the same size along d", f"{aligned} >= 0 and {there} == shape[{reference}][d]"),
        lambda s, d: size(s, d) == s.shape[reference][d],
        2,
        "a broadcast dim is not split",
    )
    yield Atom(
        Expr(f"input {other} is broadcast along d", f"({aligned} < 0 or {there} == 1)"),
        lambda s, d: size(s, d) == 1,
        2,
        "every shard needs the row that is broadcast",
    )


def value_atoms(situations: Sequence[Situation], dim_names: Sequence[str]) -> Iterator[Atom]:
    """Conditions on keyword values, from the values seen; what names dims has conditions of its own."""
    for name in dict.fromkeys(name for s in situations for name in s.values if name not in dim_names):
        seen = list({repr(s.values.get(name)): s.values.get(name) for s in situations}.values())
        if len(seen) < 2:
            continue
        for value in seen[:6]:
            yield from _equalities(name, value)
        numbers = [v for v in seen if _number(v)]
        if any(v > 0 for v in numbers) and any(v <= 0 for v in numbers):
            yield _sign(name, "> 0", lambda v: v > 0)
            yield _sign(name, "< 0", lambda v: v < 0)
            yield _sign(name, ">= 0", lambda v: v >= 0)


def _sign(name: str, word: str, test: Callable[[float], bool]) -> Atom:
    expr = Expr(f"{name} {word}", f"{name} {word}", frozenset((name,)))
    why = f"the sign of {name} decides on the order"
    return Atom(expr, lambda s, d: _number(s.values.get(name)) and test(s.values[name]), 2, why)


def _equalities(name: str, value: Any) -> Iterator[Atom]:
    uses = frozenset((name,))
    if isinstance(value, bool):
        text = name if value else f"not {name}"
        why = f"{name} changes the result"
        yield Atom(Expr(text, text, uses), lambda s, d: s.values.get(name) is value, 1, why)
    elif value is None:
        why = f"{name} changes the computation"
        none, given = Expr(f"{name} is None", f"{name} is None", uses), f"{name} is not None"
        yield Atom(none, lambda s, d: s.values.get(name) is None, 2, why)
        yield Atom(Expr(f"{name} is given", given, uses), lambda s, d: s.values.get(name) is not None, 2, why)
    elif isinstance(value, (str, int)) or value in SPECIAL_FLOATS:
        # A number that a sample happened to have explains nothing.
        for word, sense in (("==", True), ("!=", False)):
            yield _equality(name, value, word, sense)


SPECIAL_FLOATS = (0.0, 0.5, 1.0, -1.0, 2.0, float("inf"), float("-inf"))


def _equality(name: str, value: str | int | float, word: str, sense: bool) -> Atom:
    expr = Expr(f"{name} {word} {value!r}", f"{name} {word} {_literal(value)}", frozenset((name,)))
    why = f"{name} chooses the computation"
    return Atom(expr, lambda s, d: (s.values.get(name) == value) is sense, 3 if sense else 4, why)


def _literal(value: str | int | float) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(value)


def _number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def rank_atoms(situations: Sequence[Situation]) -> Iterator[Atom]:
    """Conditions on ranks: last resort, for they explain little."""
    for tensor in range(min(len(s.rank) for s in situations)):
        seen = sorted({s.rank[tensor] for s in situations})
        for rank in seen if len(seen) > 1 else ():
            for word, sense in (("==", True), ("!=", False)):
                yield _rank(tensor, rank, word, sense)


def _rank(tensor: int, rank: int, word: str, sense: bool) -> Atom:
    expr = Expr(f"ndim of input {tensor} {word} {rank}", f"rank[{tensor}] {word} {rank}")
    return Atom(expr, lambda s, d: (s.rank[tensor] == rank) is sense, 5, "the rank chooses the computation")
