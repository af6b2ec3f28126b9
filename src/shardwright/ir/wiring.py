"""A graph as arrays: what whole graphs are checked and compared by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from itertools import count as counter

import numpy as np
import numpy.typing as npt

from .nodes import Node, Operand, Value, flat_operands

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Wiring:
    """Nodes and values of a graph as arrays."""

    kind: Ints
    """Of nodes; equal where op, attributes and views are, and how many tensors go in and come out."""
    reads: Ints
    """Values, node by node."""
    first_read: Ints
    """Of each node its first one there, and last the end."""
    made: Ints
    first_made: Ints
    type: Ints
    """Of values, numbered."""

    @classmethod
    def of(cls, nodes: Sequence[Node], values: Sequence[Value]) -> Wiring:
        kinds, forms, types = numbers(), numbers(), numbers()
        operands: list[tuple[Operand, ...]] = [node.operands for node in nodes]
        results = [node.results for node in nodes]
        sizes, made = _sizes(operands), _sizes(results)
        form = np.zeros(len(nodes), np.int64)
        # Lists and what is absent: few nodes have any.
        first = _firsts(sizes)
        odd = [i for i, one in enumerate(chain.from_iterable(operands)) if one.__class__ is not int]
        for n in np.unique(np.searchsorted(first, odd, "right") - 1).tolist():
            form[n] = 1 + forms[tuple([len(o) if isinstance(o, tuple) else -(o is None) for o in operands[n]])]
            operands[n] = flat_operands(operands[n])
            sizes[n] = len(operands[n])
        kind = np.array([kinds[node.op, node.attrs, node.views] for node in nodes], np.int64)
        for more in (form, sizes, made):
            kind = kind * (1 + more.max(initial=0)) + more
        # Equal types are mostly one object.
        held = [value.type for value in values]
        where = list(map(id, held))
        number = {at: types[type.shape, type.dtype] for at, type in dict(zip(where, held)).items()}
        return cls(
            np.unique(kind, return_inverse=True)[1],
            np.fromiter(chain.from_iterable(operands), np.int64, int(sizes.sum())),
            _firsts(sizes),
            np.fromiter(chain.from_iterable(results), np.int64, int(made.sum())),
            _firsts(made),
            np.array([number[at] for at in where], np.int64),
        )

    @cached_property
    def reader(self) -> Ints:
        """The nodes that `reads` are of."""
        return np.repeat(np.arange(self.kind.size), np.diff(self.first_read))

    @cached_property
    def making(self) -> Ints:
        """The nodes that `made` are of."""
        return np.repeat(np.arange(self.kind.size), np.diff(self.first_made))

    @cached_property
    def maker(self) -> Ints:
        """The node that makes each value; -1: an input."""
        found = np.full(self.type.size, -1)
        found[self.made] = self.making
        return found

    def read_rows(self, start: int, period: int, count: int) -> slice:
        """Where all that a run reads is."""
        return slice(self.first_read[start], self.first_read[start + count * period])

    def made_rows(self, start: int, period: int, count: int) -> slice:
        return slice(self.first_made[start], self.first_made[start + count * period])


def numbers() -> defaultdict[object, int]:
    """A number for each that is asked for."""
    return defaultdict(counter().__next__)


def connected(count: int, groups: Iterable[Sequence[int]]) -> list[int]:
    """The components of so many things of which groups go together (union and find): of each its first member."""
    part = list(range(count))

    def root(at: int) -> int:
        while part[at] != at:
            part[at] = part[part[at]]
            at = part[at]
        return at

    for group in groups:
        roots = [root(at) for at in group]
        for at in roots:
            part[at] = min(roots)
    return [root(at) for at in range(count)]


def _sizes(lists: Sequence[Sequence[object]]) -> Ints:
    return np.fromiter(map(len, lists), np.int64, len(lists))


def _firsts(sizes: Ints) -> Ints:
    """Where each of some lists begins when they follow each other, and the end."""
    return np.concatenate([[0], np.cumsum(sizes)])
