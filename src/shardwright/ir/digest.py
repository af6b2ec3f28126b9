"""Digests of what programs compute: `program_hash` of a Graph, `program_digest` of a lowered Program."""

from __future__ import annotations

import hashlib

from .graph import Graph
from .program import Program
from .text import node_text


def program_hash(graph: Graph) -> str:
    """Neither its name, nor its source lines, nor any version or device bear on it.

    >>> text = "graph f(%x: f32[8]) { %y = exp(%x) : f32[8] return %y }"
    >>> program_hash(Graph.parse(text)) == program_hash(Graph.parse(text.replace("f(", "g(")))
    True
    """

    def name(value: int) -> str:
        return f"%{value}"

    def type_text(value: int) -> str:
        return str(graph.type(value))

    digest = hashlib.sha256()
    inputs = [f"{graph.values[value].name}: {graph.type(value)}" for value in graph.inputs]
    lines = [*inputs, *(node_text(node, name, type_text, sources=False) for node in graph.nodes)]
    for line in (*lines, str(graph.outputs), str(graph.updates)):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def program_digest(program: Program) -> str:
    """Of what a Program does: not its name, source lines or causes."""
    digest = hashlib.sha256()
    for local in program.values:
        digest.update(f"{local}\n".encode())
    for instr in program.instrs:
        line = (instr.op, instr.operands, instr.results, instr.attrs, tuple(map(str, instr.axes)), instr.bytes)
        digest.update(f"{line!r}\n".encode())
    digest.update(f"{program.mesh} {program.inputs} {program.outputs} {program.updates}".encode())
    digest.update("".join(f"\n{kind} {members}" for kind, members in program.order).encode())
    return digest.hexdigest()
