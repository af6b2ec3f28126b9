"""`Shared`: what several ranks compute alike is computed once.

What ranks have gathered, or hold as copies, is one `Number` for all of them.  The same op on the same numbers gives the
same result, on whichever rank, so only the first rank to come to it computes; the others are handed its result.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import NamedTuple
from weakref import WeakSet

from ...ir.graph import Node, TensorType
from .meanings import Operand, flatten
from .numbers import Number

HELD = 1 << 23
"""So many numbers are held for ranks that have not come to them; the oldest go first."""


class _Held(NamedTuple):
    operands: list[Number]
    """Kept, lest another number comes to lie at the same address."""
    made: list[Number]
    size: int
    fetched: list[None]
    """One for every rank that has come."""


class Shared:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._common: WeakSet[Number] = WeakSet()
        """Numbers that are on several ranks."""
        self._held: dict[Hashable, _Held] = {}
        self._size = 0

    def add(self, numbers: Iterable[Number]) -> None:
        """These are on several ranks."""
        self._common.update(numbers)

    def key(self, node: Node, types: Sequence[TensorType], operands: Sequence[Operand]) -> Hashable:
        """What the results of an op depend on; None if it is of one rank alone."""
        if self._ranks == 1 or node.op.startswith("foreign."):
            return None
        flat = flatten(operands)
        if not all(x in self._common for x in flat):
            return None
        places = tuple(None if o is None else len(o) if isinstance(o, list) else -1 for o in operands)
        return node.op, node.attrs, tuple(types), places, tuple(map(id, flat))

    def find(self, key: Hashable) -> list[Number] | None:
        """What another rank has computed."""
        held = self._held.get(key) if key is not None else None
        if held is None:
            return None
        held.fetched.append(None)
        if len(held.fetched) == self._ranks - 1:
            self._drop(key)
        return held.made

    def hold(self, key: Hashable, operands: Sequence[Operand], made: list[Number]) -> None:
        if key is None:
            return
        self.add(made)
        size = sum(prod(x.shape) for x in made)
        self._held[key] = _Held(flatten(operands), made, size, [])
        self._size += size
        while self._size > HELD:
            self._drop(next(iter(self._held)))

    def _drop(self, key: Hashable) -> None:
        self._size -= self._held.pop(key).size
