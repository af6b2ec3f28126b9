"""What was predicted for a training step beside what it took: time and memory, in one line."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from ...cost.machine import Hardware
from ...cost.profile import RESIDENT, program_memory
from ...cost.schedule import step_time
from ...ir.program import Program
from ...plans import duration, gibibytes

CALL_MEASURED = 20
"""The call whose memory is measured: by then caches and allocators have settled."""
_PICOSECONDS = 10**12


class Measured:
    """Times of calls, as a user sees them: from one to the next; and the memory of one call."""

    def __init__(self) -> None:
        self.calls = 0
        self.starts: deque[float] = deque(maxlen=CALL_MEASURED + 1)
        self.memory = 0

    def begin(self, engine: Any) -> None:
        self.calls += 1
        self.starts.append(time.perf_counter())
        if hasattr(engine, "measuring"):
            engine.measuring = self.calls == CALL_MEASURED

    def end(self, engine: Any, peak: int) -> None:
        self.memory = max(self.memory, peak)
        if getattr(engine, "measuring", False):
            engine.measuring = False
            self.starts.clear()  # counting bytes took time

    @property
    def seconds(self) -> float | None:
        times = list(self.starts)
        return median(b - a for a, b in pairwise(times)) if len(times) > 2 else None

    def line(self, programs: Mapping[str, Program], runs: int, hardware: Hardware, every: Iterable[Program]) -> str:
        """``runs`` is how often the gradients of one step are computed; ``every`` program that ran takes memory."""
        times = {"gradients": runs}
        on = hardware.on(next(iter(programs.values())).mesh)
        said = sum(step_time(p, on).total * times.get(name, 1) for name, p in programs.items())
        held = max(program_memory(program, RESIDENT) for program in every)
        took = self.seconds
        spent = "not measured yet" if took is None else duration(int(took * _PICOSECONDS))
        there = gibibytes(self.memory) if self.memory else "not measured yet"
        return (
            f"a step: predicted {duration(said)} on {hardware.name}, measured {spent} here; "
            f"memory of a device: predicted {gibibytes(held)}, measured {there}"
        )
