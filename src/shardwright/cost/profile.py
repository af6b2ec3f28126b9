"""Memory of a Program: the peak of one device, when it is, and what is alive then.

Three ways to count, the same lifetimes:

| rules | inputs | communication buffers |
|---|---|---|
| `METERED` | freed after their last reader, every one | none: operand and result only |
| `RESIDENT` | kept by the caller, but for those that the step updates (donated) | what packing and unpacking takes |
| `HELD` | kept by the caller, every one | what packing and unpacking takes |

`RESIDENT` is what a device needs in a training step that hands its state over, and what the virtual mesh measures, to
the byte, when inputs are donated; `HELD` when they are not.  `METERED` is what the program's own values need at least.
A collective over a dim that does not come first is packed before or unpacked after: blocks of members lie one after
the other in a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

from ..ir.graph import Graph
from ..ir.lifetimes import Use
from ..ir.program import Instr, Program
from ..spec.axes import axes_size
from ..spec.sharding import Shape, ShardingSpec
from .memory import Live, alive_bytes, live_bytes, program_uses
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
    moment: int
    """The instruction at which it is; -1: before the first."""
    where: str
    """That instruction in words."""
    program: Program = field(repr=False, compare=False)
    graph: Graph | None = field(repr=False, compare=False)
    live: Live = field(repr=False)
    buffer: int = field(repr=False)
    """What packing and unpacking takes then."""

    @cached_property
    def alive(self) -> tuple[Alive, ...]:
        """Largest first."""
        program, kinds = self.program, value_kinds(self.program, self.graph)
        values = [program.values[value] for value in self.live.alive]
        found = [Alive(local.name, local.padded_bytes, kinds[local.id]) for local in values]
        if self.buffer:
            found.append(Alive(f"buffer of {program.instrs[self.moment].op}", self.buffer, "buffer"))
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
    return alive_bytes(*_timeline(program, rules))


def memory_profile(program: Program, rules: MemoryRules = METERED, graph: Graph | None = None) -> MemoryProfile:
    """The peak with its moment and everything alive then; ``graph`` as for `program_cost`."""
    timeline = _timeline(program, rules)
    live = live_bytes(*timeline)
    if live.moment < 0:
        return MemoryProfile(live.peak, -1, "at the start", program, graph, live, 0)
    instr, extra = program.instrs[live.moment], timeline[-1]
    made = ", ".join(f"%{program.values[value].name}" for value in instr.results)
    where = f"{instr.op} -> {made}" + (f" at {instr.source}" if instr.source is not None else "")
    return MemoryProfile(live.peak, live.moment, where, program, graph, live, extra[live.moment] if extra else 0)


_Timeline = tuple[list[int], tuple[int, ...], list[Use], tuple[int, ...], list[int], list[int] | None]


def _timeline(program: Program, rules: MemoryRules) -> _Timeline:
    """What `alive_bytes` takes."""
    known: dict[tuple[ShardingSpec, Shape, int], int] = {}  # most shapes come once for each layer of a model
    sizes = []
    for local in program.values:
        key = (local.spec, local.type.shape, local.type.item_bytes)
        size = known.get(key)
        if size is None:
            size = known[key] = local.padded_bytes
        sizes.append(size)
    moments = program_uses(program, rules.donate)
    donated = program.donated if rules.donate else frozenset()
    kept = [value for i, value in enumerate(program.inputs) if rules.keep_inputs and i not in donated]
    extra = [buffer_bytes(program, instr) for instr in program.instrs] if rules.buffers else None
    return sizes, program.inputs, moments, program.outputs, kept, extra


def buffer_bytes(program: Program, instr: Instr) -> int:
    """What a collective needs while it runs, beside operand and result.

    A buffer has a block for each member along dim 0.  None is needed where blocks lie one after the other as it is:
    all dims before the one that is cut or joined are 1.  What is cut must also divide, or blocks are padded.
    """
    if instr.op not in _BUFFERED:
        return 0
    (operand,) = instr.inputs
    before, after = program.values[operand], program.values[instr.results[0]]
    block = list(before.spec.padded_shape(before.type.shape))
    joined, cut = instr.attr("dim"), instr.attr("to_dim", instr.attr("dim"))
    in_a_row = True
    if instr.op in _CUTTING:
        in_a_row = prod(block[:cut]) == 1 and after.type.shape[cut] % after.spec.dims[cut].shards == 0
        block[cut] = after.spec.padded_shape(after.type.shape)[cut]
    if instr.op in _JOINING:
        in_a_row = in_a_row and prod(block[:joined]) == 1
    return 0 if in_a_row else axes_size(instr.axes) * prod(block) * before.type.item_bytes


_CUTTING = frozenset({"reduce_scatter", "all_to_all"})
_JOINING = frozenset({"all_gather", "all_to_all"})
_BUFFERED = _CUTTING | _JOINING


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
