"""`Assignment`: what a solver found for a graph, and how good that is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..cost.machine import Hardware
from ..cost.overlap import graph_roles
from ..cost.program import ProgramCost
from ..plans.complete import Complete
from .price import price
from .repeated.layers import Short


@dataclass(frozen=True)
class Assignment:
    """Complete shardings for a graph, what they cost, and how good that is."""

    decode: Callable[[], Complete] = field(repr=False, compare=False)
    """Makes the complete shardings: many plans are found, and few of them are looked at as a whole."""
    objective: int
    """Picoseconds that show, as the lowered Program will have them."""
    lower_bound: int
    """No choice of strategies, of shardings of inputs and of copies costs less."""
    solver: str
    timed_out: bool
    seconds: float
    hardware: Hardware = field(repr=False)
    short: tuple[Short, Complete] | None = field(default=None, repr=False)
    """The short graph by which a deep stack of equal layers was solved, and complete shardings of that."""
    decided: Hashable = field(default=None, repr=False)
    """What tells the plan of a deep stack from others; None: its complete shardings do."""

    @cached_property
    def complete(self) -> Complete:
        return self.decode()

    @property
    def gap(self) -> float:
        return max(0.0, (self.objective - self.lower_bound) / max(self.objective, 1))

    @cached_property
    def cost(self) -> ProgramCost:
        """In parts."""
        return price(self.complete, self.hardware, graph_roles(self.complete.graph))


@dataclass(frozen=True, slots=True)
class Optimum:
    """What solves one of the two problems."""

    choice: Sequence[int]
    lower_bound: int
    """In picoseconds, for both."""
    solver: str
    timed_out: bool


__all__ = ["Assignment", "Optimum"]
