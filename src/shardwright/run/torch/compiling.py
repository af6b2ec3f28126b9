"""Which form of a program runs on a device: as it was emitted, compiled by Inductor, or that replayed as a CUDA graph.

| ``compile=`` | what runs |
|---|---|
| ``"off"`` | the emitted form |
| ``"auto"`` | on CUDA: a few calls as emitted and as many compiled are timed; the compiled form stays if it takes no longer and fits in memory |
| ``"on"`` | the compiled form |
| ``"graph"`` | the compiled form as a CUDA graph, for steps that are bound by launches; on one device |

All calls of a trial are steps that count: forms differ by rounding alone.  The compiled form has static shapes, writes
over donated state like the emitted one, and takes optimizers in their parts, which Inductor fuses; options are tensors
on the device.  Ranks decide together: collectives must come in the same order everywhere, so that the compiled form is
taken only where all ranks emitted the same code and all could compile it.
"""  # noqa: E501

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Protocol

import torch

from ...errors import ShardwrightError, SpecError
from ...ir.program import Program
from ..engine import AUTO, GRAPH, OFF, ON, check_form
from .emission import emit
from .private import below_autograd, compile_ahead
from .ranks.agreement import text_digest

_log = logging.getLogger("shardwright")
WARM, TIMED = 2, 3
"""Calls of a form in a trial: those that let allocators and caches settle, and those whose median counts."""
NO_LONGER = 1.01
"""A compiled form that takes so many times as long as the emitted one is as fast: clocks do not tell them apart."""
GROWTH = 1.6
"""Inductor has moved the peak of memory to 1.49 times eager's; state is kept on the host where that may not fit."""
EMITTED, COMPILED, REPLAYED = "emitted", "compiled", "CUDA graph"
_US = 1e6
TRIED = ("cuda",)
"""Devices on which ``"auto"`` compiles, and several ranks do: of gloo's gathers no two may be under way in the form
that a compiler takes (`exchange`)."""
_IN_PLACE = {torch.ops._c10d_functional.all_reduce_.default: torch.ops._c10d_functional.all_reduce.default}
"""Calls that a compiler does not take, and the same with a result of its own."""
Call = Callable[[list[Any]], list[Any]]


@dataclass
class Trial:
    """What the first calls of a form took."""

    seconds: list[float] = field(default_factory=list)
    bytes: int = 0

    @property
    def done(self) -> bool:
        return len(self.seconds) >= WARM + TIMED

    @property
    def median(self) -> float:
        return median(self.seconds[WARM:])


class Rank(Protocol):
    """One rank's part of a program: `engine.CompiledRank`, which stands above this file."""

    program: Program
    engine: Any

    @property
    def code(self) -> str: ...


class Forms:
    """The forms of one rank's program, and which of them runs."""

    def __init__(self, rank: Rank, emitted: Call) -> None:
        self.rank, self.emitted = rank, emitted
        self.wish, self.limit = OFF, 0
        self.running: Call = emitted
        self.form = EMITTED
        self.reason = "not asked to compile"
        self.trials = {EMITTED: Trial(), COMPILED: Trial()}
        self.settled = True

    # -- what a user sees -------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"runs {self.form}: {self.reason}" if self.settled else "which form runs is being tried"

    # -- choosing ---------------------------------------------------------------------------------------

    def choose(self, wish: str, limit: int = 0) -> None:
        """``limit``: bytes that a device may hold; 0 for all that it has."""
        wish = check_form(wish)
        device = self.rank.engine.device.type
        tried = device in TRIED
        if wish == GRAPH and (device != "cuda" or self.rank.engine.mesh.size > 1):
            raise SpecError(
                'compile="graph" is for one CUDA device',
                rows=[("device", str(self.rank.engine.device)), ("mesh", str(self.rank.engine.mesh))],
                help='compile="auto" is for every mesh',
            )
        if wish == ON and not tried and self.rank.engine.mesh.size > 1:
            raise SpecError(
                'compile="on" is for CUDA devices, or a single one of another kind',
                rows=[("device", str(self.rank.engine.device)), ("mesh", str(self.rank.engine.mesh))],
                help='leave it out, or write compile="auto"',
            )
        self.wish, self.limit = wish, limit
        self.running, self.form, self.settled = self.emitted, EMITTED, wish == OFF or (wish == AUTO and not tried)
        self.reason = "not asked to compile" if wish == OFF else "that is what devices other than CUDA's do"
        self.trials = {EMITTED: Trial(), COMPILED: Trial()}

    def prepare(self, inputs: Sequence[Any], fit: bool) -> None:
        """Before a call, while other ranks know that this one is at work: compile, if it is time to.

        Inputs that do not ``fit`` will be refused: it waits for the next ones, on all ranks.
        """
        if self.settled or self.form != EMITTED or (self.wish == AUTO and not self.trials[EMITTED].done):
            return
        engine = self.rank.engine
        began = time.perf_counter()
        _log.info("compiling %s", self.rank.program.name)
        made, error = None, ""
        with engine.phase("compiling"):
            try:
                made = compiled_form(self.rank, inputs, graph=self.wish == GRAPH) if fit else None
            except Exception as problem:  # whatever a compiler says, there is a form that runs
                error = _first_line(problem)
                if self.wish != AUTO:
                    raise ShardwrightError(
                        f"{self.rank.program.name} could not be compiled", rows=[("compiler", error)],
                        help='compile="auto" goes on with the form that was emitted',
                    ) from problem  # fmt: skip
        code = text_digest(self.rank.code) if engine.mesh.size > 1 else 0
        rows = engine.exchange([int(made is not None), code, int(fit)])
        if not all(row[2] for row in rows):
            return
        if made is None or not all(row[0] for row in rows):
            self._settle(EMITTED, f"it could not be compiled{': ' + error if error else ' on another rank'}")
        elif any(row[1] != code for row in rows):
            self._settle(EMITTED, "ranks have different code, whose collectives a compiler may order differently")
        else:
            self.running, self.form = made, REPLAYED if self.wish == GRAPH else COMPILED
            self.reason = f"compiled in {time.perf_counter() - began:.0f} s"
            if self.wish != AUTO:
                self._settle(self.form, self.reason)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """One call; the list is emptied."""
        if self.settled:
            return self.running(inputs)
        trial = self.trials[self.form]
        kept = self._kept(inputs) if self.form == COMPILED and not trial.seconds else None
        try:
            found = self._timed(trial, inputs)
        except Exception as error:
            if kept is None:
                raise
            self._settle(EMITTED, f"the compiled form failed: {_first_line(error)}")
            return self.emitted(_restored(*kept))
        if trial.done and self.form == COMPILED:
            self._decide()
        return found

    def _timed(self, trial: Trial, inputs: list[Any]) -> list[Any]:
        device = self.rank.engine.device
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        began = time.perf_counter()
        found = self.running(inputs)
        if on_gpu:
            torch.cuda.synchronize(device)
            trial.bytes = max(trial.bytes, torch.cuda.max_memory_allocated(device))
        trial.seconds.append(time.perf_counter() - began)
        return found

    def _decide(self) -> None:
        """By the slowest rank: all wait for it."""
        before, after = self.trials[EMITTED], self.trials[COMPILED]
        room = self.limit or _memory_of(self.rank.engine.device)
        mine = [round(before.median * _US), round(after.median * _US), int(bool(room) and after.bytes > room)]
        rows = self.rank.engine.exchange(mine)
        emitted, compiled = (max(row[i] for row in rows) / 1000 for i in (0, 1))
        said = f"{compiled:.2f} ms compiled, {emitted:.2f} emitted; {_gib(after.bytes)} and {_gib(before.bytes)} held"
        if any(row[2] for row in rows):
            self._settle(EMITTED, f"the compiled form does not fit in {_gib(room)} ({said})")
        elif compiled > emitted * NO_LONGER:
            self._settle(EMITTED, f"that is faster ({said})")
        else:
            self._settle(COMPILED, said)

    def _settle(self, form: str, reason: str) -> None:
        self.form, self.reason, self.settled = form, reason, True
        if form == EMITTED:
            self.running = self.emitted
        _log.info("%s %s", self.rank.program.name, self)

    def _kept(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
        """State on the host, in case that the compiled form runs out of memory halfway; with other ranks none can."""
        engine = self.rank.engine
        room = self.limit or _memory_of(engine.device)
        if engine.mesh.size > 1 or not room or self.trials[EMITTED].bytes * GROWTH < room:
            return None
        donated = set(self.rank.program.donated)
        return list(inputs), [x.to("cpu", copy=True) if i in donated else None for i, x in enumerate(inputs)]


def _restored(inputs: list[Any], copies: Sequence[Any]) -> list[Any]:
    for x, copy in zip(inputs, copies):
        if copy is not None:
            x.copy_(copy)
    return inputs


def compiled_form(rank: Rank, inputs: Sequence[Any], graph: bool = False) -> Call:
    """The program of a rank, compiled for inputs like these; a call empties its list, and writes over donated state."""
    engine = rank.engine
    module = emit(rank.program, engine.position, engine.groups, engine.device, donated=True, fused=False)
    return compile_module(module, rank.program, inputs, engine.device, graph)


def compile_module(module: Any, program: Any, inputs: Sequence[Any], device: Any, graph: bool = False) -> Call:
    """The same of a module that takes its inputs one by one."""
    for node in module.graph.nodes:
        node.target = _IN_PLACE.get(node.target, node.target) if node.op == "call_function" else node.target
    module.recompile()
    numbers = Numbers(device)
    call = compile_ahead(module, numbers(inputs))
    if graph:
        return Replayed(call, numbers, program)
    return partial(_call, call, numbers)


def _call(call: Any, numbers: Numbers, inputs: list[Any]) -> list[Any]:
    given = numbers(inputs)
    inputs.clear()
    return list(call(*given))


class Numbers:
    """Options come to the device when they have changed; nothing else is moved."""

    def __init__(self, device: Any) -> None:
        self.device = torch.device(device)
        self.known: dict[int, tuple[float, Any]] = {}

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        if self.device.type == "cpu":
            return list(inputs)
        return [self._here(i, x) if x.device.type == "cpu" else x for i, x in enumerate(inputs)]

    def _here(self, place: int, given: Any) -> Any:
        if given.dim():
            return given.to(self.device, non_blocking=True)
        number = given.item()
        known = self.known.get(place)
        if known is None or known[0] != number or known[1].dtype is not given.dtype:
            known = self.known[place] = number, given.to(self.device, non_blocking=True)
        return known[1]


class Replayed:
    """A compiled form as a CUDA graph: state stays where it is, what else is given is copied to where it is read."""

    def __init__(self, call: Any, numbers: Numbers, program: Any) -> None:
        self.call, self.numbers = call, numbers
        self.state = set(program.donated)
        self.updated = {output for _, output in program.updates}
        self.graph: Any = None
        self.places: list[Any] = []
        self.outputs: list[Any] = []
        self.warm = 0

    def __call__(self, inputs: list[Any]) -> list[Any]:
        given = self.numbers(inputs)
        inputs.clear()
        if self.graph is None:
            self.warm += 1
            if self.warm <= WARM:
                return list(self.call(*given))
            self._capture(given)
        for place, x in zip(self.places, given):
            if place.data_ptr() != x.data_ptr():
                place.copy_(x)
        self.graph.replay()
        # What the graph writes is written over by the next replay: only state, which comes back, may stay there.
        return [x if o in self.updated else x.clone() for o, x in enumerate(self.outputs)]

    def _capture(self, given: Sequence[Any]) -> None:
        """Record the call; nothing runs meanwhile."""
        self.places = [x if i in self.state else x.clone() for i, x in enumerate(given)]
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph), torch.no_grad(), below_autograd():
            self.outputs = list(self.call(*self.places))


def _memory_of(device: Any) -> int:
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else 0


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
