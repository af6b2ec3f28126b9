"""The space in which `search` looks: layouts of one tensor, and the moves between them.

A layout is a pair (dims, partial).  Axes are cut into *atoms*, the parts that source and target speak of (and
on small meshes down to primes), numbered; a dim is a tuple of atoms, major to minor.  Atoms that follow each
other inside one axis count as that axis, joined: where shards are uneven, cutting a dim by an axis of 4 is
not the same as cutting it by its two halves in turn, so such a joint may be opened only where the dim divides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, pairwise, permutations
from math import prod
from typing import Any, NamedTuple

from .axes import Axes, AxisRef, merge_axes
from .chunks import all_chunks, padded_size
from .mesh import DeviceMesh
from .sharding import DimSpec, Shape, ShardingSpec

Dims = tuple[tuple[int, ...], ...]
Pending = tuple[tuple[int, str], ...]
Layout = tuple[Dims, Pending]

SMALL = 4
"""Up to this many atoms every move is considered."""
PRIME_LIMIT = 3
"""Meshes with at most this many prime factors are cut down to primes: every possible step is considered."""


class Move(NamedTuple):
    """One step in the space; ``elements`` is what one device puts in, padding included."""

    kind: str
    atoms: tuple[int, ...]
    elements: int
    after: Layout
    dim: int | None = None
    to_dim: int | None = None
    reduction: str | None = None
    axes: Axes = ()
    """Set instead of ``atoms`` where axes are split further than the atoms of the space."""
    spec: ShardingSpec | None = None


def primes(n: int) -> list[int]:
    """
    >>> primes(12)
    [2, 2, 3]
    """
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found


def make_atoms(mesh: DeviceMesh, refs: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
    """Cut every axis where one of ``refs`` begins or ends; on small meshes the parts again, down to primes.

    Cuts that exclude each other, such as 2 and 3 in an axis of 6, cannot all be kept: see `expresses`.
    """
    cuts: dict[str, set[int]] = {axis.name: {1, axis.full} for axis in mesh.axes if axis.full > 1}
    for ref in refs:
        if ref.size > 1:
            cuts[ref.name] |= {ref.pre, ref.end}
    small = sum(len(primes(size)) for size in mesh.shape) <= PRIME_LIMIT
    atoms = []
    for axis in mesh.axes:
        kept = [1]
        for point in sorted(cuts.get(axis.name, ()))[1:]:
            if point % kept[-1] == 0 and axis.full % point == 0:
                kept.append(point)
        for a, b in pairwise(kept):
            for p in primes(b // a) if small else [b // a]:
                atoms.append(AxisRef(axis.name, a, p, axis.full))
                a *= p
    return tuple(atoms)


def expresses(atoms: Sequence[AxisRef], ref: AxisRef) -> bool:
    """Whether an axis is made of whole atoms."""
    return prod(atom.size for atom in atoms if ref.contains(atom)) == ref.size


class Space:
    """Layouts of a tensor of one shape on one mesh."""

    def __init__(self, mesh: DeviceMesh, atoms: tuple[AxisRef, ...], shape: Shape) -> None:
        self.mesh = mesh
        self.atoms = atoms
        self.shape = shape
        self.sizes = [atom.size for atom in atoms]
        self.devices = prod(self.sizes)
        """How many devices the atoms tell apart."""
        self.joins = {
            (a, b) for a, first in enumerate(atoms) for b, second in enumerate(atoms) if first.can_merge(second)
        }
        self._arrangements: dict[tuple[tuple[tuple[int, int], ...], ...], list[Dims]] = {}
        self._overlaps: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        self.priced: dict[Any, list[tuple[int, Move, Layout]]] = {}
        self._counts: dict[Dims, tuple[int, ...] | None] = {}
        self._local: dict[tuple[int, tuple[int, ...]], int] = {}
        self._moves: dict[Layout, list[Move]] = {}
        self.walks_permutes = len(atoms) <= PRIME_LIMIT and any(size % self.devices for size in shape)
        """Where shards can be uneven, permutes are moves like others; see `permute` for the rest."""
        self.shiftable: dict[tuple[Dims, tuple[tuple[int, int, int], ...]], bool] = {}

    # -- between specs and layouts ----------------------------------------------------------------------

    def layout(self, spec: ShardingSpec) -> Layout:
        dims = tuple(tuple(a for axis in dim.axes for a in self._atoms_of(axis)) for dim in spec.dims)
        pending = tuple((a, kind) for axis, kind in spec.partial for a in self._atoms_of(axis))
        return dims, tuple(sorted(pending))

    def _atoms_of(self, axis: AxisRef) -> list[int]:
        return [a for a, atom in enumerate(self.atoms) if axis.contains(atom)]

    def axes(self, atoms: Iterable[int]) -> Axes:
        return merge_axes(self.atoms[a] for a in atoms)

    def spec(self, layout: Layout) -> ShardingSpec:
        dims = tuple(DimSpec(self.axes(dim)) for dim in layout[0])
        partial: list[tuple[AxisRef, str]] = []
        for a, kind in layout[1]:
            atom = self.atoms[a]
            if partial and partial[-1][1] == kind and partial[-1][0].can_merge(atom):
                partial[-1] = (partial[-1][0].merge(atom), kind)
            else:
                partial.append((atom, kind))
        return ShardingSpec.make(self.mesh, dims, tuple(partial))

    # -- sizes ------------------------------------------------------------------------------------------

    def local(self, d: int, atoms: tuple[int, ...]) -> int:
        """The largest part of dim d that a device holds."""
        key = (self.shape[d], atoms)
        found = self._local.get(key)
        if found is None:
            parts = tuple(axis.size for axis in self.axes(atoms))
            found = self._local[key] = padded_size(self.shape[d], parts)
        return found

    def elements(self, dims: Dims) -> int:
        total = 1
        for d, atoms in enumerate(dims):
            total *= self.local(d, atoms)
        return total

    def divides(self, d: int, atoms: Sequence[int]) -> bool:
        return self.shape[d] % prod([self.sizes[a] for a in atoms]) == 0

    def counts(self, dims: Dims) -> tuple[int, ...] | None:
        """Shards of each dim; None if some are uneven."""
        if dims not in self._counts:
            even = all(self.divides(d, atoms) for d, atoms in enumerate(dims))
            self._counts[dims] = tuple(prod([self.sizes[a] for a in atoms]) for atoms in dims) if even else None
        return self._counts[dims]

    def can_part(self, d: int, atoms: tuple[int, ...], at: int) -> bool:
        """Whether a dim may be cut back to its first ``at`` atoms."""
        if at == 0 or (atoms[at - 1], atoms[at]) not in self.joins:
            return True
        end = at + 1
        while end < len(atoms) and (atoms[end - 1], atoms[end]) in self.joins:
            end += 1
        return self.divides(d, atoms[:end])

    def can_append(self, d: int, atoms: tuple[int, ...], more: tuple[int, ...]) -> bool:
        if not atoms or (atoms[-1], more[0]) not in self.joins:
            return True
        end = 1
        while end < len(more) and (more[end - 1], more[end]) in self.joins:
            end += 1
        return self.divides(d, atoms + more[:end])

    def ways(self, move: Move) -> int:
        """How many devices talk to each other."""
        ways = 1
        for a in move.atoms:
            ways *= self.sizes[a]
        for axis in move.axes:
            ways *= axis.size
        return ways

    def missing(self, layout: Layout, goal: Layout, needed: int) -> int:
        """Elements that some device has to receive before it has the ``needed`` ones it holds at the goal.

        If a dim is cut by another axis than at the goal, some device holds none of its part; if values are
        pending, none of them is finished.  Needs even shards.
        """
        if layout[1] and any(pair not in goal[1] for pair in layout[1]):
            return needed
        shared = 1
        for d, (have, want) in enumerate(zip(layout[0], goal[0])):
            key = (d, have, want)
            overlap = self._overlaps.get(key)
            if overlap is None:
                inside = have[: len(want)] == want or want[: len(have)] == have
                overlap = self._overlaps[key] = min(self.local(d, have), self.local(d, want)) if inside else 0
            shared *= overlap
        return needed - shared

    # -- moves ------------------------------------------------------------------------------------------

    def moves(self, layout: Layout) -> list[Move]:
        """Every step out of a layout; to_partial aside, and permutes where shards are always even."""
        found = self._moves.get(layout)
        if found is None:
            found = self._moves[layout] = list(self._all_moves(layout))
            if self.walks_permutes:
                found += self._permutes(layout)
        return found

    def _all_moves(self, layout: Layout) -> Iterator[Move]:
        dims, pending = layout
        elements = self.elements(dims)
        used = {a for dim in dims for a in dim} | {a for a, _ in pending}
        for run in self._runs(a for a in range(len(self.atoms)) if a not in used):
            yield from self._cuts("slice", dims, run, elements, pending, None)
        for d, atoms in enumerate(dims):
            for at in range(len(atoms)):
                if self.can_part(d, atoms, at):
                    yield from self._undo(dims, d, at, elements, pending)
        for kind in sorted({kind for _, kind in pending}):
            together = tuple(a for a, k in pending if k == kind)
            for run in dict.fromkeys([*self._runs(together), together]):
                rest = tuple(pair for pair in pending if pair[0] not in run)
                yield Move("all_reduce", run, elements, (dims, rest), reduction=kind)
                yield from self._cuts("reduce_scatter", dims, run, elements, rest, kind)

    def _permutes(self, layout: Layout) -> Iterator[Move]:
        """Every other arrangement of the axes that cuts the tensor into the very same pieces."""
        dims, pending = layout
        taken = {a for a, _ in pending}
        elements = self.elements(dims)
        for after in self._same_pieces(dims):
            if after != dims and not any(a in taken for dim in after for a in dim):
                yield Move("collective_permute", (), elements, (after, pending), axes=self.mesh.axes)

    def _same_pieces(self, dims: Dims) -> list[Dims]:
        if not self._arrangements:
            rank = len(self.shape)
            for size in range(len(self.atoms) + 1):
                for chosen in permutations(range(len(self.atoms)), size):
                    for cuts in combinations_with_replacement(range(size + 1), rank - 1) if rank else ():
                        ends = (0, *cuts, size)
                        made = tuple(chosen[a:b] for a, b in pairwise(ends))
                        self._arrangements.setdefault(self._pieces(made), []).append(made)
        return self._arrangements.get(self._pieces(dims), [])

    def _pieces(self, dims: Dims) -> tuple[tuple[tuple[int, int], ...], ...]:
        return tuple(
            all_chunks(self.shape[d], tuple(axis.size for axis in self.axes(atoms))) for d, atoms in enumerate(dims)
        )

    def _runs(self, atoms: Iterable[int]) -> Iterator[tuple[int, ...]]:
        """Single atoms, and those that follow each other inside one axis taken together."""
        free = sorted(atoms)
        for i, a in enumerate(free):
            run: tuple[int, ...] = (a,)
            yield run
            for b in free[i + 1 :]:
                if (run[-1], b) not in self.joins:
                    break
                run = (*run, b)
                yield run

    def _cuts(
        self, kind: str, dims: Dims, atoms: tuple[int, ...], elements: int, pending: Pending, how: str | None
    ) -> Iterator[Move]:
        """Append atoms to any dim: slice and reduce_scatter."""
        for d in range(len(dims)):
            if self.can_append(d, dims[d], atoms):
                after = (*dims[:d], dims[d] + atoms, *dims[d + 1 :])
                put_in = elements if kind == "slice" else self._padded(elements, d, dims[d], atoms)
                yield Move(kind, atoms, put_in, (after, pending), d, None, how)

    def _undo(self, dims: Dims, d: int, at: int, elements: int, pending: Pending) -> Iterator[Move]:
        """Take the minor-most atoms off a dim: all_gather, or move them to another by all_to_all."""
        kept, off = dims[d][:at], dims[d][at:]
        cut = (*dims[:d], kept, *dims[d + 1 :])
        yield Move("all_gather", off, elements, (cut, pending), d)
        orders = list(permutations(off)) if len(off) <= 3 else [off]
        for e in range(len(dims)):
            if e == d:
                continue
            for order in orders:
                if self.can_append(e, dims[e], order):
                    after = (*cut[:e], dims[e] + order, *cut[e + 1 :])
                    put_in = self._padded(elements, e, dims[e], order)
                    yield Move("all_to_all", order, put_in, (after, pending), d, e)

    def _padded(self, elements: int, d: int, atoms: tuple[int, ...], more: tuple[int, ...]) -> int:
        """Elements put in when dim d is padded so that ``more`` divides it."""
        old = self.local(d, atoms)
        ways = prod([self.sizes[a] for a in more])
        new = self.local(d, atoms + more) * ways
        return elements if old == new or old == 0 else elements // old * new
