"""`without_repeats`: a pass over Programs that takes out communication which brings nothing new.

| what | becomes |
|---|---|
| a copy of a value in a sharding in which it was there before | that copy, kept until its last reader |
| a gather of which every reader keeps a part again | the cheapest steps from what was gathered to these parts |

Copies of a value share their reshards when they are lowered; what is left are steps that two paths have in common, and
those inside ops that are carried out in parts.  A result that is kept longer takes memory: where the peak would grow
beyond the limit, a repeat stays.  So it does where the plan makes a copy anew on purpose (``again``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..cost.profile import RESIDENT, program_memory
from ..ir.nodes import Operand
from ..ir.program import Instr, Program, check_program
from ..plans.amounts import amount_text
from ..spec.resharding.cheapest import reshard
from ..spec.resharding.steps import Step
from ..spec.sharding import ShardingSpec
from .lowering import LOCAL_STEPS, step_instr

Repeat = tuple[int, int]
"""An instruction, and the value, there before it, that it makes."""
_GATHERS = ("all_gather",)
_MOST_TRIED = 64
"""Repeats that are tried one by one where all of them together take too much memory."""


def without_repeats(program: Program, again: Collection[int] = (), limit: int | None = None) -> Program:
    """The same Program with less communication; ``again``: values of the Graph whose copies are made anew on purpose.

    The peak stays what it was, or within ``limit`` bytes of a device.
    """
    if not any(map(_is_step, program.instrs)):
        return program
    made, most = program, 0
    while True:
        # First what can be shared: a gather that somebody reads whole serves those who keep a part, too.
        repeats = list(_repeats(made, again))
        direct = _Direct(made).program
        if not repeats and direct is made:
            break
        most = most or max(program_memory(program, RESIDENT), limit or 0)
        less = _merged(made, _that_fit(made, repeats, most)) if repeats else made
        if less is made:
            less = direct
        if less is made or program_memory(less, RESIDENT) > most:
            break
        made = less
    if (len(made.collectives), made.bytes) == (len(program.collectives), program.bytes):
        return program
    return check_program(replace(made, notes=tuple(dict.fromkeys([*made.notes, _told(program, made)]))))


def _that_fit(program: Program, repeats: list[Repeat], most: int) -> list[Repeat]:
    """Repeats that can be left out within so many bytes."""
    if program_memory(_merged(program, repeats), RESIDENT) <= most:
        return repeats
    chosen: list[Repeat] = []
    for repeat in repeats[:_MOST_TRIED]:
        if program_memory(_merged(program, [*chosen, repeat]), RESIDENT) <= most:
            chosen.append(repeat)
    return chosen


def _told(before: Program, after: Program) -> str:
    """What was saved, in words."""
    fewer, saved = len(before.collectives) - len(after.collectives), before.bytes - after.bytes
    count = f"{fewer} collectives fewer" if fewer >= 0 else f"{-fewer} collectives more"
    return f"redundancy: {count}, {amount_text(saved)} a device less"


# -- what was made before ---------------------------------------------------------------------------------


def _is_step(instr: Instr) -> bool:
    """Part of a reshard: what it makes follows from its operand alone."""
    return instr.node is None and (instr.is_collective or instr.op in LOCAL_STEPS.values())


def _repeats(program: Program, again: Collection[int]) -> Iterator[Repeat]:
    """Steps whose result is there: of one value, however it came about, or pending alike."""
    root: dict[int, int] = {}
    """What a value was made of by reshards alone."""
    there: dict[object, int] = {}
    same: dict[int, int] = {}
    for n, instr in enumerate(program.instrs):
        if not _is_step(instr):
            continue
        (value,), (result,) = instr.inputs, instr.results
        value = same.get(value, value)
        source, local = program.values[value], program.values[result]
        root[result] = root.setdefault(value, value)
        there.setdefault((root[value], source.spec), value)
        made_by = (instr.op, value, instr.axes) if local.spec.partial else ()
        known = there.setdefault((root[value], local.spec, *made_by), result)
        handed_out = result in program.outputs and (not instr.is_collective or known in program.inputs)
        if known == result or handed_out or local.origin in again:
            continue
        if local.origin == program.values[known].origin:
            same[result] = known
            yield n, known


def _merged(program: Program, repeats: Iterable[Repeat]) -> Program:
    """Without the repeats; whoever read them reads what was there."""
    left_out = dict(repeats)
    instead: dict[int, int] = {}
    for n, value in sorted(left_out.items()):
        instead[program.instrs[n].results[0]] = instead.get(value, value)
    kept = tuple(instr for n, instr in enumerate(program.instrs) if n not in left_out)
    return _numbered(replace(program, instrs=kept), instead) if left_out else program


def _numbered(program: Program, instead: Mapping[int, int]) -> Program:
    """Without values that nobody makes, and with some read instead of others."""
    made = {*program.inputs, *(v for instr in program.instrs for v in instr.results)}
    number = {v: i for i, v in enumerate(v for v in range(len(program.values)) if v in made)}

    def new(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(number[instead.get(v, v)] for v in values)

    def operand(values: Operand) -> Operand:
        return new(values) if isinstance(values, tuple) else None if values is None else new([values])[0]

    instrs = tuple(
        replace(instr, operands=tuple(map(operand, instr.operands)), results=new(instr.results))
        for instr in program.instrs
    )
    values = tuple(replace(program.values[v], id=i) for v, i in number.items())
    return replace(program, values=values, instrs=instrs, inputs=new(program.inputs), outputs=new(program.outputs))


# -- gathered, and cut again ------------------------------------------------------------------------------


class _Direct:
    """Gathers of which only parts are kept, replaced by steps that lead there directly."""

    def __init__(self, program: Program) -> None:
        self.before = program
        self.readers: dict[int, list[int]] = {}
        for n, instr in enumerate(program.instrs):
            for value in instr.inputs:
                self.readers.setdefault(value, []).append(n)
        self.values = list(program.values)
        self.written: dict[int, list[Instr]] = {}
        """By instruction what takes its place."""
        self.instead: dict[int, int] = {}
        """Parts that were there before they were gathered."""
        for n, instr in enumerate(program.instrs):
            if instr.op in _GATHERS and _is_step(instr):
                self._try(n, instr)

    @property
    def program(self) -> Program:
        if not self.written:
            return self.before
        instrs = tuple(new for n, old in enumerate(self.before.instrs) for new in self.written.get(n, [old]))
        made = replace(self.before, values=tuple(self.values), instrs=instrs)
        return _numbered(made, self.instead)

    def _try(self, n: int, gather: Instr) -> None:
        source = self.before.values[self.instead.get(gather.inputs[0], gather.inputs[0])]
        value = gather.results[0]
        parts = self.readers.get(value, [])
        if value in self.before.outputs or not all(map(self._keeps_a_part, parts)):
            return
        ways = {part: self._way(source.spec, self.before.instrs[part]) for part in parts}
        if sum(step.bytes for way in ways.values() for step in way) >= gather.bytes:
            return
        self.written[n] = []
        for part, way in ways.items():
            self.written[part] = list(self._carried_out(source.id, self.before.instrs[part], way))

    def _keeps_a_part(self, n: int) -> bool:
        instr = self.before.instrs[n]
        return instr.op == LOCAL_STEPS["slice"] and _is_step(instr)

    def _way(self, spec: ShardingSpec, part: Instr) -> Sequence[Step]:
        local = self.before.values[part.results[0]]
        return reshard(spec, local.spec, local.type.shape, local.type.item_bytes, idle=False)

    def _carried_out(self, at: int, part: Instr, way: Sequence[Step]) -> Iterator[Instr]:
        result = self.before.values[part.results[0]]
        if not way:
            self.instead[result.id] = at
        for step in way[:-1]:
            made = len(self.values)
            name = f"{result.name}_by_{made}"
            self.values.append(replace(result, id=made, spec=step.after.closed(), name=name))
            yield step_instr(step, at, made, part.cause, part.source)
            at = made
        for step in way[-1:]:
            yield step_instr(step, at, result.id, part.cause, part.source)
