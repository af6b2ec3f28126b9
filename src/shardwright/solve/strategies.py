"""`Space`: for every node the ways to split it over all mesh axes together, and what each takes.

For each mesh axis a node leaves it alone, gives it to one of its factors, or lets a pending sum over it through; a way
is one such choice for every axis.  An axis that is longer than a factor may fill it and go on in the factor that
follows it (8 heads in groups of 4 on an axis of 16).  Ways are made once for equal calls, so depth costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..cost.compute import cost_class, local_sizes, op_time, operations
from ..cost.machine import Hardware
from ..cost.memory import local_bytes
from ..cost.program import ProgramCost
from ..ir.core import BARRIER, CONSTRAINT
from ..ir.graph import Graph, Node, TensorType
from ..ir.wiring import numbers
from ..propagation.book import rule_of
from ..propagation.choices import FORM_PENDING, legal_axes
from ..propagation.complete import Complete, complete_parts
from ..propagation.parts import in_parts, parts_of
from ..rules.registry import find
from ..spec.axes import Axes, AxisRef, axes_size, merge_axes
from ..spec.mesh import DeviceMesh
from ..spec.rule import Mapped, OpShardingRule
from ..spec.sharding import DimSpec, Partial, ShardingSpec, sort_partial
from .price import node_time, price_parts

SUM = "P(sum)"
MOST_ORDERS = 4
"""So many orders of the axes that a user names are tried beside the mesh's own: each takes as long as that."""
Option = tuple[tuple[tuple[int, AxisRef], ...], int]
"""What happens to a mesh axis: factors with the part of it that each gets, and a line of the transfer table or -1."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to carry out a node: what it needs, what it leaves, what it takes."""

    axes: tuple[Axes, ...]
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]
    time: int
    """Picoseconds of local work and of exchanges inside."""
    exchange: int = 0
    """Of these, what is exchanged inside."""

    @property
    def compute(self) -> int:
        return self.time - self.exchange


@dataclass
class Space:
    """All ways of all nodes of a graph on a mesh."""

    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    uneven: bool = False
    """Whether factors may be split that do not divide."""
    orders: tuple[Axes, ...] = ()
    """In which orders the axes of the mesh, or parts of them, are given to factors, beside the mesh's own."""
    rules: dict[int, OpShardingRule | None] = field(default_factory=dict, repr=False)
    """Of the nodes that were asked about."""
    _known: dict[object, tuple[Way, ...]] = field(default_factory=dict, repr=False)
    _specs: dict[ShardingSpec, ShardingSpec] = field(default_factory=dict, repr=False)
    _laid: dict[object, tuple[ShardingSpec, int]] = field(default_factory=dict, repr=False)

    def ways(self, n: int, pinned: ShardingSpec | None = None) -> tuple[Way, ...]:
        """Of one node; ``pinned`` is the sharding that a constraint asks for."""
        node = self.graph.nodes[n]
        if node.op == CONSTRAINT and pinned is not None:
            spec = pinned.closed()
            self.rules[n] = OpShardingRule.identity(self.graph.values[node.results[0]].shape)
            return (Way(tuple(dim.axes for dim in spec.dims), (spec,), (spec,), 0),)
        view = rule_of(self.graph, node)
        rule = self.rules[n] = None if view is None else view.rule
        if rule is None:
            return (self._replicated(node),)
        types = self._types(node)
        key = (id(rule), node.op, types, node.attrs)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(_Call(self, node, rule, types).ways())
        return found

    def same(self, spec: ShardingSpec) -> ShardingSpec:
        """The one object for all equal shardings."""
        return self._specs.setdefault(spec, spec)

    def laid(self, cuts: tuple[Axes, ...], pending: Partial, type: TensorType) -> tuple[ShardingSpec, int]:
        """A sharding with these axes on its dims, and the bytes of a shard."""
        key = (cuts, pending, type)
        found = self._laid.get(key)
        if found is None:
            partial = sort_partial(pending, self.mesh) if pending else ()
            spec = self.same(ShardingSpec.make(self.mesh, tuple(map(DimSpec, cuts)), partial))
            found = self._laid[key] = spec, local_bytes(spec, type)
        return found

    def _types(self, node: Node) -> tuple[TensorType, ...]:
        return tuple(self.graph.types((*node.inputs, *node.results)))

    def _replicated(self, node: Node) -> Way:
        types = self._types(node)
        specs = tuple(self.same(ShardingSpec.replicate(self.mesh, type.rank)) for type in types)
        count = len(node.inputs)
        time = node_time(node.op, node.attrs, None, (), specs, types, count, self.hardware)
        return Way((), specs[:count], specs[count:], time)


class _Split(NamedTuple):
    """What some of the mesh axes do."""

    axes: tuple[Axes, ...]
    """Of the factors."""
    local: tuple[int, ...]
    carried: tuple[tuple[AxisRef, int], ...]
    """Axes of pending sums, with lines of the transfer table."""
    keys: tuple[int, ...]
    """Of each tensor a number: with equal ones it lies alike."""


class _Call:
    """One call of an op: its ways, with everything that several of them share worked out once."""

    def __init__(self, space: Space, node: Node, rule: OpShardingRule, types: Sequence[TensorType]) -> None:
        self.space, self.node, self.rule, self.types = space, node, rule, types
        self.mesh = space.mesh
        self.rows = [] if node.op == BARRIER else [row for row in rule.transfers if _of_sums(row.operands)]
        self.kind = cost_class(find(node.op))
        self.attrs = dict(node.attrs)
        self.count = len(rule.operands)
        self.plain = all(len(dim) < 2 for tensor in rule.tensors for dim in tensor)
        """Whether no dim is made of several factors: then every choice is legal."""
        self.parted = in_parts(rule, [True] * len(rule.factors))
        """Whether some factor, where it is split, calls for the op's parts."""
        self.formed = [(f, FORM_PENDING[x.form]) for f, x in enumerate(rule.factors) if x.form in FORM_PENDING]
        reduced: Sequence[Sequence[tuple[int, str]]] = rule.reductions
        self.pending = [*([()] * self.count), *([*done, *self.formed] for done in reduced)]
        """Of each tensor the factors that leave it pending when they are split, and how."""
        self.depends = [
            sorted({f for dim in tensor for f in dim} | {f for f, _ in left})
            for tensor, left in zip(rule.tensors, self.pending)
        ]
        self.carries = [
            [(row.operands[t] if t < self.count else row.results[t - self.count]) != "R" for row in self.rows]
            for t in range(len(rule.tensors))
        ]
        """Of each tensor for each line of the transfer table whether it is pending there."""
        self.bases = [1] * len(rule.tensors)
        """Of each tensor how many numbers the options of the axis at hand have."""
        self._specs: list[dict[int, tuple[ShardingSpec, int]]] = [{} for _ in rule.tensors]

    def ways(self) -> list[Way]:
        best: dict[object, Way] = {}
        for axes in (self.mesh.axes, *self.space.orders):
            self._specs = [{} for _ in self.rule.tensors]
            for split in self.splits(axes):
                way = self.way(split)
                if way is not None:
                    key = (way.operands, way.results)
                    if key not in best or way.time < best[key].time:
                        best[key] = way
        return list(best.values())

    def splits(self, axes: Axes) -> list[_Split]:
        """What the axes may do, given to factors in this order."""
        # Axis by axis: what the first axes do is worked out once for all that the later ones may do.
        splits = [_Split(((),) * len(self.rule.factors), self.rule.sizes, (), (0,) * len(self.rule.tensors))]
        for axis in axes:
            options = self.options(axis)
            seen = self.seen(options)
            splits = [
                more
                for split in splits
                for option, how in zip(options, seen)
                if (more := self.extended(split, axis, option, how)) is not None
            ]
        return splits

    def options(self, axis: AxisRef) -> list[Option]:
        rule, uneven = self.rule, self.space.uneven
        found: list[Option] = [((), -1)]
        if axis.size == 1:
            return found
        free = [f for f in range(len(rule.factors)) if _splittable(rule, f)]
        fits = [f for f in free if axis.size <= rule.sizes[f] and (uneven or rule.sizes[f] % axis.size == 0)]
        found += [(((f, axis),), -1) for f in fits]
        for f, g in _neighbours(rule):
            size = rule.sizes[f]
            if f in free and g in free and 1 < size < axis.size and axis.size % size == 0:
                major, minor = axis.split(size)
                if rule.sizes[g] % minor.size == 0:
                    found.append((((f, major), (g, minor)), -1))
        return found + [((), r) for r in range(len(self.rows))]

    def seen(self, options: Sequence[Option]) -> list[tuple[int, ...]]:
        """Of each option for each tensor a number: equal ones leave it alike."""
        columns = []
        for t, (depends, carries) in enumerate(zip(self.depends, self.carries)):
            number = numbers()
            columns.append(
                [
                    number[tuple([part for part in parts if part[0] in depends]), row >= 0 and carries[row]]
                    for parts, row in options
                ]
            )
            self.bases[t] = len(number)
        return list(zip(*columns)) if columns else [()] * len(options)

    def extended(self, split: _Split, axis: AxisRef, option: Option, seen: tuple[int, ...]) -> _Split | None:
        """With one more axis used; None if a size does not divide."""
        parts, row = option
        axes, local, carried = split.axes, split.local, split.carried
        if parts:
            given, sizes = list(axes), list(local)
            for f, part in parts:
                given[f] = merge_axes((*given[f], part)) if given[f] else (part,)
                sizes[f], rest = divmod(sizes[f], part.size)
                if rest and not self.space.uneven:
                    return None
            axes, local = tuple(given), tuple(sizes)
        if row >= 0:
            carried = (*carried, (axis, row))
        keys = tuple([key * base + more for key, base, more in zip(split.keys, self.bases, seen)])
        return _Split(axes, local, carried, keys)

    def way(self, split: _Split) -> Way | None:
        rule, uneven, axes = self.rule, self.space.uneven, split.axes
        if (not self.plain or uneven) and legal_axes(rule, axes) != axes:
            return None
        laid = [
            known.get(key) or self.spec(t, key, split) for t, (known, key) in enumerate(zip(self._specs, split.keys))
        ]
        specs = tuple([spec for spec, _ in laid])
        operands, results = specs[: self.count], specs[self.count :]
        if self.parted and in_parts(rule, axes):
            inner = self.inside(operands, results)
            return None if inner is None else Way(axes, operands, results, inner.total, inner.communication)
        sizes = [size for _, size in laid]
        work = operations(rule, self.kind, local_sizes(rule, axes) if uneven else split.local, self.attrs)
        dtype = self.types[0].dtype if self.types else "f32"
        time = op_time(self.kind, work, sizes[: self.count], sizes[self.count :], dtype, self.space.hardware)
        return Way(axes, operands, results, time)

    def spec(self, t: int, key: int, split: _Split) -> tuple[ShardingSpec, int]:
        """How a tensor lies, and its bytes."""
        pairs = [(axis, kind) for f, kind in self.pending[t] for axis in split.axes[f]]
        pairs += [(axis, "sum") for axis, row in split.carried if self.carries[t][row]]
        cuts = _cuts(self.rule, self.rule.tensors[t], split.axes)
        found = self._specs[t][key] = self.space.laid(cuts, tuple(pairs), self.types[t])
        return found

    def inside(self, operands: tuple[ShardingSpec, ...], results: tuple[ShardingSpec, ...]) -> ProgramCost | None:
        """What the op costs in its parts; None if nobody knows them."""
        inner = parts_of(self.space.graph, self.node)
        if inner is None:
            return None
        made = complete_parts(inner, self.mesh, operands, results)
        assert isinstance(made, Complete)
        return price_parts(made, self.space.hardware)


def orders_in(mesh: DeviceMesh, specs: Iterable[ShardingSpec]) -> tuple[Axes, ...]:
    """The orders in which shardings have the axes of a mesh, or parts of them, where these are not the mesh's own.

    >>> from ..spec.axes import axes_text
    >>> mesh = DeviceMesh("x=4, y=2")
    >>> asked = (ShardingSpec(mesh, ["y+x"]), ShardingSpec(mesh, ["x:(1)2", "y"]), ShardingSpec(mesh, ["y", "x"]))
    >>> [axes_text(axes) for axes in orders_in(mesh, asked)]
    ['y+x', 'x:(1)2+y+x:(2)2']
    """
    found: dict[Axes, None] = {}
    for spec in specs:
        used = [axis for axis in spec.used_axes if axis.size > 1]
        if all(axis.is_whole for axis in used) and all(_in_order(mesh, dim.axes) for dim in spec.dims):
            continue
        rest = []
        for axis in mesh.axes:
            cuts = sorted({1, axis.full, *(p for a in used if a.name == axis.name for p in (a.pre, a.end))})
            parts = [AxisRef(axis.name, pre, end // pre, axis.full) for pre, end in pairwise(cuts)]
            rest += [part for part in parts if part not in used]
        found[(*used, *rest)] = None
    return tuple(found)[:MOST_ORDERS]


def _in_order(mesh: DeviceMesh, axes: Axes) -> bool:
    places = [mesh.axis_names.index(axis.name) for axis in axes if axis.size > 1]
    return places == sorted(places)


def _cuts(rule: OpShardingRule, mapped: Mapped, axes: Sequence[Axes]) -> tuple[Axes, ...]:
    """The axes of each dim, as `FactorSharding` lays them out."""
    found: list[Axes] = []
    for dim in mapped:
        if len(dim) == 1:
            found.append(axes[dim[0]])
            continue
        cut: list[AxisRef] = []
        for f in dim:
            cut.extend(axes[f])
            if axes_size(axes[f]) < rule.sizes[f]:
                break  # a minor factor of a dim can be split only under a fully split major one
        found.append(merge_axes(cut))
    return tuple(found)


def _splittable(rule: OpShardingRule, f: int) -> bool:
    factor = rule.factors[f]
    if factor.broadcast or factor.size < 2:
        return False
    return factor.form is not None or not (factor.whole or factor.permuted)


def _neighbours(rule: OpShardingRule) -> list[tuple[int, int]]:
    """Factors that follow each other in some tensor, be it in one dim or in two."""
    found: dict[tuple[int, int], None] = {}
    for tensor in rule.tensors:
        found.update(dict.fromkeys(pairwise(f for dim in tensor for f in dim)))
    return [(f, g) for f, g in found if f != g]


def _of_sums(states: Sequence[str]) -> bool:
    """Whether a row of a transfer table lets pending sums through: ``P(any)`` is also that."""
    return all(state in ("R", SUM, "P(any)") for state in states) and any(state != "R" for state in states)
