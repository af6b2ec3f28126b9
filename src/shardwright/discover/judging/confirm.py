"""Last confirmations of rows that the oracle found: on a mesh of two axes, and in float32.

Two rows, one per mesh axis, should hold together: what a device of the outer axis holds is cut or split again for the
inner one.  float32 is what programs run in; there a bound on rounding replaces float64's near-exactness, so it can
only confirm, never find.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..operator import Array, Operator, Sample
from ..placement import KINDS, Placement, R
from ..table import Inputs, Table, folded
from .encode import ENCODINGS, assemble, same, split
from .oracle import Oracle

Row = tuple[Inputs, tuple[Placement, ...]]

MOST_PAIRS = 64


@dataclass(frozen=True)
class Confirmed:
    """How many rows, or pairs of rows, held; and those that did not."""

    pairs: int = 0
    rows: int = 0
    failures: tuple[str, ...] = ()
    table: Table | None = None
    """The table whose rows were tried."""
    failed: frozenset[Row] = frozenset()
    """The rows that failed, alone or with another."""


def confirm(
    operator: Operator, tables: Sequence[Table], claimed: Callable[[Table], Collection[Row]] | None = None
) -> Confirmed:
    """Try the rows of one table on two axes, and in float32; of those that are `claimed`, where that is known."""
    chosen = _choice(tables)
    if chosen is None:
        return Confirmed()
    stated = claimed(chosen) if claimed is not None else None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        oracle = Oracle(operator, chosen.sample, KINDS)
        rows = [row for row in _rows(chosen) if stated is None or row in stated]
        pairs = list(itertools.islice(_pairs(chosen, rows), MOST_PAIRS))
        grid = {(a, b): _holds_on_grid(oracle, a, b) for a, b in pairs}
        single = _in_float32(operator, chosen.sample)
        rounded = {row: _holds_in_float32(single, row) for row in rows} if single is not None else {}
    failures = [f"on two axes: {_text(a)} with {_text(b)}" for (a, b), held in grid.items() if held is False]
    failures += [f"in float32: {_text(row)}" for row, held in rounded.items() if held is False]
    on_grid = sum(held is not None for held in grid.values())
    failed = {row for row, held in rounded.items() if held is False}
    failed |= _blamed([pair for pair, held in grid.items() if held is False and not failed & set(pair)])
    in_float32 = sum(held is not None for held in rounded.values())
    return Confirmed(on_grid, in_float32, tuple(failures), chosen, frozenset(failed))


def _blamed(pairs: Sequence[tuple[Row, Row]]) -> set[Row]:
    """Rows without which no pair fails: those that fail in most pairs first."""
    found: set[Row] = set()
    left = list(pairs)
    while left:
        counts = Counter(row for pair in left for row in set(pair))
        worst = max(counts, key=lambda row: (counts[row] + sum(pair == (row, row) for pair in left), str(row)))
        found.add(worst)
        left = [pair for pair in left if worst not in pair]
    return found


def _choice(tables: Sequence[Table]) -> Table | None:
    """The table with most rows whose dims two by two devices can share."""
    good = [t for t in tables if t.valid and any(size % 4 == 0 for shape in t.sample.shapes for size in shape)]
    return max(good or [t for t in tables if t.valid], key=lambda t: len(t.valid), default=None)


def _rows(table: Table) -> Iterator[Row]:
    for inputs, outputs in folded(table).items():
        if all(outputs) and any(p is not R for p in inputs):
            yield inputs, tuple(sorted(found, key=str)[0] for found in outputs)


def _pairs(table: Table, rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Rows that may stand side by side: every dim that both cut must have four equal parts, others two."""
    for a, b in itertools.product(rows, repeat=2):
        if all(_divides(shape, (p, q)) for shape, p, q in zip(table.sample.shapes, a[0], b[0])) and all(
            _divides(shape, (p, q)) for shape, p, q in zip(table.outputs, a[1], b[1])
        ):
            yield a, b


def _divides(shape: tuple[int, ...], placements: tuple[Placement, Placement]) -> bool:
    needed = [1] * len(shape)
    for p in placements:
        if p.kind == "S":
            needed[p.dim] *= 2
    return all(size % parts == 0 for size, parts in zip(shape, needed))


def _holds_on_grid(oracle: Oracle, outer: Row, inner: Row) -> bool | None:
    """Run on 2x2 devices: each tensor split by the outer row's placement, then each part by the inner row's.

    None where an argument tells the shape of a result that is cut: it would have to be cut on both axes.
    """
    if oracle.has_shape_argument and any(p.kind == "S" for p in (*outer[1], *inner[1])):
        return None
    library = oracle.operator.library
    parts = [
        [split(part, q, 2, ENCODINGS[0], seed=i + 31) for part in split(array, p, 2, ENCODINGS[0], seed=i)]
        for i, (array, p, q) in enumerate(zip(oracle.sample.tensors, outer[0], inner[0]))
    ]
    made: list[list[list[Array]]] = []
    try:
        for i, j in itertools.product(range(2), repeat=2):
            made.append([oracle.call([library.tensor(np.ascontiguousarray(held[i][j])) for held in parts])])
    except Exception:  # whatever the library raises: the rows do not hold together
        return False
    for o, want in enumerate(oracle.truth):
        halves = [assemble([made[2 * i + j][0][o] for j in range(2)], inner[1][o]) for i in range(2)]
        whole = None if any(h is None for h in halves) else assemble([h for h in halves if h is not None], outer[1][o])
        scale = max((float(np.abs(m[0][o]).max(initial=0.0)) for m in made if m[0][o].dtype.kind in "fc"), default=0.0)
        if whole is None or not same(whole, want, scale):
            return False
    return True


def _in_float32(operator: Operator, sample: Sample) -> Oracle | None:
    if not any(array.dtype == np.float64 for array in sample.tensors):
        return None
    tensors = tuple(a.astype(np.float32) if a.dtype == np.float64 else a for a in sample.tensors)
    oracle = Oracle(operator, sample.with_tensors(tensors), KINDS)
    return None if oracle.table.refused else oracle


def _holds_in_float32(oracle: Oracle, row: Row) -> bool | None:
    """Equal up to the rounding of as many additions as the inputs have elements, relative to the parts' size.

    None where a result is whole numbers made from floats (the place of the largest, a comparison): it may flip where
    numbers nearly tie.
    """
    inputs, outputs = row
    if any(want.dtype.kind not in "fc" for want in oracle.truth):
        return None
    world = oracle.even_world(inputs)
    count = sum(array.size for array in oracle.sample.tensors) + world
    for sized, found in oracle.outcomes(inputs, world, ENCODINGS[0]):
        lying = [p.kind == "S" and p.dim == sized for p in outputs] if sized is not None else [True]
        if all(lying) and all(
            _close(parts, want, placement, count) for parts, want, placement in zip(found, oracle.truth, outputs)
        ):
            return True
    return False


def _close(parts: Sequence[Array], want: Array, placement: Placement, count: int) -> bool:
    # Copies may differ by rounding: each of them is compared.
    wholes = list(parts) if placement is R else [assemble(parts, placement)]
    size = max(float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) for part in [*parts, want])
    bound = 16 * count * float(np.finfo(np.float32).eps) * max(size, 1.0)
    for whole in wholes:
        if whole is None or whole.shape != want.shape:
            return False
        close = np.abs(whole.astype(np.complex128) - want) <= bound
        if not (close | (whole == want) | (np.isnan(whole) & np.isnan(want))).all():
            return False
    return True


def _text(row: Row) -> str:
    return f"{', '.join(map(str, row[0]))} -> {', '.join(map(str, row[1]))}"
