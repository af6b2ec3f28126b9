"""What the tests of costs share: lowering a graph, and running a Program to see what it really does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardwright import DeviceMesh, Graph, GraphBuilder, Program, ShardingSpec
from shardwright.frontends.numpy import prepare
from shardwright.lower import lower
from shardwright.propagation import rule_of, run_hierarchical_propagation_pass
from shardwright.propagation.complete import complete
from shardwright.run import Executed, VirtualEngine, scatter

Lower = Callable[..., Program]
Make = Callable[[int], tuple[Graph, Program]]
Run = Callable[..., Executed]


@pytest.fixture
def lowered() -> Lower:
    """``lowered(graph, mesh, {"x": "[dp, _]"}, views=True)``: propagated, completed, lowered."""

    def make(graph: Graph, mesh: str, given: Mapping[str, str] | None = None, views: bool = False) -> Program:
        grid = DeviceMesh(mesh)
        pinned = {graph.by_name[name]: ShardingSpec.parse(text, grid) for name, text in (given or {}).items()}
        found = run_hierarchical_propagation_pass(graph, pinned, rule_of)
        program = lower(complete(graph, grid, found.specs, rule_of, pinned=pinned))
        if views:
            shown = [() if i.node is None else graph.nodes[i.node].views for i in program.instrs]
            instrs = tuple(replace(instr, views=pairs) for instr, pairs in zip(program.instrs, shown))
            program = replace(program, instrs=instrs)
        return program

    return make


@pytest.fixture
def executed() -> Run:
    """``executed(program, donate=False)``: runs a Program on the virtual mesh, on zeros; returns what it did."""
    dtypes: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i64": np.int64}

    def run(program: Program, donate: bool = True) -> Executed:
        inputs = []
        for local in program.locals_of(program.inputs):
            array = np.zeros(local.type.shape, dtypes[local.type.dtype])
            inputs.append(scatter(array, local.spec))
        return VirtualEngine(program.mesh, prepare).compile(program).run(inputs, donate=donate)[1]

    return run


@pytest.fixture
def random_program(lowered: Lower) -> Make:
    """``random_program(seed)``: a graph of up to a dozen ops, uneven sizes, views and updates among them, lowered."""

    def make(seed: int) -> tuple[Graph, Program]:
        draw = random.Random(seed)
        sizes = draw.sample([3, 4, 5, 6, 7, 8, 10, 12], 2)
        b = GraphBuilder("random")
        values = [b.input((draw.choice(sizes), draw.choice(sizes)), name=f"x{i}") for i in range(draw.randint(1, 4))]
        inputs = len(values)
        for _ in range(draw.randint(1, 12)):
            values.append(_step(b, draw, values))
        outputs = draw.sample(values[inputs:], min(len(values) - inputs, draw.randint(1, 3)))
        shape = {value: b.values[value].shape for value in values}
        updates, free = [], list(range(len(outputs)))
        for i in range(inputs):
            for j in free:
                if shape[values[i]] == shape[outputs[j]] and draw.random() < 0.5:
                    updates.append((i, j))
                    free.remove(j)
                    break
        graph = b.finish(outputs, updates)
        mesh = draw.choice(["d=2", "d=4", "dp=2, tp=2", "dp=2, tp=3", "dp=2, tp=4", "d=1"])
        axes = [axis.name for axis in DeviceMesh(mesh).axes]
        given = {}
        for value in draw.sample(values, draw.randint(0, len(values))):
            cuts: list[str | None] = [None, None]
            for axis in axes:
                place = draw.randrange(4)
                if place < 2:
                    cuts[place] = axis if cuts[place] is None else f"({cuts[place]} {axis})".replace("((", "(")
            if all(cut is None or "(" not in cut for cut in cuts):
                given[b.values[value].name] = f"[{cuts[0] or '_'}, {cuts[1] or '_'}]"
        return graph, lowered(graph, mesh, given, views=True)

    return make


def _step(b: GraphBuilder, draw: random.Random, values: list[int]) -> int:
    """One more op on what there is."""
    shape = {value: b.values[value].shape for value in values}
    x = draw.choice(values)
    rows, columns = shape[x]
    alike = [y for y in values if shape[y] == shape[x]]
    fitting = [y for y in values if shape[y][0] == columns]
    kind = draw.choice(["tanh", "add", "transpose", "matmul", "matmul"])
    if kind == "matmul" and fitting:
        y = draw.choice(fitting)
        made: int = b.op("matmul", [x, y], [(rows, shape[y][1])])
    elif kind == "transpose":
        made = b.op("transpose", [x], [(columns, rows)], views=[(0, 0)])
    elif kind == "add":
        made = b.op("add", [x, draw.choice(alike)], [(rows, columns)])
    else:
        made = b.op("tanh", [x], [(rows, columns)])
    return made
