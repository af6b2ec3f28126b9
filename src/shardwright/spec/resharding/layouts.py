"""The space in which `search` looks: layouts of one tensor.

Axes are cut into *atoms*, the parts that source and target speak of (and on small meshes down to primes),
numbered; a dim is a tuple of atoms, major to minor.  Atoms that follow each other inside one axis count as
that axis, joined: where shards are uneven, cutting a dim by an axis of 4 is not the same as cutting it by its
two halves in turn, so such a joint may be opened only where the dim divides.

What a space knows (sizes, layouts, their moves and prices) is worked out when first asked for, and kept: it
does not depend on where one wants to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, permutations
from math import prod
from typing import NamedTuple

from ..axes import Axes, AxisRef, merge_axes
from ..chunks import all_chunks
from ..collective import collective_bytes
from ..mesh import DeviceMesh
from ..sharding import DimSpec, Shape, ShardingSpec
from .steps import CostFn, bytes_cost

Atoms = tuple[int, ...]
Dims = tuple[Atoms, ...]
Pending = tuple[tuple[int, str], ...]

SMALL = 4
"""Up to this many atoms every move is considered."""
PRIME_LIMIT = 3
"""Meshes with at most this many prime factors are cut down to primes: every possible step is considered."""


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


class Cut(NamedTuple):
    """What a list of atoms does to a dim."""

    local: int
    """The largest part that a device holds."""
    ways: int
    even: bool
    used: int
    """The atoms as bits."""


class Layout:
    """Where the atoms are: on dims, or pending; the others are free.

    Only `Space.at` makes them, and never two that are equal: they are told apart by identity, which is fast.
    """

    __slots__ = ("dims", "facts", "pending")

    def __init__(self, dims: Dims, pending: Pending) -> None:
        self.dims = dims
        self.pending = pending
        self.facts: Facts | None = None
        """Worked out when a search passes here; of most layouts it only hears."""

    def __repr__(self) -> str:
        return f"Layout({self.dims}, {self.pending})"


class Recipe(NamedTuple):
    """Counts of a finish: cut dims further, permute, shift shards between dims, gather."""

    slices: tuple[int, ...]
    shifts: tuple[tuple[int, int, int], ...] = ()
    """(from dim, to dim, ways)"""
    extras: tuple[int, ...] = ()


class Move(NamedTuple):
    """A move by its name; ``elements`` is what one device puts in, padding included."""

    kind: str
    axes: Axes
    elements: int
    after: ShardingSpec
    dim: int | None = None
    to_dim: int | None = None
    reduction: str | None = None


Priced = tuple[int, Layout, Recipe | None]
"""What a path costs, where it leads, and what it consists of if it is not a single move."""


class Offer:
    """Moves out of a layout that cost ``floor`` or, where shards must be padded for them, more."""

    __slots__ = ("atoms", "dim", "floor", "kind", "rest", "written")

    def __init__(self, floor: int, kind: str, atoms: Atoms, dim: int = -1, rest: Pending = ()) -> None:
        self.floor = floor
        self.kind = kind
        self.atoms = atoms
        self.dim = dim
        """What is undone, for all_gather and all_to_all."""
        self.rest = rest
        """What is still pending afterwards."""
        self.written: list[Priced] | None = None


class Facts:
    """What there is to know of a layout: its size, and where one can go from it (see `moves`)."""

    __slots__ = ("counts", "elements", "offers", "slices", "taken", "used")

    def __init__(self, elements: int, counts: tuple[int, ...] | None, used: int, taken: int) -> None:
        self.elements = elements
        """What one device holds, padding included."""
        self.counts = counts
        """Shards of each dim; None if some are uneven."""
        self.used = used
        """Atoms on dims or pending, as bits."""
        self.taken = taken
        """Devices along the pending atoms."""
        self.slices: dict[int, list[Priced]] = {}
        self.offers: list[Offer] | None = None


class Change(NamedTuple):
    """From the atoms on a dim to those at the goal."""

    in_place: int
    """Elements along the dim."""
    steps: int
    """About how many steps it takes."""
    wrong: int
    """Bytes to take off the atoms that are in the wrong place, at least."""
    surplus: int
    """Bytes to take off the shards that are too many, at least."""


class Space:
    """Layouts of a tensor of one shape on one mesh, with the prices of one cost function."""

    def __init__(
        self, mesh: DeviceMesh, atoms: tuple[AxisRef, ...], shape: Shape, item_bytes: int, cost: CostFn
    ) -> None:
        self.mesh = mesh
        self.atoms = atoms
        self.shape = shape
        self.item_bytes = item_bytes
        self.cost = cost
        self.by_bytes = cost is bytes_cost
        self.sizes = [atom.size for atom in atoms]
        self.devices = prod(self.sizes)
        """How many devices the atoms tell apart."""
        self.bytes = prod(shape) * item_bytes
        self.smallest = self.bytes // self.devices
        """What a device holds at least if nothing is pending, rounded down."""
        self.even = not any(size % self.devices for size in shape)
        """Whether all layouts cut the tensor into equal shards."""
        self.joins = {
            (a, b) for a, first in enumerate(atoms) for b, second in enumerate(atoms) if first.can_merge(second)
        }
        self.walks_permutes = len(atoms) <= SMALL and not self.even
        """Where shards can be uneven, permutes are moves like others; see `permute` for the rest."""
        self._layouts: dict[tuple[Dims, Pending], Layout] = {}
        self._of_spec: dict[ShardingSpec, Layout] = {}
        self._specs: dict[Layout, ShardingSpec] = {}
        self._axes: dict[Atoms, Axes] = {(): ()}
        self._dim_specs: dict[Atoms, DimSpec] = {}
        by_size: dict[int, dict[Atoms, Cut]] = {size: {} for size in shape}
        self._cuts = [by_size[size] for size in shape]  # dims of one size are cut alike
        self._by_ways: dict[int, list[Atoms]] = {}
        self._same: dict[tuple[int, Atoms], list[tuple[Atoms, int]]] = {}
        # What other files keep here.
        self.answers: dict[tuple[Layout, Layout], list[Move]] = {}
        self.runs: dict[int, list[Atoms]] = {}
        self.orders: dict[Atoms, list[Atoms]] = {}
        self.changes: dict[tuple[int, Atoms], Mapping[Atoms, Change]] = {}
        self.to_dims: dict[Dims, Mapping[Dims, tuple[int, int]]] = {}
        self.shiftable: dict[tuple[Dims, tuple[tuple[int, int, int], ...]], bool] = {}

    # -- between specs and layouts ----------------------------------------------------------------------

    def at(self, dims: Dims, pending: Pending) -> Layout:
        key = (dims, pending)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = Layout(dims, pending)
        return found

    def layout(self, spec: ShardingSpec) -> Layout:
        found = self._of_spec.get(spec)
        if found is None:
            dims = tuple(tuple(a for axis in dim.axes for a in self._atoms_of(axis)) for dim in spec.dims)
            pending = tuple((a, kind) for axis, kind in spec.partial for a in self._atoms_of(axis))
            found = self._of_spec[spec] = self.at(dims, tuple(sorted(pending)))
        return found

    def _atoms_of(self, axis: AxisRef) -> list[int]:
        return [a for a, atom in enumerate(self.atoms) if axis.contains(atom)]

    def axes(self, atoms: Atoms) -> Axes:
        found = self._axes.get(atoms)
        if found is None:
            found = self._axes[atoms] = merge_axes([self.atoms[a] for a in atoms])
        return found

    def spec(self, layout: Layout) -> ShardingSpec:
        found = self._specs.get(layout)
        if found is None:
            dims = tuple([self._dim_spec(dim) for dim in layout.dims])
            found = self._specs[layout] = ShardingSpec.make(self.mesh, dims, self._partial(layout.pending))
        return found

    def _dim_spec(self, atoms: Atoms) -> DimSpec:
        found = self._dim_specs.get(atoms)
        if found is None:
            found = self._dim_specs[atoms] = DimSpec(self.axes(atoms))
        return found

    def _partial(self, pending: Pending) -> tuple[tuple[AxisRef, str], ...]:
        partial: list[tuple[AxisRef, str]] = []
        for a, kind in pending:
            atom = self.atoms[a]
            if partial and partial[-1][1] == kind and partial[-1][0].can_merge(atom):
                partial[-1] = (partial[-1][0].merge(atom), kind)
            else:
                partial.append((atom, kind))
        return tuple(partial)

    # -- sizes ------------------------------------------------------------------------------------------

    def cut(self, d: int, atoms: Atoms) -> Cut:
        found = self._cuts[d].get(atoms)
        if found is None:
            size, ways = self.shape[d], self.ways(atoms)
            # Rounding up once is the same as rounding up after each axis.
            found = self._cuts[d][atoms] = Cut(-(-size // ways), ways, size % ways == 0, self.bits(atoms))
        return found

    def ways(self, atoms: Iterable[int]) -> int:
        """How many devices there are along some atoms."""
        ways = 1
        for a in atoms:
            ways *= self.sizes[a]
        return ways

    def bits(self, atoms: Iterable[int]) -> int:
        used = 0
        for a in atoms:
            used |= 1 << a
        return used

    def facts(self, layout: Layout) -> Facts:
        found = layout.facts
        if found is None:
            elements, even, used, taken = 1, True, 0, 1
            counts = []
            for d, atoms in enumerate(layout.dims):
                cut = self._cuts[d].get(atoms) or self.cut(d, atoms)
                elements *= cut.local
                counts.append(cut.ways)
                even = even and cut.even
                used |= cut.used
            for a, _ in layout.pending:
                used |= 1 << a
                taken *= self.sizes[a]
            found = layout.facts = Facts(elements, tuple(counts) if even else None, used, taken)
        return found

    def elements(self, layout: Layout) -> int:
        return self.facts(layout).elements

    def divides(self, d: int, atoms: Atoms) -> bool:
        return self.shape[d] % self.ways(atoms) == 0

    def can_part(self, d: int, atoms: Atoms, at: int) -> bool:
        """Whether a dim may be cut back to its first ``at`` atoms."""
        if at == 0 or (atoms[at - 1], atoms[at]) not in self.joins:
            return True
        end = at + 1
        while end < len(atoms) and (atoms[end - 1], atoms[end]) in self.joins:
            end += 1
        return self.divides(d, atoms[:end]) or self._joined_alike(d, atoms[:at], atoms[at:end])

    def can_append(self, d: int, atoms: Atoms, more: Atoms) -> bool:
        if not atoms or (atoms[-1], more[0]) not in self.joins:
            return True
        end = 1
        while end < len(more) and (more[end - 1], more[end]) in self.joins:
            end += 1
        return self.divides(d, atoms + more[:end]) or self._joined_alike(d, atoms, more[:end])

    def _joined_alike(self, d: int, atoms: Atoms, more: Atoms) -> bool:
        """Whether parts of one axis cut a dim, one after the other, into the pieces that they cut it into together."""
        apart, joined = (
            tuple([axis.size for axis in axes])
            for axes in ((*self.axes(atoms), *self.axes(more)), self.axes(atoms + more))
        )
        return all_chunks(self.shape[d], apart) == all_chunks(self.shape[d], joined)

    def padded(self, elements: int, d: int, atoms: Atoms, more: Atoms) -> int:
        """Elements put in when dim d is padded so that ``more`` divides it."""
        if self.even:
            return elements
        cut = self.cut(d, atoms + more)
        old = self.cut(d, atoms).local
        new = cut.local * self.ways(more)
        return elements if old == new or old == 0 else elements // old * new

    def price(self, kind: str, atoms: Atoms, ways: int, elements: int) -> int:
        if self.by_bytes:
            return collective_bytes(kind, ways, elements * self.item_bytes)
        return self.cost(kind, self.axes(atoms), elements * self.item_bytes)

    def permute_price(self, elements: int) -> int:
        return self.cost("collective_permute", self.mesh.axes, elements * self.item_bytes)

    # -- the same pieces --------------------------------------------------------------------------------

    def same_pieces(self, dims: Dims) -> list[Dims]:
        """Every arrangement of atoms, this one included, that cuts the tensor into the very same pieces."""
        found: list[tuple[Dims, int]] = [((), 0)]
        for d, atoms in enumerate(dims):
            found = [
                ((*made, other), used | bits)
                for made, used in found
                for other, bits in self._same_cuts(d, atoms)
                if not used & bits
            ]
        return [made for made, _ in found]

    def _same_cuts(self, d: int, atoms: Atoms) -> list[tuple[Atoms, int]]:
        """The lists of atoms that cut a dim into the same pieces, and their bits."""
        found = self._same.get((d, atoms))
        if found is None:
            if not self._by_ways:
                for many in range(len(self.atoms) + 1):
                    for other in permutations(range(len(self.atoms)), many):
                        self._by_ways.setdefault(self.ways(other), []).append(other)
            same = [other for other in self._by_ways[self.ways(atoms)] if self.same_cut(d, atoms, other)]
            found = self._same[d, atoms] = [(other, self.bits(other)) for other in same]
        return found

    def same_cut(self, d: int, atoms: Atoms, others: Atoms) -> bool:
        """Whether two lists of atoms cut a dim into the very same pieces."""
        cut = self.cut(d, atoms)
        if cut.ways != self.cut(d, others).ways:
            return False
        if cut.even:
            return True
        parts, other_parts = ([axis.size for axis in self.axes(some)] for some in (atoms, others))
        size = self.shape[d]
        return parts == other_parts or all_chunks(size, tuple(parts)) == all_chunks(size, tuple(other_parts))
