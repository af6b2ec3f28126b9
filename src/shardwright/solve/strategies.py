"""`Space`: for every node the ways to split it over all mesh axes together, and what each takes.

For each mesh axis a node leaves it alone, gives it to one of its factors, or lets a pending sum over it through; a way
is one such choice for every axis.  An axis that is longer than a factor may fill it and go on in the factor that
follows it (8 heads in groups of 4 on an axis of 16).  Ways are made once for equal calls, so depth costs nothing.

Their number grows with every axis by a factor.  Where some node would have more than `MOST`, axes that are next to each
other are *joined*, small and outer ones first, which mostly cut the batch: they go the same way.  Nothing is then known
of plans in which they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
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
MOST = 1_000
"""Strategies of one node.  Tables of two nodes have up to the square of it, and work grows faster than that."""
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
    apart: frozenset[str] = frozenset()
    """Mesh axes that are joined with others only if nothing else is left: those that the user named."""
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

    @cached_property
    def groups(self) -> tuple[Axes, ...]:
        """Mesh axes by those that go the same way: each for itself, unless that gives some node too many strategies."""
        groups = [(axis,) for axis in self.mesh.axes]
        calls: dict[object, _Call] = {}
        for node in self.graph.nodes if len(groups) > 1 else ():
            view = rule_of(self.graph, node)
            if view is not None:
                types = self._types(node)
                key = (id(view.rule), node.op, types, node.attrs)
                if key not in calls:
                    calls[key] = _Call(self, node, view.rule, types)

        def price(at: int) -> tuple[bool, int, int]:
            both = (*groups[at], *groups[at + 1])
            return any(axis.name in self.apart for axis in both), axes_size(both), at

        while max([prod(len(call.options(group)) for group in groups) for call in calls.values()], default=0) > MOST:
            if len(groups) < 2:
                break
            at = min(range(len(groups) - 1), key=price)
            groups[at : at + 2] = [(*groups[at], *groups[at + 1])]
        return tuple(groups)

    @property
    def joined(self) -> tuple[str, ...]:
        """What is to be said of axes that are joined."""
        together = [" and ".join(axis.name for axis in group) for group in self.groups if len(group) > 1]
        why = "each by itself would make too many strategies"
        return tuple(f"the mesh axes {names} were split the same way: {why}" for names in together)

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
        # Axis by axis: what the first axes do is worked out once for all that the later ones may do.
        splits = [_Split(((),) * len(self.rule.factors), self.rule.sizes, (), (0,) * len(self.rule.tensors))]
        for group in self.space.groups:
            options = self.options(group)
            seen = self.seen(options)
            splits = [
                more
                for split in splits
                for option, how in zip(options, seen)
                if (more := self.extended(split, group, option, how)) is not None
            ]
        best: dict[object, Way] = {}
        for split in splits:
            way = self.way(split)
            if way is not None:
                key = (way.operands, way.results)
                if key not in best or way.time < best[key].time:
                    best[key] = way
        return list(best.values())

    def options(self, group: Axes) -> list[Option]:
        """What may happen to axes that are joined."""
        rule, uneven, ways = self.rule, self.space.uneven, axes_size(group)
        found: list[Option] = [((), -1)]
        if ways == 1:
            return found
        free = [f for f in range(len(rule.factors)) if _splittable(rule, f)]
        fits = [f for f in free if ways <= rule.sizes[f] and (uneven or rule.sizes[f] % ways == 0)]
        found += [(tuple((f, axis) for axis in group), -1) for f in fits]
        for f, g in _neighbours(rule) if len(group) == 1 else ():
            (axis,) = group
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

    def extended(self, split: _Split, group: Axes, option: Option, seen: tuple[int, ...]) -> _Split | None:
        """With more axes used; None if a size does not divide."""
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
            carried = (*carried, *((axis, row) for axis in group))
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
