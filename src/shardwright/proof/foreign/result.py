"""`ParallelProof`: the answer, with its certificate or its differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...ir.graph import SourceLine
from ..certificate import Trusted
from .judging import Difference

VERSION = 1


@dataclass(frozen=True)
class ParallelCertificate:
    """That what the ranks of a program leave behind is what the single program does.

    Shown: every output, gradient, new parameter and new state, as exact arithmetic over prime fields with any function
    for what is none, on the example's shapes and whole numbers.  Not shown: how floats are rounded, overflow, NaN, and
    that the libraries below do what they are asked.
    """

    mesh: str
    ops: int
    """Local ops of the longest rank."""
    collectives: int
    shown: tuple[str, ...]
    """What was compared, by name."""
    placed: tuple[tuple[str, str], ...]
    """How plain tensors are placed, as it was given or found."""
    primes: tuple[int, ...]
    trusted: tuple[Trusted, ...] = ()
    smaller: tuple[tuple[int, int], ...] = ()
    """Sizes that were reduced, and to what."""
    as_run: tuple[str, ...] = ()
    """Whole numbers that followed from floats and were taken as they were in the run."""

    def __str__(self) -> str:
        trust = f"; {len(self.trusted)} ops on trust" if self.trusted else ""
        small = "; sizes reduced" if self.smaller else ""
        own = [f"{name} is {placed}" for name, placed in self.placed if placed.startswith("P(")]
        small += "".join(f"; {text}" for text in own)
        return (
            f"proven equal to the single program on {self.mesh}: {len(self.shown)} tensors, {self.ops} ops and "
            f"{self.collectives} collectives a rank, modulo {' and '.join(map(str, self.primes))}{small}{trust}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION, "mesh": self.mesh, "ops": self.ops, "collectives": self.collectives,
            "shown": list(self.shown), "placed": [list(pair) for pair in self.placed], "primes": list(self.primes),
            "trusted": [[item.op, item.why] for item in self.trusted],
            "smaller": [list(pair) for pair in self.smaller], "as_run": list(self.as_run),
        }  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """The op where a wrong program begins to be wrong."""

    op: str
    source: SourceLine | None
    fact: str
    repair: str = ""
    """What was tried and makes everything right; empty if nothing did."""
    callers: tuple[str, ...] = ()
    """Of a collective: the lines from which it was called, the nearest first."""

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        where += f" (from {', '.join(self.callers)})" if self.callers else ""
        return f"{self.op}{where}: {self.fact}"


@dataclass(frozen=True)
class ParallelProof:
    """Whether a parallel program is equal to the single one; true if it is."""

    certificate: ParallelCertificate | None = None
    differences: tuple[Difference, ...] = ()
    cause: Cause | None = None
    """Where it begins to be wrong."""
    fact: str = ""
    """Why not, in one sentence."""
    rows: tuple[tuple[str, str], ...] = ()
    help: str = ""
    equal: int = 0
    """Of what was compared, so many are as they should be."""

    @property
    def proven(self) -> bool:
        return self.certificate is not None

    def __bool__(self) -> bool:
        return self.proven

    def to_json(self) -> dict[str, Any]:
        cause = None
        if self.cause is not None:
            at = str(self.cause.source) if self.cause.source else ""
            cause = {"op": self.cause.op, "at": at, "fact": self.cause.fact, "repair": self.cause.repair}
        return {
            "version": VERSION, "proven": self.proven,
            "certificate": self.certificate.to_json() if self.certificate is not None else None,
            "fact": self.fact, "rows": [list(row) for row in self.rows], "help": self.help, "cause": cause,
            "differences": [
                {"name": d.name, "fact": d.fact, "ranks": list(d.ranks), "looks_like": d.looks_like}
                for d in self.differences
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        if self.certificate is not None:
            return str(self.certificate)
        lines = [f"not proven: {self.fact}"]
        width = max(len(label) for label in ("help", *(label for label, _ in self.rows)))
        lines += [f"  {label:<{width}}  {text}" for label, text in self.rows]
        lines += [f"  {difference}" for difference in self.differences[:MOST_SHOWN]]
        if len(self.differences) > MOST_SHOWN:
            lines.append(f"  and {len(self.differences) - MOST_SHOWN} more")
        if self.cause is not None:
            lines.append(f"  begins at {self.cause}")
            if self.cause.repair:
                lines.append(f"  repair    {self.cause.repair} (tried: then all is equal)")
        if self.help:
            lines.append(f"  {'help':<{width}}  {self.help}")
        return "\n".join(lines)


MOST_SHOWN = 12
