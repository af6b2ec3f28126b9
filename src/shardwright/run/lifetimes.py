"""What a run may forget, and when: last uses of values, and inputs that a caller donates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import GraphError
from ..ir.nodes import flat_operands
from ..ir.program import Program


def take_over(inputs: Sequence[Any]) -> list[Any]:
    """What a caller donates: its list is empty afterwards."""
    if not isinstance(inputs, list):
        raise GraphError(
            f"donated inputs in a {type(inputs).__name__}, which keeps them",
            help="give a list, which is emptied, or leave donate out",
        )
    taken = inputs[:]
    inputs.clear()
    return taken


def last_uses(program: Program) -> list[list[int]]:
    """For each instruction the values nobody reads after it; a view keeps what it shows alive."""
    base = list(range(len(program.values)))
    last: dict[int, int] = {}
    for n, instr in enumerate(program.instrs):
        inputs = flat_operands(instr.operands)
        for result, operand in instr.views:
            base[instr.results[result]] = base[inputs[operand]]
        for value in (*inputs, *instr.results):
            last[value] = n
            last[base[value]] = n
    kept = {v for value in program.outputs for v in (value, base[value])}
    dead: list[list[int]] = [[] for _ in program.instrs]
    for value, n in last.items():
        if value not in kept:
            dead[n].append(value)
    return dead


def ends(program: Program) -> list[int]:
    """For each value the last instruction that needs its bytes; the number of instructions where they stay.

    Inputs that the program updates are taken to be donated, others to stay.
    """
    stays = len(program.instrs)
    base = list(range(len(program.values)))
    for instr in program.instrs:
        for result, operand in instr.views:
            base[instr.results[result]] = base[flat_operands(instr.operands)[operand]]
    last = [stays] * len(program.values)
    for n, dead in enumerate(last_uses(program)):
        for value in dead:
            last[value] = n
    updated = {i for i, _ in program.updates}
    for i, value in enumerate(program.inputs):
        if i not in updated:
            last[value] = stays
    return [last[owner] for owner in base]
