"""How a tensor lies on one mesh axis, as the oracle names it: replicated, sharded on a dim, or pending.

>>> str(S(0)), str(P("max")), parse_placement("P(sum)") is P("sum")
('S(0)', 'P(max)', True)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

KINDS = ("sum", "avg", "max", "min", "prod")
"""How a pending tensor is finished."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """One of R, S(dim), P(reduce).  Made by `S`, `P` and `R`: equal placements are the same object, and compared so."""

    kind: Literal["R", "S", "P"]
    dim: int = -1
    reduce: str = ""

    def __str__(self) -> str:
        return "R" if self.kind == "R" else f"S({self.dim})" if self.kind == "S" else f"P({self.reduce})"

    __repr__ = __str__


R = Placement("R")


@cache
def S(dim: int) -> Placement:
    """Sharded on a dim."""
    return Placement("S", dim=dim)


@cache
def P(reduce: str = "sum") -> Placement:
    """Pending: the tensor is the sum (or max, ...) of what the devices hold."""
    if reduce not in KINDS:
        raise ValueError(f"a pending tensor is finished by one of {', '.join(KINDS)}, not by {reduce!r}")
    return Placement("P", reduce=reduce)


def parse_placement(text: str) -> Placement:
    """The placement that prints like this."""
    found = re.fullmatch(r"R|S\((\d+)\)|P\((\w+)\)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no placement: R, S(dim) or P(kind)")
    if found[1] is not None:
        return S(int(found[1]))
    return R if found[2] is None else P(found[2])


def placements(rank: int, kinds: tuple[str, ...] = KINDS) -> tuple[Placement, ...]:
    """Every placement of a tensor of this rank."""
    return (R, *(S(dim) for dim in range(rank)), *(P(kind) for kind in kinds))


COPIES = (R, P("avg"), P("max"), P("min"))
"""How equal copies lie: they are a pending average, too."""


def at_least(strong: Placement, weak: Placement) -> bool:
    """Whether a tensor that lies like `strong` also lies like `weak`."""
    return strong is weak or (strong is R and weak in COPIES)
