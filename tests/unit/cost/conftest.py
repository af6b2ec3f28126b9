"""What the tests of costs share: lowering a graph, and running a Program to see what it really does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardwright import DeviceMesh, Graph, Program, ShardingSpec
from shardwright.frontends.numpy import prepare
from shardwright.lower import lower
from shardwright.propagate import rule_of, run_hierarchical_propagation_pass
from shardwright.propagate.complete import complete
from shardwright.run import Executed, VirtualEngine, scatter

Lower = Callable[..., Program]
Run = Callable[[Program], Executed]


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
    """Runs a Program on the virtual mesh, on zeros; returns what it did."""
    dtypes: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i64": np.int64}

    def run(program: Program) -> Executed:
        inputs = []
        for local in program.locals_of(program.inputs):
            array = np.zeros(local.type.shape, dtypes[local.type.dtype])
            inputs.append(scatter(array, local.spec))
        return VirtualEngine(program.mesh, prepare).compile(program).run(inputs)[1]

    return run
