"""Whether what the ranks leave behind is what the single program does: `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from ...frontends.ranks import OUTPUT, Left, Placed
from .lockstep import combined
from .numbers import Array, Number, Numbers

MOST_WAYS = 512
"""So many ways to place an output are tried."""


@dataclass(frozen=True)
class Mesh:
    """Ranks in rows: the last axis varies fastest."""

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def coordinate(self, rank: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(rank, self.shape))

    def group(self, rank: int, axis: int) -> tuple[int, ...]:
        """The ranks that differ from this one along an axis."""
        at = list(self.coordinate(rank))
        found = []
        for i in range(self.shape[axis]):
            at[axis] = i
            found.append(int(np.ravel_multi_index(at, self.shape)))
        return tuple(found)


@dataclass
class Difference:
    """Something that the ranks leave behind, and that the single program does not."""

    name: str
    kind: str
    fact: str
    ranks: tuple[int, ...] = ()
    looks_like: str = ""
    """What it would be right as."""
    rows: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        ranks = f" on ranks {', '.join(map(str, self.ranks))}" if self.ranks else ""
        like = f"; it is {self.looks_like}" if self.looks_like else ""
        return f"{self.name} {self.fact}{ranks}{like}"


def equal(x: Number, y: Number) -> Array:
    """Element by element."""
    if x.whole is not None and y.whole is not None:
        return np.asarray(x.whole == y.whole)
    if x.whole is not None or y.whole is not None:
        return np.zeros(x.shape, np.bool_)
    return np.asarray(x.residue == y.residue)


def assembled(numbers: Numbers, parts: Sequence[Number], placed: Sequence[Placed]) -> list[Number]:
    """What pending parts come to on every rank."""
    found = list(parts)
    for i in range(len(placed[0].partial)):
        found = [
            combined(numbers, how, [found[rank] for rank in group])
            for group, how in (placed[r].partial[i] for r in range(len(parts)))
        ]
    return found


def wrong_ranks(
    numbers: Numbers, single: Number, parts: Sequence[Number], placed: Sequence[Placed]
) -> list[tuple[int, Any]]:
    """Ranks that hold something else than their part, and the first element that is; -1: what nobody holds."""
    seen = np.zeros(single.shape, np.bool_)
    found: list[tuple[int, Any]] = []
    for rank, (part, where) in enumerate(zip(assembled(numbers, parts, placed), placed)):
        where.mark(seen)
        if part.shape != where.local_shape:
            found.append((rank, None))
            continue
        should = single.map(where.of)
        wrong = ~equal(part, should)
        if wrong.any():
            found.append((rank, tuple(int(i) for i in np.argwhere(wrong)[0])))
    if not found and not seen.all():
        found.append((-1, tuple(int(i) for i in np.argwhere(~seen)[0])))
    return found


def ways(
    shape: Sequence[int], parts: Sequence[Number], mesh: Mesh, pending: Sequence[str] = ("P(avg)", "P(sum)")
) -> Iterator[list[Placed]]:
    """Ways to place a tensor of which the ranks hold parts of these shapes, simplest first.

    What is the same on all ranks of an axis is not to be combined over it.
    """
    local = [part.shape for part in parts]
    if any(len(one) != len(shape) for one in local):
        return
    dims = [d for d in range(len(shape)) if any(one[d] != shape[d] for one in local)]
    choices = ["R", *(f"S({d})" for d in dims)]
    rank = {"R": 0, "S": 1, "P": 2}
    axes = [[*choices, *(pending if _differ(parts, mesh, axis) else ())] for axis in range(len(mesh.shape))]
    options = product(*axes)
    for count, way in enumerate(sorted(options, key=lambda way: [sum(rank[c[0]] for c in way), *way])):
        if count > MOST_WAYS:
            return
        found = [_placed(shape, mesh, r, way) for r in range(len(parts))]
        if all(where.local_shape == one for where, one in zip(found, local)):
            yield found


def _differ(parts: Sequence[Number], mesh: Mesh, axis: int) -> bool:
    """Whether ranks that differ along an axis hold different numbers of one shape."""
    groups = {mesh.group(rank, axis) for rank in range(len(parts))}
    pairs = [(parts[group[0]], parts[other]) for group in groups for other in group[1:]]
    return all(a.shape == b.shape for a, b in pairs) and any(not equal(a, b).all() for a, b in pairs)


def _placed(shape: Sequence[int], mesh: Mesh, rank: int, way: Sequence[str]) -> Placed:
    places = [np.arange(size) for size in shape]
    partial = []
    at = mesh.coordinate(rank)
    for axis, choice in enumerate(way):
        if choice[0] == "S":
            d = int(choice[2:-1])
            step = -(-len(places[d]) // mesh.shape[axis])
            places[d] = places[d][at[axis] * step : (at[axis] + 1) * step]
        elif choice[0] == "P":
            partial.append((mesh.group(rank, axis), choice[2:-1]))
    said = ", ".join(f"{choice} over {name}" for choice, name in zip(way, mesh.names) if choice != "R") or "R"
    return Placed(tuple(shape), tuple(places), partial=tuple(partial), said=said)


def compare(
    numbers: Numbers, mesh: Mesh, single: tuple[Left, Number], ranks: Sequence[tuple[Left, Number]]
) -> tuple[Difference | None, str]:
    """What is wrong with one thing that is left behind, or how it is placed."""
    left, whole = single
    parts = [part for _, part in ranks]
    known = [other.placed for other, _ in ranks]
    if all(placed is not None for placed in known):
        placed = [place for place in known if place is not None]
        wrong = wrong_ranks(numbers, whole, parts, placed)
        if not wrong:
            return None, placed[0].said
        like = _looks_like(numbers, mesh, whole, parts) if left.kind != OUTPUT or placed else ""
        return _difference(left, wrong, like), ""
    # A loss may be each rank's own: then it is to be averaged or added up.  Any other tensor has to say so.
    pending = ("P(avg)", "P(sum)") if left.kind == OUTPUT and not whole.shape else ()
    for placed in ways(whole.shape, parts, mesh, pending):
        if not wrong_ranks(numbers, whole, parts, placed):
            return None, placed[0].said
    simplest = next(iter(ways(whole.shape, parts, mesh)), None)
    if simplest is None:
        shapes = ", ".join(sorted({str(list(part.shape)) for part in parts}))
        fact = f"has shape {shapes}, and {list(whole.shape)} in the single program"
        return Difference(left.label, left.kind, fact), ""
    return _difference(left, wrong_ranks(numbers, whole, parts, simplest), _looks_like(numbers, mesh, whole, parts)), ""


def _difference(left: Left, wrong: Sequence[tuple[int, Any]], like: str) -> Difference:
    ranks = tuple(rank for rank, _ in wrong if rank >= 0)
    fact = "is not what the single program says" if ranks else "is not held in full by any ranks"
    found = Difference(left.label, left.kind, fact, ranks, like)
    if wrong and wrong[0][1] is not None:
        found.rows.append(("first element", str(list(wrong[0][1]))))
    return found


def _looks_like(numbers: Numbers, mesh: Mesh, whole: Number, parts: Sequence[Number]) -> str:
    """Another way to read it, or a factor, under which it would be right."""
    same = all(part.shape == parts[0].shape and equal(part, parts[0]).all() for part in parts)
    looks = (_factor, _other_way) if same else (_other_way, _factor)
    return next((said for look in looks if (said := look(numbers, mesh, whole, parts))), "")


def _other_way(numbers: Numbers, mesh: Mesh, whole: Number, parts: Sequence[Number]) -> str:
    for placed in ways(whole.shape, parts, mesh):
        if not wrong_ranks(numbers, whole, parts, placed):
            return placed[0].said
    return ""


def _factor(numbers: Numbers, mesh: Mesh, whole: Number, parts: Sequence[Number]) -> str:
    size = int(np.prod(mesh.shape))
    for factor in sorted({n for n in (*mesh.shape, size) if n > 1}):
        for ratio, said in ((1.0 / factor, f"{factor} times too large"), (float(factor), f"{factor} times too small")):
            scaled = [numbers.multiply(part, numbers.number(ratio)) for part in parts]
            for placed in ways(whole.shape, parts, mesh, pending=()):
                if not wrong_ranks(numbers, whole, scaled, placed):
                    return said
    return ""
