"""What a run may forget, and when: last uses of values, and inputs that a caller donates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cost.memory import program_uses
from ..errors import GraphError
from ..ir.lifetimes import Lifetimes, lifetimes
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


def last_uses(program: Program, donate: bool) -> list[list[int]]:
    """For each instruction the values nobody reads after it; a view keeps what it shows alive."""
    dead: list[list[int]] = [[] for _ in program.instrs]
    for value, n in _lifetimes(program, donate).last.items():
        dead[n].append(value)
    return dead


def ends(program: Program) -> list[int]:
    """For each value the last instruction that needs its bytes; the number of instructions where they stay.

    Inputs that the caller may donate are taken to be donated, others to stay.
    """
    found, stays = _lifetimes(program), len(program.instrs)
    staying = {value for i, value in enumerate(program.inputs) if i not in program.donated}
    return [stays if owner in staying else found.last.get(owner, stays) for owner in found.owner]


def _lifetimes(program: Program, donate: bool = True) -> Lifetimes:
    return lifetimes(len(program.values), program_uses(program, donate), program.outputs)
