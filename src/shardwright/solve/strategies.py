"""`Space`: for every node its strategies, how it may be split over all mesh axes together, and what each takes.

For each mesh axis a node leaves it alone, gives it to one of its factors, or lets a pending reduction over it through:
a sum, or another kind where an op before may have left it.  A strategy is one such choice for every axis.  An axis that
is longer than a factor may fill it and go on in the factor that follows it (8 heads in groups of 4 on an axis of 16).
Strategies are made once for equal calls, so depth costs nothing.

Their number grows with every axis by a factor.  Where some node would have more than `MOST`, axes that are next to each
other are *joined*, small and outer ones first, which mostly cut the batch: they split the same factor.  Nothing is then
known of plans in which they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from math import prod
from typing import NamedTuple

from ..cost.compute import LOOKUP, cost_class, local_sizes, op_time, operations
from ..cost.machine import Hardware
from ..cost.memory import local_bytes, row_bytes
from ..cost.program import ProgramCost
from ..ir.core import BARRIER, CONSTRAINT
from ..ir.graph import Graph, Node, TensorType
from ..ir.wiring import numbers
from ..propagation.book import rule_of
from ..propagation.choices import FORM_PENDING, legal_axes
from ..propagation.complete import Complete, complete_parts
from ..propagation.engine import RuleOf
from ..propagation.parts import in_parts, parts_of
from ..rules.registry import find
from ..spec.axes import Axes, AxisRef, axes_size, merge_axes
from ..spec.mesh import DeviceMesh
from ..spec.rule import Mapped, OpShardingRule
from ..spec.sharding import DimSpec, Partial, ShardingSpec, sort_partial
from .price import node_time, price_parts

SUM = "sum"
_KINDS = (SUM, "avg", "max", "min", "prod")
_ANY = "P(any)"
Kinds = tuple[str, ...]
"""Pending reductions that a value may have: sums, and others where some op before leaves them."""
MOST_ORDERS = 4
"""So many orders of the axes that a user names are tried beside the mesh's own: each takes as long as that."""
MOST = 1_000
"""Strategies of one node.  Tables of two nodes have up to the square of it, and work grows faster than that."""
Option = tuple[tuple[tuple[int, AxisRef], ...], int]
"""What happens to a mesh axis: factors with the part of it that each gets, and a line of the transfer table or -1."""


@dataclass(frozen=True, slots=True)
class Way:
    """One strategy of a node: what it needs, what it leaves, what it takes."""

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
    """All strategies of all nodes of a graph on a mesh."""

    graph: Graph
    mesh: DeviceMesh
    hardware: Hardware
    uneven: bool = False
    """Whether factors may be split that do not divide."""
    orders: tuple[Axes, ...] = ()
    """In which orders the axes of the mesh, or parts of them, are given to factors, beside the mesh's own."""
    given: Mapping[int, ShardingSpec] = field(default_factory=dict, repr=False)
    """How the user wants values."""
    apart: frozenset[str] = frozenset()
    """Mesh axes that are joined with others only if nothing else is left: those that the user named."""
    rule_of: RuleOf = field(default=rule_of, repr=False)
    """What is known of a node."""
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
        view = self.rule_of(self.graph, node)
        rule = self.rules[n] = None if view is None else view.rule
        if rule is None:
            return (self._replicated(node),)
        types = self._types(node)
        kinds = tuple([self._kinds.get(value, (SUM,)) for value in node.inputs])
        key = (id(rule), node.op, types, node.attrs, kinds)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(_Call(self, node, rule, types, kinds).ways())
        return found

    @cached_property
    def groups(self) -> tuple[Axes, ...]:
        """Mesh axes by those that split the same factor: each for itself, unless that gives some node too many
        strategies."""
        groups: list[Axes] = [(axis,) for axis in self.mesh.axes]
        calls: dict[object, _Call] = {}
        for node in self.graph.nodes if len(groups) > 1 else ():
            view = self.rule_of(self.graph, node)
            if view is not None:
                types = self._types(node)
                key = (id(view.rule), node.op, types, node.attrs)
                if key not in calls:
                    calls[key] = _Call(self, node, view.rule, types, [(SUM,)] * len(node.inputs))

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

    @cached_property
    def _kinds(self) -> dict[int, Kinds]:
        """Of values that more than sums may be pending on."""
        found = {value: _and_sums(kind for _, kind in spec.partial) for value, spec in self.given.items()}
        for node in self.graph.nodes:
            view = self.rule_of(self.graph, node)
            if view is None or node.op == BARRIER:
                continue
            reductions: Sequence[Sequence[tuple[int, str]]] = view.rule.reductions
            left = [{kind for _, kind in done} for done in reductions]
            kinds = [found.get(value, (SUM,)) for value in node.inputs]
            for row in _carried(view.rule, kinds) if any(len(known) > 1 for known in kinds) else ():
                for of, kind in zip(left, row[len(kinds) :]):
                    of.add(kind)
            for value, of in zip(node.results, left):
                if not of <= {SUM, ""}:
                    found[value] = _and_sums((*of, *found.get(value, ())))
        return {value: kinds for value, kinds in found.items() if len(kinds) > 1}

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


def _and_sums(kinds: Iterable[str]) -> Kinds:
    return tuple(sorted({SUM, *kinds} - {""}, key=_KINDS.index))


class _Split(NamedTuple):
    """What some of the mesh axes do."""

    axes: tuple[Axes, ...]
    """Of the factors."""
    local: tuple[int, ...]
    carried: tuple[tuple[AxisRef, int], ...]
    """Axes of pending reductions, with what is let through."""
    keys: tuple[int, ...]
    """Of each tensor a number: with equal ones it is sharded alike."""


class _Call:
    """One call of an op: its strategies, with everything that several of them share worked out once."""

    def __init__(
        self, space: Space, node: Node, rule: OpShardingRule, types: Sequence[TensorType], kinds: Sequence[Kinds]
    ) -> None:
        self.space, self.node, self.rule, self.types = space, node, rule, types
        self.mesh = space.mesh
        self.rows = [] if node.op == BARRIER else list(_carried(rule, kinds))
        """What may be let through over an axis: of each tensor the kind of its pending reduction, or nothing."""
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
        self.bases = [1] * len(rule.tensors)
        """Of each tensor how many numbers the options of the axis at hand have."""
        self._specs: list[dict[int, tuple[ShardingSpec, int]]] = [{} for _ in rule.tensors]

    def ways(self) -> list[Way]:
        best: dict[object, Way] = {}
        orders = () if self.space.joined else tuple(tuple((axis,) for axis in order) for order in self.space.orders)
        for groups in (self.space.groups, *orders):
            self._specs = [{} for _ in self.rule.tensors]
            for split in self.splits(groups):
                way = self.way(split)
                if way is not None:
                    key = (way.operands, way.results)
                    if key not in best or way.time < best[key].time:
                        best[key] = way
        return list(best.values())

    def splits(self, groups: Sequence[Axes]) -> list[_Split]:
        """What the axes may do, given to factors in this order; those of a group split the same one."""
        # Axis by axis: what the first axes do is worked out once for all that the later ones may do.
        splits = [_Split(((),) * len(self.rule.factors), self.rule.sizes, (), (0,) * len(self.rule.tensors))]
        for group in groups:
            options = self.options(group)
            seen = self.seen(options)
            splits = [
                more
                for split in splits
                for option, how in zip(options, seen)
                if (more := self.extended(split, group, option, how)) is not None
            ]
        return splits

    def options(self, group: Axes) -> list[Option]:
        """What may happen to axes that are joined."""
        rule, uneven, ways = self.rule, self.space.uneven, axes_size(group)
        found: list[Option] = [((), -1)]
        if ways == 1:
            return found
        free = [f for f in range(len(rule.factors)) if _splittable(rule, f)]
        fits = [f for f in free if rule.sizes[f] % ways == 0 or (uneven and ways <= rule.sizes[f])]
        found += [(tuple((f, axis) for axis in group), -1) for f in fits]
        for f, g in neighbours(rule) if len(group) == 1 else ():
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
        for t, depends in enumerate(self.depends):
            number = numbers()
            columns.append(
                [
                    number[tuple([part for part in parts if part[0] in depends]), "" if row < 0 else self.rows[row][t]]
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
        row = row_bytes(results[0], self.types[self.count]) if results and self.kind == LOOKUP else 0
        time = op_time(self.kind, work, sizes[: self.count], sizes[self.count :], dtype, self.space.hardware, row)
        return Way(axes, operands, results, time)

    def spec(self, t: int, key: int, split: _Split) -> tuple[ShardingSpec, int]:
        """The sharding of a tensor, and its bytes."""
        pairs = [(axis, kind) for f, kind in self.pending[t] for axis in split.axes[f]]
        pairs += [(axis, self.rows[row][t]) for axis, row in split.carried if self.rows[row][t]]
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
    if factor.broadcast or factor.size == 1:
        return False
    return factor.form is not None or not (factor.whole or factor.permuted)


def neighbours(rule: OpShardingRule) -> list[tuple[int, int]]:
    """Factors that follow each other in some tensor, be it in one dim or in two."""
    found: dict[tuple[int, int], None] = {}
    for tensor in rule.tensors:
        found.update(dict.fromkeys(pairwise(f for dim in tensor for f in dim)))
    return [(f, g) for f, g in found if f != g]


def _carried(rule: OpShardingRule, kinds: Sequence[Kinds]) -> Iterator[tuple[str, ...]]:
    """The lines of a transfer table that let pending reductions of these kinds through, a line for each kind.

    >>> rule = find("transpose").bind([(4, 4)], [(4, 4)], {})
    >>> list(_carried(rule, [("sum",)])), list(_carried(rule, [("sum", "max")]))
    ([('sum', 'sum')], [('sum', 'sum'), ('max', 'max')])
    """
    for row in rule.transfers:
        free = sorted(set(chain(*kinds)), key=_KINDS.index) if _ANY in row.operands else (SUM,)
        for any_ in free:
            told = [any_ if state == _ANY else state[2:-1] for state in (*row.operands, *row.results)]
            wanted = told[: len(row.operands)]
            if any(wanted) and all(not kind or kind in known for kind, known in zip(wanted, kinds)):
                yield tuple(told)
