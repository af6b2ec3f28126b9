"""Cost of a whole Program, read off its instructions.

Each collective is counted once, where it stands; nothing is derived from shardings a second time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from ..ir.graph import Graph
from ..ir.program import Instr, Program
from ..rules.registry import find
from ..spec.axes import axes_text
from ..spec.op_record import slots_of
from .comm import sent_cost, shown_cost
from .compute import ARITHMETIC, LOOKUP, cost_class, factor_axes, local_sizes, op_time, operations
from .fusion import fused_times
from .machine import NO_OVERLAP, Hardware
from .memory import row_bytes
from .overlap import graph_roles, program_roles


class Priced(NamedTuple):
    """A collective of `Program.collectives`, with its time."""

    kind: str
    axis: str
    bytes: int
    ps: int
    role: str | None = None
    """What it is for, where it can hide behind compute; see `overlap`."""


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """Picoseconds per device."""

    compute: int
    communication: int
    collectives: tuple[Priced, ...] = ()
    hidden: int = 0
    """Communication that a solver's discounts leave out (`machine.Overlap`)."""
    times: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """Of each instruction, for who schedules them."""

    @property
    def total(self) -> int:
        """One step after the other: no overlap."""
        return self.compute + self.communication

    @property
    def objective(self) -> int:
        """What a solver minimises: every op and every collective counts by itself, some with a discount."""
        return self.total - self.hidden


def program_cost(program: Program, hardware: Hardware, graph: Graph | None = None) -> ProgramCost:
    """What the instructions of a Program cost.

    With the ``graph`` it was lowered from, the instructions of a local form are costed like the op they carry out.
    """
    hardware = hardware.on(program.mesh)
    roles = _roles(program, graph) if hardware.overlap != NO_OVERLAP else None
    times = instr_costs(program, hardware, graph)
    compute = 0
    priced = []
    for instr, time in zip(program.instrs, times):
        if instr.is_collective:
            # What an op exchanges inside, it waits for.
            role = roles[instr.results[0]] if roles and instr.node is None else None
            priced.append(Priced(instr.op, axes_text(instr.axes), instr.bytes, time, role))
        else:
            compute += time
    collectives = (instr for instr in program.instrs if instr.is_collective)
    pairs = zip(collectives, priced)
    shown = sum(shown_cost(instr.op, instr.axes, instr.bytes, item.role, hardware) for instr, item in pairs)
    spent = sum(item.ps for item in priced)
    return ProgramCost(compute, spent, tuple(priced), spent - shown, times)


def _roles(program: Program, graph: Graph | None) -> tuple[str | None, ...]:
    """The role of every value; with the graph that of what it is a copy of, as a solver sees it."""
    if graph is None:
        return program_roles(program)
    known = graph_roles(graph)
    return tuple(None if local.origin is None else known[local.origin] for local in program.values)


def instr_costs(program: Program, hardware: Hardware, graph: Graph | None = None) -> tuple[int, ...]:
    """Picoseconds of every instruction; equal ones, of which a deep model has many, are costed once."""
    places = _places(program)
    times: dict[object, int] = {}
    found = []
    for instr in program.instrs:
        if instr.is_collective:
            found.append(sent_cost(instr.op, instr.axes, instr.bytes, hardware))
            continue
        locals = [program.values[value] for value in (*instr.inputs, *instr.results) if value not in places]
        # What a key names by its address, the program holds.
        key = (
            instr.op, bool(instr.cause), graph is not None and instr.node is not None and graph.nodes[instr.node].op,
            id(instr.attrs), len(instr.operands), slots_of(instr.operands), len(instr.results),
            *(part for local in locals for part in (id(local.type), local.spec)),
        )  # fmt: skip
        time = times.get(key)
        if time is None:
            time = times[key] = _instr_cost(program, instr, hardware, graph, places)
        found.append(time)
    if hardware.compiled:
        kinds = [None if instr.is_collective else _kind(instr, graph) for instr in program.instrs]
        return tuple(fused_times(program, kinds, found, hardware))
    return tuple(found)


def instr_cost(program: Program, instr: Instr, hardware: Hardware, graph: Graph | None = None) -> int:
    """Picoseconds of one local instruction."""
    seen = [program.values[value] for value in instr.inputs]
    places = _places(program) if any(local.origin is None and not local.type.shape for local in seen) else ()
    return _instr_cost(program, instr, hardware, graph, places)


def _instr_cost(
    program: Program, instr: Instr, hardware: Hardware, graph: Graph | None, places: Collection[int]
) -> int:
    record = find(instr.op)
    if record is None and (instr.cause or (not instr.operands and program.values[instr.results[0]].origin is None)):
        return 0  # a local step of a reshard: a part of what is there is kept; or a place, which is known beforehand
    kind = _kind(instr, graph)
    inputs = [value for value in instr.inputs if value not in places]
    operands, results = ([program.values[value] for value in values] for values in (inputs, instr.results))
    work = 0
    if record is not None and kind in ARITHMETIC:
        shapes = [local.type.shape for local in operands], [local.type.shape for local in results]
        rule = record.bind(*shapes, dict(instr.attrs), slots_of(instr.operands))
        axes = factor_axes(rule, [local.spec for local in (*operands, *results)])
        work = operations(rule, kind, local_sizes(rule, axes), dict(instr.attrs))
    dtype = (operands or results)[0].type.dtype if operands or results else "f32"
    read, made = ([local.padded_bytes for local in locals] for locals in (operands, results))
    row = row_bytes(results[0].spec, results[0].type) if results and kind == LOOKUP else 0
    return op_time(kind, work, read, made, dtype, hardware, row)


def _kind(instr: Instr, graph: Graph | None) -> str:
    """The cost class of a local instruction: of its op, or of the op that it is a form's part of."""
    record = find(instr.op)
    if record is None and graph is not None and instr.node is not None:
        record = find(graph.nodes[instr.node].op)
    return cost_class(record)


def _places(program: Program) -> frozenset[int]:
    """Values that only say where a device's part begins: the op that a form carries out does not read them."""
    return frozenset(
        value
        for instr in program.instrs
        if not instr.operands and find(instr.op) is None
        for value in instr.results
        if program.values[value].origin is None and not program.values[value].type.shape
    )
