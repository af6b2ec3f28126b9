"""Where every instruction of a Program belongs: its phase, its module, its line.

Modules are those that hold the inputs of the program, and what runs inside them; a program without modules (a function
of NumPy arrays) has its functions instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..frontends.base import BACKWARD, CONSTANT, DATA, FORWARD, NORM, OPTION, PARAMETER, RANDOM, UPDATE, Input, Source
from ..ir.graph import Graph, Node, SourceLine
from ..ir.program import Instr, Program

PHASES = (FORWARD, BACKWARD, NORM, UPDATE)
ROOT = "(whole program)"
"""What stands in no module, and in no function."""


@dataclass(frozen=True)
class Places:
    """For every node of the planned graph, and every instruction of its Program."""

    graph: Graph
    program: Program
    inputs: Mapping[int, Input]
    """What the inputs of the graph are, by value."""
    node_phases: tuple[str, ...]
    node_modules: tuple[str, ...]
    phases: tuple[str, ...]
    """Of instructions."""
    modules: tuple[str, ...]

    @staticmethod
    def of(source: Source, graph: Graph, program: Program) -> Places:
        inputs = dict(zip(graph.inputs, source.inputs_are))
        found = _Finder(source, graph, program, inputs)
        node_phases = found.node_phases()
        node_modules = tuple(map(found.of_node, graph.nodes))
        phases, modules = [], []
        after: list[int | None] = [None] * len(program.instrs)
        coming: int | None = None
        for n in range(len(program.instrs) - 1, -1, -1):  # a reshard stands before the node that asks for it
            node = program.instrs[n].node
            coming = node if node is not None else coming
            after[n] = coming
        last = node_phases[-1] if node_phases else FORWARD
        for n, instr in enumerate(program.instrs):
            near = after[n]
            phases.append(last if near is None else node_phases[near])
            modules.append(found.of_instr(instr, node_modules))
        return Places(graph, program, inputs, node_phases, node_modules, tuple(phases), tuple(modules))

    def value_module(self, value: int) -> str:
        """The module of a value of the Program: that of the input, or of the node, which it is a copy of."""
        origin = self.program.values[value].origin
        return ROOT if origin is None else self.origin_module(origin)

    def origin_module(self, origin: int) -> str:
        about = self.inputs.get(origin)
        if about is not None:
            return input_module(about, self.inputs.values())
        maker = self.graph.node_of(origin)
        return ROOT if maker is None else self.node_modules[maker]


def input_module(about: Input, inputs: Collection[Input]) -> str:
    """The module that holds an input: for state of a parameter that of the parameter.

    Data stands by itself; in a program without parameters each argument is a row of its own.
    """
    if about.module:
        return about.module
    if about.owner:
        owner = next((other for other in inputs if other.name == about.owner), None)
        return (owner.module if owner is not None else about.owner.rpartition(".")[0]) or ROOT
    if about.role in (OPTION, RANDOM):
        return "(options)"
    if about.role in (DATA, CONSTANT):
        return "(data)" if any(other.role == PARAMETER for other in inputs) else about.name
    return ROOT


class _Finder:
    def __init__(self, source: Source, graph: Graph, program: Program, inputs: Mapping[int, Input]) -> None:
        self.source, self.graph, self.program, self.inputs = source, graph, program, inputs
        self.roots = {about.module.partition(".")[0] for about in inputs.values() if about.module}
        self.owners = {about.name: about.module for about in inputs.values()}

    def module(self, line: SourceLine | None) -> str:
        """The module of a line, or its function."""
        if line is None or not line.scope:
            return ROOT
        if not self.roots or line.scope.partition(".")[0] in self.roots:
            return line.scope
        return f"({line.scope})"

    def of_node(self, node: Node) -> str:
        """By its line; a node without one (an optimizer's, called from no file) stands with the parameter it reads."""
        if node.source is None:
            about = (self.inputs[value] for value in node.inputs if value in self.inputs)
            owner = next((item.module for item in about if item.role == PARAMETER and item.module), None)
            if owner is not None:
                return owner
        return self.module(node.source)

    def of_instr(self, instr: Instr, node_modules: Sequence[str]) -> str:
        if instr.source is not None:
            return self.module(instr.source)
        if instr.node is not None:
            return node_modules[instr.node]
        origins = [self.program.values[value].origin for value in (*instr.results, *instr.inputs)]
        origin = next((origin for origin in origins if origin is not None), None)
        if origin is None:
            return ROOT
        about = self.inputs.get(origin)
        if about is not None:
            return about.module or self.owners.get(about.owner) or ROOT
        maker = self.graph.node_of(origin)
        return ROOT if maker is None else node_modules[maker]

    def node_phases(self) -> tuple[str, ...]:
        """Passes before planning keep the names of values, so a node is of the phase of what made its results; one
        that is new stands with the node before it."""
        captured = self.source.graph
        phase_of = {
            captured.values[value].name: phase
            for node, phase in zip(captured.nodes, self.source.phases)
            for value in node.results
        }
        phases, phase = [], FORWARD
        for node in self.graph.nodes:
            known = [phase_of[name] for v in node.results if (name := self.graph.values[v].name) in phase_of]
            phase = max([*known], key=PHASES.index) if known else phase
            phases.append(phase)
        return tuple(phases)
