"""`Program`: one SPMD text for all devices, after lowering.

Every device runs the same instructions on its own shards.  An instruction is a local op of some frontend, a
``core.*`` op, or a collective over mesh axes.  What differs between devices follows from the shardings of the
values (`Local.spec`) and from ``core.axis_index``; nothing else depends on the rank.  The virtual mesh interprets
a Program, PyTorch's FX graph is emitted from it, costs and proofs are computed on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple

from ..errors import GraphError
from ..spec.axes import Axes, axes_size, axes_text
from ..spec.collective import COLLECTIVES, collective_bytes
from ..spec.mesh import DeviceMesh
from ..spec.sharding import Shape, ShardingSpec
from ..spec.tensors import tensor_text
from .graph import Attrs, Node, Operand, SourceLine, TensorType
from .lifetimes import Use
from .nodes import flat_operands
from .text import node_text, quoted


@dataclass(frozen=True, slots=True)
class Local:
    """A value of the Program: the shard of a tensor, or its pending contribution."""

    id: int
    type: TensorType
    """Of the whole tensor."""
    spec: ShardingSpec
    name: str
    origin: int | None = None
    """The value of the Graph that it is a copy of, if any."""

    def local_shape(self, position: int) -> Shape:
        return self.spec.local_shape(self.type.shape, position)

    @property
    def padded_bytes(self) -> int:
        """Bytes of the largest shard: what a device sets aside, and what collectives move."""
        return prod(self.spec.padded_shape(self.type.shape)) * self.type.item_bytes

    def __str__(self) -> str:
        return tensor_text(self.type.dtype, self.type.shape, self.spec)


@dataclass(frozen=True, slots=True)
class Instr:
    """One instruction.  For a collective ``axes`` is what it runs over; ``cause`` says why it is there."""

    op: str
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    attrs: Attrs = ()
    axes: Axes = ()
    bytes: int = 0
    """What one device sends."""
    node: int | None = None
    """The node of the Graph that it carries out."""
    cause: str = ""
    source: SourceLine | None = None
    views: tuple[tuple[int, int], ...] = ()
    """Pairs (result, flat operand): that result shows that operand's bytes."""
    inputs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The tensors that go in, lists flattened and absent ones left out."""
    use: Use = field(init=False, repr=False, compare=False)
    """What it reads and makes where it runs at once, as collectives do not: the same in every order."""

    def __post_init__(self) -> None:
        inputs = flat_operands(self.operands)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "use", Use(inputs, self.results, self.views))

    @property
    def is_collective(self) -> bool:
        return self.op in COLLECTIVES

    def attr(self, name: str, default: Any = None) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def as_node(self) -> Node:
        return Node(self.op, self.operands, self.results, self.attrs, (), self.source)


RUN, START, WAIT = "run", "start", "wait"


class Event(NamedTuple):
    """One thing that a device does next; see `order`."""

    kind: str
    """``run`` a local instruction; ``start`` collectives, together if they are several; ``wait`` for what was started
    together."""
    members: tuple[int, ...]
    """Instructions of the Program."""


@cache
def run_event(n: int) -> Event:
    """That a local instruction runs: one object in all orders of all Programs, of which many are tried."""
    return Event(RUN, (n,))


class Collective(NamedTuple):
    """What `Program.collectives` lists."""

    kind: str
    axis: str
    bytes: int


@dataclass(frozen=True)
class Program:
    """The SPMD program; inputs and outputs are values in the order of the Graph's."""

    name: str
    mesh: DeviceMesh
    values: tuple[Local, ...]
    instrs: tuple[Instr, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    updates: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    """What a user should know, e.g. which ops run replicated."""
    spent: tuple[int, ...] = ()
    """Inputs, by position, that the caller hands over beside those that are updated."""
    order: tuple[Event, ...] = ()
    """When each instruction is issued; empty: one after the other, collectives finished at once."""

    @cached_property
    def donated(self) -> frozenset[int]:
        """Inputs, by position, that are gone after their last reader where the caller donates them."""
        return frozenset((*self.spent, *(i for i, _ in self.updates)))

    @cached_property
    def in_turn(self) -> tuple[Event, ...]:
        """One instruction after the other, collectives finished at once."""
        found: list[Event] = []
        for n, instr in enumerate(self.instrs):
            found += [Event(START, (n,)), Event(WAIT, (n,))] if instr.is_collective else [run_event(n)]
        return tuple(found)

    @cached_property
    def collectives(self) -> list[Collective]:
        """Every collective in order: kind, axes, bytes that one device sends."""
        return [Collective(i.op, axes_text(i.axes), i.bytes) for i in self.instrs if i.is_collective]

    @property
    def bytes(self) -> int:
        return sum(collective.bytes for collective in self.collectives)

    def locals_of(self, values: Sequence[int]) -> Iterator[Local]:
        return (self.values[value] for value in values)

    def __str__(self) -> str:
        return program_text(self)


def program_text(program: Program) -> str:
    """Each line with the shardings of what it makes; collectives with bytes and cause."""

    def name(value: int) -> str:
        return "%" + quoted(program.values[value].name)

    def type_text(value: int) -> str:
        return str(program.values[value])

    inputs = ", ".join(f"{name(value)}: {type_text(value)}" for value in program.inputs)
    lines = [f"spmd {quoted(program.name)} on ({program.mesh}) ({inputs}) {{"]
    for instr in program.instrs:
        line = "  " + node_text(instr.as_node(), name, type_text, sources=False)
        if instr.axes:
            sent = f": {instr.bytes} B" if instr.is_collective else ""
            line += f"  # {axes_text(instr.axes)}{sent}" + (f", {instr.cause}" if instr.cause else "")
        elif instr.source is not None:
            line += f"  # {instr.source}"
        lines.append(line)
    lines.append(f"  return {', '.join(map(name, program.outputs))}".rstrip())
    for i, output in program.updates:
        lines.append(f"  update {name(program.inputs[i])} := output {output}")
    return "\n".join([*lines, "}", *(f"# {note}" for note in program.notes)])


def check_program(program: Program) -> Program:
    """Single assignment, values that exist, shardings on the mesh, bytes as defined."""
    made: set[int] = set(program.inputs)
    for n, instr in enumerate(program.instrs):
        where = [("instruction", f"{n}: {instr.op}")]
        for value in instr.inputs:
            if value not in made:
                raise GraphError(f"reads value {value} before it is made", rows=where)
        for value in instr.results:
            if value in made:
                raise GraphError(f"makes value {value} a second time", rows=where)
            made.add(value)
        if instr.is_collective:
            put_in = program.values[instr.inputs[0]].padded_bytes
            if instr.bytes < collective_bytes(instr.op, axes_size(instr.axes), put_in):
                raise GraphError("claims fewer bytes than it sends", rows=where)
    for local in program.values:
        if local.spec.mesh != program.mesh:
            raise GraphError(f"%{local.name} is on another mesh", rows=[("mesh", str(local.spec.mesh))])
        local.spec.check_rank(local.type.shape)
    return program
