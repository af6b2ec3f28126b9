"""What compiled programs take: chains of pointwise ops and reductions are few passes over memory.

A compiler keeps what only pointwise ops read in registers.  A value is *stored* where something else needs it: a
matrix product, attention, a collective, the caller; or where many are read for it; results of reductions and copies are
stored, too.  All others are computed where they are read, and their readers read what they are made of instead.  What
is stored is made by a *kernel*, and kernels that have something in common, with no product or collective in between,
are one: it reads each of its sources once.  A reduction over the columns of a matrix goes through it in another order,
so it is a kernel of its own.

A kernel takes the time to launch it and the bytes that it reads and writes (`Roofline` of the class ``fused``).
Instructions that are computed elsewhere take none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..ir.program import Instr, Program
from ..ir.wiring import connected
from ..rules.registry import find
from ..spec.op_record import slots_of
from .compute import op_time
from .machine import FUSED, UPDATE, Hardware

INLINED = frozenset({"pointwise"})
STORED = frozenset({"reduce", "memory", UPDATE})
"""Classes that take part in a kernel, and whose results are stored."""
MOST_SOURCES = 4
"""Values that a result which is not stored is computed from, again by each of its readers."""
COMMON = 4
"""Kernels are one if they share something that is more than one part in so many of what they read: not a number."""
Sources = dict[int, int]
"""Stored values, and how many bytes of each are read."""


class _Kernel(NamedTuple):
    instr: int
    makes: tuple[int, ...]
    sources: Sources
    stage: int
    alone: bool


def fused_times(program: Program, kinds: Sequence[str | None], times: Sequence[int], hardware: Hardware) -> list[int]:
    """Picoseconds of every instruction, from those that each would take by itself; ``kinds``: classes of local ops."""
    walk = _Walk(program, kinds, times)
    found = [0 if kind in INLINED or kind in STORED else time for kind, time in zip(kinds, times)]
    groups = _groups(walk.kernels)
    made_in = {value: groups[kernel.instr] for kernel in walk.kernels for value in kernel.makes}
    read_by: dict[int, set[int]] = {}
    for kernel in walk.kernels:
        for value in kernel.sources:
            read_by.setdefault(value, set()).add(groups[kernel.instr])
    seen: dict[int, set[int]] = {}
    for kernel in walk.kernels:
        group = groups[kernel.instr]
        known = seen.setdefault(group, set())
        first = not known
        known.add(-1)
        fresh = {v: size for v, size in kernel.sources.items() if v not in known and made_in.get(v) != group}
        known.update(fresh)
        made = [
            program.values[v].padded_bytes for v in kernel.makes if v in walk.needed or read_by.get(v, set()) - {group}
        ]
        dtype = program.values[kernel.makes[0]].type.dtype
        time = op_time(FUSED, 0, list(fresh.values()), made, dtype, hardware)
        found[kernel.instr] = time if first else time - hardware.roofline(FUSED).launch_ps
    return found


class _Walk:
    """Which instructions make what is stored, from which sources."""

    def __init__(self, program: Program, kinds: Sequence[str | None], times: Sequence[int]) -> None:
        self.program, self.kinds = program, kinds
        self.base: dict[int, int] = {}
        """Views, and parts that are kept, by what they show."""
        self.kernels: list[_Kernel] = []
        views = [kind == "view" or (kind is not None and not time) for kind, time in zip(kinds, times)]
        for instr, view in zip(program.instrs, views):
            if view and instr.inputs:
                self.base.update(dict.fromkeys(instr.results, self.shown(instr.inputs[0])))
        self.needed = {self.shown(value) for value in program.outputs}
        for instr, kind, view in zip(program.instrs, kinds, views):
            if not view and kind not in INLINED and kind not in STORED:
                self.needed.update(map(self.shown, instr.inputs))
        self.sources: dict[int, Sources] = {}
        self.stage: dict[int, int] = {}
        for n, (instr, kind, view) in enumerate(zip(program.instrs, kinds, views)):
            if not view:
                self.step(n, instr, kind)

    def shown(self, value: int) -> int:
        return self.base.get(value, value)

    def read(self, value: int) -> Sources:
        """What reading a value reads."""
        found = self.sources.get(self.shown(value))
        return {self.shown(value): self.program.values[value].padded_bytes} if found is None else found

    def step(self, n: int, instr: Instr, kind: str | None) -> None:
        stage = max((self.stage.get(self.shown(value), 0) for value in instr.inputs), default=0)
        sources: Sources = {}
        for value in instr.inputs:
            for source, size in self.read(value).items():
                sources[source] = max(size, sources.get(source, 0))
        alone = kind == "reduce" and not _along_rows(self.program, instr)
        if kind in INLINED:
            stored = len(sources) > MOST_SOURCES or any(value in self.needed for value in instr.results)
            if not stored:
                self.sources.update(dict.fromkeys(instr.results, sources))
        else:
            stored = kind in STORED
            stage += alone or not stored
        if stored:
            self.kernels.append(_Kernel(n, instr.results, stage=stage, sources=sources, alone=alone))
        self.stage.update(dict.fromkeys(instr.results, stage))


def _groups(kernels: Sequence[_Kernel]) -> dict[int, int]:
    """The instruction of each kernel -> the first of those that are one with it."""
    together: dict[tuple[int, int], list[int]] = {}
    for k, kernel in enumerate(kernels):
        if kernel.alone:
            continue
        large = max(kernel.sources.values(), default=0) / COMMON
        for value in (*(v for v, size in kernel.sources.items() if size > large), *kernel.makes):
            together.setdefault((value, kernel.stage), []).append(k)
    first = connected(len(kernels), together.values())
    return {kernel.instr: kernels[at].instr for kernel, at in zip(kernels, first)}


def _along_rows(program: Program, instr: Instr) -> bool:
    """Whether what is reduced, or taken together, are the last dims of the first operand."""
    record = find(instr.op)
    if record is None:
        return True
    operands, results = ([program.values[v].type.shape for v in values] for values in (instr.inputs, instr.results))
    rule = record.bind(operands, results, dict(instr.attrs), slots_of(instr.operands))
    together = rule.reduced | {f for f, factor in enumerate(rule.factors) if factor.whole}
    marks = [all(f in together for f in dim) for dim in rule.operands[0] if dim]
    return marks == sorted(marks)


__all__ = ["fused_times"]
