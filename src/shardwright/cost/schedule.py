"""A schedule of a Program on two streams, compute and communication, and what of its communication shows.

Compute keeps the order of the program; an op starts when everything it reads is there.  A collective starts when its
operand is there and the stream is free; while one waits for its operand, the next `AHEAD` in the program may overtake
it, as weights are gathered ahead of the gradients that are still being made.  Views and local steps take no time and
wait for no stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import GraphError
from ..ir.graph import Graph
from ..ir.program import Program
from .machine import Hardware
from .program import instr_costs

COMPUTE, COMMUNICATION = "compute", "communication"
AHEAD = 2
"""How many collectives may overtake one that waits: what frameworks prefetch."""


class Task(NamedTuple):
    """One step of any list: which values it reads and makes, on which stream, for how long."""

    stream: str
    ps: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class Span(NamedTuple):
    """When a task runs; picoseconds from the start of the step."""

    task: int
    stream: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything happens."""

    spans: tuple[Span, ...]
    """In program order; for a Program ``task`` is the instruction."""
    compute: int
    """Picoseconds that the compute stream works."""
    communication: int
    """The same of the other."""
    total: int
    """The step: until both are done."""

    @property
    def exposed(self) -> int:
        """Communication that shows: what the step takes beyond its compute."""
        return self.total - self.compute

    @property
    def hidden(self) -> int:
        return self.communication - self.exposed

    def stream(self, name: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.stream == name and span.end > span.start)


def simulate(
    program: Program,
    hardware: Hardware,
    graph: Graph | None = None,
    ahead: int = AHEAD,
    times: Sequence[int] | None = None,
) -> Timeline:
    """The schedule of a Program; ``graph`` as for `program_cost`, whose ``times`` may be handed on."""
    if times is None:
        times = instr_costs(program, hardware.on(program.mesh), graph)
    tasks = [
        Task(COMMUNICATION if instr.is_collective else COMPUTE, time, instr.inputs, instr.results)
        for instr, time in zip(program.instrs, times, strict=True)
    ]
    return schedule(tasks, ahead)


def schedule(tasks: Sequence[Task], ahead: int = AHEAD) -> Timeline:
    """The schedule of any list of tasks, each after those that make what it reads.

    >>> reduce, work = Task(COMMUNICATION, 5, (0,), (1,)), Task(COMPUTE, 7, (0,), (2,))
    >>> schedule([reduce, work]).exposed, schedule([reduce, work._replace(reads=(1,))]).exposed
    (0, 5)
    """
    return _Scheduler(tasks, ahead).run()


class _Scheduler:
    def __init__(self, tasks: Sequence[Task], ahead: int) -> None:
        self.tasks, self.ahead = tasks, ahead
        made = {value for task in tasks for value in task.makes}
        self.missing = [len({value for value in task.reads if value in made}) for task in tasks]
        self.readers: dict[int, list[int]] = {}
        for n, task in enumerate(tasks):
            for value in {value for value in task.reads if value in made}:
                self.readers.setdefault(value, []).append(n)
        self.ready = [0] * len(tasks)
        self.spans: dict[int, Span] = {}
        self.free = {COMPUTE: 0, COMMUNICATION: 0}
        self.busy = {COMPUTE: 0, COMMUNICATION: 0}

    def run(self) -> Timeline:
        ops = deque(n for n, task in enumerate(self.tasks) if task.ps and task.stream == COMPUTE)
        collectives = [n for n, task in enumerate(self.tasks) if task.ps and task.stream == COMMUNICATION]
        for n, task in enumerate(self.tasks):
            if not task.ps and not self.missing[n] and n not in self.spans:
                self.place(n)
        while ops or collectives:
            while ops and not self.missing[ops[0]]:
                self.place(ops.popleft())
            if collectives or ops:
                # All that is known without another collective is known now, the first one's operand at least.
                near = [n for n in collectives[: self.ahead + 1] if not self.missing[n]]
                if not near:
                    raise GraphError("a task reads what is made only after it")
                chosen = min(near, key=lambda n: (max(self.ready[n], self.free[COMMUNICATION]), n))
                collectives.remove(chosen)
                self.place(chosen)
        spans = tuple(self.spans[n] for n in range(len(self.tasks)))
        return Timeline(spans, self.busy[COMPUTE], self.busy[COMMUNICATION], max(self.free.values()))

    def place(self, n: int) -> None:
        """Run a task whose operands are known; what takes no time follows at once."""
        todo = [n]
        while todo:
            n = todo.pop()
            task = self.tasks[n]
            start = self.ready[n]
            if task.ps:
                start = max(start, self.free[task.stream])
                self.free[task.stream] = start + task.ps
                self.busy[task.stream] += task.ps
            self.spans[n] = Span(n, task.stream, start, start + task.ps)
            for value in task.makes:
                for reader in self.readers.get(value, ()):
                    self.ready[reader] = max(self.ready[reader], start + task.ps)
                    self.missing[reader] -= 1
                    if not self.missing[reader] and not self.tasks[reader].ps:
                        todo.append(reader)
