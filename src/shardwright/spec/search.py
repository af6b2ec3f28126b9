"""A* over layouts, and the closure over all of them.

The bound on what is left is what the worst-off device still has to receive: its share at the goal, less what
it already holds of it (in every collective a device receives at most as much as it sends).

A permute can realise any arrangement with the same number of shards on each dim, so the search does not walk
through permutes: from every layout it asks `permute.recipes` what the rest costs with one permute in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, count
from typing import TYPE_CHECKING

from .axes import AxisRef, merge_axes
from .collective import collective_bytes
from .layouts import SMALL, Dims, Layout, Move, Pending, Space, expresses, make_atoms
from .mesh import DeviceMesh
from .permute import Recipe, finish_by_permute, finish_sizes, named_moves, recipes
from .reshard import CostFn, Step, bytes_cost
from .sharding import DimSpec, Shape, ShardingSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXPANSIONS = 1000
"""After this many layouts the search takes the best way it has found."""

_spaces: dict[tuple[DeviceMesh, tuple[object, ...], Shape], Space] = {}
_by_axes: dict[tuple[DeviceMesh, frozenset[AxisRef], Shape, bool], Space] = {}


def space_for(mesh: DeviceMesh, specs: Sequence[ShardingSpec], shape: Shape, idle: bool = True) -> Space:
    """Spaces are kept: what moves a layout has does not depend on where one wants to go.

    Without ``idle``, parts of axes that none of the specs uses are out of the game.
    """
    used = frozenset(axis for spec in specs for axis in spec.used_axes)
    known = _by_axes.get((mesh, used, shape, idle))
    if known is not None:
        return known
    atoms = make_atoms(mesh, used)
    if not idle:
        atoms = tuple(atom for atom in atoms if any(axis.contains(atom) for axis in used))
    key = (mesh, atoms, shape)
    if key not in _spaces:
        if len(_by_axes) > 2000:
            forget_spaces()
        _spaces[key] = Space(mesh, atoms, shape)
    _by_axes[mesh, used, shape, idle] = _spaces[key]
    return _spaces[key]


def forget_spaces() -> None:
    _spaces.clear()
    _by_axes.clear()


def find_steps(
    source: ShardingSpec, target: ShardingSpec, shape: Shape, item_bytes: int, cost: CostFn, idle: bool = True
) -> tuple[Step, ...]:
    space = space_for(source.mesh, (source, target), shape, idle)
    parts = [axis for spec in (source, target) for axis in spec.used_axes if not axis.is_whole]
    torn = {axis.name for axis in parts if not expresses(space.atoms, axis)}
    if torn:
        # An axis of 6 cut as 2 x 3 on one side and as 3 x 2 on the other: undo it, then go on from there.
        middle = _without(source, torn)
        first = find_steps(source, middle, shape, item_bytes, cost, idle)
        return first + find_steps(middle, target, shape, item_bytes, cost, idle)
    path = _search(space, space.layout(source), space.layout(target), item_bytes, cost)
    steps: list[Step] = []
    here = source.closed()
    for i, move in enumerate(path):
        after = target.closed() if i == len(path) - 1 else move.spec or space.spec(move.after)
        step = as_step(space, move, here, after, item_bytes)
        if steps and step.kind == steps[-1].kind == "slice" and step.dim == steps[-1].dim:
            cut = steps.pop()  # two cuts of one dim are one cut
            step = replace(step, axes=merge_axes(cut.axes + step.axes), before=cut.before)
        steps.append(step)
        here = after
    return tuple(steps)


def _without(spec: ShardingSpec, names: set[str]) -> ShardingSpec:
    """A sharding with every dim cut back to before the first of these axes, and none of them pending."""
    dims = []
    for dim in spec.dims:
        keep = next((i for i, axis in enumerate(dim.axes) if axis.name in names), len(dim.axes))
        dims.append(DimSpec(dim.axes[:keep]))
    partial = tuple(pair for pair in spec.partial if pair[0].name not in names)
    return ShardingSpec.make(spec.mesh, tuple(dims), partial)


def as_step(space: Space, move: Move, before: ShardingSpec, after: ShardingSpec, item_bytes: int) -> Step:
    put_in = move.elements * item_bytes
    sent = move_cost(space, move, item_bytes, bytes_cost)
    axes = move.axes or space.axes(move.atoms)
    return Step(move.kind, axes, before, after, put_in, sent, move.dim, move.to_dim, move.reduction)


def move_cost(space: Space, move: Move, item_bytes: int, cost: CostFn) -> int:
    if move.kind in ("slice", "to_partial"):
        return 0
    if cost is bytes_cost:
        return collective_bytes(move.kind, space.ways(move), move.elements * item_bytes)
    return cost(move.kind, move.axes or space.axes(move.atoms), move.elements * item_bytes)


def priced_moves(space: Space, here: Layout, item_bytes: int, cost: CostFn) -> list[tuple[int, Move, Layout]]:
    """The moves of a layout with their costs, kept with the space: many searches pass the same layouts."""
    key = (here, item_bytes, cost)
    found = space.priced.get(key)
    if found is None:
        found = [(move_cost(space, move, item_bytes, cost), move, move.after) for move in space.moves(here)]
        space.priced[key] = found
    return found


def finish(
    space: Space, here: Layout, goal: Layout, item_bytes: int, cost: CostFn
) -> tuple[int, Recipe | list[Move]] | None:
    """The cheapest way to finish with one permute: its cost, and what makes its moves."""
    best: tuple[int, Recipe | list[Move]] | None = None
    if cost is bytes_cost:
        for recipe in recipes(space, here, goal):
            price = 0
            for kind, ways, elements in finish_sizes(space, here, recipe):
                price += collective_bytes(kind, ways, elements * item_bytes)
            if best is None or price < best[0]:
                best = price, recipe
        return best
    for moves in finish_by_permute(space, here, goal):
        price = sum(move_cost(space, move, item_bytes, cost) for move in moves)
        if best is None or price < best[0]:
            best = price, moves
    return best


def _search(space: Space, start: Layout, goal: Layout, item_bytes: int, cost: CostFn) -> list[Move]:
    small = len(space.atoms) <= SMALL  # else only slices that the goal asks for
    asked = {a for dim in goal[0] for a in dim}
    bounded = cost is bytes_cost and all(
        space.divides(d, dim) for layout in (start, goal) for d, dim in enumerate(layout[0])
    )

    needed = space.elements(goal[0])

    def bound(layout: Layout) -> int:
        return space.missing(layout, goal, needed) * item_bytes if bounded else 0

    order = count()
    best: dict[Layout, tuple[int, int]] = {start: (0, 0)}
    came: dict[Layout, tuple[Layout, Move | Recipe | list[Move]]] = {}
    queue: list[tuple[int, int, int, Layout]] = [(bound(start), 0, next(order), start)]
    done: set[Layout] = set()
    plain = plain_way(space, start, goal)
    limit = sum(move_cost(space, move, item_bytes, cost) for move in plain)
    best[goal], came[goal] = (limit, len(plain)), (start, plain)
    stops = stops_for(space, goal)
    while queue:
        estimate, _steps, _, here = heapq.heappop(queue)
        if here in done:
            continue
        done.add(here)
        if len(done) > EXPANSIONS or estimate >= best[goal][0]:
            break
        spent = best[here]
        # Ways that end here come first: what they cost is the bar for all others.
        ways: list[tuple[int, Move | Recipe | list[Move], Layout]] = []
        for stop in stops:
            last = finish(space, here, stop, item_bytes, cost)
            if last is not None:
                ways.append((*last, stop))
        ways += [
            priced
            for priced in priced_moves(space, here, item_bytes, cost)
            if small or priced[1].kind != "slice" or asked.issuperset(priced[1].atoms)
        ]
        ways += [(0, move, move.after) for move in pending_moves(space, here, goal[1])]
        for price, how, after in ways:
            if after in done:
                continue
            total = (spent[0] + price, spent[1] + 1)
            if (after in best and total >= best[after]) or (price and total[0] >= best[goal][0]):
                continue
            if after == goal:
                best[goal], came[goal] = total, (here, how)
                continue
            estimate = total[0] + bound(after)
            if estimate < best[goal][0]:
                best[after], came[after] = total, (here, how)
                heapq.heappush(queue, (estimate, total[1], next(order), after))
    path: list[Move] = []
    here = goal
    while here != start:
        there, (here, how) = here, came[here]
        if isinstance(how, Recipe):
            how = named_moves(space, here, there, how)
        path[:0] = how if isinstance(how, list) else [how]
    return path


def plain_way(space: Space, start: Layout, goal: Layout) -> list[Move]:
    """A way that always exists: combine what is pending, gather what differs, slice what is missing."""
    path: list[Move] = []
    here = start

    def go(fits: Callable[[Move], bool], moves: Sequence[Move]) -> None:
        nonlocal here
        move = next(move for move in moves if fits(move))
        path.append(move)
        here = move.after

    for pair in start[1]:
        if pair not in goal[1]:
            go(lambda m, a=pair[0]: m.kind == "all_reduce" and m.atoms == (a,), space.moves(here))  # type: ignore[misc]
    for d, (have, want) in enumerate(zip(start[0], goal[0])):
        keep = 0
        while keep < min(len(have), len(want)) and have[keep] == want[keep]:
            keep += 1
        while not (space.can_part(d, have, keep) if keep < len(have) else True) or (
            keep < len(want) and not space.can_append(d, want[:keep], want[keep:])
        ):
            keep -= 1
        if keep < len(have):
            gathers = [move for move in space.moves(here) if move.kind == "all_gather" and move.dim == d]
            go(lambda m, d=d, keep=keep: len(m.after[0][d]) == keep, gathers)  # type: ignore[misc]
    elements = space.elements(here[0])
    for d, want in enumerate(goal[0]):
        more = want[len(here[0][d]) :]
        if more:
            dims = (*here[0][:d], want, *here[0][d + 1 :])
            path.append(Move("slice", more, elements, (dims, here[1]), d))
            here = path[-1].after
            elements = space.elements(dims)
    while here[1] != goal[1]:
        go(lambda _: True, pending_moves(space, here, goal[1]))
    return path


def waypoints(space: Space, goal: Dims) -> list[Dims]:
    """Layouts worth permuting to when the goal itself is cut too finely for a permute to reach it.

    The axes that no longer divide their dim wait elsewhere: unused, or at the end of another dim.
    """
    found: list[Dims] = []
    for d, atoms in enumerate(goal):
        if space.divides(d, atoms):
            continue
        keep = max(i for i in range(len(atoms)) if space.divides(d, atoms[:i]))
        rest = atoms[keep:]
        if not space.can_append(d, atoms[:keep], rest):
            continue
        short = (*goal[:d], atoms[:keep], *goal[d + 1 :])
        found.append(short)
        for e in range(len(goal)):
            if e != d and space.divides(e, goal[e] + rest) and space.can_append(e, goal[e], rest):
                found.append((*short[:e], goal[e] + rest, *short[e + 1 :]))
    return found


def pending_moves(space: Space, here: Layout, goal: Pending) -> list[Move]:
    """Unused axes that the goal wants pending."""
    if not goal:
        return []
    used = {a for dim in here[0] for a in dim} | {a for a, _ in here[1]}
    found = []
    for a, kind in goal:
        if a not in used:
            pending = tuple(sorted((*here[1], (a, kind))))
            found.append(Move("to_partial", (a,), space.elements(here[0]), (here[0], pending), reduction=kind))
    return found


def stops_for(space: Space, goal: Layout) -> list[Layout]:
    """Where a permute on the way to a goal may lead: to it, or to a waypoint, perhaps less its pending axes."""
    dims = [goal[0], *waypoints(space, goal[0])]
    return [(way, pending) for pending in _subsets(goal[1])[::-1] for way in dims]


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
        return _all_in_one(specs, space_for(mesh, specs, shape), item_bytes, cost)
    found = np.zeros((len(specs), len(specs)), np.int64)
    uses = [frozenset(spec.used_axes) for spec in specs]
    for union in {a | b for a in uses for b in uses}:
        inside = [i for i, use in enumerate(uses) if use <= union]
        members = [specs[i] for i in inside]
        part = _all_in_one(members, space_for(mesh, members, shape, idle=False), item_bytes, cost)
        rows = np.array(inside)
        mine = np.array([[uses[i] | uses[j] == union for j in inside] for i in inside])
        block = found[np.ix_(rows, rows)]
        block[mine] = part[mine]
        found[np.ix_(rows, rows)] = block
    return found


def _all_in_one(specs: Sequence[ShardingSpec], space: Space, item_bytes: int, cost: CostFn) -> NDArray[np.int64]:
    import numpy as np

    layouts = [space.layout(spec) for spec in specs]
    index, moves = _reach(space, layouts, item_bytes, cost)
    table = np.full((len(index), len(index)), _FAR, np.int64)
    np.fill_diagonal(table, 0)
    for a, b, price in moves:
        if price < table[a, b]:
            table[a, b] = price
    for k in range(len(table)):  # Floyd and Warshall, a row at a time
        np.minimum(table, table[:, k, None] + table[None, k, :], out=table)
    stops = {layout: stops_for(space, layout) for layout in layouts}
    to_stop = {stop: _into(space, stop, index, table, item_bytes, cost) for way in stops.values() for stop in way}
    rows = [index[layout] for layout in layouts]
    found = np.empty((len(specs), len(specs)), np.int64)
    for j, layout in enumerate(layouts):
        left = table[:, index[layout]].copy()
        for _ in stops[layout]:
            for stop in stops[layout]:
                np.minimum(left, to_stop[stop] + left[index[stop]], out=left)
        found[:, j] = left[rows]
    return found


_FAR = 1 << 60


def _reach(
    space: Space, layouts: Sequence[Layout], item_bytes: int, cost: CostFn
) -> tuple[dict[Layout, int], list[tuple[int, int, int]]]:
    """Number every layout that moves can reach, and price the moves."""
    wanted = tuple(sorted({pair for layout in layouts for pair in layout[1]}))
    stops = [stop for layout in dict.fromkeys(layouts) for stop in stops_for(space, layout)]
    todo = list(dict.fromkeys([*layouts, *stops]))
    index = {layout: i for i, layout in enumerate(todo)}
    edges = []
    for at, here in enumerate(todo):  # grows as it goes
        for move in [*space.moves(here), *pending_moves(space, here, wanted)]:
            after = index.get(move.after)
            if after is None:
                after = index[move.after] = len(todo)
                todo.append(move.after)
            edges.append((at, after, move_cost(space, move, item_bytes, cost)))
    return index, edges


def _into(
    space: Space, stop: Layout, index: dict[Layout, int], table: NDArray[np.int64], item_bytes: int, cost: CostFn
) -> NDArray[np.int64]:
    """From every layout: the cheapest way into a stop whose last part is a permute."""
    import numpy as np

    last = np.full(len(index), _FAR, np.int64)
    for here, i in index.items():
        if here[1] == stop[1]:
            way = finish(space, here, stop, item_bytes, cost)
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


def _subsets(pending: Pending) -> list[Pending]:
    return [part for size in range(len(pending) + 1) for part in combinations(pending, size)]
