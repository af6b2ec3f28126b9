"""Mutants: the graphs of ranks with one mistake, as people make them.

A *site* is one collective, on all ranks that make the call; some mistakes are made on one rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from shardwright.frontends.ranks import COMMUNICATION, OUTPUT, Traced
from shardwright.ir.graph import GraphBuilder, Node, TensorType
from shardwright.proof.foreign import Case

Edit = Callable[["Rewriting", Node, list[Any]], Sequence[int]]
"""From a node and its operands to the results that take the place of its own."""
Site = dict[int, int]
"""By rank, the number of the node."""
OTHER_CHANNEL = "another group"
"""Where calls meet that are made on a wrong group."""


@dataclass
class Rewriting(GraphBuilder):
    """A graph that is made from another."""

    new: dict[int, int] = field(default_factory=dict)
    """For values of the other one, which they are here."""

    def renamed(self, operands: Sequence[Any]) -> list[Any]:
        return [
            tuple(self.new[v] for v in o) if isinstance(o, tuple) else None if o is None else self.new[o]
            for o in operands
        ]


def rewritten(traced: Traced, edits: Mapping[int, Edit]) -> Traced:
    """The rank's program with some of its nodes replaced."""
    graph = traced.graph
    builder = Rewriting(graph.name)
    builder.new = {v: builder.input(graph.type(v), name=graph.values[v].name) for v in graph.inputs}
    for n, node in enumerate(graph.nodes):
        operands = builder.renamed(node.operands)
        edit = edits.get(n)
        made = (
            repeated(builder, node, operands, graph.types(node.results))
            if edit is None
            else edit(builder, node, operands)
        )
        builder.new.update(zip(node.results, made, strict=True))
    known = {builder.new[v]: numbers for v, numbers in traced.known.items()}
    return replace(traced, graph=builder.finish([builder.new[v] for v in graph.outputs]), known=known)


def repeated(
    builder: GraphBuilder, node: Node, operands: Sequence[Any], types: Sequence[TensorType], **attrs: Any
) -> tuple[int, ...]:
    """The node again, perhaps with other attributes."""
    made = builder.op(
        node.op, operands, types, attrs={**dict(node.attrs), **attrs}, views=node.views, source=node.source
    )
    return made if isinstance(made, tuple) else (made,)


@dataclass(frozen=True)
class Mutant:
    kind: str
    case: Case


class Sites:
    """Where mistakes can be made in a program."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.graphs = [traced.graph for traced in case.ranks]
        collectives = [[n for n, node in enumerate(graph.nodes) if _collective(node)] for graph in self.graphs]
        ops = {tuple(graph.nodes[n].op for n in found) for graph, found in zip(self.graphs, collectives)}
        if len(ops) == 1:
            self.all: list[Site] = [dict(enumerate(numbers)) for numbers in zip(*collectives)]
        else:
            meetings: dict[Any, Site] = {}
            for rank, found in enumerate(collectives):
                for n in found:
                    attrs = dict(self.graphs[rank].nodes[n].attrs)
                    meetings.setdefault((attrs["group"], attrs["channel"], attrs["at"]), {})[rank] = n
            self.all = list(meetings.values())
        self.forward = [_before_outputs(traced) for traced in case.ranks]

    def node(self, rank: int, n: int) -> Node:
        return self.graphs[rank].nodes[n]

    def types(self, rank: int, values: Sequence[int]) -> list[TensorType]:
        return list(self.graphs[rank].types(values))

    def of(self, *kinds: str) -> list[Site]:
        names = {COMMUNICATION + kind for kind in kinds}
        return [site for site in self.all if all(self.node(rank, n).op in names for rank, n in site.items())]

    def mutant(self, edits: Mapping[int, Mapping[int, Edit]]) -> Case:
        ranks = [rewritten(t, edits[r]) if edits.get(r) else t for r, t in enumerate(self.case.ranks)]
        return replace(self.case, ranks=ranks)

    def at(self, site: Site, edit: Callable[[int, Node], Edit | None]) -> Case | None:
        """A mistake on all ranks of a site; None where it cannot be made on one of them."""
        edits = {rank: {n: edit(rank, self.node(rank, n))} for rank, n in site.items()}
        if any(made is None for one in edits.values() for made in one.values()):
            return None
        return self.mutant(edits)  # type: ignore[arg-type]

    def local(self, *ops: str) -> list[tuple[int, int]]:
        return [(r, n) for r, g in enumerate(self.graphs) for n, node in enumerate(g.nodes) if node.op in ops]


def _collective(node: Node) -> bool:
    return node.op.startswith(COMMUNICATION) and node.op.removeprefix(COMMUNICATION) not in (
        "send",
        "receive",
        "barrier",
    )


def _before_outputs(traced: Traced) -> set[int]:
    """Nodes that an output follows from: the forward pass."""
    makers = {v: n for n, node in enumerate(traced.graph.nodes) for v in node.results}
    waiting = [v for left, v in zip(traced.left, traced.graph.outputs) if left.kind == OUTPUT]
    found: set[int] = set()
    while waiting:
        n = makers.get(waiting.pop())
        if n is not None and n not in found:
            found.add(n)
            waiting += traced.graph.nodes[n].inputs
    return found


# -- collectives ------------------------------------------------------------------------------------------


def _instead(sites: Sites, rank: int, node: Node) -> Edit | None:
    """What a rank has without the collective: its own part."""
    given, back = list(node.inputs), sites.types(rank, node.results)
    group: Any = node.attr("group")
    me = group.index(rank)
    kind = node.op.removeprefix(COMMUNICATION)
    mine = {"all_reduce": [0], "broadcast": [0], "reduce_scatter": [me], "all_gather": [0] * len(back),
            "all_to_all": list(range(len(back)))}.get(kind)  # fmt: skip
    if mine is None or any(sites.types(rank, [given[i]])[0] != type for i, type in zip(mine, back)):
        return None
    return lambda builder, node, operands: [operands[0][i] for i in mine]


def drop(sites: Sites, rng: Random) -> Case | None:
    site = rng.choice(sites.all)
    return sites.at(site, lambda rank, node: _instead(sites, rank, node))


def drop_in_backward(sites: Sites, rng: Random) -> Case | None:
    found = [site for site in sites.of("all_reduce", "reduce_scatter") if
             all(n not in sites.forward[rank] for rank, n in site.items())]  # fmt: skip
    return sites.at(rng.choice(found), lambda rank, node: _instead(sites, rank, node)) if found else None


def ignore(sites: Sites, rng: Random) -> Case | None:
    """One rank goes on with what it had."""
    site = rng.choice(sites.all)
    rank = rng.choice(sorted(site))
    own = _instead(sites, rank, sites.node(rank, site[rank]))
    if own is None:
        return None

    def edit(builder: Rewriting, node: Node, operands: list[Any]) -> Sequence[int]:
        repeated(builder, node, operands, sites.types(rank, node.results))
        return own(builder, node, operands)

    return sites.mutant({rank: {site[rank]: edit}})


def double(sites: Sites, rng: Random) -> Case | None:
    found = sites.of("all_reduce")
    if not found:
        return None

    def edit(rank: int, node: Node) -> Edit:
        types = sites.types(rank, node.results)

        def twice(builder: Rewriting, node: Node, operands: list[Any]) -> Sequence[int]:
            first = repeated(builder, node, operands, types)
            return repeated(builder, node, [first], types, channel=f"{node.attr('channel')} again")

        return twice

    return sites.at(rng.choice(found), edit)


def _with_attrs(sites: Sites, rank: int, node: Node, **attrs: Any) -> Edit:
    types = sites.types(rank, node.results)
    return lambda builder, node, operands: repeated(builder, node, operands, types, **attrs)


def reduction(sites: Sites, rng: Random) -> Case | None:
    found = sites.of("all_reduce", "reduce_scatter")
    if not found:
        return None
    site = rng.choice(found)
    known = sites.node(*next(iter(site.items()))).attr("reduce")
    other = rng.choice([how for how in ("sum", "avg", "max") if how != known])
    return sites.at(site, lambda rank, node: _with_attrs(sites, rank, node, reduce=other))


def group(sites: Sites, rng: Random) -> Case | None:
    """The groups of another axis, all ranks, or neighbours."""
    site = rng.choice(sites.all)
    mesh, size = sites.case.mesh, len(sites.graphs)
    if len(site) < size:
        return None
    known = [set(sites.node(rank, n).attr("group")) for rank, n in site.items()]
    ways: list[Callable[[int], tuple[int, ...]]] = [
        lambda rank, axis=axis: mesh.group(rank, axis) for axis in range(len(mesh.shape))  # type: ignore[misc]
    ]  # fmt: skip
    ways += [lambda rank: tuple(range(size))]
    if size % 2 == 0:
        ways += [lambda rank: (rank // 2 * 2, rank // 2 * 2 + 1)]
    ways = [way for way in ways if any(set(way(rank)) != known[rank] for rank in site)]
    if not ways:
        return None
    way = rng.choice(ways)

    def edit(rank: int, node: Node) -> Edit | None:
        same = len(way(rank)) == len(node.attr("group")) and len(set(sites.types(rank, node.inputs))) == 1
        if node.op != f"{COMMUNICATION}all_reduce" and not same:
            return None
        root = way(rank)[0] if node.op == f"{COMMUNICATION}broadcast" else node.attr("root")
        return _with_attrs(sites, rank, node, group=way(rank), channel=OTHER_CHANNEL, root=root)

    return sites.at(site, edit)


def _times(builder: Rewriting, value: int, type: TensorType, factor: float) -> int:
    return int(builder.op("aten.mul.Tensor", [value, None], [type], attrs={"other": factor}))


def factor(sites: Sites, rng: Random) -> Case | None:
    site = rng.choice(sites.all)
    by = rng.choice((2.0, 0.5, float(len(site)), 1.0 / len(site)))
    return sites.at(site, lambda rank, node: _scaled(sites, rank, node, by))


def _scaled(sites: Sites, rank: int, node: Node, by: float) -> Edit | None:
    types = sites.types(rank, node.results)
    if any(not type.dtype.startswith(("f", "bf")) for type in types):
        return None

    def edit(builder: Rewriting, node: Node, operands: list[Any]) -> Sequence[int]:
        made = repeated(builder, node, operands, types)
        return [_times(builder, value, type, by) for value, type in zip(made, types)]

    return edit


def factor_on_one_rank(sites: Sites, rng: Random) -> Case | None:
    site = rng.choice(sites.all)
    rank = rng.choice(sorted(site))
    edit = _scaled(sites, rank, sites.node(rank, site[rank]), 2.0)
    return None if edit is None else sites.mutant({rank: {site[rank]: edit}})


def constant(sites: Sites, rng: Random) -> Case | None:
    """A factor or divisor that stands in the program, on all ranks."""
    found = [(r, n) for r, n in sites.local("aten.mul.Tensor", "aten.div.Tensor") if r == 0 and
             isinstance(sites.node(r, n).attr("other"), int | float)]  # fmt: skip
    if not found:
        return None
    n = rng.choice(found)[1]
    by = rng.choice((2, len(sites.graphs)))
    edits: dict[int, dict[int, Edit]] = {}
    for rank, graph in enumerate(sites.graphs):
        if n >= len(graph.nodes) or graph.nodes[n].op != sites.node(0, n).op:
            return None
        other = graph.nodes[n].attr("other")
        if not isinstance(other, int | float):
            return None
        edits[rank] = {n: _with_attrs(sites, rank, graph.nodes[n], other=other * by)}
    return sites.mutant(edits)


def _rotated(values: Sequence[int], by: int) -> list[int]:
    return [*values[by:], *values[:by]]


def order(sites: Sites, rng: Random) -> Case | None:
    """Parts that come back are taken in another order."""
    found = sites.of("all_gather", "all_to_all")
    if not found:
        return None
    site = rng.choice(found)
    ranks = sorted(site) if rng.random() < 0.6 else [rng.choice(sorted(site))]
    edits: dict[int, dict[int, Edit]] = {}
    for rank in ranks:
        types = sites.types(rank, sites.node(rank, site[rank]).results)
        if len(types) < 2 or len(set(types)) > 1:
            return None

        def edit(builder: Rewriting, node: Node, operands: list[Any], types: Any = types) -> Sequence[int]:
            return _rotated(repeated(builder, node, operands, types), 1)

        edits[rank] = {site[rank]: edit}
    return sites.mutant(edits)


def pieces(sites: Sites, rng: Random) -> Case | None:
    """Pieces go to the wrong ranks."""
    found = sites.of("reduce_scatter", "all_to_all")
    if not found:
        return None

    def edit(rank: int, node: Node) -> Edit | None:
        if len(set(sites.types(rank, node.inputs))) > 1 or len(node.inputs) < 2:
            return None
        types = sites.types(rank, node.results)
        return lambda builder, node, operands: repeated(builder, node, [tuple(_rotated(operands[0], 1))], types)

    return sites.at(rng.choice(found), edit)


def joined(sites: Sites, rng: Random) -> Case | None:
    """Parts are put side by side in another order, on one rank."""
    found = [(r, n) for r, n in sites.local("aten.cat", "aten.stack") if
             len(node_types := sites.types(r, sites.node(r, n).inputs)) > 1 and len(set(node_types)) == 1]  # fmt: skip
    if not found:
        return None
    rank, n = rng.choice(found)
    types = sites.types(rank, sites.node(rank, n).results)
    return sites.mutant({rank: {n: lambda builder, node, operands: repeated(
        builder, node, [tuple(_rotated(operands[0], 1)), *operands[1:]], types
    )}})  # fmt: skip


def cut(sites: Sites, rng: Random) -> Case | None:
    """Another slice, or another piece of what is split, on one rank."""
    found = sites.local("aten.slice.Tensor", "aten.split.Tensor", "aten.split_with_sizes", "aten.select.int")
    if not found:
        return None
    rank, n = rng.choice(found)
    node = sites.node(rank, n)
    types = sites.types(rank, node.results)
    if node.op.startswith("aten.split"):
        places = [(i, j) for i in range(len(types)) for j in range(i) if types[i] == types[j]]
        if not places:
            return None
        i, j = rng.choice(places)

        def swapped(builder: Rewriting, node: Node, operands: list[Any]) -> Sequence[int]:
            made = list(repeated(builder, node, operands, types))
            made[i], made[j] = made[j], made[i]
            return made

        return sites.mutant({rank: {n: swapped}})
    dim: Any = node.attr("dim", 0)
    size = sites.types(rank, node.inputs[:1])[0].shape[dim]
    begin, end = (
        (node.attr("index"),) * 2 if node.op == "aten.select.int" else (node.attr("start"), node.attr("end") - 1)
    )
    steps = [step for step in (-2, -1, 1, 2) if begin + step >= 0 and end + step < size]
    if not steps or begin < 0:
        return None
    step = rng.choice(steps)
    moved = {"index": begin + step} if node.op == "aten.select.int" else {"start": begin + step, "end": end + 1 + step}
    return sites.mutant({rank: {n: _with_attrs(sites, rank, node, **moved)}})


def reorder(sites: Sites, rng: Random) -> Case | None:
    """One rank makes two calls in the other order: each gets into the other's meeting."""
    pairs = list(_exchangeable(sites))
    if not pairs:
        return None
    rank, first, second = rng.choice(pairs)
    before, after = sites.node(rank, first), sites.node(rank, second)
    types = sites.types(rank, before.results)
    held: dict[str, Any] = {}

    def of_first(builder: Rewriting, node: Node, operands: list[Any]) -> Sequence[int]:
        held["operands"] = operands
        held["results"] = repeated(builder, node, builder.renamed(after.operands), types)
        return held["results"]  # nobody looks at these before the second call

    def of_second(builder: Rewriting, node: Node, operands: list[Any]) -> Sequence[int]:
        builder.new.update(zip(before.results, repeated(builder, node, held["operands"], types)))
        return held["results"]

    return sites.mutant({rank: {first: of_first, second: of_second}})


def _exchangeable(sites: Sites) -> Iterator[tuple[int, int, int]]:
    """Two calls of a rank, alike, of which the second could have been the first."""
    for rank, graph in enumerate(sites.graphs):
        makers = {v: n for n, node in enumerate(graph.nodes) for v in node.results}
        users: dict[int, int] = {}
        for n, node in enumerate(graph.nodes):
            for v in node.inputs:
                users.setdefault(v, n)
        calls = [n for n, node in enumerate(graph.nodes) if _collective(node)]
        for first, second in ((a, b) for i, a in enumerate(calls) for b in calls[i + 1 : i + 4]):
            one, other = graph.nodes[first], graph.nodes[second]
            alike = one.op == other.op and all(one.attr(k) == other.attr(k) for k in ("group", "channel", "reduce"))
            if not alike or sites.types(rank, one.inputs) != sites.types(rank, other.inputs):
                continue
            if sites.types(rank, one.results) != sites.types(rank, other.results):
                continue
            ready = all(makers.get(v, -1) < first for v in other.inputs)
            unused = all(users.get(v, second + 1) > second for v in one.results)
            if ready and unused and len(one.results) > 0:
                yield rank, first, second


KINDS: dict[str, Callable[[Sites, Random], Case | None]] = {
    "dropped collective": drop,
    "missing backward reduction": drop_in_backward,
    "result not used on one rank": ignore,
    "doubled collective": double,
    "reordered calls": reorder,
    "wrong group": group,
    "wrong reduction": reduction,
    "wrong factor": factor,
    "wrong factor on one rank": factor_on_one_rank,
    "wrong constant": constant,
    "wrong order of parts": order,
    "pieces to wrong ranks": pieces,
    "wrong order of a concatenation": joined,
    "wrong slice": cut,
}


def mutants(case: Case, seed: int, count: int) -> Iterator[Mutant]:
    """Mutants of a program, each of a random kind."""
    rng = Random(f"mistakes {seed}")
    sites = Sites(case)
    tries = 0
    while count and sites.all and tries < 200:
        tries += 1
        kind = rng.choice(list(KINDS))
        made = KINDS[kind](sites, rng)
        if made is not None:
            count -= 1
            yield Mutant(kind, made)
