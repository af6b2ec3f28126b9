"""Attention as the user meant it: masks made of positions become flags, repeated heads become shared ones.

A model may say "causal" by a mask that it computes from positions, and share keys by copying them.  Then kernels that
know both are out of reach, and values of queries by keys are made.  This pass over the captured graph reads every call
of attention (`rules.reading`) and writes it in the fewest words; what nobody reads any more goes.  A mask that depends
on data, or that says more than a band does, stays.

    attention(q, repeat(k), repeat(v), mask(positions))  ->  attention(q, k, v) {is_causal, enable_gqa}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ..ir.graph import Graph, Operand, TensorType
from ..ir.nodes import freeze_attr
from ..ir.rewrite import Rewriter
from ..rules.reading import Attention, Positions, attention_of
from ..rules.reading.repeats import summed_to


def attention_as_meant(graph: Graph, asked: Collection[int] = ()) -> Graph:
    """The graph with every call of attention in the fewest words; values that were ``asked`` for stay."""
    changes = _changes(graph, asked)
    return graph if not changes else _Writer(graph, changes).graph(asked)


@dataclass(frozen=True)
class _Change:
    """One call, written anew."""

    call: Attention
    operands: tuple[Operand, ...]
    grouped: bool
    images: tuple[int, ...]
    """For each result the old value that the new one is."""
    gone: frozenset[int]
    """Nodes that it does the work of."""


def _changes(graph: Graph, asked: Collection[int]) -> dict[int, _Change]:
    """By node."""
    positions = Positions(graph)
    found: dict[int, _Change] = {}
    for n, node in enumerate(graph.nodes):
        call = attention_of(graph, node, positions)
        if call is None:
            continue
        change = _grouped(graph, call, asked) or _plain(call)
        if (change.operands, _frozen(change)) != (node.operands, node.attrs):
            found[n] = change
    return found


def _frozen(change: _Change) -> tuple[object, ...]:
    return tuple((key, freeze_attr(value)) for key, value in sorted(change.call.attrs(change.grouped).items()))


def _plain(call: Attention) -> _Change:
    """The call with its mask as flags; keys and values stay as they are."""
    keys = call.node.operands[2:4] if call.is_backward else call.node.operands[1:3]
    key, value = (v for v in keys if isinstance(v, int))
    return _Change(call, call.operands(key, value), call.is_grouped, call.node.results, frozenset())


def _grouped(graph: Graph, call: Attention, asked: Collection[int]) -> _Change | None:
    """With the heads that there are, if they are repeated, and if their gradients are summed again."""
    if call.groups < 2 or call.is_grouped:
        return None
    images, gone = list(call.node.results), []
    if call.is_backward:
        for r in (1, 2):
            sums = summed_to(graph, images[r], call.groups)
            if sums is None:
                return None
            gone += sums[1]
            images[r] = sums[0]
    lost = {*call.node.results, *(v for n in gone for v in graph.nodes[n].results)} - set(images)
    if not lost.isdisjoint(asked):
        return None
    return _Change(call, call.operands(call.key, call.value), True, tuple(images), frozenset(gone))


class _Writer:
    def __init__(self, graph: Graph, changes: dict[int, _Change]) -> None:
        self.old, self.changes = graph, changes
        self.gone = {n for change in changes.values() for n in change.gone}

    def reads(self, n: int) -> list[int]:
        change = self.changes.get(n)
        if change is None:
            return list(self.old.nodes[n].inputs)
        return [v for v in change.operands if isinstance(v, int)]

    def graph(self, asked: Collection[int]) -> Graph:
        alive = self.alive(asked)
        rewriter = Rewriter(self.old)
        for n, node in enumerate(self.old.nodes):
            if n in self.changes:
                self.write(rewriter, self.changes[n])
            elif n in alive:
                rewriter.copy(node)
        return rewriter.finish()

    def alive(self, asked: Collection[int]) -> set[int]:
        """Nodes that are needed: for the outputs, for what was asked, or that were not needed before."""
        old = self.old
        makers = {v: n for n, node in enumerate(old.nodes) for v in node.results}
        before = needed([*old.outputs, *asked], makers, lambda n: old.nodes[n].inputs)
        makers.update({v: n for n, change in self.changes.items() for v in change.images})
        after = needed([*old.outputs, *asked], makers, self.reads)
        return (after | (set(range(len(old.nodes))) - before)) - self.gone

    def write(self, rewriter: Rewriter, change: _Change) -> None:
        call, old = change.call, self.old
        op, attrs, more = call.written(change.grouped)
        types: list[TensorType] = [old.type(value) for value in change.images]
        names = [old.values[value].name for value in change.images]
        types += [call.sums_type(old)] * more
        names += [f"{names[0]}_sums"] * more
        operands = tuple(map(rewriter.operand, change.operands))
        made = rewriter.builder.op(op, operands, types, names=names, attrs=attrs, source=call.node.source)
        results = made if isinstance(made, tuple) else (made,)
        rewriter.new.update(zip(change.images, results))


def needed(values: Iterable[int], makers: Mapping[int, int], reads: Callable[[int], Iterable[int]]) -> set[int]:
    """The nodes on which values depend: ``makers`` says who makes a value, ``reads`` what a node reads."""
    found: set[int] = set()
    waiting = list(values)
    while waiting:
        n = makers.get(waiting.pop())
        if n is not None and n not in found:
            found.add(n)
            waiting.extend(reads(n))
    return found
