"""Graphs and the Programs that planning makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.ir.graph import Graph, GraphBuilder
from shardwright.ir.program import Program
from shardwright.lower import lower
from shardwright.propagation import rule_of, run_hierarchical_propagation_pass
from shardwright.propagation.complete import complete
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec


def plan(
    graph: Graph,
    mesh: str,
    given: Mapping[str, str],
    *,
    pinned: Mapping[str, str] | None = None,
    outputs: Mapping[int, str] | None = None,
) -> Program:
    """Spread ``given`` (by the names of values), decide the rest, lower."""
    devices = DeviceMesh(mesh)

    def read(said: Mapping[str, str]) -> dict[int, ShardingSpec]:
        return {graph.by_name[name]: ShardingSpec.parse(text, devices) for name, text in said.items()}

    fixed = read(pinned or {})
    outs = {i: ShardingSpec.parse(text, devices) for i, text in (outputs or {}).items()}
    found = run_hierarchical_propagation_pass(graph, {**read(given), **fixed}, rule_of, out_specs=outs)
    return lower(complete(graph, devices, found.specs, rule_of, pinned=fixed, out_specs=outs))


def ops(program: Program) -> list[str]:
    return [instr.op for instr in program.instrs]


# -- graphs ---------------------------------------------------------------------------------------------


def mlp(batch: int = 10, model: int = 6, hidden: int = 9) -> Graph:
    b = GraphBuilder("mlp")
    x = b.input((batch, model), name="x")
    w1, w2 = b.input((model, hidden), name="w1"), b.input((hidden, model), name="w2")
    h = b.op("matmul", [x, w1], [(batch, hidden)], names=["h"])
    a = b.op("gelu", [h], [(batch, hidden)], names=["a"])
    y = b.op("matmul", [a, w2], [(batch, model)], names=["y"])
    out = b.op("subtract", [y, x], [(batch, model)], names=["out"])
    return b.finish([out])


def softmax(rows: int = 7, columns: int = 10) -> Graph:
    b = GraphBuilder("softmax")
    x = b.input((rows, columns), name="x")
    top = b.op("reduce_max", [x], [(rows, 1)], names=["top"], attrs={"axis": (1,), "keepdims": True})
    low = b.op("subtract", [x, top], [(rows, columns)], names=["low"])
    e = b.op("exp", [low], [(rows, columns)], names=["e"])
    total = b.op("reduce_sum", [e], [(rows, 1)], names=["total"], attrs={"axis": (1,), "keepdims": True})
    y = b.op("divide", [e, total], [(rows, columns)], names=["y"])
    return b.finish([y])


def pointwise(op: str, shape: tuple[int, ...] = (6, 10), *, then: str = "exp") -> Graph:
    """One op of two inputs, and another after it."""
    b = GraphBuilder(op)
    x, y = b.input(shape, name="x"), b.input(shape, name="y")
    z = b.op(op, [x, y], [shape], names=["z"])
    return b.finish([b.op(then, [z], [shape], names=["out"])])


def moved(shape: tuple[int, ...] = (8, 12)) -> Graph:
    """A value that is wanted in two shardings."""
    b = GraphBuilder("moved")
    x = b.input(shape, name="x")
    a = b.op("exp", [x], [shape], names=["a"])
    c = b.op("negative", [a], [shape], names=["c"])
    return b.finish([c])


def reduced(op: str, shape: tuple[int, ...] = (6, 10), axis: int = 1, then: str = "sin") -> Graph:
    b = GraphBuilder(op)
    x = b.input(shape, name="x")
    kept = tuple(size for d, size in enumerate(shape) if d != axis)
    s = b.op(op, [x], [kept], names=["s"], attrs={"axis": (axis,), "keepdims": False})
    return b.finish([b.op(then, [s], [kept], names=["out"])])


def embedding(rows: int = 10, width: int = 6, tokens: int = 7) -> Graph:
    b = GraphBuilder("embedding")
    table, index = b.input((rows, width), name="table"), b.input((tokens,), "i64", name="index")
    e = b.op("take", [table, index], [(tokens, width)], names=["e"], attrs={"axis": 0})
    return b.finish([b.op("tanh", [e], [(tokens, width)], names=["out"])])


def counted(size: int = 10) -> Graph:
    """A count along the rows, added to a triangle."""
    b = GraphBuilder("counted")
    x = b.input((size, size), name="x")
    t = b.op("tril", [x], [(size, size)], names=["t"], attrs={"k": 1})
    n = b.op("arange", [], [(size,)], names=["n"], attrs={"start": 3, "step": 2})
    out = b.op("add", [t, n], [(size, size)], names=["out"])
    return b.finish([out])


def update(shape: tuple[int, ...] = (6, 8)) -> Graph:
    """One step of descent: a weight that is replaced."""
    b = GraphBuilder("update")
    w, g, lr = b.input(shape, name="w"), b.input(shape, name="g"), b.input((), name="lr")
    step = b.op("multiply", [g, lr], [shape], names=["step"])
    new = b.op("subtract", [w, step], [shape], names=["new"])
    return b.finish([new], updates=[(0, 0)])


def two_paths(shape: tuple[int, ...] = (6, 8)) -> Graph:
    """Two inputs of one type, each with a path of its own, and two outputs."""
    b = GraphBuilder("two_paths")
    x, y = b.input(shape, name="x"), b.input(shape, name="y")
    p, q = b.op("exp", [x], [shape], names=["p"]), b.op("sin", [y], [shape], names=["q"])
    return b.finish([b.op("subtract", [p, q], [shape], names=["d"]), b.op("divide", [q, p], [shape], names=["r"])])


def along(size: int = 6) -> Graph:
    """Ops along one dim of a cube, in which a wrong dim is easily overlooked."""
    b = GraphBuilder("along")
    cube, square = (4, size, size), (4, size)
    x = b.input(cube, name="x")
    c = b.op("cumsum", [x], [cube], names=["c"], attrs={"axis": 1})
    s = b.op("sort", [c], [cube], names=["s"], attrs={"axis": 2})
    out = b.op("reduce_max", [s], [square], names=["out"], attrs={"axis": (1,), "keepdims": False})
    bounds = {"start": (None, 1), "stop": (None, 4), "step": (None, 1)}
    return b.finish([b.op("slice", [out], [(4, 3)], names=["part"], attrs=bounds)])


Case = tuple[Graph, Program]


def cases() -> dict[str, Case]:
    """Programs that between them hold every kind of instruction, with uneven shards where these may be."""

    def case(graph: Graph, mesh: str, given: Mapping[str, str], **how: Any) -> Case:
        return graph, plan(graph, mesh, given, **how)

    return {
        "mlp, megatron": case(
            mlp(), "dp=2, tp=4", {"x": "[dp, _]", "w1": "[_, tp]", "w2": "[tp, _]"}, outputs={0: "[dp, _]"}
        ),
        "mlp, scattered": case(mlp(), "x=3", {"w1": "[_, x]", "w2": "[x, _]"}, outputs={0: "[x, _]"}),
        "mlp, contraction split": case(mlp(), "x=2, y=3", {"x": "[x, y]", "w1": "[y, _]"}),
        "softmax, columns": case(softmax(), "dp=2, tp=4", {"x": "[dp, tp]"}),
        "softmax, columns of three": case(softmax(), "x=3", {"x": "[_, x]"}),
        "gathered": case(moved(), "x=2, y=3", {}, pinned={"x": "[x, y]", "a": "[x, _]", "c": "[_, _]"}),
        "gathered, uneven": case(moved((7, 11)), "dp=2, tp=4", {}, pinned={"x": "[dp+tp, _]", "c": "[dp, _]"}),
        "exchanged": case(moved(), "x=4", {}, pinned={"x": "[x, _]", "c": "[_, x]"}),
        "exchanged, uneven": case(moved((7, 10)), "x=3", {}, pinned={"x": "[x, _]", "c": "[_, x]"}),
        "permuted": case(moved((8, 8)), "x=2, y=2", {}, pinned={"x": "[x, y]", "c": "[y, x]"}),
        "permuted within a dim": case(moved((8, 3)), "x=2, y=2", {}, pinned={"x": "[x+y, _]", "c": "[y+x, _]"}),
        "sliced": case(moved((8, 12)), "x=2, y=3", {}, pinned={"x": "[_, _]", "a": "[x, _]", "c": "[x, y]"}),
        "sliced twice": case(moved((13, 2)), "x=2, y=3", {}, pinned={"x": "[_, _]", "c": "[y+x, _]"}),
        "sum, sine": case(reduced("reduce_sum"), "dp=2, tp=4", {"x": "[dp, tp]"}),
        "max, exponential": case(reduced("reduce_max", then="exp"), "x=3", {"x": "[_, x]"}),
        "min, shifted": case(reduced("reduce_min", then="negative"), "x=2, y=3", {"x": "[x, y]"}),
        "product": case(reduced("reduce_prod"), "x=2, y=3", {"x": "[_, x+y]"}),
        "difference": case(pointwise("subtract"), "x=3", {"x": "[x, _]", "y": "[_, x]"}),
        "embedding": case(embedding(), "dp=2, tp=4", {"table": "[tp, _]", "index": "[dp]"}),
        "embedding, three": case(embedding(), "x=3", {"table": "[x, _]"}),
        "counted": case(counted(), "x=2, y=3", {"x": "[x, y]", "n": "[y]"}),
        "reduced and scattered": case(
            mlp(8, 6, 8), "x=4", {"x": "[_, x]", "w1": "[x, _]"}, pinned={"h": "[_, x]"}, outputs={0: "[x, _]"}
        ),
        "made pending": case(moved(), "x=2, y=2", {}, pinned={"x": "[x, _]", "a": "[x, _] // y"}),
        "parts of an axis": case(moved((8, 8)), "x=4", {}, pinned={"x": "[x:(1)2, x:(2)2]", "c": "[_, x:(1)2]"}),
        "parts, permuted": case(moved((12, 8)), "x=4, y=3", {}, pinned={"x": "[y+x:(1)2, x:(2)2]", "c": "[x+y, _]"}),
        "two paths": case(two_paths(), "x=2, y=2", {"x": "[x, y]", "y": "[x, y]"}),
        "along": case(along(), "dp=2, tp=4", {"x": "[dp, _, tp]"}, outputs={0: "[_, tp]"}),
        "update": case(update(), "x=3", {"w": "[x, _]", "g": "[_, x]"}),
    }
