"""The words of a statement for dims: which dim of a tensor goes with ``d``.

A *case* is a sample together with a dim ``d`` of a reference tensor.  An expression gives, in each case, the dim
of another tensor ("the same place counted from the right", "where d goes when dim is dropped").  To teach discovery a
new word, add one line here; `conditions` holds what may be asked of a case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..operator import Operator, names_dims
from ..statement import FRAME, Expr
from ..table import FEWEST, Table

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
    dtype: tuple[str, ...]
    out_rank: tuple[int, ...]

    @staticmethod
    def of(operator: Operator, table: Table, dim_names: Sequence[str], inserts: int = 0) -> Situation:
        """`inserts`: how many dims the operator adds before its dim arguments count (1 for unsqueeze)."""
        values = table.sample.values(operator)
        shapes = table.sample.shapes
        rank = tuple(map(len, shapes))
        room = max(rank) + inserts
        dims = {name: found for name in dim_names if (found := as_dims(values.get(name), room)) is not None}
        dtypes = tuple(tensor.dtype.name for tensor in table.sample.tensors)
        return Situation(table, values, dims, rank, shapes, dtypes, tuple(map(len, table.outputs)))

    def one_dim(self, name: str) -> int | None:
        """The dim that an argument names, if it names one."""
        return self.dims[name][0] if isinstance(self.values.get(name), int) and name in self.dims else None

    def rank_of(self, reference: int) -> int:
        return max(self.rank) if reference == FRAME else self.rank[reference]

    @property
    def tiny(self) -> bool:
        """Whether a tensor has so few elements that too much holds; a single number is none."""
        return any(shape and prod(shape) < FEWEST for shape in self.shape)

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
            if names_dims(operator, name):
                names[name] = None
    return tuple(
        name
        for name in names
        if all(
            as_dims(table.sample.values(operator).get(name), max(map(len, table.sample.shapes)) + inserts) is not None
            for table in tables
        )
    )


def list_arguments(operator: Operator, tables: Sequence[Table]) -> frozenset[str]:
    """Of the arguments that name dims, those that may name several: in some call a list, or None for all."""
    values = (item for table in tables for item in table.sample.values(operator).items())
    return frozenset(name for name, value in values if names_dims(operator, name) and not isinstance(value, int))


def size_arguments(situations: Sequence[Situation], dim_names: Collection[str]) -> tuple[str, ...]:
    """Arguments that are a size for each dim of the first result, in every call."""
    names = (name for name in situations[0].values if name not in dim_names)
    return tuple(name for name in names if all(_one_a_dim(s.values.get(name), s.out_rank[0]) for s in situations))


def _one_a_dim(value: Any, rank: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == rank and all(type(item) is int for item in value)


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
    tensor: int,
    is_output: bool,
    reference: int,
    names: Sequence[str],
    lists: frozenset[str],
    sizes: Sequence[str] = (),
) -> Iterator[DimWord]:
    """Every way to name a dim of this tensor.  `names`: arguments that name dims; `lists`: those that may name many;
    `sizes`: those that are a size for each dim of the result."""
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
        yield from (_from_right_in(name, reference) for name in sizes)
    for name in names:
        yield from _words_by_argument(name, name in lists)
    single = [name for name in names if name not in lists]
    for one, two in itertools.combinations(single, 2):
        yield _exchanged(one, two)
        yield _carried(one, two)


def _from_right_in(name: str, reference: int) -> DimWord:
    """As many places from the right as d, in a result whose rank an argument tells."""

    def find(s: Situation, d: int) -> int | None:
        sizes = s.values.get(name)
        return d - s.rank_of(reference) + len(sizes) if isinstance(sizes, (list, tuple)) else None

    code = f"d - {rank_code(reference)} + len({name})"
    return DimWord(Expr(f"-k in {name}", code, frozenset((name,))), find, 3)


def _words_by_argument(name: str, many: bool) -> Iterator[DimWord]:
    uses = frozenset((name,))
    if not many:
        yield from _words_by_one(name, uses)
        return
    yield DimWord(
        Expr(f"d without {name}", f"-1 if d in {name} else d - sum(gone < d for gone in {name})", uses),
        lambda s, d: None if name not in s.dims or d in s.dims[name] else d - sum(g < d for g in s.dims[name]),
        3,
    )
    yield DimWord(
        Expr(f"place of d in {name}", f"{name}.index(d) if d in {name} else -1", uses),
        lambda s, d: s.dims[name].index(d) if d in s.dims.get(name, ()) else None,
        4,
    )


def _words_by_one(name: str, uses: frozenset[str]) -> Iterator[DimWord]:
    def without(s: Situation, d: int) -> int | None:
        gone = s.one_dim(name)
        return None if gone is None or gone == d else d - (gone < d)

    def beside(s: Situation, d: int) -> int | None:
        put = s.one_dim(name)
        return None if put is None else d + (put <= d)

    none = f"{name} is None or "
    yield DimWord(Expr(f"d without {name}", f"-1 if {none}d == {name} else d - ({name} < d)", uses), without, 3)
    yield DimWord(Expr(f"d beside {name}", f"-1 if {name} is None else d + ({name} <= d)", uses), beside, 3)
    yield DimWord(Expr(name, f"-1 if {name} is None else {name}", uses), lambda s, d: s.one_dim(name), 4)


def _exchanged(one: str, two: str) -> DimWord:
    def find(s: Situation, d: int) -> int | None:
        first, second = s.one_dim(one), s.one_dim(two)
        if first is None or second is None:
            return None
        return second if d == first else first if d == second else d

    code = f"{two} if d == {one} else {one} if d == {two} else d"
    return DimWord(Expr(f"d with {one} and {two} exchanged", code, frozenset((one, two))), find, 3)


def _carried(one: str, two: str) -> DimWord:
    """Dims that a diagonal takes out, or puts in."""

    def find(s: Situation, d: int) -> int | None:
        gone = (s.one_dim(one), s.one_dim(two))
        return None if d in gone or None in gone else d - sum(g < d for g in gone if g is not None)

    code = f"-1 if d in ({one}, {two}) else d - ({one} < d) - ({two} < d)"
    return DimWord(Expr(f"d without {one} and {two}", code, frozenset((one, two))), find, 3)
