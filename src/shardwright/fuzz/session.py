"""Draws cases, judges them, shrinks what is wrong."""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module

import numpy as np

from ..errors import SpecError, near_misses
from .drawing import Writer
from .judging import AUTOMATIC, BY_HAND, PLANNED, SIMPLE, Case, Verdict, judge
from .programs import FuzzProgram
from .requests import draw_constraints, draw_request
from .script import script_of
from .shrinking import shrink

FRONTENDS = ("numpy", "torch")
DECIDED = (AUTOMATIC, SIMPLE, PLANNED, PLANNED)
"""Each program is split by hand, and once by one of these."""
FLOATING = {"numpy": ("float64", "float64", "float64", "float32"),
            "torch": ("float64", "float64", "float32", "bfloat16", "float16")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that is wrong, as it was drawn and as it was shrunk."""

    seed: int
    case: Case
    smallest: Case
    verdict: Verdict

    @property
    def script(self) -> str:
        return script_of(self.smallest, self.verdict)


@dataclass(slots=True)
class Tally:
    """What a session found."""

    programs: int = 0
    backward: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    sensitive: int = 0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(self.verdicts.items()))
        backward = f" ({self.backward} with backward)" if self.backward else ""
        near = f"; {self.sensitive} differ as they do on inputs a rounding off" if self.sensitive else ""
        return f"{self.programs} programs{backward}, {sum(self.verdicts.values())} splits: {told}{near}"


def draw_program(seed: int, frontend: str = "numpy") -> FuzzProgram:
    """The program of a seed."""
    if frontend not in FRONTENDS:
        raise SpecError(f"there is no frontend {frontend!r} to fuzz", help=near_misses(frontend, FRONTENDS))
    words = import_module(f"{__package__}.{frontend}_words").WORDS
    writer = Writer(seed, frontend, random.Random(seed).choice(FLOATING[frontend]), words)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        program = writer.program()
        return with_backward(program) if frontend == "torch" and seed % 2 else program


def with_backward(program: FuzzProgram) -> FuzzProgram:
    """The program with gradients of its floating inputs, where there are any."""
    inputs = tuple(replace(fill, gradient="float" in fill.dtype) for fill in program.inputs)
    wanted = replace(program, inputs=inputs, backward=True)
    try:
        made = wanted(*wanted.arguments())
    except (RuntimeError, TypeError):  # nothing that is returned depends on them, or PyTorch has no gradient
        return program
    return wanted if len(made) > len(wanted.returned) else program


def draw_cases(seed: int, frontend: str = "numpy") -> Iterator[Case]:
    """The program of a seed, split by hand and by who decides the rest."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        program = draw_program(seed, frontend)
        values, outputs = program.values(program.arguments()), program(*program.arguments())
    rng = random.Random(seed + 1_000_000_007)
    for way in (BY_HAND, rng.choice(DECIDED)):
        request = draw_request(rng, program, outputs, way)
        inner = draw_constraints(rng, program, request.mesh, values) if rng.random() < 0.3 else ()
        yield Case(replace(program, constraints=inner), request)


def fuzz_programs(
    seeds: Iterator[int] | range,
    frontend: str = "numpy",
    seconds: float | None = None,
    most: int = 20,
    told: Callable[[Tally, Failure | None], None] | None = None,
    shrinks: bool = True,
) -> Tally:
    """Judge the programs of these seeds, until time is over or ``most`` failures are found."""
    tally, end = Tally(), None if seconds is None else time.monotonic() + seconds
    for seed in seeds:
        if (end is not None and time.monotonic() >= end) or len(tally.failures) >= most:
            break
        for case in draw_cases(seed, frontend):
            verdict = judge(case)
            tally.verdicts[verdict.kind] += 1
            tally.sensitive += verdict.sensitive
            if verdict.wrong:
                small = shrink(case, verdict) if shrinks else case
                tally.failures.append(Failure(seed, case, small, judge(small) if shrinks else verdict))
                if told is not None:
                    told(tally, tally.failures[-1])
        tally.programs += 1
        tally.backward += case.program.backward
        if told is not None:
            told(tally, None)
    return tally
