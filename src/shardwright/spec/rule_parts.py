"""What sharding rules are made of: the data that is written, read and bound to shapes.  `rule` says what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

REDUCED_BY = ("sum", "max", "min", "prod")
SAME = "same"
"""What is said of a factor in a result that does not depend on it: every device computes that result alike."""
FLAG_WORDS = ("whole", "permuted", "new", "blocked")

Dim = tuple[str, ...]
Tensor = tuple[Dim, ...]
ELLIPSIS: Dim = ("...",)
ONE: Dim = ("1",)
"""A dim of size 1 that is broadcast: it has no factor to split."""


@dataclass(frozen=True, slots=True)
class FactorNote:
    """What is said of a factor after a semicolon, for all results or for one."""

    factor: str
    words: tuple[str, ...]
    result: int | None = None

    def __str__(self) -> str:
        where = "" if self.result is None else f"@{self.result}"
        return f"{self.factor}{where}: {' '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A line of the table of pending reductions: operands pending like this leave results pending like that.

    ``P(any)`` stands for any kind, the same in every place.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.operands)} -> {', '.join(self.results)}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rule as written, before `rule.RulePattern` can bind it."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    notes: tuple[FactorNote, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    def __str__(self) -> str:
        sides = [_side_text(self.operands), _side_text(self.results)]
        clauses = [" -> ".join(sides).strip(), *map(str, self.notes), *map(str, self.transfers)]
        return " ; ".join(clauses)


def _side_text(tensors: Sequence[Tensor]) -> str:
    def dim_text(dim: Dim) -> str:
        return dim[0] if len(dim) == 1 else f"({' '.join(dim)})"

    return ", ".join(" ".join(map(dim_text, tensor)) or "()" for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor with its size and what may be done with it."""

    name: str
    size: int
    whole: bool = False
    permuted: bool = False
    blocked: bool = False
    broadcast: bool = False
    """Stands for a ``1``: a size-1 dim that other tensors do not have."""
    form: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        flags = (("whole", self.whole), ("permuted", self.permuted), ("blocked", self.blocked))
        words = tuple(word for word, on in flags if on)
        return (*words, f"form({self.form})") if self.form else words


Mapped = tuple[tuple[int, ...], ...]
"""One tensor: the factors of each dim, major to minor, as indices."""
