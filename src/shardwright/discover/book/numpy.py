"""Our own rule book against what discovery finds: ``shardwright discover --book numpy``.

Each sample of the NumPy frontend is traced; every node of the op becomes an operator (its kernel, attributes fixed)
with a sample of its own.  The rule's factors and transfer table say which rows should hold; the oracle says which do.
A row that does not hold is an error of the book.  A row that the book lacks is either taken up or explained in the
op's record (``beyond``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import ShardwrightError
from ...frontends.numpy import prepare, trace
from ...frontends.numpy.samples import SAMPLES, arguments
from ...frontends.numpy.samples import Sample as Call
from ...ir.graph import Graph, Node, TensorType
from ...rules.registry import node_rule
from ..operator import Array, NumpyLibrary, Operator, Role, Sample, Slot
from .compare import Comparison, Study, compare, text_of

SIZES = ((6, 10), (4, 9))
"""Sizes of the dims that get split."""


def check_book(ops: Sequence[str] | None = None) -> list[Comparison]:
    """Compare every op of the NumPy rule book, or these."""
    return [compare_op(op) for op in (ops or sorted(SAMPLES)) if SAMPLES.get(op)]


def compare_op(op: str) -> Comparison:
    """Compare the rule of one op on all its samples."""
    return compare(op, _studies(op))


def _studies(op: str) -> Iterator[Study]:
    """Every node of the op in its samples, as an operator with a call of its own."""
    for call in SAMPLES[op]:
        for sizes in SIZES:
            drawn = _drawn(op, call, sizes, shift=0)
            again = _drawn(op, call, sizes, shift=1)
            for number, (graph, node, arrays) in enumerate(drawn):
                other = again[number][2] if number < len(again) else arrays
                same = [a.shape for a in other] == [a.shape for a in arrays]
                operator, sample = _as_operator(graph, node, arrays, call)
                yield operator, sample, [sample.with_tensors(tuple(other))] if same else [], node_rule(graph, node)


def _drawn(op: str, call: Call, sizes: tuple[int, int], shift: int) -> list[tuple[Graph, Node, list[Array]]]:
    """The op's nodes in a sample, with the arrays that reach them."""
    args = arguments(call, sizes, call.dtypes[0])
    if shift:  # other numbers of the same domain: the same ones in another order
        rng = np.random.default_rng(shift)
        args = [array if array.dtype.kind in "iu" and array is not args[0] else _mixed(array, rng) for array in args]
    try:
        traced = trace(call.fn, *args)
    except (ShardwrightError, ValueError):
        return []
    graph = traced.graph
    values: dict[int, Array] = dict(zip(graph.inputs, [*args, *map(np.asarray, traced.consts)]))
    found = []
    for node in graph.nodes:
        if node.op == op:
            found.append((graph, node, [values[value] for value in node.inputs]))
        values.update(zip(node.results, _computed(graph, node, [values[v] for v in node.inputs], None)))
    return found


def drawn_calls(op: str, call: Call, sizes: tuple[int, int]) -> Iterator[tuple[Node, list[Any], tuple[Array, ...]]]:
    """The op's nodes in a sample, with their operands and what is computed of them."""
    for graph, node, arrays in _drawn(op, call, sizes, shift=0):
        yield node, _operands(node, arrays), _computed(graph, node, arrays, None)


def _mixed(array: Array, rng: np.random.Generator) -> Array:
    return np.asarray(rng.permutation(array.reshape(-1)).reshape(array.shape))


def _computed(graph: Graph, node: Node, flat: Sequence[Any], shape: Sequence[int] | None) -> tuple[Array, ...]:
    """A node on these arrays; `shape` is that of the first result, if it is another one than the node's."""
    types = list(graph.types(node.results))
    if shape is not None and tuple(shape) != types[0].shape:
        cut = [d for d, (here, there) in enumerate(zip(shape, types[0].shape)) if here != there]
        types = [TensorType(_cut(t.shape, types[0].shape, shape, cut), t.dtype) for t in types]
    return prepare(node.op, dict(node.attrs), types)(_operands(node, flat))


def _operands(node: Node, flat: Sequence[Any]) -> list[Any]:
    rest = iter(flat)
    return [
        None if o is None else [next(rest) for _ in o] if isinstance(o, tuple) else next(rest) for o in node.operands
    ]


def _cut(mine: tuple[int, ...], first: tuple[int, ...], shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """A result's shape, cut where the first result's is."""
    return tuple(
        shape[d] if d in dims and len(mine) == len(first) and mine[d] == first[d] else size
        for d, size in enumerate(mine)
    )


def _as_operator(graph: Graph, node: Node, arrays: list[Array], call: Call) -> tuple[Operator, Sample]:
    def run(*flat: Any, shape: Sequence[int]) -> tuple[Array, ...]:
        return _computed(graph, node, flat, shape)

    indexed = call.domain == "index" or any(":" in text for text in call.shapes)
    roles: list[Role] = []
    for array in arrays:
        index = indexed and array.dtype.kind in "iu"
        roles.append("index" if index else "mask" if array.dtype.kind == "b" else "data")
    slots = tuple(map(Slot, range(len(arrays))))
    first = list(graph.types(node.results)[0].shape)
    return Operator(node.op, run, NumpyLibrary()), Sample(slots, {"shape": first}, tuple(arrays), tuple(roles))


__all__ = ["Comparison", "check_book", "compare_op", "text_of"]
