"""A* over layouts.

`lower_bound` says what is left at least.  A permute can realise any arrangement with the same number of shards on
each dim, so the search does not walk through permutes: from every layout it asks `permute.finish` what the
rest costs with one permute in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import prod

from ..axes import AxisRef, axes_size, merge_axes
from ..collective import collective_bytes
from ..mesh import DeviceMesh
from ..sharding import DimSpec, Shape, ShardingSpec
from .layouts import SMALL, Atoms, Dims, Layout, Move, Pending, Priced, Recipe, Space, expresses, make_atoms, primes
from .lower_bound import bound_to
from .moves import name_move, offers, slices, to_partials, write_out
from .permute import between_spaces, finish, forget_recipes, named_moves
from .steps import CostFn, Step, bytes_cost

EXPANSIONS = 1000
"""After this many layouts the search takes the best way it has found."""
FINEST = 8
"""Up to so many prime parts of axes uneven shards are searched a second time, with all of them."""

_spaces: dict[tuple[DeviceMesh, tuple[object, ...], Shape, int, CostFn], Space] = {}
_atoms: dict[tuple[DeviceMesh, frozenset[AxisRef], bool], tuple[AxisRef, ...]] = {}
_SPACES_LIMIT = 2000


def space_for(
    mesh: DeviceMesh, used: Iterable[AxisRef], shape: Shape, item_bytes: int, cost: CostFn, idle: bool = True
) -> tuple[Space, int]:
    """The space of a tensor whose shardings use some axes, and what to multiply its sizes and prices by.

    Without ``idle``, all other axes are out of the game.

    Spaces are kept: what moves a layout has does not depend on where one wants to go.  Where the devices divide
    every dim, the bytes of each step are a whole multiple of what they are for the least such shape: all of these
    shapes share its space.  (A scalar has no dim to divide.)
    """
    if idle:  # whole axes are there anyway
        used = [axis for axis in used if axis.size != axis.full]
    key = (mesh, frozenset(used), idle)
    atoms = _atoms.get(key)
    if atoms is None:
        if len(_atoms) > _SPACES_LIMIT:
            _atoms.clear()
        atoms = make_atoms(mesh, key[1])
        if not idle:
            atoms = tuple(atom for atom in atoms if any(axis.contains(atom) for axis in key[1]))
        _atoms[key] = atoms
    scale = 1
    if cost is bytes_cost and shape:
        devices = prod([atom.size for atom in atoms])
        if not sum([size % devices for size in shape]):
            scale = prod([size // devices for size in shape]) * item_bytes
            shape, item_bytes = (devices,) * len(shape), 1
    same = (mesh, atoms, shape, item_bytes, cost)
    found = _spaces.get(same)
    if found is None:
        if len(_spaces) > _SPACES_LIMIT:
            _spaces.clear()
        found = _spaces[same] = Space(mesh, atoms, shape, item_bytes, cost)
    return found, scale


def forget_spaces() -> None:
    _spaces.clear()
    _atoms.clear()
    forget_recipes()


def find_steps(
    source: ShardingSpec, target: ShardingSpec, shape: Shape, item_bytes: int, cost: CostFn, idle: bool = True
) -> tuple[Step, ...]:
    used = source.used_axes + target.used_axes
    space, scale = space_for(source.mesh, used, shape, item_bytes, cost, idle)
    torn = {axis.name for axis in used if axis.size != axis.full and not expresses(space.atoms, axis)}
    if torn:
        return _find_torn(source, target, shape, item_bytes, cost, idle, torn)
    ends = (space.layout(source), space.layout(target))
    moves = space.answers.get(ends)
    if moves is None:
        moves = space.answers[ends] = _searched(space, source, target, idle)
    return _as_steps(moves, source, target, scale * space.item_bytes)


def _searched(space: Space, source: ShardingSpec, target: ShardingSpec, idle: bool) -> list[Move]:
    """Moves at least cost; where shards are uneven also with axes cut finer than either sharding cuts them.

    Even shards go by counts, for which `permute` cuts axes as it needs; uneven ones have to be the same pieces.
    """
    start, goal = space.layout(source), space.layout(target)
    moves = _search(space, start, goal)
    if all(space.facts(layout).counts is not None for layout in (start, goal)):
        return moves
    finer = [part for atom in space.atoms for part in _primes_of(atom)]
    if not len(space.atoms) < len(finer) <= FINEST or _price(space, moves) <= bound_to(space, goal)(start)[0]:
        return moves
    used = (*source.used_axes, *target.used_axes, *finer)
    other, _ = space_for(space.mesh, used, space.shape, space.item_bytes, space.cost, idle)
    ends = (other.layout(source), other.layout(target))
    ways = [moves, _search(other, *ends), *_regrouped(other, *ends)]
    return min(ways, key=lambda way: _price(space, way))


def _regrouped(space: Space, start: Layout, goal: Layout) -> Iterator[list[Move]]:
    """One permute to the goal, cut further into as many pieces as there are, and gathers of what is cut further.

    Axes that nobody uses may cut a dim first.  Pieces of one size on all devices make this as cheap as any way is.
    """
    if start.pending or goal.pending:
        return
    used = {a for dim in start.dims for a in dim}
    idle = tuple(a for a in range(len(space.atoms)) if a not in used)
    for cut in range(-1, len(start.dims) if idle else 0):
        dims = tuple(atoms + idle if d == cut else atoms for d, atoms in enumerate(start.dims))
        if cut >= 0 and not space.can_append(cut, start.dims[cut], idle):
            continue
        here, path = space.at(dims, ()), [] if cut < 0 else [(space.at(dims, ()), None)]
        further = _further(space, goal.dims, [space.ways(atoms) for atoms in dims])
        if further is None:
            continue
        middle = space.at(further, ())
        last = finish(space, here, middle, 1 << 62)
        if last is not None:
            yield _named(space, start, [*path, (middle, last[2]), *plain_way(space, middle, goal)[1]])


def _further(space: Space, goal: Dims, ways: Sequence[int]) -> Dims | None:
    """The goal with every dim cut so many ways, by atoms that it does not use; None if they do not come out."""
    used = {a for dim in goal for a in dim}
    rest = [a for a in range(len(space.atoms)) if a not in used]
    dims = []
    for atoms, wanted in zip(goal, ways):
        more, over = divmod(wanted, space.ways(atoms))
        taken = list(atoms)
        for a in list(rest):
            if more % space.sizes[a] == 0:
                more //= space.sizes[a]
                taken.append(a)
                rest.remove(a)
        if over or more != 1:
            return None
        dims.append(tuple(taken))
    return tuple(dims)


def _primes_of(atom: AxisRef) -> list[AxisRef]:
    parts, pre = [], atom.pre
    for prime in primes(atom.size):
        parts.append(AxisRef(atom.name, pre, prime, atom.full))
        pre *= prime
    return parts or [atom]


def _price(space: Space, moves: Iterable[Move]) -> int:
    priced = [move for move in moves if move.kind not in ("slice", "to_partial")]
    return sum([space.cost(move.kind, move.axes, move.elements * space.item_bytes) for move in priced])


def _find_torn(
    source: ShardingSpec,
    target: ShardingSpec,
    shape: Shape,
    item_bytes: int,
    cost: CostFn,
    idle: bool,
    torn: Collection[str],
) -> tuple[Step, ...]:
    """Of an axis of 6, 2 x 3 on one side and 3 x 2 on the other: by a permute, or undone and done anew."""
    middle = _without(source, torn)
    ways = [
        find_steps(source, middle, shape, item_bytes, cost, idle)
        + find_steps(middle, target, shape, item_bytes, cost, idle)
    ]
    # A permute goes from one way to cut an axis to the other; each side may use what it leaves of the axis, too.
    sides = []
    for mine in (source, target):
        rest = [axis for axis in source.used_axes + target.used_axes if axis.name not in torn]
        whole = [source.mesh.axis(name) for name in torn]
        cut = [axis for axis in mine.used_axes if axis.name in torn]
        sides.append(space_for(source.mesh, [*rest, *whole, *cut], shape, item_bytes, cost, idle))
    (space, scale), (other, _) = sides
    if all(expresses(at.atoms, axis) for at, mine in zip((space, other), (source, target)) for axis in mine.used_axes):
        moves = between_spaces(space, space.layout(source), other, other.layout(target))
        if moves:
            ways.append(_as_steps(moves, source, target, scale * space.item_bytes))
    return min(ways, key=lambda steps: sum(cost(s.kind, s.axes, s.local_bytes) for s in steps if not s.is_local))


def _as_steps(moves: Sequence[Move], source: ShardingSpec, target: ShardingSpec, bytes: int) -> tuple[Step, ...]:
    """Moves with their bytes, for elements of so many."""
    steps: list[Step] = []
    here = _closed(source)
    for kind, axes, elements, after, dim, to_dim, reduction in moves:
        if len(steps) == len(moves) - 1:
            after = _closed(target)  # which may name axes of one device too
        put_in = elements * bytes
        sent = 0 if kind in ("slice", "to_partial") else collective_bytes(kind, axes_size(axes), put_in)
        steps.append(Step(kind, axes, here, after, put_in, sent, dim, to_dim, reduction))
        here = after
    return tuple(steps)


def _closed(spec: ShardingSpec) -> ShardingSpec:
    """The spec itself if it says no more than the layout."""
    for dim in spec.dims:
        if dim.open or dim.priority is not None:
            return spec.closed()
    return spec.closed() if spec.replicated else spec


def _without(spec: ShardingSpec, names: Collection[str]) -> ShardingSpec:
    """A sharding with every dim cut back to before the first of these axes, and none of them pending."""
    dims = []
    for dim in spec.dims:
        keep = next((i for i, axis in enumerate(dim.axes) if axis.name in names), len(dim.axes))
        dims.append(DimSpec(dim.axes[:keep]))
    partial = tuple(pair for pair in spec.partial if pair[0].name not in names)
    return ShardingSpec.make(spec.mesh, tuple(dims), partial)


def _search(space: Space, start: Layout, goal: Layout) -> list[Move]:
    """The cheapest moves from one layout to another, or the best after `EXPANSIONS` layouts."""
    bound = bound_to(space, goal)
    limit, plain = plain_way(space, start, goal)
    least, left = bound(start)
    if least >= limit:
        return _named(space, start, plain)
    stops = Stops(space, goal)
    beyond = 0  # atoms that are not worth a slice: in large spaces, those that the goal does not ask for
    if len(space.atoms) > SMALL:
        beyond = ~space.bits([a for dim in goal.dims for a in dim])

    # How a layout was reached: what it cost, in how many steps, from where, and by which recipe.
    best: dict[Layout, tuple[int, int, Layout, Recipe | None]] = {start: (0, 0, start, None)}
    queue = [(least, left, 0, start, best[start])]
    pushed = expanded = 0
    while queue:
        least, _, _, here, known = heapq.heappop(queue)
        if least >= limit or expanded == EXPANSIONS:
            break
        if best[here] is not known:
            continue  # a better way was found since
        expanded += 1
        spent, steps = known[0], known[1] + 1
        for price, after, recipe in _onward(space, here, goal, stops, limit - spent, beyond):
            total = spent + price
            if total >= limit:
                continue
            old = best.get(after)
            if old is not None and (old[0] < total or (old[0] == total and old[1] <= steps)):
                continue
            if after is goal:
                limit = total
                best[goal] = (total, steps, here, recipe)
                continue
            least, left = bound(after)
            least += total
            if least < limit:
                # Among equals first the one that seems nearest to the goal, in few steps.
                pushed += 1
                new = best[after] = (total, steps, here, recipe)
                heapq.heappush(queue, (least, steps + 2 * left, pushed, after, new))
    if goal not in best:
        return _named(space, start, plain)
    path: list[tuple[Layout, Recipe | None]] = []
    here = goal
    while here is not start:
        _, _, there, recipe = best[here]
        path.append((here, recipe))
        here = there
    return _named(space, start, path[::-1])


def _onward(space: Space, here: Layout, goal: Layout, stops: Stops, budget: int, beyond: int) -> list[Priced]:
    """What can be done from a layout for less than the budget."""
    found: list[Priced] = []
    for stop in stops.with_pending(here.pending):
        last = finish(space, here, stop, budget)
        if last is not None:
            found.append(last)
            if stop is goal:
                budget = last[0]  # the bar for all others
    found += slices(space, here, beyond)
    for offer in offers(space, here):
        if offer.floor >= budget:
            break
        found += offer.written or write_out(space, here, offer)
    found += to_partials(space, here, goal.pending)
    return found


def _named(space: Space, start: Layout, path: Sequence[tuple[Layout, Recipe | None]]) -> list[Move]:
    """The moves along a path; two cuts of one dim in turn are one cut."""
    found: list[Move] = []
    here = start
    for there, recipe in path:
        moves = [name_move(space, here, there)] if recipe is None else named_moves(space, here, there, recipe)
        for move in moves:
            if found and move.kind == found[-1].kind == "slice" and move.dim == found[-1].dim:
                cut = found.pop()
                move = Move("slice", merge_axes(cut.axes + move.axes), cut.elements, move.after, move.dim)
            found.append(move)
        here = there
    return found


def plain_way(space: Space, start: Layout, goal: Layout) -> tuple[int, list[tuple[Layout, None]]]:
    """A path that always exists: combine what is pending, gather what differs, slice what is missing.

    Returns what it costs, and where it leads through.
    """
    path: list[tuple[Layout, None]] = []
    spent = 0
    dims, pending = start.dims, start.pending
    for pair in start.pending:
        if pair not in goal.pending:
            spent += space.price("all_reduce", pair[:1], space.sizes[pair[0]], space.elements(start))
            pending = tuple([other for other in pending if other != pair])
            path.append((space.at(dims, pending), None))
    for d, (have, want) in enumerate(zip(start.dims, goal.dims)):
        keep = _can_stay(space, d, have, want)
        if keep < len(have):
            off = have[keep:]
            spent += space.price("all_gather", off, space.ways(off), space.elements(space.at(dims, pending)))
            dims = (*dims[:d], have[:keep], *dims[d + 1 :])
            path.append((space.at(dims, pending), None))
    for d, want in enumerate(goal.dims):
        if dims[d] != want:
            dims = (*dims[:d], want, *dims[d + 1 :])
            path.append((space.at(dims, pending), None))
    for pair in goal.pending:
        if pair not in pending:
            pending = tuple(sorted((*pending, pair)))
            path.append((space.at(dims, pending), None))
    return spent, path


def _can_stay(space: Space, d: int, have: Atoms, want: Atoms) -> int:
    """How many atoms of a dim can stay as they are."""
    keep = 0
    while keep < min(len(have), len(want)) and have[keep] == want[keep]:
        keep += 1
    while (keep < len(have) and not space.can_part(d, have, keep)) or (
        keep < len(want) and not space.can_append(d, want[:keep], want[keep:])
    ):
        keep -= 1
    return keep


class Stops:
    """Where a permute on the way to a goal may lead: to it, or to a waypoint, perhaps less its pending axes."""

    def __init__(self, space: Space, goal: Layout) -> None:
        self.space, self.goal = space, goal
        self.dims = [goal.dims, *waypoints(space, goal.dims)]
        self.found: dict[Pending, list[Layout]] = {}

    def with_pending(self, pending: Pending) -> list[Layout]:
        known = self.found.get(pending)
        if known is None:
            known = []
            if all(pair in self.goal.pending for pair in pending):
                known = [self.space.at(dims, pending) for dims in self.dims]
            self.found[pending] = known
        return known


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
