"""A Program cut into lemmas: a few instructions each, that compute what a few nodes of the Graph do.

Lowering notes of most values of a Program which value of the Graph they are a copy of.  A *lemma* takes such notes
for granted of what some instructions read, and asks whether they hold of what these make, whatever the tensors are.
By induction over the instructions the lemmas of a Program show that its outputs are the Graph's.  Notes are hints
and nothing more: a wrong one makes a lemma false, it cannot make a false one true.

Where a value has no note, a lemma reaches back to the next ones that have; a Program without any is one lemma.  Equal
layers make equal lemmas, so that a deep network has hardly more of them than a shallow one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import VerifyError
from ..ir.graph import Graph, Node, Operand, Value
from ..ir.program import Instr, Local, Program

REACH = 64
"""The most nodes of the Graph that a wide lemma goes back; what it has not met by then may be anything."""


@dataclass(frozen=True)
class Lemma:
    """That a Program computes what a Graph does, whatever they are given.

    The Program's inputs are copies of some of the Graph's: ``copy_of[i]`` is the position of the one that input i
    copies.  The Graph may have inputs that the Program does not read.
    """

    graph: Graph
    program: Program
    copy_of: tuple[int, ...]
    place: int = -1
    """The last instruction that it is about, in the Program that it is cut from; -1 where it is about none."""

    @property
    def ops(self) -> set[str]:
        return {node.op for node in self.graph.nodes} | {instr.op for instr in self.program.instrs}

    @property
    def key(self) -> tuple[object, ...]:
        """Lemmas with equal keys say the same."""
        graph, program = self.graph, self.program
        return (
            tuple((node.op, node.operands, node.results, repr(node.attrs)) for node in graph.nodes),
            tuple(value.type for value in graph.values),
            (graph.inputs, graph.outputs),
            tuple((i.op, i.operands, i.results, repr(i.attrs), i.axes) for i in program.instrs),
            tuple((local.type, local.spec) for local in program.values),
            (program.inputs, program.outputs, self.copy_of),
        )


def whole_lemma(graph: Graph, program: Program) -> Lemma:
    """The Program in one piece."""
    return Lemma(graph, program, tuple(range(len(program.inputs))), len(program.instrs) - 1)


def check_ends(graph: Graph, program: Program) -> None:
    """The same inputs and outputs, of the same types, and the same updates."""
    for what, ours, theirs in (
        ("inputs", graph.inputs, program.inputs),
        ("outputs", graph.outputs, program.outputs),
    ):
        if len(ours) != len(theirs):
            raise VerifyError(f"the graph has {len(ours)} {what}, the program {len(theirs)}")
        for i, (value, local) in enumerate(zip(ours, theirs)):
            if graph.type(value) != program.values[local].type:
                rows = [("graph", str(graph.type(value))), ("program", str(program.values[local].type))]
                raise VerifyError(f"graph and program differ in the type of {what} {i}", rows=rows)
    if sorted(graph.updates) != sorted(program.updates):
        rows = [("graph", str(graph.updates)), ("program", str(program.updates))]
        raise VerifyError("graph and program update different inputs", rows=rows)


def lemmas(graph: Graph, program: Program) -> Iterator[Lemma]:
    """Lemmas that together show the Program's outputs to be the Graph's, in the order of the instructions."""
    cutter = _Cutter(graph, program)
    for n in sorted(cutter.needed):
        noted = [value for value in program.instrs[n].results if value in cutter.notes]
        if noted:
            yield cutter.lemma(n, noted, [cutter.notes[value] for value in noted])
    for value, local in zip(graph.outputs, program.outputs):
        note = cutter.notes.get(local)
        if note is None:
            yield cutter.lemma(cutter.maker[local], [local], [value])
        elif note != value:
            yield cutter.lemma(None, [local], [value])


def lemma_at(graph: Graph, program: Program, lemma: Lemma, reach: int) -> Lemma:
    """The same lemma with more of the Graph: so many nodes back from what it shows."""
    cutter = _Cutter(graph, program, reach)
    if lemma.place < 0:
        return lemma
    noted = [value for value in program.instrs[lemma.place].results if value in cutter.notes]
    return cutter.lemma(lemma.place, noted, [cutter.notes[value] for value in noted]) if noted else lemma


class _Cutter:
    def __init__(self, graph: Graph, program: Program, reach: int = 1) -> None:
        self.graph, self.program, self.most = graph, program, reach
        self.maker = {value: n for n, instr in enumerate(program.instrs) for value in instr.results}
        self.notes = self._notes()
        """For values of the Program the value of the Graph that each is said to be a copy of."""
        self.needed = self._needed()

    def _notes(self) -> dict[int, int]:
        graph, program = self.graph, self.program
        found: dict[int, int] = {}
        for instr in program.instrs:
            made: tuple[int, ...] = ()
            if instr.node is not None and 0 <= instr.node < len(graph.nodes):
                made = graph.nodes[instr.node].results
            for r, value in enumerate(instr.results):
                note = program.values[value].origin
                if note is None and len(made) == len(instr.results):
                    note = made[r]
                known = note is not None and 0 <= note < len(graph.values)
                if known and note is not None and graph.type(note) == program.values[value].type:
                    found[value] = note
        found.update(zip(program.inputs, graph.inputs))
        return found

    def _needed(self) -> set[int]:
        """Instructions on which an output depends."""
        found: set[int] = set()
        waiting = list(self.program.outputs)
        while waiting:
            n = self.maker.get(waiting.pop())
            if n is not None and n not in found:
                found.add(n)
                waiting.extend(self.program.instrs[n].inputs)
        return found

    def lemma(self, n: int | None, values: Sequence[int], notes: Sequence[int]) -> Lemma:
        """That these values, made by instruction n, are copies of these of the Graph.

        What they are made from is taken to be what is noted of it; without an instruction, they themselves are.
        """
        instrs, given = ([], list(values)) if n is None else self.reach(n, notes)
        program = _part_of_program(self.program, instrs, given, values)
        known = list(dict.fromkeys(self.notes[value] for value in given))
        graph = _part_of_graph(self.graph, known, notes, self.most)
        return Lemma(graph, program, tuple(known.index(self.notes[value]) for value in given), -1 if n is None else n)

    def reach(self, n: int, notes: Sequence[int]) -> tuple[list[int], list[int]]:
        """The instructions from here back to values that have a note, and those values.

        What the same nodes make beside is not taken for granted: one result of an op says something of the others.
        """
        makers = {self.graph.node_of(note) for note in notes} - {None}
        beside = {value for m in makers if m is not None for value in self.graph.nodes[m].results} - set(notes)
        members: set[int] = set()
        given: dict[int, None] = {}
        waiting = [n]
        while waiting:
            m = waiting.pop()
            if m in members:
                continue
            members.add(m)
            for value in self.program.instrs[m].inputs:
                if value in self.notes and (self.notes[value] not in beside or value not in self.maker):
                    given[value] = None
                else:
                    waiting.append(self.maker[value])
        return sorted(members), list(given)


def _part_of_program(program: Program, instrs: Iterable[int], given: Sequence[int], outputs: Sequence[int]) -> Program:
    """Some of its instructions as a Program of their own, with values numbered as they come up."""
    number: dict[int, int] = {value: i for i, value in enumerate(given)}
    kept = list(given)
    made = []
    for n in instrs:
        instr = program.instrs[n]
        for value in instr.results:
            # A value that is noted and made here, too, is made anew: nothing is taken for granted of it.
            number[value] = len(kept)
            kept.append(value)
        made.append(
            Instr(instr.op, _renumbered(instr.operands, number), tuple(number[v] for v in instr.results), instr.attrs,
                  instr.axes, instr.bytes)
        )  # fmt: skip
    values = tuple(Local(i, program.values[v].type, program.values[v].spec, str(i)) for i, v in enumerate(kept))
    return Program(
        "lemma", program.mesh, values, tuple(made), tuple(range(len(given))), tuple(number[v] for v in outputs)
    )


def _part_of_graph(graph: Graph, given: Sequence[int], outputs: Sequence[int], reach: int) -> Graph:
    """The nodes that make the outputs from what is given; anything else that they read is an input, too."""
    members: set[int] = set()
    waiting = [value for value in outputs if value not in given]
    while waiting and len(members) < max(reach, len(outputs)):
        n = graph.node_of(waiting.pop(0))
        if n is not None and n not in members:
            members.add(n)
            waiting += [value for value in graph.nodes[n].inputs if value not in given]
    inside = {value for n in members for value in graph.nodes[n].results}
    reads = [value for n in sorted(members) for value in graph.nodes[n].inputs]
    inputs = list(dict.fromkeys([*given, *(value for value in (*reads, *outputs) if value not in inside)]))
    number = {value: i for i, value in enumerate(inputs)}
    values = [Value(i, graph.type(value), str(i)) for i, value in enumerate(inputs)]
    nodes: list[Node] = []
    for n in sorted(members):
        node = graph.nodes[n]
        operands = _renumbered(node.operands, number)
        for r, value in enumerate(node.results):
            if value not in given:  # else it stays what is given
                number[value] = len(values)
            values.append(Value(len(values), graph.type(value), str(len(values)), (len(nodes), r)))
        first = len(values) - len(node.results)
        nodes.append(Node(node.op, operands, tuple(range(first, len(values))), node.attrs))
    return Graph(
        "lemma", tuple(values), tuple(nodes), tuple(range(len(inputs))), tuple(number[value] for value in outputs)
    )


def _renumbered(operands: tuple[Operand, ...], number: dict[int, int]) -> tuple[Operand, ...]:
    return tuple(
        tuple(number[value] for value in operand)
        if isinstance(operand, tuple)
        else None
        if operand is None
        else number[operand]
        for operand in operands
    )
