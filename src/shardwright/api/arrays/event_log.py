"""A flat log of what sharded arrays do: time, number, event, op or collective, axis, bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Entry(NamedTuple):
    """One step.  ``event`` is create, scatter, broadcast, op, collective or gather."""

    time: float
    number: int
    event: str
    name: str
    axis: str
    bytes: int

    def __str__(self) -> str:
        axis = f" over {self.axis}" if self.axis else ""
        return f"{self.time:10.6f}  {self.number:5d}  {self.event:<10}  {self.name}{axis}  {self.bytes} B"


@dataclass
class Log:
    """Entries in order; the newest ``limit`` are kept."""

    limit: int = 10_000
    entries: list[Entry] = field(default_factory=list)
    _count: int = 0
    _start: float = field(default_factory=time.perf_counter)

    def add(self, event: str, name: str, axis: str = "", bytes: int = 0) -> None:
        self._count += 1
        self.entries.append(Entry(time.perf_counter() - self._start, self._count, event, name, axis, bytes))
        if len(self.entries) > self.limit:
            del self.entries[: self.limit // 2]

    def clear(self) -> None:
        self.entries.clear()

    def events(self, event: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.event == event]

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))


log = Log()
"""The log of this process."""
