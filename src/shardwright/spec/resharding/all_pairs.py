"""The costs of all pairs of shardings at once: one closure over the layouts that the moves can reach."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from ..sharding import Shape, ShardingSpec
from .layouts import SMALL, Layout, Pending, Space, make_atoms
from .moves import all_moves
from .permute import finish
from .search import Stops, find_steps, space_for
from .steps import CostFn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FAR = 1 << 60


def all_pairs(
    specs: Sequence[ShardingSpec], shape: Shape, item_bytes: int, cost: CostFn, idle: bool = True
) -> NDArray[np.int64]:
    """Close the moves over all layouts under min-plus, then let each goal be reached by its permutes too.

    Without ``idle`` each pair may use the axes of its two specs only: one closure for each union of axes.
    """
    import numpy as np

    if not specs:
        return np.zeros((0, 0), np.int64)
    mesh = specs[0].mesh
    if len(make_atoms(mesh, ())) > SMALL or any(not axis.is_whole for spec in specs for axis in spec.used_axes):
        # Too many layouts for a closure, or pairs that are not all searched in one space.
        return _pair_by_pair(specs, shape, item_bytes, cost, idle)
    if idle:
        space, scale = space_for(mesh, (), shape, item_bytes, cost)
        return _all_in_one(specs, space) * scale
    found = np.zeros((len(specs), len(specs)), np.int64)
    uses = [frozenset(spec.used_axes) for spec in specs]
    for union in {a | b for a in uses for b in uses}:
        inside = [i for i, use in enumerate(uses) if use <= union]
        members = [specs[i] for i in inside]
        space, scale = space_for(mesh, union, shape, item_bytes, cost, idle=False)
        part = _all_in_one(members, space) * scale
        rows = np.array(inside)
        mine = np.array([[uses[i] | uses[j] == union for j in inside] for i in inside])
        block = found[np.ix_(rows, rows)]
        block[mine] = part[mine]
        found[np.ix_(rows, rows)] = block
    return found


def _all_in_one(specs: Sequence[ShardingSpec], space: Space) -> NDArray[np.int64]:
    import numpy as np

    layouts = [space.layout(spec) for spec in specs]
    stops = {layout: _stops(space, layout) for layout in layouts}
    index, moves = _reach(space, layouts, [stop for way in stops.values() for stop in way])
    table = np.full((len(index), len(index)), _FAR, np.int64)
    np.fill_diagonal(table, 0)
    for a, b, price in moves:
        if price < table[a, b]:
            table[a, b] = price
    for k in range(len(table)):  # Floyd and Warshall, a row at a time
        np.minimum(table, table[:, k, None] + table[None, k, :], out=table)
    to_stop = {stop: _into(space, stop, index, table) for way in stops.values() for stop in way}
    rows = [index[layout] for layout in layouts]
    found = np.empty((len(specs), len(specs)), np.int64)
    for j, layout in enumerate(layouts):
        left = table[:, index[layout]].copy()
        for _ in stops[layout]:
            for stop in stops[layout]:
                np.minimum(left, to_stop[stop] + left[index[stop]], out=left)
        found[:, j] = left[rows]
    return found


def _stops(space: Space, goal: Layout) -> list[Layout]:
    """Where a permute on the way to a goal may lead, most pending axes first."""
    stops = Stops(space, goal)
    return [stop for pending in _subsets(goal.pending)[::-1] for stop in stops.with_pending(pending)]


def _subsets(pending: Pending) -> list[Pending]:
    return [part for size in range(len(pending) + 1) for part in combinations(pending, size)]


def _reach(
    space: Space, layouts: Sequence[Layout], stops: Sequence[Layout]
) -> tuple[dict[Layout, int], list[tuple[int, int, int]]]:
    """Number every layout that moves can reach, and price the moves."""
    wanted = tuple(sorted({pair for layout in layouts for pair in layout.pending}))
    todo = list(dict.fromkeys([*layouts, *stops]))
    index = {layout: i for i, layout in enumerate(todo)}
    edges = []
    for at, here in enumerate(todo):  # grows as it goes
        for price, there, _ in all_moves(space, here, wanted):
            after = index.get(there)
            if after is None:
                after = index[there] = len(todo)
                todo.append(there)
            edges.append((at, after, price))
    return index, edges


def _into(space: Space, stop: Layout, index: dict[Layout, int], table: NDArray[np.int64]) -> NDArray[np.int64]:
    """From every layout: the cheapest way into a stop whose last part is a permute."""
    import numpy as np

    last = np.full(len(index), _FAR, np.int64)
    for here, i in index.items():
        if here.pending == stop.pending:
            way = finish(space, here, stop, _FAR)
            if way is not None:
                last[i] = way[0]
    use = np.flatnonzero(last < _FAR)
    return (table[:, use] + last[use]).min(axis=1) if len(use) else last


def _pair_by_pair(
    specs: Sequence[ShardingSpec], shape: Shape, item_bytes: int, cost: CostFn, idle: bool
) -> NDArray[np.int64]:
    import numpy as np

    found = np.zeros((len(specs), len(specs)), np.int64)
    for i, source in enumerate(specs):
        for j, target in enumerate(specs):
            if not source.same_layout(target):
                steps = find_steps(source, target, shape, item_bytes, cost, idle)
                found[i, j] = sum(0 if s.is_local else cost(s.kind, s.axes, s.local_bytes) for s in steps)
    return found
