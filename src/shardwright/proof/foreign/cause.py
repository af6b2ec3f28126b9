"""`find_cause`: where a wrong program begins to be wrong, and what would mend it.

From a wrong output the way leads back through values that are wrong, too: not found among the single program's, a
multiple of one, or, if the output is left in partial sums, sums that are still pending.  Where that way ends, an op
makes something wrong of what is right.  There a few repairs are tried on the traced programs (to add up, to scale,
another reduction, another group, another order of parts), and one under which all that is left behind is right is
named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from time import process_time
from typing import Any

from ...errors import VerifyError
from ...frontends.ranks import COMMUNICATION, OUTPUT, Traced
from ...ir.graph import Graph, Node, Value
from .explained import Explained, Found
from .judging import Difference, Mesh
from .meanings import LIKE
from .moving import MOVES
from .result import Cause
from .rounds import Round

MOST_TRIALS = 24
MOST_SECONDS = 20.0
"""For the search of a repair."""


@dataclass(frozen=True)
class _Repair:
    said: str
    ranks: list[Traced]
    of: int | None = None
    """The value that is pending, and should not be."""


def find_cause(round: Round, differences: Sequence[Difference]) -> Cause | None:
    """None if the programs of the ranks are too different from each other to tell."""
    search = _Search(round)
    labels = {difference.name for difference in differences}
    left = round.case.ranks[0].left
    wrong = [i for i, item in enumerate(left) if item.label in labels]
    found = search.frontier(wrong)
    if found is None:
        return None
    node = search.graph.nodes[found]
    cause = Cause(node.op, node.source, search.fact(found), callers=_callers(node))
    start = process_time()
    for count, repair in enumerate(search.repairs(found, wrong)):
        if count >= MOST_TRIALS or process_time() - start > MOST_SECONDS:
            break
        if _mends(round, repair):
            return replace(search.moved_to(cause, repair.of), repair=repair.said)
    return cause


def _mends(round: Round, repair: _Repair) -> bool:
    try:
        tried = Round(replace(round.case, ranks=repair.ranks), round.turn)
    except VerifyError:
        return False
    return not tried.differences()[0]


class _Search:
    def __init__(self, round: Round) -> None:
        self.round, self.case = round, round.case
        self.mesh: Mesh = round.case.mesh
        self.graph: Graph = round.case.ranks[0].graph
        self.explained = Explained(round)
        self._judged: dict[tuple[int, frozenset[int], bool], bool] = {}
        self.maker = {value: n for n, node in enumerate(self.graph.nodes) for value in node.results}

    # -- where -----------------------------------------------------------------------------------------------

    def frontier(self, wrong: Sequence[int]) -> int | None:
        """The first op that makes something wrong of what is right, on the way to as many of these as can be."""
        outputs = [i for i in wrong if self.case.ranks[0].left[i].kind == OUTPUT]
        wrong = outputs or wrong  # gradients follow
        found: Counter[int] = Counter()
        for i in wrong:
            found.update(self._ends(self.graph.outputs[i]))
        first = min(found, key=lambda n: (not self._known(n), not self._sure(n), -found[n], n), default=None)
        ends = [self.explained.of(self.graph.outputs[i]) for i in wrong]
        sure = first is not None and all(self.explained.of(v) is not None for v in self.graph.nodes[first].inputs)
        multiples = all(end is not None and end.factor != 1 for end in ends)
        if first is not None and multiples and not sure and not self._known(first):
            # All that is wrong is a multiple, as much on the way may be: where it is computed is all that can be said.
            made = [m for i in wrong if (m := self._computed_at(self.graph.outputs[i])) is not None]
            return min(made, default=first)
        if first is None:
            return None
        return self._taken_for_another(first) if sure and not self._odd(first) else self._where_odd(first)

    def _odd(self, n: int) -> list[int]:
        """What an op reads that is a multiple of what it should be."""
        found = [(v, self.explained.of(v)) for v in self.graph.nodes[n].inputs]
        return [v for v, one in found if one is not None and one.factor != 1]

    def _where_odd(self, n: int) -> int:
        """The op that began to make a multiple."""
        while not _is_collective(self.graph.nodes[n]):
            makers = [m for v in self._odd(n) if (m := self.maker.get(v)) is not None]
            if not makers:
                return n
            n = max(makers)
        return n

    def _sure(self, n: int) -> bool:
        """Whether all that an op reads is right as it is, and not only moved."""
        return all(
            self.explained.of(value) is not None
            or ((m := self._maker_of_moved(value)) is not None and self._of_nothing(self.graph.nodes[m]))
            for value in self.graph.nodes[n].inputs
        )

    def _of_nothing(self, node: Node) -> bool:
        return (not node.inputs and not _is_collective(node)) or node.op in _LIKE

    def _taken_for_another(self, n: int) -> int:
        """An op may read a right value in the place of another: then who gives it that is to blame.

        The single program has the same op, with all of its operands but one.
        """
        node = self.graph.nodes[n]
        reads = [(v, self._origin(v)) for v in node.inputs]
        likes = [like for like in self.round.case.single.graph.nodes if like.op == node.op]
        meant = [[self._single_origin(v) for v in like.inputs] for like in likes if len(like.inputs) == len(reads)]
        right = [[a == b for (_, a), b in zip(reads, those)] for those in meant]
        if any(all(one) for one in right):
            return n
        others = [v for one in right if sum(one) == len(one) - 1 > 0 for (v, _), same in zip(reads, one) if not same]
        return max((m for v in others if (m := self._maker_of_moved(v)) is not None), default=n)

    def _origin(self, value: int) -> object:
        """Which value of the single program something is, movements apart."""
        found = self.explained.of(self._unmoved(value))
        return None if found is None or found.value < 0 else self._single_origin(found.value)

    def _unmoved(self, value: int) -> int:
        n = self.maker.get(value)
        while n is not None and self.graph.nodes[n].op in _MOVES:
            value = self.graph.nodes[n].inputs[0]
            n = self.maker.get(value)
        return value

    def _maker_of_moved(self, value: int) -> int | None:
        return self.maker.get(self._unmoved(value))

    def _single_origin(self, value: int) -> int:
        graph = self.round.case.single.graph
        n = graph.node_of(value)
        while n is not None and graph.nodes[n].op in _MOVES:
            value = graph.nodes[n].inputs[0]
            n = graph.node_of(value)
        return value

    def _computed_at(self, value: int) -> int | None:
        """The last op that computes something of an output: after it there are collectives and movements."""
        n = self.maker.get(value)
        while n is not None:
            node = self.graph.nodes[n]
            moved = node.op in _MOVES or node.op in _PUT_TOGETHER or _is_collective(node)
            if not moved or not node.inputs:
                return n
            n = next((m for v in node.inputs if (m := self.maker.get(v)) is not None), None)
        return None

    def _known(self, n: int) -> bool:
        """Whether it is known what an op makes, and what is wrong with it."""
        return any(self.explained.of(value) is not None for value in self.graph.nodes[n].results)

    def _ends(self, output: int) -> set[int]:
        end = self.explained.of(output)
        if end is not None and end.factor == 1 and not end.pending:  # right, but for where it lies
            return {self.maker[output]} if output in self.maker else set()
        scaled = end is not None and end.factor != 1
        pending = set() if end is None or scaled else set(end.pending)
        seen: set[int] = set()
        ends: set[int] = set()
        waiting = [output]
        while waiting:
            n = self.maker.get(waiting.pop())
            if n is None or n in seen:
                continue
            seen.add(n)
            before = [v for v in self.graph.nodes[n].inputs if self._bad(v, pending, scaled)]
            waiting += before
            if not before:
                ends.add(n)
        return ends

    def _bad(self, value: int, pending: set[int], scaled: bool) -> bool:
        """Whether a value is wrong: it is nothing that is known, nor made by moving what is right.

        Sums that are pending, and multiples, are wrong if they are so in the end: on the way they may be meant.
        """
        key = (value, frozenset(pending), scaled)
        if key not in self._judged:
            self._judged[key] = self._is_bad(value, pending, scaled)
        return self._judged[key]

    def _is_bad(self, value: int, pending: set[int], scaled: bool) -> bool:
        if self.round.ranks[0][value].whole is not None:
            return False
        found = self.explained.of(value)
        if found is not None:
            return (scaled and found.factor != 1) or not pending.isdisjoint(found.pending)
        n = self.maker.get(value)
        if n is None:
            return False
        node = self.graph.nodes[n]
        if self._of_nothing(node):
            return node.op == "foreign.unwritten"
        held = self.round.ranks[0][value]
        if held.shift is not None and not held.logarithm:  # any number may be subtracted before an exponential
            return any(self._bad(v, pending, scaled) for v in node.inputs)
        return node.op not in _MOVES or any(self._bad(v, pending, scaled) for v in node.inputs)

    def moved_to(self, cause: Cause, value: int | None) -> Cause:
        """The place where a sum begins to be pending that should have been added up."""
        if value is None:
            return cause
        n = self.maker.get(value)
        while n is not None:
            node = self.graph.nodes[n]
            before = [v for v in node.inputs if (found := self.explained.of(v)) is not None and found.pending]
            made = [self.maker[v] for v in before if v in self.maker]
            if not made:
                return Cause(node.op, node.source, self.fact(n), callers=_callers(node))
            n = made[0]
        return cause

    def fact(self, n: int) -> str:
        """What is wrong with what an op makes."""
        node = self.graph.nodes[n]
        made = self.explained.of(node.results[0]) if node.results else None
        reads = [self.explained.of(v) for v in node.inputs]
        pending = sorted({self.mesh.names[axis] for found in reads if found is not None for axis in found.pending})
        if made is None:
            because = (
                f"; it reads partial sums over {', '.join(pending)}" if pending and not _is_collective(node) else ""
            )
            return f"its result is nothing that the single program has{because}"
        if made.factor != 1:
            return f"its result is {_times(made.factor)} what it should be"
        if made.pending:
            axes = ", ".join(self.mesh.names[axis] for axis in made.pending)
            return f"its result is partial sums over {axes}, which are never added up"
        return f"its result is {made.said(self.mesh)}"

    # -- repairs ---------------------------------------------------------------------------------------------

    def repairs(self, n: int, wrong: Sequence[int]) -> Iterator[_Repair]:
        node = self.graph.nodes[n]
        made = [(value, self.explained.of(value)) for value in node.results]
        reads = [(value, self.explained.of(value)) for value in dict.fromkeys(node.inputs)]
        ends = [self.explained.of(self.graph.outputs[i]) for i in wrong]
        at = f" ({node.source})" if node.source else ""
        for value, found in (*made, *reads):
            yield from self._known_repairs(value, found, at)
        if len(wrong) > 1 and all(found is not None and found.pending for found in ends):
            yield from self._outputs_reduced(wrong)
        if _is_collective(node):
            yield from self._other_collective(n, at)
        if node.op in ("aten.cat", "aten.stack"):
            yield from self._other_order(n, at)
        for value, _ in made:
            for axis, name in enumerate(self.mesh.names):
                for how in ("sum", "avg"):
                    yield from self._reduced(
                        value, (axis,), how, f"{_REDUCE[how]} over {name} what {node.op} makes{at}"
                    )
            for factor in self._factors():
                yield from self._scaled(value, factor, f"multiply what {node.op} makes by {factor}{at}")
        yield from self._outputs_reduced(wrong)

    def _outputs_reduced(self, wrong: Sequence[int]) -> Iterator[_Repair]:
        """All that is wrong in the end, reduced."""
        labels = [self.case.ranks[0].left[i].label for i in wrong]
        names = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        for axis, name in enumerate(self.mesh.names):
            for how in ("sum", "avg"):
                ranks: Sequence[Traced] = self.case.ranks
                for i in wrong:
                    ranks = self._on(ranks, i, axis, how)
                yield _Repair(f"{_REDUCE[how]} {names} over {name}", list(ranks))

    def _on(self, ranks: Sequence[Traced], i: int, axis: int, how: str) -> list[Traced]:
        """One output of every rank, reduced."""
        return [
            _inserted(traced, traced.graph.outputs[i], f"{COMMUNICATION}all_reduce", {
                "group": self.mesh.group(traced.rank, axis), "reduce": how, "root": 0, "tag": 0,
                "channel": f"repair{i}", "at": 0,
            }, as_list=True)
            for traced in ranks
        ]  # fmt: skip

    def _known_repairs(self, value: int, found: Found | None, at: str) -> Iterator[_Repair]:
        """What a value that is almost right asks for."""
        if found is None:
            return
        name = self._called(value)
        if found.pending:
            axes = ", ".join(self.mesh.names[axis] for axis in found.pending)
            for repair in self._reduced(value, found.pending, "sum", f"add up {name} over {axes}{at}"):
                yield replace(repair, of=value)
        if found.factor != 1:
            yield from self._scaled(value, 1 / found.factor, f"multiply {name} by {1 / found.factor}{at}")

    def _called(self, value: int) -> str:
        n = self.maker.get(value)
        return f"%{self.graph.values[value].name}" if n is None else f"what {self.graph.nodes[n].op} makes"

    def _factors(self) -> list[Fraction]:
        sizes = sorted({*self.mesh.shape} - {1})
        return [factor for size in sizes for factor in (Fraction(size), Fraction(1, size))]

    def _reduced(self, value: int, axes: Sequence[int], how: str, said: str) -> Iterator[_Repair]:
        places = self.explained.partners(value)
        if places is None:
            return
        ranks = list(self.case.ranks)
        for axis in axes:
            ranks = [
                _inserted(traced, place, f"{COMMUNICATION}all_reduce", {
                    "group": self.mesh.group(traced.rank, axis), "reduce": how, "root": 0, "tag": 0,
                    "channel": f"repair{axis}", "at": 0,
                }, as_list=True)
                for traced, place in zip(ranks, places)
            ]  # fmt: skip
        yield _Repair(said, ranks)

    def _scaled(self, value: int, factor: Fraction, said: str) -> Iterator[_Repair]:
        places = self.explained.partners(value)
        if places is not None:
            attrs = {"other": float(factor)}
            ranks = [_inserted(t, place, "aten.mul.Scalar", attrs) for t, place in zip(self.case.ranks, places)]
            yield _Repair(said, ranks)

    def _other_collective(self, n: int, at: str) -> Iterator[_Repair]:
        """Another reduction, another group, or none."""
        node = self.graph.nodes[n]
        places = self.explained.partners(node.results[0]) if node.results else None
        if places is None:
            return
        attrs = dict(node.attrs)
        for how in ("sum", "avg", "max"):
            if attrs["reduce"] and how != attrs["reduce"]:
                yield _Repair(f"reduce by {how}, not {attrs['reduce']}{at}", self._changed(places, {"reduce": how}))
        for axis, name in enumerate(self.mesh.names):
            if len(self.mesh.names) > 1 and len(self.mesh.group(0, axis)) == len(tuple(attrs["group"])):  # type: ignore[arg-type]
                yield _Repair(f"use the group of {name}{at}", self._changed(places, {}, axis))

    def _changed(self, places: Sequence[int], changes: Mapping[str, Any], axis: int | None = None) -> list[Traced]:
        made = []
        for traced, place in zip(self.case.ranks, places):
            more: dict[str, Any] = dict(changes)
            if axis is not None:
                more.update(group=self.mesh.group(traced.rank, axis), channel="repair")
            nodes = [
                replace(node, attrs=tuple(sorted({**dict(node.attrs), **more}.items())))
                if place in node.results
                else node
                for node in traced.graph.nodes
            ]
            made.append(replace(traced, graph=replace(traced.graph, nodes=tuple(nodes))))
        return made

    def _other_order(self, n: int, at: str) -> Iterator[_Repair]:
        places = self.explained.partners(self.graph.nodes[n].results[0])
        parts = self.graph.nodes[n].operands[0]
        if places is None or not isinstance(parts, tuple) or len(parts) > 8:
            return
        for said, order in _orders(len(parts)):
            made = []
            for traced, place in zip(self.case.ranks, places):
                nodes = []
                for node in traced.graph.nodes:
                    if place in node.results and isinstance(node.operands[0], tuple):
                        node = replace(node, operands=(tuple(node.operands[0][i] for i in order),))
                    nodes.append(node)
                made.append(replace(traced, graph=replace(traced.graph, nodes=tuple(nodes))))
            yield _Repair(f"put the parts {said}{at}", made)


_MOVES = frozenset(MOVES) - {"aten.slice.Tensor", "aten.select.int"}
"""Ops whose results are right if what they read is: a slice may be the wrong one."""
_PUT_TOGETHER = ("aten.cat", "aten.stack", "aten.slice.Tensor", "aten.select.int")
_LIKE = frozenset(f"aten.{name}" for name in LIKE.split())
_REDUCE = {"sum": "add up", "avg": "average"}


def _orders(count: int) -> Iterator[tuple[str, list[int]]]:
    yield "in the opposite order", list(reversed(range(count)))
    for rows in range(2, count):
        if count % rows == 0:
            columns = count // rows
            order = [row * columns + column for column in range(columns) for row in range(rows)]
            yield f"in the order of {rows} rows taken by columns", order


def _times(factor: Fraction) -> str:
    return f"{factor} times" if factor > 1 else f"1/{factor.denominator} of"


def _callers(node: Node) -> tuple[str, ...]:
    return tuple(str(place) for place in dict(node.attrs).get("callers") or ())  # type: ignore[union-attr]


def _is_collective(node: Node) -> bool:
    return node.op.startswith(COMMUNICATION)


def _inserted(traced: Traced, value: int, op: str, attrs: Mapping[str, Any], as_list: bool = False) -> Traced:
    """The program with an op on a value, whose result everybody reads instead."""
    graph = traced.graph
    new = len(graph.values)
    type = graph.values[value].type
    at = next((n for n, node in enumerate(graph.nodes) if value in node.results), -1) + 1

    def swap(operand: object) -> object:
        if isinstance(operand, tuple):
            return tuple(new if v == value else v for v in operand)
        return new if operand == value else operand

    later = [replace(node, operands=tuple(swap(o) for o in node.operands)) for node in graph.nodes[at:]]  # type: ignore[misc]
    made = Node(op, ((value,) if as_list else value,), (new,), tuple(sorted(attrs.items())))
    changed = replace(
        graph,
        values=(*graph.values, Value(new, type, f"repair{new}")),
        nodes=(*graph.nodes[:at], made, *later),
        outputs=tuple(new if v == value else v for v in graph.outputs),
    )
    return replace(traced, graph=changed)
