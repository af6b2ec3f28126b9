"""Programs and mutants judged by the proof and by real numbers, and counted."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from foreign.mistakes import mutants
from foreign.programs import Subject, draw
from foreign.real import different
from shardwright.errors import VerifyError
from shardwright.proof.foreign import Case, judge
from shardwright.proof.foreign.proving import ROUNDS
from shardwright.proof.foreign.rounds import Round
from shardwright.torch.proving import _Proving


@dataclass
class Row:
    """What became of the mutants of one kind."""

    made: int = 0
    stopped: int = 0
    """Those that give no result: ranks wait for each other, or shapes do not fit."""
    changing: int = 0
    refused: int = 0
    """Of those that change a result."""
    equal_refused: int = 0
    """Refused although no number of the runs differs."""


@dataclass
class Tally:
    programs: int = 0
    alarms: list[str] = field(default_factory=list)
    """Correct programs that are refused."""
    broken: list[str] = field(default_factory=list)
    """Programs that are not correct, by real numbers: mistakes of the generator."""
    rows: dict[str, Row] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    """Mutants that are refused, and of which no cause could be named for an error."""

    def add(self, other: Tally) -> None:
        self.programs += other.programs
        for name in ("alarms", "broken", "survivors", "crashes"):
            getattr(self, name).extend(getattr(other, name))
        for kind, row in other.rows.items():
            held = self.rows.setdefault(kind, Row())
            for name in ("made", "stopped", "changing", "refused", "equal_refused"):
                setattr(held, name, getattr(held, name) + getattr(row, name))

    def total(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.rows.values())


def traced(subject: Subject) -> Case:
    """What `prove` would judge."""
    return _Proving(
        subject.parallel, subject.like, subject.mesh, subject.inputs, subject.placements, subject.loss
    ).case()


@contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def judged(seed: int, count: int, causes: bool = False) -> Tally:
    """The program of a seed, and so many mutants of it; of those that are refused the causes, too."""
    tally = Tally(programs=1)
    with _silence():
        subject = draw(seed)
        try:
            case = traced(subject)
        except Exception as error:
            tally.alarms.append(f"{subject.name}\n{type(error).__name__}: {error}")
            return tally
        wrong = different(case)
        if wrong:
            tally.broken.append(f"{subject.name}: {', '.join(wrong[:4])}")
            return tally
        proof = judge(case)
        if not proof:
            tally.alarms.append(f"{subject.name}\n{proof}")
            return tally
        for i, mutant in enumerate(mutants(case, seed, count)):
            _judge(tally, f"{subject.name}, mutant {i}", mutant.kind, mutant.case, causes)
    return tally


def is_refused(case: Case) -> bool:
    """What `judge` says, without looking for the cause."""
    try:
        return any(Round(case, turn).differences()[0] for turn in range(ROUNDS))
    except VerifyError:
        return True


def _judge(tally: Tally, name: str, kind: str, case: Case, causes: bool) -> None:
    row = tally.rows.setdefault(kind, Row())
    row.made += 1
    refused = is_refused(case)
    if causes and refused:
        try:
            assert not judge(case)
        except Exception as error:
            tally.crashes.append(f"{name}, {kind}: {type(error).__name__}: {error}")
    try:
        wrong = different(case)
    except Exception:
        row.stopped += 1
        return
    if not wrong:
        row.equal_refused += refused
        return
    row.changing += 1
    row.refused += refused
    if not refused:
        tally.survivors.append(f"{name}, {kind}: {', '.join(wrong[:4])}")
