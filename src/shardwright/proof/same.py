"""Whether two graphs are the same program: the one as captured, and the one that passes before planning made of it.

Both are numbered from their inputs on: equal ops with equal attributes of equal operands are one number, and what hands
its operand on (constraints, barriers, copies) has that one's.  A call of attention is numbered by what is read of it
(`rules.reading`): which keys a query sees, and which heads are shared, whether a mask says the one and copies make the
other, or attributes do.  Where a pass has put one op in the place of several, the
claim that it computes what they do is a lemma of its own, shown as those of Programs are: over prime fields, with the
op in its parts.  Both sides of it are formulas over real numbers: where they round is what such a pass may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import VerifyError
from ..ir.graph import Graph, GraphBuilder, Node, Operand, TensorType
from ..ir.program import Instr, Local, Program
from ..rules.reading import Attention, Positions, attention_of
from ..rules.reading.repeats import summed_to
from ..rules.registry import edition, find
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .fields.pointwise import IDENTITY
from .identity import check_lemma
from .lemmas import Lemma

ROW = 3
"""How many elements stand for those of a tensor that ops treat one by one."""
_equal: dict[tuple[object, ...], bool] = {}
"""Claims that were looked at, with the edition of the rule book."""


def check_same(captured: Graph, planned: Graph) -> None:
    """Refuse a planned graph that computes something else than the captured one."""
    if captured is planned or captured == planned:
        return
    numbers: dict[Any, int] = {}
    ours = _numbered(captured, numbers)
    theirs = _numbered(planned, numbers, _Claims(captured, planned, ours))
    pairs = [(ours[a], theirs[b]) for a, b in zip(captured.outputs, planned.outputs)]
    if len(captured.outputs) != len(planned.outputs) or any(a != b for a, b in pairs):
        wrong = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        raise VerifyError(
            f"the planned graph computes another output {wrong} than the program as captured",
            rows=[
                (
                    "passes",
                    "before planning constraints, copies and the words of attention may change, and ops become one",
                )
            ],
        )
    if sorted(captured.updates) != sorted(planned.updates):
        raise VerifyError("the planned graph updates other inputs than the program as captured")


def _numbered(graph: Graph, numbers: dict[Any, int], claims: _Claims | None = None) -> dict[int, int]:
    """The number of every value; ``claims`` tell which are those of another graph."""

    def number(what: Any) -> int:
        return numbers.setdefault(what, len(numbers))

    found: dict[int, int] = {}
    sums: dict[int, int] = {}  # gradients of repeated heads, summed
    positions = Positions(graph)
    for i, value in enumerate(graph.inputs):
        found[value] = number(("input", i, graph.type(value)))
    for n, node in enumerate(graph.nodes):
        if node.op in IDENTITY and len(node.inputs) == len(node.results) == 1:
            found[node.results[0]] = found[node.inputs[0]]
            continue
        call = attention_of(graph, node, positions)
        if call is not None:
            named = _attention(call, found)
        else:
            operands = tuple(
                tuple(found[v] for v in o) if isinstance(o, tuple) else None if o is None else found[o]
                for o in node.operands
            )
            named = (node.op, operands, repr(node.attrs))
        for r, value in enumerate(node.results):
            found[value] = sums[value] if value in sums else number((named, r, graph.type(value)))
            if call is not None and call.is_backward and call.groups > 1 and not call.is_grouped and r in (1, 2):
                summed = summed_to(graph, value, call.groups)
                if summed is not None:
                    sums[summed[0]] = number((named, r, graph.type(summed[0])))
        if claims is not None:
            found.update(claims.shown(n, found))
    return found


def _attention(call: Attention, found: Mapping[int, int]) -> tuple[Any, ...]:
    """All that a call of attention computes depends on."""
    tensors = tuple(found[v] for v in (*call.around, call.query, call.key, call.value))
    mask = None if call.mask is None else found[call.mask]
    return "attention", call.is_backward, tensors, mask, str(call.band), call.groups, repr(call.options)


class _Claims:
    """That an op of the planned graph computes what several of the captured one do."""

    def __init__(self, captured: Graph, planned: Graph, numbers: Mapping[int, int]) -> None:
        self.captured, self.planned, self.numbers = captured, planned, numbers
        self.old = {node.op for node in captured.nodes}
        self.becomes = dict(zip(planned.outputs, captured.outputs))
        """Outputs are told by their place, so an op is known by those of its results that are returned."""
        self.first: dict[int, int] = {}
        for value, number in numbers.items():
            self.first.setdefault(number, value)

    def shown(self, n: int, found: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Results of a planned node with the numbers of the captured values that they are."""
        node = self.planned.nodes[n]
        record = None if node.op in self.old else find(node.op)
        if record is None or record.meaning != "parts" or not all(value in self.becomes for value in node.results):
            return
        values = [self.becomes[value] for value in node.results]
        same_types = self.captured.types(values) == self.planned.types(node.results)
        if same_types and self.holds(node, [found[v] for v in node.inputs], values):
            yield from zip(node.results, (self.numbers[value] for value in values))

    def holds(self, node: Node, reads: Sequence[int], values: Sequence[int]) -> bool:
        shape = self.planned.type(node.results[0]).shape
        many = self.part(list(dict.fromkeys(reads)), values, shape)
        if many is None:
            return False
        one = self.alone(node, shape)
        places = list(dict.fromkeys(reads))
        lemma = Lemma(many, one, tuple(places.index(number) for number in reads))
        key = (edition(), lemma.key)
        if key not in _equal:
            try:
                check_lemma(lemma)
                _equal[key] = True
            except VerifyError:
                _equal[key] = False
        return _equal[key]

    def part(self, reads: Sequence[int], values: Sequence[int], shape: Sequence[int]) -> Graph | None:
        """The captured ops between values with these numbers and these values; None if they are not elementwise."""
        graph, builder = self.captured, GraphBuilder("many")
        if any(number not in self.first for number in reads):
            return None
        types = {number: _small(graph.type(self.first[number]), shape) for number in reads}
        if None in types.values():
            return None
        made = {number: builder.input(type, name=f"read{i}") for i, (number, type) in enumerate(types.items()) if type}
        waiting = [self.numbers[value] for value in reversed(values)]
        while waiting:
            number = waiting[-1]
            n = None if number in made else graph.node_of(self.first[number])
            if number in made or n is None:
                if number not in made:
                    return None  # an input that the op does not read
                waiting.pop()
                continue
            node = graph.nodes[n]
            missing = [self.numbers[v] for v in node.inputs if self.numbers[v] not in made]
            if missing:
                waiting += missing
                continue
            results = [_small(type, shape) for type in graph.types(node.results)]
            if None in results:
                return None
            operands: list[Operand] = [
                tuple(made[self.numbers[v]] for v in o) if isinstance(o, tuple) else None if o is None
                else made[self.numbers[o]]
                for o in node.operands
            ]  # fmt: skip
            new = builder.op(node.op, operands, [t for t in results if t is not None], attrs=dict(node.attrs))
            made.update(zip((self.numbers[v] for v in node.results), (new,) if isinstance(new, int) else new))
        return builder.finish([made[self.numbers[value]] for value in values])

    def alone(self, node: Node, shape: Sequence[int]) -> Program:
        """The planned op by itself, on one device."""
        mesh = DeviceMesh("d=1")
        types = [_small(type, shape) for type in self.planned.types((*node.inputs, *node.results))]
        values = tuple(
            Local(i, type, ShardingSpec.replicate(mesh, type.rank), str(i)) for i, type in enumerate(types) if type
        )
        count = len(node.inputs)
        flat = iter(range(count))
        operands: tuple[Operand, ...] = tuple(
            tuple(next(flat) for _ in o) if isinstance(o, tuple) else None if o is None else next(flat)
            for o in node.operands
        )
        results = tuple(range(count, len(types)))
        return Program(
            "one", mesh, values, (Instr(node.op, operands, results, node.attrs),), tuple(range(count)), results
        )


def _small(type: TensorType, shape: Sequence[int]) -> TensorType | None:
    """What stands for a type in a claim: a row for a tensor of this shape, or a number; None for any other."""
    if type.dtype[:1] not in ("f", "b") or type.dtype == "bool":
        return None
    return TensorType((), "f64") if not type.shape else TensorType((ROW,), "f64") if type.shape == shape else None
