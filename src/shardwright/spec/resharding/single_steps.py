"""Single steps between shardings: which there are among many, and the one between two.

`reshard` searches for the cheapest steps between two shardings.  A planner wants the cheapest paths between all that a
tensor may have, and they are the closure of single steps: `Hops` lists those.  Where all shards are even, what a step
sends is the tensor's bytes divided by a count, so one list serves tensors of every size.

`one_step` names the step from one sharding to the next, for whoever carries out such a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..axes import Axes, AxisRef, merge_axes
from ..collective import collective_bytes
from ..mesh import DeviceMesh
from ..sharding import DimSpec, ShardingSpec, sort_partial
from .cheapest import nearest, reshard
from .steps import Step

Atoms = tuple[int, ...]
Pending = tuple[tuple[int, str], ...]
Layout = tuple[tuple[Atoms, ...], Pending]
"""Atoms of each dim, major to minor; pending atoms with their reduction, in order."""
LOCAL = ("slice", "to_partial")


class StepClass(NamedTuple):
    """What a step's price depends on, beside the bytes of the tensor."""

    kind: str
    axes: Axes
    shards: int
    """A device puts in the tensor's bytes divided by this."""

    def sent(self, bytes: int) -> int:
        """What one device sends of a tensor of so many bytes."""
        ways = prod(axis.size for axis in self.axes)
        return 0 if self.kind in LOCAL else collective_bytes(self.kind, ways, bytes // self.shards)


@dataclass
class Atomised:
    """Mesh axes cut where some shardings cut them, so that all of these are lists of whole atoms."""

    mesh: DeviceMesh
    specs: Sequence[ShardingSpec]
    atoms: list[AxisRef] = field(init=False)

    def __post_init__(self) -> None:
        cuts: dict[str, set[int]] = {axis.name: {1, axis.full} for axis in self.mesh.axes}
        for axis in {axis for spec in self.specs for axis in spec.used_axes}:
            if axis.size > 1:
                cuts[axis.name] |= {axis.pre, axis.end}
        self.atoms = []
        for axis in self.mesh.axes:
            points = sorted(cuts[axis.name])
            if any(b % a for a, b in pairwise(points)):
                raise ValueError(f"axis {axis} is cut in ways that exclude each other")
            self.atoms += [AxisRef(axis.name, a, b // a, axis.full) for a, b in pairwise(points)]
        self._parts: dict[AxisRef, Atoms] = {}

    def parts(self, axis: AxisRef) -> Atoms:
        found = self._parts.get(axis)
        if found is None:
            inside = axis.size > 1
            found = tuple(a for a, atom in enumerate(self.atoms) if inside and axis.contains(atom))
            self._parts[axis] = found
        return found

    def layout(self, spec: ShardingSpec) -> Layout:
        dims = tuple([tuple([a for axis in dim.axes for a in self.parts(axis)]) for dim in spec.dims])
        pending = [(a, kind) for axis, kind in spec.partial for a in self.parts(axis)]
        return dims, tuple(sorted(pending))

    def axes(self, atoms: Iterable[int]) -> Axes:
        return merge_axes([self.atoms[a] for a in atoms])

    def spec(self, layout: Layout) -> ShardingSpec:
        dims, pending = layout
        partial: list[tuple[AxisRef, str]] = []
        for kind in dict.fromkeys(kind for _, kind in pending):
            partial += [(axis, kind) for axis in self.axes(a for a, k in pending if k == kind)]
        made = tuple([DimSpec(self.axes(dim)) for dim in dims])
        return ShardingSpec.make(self.mesh, made, sort_partial(partial, self.mesh))

    def shards(self, layout: Layout) -> int:
        return prod(self.atoms[a].size for dim in layout[0] for a in dim)


class Hops:
    """Shardings of a tensor, closed under gathering and reducing, and all single steps between them.

    Shards must be even.  ``specs`` are the given ones first, then those that were added; equal layouts are one.
    """

    def __init__(self, mesh: DeviceMesh, given: Sequence[ShardingSpec]) -> None:
        self.about = Atomised(mesh, given)
        about = self.about
        self.specs: list[ShardingSpec] = []
        self.at: dict[ShardingSpec, int] = {}
        """Where each sharding is, given or added."""
        self._index: dict[Layout, int] = {}
        self._layouts: list[Layout] = []
        for spec in given:
            self.at[spec] = self._add(about.layout(spec), spec)
        for layout in self._layouts:  # grows as it goes
            for less in _undone(layout):
                if less not in self._index:
                    added = about.spec(less)
                    self.at[added] = self._add(less, added)
        self._kinds = sorted({kind for _, pending in self._layouts for _, kind in pending})
        self.classes: list[StepClass] = []
        self._number: dict[StepClass, int] = {}
        rows = [row for i, layout in enumerate(self._layouts) for row in self._from(i, layout)]
        found = np.array(rows, np.int64).reshape(-1, 3)
        self.steps: npt.NDArray[np.int64] = found
        """From, to, class."""

    def _add(self, layout: Layout, spec: ShardingSpec) -> int:
        found = self._index.get(layout)
        if found is None:
            found = self._index[layout] = len(self.specs)
            self._layouts.append(layout)
            self.specs.append(spec)
        return found

    def _class(self, kind: str, atoms: Atoms, shards: int) -> int:
        axes = self.about.mesh.axes if kind == "collective_permute" else self.about.axes(atoms)
        key = StepClass(kind, axes, shards)
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self.classes)
            self.classes.append(key)
        return found

    def _from(self, i: int, layout: Layout) -> list[tuple[int, int, int]]:
        """All steps out of a layout that lead to another one of these."""
        dims, pending = layout
        index, shards = self._index, self.about.shards(layout)
        found: list[tuple[int, int, int]] = []

        def put(kind: str, atoms: Atoms, made: tuple[Atoms, ...], rest: Pending) -> None:
            j = index.get((made, rest))
            if j is not None and j != i:
                found.append((i, j, self._class(kind, atoms, shards)))

        for d, atoms in enumerate(dims):
            for at in range(len(atoms)):
                off = atoms[at:]
                less = (*dims[:d], atoms[:at], *dims[d + 1 :])
                put("all_gather", off, less, pending)
                for e, others in enumerate(dims):
                    if e != d:
                        for order in _orders(off):
                            put("all_to_all", order, (*less[:e], others + order, *less[e + 1 :]), pending)
        for done in _together(pending):
            rest = tuple([pair for pair in pending if pair[0] not in done])
            put("all_reduce", done, dims, rest)
            for d, atoms in enumerate(dims):
                for order in _orders(done):
                    put("reduce_scatter", order, (*dims[:d], atoms + order, *dims[d + 1 :]), rest)
        used = {a for dim in dims for a in dim} | {a for a, _ in pending}
        for a in range(len(self.about.atoms)):
            if a not in used:
                for d, atoms in enumerate(dims):
                    put("slice", (a,), (*dims[:d], (*atoms, a), *dims[d + 1 :]), pending)
                for reduction in self._kinds:
                    put("to_partial", (a,), dims, tuple(sorted((*pending, (a, reduction)))))
        found += self._permutes(i, dims, pending, shards)
        return found

    def _permutes(self, i: int, dims: tuple[Atoms, ...], pending: Pending, shards: int) -> list[tuple[int, int, int]]:
        """Layouts with as many shards along each dim."""
        if not hasattr(self, "_alike"):
            self._alike: dict[object, list[int]] = {}
            for j, (cut, rest) in enumerate(self._layouts):
                self._alike.setdefault((self._counts(cut), rest), []).append(j)
        same = self._alike[self._counts(dims), pending]
        if len(same) == 1:
            return []
        number = self._class("collective_permute", (), shards)
        return [(i, j, number) for j in same if j != i]

    def _counts(self, dims: tuple[Atoms, ...]) -> tuple[int, ...]:
        atoms = self.about.atoms
        return tuple([prod([atoms[a].size for a in dim]) for dim in dims])


def _undone(layout: Layout) -> list[Layout]:
    """Less by the last atom of a dim, or by a pending one."""
    dims, pending = layout
    found: list[Layout] = [((*dims[:d], atoms[:-1], *dims[d + 1 :]), pending) for d, atoms in enumerate(dims) if atoms]
    return found + [(dims, pending[:p] + pending[p + 1 :]) for p in range(len(pending))]


def _orders(atoms: Atoms) -> list[Atoms]:
    return list(permutations(atoms)) if 1 < len(atoms) <= 3 else [atoms]


def _together(pending: Pending) -> list[Atoms]:
    """What one reduction can combine: any pending atoms of one kind."""
    found: list[Atoms] = []
    for kind in dict.fromkeys(kind for _, kind in pending):
        atoms = [a for a, k in pending if k == kind]
        found += [done for count in range(1, len(atoms) + 1) for done in combinations(atoms, count)]
    return found


def steps_to(
    target: ShardingSpec,
    copies: Sequence[ShardingSpec],
    source: ShardingSpec | None,
    shape: tuple[int, ...],
    item_bytes: int,
) -> tuple[int, tuple[Step, ...]]:
    """Which copy to start from, and the steps: from ``source`` if that is said, else from the nearest.

    One rule for whoever makes copies or prices them.
    """
    if source is None:
        return nearest(copies, target, shape, item_bytes)
    # Shardings that differ in axes of one device only are one layout.
    step = None if source.same_layout(target) else one_step(source, target, shape, item_bytes)
    steps = (step,) if step is not None else reshard(source, target, shape, item_bytes, idle=False)
    return copies.index(source), steps


def one_step(source: ShardingSpec, target: ShardingSpec, shape: Sequence[int], item_bytes: int) -> Step | None:
    """The single step between two even shardings; None if there is none, or shards are uneven."""
    if any(size % dim.shards for spec in (source, target) for size, dim in zip(shape, spec.dims)):
        return None
    bytes = prod(shape) * item_bytes
    try:
        about = Atomised(source.mesh, (source, target))
    except ValueError:
        return None
    (dims, pending), (made, rest) = here, there = about.layout(source), about.layout(target)
    named = _name(about, dims, pending, made, rest)
    if named is None:
        return None
    kind, atoms, dim, to_dim, reduction = named
    if kind == "collective_permute" and [about.shards(((d,), ())) for d in here[0]] != [
        about.shards(((d,), ())) for d in there[0]
    ]:
        return None
    axes = source.mesh.axes if kind == "collective_permute" else about.axes(atoms)
    put_in = bytes // about.shards(here)
    sent = StepClass(kind, axes, about.shards(here)).sent(bytes)
    return Step(kind, axes, source, target, put_in, sent, dim, to_dim, reduction)


Named = tuple[str, Atoms, int | None, int | None, str | None]


def _name(
    about: Atomised, dims: tuple[Atoms, ...], pending: Pending, made: tuple[Atoms, ...], rest: Pending
) -> Named | None:
    longer = [d for d, (a, b) in enumerate(zip(dims, made)) if a != b and b[: len(a)] == a]
    shorter = [d for d, (a, b) in enumerate(zip(dims, made)) if a != b and a[: len(b)] == b]
    changed = sum(a != b for a, b in zip(dims, made))
    gone = [pair for pair in pending if pair not in rest]
    new = [pair for pair in rest if pair not in pending]
    if gone:
        done, kind = tuple(a for a, _ in gone), gone[0][1]
        if new or any(k != kind for _, k in gone):
            return None
        if not changed:
            return "all_reduce", done, None, None, kind
        if changed == 1 and longer:
            more = made[longer[0]][len(dims[longer[0]]) :]
            return ("reduce_scatter", more, longer[0], None, kind) if sorted(more) == sorted(done) else None
        return None
    if new:
        taken = {a for dim in dims for a in dim}
        if changed or len(about.axes(a for a, _ in new)) > 1 or any(a in taken for a, _ in new):
            return None
        if len({kind for _, kind in new}) > 1:
            return None
        return "to_partial", tuple(a for a, _ in new), None, None, new[0][1]
    if changed == 1 and shorter:
        return "all_gather", dims[shorter[0]][len(made[shorter[0]]) :], shorter[0], None, None
    if changed == 1 and longer:
        more = made[longer[0]][len(dims[longer[0]]) :]
        used = {a for dim in dims for a in dim} | {a for a, _ in pending}
        return ("slice", more, longer[0], None, None) if not used & set(more) else None
    if changed == 2 and longer and shorter:
        more, off = made[longer[0]][len(dims[longer[0]]) :], dims[shorter[0]][len(made[shorter[0]]) :]
        if sorted(more) == sorted(off):
            return "all_to_all", more, shorter[0], longer[0], None
    return "collective_permute", (), None, None, None
