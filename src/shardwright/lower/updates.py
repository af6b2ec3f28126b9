"""`together`: a pass that brings ops which work in place next to each other, so that one kernel can do many of them.

Such an op is the step of an optimizer for one parameter.  Between two of them stand the collectives that bring the next
gradient, and those that bring the last new parameter to where it belongs.  Each op waits until somebody computes with
what it makes; reshards of that wait with it.  Gradients live longer then, so it is done only as far as the peak of
memory stays what it was.
"""

from __future__ import annotations

from dataclasses import replace

from ..cost.profile import RESIDENT, program_memory
from ..ir.program import Instr, Program
from ..rules.registry import find

BATCHES = (1 << 30, 64, 16, 4)
"""How many ops may wait for each other: as many as there are, or fewer where gradients would take too much memory."""


def together(program: Program) -> Program:
    """The same instructions in another order."""
    works = [_in_place(instr) for instr in program.instrs]
    if sum(works) < 2:
        return program
    peak = program_memory(program, RESIDENT)
    for most in BATCHES:
        made = replace(program, instrs=tuple(_ordered(program, works, most)))
        if program_memory(made, RESIDENT) <= peak:
            return made
    return program


def _in_place(instr: Instr) -> bool:
    record = find(instr.op) if instr.views else None
    return record is not None and record.in_place


def _ordered(program: Program, works: list[bool], most: int) -> list[Instr]:
    order: list[Instr] = []
    waiting: list[Instr] = []
    behind: list[Instr] = []
    """Reshards of what is waited for."""
    late: set[int] = set()

    def flush() -> None:
        order.extend((*waiting, *behind))
        for some in (waiting, behind, late):
            some.clear()

    for instr, works_in_place in zip(program.instrs, works):
        needs = any(value in late for value in instr.inputs)
        if works_in_place:
            if needs or len(waiting) >= most:
                flush()
            waiting.append(instr)
        elif needs and instr.node is None:
            behind.append(instr)
        else:
            if needs:
                flush()
            order.append(instr)
            continue
        late.update(instr.results)
    flush()
    return order
