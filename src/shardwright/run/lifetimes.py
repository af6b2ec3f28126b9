"""What a run may forget, and when: last uses of values, and inputs that a caller donates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cost.memory import program_timeline
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
    """For each event of the Program's order the values nobody needs after it; a view keeps what it shows alive.

    Buffers of collectives are values after the Program's own.
    """
    found, events = _lifetimes(program, donate)
    dead: list[list[int]] = [[] for _ in range(events)]
    for value, n in found.last.items():
        dead[n].append(value)
    return dead


def ends(program: Program) -> list[int]:
    """For each value the last event that needs its bytes; the number of events where they stay.

    Inputs that the caller may donate are taken to be donated, others to stay.
    """
    found, stays = _lifetimes(program)
    staying = {value for i, value in enumerate(program.inputs) if i not in program.donated}
    return [stays if owner in staying else found.last.get(owner, stays) for owner in found.owner]


def _lifetimes(program: Program, donate: bool = True) -> tuple[Lifetimes, int]:
    uses, buffers = program_timeline(program, donate)
    return lifetimes(len(program.values) + len(buffers), uses, program.outputs), len(uses)
