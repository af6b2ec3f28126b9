"""`Routes`: the cheapest paths between all shardings that a tensor may have, and from one of them to several.

A path is made of single steps (`spec.resharding.single_steps`), each priced as it will show in the objective; paths are
their closure (all-pairs shortest paths), so the triangle inequality holds.  Copies of a value form a tree that grows
from what its producer left; `Routes.tree` finds the cheapest one for given readers, and lowering makes copies along it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, permutations
from math import inf, prod

import numpy as np
import numpy.typing as npt

from ..cost.comm import shown_cost
from ..cost.machine import Hardware
from ..errors import PlanInfeasible
from ..ir.graph import TensorType
from ..optimize.compact import in_time
from ..optimize.problem import Ints
from ..spec.axes import Axes, AxisRef, axes_size
from ..spec.mesh import DeviceMesh
from ..spec.resharding.cheapest import reshard
from ..spec.resharding.single_steps import Hops, steps_to
from ..spec.resharding.steps import Step
from ..spec.sharding import ShardingSpec

Bools = npt.NDArray[np.bool_]
REFUSED, REFUSED_MOST = 10**15, 10**16
"""Picoseconds of a move that is not allowed: more than any plan takes, and little enough to add up; plans of more than
500 s need more, and those of more than 5,000 s cannot have it."""
STEPS = 64
"""Of routes that cost the same the one with fewest steps is taken: prices are counted in so many parts, a step one."""
UNREACHABLE = 1 << 60
BY_ROWS_FROM = 256
"""From so many shardings on, going by single steps is faster than by middles."""
EXACT_READERS = 6
"""Up to so many different readers the cheapest tree is found; beyond, a cheap one."""

Tree = dict[int, int]
"""Of every copy that is made the one it is made from."""


@dataclass(eq=False)
class Routes:
    """Between the shardings that tensors of one type and role may have."""

    specs: Sequence[ShardingSpec]
    at: dict[ShardingSpec, int]
    """Where a sharding is; equal layouts are at one place."""
    step: Ints
    """Single steps, in parts: `STEPS` for a picosecond, and one for the step."""
    _trees: dict[tuple[int, tuple[int, ...]], tuple[int, Tree]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.closed = closed = _by_rows(self.step) if len(self.step) > BY_ROWS_FROM else _by_middles(self.step)
        self.least: Ints = closed // STEPS
        """Picoseconds that show, from row to column."""

    @cached_property
    def pending(self) -> Bools:
        """Where something is still to be combined, which over axes of one device nothing is."""
        return np.array([any(axis.size > 1 for axis, _ in spec.partial) for spec in self.specs], np.bool_)

    @cached_property
    def finish(self) -> tuple[Ints, Ints]:
        """From every sharding to the nearest one in which nothing is pending: what that costs, and where it is."""
        whole = np.flatnonzero(~self.pending)
        nearest = self.closed[:, whole].argmin(1)
        return self.closed[:, whole].min(1) // STEPS, whole[nearest]

    @cached_property
    def stay(self) -> Ints:
        """For every sharding the place of the one that cuts alike, with nothing pending."""
        same = [self.at.get(ShardingSpec.make(spec.mesh, spec.dims)) for spec in self.specs]
        return np.array([self.finish[1][i] if at is None else at for i, at in enumerate(same)], np.int64)

    def index(self, specs: Iterable[ShardingSpec]) -> Ints:
        at = self.at
        return np.array([at[spec] for spec in specs], np.int64)

    def path(self, source: int, target: int) -> list[int]:
        """The places after each step of the cheapest path."""
        found = []
        while source != target:
            onward = self.step[source] + self.closed[:, target]
            onward[source] = UNREACHABLE
            source = int(onward.argmin())
            found.append(source)
        return found

    def both(self, prices: Ints, a: Ints, b: Ints) -> Ints:
        """From every sharding to both of two, for each pair of the two lists: the cheapest tree."""
        found = prices[:, a] + np.where(a == b, 0, prices[:, b])
        for middle in range(len(prices)):
            tree = prices[:, middle, None] + (prices[middle, a] + prices[middle, b])[None]
            np.minimum(found, np.where(a == b, found, tree), out=found)
        return found

    def tree(self, source: int, wanted: Sequence[int]) -> tuple[int, Tree]:
        """What copies for these readers cost, in picoseconds, and the copy that each is made from."""
        if wanted.count(source) == len(wanted):
            return 0, {}
        ends = tuple(sorted({end for end in wanted if end != source}))
        found = self._trees.get((source, ends))
        if found is None:
            made: Tree = {}
            for part in _batches(ends):
                self._grow(source, part, made)
            steps = sum(int(self.step[start, end]) // STEPS for end, start in made.items())
            found = self._trees[source, ends] = steps, made
        return found

    def _grow(self, source: int, ends: Sequence[int], made: Tree) -> None:
        """Dreyfus and Wagner: the cheapest tree for a set of ends under each root, from those of its parts."""
        if len(ends) == 1:
            self._lay(source, ends[0], made)
            return
        closed, count = self.closed, len(ends)
        under: dict[int, Ints] = {}
        """For a set of ends (bits): the cost under each root."""
        split: dict[int, Ints] = {}
        for i, end in enumerate(ends):
            under[1 << i] = closed[:, end]
        for group in sorted(range(3, 1 << count), key=lambda bits: (bits.bit_count(), bits)):
            if group.bit_count() < 2:
                continue
            low = group & -group
            parts = [part for part in range(low, group) if part & group == part and part & low]
            joined = np.stack([under[part] + under[group ^ part] for part in parts])
            split[group] = np.array(parts)[joined.argmin(0)]
            under[group] = joined.min(0) if group == (1 << count) - 1 else _closed_by(closed, joined.min(0))
            # `split` is at the joint itself; the path there is found when the tree is laid.
            under[-group] = joined.min(0)

        def lay(root: int, group: int) -> None:
            if group.bit_count() == 1:
                self._lay(root, ends[group.bit_length() - 1], made)
                return
            joint = int((closed[root] + under[-group]).argmin())
            self._lay(root, joint, made)
            part = int(split[group][joint])
            lay(joint, part)
            lay(joint, group ^ part)

        lay(source, (1 << count) - 1)

    def _lay(self, source: int, target: int, made: Tree) -> None:
        for place in self.path(source, target):
            made.setdefault(place, source)
            source = place


def _by_middles(step: Ints) -> Ints:
    """The cheapest paths of any number of steps: Floyd and Warshall."""
    closed = step.copy()
    np.fill_diagonal(closed, 0)
    for middle in range(len(closed)):
        np.minimum(closed, closed[:, middle, None] + closed[None, middle], out=closed)
    return closed


def _by_rows(step: Ints) -> Ints:
    """The same, where there are few steps from each: a step and then the best known, until nothing gets better."""
    closed = step.copy()
    np.fill_diagonal(closed, 0)
    rows = []
    for i, row in enumerate(step):
        ends = np.flatnonzero(row < UNREACHABLE)
        ends = ends[ends != i]
        if ends.size:
            rows.append((closed[i], ends, row[ends][:, None]))
    better = True
    while better:
        before = closed.copy()
        for row, ends, prices in rows:
            np.minimum(row, (closed[ends] + prices).min(0), out=row)
        rows.reverse()
        better = not np.array_equal(before, closed)
    return closed


def _closed_by(closed: Ints, joint: Ints) -> Ints:
    found: Ints = (closed + joint[None]).min(1)
    return found


def _batches(ends: Sequence[int]) -> list[Sequence[int]]:
    return [ends[i : i + EXACT_READERS] for i in range(0, len(ends), EXACT_READERS)]


@dataclass(frozen=True, slots=True)
class Searched:
    """The steps from each of some shardings of a tensor to each other one; equal layouts are one."""

    specs: Sequence[ShardingSpec]
    at: dict[ShardingSpec, int]
    steps: dict[tuple[int, int], tuple[Step, ...]]

    @classmethod
    def of(cls, type: TensorType, specs: Iterable[ShardingSpec], until: float) -> Searched:
        at: dict[ShardingSpec, int] = {}
        different: list[ShardingSpec] = []
        for spec in specs:
            same = next((i for i, other in enumerate(different) if other.same_layout(spec)), None)
            at[spec] = len(different) if same is None else same
            if same is None:
                different.append(spec)
        steps = {}
        for (i, source), (j, target) in permutations(enumerate(different), 2):
            in_time(until)
            steps[i, j] = steps_to(target, [source], source, type.shape, type.item_bytes)[1]
        return cls(different, at, steps)


Price = Callable[[str, Sequence[AxisRef], int, str | None, Hardware], int]


@dataclass
class RouteBook:
    """Routes of all tensor types on a mesh."""

    mesh: DeviceMesh
    hardware: Hardware
    most_gathered: int | None = None
    """The most bytes that one all_gather may leave on a device; what leaves more costs ``refusal``."""
    refusal: int = REFUSED
    """More than any plan takes."""
    price: Price = shown_cost
    """Of a collective: kind, axes, bytes sent, role, machine."""
    until: float = inf
    """When to give up, with `OutOfTime`."""
    _words: dict[TensorType, dict[ShardingSpec, None]] = field(default_factory=dict)
    _hops: dict[frozenset[ShardingSpec], Hops] = field(default_factory=dict)
    _searches: dict[tuple[TensorType, frozenset[ShardingSpec]], Searched] = field(default_factory=dict)
    _prices: dict[tuple[str, Axes, int, str | None, int], int] = field(default_factory=dict)
    _routes: dict[tuple[TensorType, str | None], Routes] = field(default_factory=dict)

    def repriced(self, hardware: Hardware, price: Price = shown_cost) -> RouteBook:
        """The same shardings and steps at other prices."""
        return replace(self, hardware=hardware, price=price, _prices={}, _routes={})

    def more_than(self, plan: int) -> None:
        """Say what the slowest plan takes, before the first question is asked."""
        self.refusal = min(max(REFUSED, 2 * plan), REFUSED_MOST)

    def check_gathers(self, objective: int) -> None:
        """Refuse a plan whose time says that it gathers more than it may."""
        if self.most_gathered is not None and objective >= self.refusal:
            raise PlanInfeasible("every plan gathers more at once than is allowed")

    def allow(self, type: TensorType, specs: Iterable[ShardingSpec]) -> None:
        """Tensors of this type may have these shardings.  All is said before the first question about a type."""
        words = self._words.setdefault(type, {})
        for spec in specs:
            words[spec] = None
            if spec.partial:
                words[ShardingSpec.make(spec.mesh, spec.dims)] = None

    def routes(self, type: TensorType, role: str | None) -> Routes:
        found = self._routes.get((type, role))
        if found is None:
            found = self._routes[type, role] = self._make(type, role)
        return found

    def _make(self, type: TensorType, role: str | None) -> Routes:
        given = self._with_parts_of(type)
        if any(size % dim.shards for spec in given for size, dim in zip(type.shape, spec.dims)):
            return self._searched(type, role, tuple(given))
        key = frozenset(given)
        hops = self._hops.get(key)
        if hops is None:
            try:
                hops = self._hops[key] = Hops(self.mesh, tuple(given))
            except ValueError:  # an axis cut into parts that exclude each other
                return self._searched(type, role, tuple(given))
        bytes = prod(type.shape) * type.item_bytes
        prices = []
        for step in hops.classes:
            time = self.price(step.kind, step.axes, step.sent(bytes), role, self.hardware)
            if self.most_gathered is not None and step.kind == "all_gather":
                time += self.refusal * (bytes // step.shards * axes_size(step.axes) > self.most_gathered)
            prices.append(time * STEPS + 1)
        matrix = np.full((len(hops.specs), len(hops.specs)), UNREACHABLE, np.int64)
        if len(hops.steps):
            start, end, kind = hops.steps.T
            np.minimum.at(matrix, (start, end), np.array(prices, np.int64)[kind])
        return Routes(hops.specs, hops.at, matrix)

    def _with_parts_of(self, type: TensorType) -> dict[ShardingSpec, None]:
        """All shardings, and those that a path may lead over from one that is pending on more than sums: cut as
        another, still pending over some of the axes.  Over sums strategies have these themselves."""
        given = self._words[type]
        found = dict(given)
        for partial in {spec.partial for spec in given if any(kind != "sum" for _, kind in spec.partial)}:
            for count in range(1, len(partial) + 1):
                for some in combinations(partial, count):
                    for spec in given:
                        if not any(axis.excludes(used) for axis, _ in some for used in spec.used_axes):
                            found[ShardingSpec.make(spec.mesh, spec.dims, some)] = None
        return found

    def _searched(self, type: TensorType, role: str | None, specs: tuple[ShardingSpec, ...]) -> Routes:
        """Where shards may be uneven: from each sharding to each other one by a search, which knows no prices."""
        key = type, frozenset(specs)
        searched = self._searches.get(key)
        if searched is None:
            searched = self._searches[key] = Searched.of(type, specs, self.until)
        matrix = np.full((len(searched.specs), len(searched.specs)), UNREACHABLE, np.int64)
        for (i, j), steps in searched.steps.items():
            matrix[i, j] = self._price(role, steps) * STEPS + 1
        return Routes(searched.specs, searched.at, matrix)

    def search(self, type: TensorType, role: str | None, source: ShardingSpec, target: ShardingSpec) -> int:
        """What a reshard costs that lowering searches for."""
        return self._price(role, reshard(source, target, type.shape, type.item_bytes, idle=False))

    def _price(self, role: str | None, steps: Iterable[Step]) -> int:
        return sum(self._step_price((step.kind, step.axes, step.bytes, role, step.local_bytes)) for step in steps)

    def _step_price(self, step: tuple[str, Axes, int, str | None, int]) -> int:
        """Of one collective: few differ among very many reshards."""
        price = self._prices.get(step)
        if price is None:
            kind, axes, sent, role, local_bytes = step
            price = self.price(kind, axes, sent, role, self.hardware)
            if kind == "all_gather" and self.most_gathered is not None:
                price += self.refusal * (local_bytes * axes_size(axes) > self.most_gathered)
            self._prices[step] = price
        return price
