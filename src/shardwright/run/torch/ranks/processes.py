"""Where a rank runs, and whether its process is there: what the kernel of this machine says, without asking anybody."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Why the job cannot go on."""

    ranks: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        return f"{ranks_text(self.ranks)} {self.reason}"


def ranks_text(ranks: Iterable[int]) -> str:
    """
    >>> ranks_text([2]), ranks_text([0, 3])
    ('rank 2', 'ranks 0, 3')
    """
    words = [str(rank) for rank in ranks]
    return f"rank{'s' if len(words) != 1 else ''} {', '.join(words)}"


@dataclass(frozen=True)
class Process:
    """Where a rank runs.  The start time tells a process from a later one of the same number."""

    host: str
    """Processes of one host can look at each other: same kernel, same numbers."""
    pid: int
    started: str

    @classmethod
    def this(cls) -> Process:
        return cls(own_host(), os.getpid(), (_stat(os.getpid()) or ("", ""))[1])

    @property
    def fields(self) -> list[str | int]:
        return [self.host, self.pid, self.started]

    def state(self) -> str:
        """As the kernel writes it, such as ``R`` or ``T``; empty if the process is gone or only waits to be buried."""
        now = _stat(self.pid)
        return now[0] if now is not None and now[1] == self.started else ""


def own_host() -> str:
    """Empty where the system has no `/proc`: then beats alone tell."""
    boot = _boot()
    try:
        return boot and boot + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def own_machine() -> str:
    """The machine, for all its containers."""
    return _boot() or socket.gethostname()


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start time."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (fields[0], fields[19])
