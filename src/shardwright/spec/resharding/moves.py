"""The moves between layouts: what one step can do, and what it costs.

Slices come first and cost nothing.  The other moves of a layout come as *offers*, cheapest first: moves of one
kind over the same atoms, which differ only in where the atoms go.  A search knows the least that an offer costs
before any of its layouts are made, and so never writes out what it cannot afford.

A move is no more than a pair of layouts: `name_move` tells what it is, for the few that end up in an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from operator import attrgetter

from .layouts import Atoms, Dims, Layout, Move, Offer, Pending, Priced, Space


def slices(space: Space, here: Layout, beyond: int) -> list[Priced]:
    """Unused atoms appended to any dim, but for those with bits in ``beyond``."""
    facts = space.facts(here)
    taken = facts.used | beyond
    found = facts.slices.get(taken)
    if found is None:
        found = facts.slices[taken] = []
        for run in _free_runs(space, taken):
            found += _cuts(space, here, Offer(0, "slice", run, rest=here.pending))
    return found


def offers(space: Space, here: Layout) -> list[Offer]:
    """The collectives out of a layout; permutes only where shards may be uneven, see `permute`."""
    facts = space.facts(here)
    if facts.offers is None:
        facts.offers = _offers(space, here, facts.elements)
        facts.offers.sort(key=attrgetter("floor"))
    return facts.offers


def _offers(space: Space, here: Layout, elements: int) -> list[Offer]:
    found = []
    pending = here.pending
    for d, atoms in enumerate(here.dims):
        for at in range(len(atoms)):
            if space.can_part(d, atoms, at):
                off = atoms[at:]
                ways = space.ways(off)
                found.append(Offer(space.price("all_gather", off, ways, elements), "all_gather", off, d, pending))
                if len(here.dims) > 1:
                    found.append(Offer(_floor(space, "all_to_all", ways, elements), "all_to_all", off, d, pending))
    for kind in sorted({kind for _, kind in pending}) if pending else ():
        together = tuple([a for a, k in pending if k == kind])
        for run in dict.fromkeys([*_runs(space, together), together]):
            rest = tuple([pair for pair in pending if pair[0] not in run])
            ways = space.ways(run)
            found.append(Offer(space.price("all_reduce", run, ways, elements), "all_reduce", run, rest=rest))
            found.append(Offer(_floor(space, "reduce_scatter", ways, elements), "reduce_scatter", run, rest=rest))
    if space.walks_permutes:
        found.append(Offer(space.permute_price(elements), "collective_permute", (), rest=pending))
    return found


def _floor(space: Space, kind: str, ways: int, elements: int) -> int:
    """The price without padding; of other cost functions than bytes nothing is known."""
    return space.price(kind, (), ways, elements) if space.by_bytes else 0


def write_out(space: Space, here: Layout, offer: Offer) -> list[Priced]:
    """The moves of an offer."""
    if offer.written is None:
        offer.written = _write_out(space, here, offer)
    return offer.written


def _write_out(space: Space, here: Layout, offer: Offer) -> list[Priced]:
    dims, d, kind, floor = here.dims, offer.dim, offer.kind, offer.floor
    if kind == "all_reduce":
        return [(floor, space.at(dims, offer.rest), None)]
    if kind == "reduce_scatter":
        return _cuts(space, here, offer)
    if kind == "collective_permute":
        taken = space.bits([a for a, _ in here.pending])
        same = [made for made in space.same_pieces(dims) if made != dims]
        free = [made for made in same if not taken or not any(taken >> a & 1 for dim in made for a in dim)]
        return [(floor, space.at(made, here.pending), None) for made in free]
    less = (*dims[:d], dims[d][: -len(offer.atoms)], *dims[d + 1 :])
    if kind == "all_gather":
        return [(floor, space.at(less, here.pending), None)]
    return _all_to_alls(space, here, offer, less)


def _all_to_alls(space: Space, here: Layout, offer: Offer, less: Dims) -> list[Priced]:
    """The atoms go to the end of another dim, in any order."""
    orders = space.orders.get(offer.atoms)
    if orders is None:
        orders = list(permutations(offer.atoms)) if len(offer.atoms) <= 3 else [offer.atoms]
        space.orders[offer.atoms] = orders
    found: list[Priced] = []
    for e, atoms in enumerate(here.dims):
        if e == offer.dim:
            continue
        for order in orders:
            if space.can_append(e, atoms, order):
                price = _padded_price(space, here, offer, e, order)
                found.append((price, space.at((*less[:e], atoms + order, *less[e + 1 :]), here.pending), None))
    return found


def _cuts(space: Space, here: Layout, offer: Offer) -> list[Priced]:
    """Append the atoms to any dim: slice and reduce_scatter."""
    dims, more = here.dims, offer.atoms
    found: list[Priced] = []
    for d, atoms in enumerate(dims):
        if space.can_append(d, atoms, more):
            price = _padded_price(space, here, offer, d, more)
            found.append((price, space.at((*dims[:d], atoms + more, *dims[d + 1 :]), offer.rest), None))
    return found


def _padded_price(space: Space, here: Layout, offer: Offer, d: int, more: Atoms) -> int:
    """What it costs to append atoms to a dim."""
    if offer.kind == "slice" or (space.even and space.by_bytes):
        return offer.floor
    put_in = space.padded(space.elements(here), d, here.dims[d], more)
    return space.price(offer.kind, more, space.ways(more), put_in)


def _free_runs(space: Space, taken: int) -> list[Atoms]:
    found = space.runs.get(taken)
    if found is None:
        found = space.runs[taken] = list(_runs(space, [a for a in range(len(space.atoms)) if not taken >> a & 1]))
    return found


def _runs(space: Space, atoms: Iterable[int]) -> Iterator[Atoms]:
    """Single atoms, and those that follow each other inside one axis taken together."""
    free = sorted(atoms)
    for i, a in enumerate(free):
        run: Atoms = (a,)
        yield run
        for b in free[i + 1 :]:
            if (run[-1], b) not in space.joins:
                break
            run = (*run, b)
            yield run


def to_partials(space: Space, here: Layout, goal: Pending) -> list[Priced]:
    """Unused atoms that the goal wants pending."""
    if not goal or here.pending == goal:
        return []
    used = space.facts(here).used
    return [
        (0, space.at(here.dims, tuple(sorted((*here.pending, pair)))), None) for pair in goal if not used >> pair[0] & 1
    ]


def all_moves(space: Space, here: Layout, goal: Pending) -> Iterator[Priced]:
    """Every move out of a layout, whatever it costs."""
    yield from slices(space, here, 0)
    for offer in offers(space, here):
        yield from write_out(space, here, offer)
    yield from to_partials(space, here, goal)


def name_move(space: Space, here: Layout, there: Layout) -> Move:
    """What leads from a layout to one of its neighbours.  Only one kind of step can."""
    elements, after = space.elements(here), space.spec(there)
    longer = shorter = None  # the dims with more shards, and with fewer
    for d, (have, want) in enumerate(zip(here.dims, there.dims)):
        if have != want:
            now, then = space.cut(d, have).ways, space.cut(d, want).ways
            if then > now:
                longer = d
            elif then < now:
                shorter = d
    if here.pending != there.pending:
        gone = [pair for pair in here.pending if pair not in there.pending]
        if not gone:
            (a, kind), *_ = [pair for pair in there.pending if pair not in here.pending]
            return Move("to_partial", space.axes((a,)), elements, after, reduction=kind)
        if longer is None:
            return Move("all_reduce", space.axes(tuple([a for a, _ in gone])), elements, after, reduction=gone[0][1])
        more = there.dims[longer][len(here.dims[longer]) :]
        put_in = space.padded(elements, longer, here.dims[longer], more)
        return Move("reduce_scatter", space.axes(more), put_in, after, longer, reduction=gone[0][1])
    if longer is None:
        if shorter is None:  # as many shards everywhere
            return Move("collective_permute", space.mesh.axes, elements, after)
        off = here.dims[shorter][len(there.dims[shorter]) :]
        return Move("all_gather", space.axes(off), elements, after, shorter)
    more = there.dims[longer][len(here.dims[longer]) :]
    if shorter is None:
        return Move("slice", space.axes(more), elements, after, longer)
    put_in = space.padded(elements, longer, here.dims[longer], more)
    return Move("all_to_all", space.axes(more), put_in, after, shorter, longer)
