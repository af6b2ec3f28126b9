"""`Certificate`: what was shown of a Program, and what is taken on trust."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..ir.program import Program
from ..rules.registry import find
from .fields.handlers import HANDLERS

VERSION = 1


@dataclass(frozen=True, slots=True)
class Trusted:
    """An op that the proof takes somebody's word for."""

    op: str
    why: str

    def __str__(self) -> str:
        return f"{self.op}: {self.why}"


@dataclass(frozen=True)
class Certificate:
    """That a Program computes what a Graph does.

    Shown: that the Program is well-formed, and that each of its outputs is equal to the Graph's, as exact arithmetic
    over prime fields with any function for what is not arithmetic; element types included.  Not shown: how floats are
    rounded, NaN and infinities beyond those written in the program, overflow, and that the engine and the libraries
    below it do what a Program says.
    """

    graph: str
    """Hash of the graph as captured."""
    program: str
    """Hash of the Program."""
    instructions: int
    lemmas: int
    """Steps of the proof; see `lemmas`."""
    distinct: int
    """Of which so many differ."""
    smaller: int
    """Of which so many were shown at smaller sizes than their own."""
    whole: bool
    """Whether it took the Program in one piece."""
    primes: tuple[int, ...]
    trusted: tuple[Trusted, ...] = ()
    """What is taken on trust: rules from outside first."""

    def __str__(self) -> str:
        trust = f"; {len(self.trusted)} ops on trust" if self.trusted else ""
        return (
            f"proven equal to the program as captured: {self.instructions} instructions, {self.lemmas} lemmas "
            f"({self.distinct} differ), modulo {' and '.join(map(str, self.primes))}{trust}"
        )

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Certificate:
        """The inverse of `to_json`: for what another rank says, never for what a file does."""
        rest = {key: value for key, value in record.items() if key not in ("version", "primes", "trusted")}
        trusted = tuple(Trusted(op, why) for op, why in record["trusted"])
        return Certificate(**rest, primes=tuple(record["primes"]), trusted=trusted)

    def to_json(self) -> dict[str, Any]:
        """No times: equal programs have equal certificates."""
        return {
            "version": VERSION, "graph": self.graph, "program": self.program, "instructions": self.instructions,
            "lemmas": self.lemmas, "distinct": self.distinct, "smaller": self.smaller, "whole": self.whole,
            "primes": list(self.primes), "trusted": [[item.op, item.why] for item in self.trusted],
        }  # fmt: skip


def trusted_ops(program: Program, outside: Mapping[str, str]) -> Iterable[Trusted]:
    """Ops that are known by their rule, by their author's word, or not at all; ``outside`` are rules from elsewhere."""
    ops = sorted({instr.op for instr in program.instrs if not instr.axes})
    yield from (Trusted(op, outside[op]) for op in ops if op in outside)
    for op in ops:
        record = None if op in HANDLERS or op in outside else find(op)
        if record is None:
            if op not in HANDLERS and op not in outside and not op.startswith("core."):
                yield Trusted(op, "nothing is known of it: it runs on whole tensors")
        elif record.meaning is None and record.random:
            yield Trusted(op, "nothing is known of it: it runs on whole tensors")
        elif record.meaning in (None, "by rule", "attention"):
            yield Trusted(op, "that it has the properties that its rule states, and no more")
        elif callable(record.meaning):
            yield Trusted(op, "the meaning that its author gave")
