"""A lemma at small sizes, on a small mesh, that holds if and only if the large one does.

What a Program does depends on a dim's size by two things alone: where shards begin and end, and where an op counts
places.  So sizes that an op counts in stay what they are (`sizes`), and so do those that are not cut evenly, with the
axes that cut them.  Any other becomes the smallest that all its cuts divide, with two places a shard at least (or the
one that there was); equal sizes stay equal, different ones different, and what is a product of two stays so.  One place
is treated like the next, so a mistake at any place of a shard shows at the small size, too.

Of a mesh axis, stretches that no sharding and no collective of the lemma tells apart count as one: those that nothing
uses go (devices along them do the same with the same), those that are used keep at most `WAYS` ways, which are more
than enough to tell an order from its reverse, a shift from a swap and a group from its neighbour.  The order of devices
that a user chose plays no part: Programs speak of positions.

A sum over something that is the same everywhere is a count, and a number in the Program may be right for one count by
chance.  So where Program and Graph are not the same text, a lemma is shown at two sizes.

Where a lemma fails at the small size, it is tried as it is: a number that was made from a size, and is not known to
be, may be to blame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import lcm, prod
from typing import Any

from ..ir.graph import Attrs, Graph, TensorType
from ..ir.program import Program
from ..spec.axes import Axes, AxisRef
from ..spec.collective import COLLECTIVES
from ..spec.mesh import DeviceMesh
from ..spec.sharding import DimSpec, Shape, ShardingSpec
from .lemmas import Lemma
from .sizes import SIZES, Sizes, bystanders

STEPS = (*COLLECTIVES, "core.slice", "core.to_partial")
WAYS = 4
"""Ways that are left of an axis; of one with an odd factor, 3 or 6."""


def shrunk(lemma: Lemma, turn: int = 0) -> Lemma:
    """The lemma at the smallest sizes at which it says the same; itself where nothing can be smaller.

    Another ``turn`` gives other sizes and other ways of the axes: a number in the Program that happens to be right for
    one count of places, shards or devices is not for the next.
    """
    small = _smaller(_told_apart(lemma), turn)
    return small if elements(small) < elements(lemma) else lemma


def differs(lemma: Lemma) -> bool:
    """Whether the Program does more than its Graph's ops on shards, and moving shards about."""
    ops = [(instr.op, repr(instr.attrs)) for instr in lemma.program.instrs if instr.op not in STEPS]
    return bool(ops) and ops != [(node.op, repr(node.attrs)) for node in lemma.graph.nodes]


def _smaller(lemma: Lemma, turn: int) -> Lemma:
    sizes, stay = _sizes(lemma), _uneven_axes(lemma.program)
    while True:
        axes = _Axes.of(lemma.program, stay, turn)
        cuts = _Cuts(sizes, axes)
        for local in lemma.program.values:
            for size, dim in zip(local.type.shape, local.spec.dims):
                cuts.add(size, dim)
        more = _axes_of_kept(lemma.program, sizes) - stay
        if not more and not cuts.changed:
            return _Change(_new_sizes(lemma, sizes, cuts, turn), axes).lemma(lemma)
        stay |= more


# -- axes ---------------------------------------------------------------------------------------------------


def _uneven_axes(program: Program) -> set[str]:
    """Axes that cut a dim unevenly: these stay."""
    return {
        axis.name
        for local in program.values
        for size, dim in zip(local.type.shape, local.spec.dims)
        if size % dim.shards
        for axis in dim.axes
    }


def _axes_of_kept(program: Program, sizes: Sizes) -> set[str]:
    """Axes that cut a dim whose size stays: these stay, too, so that it is cut in the same way."""
    return {
        axis.name
        for local in program.values
        for size, dim in zip(local.type.shape, local.spec.dims)
        if size > 2 and size in sizes.kept
        for axis in dim.axes
    }


def _ways(ways: int, turn: int) -> int:
    """Fewer ways, with what divides them."""
    if ways <= WAYS:
        return ways
    if turn:
        return 2 if ways % 2 == 0 else 5
    return WAYS if ways % 4 == 0 else 6 if ways % 2 == 0 else 3


@dataclass(frozen=True)
class _Axes:
    """The axes of a mesh and what becomes of them."""

    mesh: DeviceMesh
    places: dict[str, dict[int, int]]
    """For a point in an axis (the product of the ways before) the same point in the new one, in order."""

    @staticmethod
    def of(program: Program, kept: set[str], turn: int) -> _Axes:
        used: dict[str, set[AxisRef]] = {}
        for local in program.values:
            for axis in local.spec.used_axes:
                used.setdefault(axis.name, set()).add(axis)
        for instr in program.instrs:
            for axis in instr.axes:
                used.setdefault(axis.name, set()).add(axis)
        places: dict[str, dict[int, int]] = {}
        for whole in program.mesh.axes:
            refs = used.get(whole.name, set())
            points = sorted({1, whole.size, *(p for ref in refs for p in (ref.pre, ref.end))})
            stays = whole.name in kept or any(b % a for a, b in pairwise(points))
            place = 1
            found = places[whole.name] = {1: 1}
            for a, b in pairwise(points):
                if stays:
                    place = b
                elif any(ref.pre <= a and b <= ref.end for ref in refs):
                    place *= _ways(b // a, turn)
                found[b] = place
        shape = tuple(max(found.values()) for found in places.values())
        return _Axes(DeviceMesh(shape, program.mesh.axis_names), places)

    def axis(self, axis: AxisRef) -> AxisRef:
        found = self.places[axis.name]
        return AxisRef(axis.name, found[axis.pre], found[axis.end] // found[axis.pre], found[axis.full])

    def axes(self, axes: Axes) -> Axes:
        return tuple(map(self.axis, axes))

    def ways(self, dim: DimSpec) -> Iterator[tuple[int, int]]:
        """The ways of each stretch of the axes of a dim, before and after."""
        for axis in dim.axes:
            points = [p for p in self.places[axis.name] if axis.pre <= p <= axis.end]
            for a, b in pairwise(points):
                yield b // a, self.places[axis.name][b] // self.places[axis.name][a]


# -- sizes --------------------------------------------------------------------------------------------------


def _sizes(lemma: Lemma) -> Sizes:
    """What the ops of a lemma say of its sizes."""
    graph, program, sizes = lemma.graph, lemma.program, Sizes()
    for node in graph.nodes:
        sizes.call(node.op, dict(node.attrs), _types(graph, node.operands), graph.types(node.results))
    for instr in program.instrs:
        results = [program.values[value].type for value in instr.results]
        if not instr.axes:
            sizes.call(instr.op, dict(instr.attrs), _types(program, instr.operands), results)
    if differs(lemma):
        calls = [(node.op, node.operands) for node in graph.nodes] + [(i.op, i.operands) for i in program.instrs]
        if any(not operands and op != "core.offset" for op, operands in calls):
            sizes.keep(sizes.looked_up)  # a written index means a place
        # One side may have made a number from a size that the other makes from a shape.  (The same op with the same
        # numbers on both sides does not.)
        shapes = {value.type.shape for value in graph.values} | {local.type.shape for local in program.values}
        for attrs in (*(node.attrs for node in graph.nodes), *(instr.attrs for instr in program.instrs)):
            sizes.numbers(attrs, shapes)
    return sizes


def _types(of: Graph | Program, operands: Sequence[Any]) -> list[Any]:
    def type_of(value: int) -> TensorType:
        return of.values[value].type

    return [[type_of(v) for v in o] if isinstance(o, tuple) else None if o is None else type_of(o) for o in operands]


class _Cuts:
    """How sizes are cut: what has to divide the new ones."""

    def __init__(self, sizes: Sizes, axes: _Axes) -> None:
        self.sizes, self.axes = sizes, axes
        self.steps: dict[int, int] = {}
        """A size is some number of times this."""
        self.exact: dict[int, int] = {}
        """It is just this: every shard is one place."""
        self.changed = sizes.settle()

    def add(self, size: int, dim: DimSpec) -> None:
        """A dim that is cut.  Of one that is made of several the outer are cut first."""
        if not dim.axes or size in self.sizes.kept or size == 0:
            if dim.axes and size % dim.shards:
                self.keep(size)
            return None
        rest = list(self.sizes.atoms(size))
        left, new = rest.pop(0), 1
        found: list[tuple[int, int, bool]] = []
        at = left
        for before, after in self.axes.ways(dim):
            if left == 1 and rest and before > 1:
                found.append((at, new, True))
                at = left = rest.pop(0)
                new = 1
            if left % before:
                return self.keep(size)
            left, new = left // before, new * after
        found.append((at, new, left == 1))
        for atom, cut, full in found:
            if full and self.exact.setdefault(atom, cut) != cut:
                return self.keep(size)
            self.steps[atom] = lcm(self.steps.get(atom, 1), cut)
        return None

    def keep(self, size: int) -> None:
        more = {size, *self.sizes.atoms(size)} - self.sizes.kept
        self.sizes.keep(more)
        self.sizes.settle()
        self.changed = self.changed or bool(more)


def _new_sizes(lemma: Lemma, sizes: Sizes, cuts: _Cuts, turn: int) -> dict[int, int]:
    """For every size the one in its place."""
    found = {size for value in lemma.graph.values for size in value.type.shape}
    found |= {size for local in lemma.program.values for size in local.type.shape}
    found |= {part for of in sizes.made_of.values() for part in of}
    new = {size: size for size in found if size < 2 or size in sizes.kept}
    taken = set(new.values())
    for size in sorted(found, key=lambda size: (size not in cuts.exact, size)):
        if size in new or size in sizes.made_of:
            continue
        step = cuts.steps.get(size, 1)
        free = (n for n in range(2 * step, size, step) if n not in taken)
        smaller = next(islice(free, 3 * turn, None), size)
        if size in cuts.exact:
            smaller = cuts.exact[size]
        new[size] = smaller
        taken.add(smaller)
        if smaller % step:
            return {size: size for size in found}
    for size in sorted(found - set(new)):
        new[size] = prod(new[atom] for atom in sizes.atoms(size))
    return new


def _told_apart(lemma: Lemma) -> Lemma:
    """A dim that a reshape passes on, and that only happens to be as large as one that it cuts, gets another size."""
    graph, program = lemma.graph, lemma.program
    if not len(graph.nodes) == len(graph.inputs) == len(program.instrs) == len(program.inputs) == 1:
        return lemma
    if len(graph.values) != 2 or len(program.values) != 2:
        return lemma
    node, (x, y) = graph.nodes[0], [value.type for value in graph.values]
    pairs = bystanders(node.op, dict(node.attrs), x, y)
    taken = {*x.shape, *y.shape}
    for d, e in pairs:
        size = x.shape[d]
        other = next(size * n for n in range(3, 100, 2) if size * n not in taken)
        taken.add(other)
        if any(size == local.spec.dims[at].shards for local, at in zip(program.values, (d, e))):
            return lemma
        graph = replace(graph, values=tuple(_resized(v, at, other) for v, at in zip(graph.values, (d, e))))
        program = replace(program, values=tuple(_resized(v, at, other) for v, at in zip(program.values, (d, e))))
    return replace(lemma, graph=graph, program=program)


def _resized(value: Any, d: int, size: int) -> Any:
    shape = value.type.shape
    return replace(value, type=replace(value.type, shape=(*shape[:d], size, *shape[d + 1 :])))


# -- the small lemma ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Change:
    sizes: dict[int, int]
    axes: _Axes

    def lemma(self, lemma: Lemma) -> Lemma:
        graph, program = lemma.graph, lemma.program
        small = replace(
            graph,
            values=tuple(replace(value, type=self.type(value.type)) for value in graph.values),
            nodes=tuple(replace(node, attrs=self.attrs(node.attrs)) for node in graph.nodes),
        )
        shards = replace(
            program,
            mesh=self.axes.mesh,
            values=tuple(
                replace(local, type=self.type(local.type), spec=self.spec(local.spec)) for local in program.values
            ),
            instrs=tuple(
                replace(instr, attrs=self.attrs(instr.attrs), axes=self.axes.axes(instr.axes))
                for instr in program.instrs
            ),
        )
        return replace(lemma, graph=small, program=shards)

    def shape(self, shape: Shape) -> Shape:
        return tuple(self.sizes[size] for size in shape)

    def type(self, type: TensorType) -> TensorType:
        return replace(type, shape=self.shape(type.shape))

    def spec(self, spec: ShardingSpec) -> ShardingSpec:
        dims = tuple(DimSpec(self.axes.axes(dim.axes)) for dim in spec.dims)
        partial = tuple((self.axes.axis(axis), kind) for axis, kind in spec.partial)
        return ShardingSpec.make(self.axes.mesh, dims, partial)

    def attrs(self, attrs: Attrs) -> Attrs:
        return tuple((name, self.attr(value) if name in SIZES else value) for name, value in attrs)

    def attr(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self.attr, value))
        return self.sizes.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def elements(lemma: Lemma) -> int:
    """Numbers that have to be computed to check it."""
    program = lemma.program
    whole = sum(value.type.elements for value in lemma.graph.values)
    return whole + program.mesh.size * sum(prod(local.spec.padded_shape(local.type.shape)) for local in program.values)
