"""In which order a Program's instructions are issued: the one text that engines follow and costs replay.

A Program says what is computed, each value once; its *order* says when.  Local instructions run in one row.  A
collective is started, alone or in a bucket with others of its kind over the same axes that then share one start, and
waited for before anything reads its result; in between other instructions run.  Whatever the order, the same values
are computed from the same values: `check_order` is all that has to hold.

While a collective is under way its backend needs memory beside the Program's values: `Buffer`.

| collective | started | waited for |
|---|---|---|
| all_reduce | the result is made, as a copy of the operand | |
| all_reduce, bucket | ``flat``, of all operands | results are views of ``flat`` |
| all_gather | the result, or ``received`` if parts have to be put in place | the result is put together; operand free |
| all_gather, bucket | ``packed``, of all operands, and ``received`` | results are copied out |
| reduce_scatter, all_to_all | the result, and ``packed`` unless parts lie in a row | operand free |
| reduce_scatter, bucket | ``packed``, of all operands, and ``received`` | results are views of ``received`` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from ..errors import VerifyError
from ..spec.axes import axes_size
from .lifetimes import Use
from .program import RUN, START, WAIT, Event, Instr, Program

BUCKETED = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Collectives of which several can share a start."""
_CUTTING = frozenset({"reduce_scatter", "all_to_all"})
_JOINING = frozenset({"all_gather", "all_to_all"})
_BOTH = _CUTTING & _JOINING


def events_of(program: Program) -> tuple[Event, ...]:
    """The Program's order; where it has none, every instruction in its turn."""
    return program.order or program.in_turn


def bucket_key(program: Program, instr: Instr) -> tuple[str, ...]:
    """What collectives have to have in common to share a start."""
    dtype = program.values[instr.inputs[0]].type.dtype
    return instr.op, " ".join(map(str, instr.axes)), str(instr.attr("reduction", "")), dtype


def _text(members: tuple[int, ...], instrs: list[Instr]) -> str:
    return ", ".join(f"{n}: {instr.op}" for n, instr in zip(members, instrs))


def check_order(program: Program) -> Program:
    """Every instruction once, after what it reads; what is started together is alike, and waited for together."""
    here: set[int] = set(program.inputs)
    under_way: dict[tuple[int, ...], set[int]] = {}
    issued: set[int] = set()
    for kind, members in program.order:
        if not members or not all(0 <= n < len(program.instrs) for n in members):
            raise VerifyError(
                "the order speaks of instructions that there are not", rows=[("event", f"{kind} {members}")]
            )
        instrs = [program.instrs[n] for n in members]
        is_local = kind == RUN and len(members) == 1 and members[0] not in issued and not instrs[0].is_collective
        if is_local and here.issuperset(instrs[0].inputs):  # most events, in short
            issued.add(members[0])
            here.update(instrs[0].results)
            continue
        where = [("event", f"{kind} {_text(members, instrs)}")]
        if kind == WAIT:
            if members not in under_way:
                raise VerifyError("the order waits for what was not started together", rows=where)
            here |= under_way.pop(members)
            continue
        if kind not in (RUN, START) or issued & set(members) or len(set(members)) < len(members):
            raise VerifyError("the order issues an instruction a second time", rows=where)
        if (kind == START) != instrs[0].is_collective or (kind == RUN and len(members) > 1):
            raise VerifyError("in an order collectives are started, all else is run, one at a time", rows=where)
        if len(members) > 1 and (
            instrs[0].op not in BUCKETED or len({bucket_key(program, instr) for instr in instrs}) > 1
        ):
            raise VerifyError("the order starts collectives together that are not alike", rows=where)
        missing = [value for instr in instrs for value in instr.inputs if value not in here]
        if missing:
            raise VerifyError(f"the order reads %{program.values[missing[0]].name} before it is there", rows=where)
        issued |= set(members)
        made = {value for instr in instrs for value in instr.results}
        if kind == START:
            under_way[members] = made
        else:
            here |= made
    if program.order and (len(issued) < len(program.instrs) or under_way):
        raise VerifyError("the order leaves instructions out, or does not wait for what it started")
    return program


# -- memory beside values -------------------------------------------------------------------------------------


class Buffer(NamedTuple):
    """Memory that collectives need beside the Program's values."""

    role: str
    """``flat``, ``packed`` or ``received``."""
    members: tuple[int, ...]
    """Instructions that share it."""


class Timeline(NamedTuple):
    """What every event reads and makes; buffers count as values after the Program's own."""

    uses: list[Use]
    buffers: list[Buffer]


class _Started(NamedTuple):
    """What is under way."""

    makes: list[int]
    """At the start."""
    held: list[int]
    """Until it was waited for, and what it brings is in place."""
    later: list[int]
    """Results that are there only then."""
    shown: int | None = None
    """The buffer that they are views of."""
    sent: Sequence[int] = ()
    """Held until it was waited for, and not beyond."""


def timeline(program: Program) -> Timeline:
    """The Program's events as steps of which lifetimes can be told."""
    uses: list[Use] = []
    buffers: list[Buffer] = []
    under_way: dict[tuple[int, ...], _Started] = {}

    def buffer(role: str, *members: int) -> int:
        buffers.append(Buffer(role, members))
        return len(program.values) + len(buffers) - 1

    for kind, members in events_of(program):
        if kind == RUN:
            instr = program.instrs[members[0]]
            uses.append(instr.use)
            continue
        instrs = [program.instrs[n] for n in members]
        if kind == START:
            start = _bucket if len(members) > 1 else _alone
            under_way[members] = started = start(program, members, buffer)
            uses.append(Use([value for instr in instrs for value in instr.inputs], started.makes))
        else:
            started = under_way.pop(members)
            results = [value for instr in instrs for value in instr.results]
            if started.sent:  # gone before results are put together
                uses[-1] = uses[-1]._replace(reads=[*uses[-1].reads, *started.sent])
            reads = [*started.held, *(value for value in results if value not in started.later)]
            makes = list(started.later)
            views = [] if started.shown is None else [(i, reads.index(started.shown)) for i in range(len(makes))]
            uses.append(Use(reads, makes, views))
    return Timeline(uses, buffers)


def _alone(program: Program, members: tuple[int, ...], buffer: Callable[..., int]) -> _Started:
    (n,) = members
    instr = program.instrs[n]
    packs, unpacks = packing(program, instr)
    results = list(instr.results)
    if instr.op == "all_reduce":
        return _Started(results, [], [])
    if unpacks and not packs:
        received = buffer("received", n)
        return _Started([received], [received], results, sent=instr.inputs)
    if packs:
        packed = buffer("packed", n)
        return _Started([packed, *results], [packed], [])
    return _Started(results, list(instr.inputs), [])


def _bucket(program: Program, members: tuple[int, ...], buffer: Callable[..., int]) -> _Started:
    instrs = [program.instrs[n] for n in members]
    results = [value for instr in instrs for value in instr.results]
    if instrs[0].op == "all_reduce":
        flat = buffer("flat", *members)
        return _Started([flat], [flat], results, flat)
    packed, received = buffer("packed", *members), buffer("received", *members)
    if instrs[0].op == "all_gather":
        return _Started([packed, received], [received], results, sent=[packed])
    copies = [buffer("packed", n) for n, instr in zip(members, instrs) if packing(program, instr)[0]]
    return _Started([packed, received, *copies], [packed, received], results, received)


def packing(program: Program, instr: Instr, order: Sequence[int] | None = None) -> tuple[bool, bool]:
    """Whether what is sent has to be packed, and what is received to be put in place.

    A buffer has a block for each member along dim 0.  None is needed where blocks lie one after the other as it is:
    all dims before the one that is cut or joined are 1.  What is cut must also divide, or blocks are padded.
    ``order``: of the dims in memory, if they do not lie as they come.
    """
    if instr.op not in _CUTTING | _JOINING:
        return False, False
    before, after = program.values[instr.inputs[0]], program.values[instr.results[0]]
    dims = tuple(order or range(before.type.rank))
    block = list(before.spec.padded_shape(before.type.shape))
    joined, cut = instr.attr("dim"), instr.attr("to_dim", instr.attr("dim"))
    packs = unpacks = False
    if instr.op in _CUTTING:
        packs = _outer(block, dims, cut) != 1 or after.type.shape[cut] % after.spec.dims[cut].shards != 0
        block[cut] = after.spec.padded_shape(after.type.shape)[cut]
    if instr.op in _JOINING:
        unpacks = _outer(block, dims, joined) != 1
    return packs, unpacks


def _outer(block: Sequence[int], dims: Sequence[int], dim: int) -> int:
    """The product of all dims that lie before one."""
    return prod(block[d] for d in dims[: dims.index(dim)])


def block_bytes(program: Program, instr: Instr) -> int:
    """What one member sends to, or gets from, another."""
    before, after = program.values[instr.inputs[0]], program.values[instr.results[0]]
    block = list(before.spec.padded_shape(before.type.shape))
    if instr.op in _CUTTING:
        cut = instr.attr("to_dim", instr.attr("dim"))
        block[cut] = after.spec.padded_shape(after.type.shape)[cut]
    return prod(block) * before.type.item_bytes


def buffer_bytes(program: Program, buffer: Buffer, block: Callable[[Instr], int] | None = None) -> int:
    """``block`` as `block_bytes`, from elsewhere."""
    total = 0
    for n in buffer.members:
        instr = program.instrs[n]
        one_for_each = buffer.role == ("received" if instr.op in _JOINING else "packed") or instr.op in _BOTH
        size = block_bytes(program, instr) if block is None else block(instr)
        total += size * (axes_size(instr.axes) if one_for_each else 1)
    return total
