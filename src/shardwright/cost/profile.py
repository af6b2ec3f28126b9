"""Memory of a Program: the peak of one device, when it is, and what is alive then.

Three counts, the same lifetimes:

| rules | inputs | communication buffers |
|---|---|---|
| `METERED` | freed after their last reader, every one | none: operand and result only |
| `RESIDENT` | kept by the caller, but for those that the step updates (donated) | what packing and unpacking takes |
| `HELD` | kept by the caller, every one | what packing and unpacking takes |

`RESIDENT` is what a device needs in a training step that hands its state over, and what the virtual mesh measures, to
the byte, when inputs are donated; `HELD` when they are not.  `METERED` is what the program's own values need at least.
Steps are those of the Program's order; what collectives need while they are under way is said in `ir.order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..ir.graph import Graph
from ..ir.lifetimes import Use
from ..ir.order import Buffer, buffer_bytes, events_of
from ..ir.program import RUN, START, Program
from .memory import Live, alive_bytes, live_bytes, program_timeline
from .overlap import program_roles


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What counts, beside values from their maker to their last reader."""

    keep_inputs: bool = False
    """Inputs without an update stay to the end."""
    buffers: bool = False
    """Collectives need room to pack and unpack."""
    donate: bool = True
    """Inputs with an update go after their last reader, also where others stay."""


METERED = MemoryRules()
RESIDENT = MemoryRules(keep_inputs=True, buffers=True)
HELD = MemoryRules(keep_inputs=True, buffers=True, donate=False)

KINDS = ("parameter", "state", "input", "gradient", "updated", "activation", "copy", "buffer")
"""What alive bytes are: state is what a step updates without computing with it (an optimizer's moments); updated are
new parameters and state; a copy is a value in another sharding."""


class Alive(NamedTuple):
    """One tensor at the peak."""

    name: str
    bytes: int
    kind: str


@dataclass(frozen=True)
class MemoryProfile:
    """The peak of a device; what is alive then is named when it is asked for."""

    peak: int
    step: int
    """The instruction at which it is; -1: before the first."""
    where: str
    """That instruction in words."""
    program: Program = field(repr=False, compare=False)
    graph: Graph | None = field(repr=False, compare=False)
    live: Live = field(repr=False)
    buffers: dict[str, int] = field(repr=False)
    """What packing and unpacking takes then, by name."""

    @cached_property
    def alive(self) -> tuple[Alive, ...]:
        """Largest first."""
        program, kinds = self.program, value_kinds(self.program, self.graph)
        values = [program.values[value] for value in self.live.alive]
        found = [Alive(local.name, local.padded_bytes, kinds[local.id]) for local in values]
        found += [Alive(name, bytes, "buffer") for name, bytes in self.buffers.items() if bytes]
        return tuple(sorted(found, key=lambda item: (-item.bytes, item.name)))

    @property
    def by_kind(self) -> dict[str, int]:
        found = dict.fromkeys(KINDS, 0)
        for item in self.alive:
            found[item.kind] += item.bytes
        return {kind: bytes for kind, bytes in found.items() if bytes}


def program_memory(program: Program, rules: MemoryRules = METERED) -> int:
    """The most bytes alive at once on any device."""
    start = sum(program.values[value].padded_bytes for value in program.inputs)
    return max(alive_at(program, rules), default=start)


def alive_at(program: Program, rules: MemoryRules = METERED) -> list[int]:
    """Bytes alive on a device while each instruction runs: what it reads, makes and packs, and what waits."""
    steps, _ = _steps(program, rules)
    found = [0] * len(program.instrs)
    for (_, members), bytes in zip(events_of(program), alive_bytes(*steps)):
        for n in members:
            found[n] = max(found[n], bytes)
    return found


def memory_profile(program: Program, rules: MemoryRules = METERED, graph: Graph | None = None) -> MemoryProfile:
    """The peak with its step and everything alive then; ``graph`` as for `program_cost`."""
    steps, buffers = _steps(program, rules)
    live = live_bytes(*steps)
    if live.step < 0:
        return MemoryProfile(live.peak, -1, "at the start", program, graph, live, {})
    values = len(program.values)
    of_buffers = {buffer_name(program, buffers[v - values]): steps.sizes[v] for v in live.alive if v >= values}
    live = replace(live, alive=tuple(value for value in live.alive if value < values))
    members = events_of(program)[live.step].members
    instr = program.instrs[members[0]]
    made = ", ".join(f"%{program.values[value].name}" for value in instr.results)
    where = f"{instr.op} -> {made}" + (f" at {instr.source}" if instr.source is not None else "")
    return MemoryProfile(live.peak, members[0], where, program, graph, live, of_buffers)


def buffer_name(program: Program, buffer: Buffer) -> str:
    first = program.instrs[buffer.members[0]]
    more = f" and {len(buffer.members) - 1} more" if len(buffer.members) > 1 else ""
    return f"{buffer.role} buffer of {first.op} -> %{program.values[first.results[0]].name}{more}"


class _Steps(NamedTuple):
    """What `alive_bytes` takes; buffers are values after the Program's own."""

    sizes: list[int]
    inputs: tuple[int, ...]
    steps: list[Use]
    outputs: tuple[int, ...]
    kept: list[int]


def _steps(program: Program, rules: MemoryRules) -> tuple[_Steps, list[Buffer]]:
    known: dict[tuple[int, int], int] = {}  # most shapes come once for each layer of a model; the program holds them
    sizes = []
    for local in program.values:
        key = (id(local.spec), id(local.type))
        size = known.get(key)
        if size is None:
            size = known[key] = local.padded_bytes
        sizes.append(size)
    steps, buffers = program_timeline(program, rules.donate)
    if not rules.buffers:
        steps, buffers = _without_buffers(program, steps), []
    sizes += [buffer_bytes(program, buffer) for buffer in buffers]
    donated = program.donated if rules.donate else frozenset()
    kept = [value for i, value in enumerate(program.inputs) if rules.keep_inputs and i not in donated]
    return _Steps(sizes, program.inputs, steps, program.outputs, kept), buffers


def _without_buffers(program: Program, steps: Sequence[Use]) -> list[Use]:
    """Collectives have their results as soon as they are started."""
    found = []
    for (kind, members), use in zip(events_of(program), steps):
        instrs = [program.instrs[n] for n in members]
        results = [value for instr in instrs for value in instr.results]
        reads = [value for instr in instrs for value in instr.inputs]
        ran = use._replace(reads=reads)  # without what others hold until then
        found.append(ran if kind == RUN else Use(reads, results) if kind == START else Use(results, ()))
    return found


def value_kinds(program: Program, graph: Graph | None = None) -> tuple[str, ...]:
    """For each value one of `KINDS`."""
    roles = program_roles(program, graph)
    found = ["gradient" if role in ("gradient", "renewed") else "activation" for role in roles]
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
