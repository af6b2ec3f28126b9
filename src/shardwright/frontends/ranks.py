"""What the ranks of a parallel program do, as a proof sees it: `Traced`, and `Placed`, a rank's part of a tensor.

A rank's program is a graph of local ops, in which collectives are ops, too: ``comm.all_reduce``, ``comm.all_gather``,
``comm.reduce_scatter``, ``comm.all_to_all``, ``comm.broadcast``, ``comm.reduce``, ``comm.gather``, ``comm.scatter``,
``comm.barrier``, ``comm.send`` and ``comm.receive``.  Their attributes are ``group`` (ranks, in the group's order),
``reduce``, ``root``, ``tag``, ``channel`` and ``at``: calls of a group meet where channel and ``at`` are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.graph import Graph

COMMUNICATION = "comm."
"""What the names of collectives begin with."""
ARGUMENT, PARAMETER, COTANGENT, CONSTANT = "argument", "parameter", "cotangent", "constant"
"""What a program is given."""
OUTPUT, GRADIENT, STATE, BUFFER = "output", "gradient", "state", "buffer"
"""What a program leaves behind, beside new parameters."""

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Placed:
    """The part of a tensor of ``shape`` that lies at ``places``: some of every dim, or at flat indices."""

    shape: tuple[int, ...]
    places: tuple[Places, ...]
    flat: Places | None = None
    partial: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Ranks over which parts are to be combined, and how."""
    said: str = ""
    """In words."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        return self.flat.shape if self.flat is not None else tuple(len(rows) for rows in self.places)

    def of(self, whole: Any) -> Any:
        """The part of an array."""
        if self.flat is not None:
            return whole.reshape(-1)[self.flat]
        return whole[np.ix_(*self.places)] if self.places else whole

    def mark(self, seen: NDArray[np.bool_]) -> None:
        """Set the elements that are held."""
        if self.flat is not None:
            seen.reshape(-1)[self.flat] = True
        elif self.places:
            seen[np.ix_(*self.places)] = True
        else:
            seen[...] = True


def whole(shape: tuple[int, ...], said: str = "Replicate") -> Placed:
    return Placed(tuple(shape), tuple(np.arange(size) for size in shape), said=said)


@dataclass
class Given:
    """An input of a rank's program."""

    name: str
    kind: str
    placed: Placed | None = None
    """None: all of it."""
    numbers: Any = None
    """An array, of whole numbers, constants, and what parameters begin with."""
    shape: tuple[int, ...] = ()
    """Of the local tensor."""


@dataclass
class Left:
    """Something that a rank's program leaves behind: an output of its graph."""

    name: str
    kind: str
    placed: Placed | None = None
    """None: not known."""
    numbers: Any = None
    """An array, as it was in this run, if there were numbers."""
    of: str = ""
    """The parameter that it belongs to."""
    changed: bool = True
    """Whether the program has written it; buffers are left in any case."""

    @property
    def label(self) -> str:
        return self.name if self.kind in (OUTPUT, STATE, BUFFER) else f"{self.kind} of {self.name}"


@dataclass
class Traced:
    """What one rank did."""

    rank: int
    graph: Graph
    given: list[Given] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    known: Mapping[int, Any] = field(default_factory=dict)
    """Whole numbers that followed from floats, as they were in this run, by value of the graph."""
