"""`Entry`: a training step for one shape of batch: what was captured, its plan, and its pieces, proven and compiled."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

from ...cost.machine import Hardware
from ...cost.memory import program_timeline
from ...cost.profile import RESIDENT, program_memory
from ...cost.schedule import step_time
from ...errors import ShardwrightError, SpecError
from ...frontends.base import BACKWARD, CONSTANT, FORWARD, NORM, OPTION, UPDATE, Source
from ...ir.digest import program_digest
from ...ir.lifetimes import lifetimes
from ...ir.program import Program
from ...lower import ordered, without_repeats
from ...lower.pieces import Piece, cut, rows_of
from ...plans import Complete, duration, gibibytes
from ...proof.same import check_same
from ...run.engine import AUTO, OFF, Engine, check_form
from ...run.runner import Runner
from ...solve.planner import Planner
from ..proven import proven_for

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


_PIECES = {FORWARD: "gradients", BACKWARD: "gradients", NORM: "update", UPDATE: "update"}
_CHECKED = {FORWARD: "gradients", BACKWARD: "gradients", NORM: "norm", UPDATE: "update"}


class Planned(Protocol):
    """What a step needs of a plan: `artefact.Plan`, which stands above this file."""

    verified: str
    proven_pieces: int

    @property
    def source(self) -> Source: ...

    @property
    def complete(self) -> Complete: ...

    @property
    def program(self) -> Program: ...

    @property
    def runner(self) -> Runner: ...

    @property
    def hardware(self) -> Hardware: ...

    @property
    def planner(self) -> Planner: ...


@dataclass
class Part:
    """A piece, compiled: what it takes and gives, as slots of the step (int) or values that go from piece to piece."""

    name: str
    program: Program
    compiled: Any
    takes: tuple[int | str, ...]
    gives: tuple[str | None, ...]
    returns: Mapping[int, int]
    """Outputs of the whole program -> of this part."""

    @property
    def updates(self) -> dict[int, int]:
        """Slots -> outputs."""
        return {slot: out for i, out in self.program.updates if isinstance(slot := self.takes[i], int)}


class Entry:
    """The step for one shape of batch: what was captured, its plan, and its parts, ready to run."""

    def __init__(self, plan: Planned, engine: Engine, compile: str | None = None) -> None:
        self.plan, self.source, self.engine = plan, plan.source, engine
        self.fingerprint = plan.source.fingerprint()
        self.trained = plan.source.trained()
        self.data = self.source.data_count
        about = self.source.inputs_are[self.data :]
        self.names = [item.name for item in about]
        self.options = [slot for slot, item in enumerate(about) if item.role == OPTION]
        self.consts = [slot for slot, item in enumerate(about) if item.role == CONSTANT]
        self.specs = list(plan.complete.inputs)
        graph = self.source.graph
        self.changed = {i - self.data for i, _ in graph.updates if i >= self.data}
        self._check_updates()
        form = self.source.form
        self.parts = self._cut() if form.accumulate > 1 or form.checked else [self._whole()]
        if compile is not None:
            self._choose_form(check_form(compile))
        self.shared = _shared(plan.program)
        """Outputs in the memory of state: the next step writes over it."""
        self.loaded: dict[int, Any] = {}
        """Shards of constants, by slot: they belong to the program, not to the model."""

    def _whole(self) -> Part:
        runner: Runner = self.plan.runner
        program = runner.program
        outputs = range(len(program.outputs))
        return Part("step", program, runner.compiled, tuple(range(len(program.inputs))), (None,) * len(outputs),
                    {o: o for o in outputs})  # fmt: skip

    def _cut(self) -> list[Part]:
        complete, source = self.plan.complete, self.source
        names = _CHECKED if source.form.checked else _PIECES
        rows = rows_of(source.graph, source.phases, complete.graph, names)
        if len(rows) == 1:
            raise SpecError(
                "this step computes gradients after it has updated something, so it cannot be cut into pieces",
                help="leave accumulate= and on_nonfinite= out",
            )
        if self.plan.verified == "on":
            check_same(source.graph, complete.graph)  # each piece is proven equal to its part of the planned graph
        parts = [self._part(piece) for piece in cut(complete, rows, self.data)]
        self.plan.proven_pieces = len(parts) if self.plan.verified == "on" else 0
        return parts

    def _choose_form(self, form: str) -> None:
        for part in self.parts:
            choose = getattr(part.compiled, "choose_form", None)
            if choose is not None:
                choose(form, self.plan.planner.limit)
            elif form not in (OFF, AUTO):
                raise SpecError(
                    f"compile={form!r}, but the engine {self.engine.name!r} has nothing to compile",
                    help='leave compile= out, or give engine="torch"',
                )

    def _part(self, piece: Piece) -> Part:
        """A piece, proven and compiled."""
        graph, planner = self.plan.complete.graph, self.plan.planner
        program = without_repeats(piece.program, piece.complete.kept, planner.limit)
        program = ordered(program, planner.hardware, piece.complete.graph, limit=planner.limit)
        slots: dict[int, int | str] = {value: i for i, value in enumerate(graph.inputs)}
        slots.update({graph.outputs[o]: i for i, o in graph.updates if graph.node_of(graph.outputs[o]) is not None})
        if self.plan.verified == "on":
            proven_for(self.engine, piece.complete.graph, program, self.source, piece.complete.graph)
        returned = set(piece.returns.values())
        return Part(
            piece.name, program, self.engine.compile(program),
            tuple(slots.get(value, f"%{value}") for value in piece.takes),
            tuple(None if at in returned else f"%{value}" for at, value in enumerate(piece.gives)),
            piece.returns,
        )  # fmt: skip

    def _check_updates(self) -> None:
        """What a call leaves is what the next one reads, so it has to be sharded alike."""
        complete = self.plan.complete
        for i, output in complete.graph.updates:
            old, new = complete.inputs[i], complete.outputs[output]
            if i >= self.data and not old.same_layout(new):
                raise ShardwrightError(
                    "a step leaves state in another sharding than it takes it",
                    rows=[("before", f"{self.names[i - self.data]}: {old}"), ("after", str(new))],
                    help="give the state's sharding for both, or leave it to the planner",
                )

    @cached_property
    def digest(self) -> str:
        """Of what all ranks must run alike."""
        return " ".join(program_digest(part.program)[:16] for part in self.parts)

    def type(self, slot: int) -> Any:
        return self.source.graph.type(self.source.graph.inputs[self.data + slot])

    def state_names(self) -> dict[str, int]:
        """Slots of what lives from step to step, by name."""
        fixed = {*self.options, *self.consts}
        return {name: slot for slot, name in enumerate(self.names) if slot not in fixed}


def _shared(program: Program) -> frozenset[int]:
    """Outputs beside the state's own that show the bytes of an input, or of what becomes of it."""
    uses, buffers = program_timeline(program)
    owner = lifetimes(len(program.values) + len(buffers), uses).owner
    updated = {output for _, output in program.updates}
    state = {owner[program.outputs[output]] for output in updated} | set(program.inputs)
    return frozenset(o for o, value in enumerate(program.outputs) if o not in updated and owner[value] in state)
