"""`step_bound`: no plan of the space takes less time, however it is scheduled.

Of every plan, and in any order that `lower.ordering` may give it:

- A device computes at least C: what all ops take.  Collectives inside of ops that are carried out in parts may run
  beside other ops, and do not count.
- Where the op that computes next waits for a collective whose operand the op before it makes, nothing hides it.  With
  P, the sum over such neighbours, a step takes at least C + P.  The gap between two neighbours counts for one value
  only, by the cheapest route that it may take: two collectives may run at once, on different links.  Of more values of
  about one size than there are links each counts that part, at the best rate of any bucket: some have to share a link.
- A link is busy for at least M: the sum over all collectives that use it.  Those that may share a start count at the
  best rate of any bucket that they may be in, which has no more than `cost.comm.full_bucket` bytes.

So for shares a + b1 + b2 + ... = 1 a step takes at least a(C + P) + b1 M1 + b2 M2 + ...: a sum over ops and moves, of
which `model.Assigner` has a problem that no plan beats.  Each choice of shares takes one exact solution.

Ops keep their order up to the last that more than one parameter's new state needs; `lower.ordering` may move those
behind it, and right behind the makers of what they read, so these are nobody's neighbours, and nor are two that one may
come between.  What is made of state alone may run beside a move between neighbours: then it does not count as computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from ..cost.comm import full_bucket, sent_cost
from ..cost.machine import Hardware
from ..cost.overlap import state_made
from ..cost.schedule import links_over
from ..ir.graph import Graph
from ..ir.order import BUCKETED
from ..ir.program import Program
from ..optimize.problem import Ints, share_of
from ..propagation.complete import Complete, Decision
from ..spec.axes import Axes, AxisRef
from ..spec.sharding import ShardingSpec
from .model import FINE, Assigner
from .readers import Group
from .routes import RouteBook
from .strategies import Way, neighbours, orders_in

WHOLE = 1000
"""Shares are whole numbers of this part."""
_PARTS = (650, 350)
"""Of compute."""
_FINENESS = 32  # sizes of buckets that are looked at for each doubling, and as many more where the rate is best


class Shares(NamedTuple):
    """What counts how much, in parts of `WHOLE`."""

    compute: int
    links: tuple[tuple[str, int], ...]
    """Of each link."""


def shares_of(hardware: Hardware, axes: Sequence[AxisRef]) -> list[list[Shares]]:
    """Those that bounds are looked for with, in rows: compute alone, then more and more of a link, or of all."""
    links = sorted({link for axis in axes if axis.size > 1 for link in links_over((axis,), hardware)})
    together = [[link] for link in links] + ([links] if len(links) > 1 else [])
    rows = [
        [Shares(part, tuple((link, (WHOLE - part) // len(some)) for link in some)) for part in _PARTS]
        for some in together
    ]
    return [[Shares(WHOLE, ())], *rows]


def best_price(kind: str, axes: tuple[AxisRef, ...], sent: int, hardware: Hardware) -> int:
    """What a collective takes of its links at least, in whatever bucket it is."""
    alone = sent_cost(kind, axes, sent, hardware)
    if kind not in BUCKETED or not alone:
        return alone
    most, over, under = _best_rate(kind, axes, hardware)
    return alone if sent >= most else min(alone, sent * over // under)


def weighted_price(
    shares: Shares, kind: str, axes: Sequence[AxisRef], sent: int, role: str | None, hardware: Hardware
) -> int:
    """The same, by the shares of the links that it runs over."""
    del role
    axes = tuple(axes)
    share = sum(part for link, part in shares.links if link in links_over(axes, hardware))
    return best_price(kind, axes, sent, hardware) * share // WHOLE if share else 0


def full_price(kind: str, axes: Sequence[AxisRef], sent: int, role: str | None, hardware: Hardware) -> int:
    """All that a collective takes."""
    del role
    return sent_cost(kind, axes, sent, hardware)


def _shared_price(kind: str, axes: Sequence[AxisRef], sent: int, role: str | None, hardware: Hardware) -> int:
    """What a collective takes of each of its links, in whatever bucket."""
    del role
    return best_price(kind, tuple(axes), sent, hardware)


def _best_rate(kind: str, axes: tuple[AxisRef, ...], hardware: Hardware) -> tuple[int, int, int]:
    """Bytes of a full bucket, and a fraction: picoseconds for a byte that no bucket up to that size is below.

    Time does not fall with size, so between two sizes no bucket does better than the time of the smaller one for the
    bytes of the larger.
    """
    key = ("rate", kind, axes)
    found = hardware._rates.get(key)
    if found is None:
        most = full_bucket(kind, axes, hardware)
        sizes = [1, *(int(2 ** (i / _FINENESS)) for i in range(10 * _FINENESS, most.bit_length() * _FINENESS)), most]
        sizes = sorted({min(size, most) for size in sizes})
        rates = [(sent_cost(kind, axes, a, hardware), b) for a, b in pairwise(sizes)]
        over, under = min(rates, key=lambda rate: rate[0] / rate[1])
        found = hardware._rates[key] = (most, over, under)
    return found


# -- neighbours ---------------------------------------------------------------------------------------------


@dataclass
class Neighbours:
    """What shows in full: moves between ops that are computed one right after the other."""

    links_between: Sequence[tuple[int, int, Ints]]
    at: dict[int, Ints]
    """By value: what its decider's choices cost, where it is delivered when all is computed, or what they cost less."""
    left_out: bool = False
    """Whether some compute does not count."""

    @property
    def alternatives(self) -> tuple[Neighbours | None, ...]:
        """Where some compute does not count a bound without neighbours may be higher."""
        return (self, None) if self.left_out else (self,)

    @classmethod
    def of(cls, about: Assigner, part: int, bound: bool = True) -> Neighbours:
        """Of an assigner's graph; ``part`` of `WHOLE` counts.  For a ``bound`` what may run beside them does not.

        For a sum that stands in for a schedule moves do not count of what gradients of weights read, too: those are
        there to hide behind.  With all that a bound counts plans were 2 to 3% slower (four layers of Llama-3-8B, batch
        8, and a mixture of experts, both on 8x8).
        """
        book = about.book.repriced(about.hardware, full_price)
        found, ends = [], dict[int, Ints]()
        left_out = False
        for n in _movable(about.graph) if bound else ():
            counted = _counted(about.ways[n], part)
            if counted.any() and about.graph.nodes[n].results:
                ends[about.graph.nodes[n].results[0]] = -counted
                left_out = True
        links = {link for axis in about.mesh.axes if axis.size > 1 for link in links_over((axis,), about.hardware)}
        shared = about.book.repriced(about.hardware, _shared_price)
        moves = []
        for chains in _chains(about, bound):
            together = bound and 0 < len(links) < len(chains)  # axes of one device have no link
            moves += [(move, together) for chain in chains[: None if together else 1] for move in chain]
        for (value, reader, place), together in moves:
            demand = about.demands[value]
            routes = (shared if together else book).routes(about.graph.type(value), None)
            if reader < 0:
                ends[value] = share_of(_delivered(about, book, value) * FINE, part, WHOLE)
                continue
            wanted = routes.index([way.operands[place] for way in about.ways[reader]])
            whole = WHOLE * len(links) if together else WHOLE
            table = share_of(routes.least[np.ix_(demand.made, wanted)] * FINE, part, whole)
            if demand.decider != reader and table.any():
                found.append((demand.decider, reader, table))
        return cls(found, ends, left_out)

    def value(self, value: int) -> tuple[Ints | None, Ints | None]:
        return self.at.get(value), None

    def hub(self, value: int) -> Ints | None:
        return None

    def edge(self, value: int, group: Group) -> Ints | None:
        return None

    def links(self) -> Iterable[tuple[int, int, Ints]]:
        return self.links_between


def _counted(ways: Sequence[Way], part: int) -> Ints:
    """What an assigner's problem counts of compute."""
    return share_of(np.array([way.compute for way in ways], np.int64) * FINE, part, WHOLE)


def _movable(graph: Graph) -> frozenset[int]:
    """Nodes that may run at any time, beside a move between neighbours, too."""
    steps = [(n, node.inputs, node.results) for n, node in enumerate(graph.nodes)]
    return state_made(steps, [graph.inputs[i] for i, _ in graph.updates])


def _delivered(about: Assigner, book: RouteBook, value: int) -> Ints:
    """What it takes to bring a value where it is delivered, by choice of its decider."""
    demand, graph = about.demands[value], about.graph
    routes = book.routes(graph.type(value), None)
    asked = [i for i, output in enumerate(graph.outputs) if output == value and i in about.out_specs]
    if asked:
        end = routes.index([about.out_specs[asked[0]].closed()])[0]
        found: Ints = routes.least[demand.made, end]
        return found
    if demand.open:
        return routes.finish[0][demand.made]
    return np.zeros(len(demand.made), np.int64)


Chain = list[tuple[int, int, int]]
"""Moves one after the other: a value, the node that reads it, and at which place; no node: it is delivered."""


def _chains(about: Assigner, bound: bool) -> list[list[Chain]]:
    """For each two neighbours the ways that values take from the first to the second, through views."""
    graph = about.graph
    timed = [any(way.compute for way in ways) for ways in about.ways]
    last, movable = last_needed_by_several(graph), _movable(graph)
    open_at = _brought_forward(graph, timed, movable, last) if bound else _read_for_state(about, timed)
    found: list[list[Chain]] = []
    before = -1
    """The node that computes before; -1: the start."""
    order = [n for n in range(len(graph.nodes)) if timed[n] and n not in movable]
    for n in order:
        if n > last:
            break
        if not any(open_at[before + 1 : n + 1]):
            chains = _between(about, before, n, timed)
            if chains:
                found.append(chains)
        before = n
    if before >= 0 and before == order[-1] and not graph.updates:
        made = [v for v in graph.nodes[before].results if about.demands[v].open or not about.demands[v].groups]
        outputs = [v for v in (made or graph.nodes[before].results) if v in graph.outputs]
        if outputs:
            found.append([[(max(outputs, key=lambda v: _size(graph, v)), -1, -1)]])
    return found


def _brought_forward(graph: Graph, timed: Sequence[bool], movable: frozenset[int], last: int) -> list[bool]:
    """Behind which nodes, the start coming first, something may be computed that stands behind the ``last`` one.

    It comes right behind the makers of what it reads.  Up to the last all that takes time keeps its place, and views
    stand there or right behind what they are of.
    """
    found = [False] * (len(graph.nodes) + 1)
    places: list[frozenset[int]] = []
    """Those that each node may have, as far as they are not behind the last one."""
    for n, node in enumerate(graph.nodes):
        makers = [places[made[0]] for value in node.inputs if (made := graph.values[value].producer) is not None]
        least = max(map(min, makers), default=-1)
        behind = frozenset(place for may in makers for place in may if place >= least) or {-1}
        if n > last and timed[n] and n not in movable:
            for place in behind:
                found[place + 1] = True
        if n in movable:
            behind = {-1, n, *behind}
        elif n <= last:
            behind = {n} if timed[n] else {n, *behind}
        places.append(frozenset(behind))
    return found


def _read_for_state(about: Assigner, timed: Sequence[bool]) -> list[bool]:
    """Behind which nodes, the start coming first, there is something to compute that leads to state alone: they are
    that, or what they make is read by that, perhaps through views."""
    graph = about.graph
    alone = [all(about.roles[value] in ("gradient", "renewed") for value in node.results) for node in graph.nodes]
    found, read = [False] * (len(graph.nodes) + 1), [False] * len(graph.values)
    for n in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[n]
        is_read = any(read[value] for value in node.results)
        found[n + 1] = timed[n] and (alone[n] or is_read)
        if alone[n] if timed[n] else is_read:
            for value in node.inputs:
                read[value] = True
    return found


def _between(about: Assigner, before: int, n: int, timed: Sequence[bool]) -> list[Chain]:
    """Of the values that the second reads from the first, or from the inputs at the start, those of half the size of
    the largest and more, which comes first."""
    graph = about.graph
    found: dict[int, Chain] = {}
    """By the value that the first leaves: several views of one are one."""
    for place, value in enumerate(graph.nodes[n].inputs):
        chain: Chain = [(value, n, place)]
        at = value
        while True:
            producer = graph.values[at].producer
            if producer is None:
                fits = before == -1
                break
            if producer[0] == before:
                fits = True
                break
            if timed[producer[0]] or len(graph.nodes[producer[0]].inputs) != 1:
                fits = False
                break
            at = graph.nodes[producer[0]].inputs[0]
            chain.append((at, producer[0], 0))
        if fits and _size(graph, value) > (_size(graph, found[at][0][0]) if at in found else 0):
            found[at] = chain
    chains = sorted(found.values(), key=lambda chain: -_size(graph, chain[0][0]))
    return [chain for chain in chains if 2 * _size(graph, chain[0][0]) >= _size(graph, chains[0][0][0])]


def _size(graph: Graph, value: int) -> int:
    type = graph.type(value)
    return int(np.prod(type.shape, dtype=object)) * type.item_bytes if type.shape else type.item_bytes


def last_needed_by_several(graph: Graph) -> int:
    """The last node that more than one parameter's new state needs, or anything but new state."""
    needed: dict[int, int] = {}
    """For each value the new state that is made from it, a bit for each, and one for all else."""
    other = 1 << len(graph.updates)
    bits = {output: 1 << bit for bit, (_, output) in enumerate(graph.updates)}
    for o, value in enumerate(graph.outputs):
        needed[value] = needed.get(value, 0) | bits.get(o, other)
    for n in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[n]
        mask = 0
        for value in node.results:
            mask |= needed.get(value, 0)
        if mask & other or mask.bit_count() > _OF_ONE_PARAMETER:
            return n
        for value in node.inputs:
            needed[value] = needed.get(value, 0) | mask
    return -1


def is_foreseen(complete: Complete, given: Mapping[int, ShardingSpec], outs: Iterable[ShardingSpec]) -> bool:
    """Whether a plan is one of those that bounds speak of: all shards are of one size, axes of a dim stand in the order
    of the mesh or of what was asked, and none that only begins in a dim does so behind others, unless that was asked;
    an op with a part of an axis has the rest of it where it goes on; what was asked of a value is what its op leaves,
    nothing is carried through an op while it is pending but sums, and an input that nobody reads is whole.
    """
    graph, mesh = complete.graph, complete.mesh
    seen = {(graph.type(value).shape, spec) for value, spec in _placed(complete)}
    fits = all(size % dim.shards == 0 for shape, spec in seen for size, dim in zip(shape, spec.dims))
    orders = (mesh.axes, *orders_in(mesh, (*given.values(), *outs)))
    carried = {kind for decision in complete.decisions for spec in decision.operands for _, kind in spec.partial}
    fits = fits and carried <= {"sum"}
    dims = {dim.axes for _, spec in seen for dim in spec.dims}
    begun = {axis for axes in dims for axis in axes[1:] if axis.pre == 1 and not axis.is_whole}
    fits = fits and all(any(axis in order for order in orders[1:]) for axis in begun)
    cut = {axis.name for order in orders[1:] for axis in order if not axis.is_whole}
    fits = fits and all(_goes_on(decision, cut) for decision in complete.decisions)
    read = {*chain.from_iterable(node.inputs for node in graph.nodes), *(graph.inputs[i] for i, _ in graph.updates)}
    ends = ((value, spec) for value, spec in zip(graph.inputs, complete.inputs) if value not in {*read, *given})
    fits = fits and not any(spec.used_axes for _, spec in ends)
    for value, spec in given.items():
        producer = graph.values[value].producer
        if producer is not None:
            n, result = producer
            fits = fits and complete.decisions[n].results[result].same_layout(spec.closed())
    return fits and all(any(_in_order(axes, order) for order in orders) for axes in dims)


def _goes_on(decision: Decision, cut: Collection[str]) -> bool:
    """Whether every axis that only begins in a factor goes on to its end in the next one, but for those in ``cut``."""
    parts = {axis: f for f, axes in enumerate(decision.axes) for axis in axes if not axis.is_whole}
    parts = {axis: f for axis, f in parts.items() if axis.name not in cut}
    if not parts or decision.rule is None:
        return not parts
    pairs = set(neighbours(decision.rule))
    rests = {axis: AxisRef(axis.name, axis.end, axis.full // axis.end, axis.full) for axis in parts if axis.pre == 1}
    return len(parts) == 2 * len(rests) and all(
        (parts[axis], parts.get(rest, -1)) in pairs for axis, rest in rests.items()
    )


def by_known_ways(complete: Complete, program: Program) -> bool:
    """Whether copies are made by way of shardings that tensors of the type have in the plan; lowering knows others."""
    graph = complete.graph
    known = {(graph.type(value), spec) for value, spec in _placed(complete)}
    read = {*program.outputs, *(v for instr in program.instrs if instr.node is not None for v in instr.inputs)}
    made = {v for instr in program.instrs if instr.node is None for v in instr.results} - read
    passed = (program.values[v] for v in made)
    return all((local.type, local.spec) in known for local in passed if local.origin is not None)


def _placed(complete: Complete) -> Iterator[tuple[int, ShardingSpec]]:
    """Values with the shardings that they are given in, read in and left in."""
    graph = complete.graph
    yield from zip(graph.inputs, complete.inputs)
    for decision in complete.decisions:
        node = graph.nodes[decision.node]
        yield from zip((*node.inputs, *node.results), (*decision.operands, *decision.results))


def _in_order(axes: Axes, order: Axes) -> bool:
    places = [next(i for i, axis in enumerate(order) if axis.overlaps(part)) for part in axes if part.size > 1]
    return places == sorted(places)


_OF_ONE_PARAMETER = 4
"""A parameter and its moments: what more pieces of new state need is needed by several parameters."""
__all__ = [
    "WHOLE", "Neighbours", "Shares", "best_price", "by_known_ways", "full_price", "is_foreseen", "shares_of",
    "weighted_price",
]  # fmt: skip
