"""What the user said inside the program: constraints and groups, made ready for propagation.

A closed constraint on a value that nothing else constrains is the value's own sharding.  Members of a group
must end up alike: if they already agree they get the common sharding; if they contradict each other, each gets
a constraint behind it that is free, and those are grouped instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..ir.core import CONSTRAINT
from ..ir.graph import Graph
from ..ir.rewrite import Rewriter
from ..spec.sharding import ShardingSpec

Specs = dict[int, ShardingSpec]


def apply_constraints(graph: Graph, specs: Mapping[int, ShardingSpec]) -> tuple[Graph, Specs]:
    """Push each closed constraint up to the value it constrains.

    Behind a chain of constraints that nobody looks into, later readers of the value read the chain's end: the
    user asked for a sequence of reshards, and these readers come after it.
    """
    found = dict(specs)
    redirect: dict[int, tuple[int, int]] = {}  # value -> (node of the chain's end, its result)
    for node in graph.nodes:
        if node.op != CONSTRAINT:
            continue
        value, said = node.inputs[0], specs.get(node.results[0])
        others = [n for n in graph.uses[value] if graph.nodes[n].op == CONSTRAINT]
        same = all(specs.get(graph.nodes[n].results[0]) == said for n in others)
        if said is None or value in specs or not same or any(dim.open for dim in said.dims):
            continue
        found[value] = said
        end = _end_of_chain(graph, node.results[0])
        if len(others) == 1 and end != node.results[0]:
            maker = graph.node_of(end)
            assert maker is not None
            redirect[value] = maker, end
    if not redirect:
        return graph, found
    rewriter = Rewriter(graph)
    for n, node in enumerate(graph.nodes):
        rewriter.copy(node)
        for value, (last, end) in redirect.items():
            if n == last:
                rewriter.instead[value] = rewriter.new[end]
    outputs = tuple(rewriter.new[value] for value in graph.outputs)
    return rewriter.finish(outputs), {rewriter.new[value]: spec for value, spec in found.items()}


def _end_of_chain(graph: Graph, value: int) -> int:
    """Follow constraints each of which is read only by the next; if one is looked into, there is no chain."""
    start = value
    while True:
        following = [n for n in graph.uses[value] if graph.nodes[n].op == CONSTRAINT]
        if not following:
            return value
        if len(graph.uses[value]) + graph.output_uses[value] > 1:
            return start
        value = graph.nodes[following[0]].results[0]


def join_groups(
    graph: Graph, specs: Mapping[int, ShardingSpec], groups: Iterable[Iterable[int]]
) -> tuple[Graph, Specs, list[list[int]]]:
    """Make groups consistent; see the module's docstring."""
    found = dict(specs)
    members = [list(dict.fromkeys(group)) for group in groups]
    torn: dict[int, ShardingSpec] = {}
    for group in members:
        said = list(dict.fromkeys(spec for value in group if (spec := specs.get(value)) and not _is_free(spec)))
        if len(said) == 1:
            found.update(dict.fromkeys(group, said[0]))
        elif said:
            torn.update(dict.fromkeys(group, said[0]))
    if not torn:
        return graph, found, members
    rewriter = Rewriter(graph)
    inserted: dict[int, int] = {}

    def constrain(values: Sequence[int]) -> None:
        for value in values:
            if value in torn:
                inserted[value] = rewriter.insert(CONSTRAINT, value)
                rewriter.instead[value] = inserted[value]

    constrain(graph.inputs[::-1])  # each goes to the top of the program, so the last stands first
    for node in graph.nodes:
        rewriter.copy(node)
        constrain(node.results)
    made = rewriter.finish()
    moved = {rewriter.new[value]: spec for value, spec in found.items()}
    for value, image in inserted.items():
        moved[image] = ShardingSpec.replicate(torn[value].mesh, torn[value].rank, open=True)
    return made, moved, [[inserted.get(value, rewriter.new[value]) for value in group] for group in members]


def _is_free(spec: ShardingSpec) -> bool:
    return all(dim.open and not dim.axes for dim in spec.dims) and not spec.partial and not spec.replicated
