"""How long a rank may be waited for: judged by what it is doing.

| a rank is | others may wait for it |
|---|---|
| in a phase that has a name: planning, proving, compiling, loading, saving | as long as it lasts |
| in a step | `Limits.step`, 60 s, counted from when the last rank entered it |
| in user code between steps | `Limits.user`, 600 s |

After `NOTICE` seconds a line on stderr says who is waited for.  ``timeout=`` of an engine and ``SHARDWRIGHT_TIMEOUT``
set both limits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ....errors import SpecError
from .processes import Fault, ranks_text

NOTICE = 60.0
STEP, PHASE, USER = "step", "phase", "user"
MORE = "timeout= or SHARDWRIGHT_TIMEOUT allow more"


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    step: float = 60.0
    user: float = 600.0

    @property
    def shortest(self) -> float:
        return min(self.step, self.user, NOTICE)


def limits_of(timeout: float | None = None) -> Limits:
    """What a user asked for, or the environment, or nobody.

    >>> limits_of(12.5)
    Limits(step=12.5, user=12.5)
    """
    said: object = os.environ.get("SHARDWRIGHT_TIMEOUT") if timeout is None else timeout
    if said is None:
        return Limits()
    try:
        seconds = float(said)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0:
        where = "SHARDWRIGHT_TIMEOUT" if timeout is None else "timeout="
        raise SpecError(f"{where} is {said!r}", help="give a number of seconds above 0")
    return Limits(seconds, seconds)


class Doing(NamedTuple):
    """What a rank is doing."""

    entered: int
    """How many steps it has begun."""
    kind: str
    what: str
    """The name of the step or phase; in user code, the step before it."""
    seconds: float
    """Since when."""

    def to_text(self) -> str:
        return json.dumps([*self, time.time()])

    @classmethod
    def from_text(cls, text: str, age: float = 0.0) -> Doing:
        """``age``: how long nothing newer was heard."""
        entered, kind, what, seconds, _ = json.loads(text)
        return cls(entered, kind, what, seconds + age)

    @property
    def place(self) -> str:
        return "user code" if self.kind == USER else self.what


@dataclass
class Activity:
    """What this rank's main thread is doing: a stack, since a step may be part of a phase, and a phase of a step.

    Written by the main thread at every step, so nothing is done here that takes time; read by others at any time.
    """

    entered: int = 0
    doing: str = ""
    """The step that was entered last."""
    _frames: list[list[object]] = field(default_factory=list)
    _outside: float = field(default_factory=time.monotonic)

    def enter_step(self, what: str) -> None:
        self.entered += 1
        self.doing = f"step {self.entered} ({what})"
        self._frames.append([STEP, self.doing, time.monotonic()])

    def enter_phase(self, name: str) -> None:
        self._frames.append([PHASE, name, time.monotonic()])

    def leave(self) -> None:
        self._frames.pop()
        now = time.monotonic()
        if self._frames:
            self._frames[-1][2] = now
        else:
            self._outside = now

    def now(self) -> Doing:
        frames = self._frames[-1:]
        kind, what, since = frames[0] if frames else (USER, self.doing, self._outside)
        return Doing(self.entered, str(kind), str(what), time.monotonic() - since)  # type: ignore[operator]

    @property
    def in_step(self) -> bool:
        return any(frame[0] is STEP for frame in list(self._frames))

    def forgive(self, seconds: float) -> None:
        """This process did not run for a while: that is nobody's waiting."""
        self._outside += seconds
        for frame in list(self._frames):
            frame[2] += seconds  # type: ignore[operator]


def judge(
    rank: int, mine: Doing, others: Mapping[int, Doing], limits: Limits, runs_ahead: bool = False
) -> tuple[Fault | None, dict[int, str]]:
    """Whether somebody was waited for too long; and, of ranks that one has to wait for, what to say about them.

    ``runs_ahead``: the device works while Python goes on, so that user code may wait for a step, too.
    """
    if mine.kind != STEP and not (runs_ahead and mine.kind == USER):
        return None, {}
    late: dict[int, float] = {}
    notes: dict[int, str] = {}
    for other, doing in others.items():
        if doing.entered > mine.entered or (doing.entered == mine.entered and doing.kind != PHASE):
            continue
        waited = min(mine.seconds, doing.seconds)
        limit = {STEP: limits.step, USER: limits.user}.get(doing.kind, float("inf"))
        if waited > limit:
            late[other] = limit
        notes[other] = f"rank {other} has been in {doing.place} for {doing.seconds:.0f} s, others wait in {mine.what}"
    if late:
        where = sorted({others[other].place for other in late})
        reason = f"did not arrive at {mine.what} within {max(late.values()):g} s, but stayed in {', '.join(where)}"
        return Fault(tuple(sorted(late)), f"{reason} ({MORE})"), {}
    if notes or mine.kind != STEP:
        return None, {other: text for other, text in notes.items() if min(mine.seconds, others[other].seconds) > NOTICE}
    return _unfinished(rank, mine, others, limits), {}


def _unfinished(rank: int, mine: Doing, others: Mapping[int, Doing], limits: Limits) -> Fault | None:
    """All have arrived: then the step itself takes too long."""
    inside = {other: doing for other, doing in others.items() if doing[:2] == (mine.entered, STEP)}
    if min([mine.seconds, *(doing.seconds for doing in inside.values())]) <= limits.step:
        return None
    stuck = tuple(sorted([rank, *inside]))
    all_of_them = len(stuck) == len(others) + 1
    rest = "all have arrived" if all_of_them else f"{ranks_text(sorted(set(others) - set(stuck)))} went on"
    return Fault(stuck, f"did not finish {mine.place} within {limits.step:g} s; {rest} ({MORE})")
