"""Ops that no NumPy call writes down by itself, run from graphs: the same check as for the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardwright.frontends.numpy import numpy_dtype, prepare, run_graph
from shardwright.ir.graph import Graph, GraphBuilder
from shardwright.lower import lower
from shardwright.propagate import rule_of
from shardwright.propagate.complete import complete
from shardwright.run import VirtualEngine, assemble, scatter
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec


def made(op: str, operands: list[tuple[int, ...]], result: tuple[int, ...], **attrs: Any) -> Graph:
    b = GraphBuilder(op)
    inputs = [b.input(shape, "f64") for shape in operands]
    return b.finish([b.op(op, inputs, [result], dtype="f64", attrs=attrs)])


GRAPHS = {
    "arange": made("arange", [], (7,), start=3, step=2),
    "arange of floats": made("arange", [], (10,), start=0.5, step=-0.25),
    "arange of nothing": made("arange", [], (0,), start=1, step=1),
    "full": made("full", [], (5, 6), value=2.5),
    "expand_dims": made("expand_dims", [(7, 4)], (7, 1, 4)),
    "squeeze": made("squeeze", [(7, 1, 4)], (7, 4)),
    "flatten": made("flatten", [(6, 4)], (24,)),
    "broadcast_in_dim": made("broadcast_in_dim", [(7, 1)], (7, 3, 5), broadcast_dimensions=(0, 2)),
    "dot_general": made(
        "dot_general", [(2, 7, 4), (2, 4, 5)], (2, 7, 5),
        lhs_batch=(0,), rhs_batch=(0,), lhs_contracting=(2,), rhs_contracting=(1,),
    ),
    "diagonal": made("diagonal", [(5, 7)], (5,), offset=0, axis1=0, axis2=1),
    "clip": made("clip", [(7, 4), (4,), ()], (7, 4)),
    "fma": made("fma", [(7, 4), (7, 4), (4,)], (7, 4)),
    **{op: made(op, [(7, 4)], (7, 4)) for op in ("erf", "gelu", "relu", "rsqrt", "sigmoid", "silu")},
}  # fmt: skip
OPS = {graph.nodes[0].op for graph in GRAPHS.values()} | {"clz", "complex"}
"""Ops that are run here; clz and complex below, for their dtypes."""


@pytest.mark.parametrize("mesh", ["x=2", "x=3", "x=4", "x=2, y=3"])
@pytest.mark.parametrize("name", GRAPHS)
def test_rule_by_execution(name: str, mesh: str) -> None:
    graph = GRAPHS[name]
    on = DeviceMesh(mesh)
    view = rule_of(graph, graph.nodes[0])
    assert view is not None
    inputs = [1 + np.arange(float(np.prod(graph.values[v].shape))).reshape(graph.values[v].shape) for v in graph.inputs]
    expected = run_graph(graph, inputs)[0]
    specs = [ShardingSpec.replicate(on, value.type.rank) for value in graph.values]
    for f in range(len(view.rule.factors)):
        axes = [on.axes if g == f else () for g in range(len(view.rule.factors))]
        fixed = complete(graph, on, specs, rule_of, forced={0: axes})
        program = lower(fixed)
        shards = [scatter(array, spec) for array, spec in zip(inputs, fixed.inputs)]
        outputs = VirtualEngine(on, prepare).compile(program)(shards)
        local = program.values[program.outputs[0]]
        found = assemble(outputs[0], local.spec, local.type.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_ops_of_other_dtypes() -> None:
    on = DeviceMesh("x=3")
    for op, dtypes, result in (("clz", ["i64"], "i64"), ("complex", ["f64", "f64"], "c128")):
        b = GraphBuilder(op)
        inputs = [b.input((7, 4), dtype) for dtype in dtypes]
        graph = b.finish([b.op(op, inputs, [(7, 4)], dtype=result)])
        arrays = [np.arange(28).reshape(7, 4).astype(numpy_dtype(dtype)) for dtype in dtypes]
        specs = [ShardingSpec(on, ["x", None]) for _ in graph.values]
        program = lower(complete(graph, on, specs, rule_of))
        outputs = VirtualEngine(on, prepare).compile(program)([scatter(array, specs[0]) for array in arrays])
        local = program.values[program.outputs[0]]
        assert local.spec == specs[0]
        np.testing.assert_array_equal(assemble(outputs[0], local.spec, (7, 4)), run_graph(graph, arrays)[0])
