"""Which collectives can hide behind compute.

A collective is told by the value it moves:

| role | the value | hides behind |
|---|---|---|
| ``weight`` | made of state alone, before any arithmetic, and arithmetic needs it | what is computed before its use |
| ``gradient`` | only leads to new state, with no arithmetic left on the way | what is left of the backward pass |
| ``renewed`` | new state | what is left of the updates: little |
| none | everything else | nothing: what follows waits for it |

State is what a step updates, so a program without updates has no roles.  All copies of a value have its role; hence a
solver, which thinks of values, and a Program, which holds the copies, agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..ir.graph import Graph
from ..ir.program import Program
from ..rules.registry import find
from .compute import ARITHMETIC, cost_class


class _Step(NamedTuple):
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    works: bool


def graph_roles(graph: Graph) -> tuple[str | None, ...]:
    """The role of every value of a Graph."""
    steps = [_Step(node.inputs, node.results, _works(node.op)) for node in graph.nodes]
    state = [graph.inputs[i] for i, _ in graph.updates]
    return _roles(len(graph.values), steps, graph.inputs, state, [graph.outputs[j] for _, j in graph.updates])


def program_roles(program: Program, graph: Graph | None = None) -> tuple[str | None, ...]:
    """The role of every value of a Program; with its ``graph`` ops of local forms count as what they carry out."""
    alike: dict[int, int] = {}
    of = [local.id if local.origin is None else alike.setdefault(local.origin, local.id) for local in program.values]
    steps = []
    for instr in program.instrs:
        op = instr.op
        if graph is not None and instr.node is not None and find(op) is None:
            op = graph.nodes[instr.node].op
        reads, makes = (tuple(of[value] for value in values) for values in (instr.inputs, instr.results))
        steps.append(_Step(reads, makes, not instr.is_collective and instr.node is not None and _works(op)))
    state = [of[program.inputs[i]] for i, _ in program.updates]
    inputs = [of[value] for value in program.inputs]
    found = _roles(len(program.values), steps, inputs, state, [of[program.outputs[j]] for _, j in program.updates])
    return tuple(found[value] for value in of)


def state_made(
    steps: Sequence[tuple[int | None, Sequence[int], Sequence[int]]], state: Iterable[int]
) -> frozenset[int]:
    """Of steps (the node that each carries out, what it reads, what it makes) those that need nothing but state.

    They may run at any time before who reads them.  All steps of a node are such, or none: then a Graph, whose steps
    are its nodes, has every node that a Program of it has.  A step that reads nothing is none.

    >>> sorted(state_made([(0, (1,), (2,)), (1, (2,), (3,)), (2, (0, 3), (4,))], [1]))
    [0, 1]
    """
    barred: set[int | None] = set()
    while True:
        known, found, others = set(state), list[int](), set[int | None]()
        for i, (node, reads, makes) in enumerate(steps):
            if reads and node not in barred and known.issuperset(reads):
                known.update(makes)
                found.append(i)
            elif node is not None:
                others.add(node)
        if others <= barred or not found:
            return frozenset(found)
        barred = others


def _works(op: str) -> bool:
    return cost_class(find(op)) in ARITHMETIC


def _roles(
    count: int, steps: Sequence[_Step], inputs: Iterable[int], state: Iterable[int], updated: Iterable[int]
) -> tuple[str | None, ...]:
    made, needed, renewing, renewed = ([False] * count for _ in range(4))
    stateful: list[bool | None] = [None] * count
    """False where anything else had a part in it; None for what is made of nothing, which has no say."""
    for value in inputs:
        stateful[value] = False
    for value in state:
        stateful[value] = True
    for value in updated:
        renewing[value] = renewed[value] = True
    for step in steps:
        worked = step.works or any(made[value] for value in step.reads)
        parts = {stateful[value] for value in step.reads} - {None}
        from_state = False not in parts if parts else None
        for value in step.makes:
            made[value] |= worked
            # A copy of state is state; what other copies of a value are made of does not change that.
            stateful[value] = from_state if stateful[value] is None else stateful[value]
    for step in reversed(steps):
        needs = step.works or any(needed[value] for value in step.makes)
        renews = any(renewing[value] for value in step.makes)
        for value in step.reads:
            needed[value] |= needs
            renewing[value] |= renews
    return tuple(
        "weight"
        if needed[value] and stateful[value] and not made[value]
        else "renewed"
        if renewed[value] and not needed[value]
        else "gradient"
        if renewing[value] and not needed[value]
        else None
        for value in range(count)
    )
