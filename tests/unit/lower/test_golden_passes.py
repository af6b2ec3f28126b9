"""Graph or Program before and after each pass, as text: ``golden/passes/<pass>.txt``; attention has its own test.

``UPDATE_GOLDEN=1`` writes the files anew: read the difference before keeping it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.cost.hardware import hardware_of
from shardwright.ir.graph import Graph
from shardwright.ir.program import Program
from shardwright.lower import lower, ordered, without_repeats
from shardwright.propagation.book import rule_of
from shardwright.propagation.complete import Complete, complete
from shardwright.propagation.constraints import apply_constraints
from shardwright.rules.registry import fuse_updates
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec

GOLDEN = Path(__file__).parents[2] / "golden" / "passes"
MESH = DeviceMesh("d=4")
Passed = tuple[Any, Any]
"""What goes into a pass and what comes out."""


def completed(graph: Graph, **specs: str) -> Complete:
    given = {graph.by_name[name]: ShardingSpec.parse(text, MESH) for name, text in specs.items()}
    chosen = [given.get(value.id) for value in graph.values]
    return complete(graph, MESH, chosen, rule_of, pinned=given)


def updates() -> Passed:
    """The formula of Adam becomes one op, whose numbers stay inputs."""
    torch = pytest.importorskip("torch")
    from shardwright.frontends.torch import capture_step

    model = torch.nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    graph = capture_step(model, torch.zeros(3, 4), optimizer=optimizer, loss=torch.sum).graph
    found = fuse_updates(graph)
    assert found is not None
    return graph, found[0]


def constraints() -> Passed:
    """Who reads a value after a chain of constraints on it reads the chain's end."""
    graph = Graph.parse("""graph f(%x: f32[8, 4], %w: f32[4, 4]) {
        %y = matmul(%x, %w) : f32[8, 4]
        %rows = core.constraint(%y) : f32[8, 4]
        %columns = core.constraint(%rows) : f32[8, 4]
        %t = tanh(%y) : f32[8, 4]
        return %t, %columns
    }""")
    said = {"rows": "[d, _]", "columns": "[_, d]"}
    specs = {graph.by_name[name]: ShardingSpec.parse(text, MESH) for name, text in said.items()}
    return graph, apply_constraints(graph, specs)[0]


def lowering() -> Passed:
    """Decisions become local ops and collectives: a product over split rows is pending, and is reduced."""
    graph = Graph.parse("""graph f(%x: f32[8, 16], %w: f32[16, 4]) {
        %y = matmul(%x, %w) : f32[8, 4]
        %t = tanh(%y) : f32[8, 4]
        return %t
    }""")
    return graph, lower(completed(graph, x="[_, d]", w="[d, _]"))


def redundancy() -> Passed:
    """A value that is gathered twice is gathered once."""
    graph = Graph.parse("""graph f(%x: f32[8, 16], %u: f32[8, 16], %w: f32[16, 4]) {
        %y = matmul(%x, %w) : f32[8, 4]
        %z = matmul(%u, %w) : f32[8, 4]
        return %y, %z
    }""")
    before = lower(completed(graph, x="[d, _]", u="[d, _]", w="[_, d]"))
    twice = _gathered_twice(before)
    return twice, without_repeats(twice)


def _gathered_twice(program: Program) -> Program:
    """The same Program with its first gather made once more, for the last reader."""
    first = next(instr for instr in program.instrs if instr.op == "all_gather")
    (copy,) = first.results
    last = max(n for n, instr in enumerate(program.instrs) if copy in instr.inputs)
    again, reader = len(program.values), program.instrs[last]
    operands = tuple(again if operand == copy else operand for operand in reader.operands)
    values = (*program.values, replace(program.values[copy], id=again, name="w_2"))
    instrs = [*program.instrs[:last], replace(first, results=(again,)), replace(reader, operands=operands)]
    return replace(program, values=values, instrs=(*instrs, *program.instrs[last + 1 :]))


def ordering() -> Passed:
    """Collectives start early, share starts, and are waited for where their result is read."""
    graph = Graph.parse("""graph f(%x: f32[4096, 4096], %a: f32[4096, 4096], %b: f32[4096, 4096], %c: f32[4096, 4096]) {
        %u = matmul(%x, %a) : f32[4096, 4096]
        %v = matmul(%u, %b) : f32[4096, 4096]
        %w = matmul(%v, %c) : f32[4096, 4096]
        return %w
    }""")
    before = lower(completed(graph, x="[d, _]", a="[d, _]", b="[d, _]", c="[d, _]"))
    return before, ordered(before, hardware_of("h100"), graph)


PASSES: dict[str, Callable[[], Passed]] = {
    made.__name__: made for made in (updates, constraints, lowering, redundancy, ordering)
}


def text_of(item: Graph | Program) -> str:
    """Without the lines that say where in a library something stands."""
    lines = [line.split("  #")[0].rstrip() for line in str(item).splitlines()]
    if isinstance(item, Program) and item.order:
        lines += ["order:", *(f"  {event.kind} {' '.join(map(str, event.members))}" for event in item.order)]
    return "\n".join(lines)


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_as_text(name: str) -> None:
    before, after = PASSES[name]()
    assert text_of(before) != text_of(after)
    found = f"# {PASSES[name].__doc__}\nbefore\n{text_of(before)}\n\nafter\n{text_of(after)}\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")
