"""Memory of a Program: the peak of one device, when it is, and what is alive then.

Two ways to count, the same lifetimes:

| rules | inputs | communication buffers |
|---|---|---|
| `METERED` | freed after their last reader, every one | none: operand and result only |
| `RESIDENT` | kept by the caller, but for those that the step updates (donated) | what packing and unpacking takes |

The first is what the virtual mesh measures, to the byte; the second what a device needs.  A collective over a dim that
is not the first is packed before or unpacked after: blocks of members lie one after the other in a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..ir.graph import Graph
from ..ir.program import Instr, Program
from .memory import Moment, live_bytes
from .overlap import program_roles


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What counts, beside values from their maker to their last reader."""

    keep_inputs: bool = False
    """Inputs without an update stay to the end."""
    buffers: bool = False
    """Collectives need room to pack and unpack."""


METERED = MemoryRules()
RESIDENT = MemoryRules(keep_inputs=True, buffers=True)

KINDS = ("parameter", "state", "input", "gradient", "updated", "activation", "copy", "buffer")
"""What alive bytes are: state is what a step updates without computing with it (an optimizer's moments); updated are
new parameters and state; a copy is a value in another sharding."""


class Alive(NamedTuple):
    """One tensor at the peak."""

    name: str
    bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """The peak of a device."""

    peak: int
    moment: int
    """The instruction at which it is; -1: before the first."""
    where: str
    """That instruction in words."""
    alive: tuple[Alive, ...]
    """Largest first."""

    @property
    def by_kind(self) -> dict[str, int]:
        found = dict.fromkeys(KINDS, 0)
        for item in self.alive:
            found[item.kind] += item.bytes
        return {kind: bytes for kind, bytes in found.items() if bytes}


def program_memory(program: Program, rules: MemoryRules = METERED) -> int:
    """The most bytes alive at once on any device."""
    return memory_profile(program, rules).peak


def memory_profile(program: Program, rules: MemoryRules = METERED, graph: Graph | None = None) -> MemoryProfile:
    """The peak with its moment and everything alive then; ``graph`` as for `program_cost`."""
    sizes = [local.padded_bytes for local in program.values]
    moments = [Moment(instr.as_node().inputs, instr.results, instr.views) for instr in program.instrs]
    donated = {i for i, _ in program.updates}
    kept = [value for i, value in enumerate(program.inputs) if rules.keep_inputs and i not in donated]
    extra = [buffer_bytes(program, instr) for instr in program.instrs] if rules.buffers else None
    live = live_bytes(sizes, program.inputs, moments, program.outputs, kept, extra)
    kinds = value_kinds(program, graph)
    alive = [Alive(program.values[value].name, sizes[value], kinds[value]) for value in live.alive]
    if live.moment < 0:
        where = "at the start"
    else:
        instr = program.instrs[live.moment]
        made = ", ".join(f"%{program.values[value].name}" for value in instr.results)
        where = f"{instr.op} -> {made}" + (f" at {instr.source}" if instr.source is not None else "")
        if extra is not None and extra[live.moment]:
            alive.append(Alive(f"buffer of {instr.op}", extra[live.moment], "buffer"))
    return MemoryProfile(live.peak, live.moment, where, tuple(sorted(alive, key=lambda item: (-item.bytes, item.name))))


def buffer_bytes(program: Program, instr: Instr) -> int:
    """What a collective needs while it runs, beside operand and result."""
    if not instr.is_collective:
        return 0
    (operand,), (result,) = instr.as_node().inputs, instr.results
    put_in, made = (program.values[value].padded_bytes for value in (operand, result))
    joined, cut = instr.attr("dim"), instr.attr("to_dim", instr.attr("dim"))
    room = {
        "all_gather": made if joined else 0,
        "reduce_scatter": put_in if cut else 0,
        "all_to_all": (put_in if cut else 0) + (made if joined else 0),
    }
    return room.get(instr.op, 0)


def value_kinds(program: Program, graph: Graph | None = None) -> tuple[str, ...]:
    """For each value one of `KINDS`."""
    roles = program_roles(program, graph)
    found = ["gradient" if role == "gradient" else "activation" for role in roles]
    for instr in program.instrs:
        if instr.node is None:
            for value in instr.results:
                found[value] = "copy"
    for value in program.inputs:
        found[value] = "input"
    for i, j in program.updates:
        value, renewed = program.inputs[i], program.outputs[j]
        found[value] = "parameter" if roles[value] == "weight" else "state"
        if renewed not in program.inputs:
            found[renewed] = "updated"
    return tuple(found)
