"""Random meshes, specs, rules and programs for the property tests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf, nan, prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardwright.ir.graph import Graph, GraphBuilder, Node, Source, TensorType
from shardwright.propagation.engine import OpView
from shardwright.spec.axes import AxisRef
from shardwright.spec.collective import REDUCTIONS
from shardwright.spec.factors import FactorSharding
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.op_record import Flow
from shardwright.spec.rule import FactorNote, OpShardingRule, RulePattern, Transfer
from shardwright.spec.rule_parts import ELLIPSIS, FLAG_WORDS, ONE, REDUCED_BY, Dim
from shardwright.spec.sharding import DimSpec, ShardingSpec

# Some words mean something elsewhere in the notation; as names they must do no harm.
AXIS_NAMES = ("x", "y", "dp", "tp", "sum", "max", "devices", "R", "x_1")
FACTOR_NAMES = ("i", "j", "k", "m", "b0", "R", "P", "sum", "x", "one0", "one1", "whole")

Shape = tuple[int, ...]


# -- meshes and specs -----------------------------------------------------------------------------------


@st.composite
def meshes(draw: st.DrawFn, max_axes: int = 3, max_size: int = 6, devices: bool = True) -> DeviceMesh:
    names = draw(st.lists(st.sampled_from(AXIS_NAMES), min_size=1, max_size=max_axes, unique=True))
    sizes = tuple(draw(st.integers(1, max_size)) for _ in names)
    order = draw(st.permutations(range(prod(sizes)))) if devices and draw(st.booleans()) else None
    return DeviceMesh(sizes, names, device_ids=order)


@st.composite
def axis_parts(draw: st.DrawFn, axis: AxisRef) -> list[AxisRef]:
    """The axis whole, or cut into parts."""
    parts: list[AxisRef] = []
    while axis.size > 1 and draw(st.booleans()):
        cuts = [size for size in range(2, axis.size) if axis.size % size == 0]
        if not cuts:
            break
        major, axis = axis.split(draw(st.sampled_from(cuts)))
        parts.append(major)
    return [*parts, axis]


@st.composite
def specs(
    draw: st.DrawFn,
    mesh: DeviceMesh,
    rank: int,
    *,
    parts: bool = True,
    open: bool = True,
    priorities: bool = True,
    partial: bool = True,
    replicated: bool = True,
) -> ShardingSpec:
    """Every axis, or part of one, goes to a dim, becomes pending or replicated, or stays unused."""
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    pending: list[tuple[AxisRef, str]] = []
    kept: list[AxisRef] = []
    places = ["unused", *range(rank), *(["partial"] if partial else []), *(["kept"] if replicated else [])]
    for axis in mesh.axes:
        for part in draw(axis_parts(axis)) if parts else [axis]:
            place = draw(st.sampled_from(places))
            if place == "partial":
                pending.append((part, draw(st.sampled_from(REDUCTIONS))))
            elif place == "kept":
                kept.append(part)
            elif isinstance(place, int):
                dims[place].insert(draw(st.integers(0, len(dims[place]))), part)
    made = [
        DimSpec(
            tuple(axes),
            draw(st.booleans()) if open else False,
            draw(st.sampled_from([None, None, 0, 1, 2])) if priorities else None,
        )
        for axes in dims
    ]
    return ShardingSpec(mesh, made, pending, kept)


@st.composite
def placed(draw: st.DrawFn, max_rank: int = 3, **wishes: bool) -> ShardingSpec:
    """A spec on a mesh of its own."""
    mesh = draw(meshes())
    return draw(specs(mesh, draw(st.integers(0, max_rank)), **wishes))


def shapes(rank: int, low: int = 0, high: int = 13) -> st.SearchStrategy[Shape]:
    return st.tuples(*[st.integers(low, high)] * rank)


# -- rules ----------------------------------------------------------------------------------------------

STATES = st.sampled_from(["R", "P(any)", *(f"P({kind})" for kind in REDUCTIONS)])


@st.composite
def _dims(draw: st.DrawFn, names: list[str], ellipsis: bool) -> tuple[Dim, ...]:
    """Dims of one tensor from some of the names, each used at most once."""
    left = draw(st.lists(st.sampled_from(names), max_size=4, unique=True)) if names else []
    dims: list[Dim] = []
    while left:
        count = draw(st.sampled_from([1, 1, 1, 2, 3]))
        dims.append(tuple(left[:count]))
        del left[:count]
    if draw(st.integers(0, 4)) == 0:
        dims.insert(draw(st.integers(0, len(dims))), ONE)
    if ellipsis and draw(st.booleans()):
        dims.insert(draw(st.integers(0, len(dims))), ELLIPSIS)
    return tuple(dims)


def _names(tensors: list[tuple[Dim, ...]]) -> list[str]:
    return list(dict.fromkeys(name for dims in tensors for dim in dims for name in dim if name != "1"))


@st.composite
def patterns(draw: st.DrawFn) -> RulePattern:
    names = draw(st.lists(st.sampled_from(FACTOR_NAMES), min_size=1, max_size=5, unique=True))
    ellipsis = draw(st.booleans())
    operands = [draw(_dims(names, ellipsis)) for _ in range(draw(st.integers(0, 3)))]
    left = _names(operands)
    new = [name for name in names if name not in left and draw(st.booleans())]
    factors = [name for name in left if name != "..."] + new
    results = [draw(_dims(factors, "..." in left)) for _ in range(draw(st.integers(1, 3)))]
    notes = [FactorNote(name, ("new",)) for name in _names(results) if name in new]
    for name in _names(operands + results):
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            words = draw(
                st.lists(
                    st.sampled_from([*REDUCED_BY, *FLAG_WORDS[:2], "blocked", "form(f)", "form(core.f)"]),
                    min_size=1,
                    max_size=2,
                )
            )
            notes.append(FactorNote(name, tuple(words), draw(st.none() | st.integers(0, len(results) - 1))))
    transfers = []
    if operands:
        for _ in range(draw(st.integers(0, 2))):
            states = tuple(draw(STATES) for _ in operands)
            transfers.append(Transfer(states, tuple(draw(STATES) for _ in results)))
    return RulePattern(tuple(operands), tuple(results), tuple(notes), tuple(transfers))


@st.composite
def rules(draw: st.DrawFn) -> OpShardingRule:
    """A pattern bound to shapes that fit it."""
    pattern = draw(patterns())
    batch = draw(shapes(draw(st.integers(0, 2)), 1, 4))
    sizes = {name: draw(st.integers(1, 8)) for name in _names([*pattern.operands, *pattern.results]) if name != "..."}

    def shape(dims: tuple[Dim, ...], batch: Shape) -> Shape:
        found: list[int] = []
        for dim in dims:
            found += batch if dim == ELLIPSIS else [1 if dim == ONE else prod(sizes[name] for name in dim)]
        return tuple(found)

    given, batches = [], [()]
    for dims in pattern.operands:
        # An operand may have fewer batch dims, and any of them as a 1.
        own = batch[draw(st.integers(0, len(batch))) :]
        own = tuple(draw(st.sampled_from([1, size])) for size in own)
        batches += [own] if ELLIPSIS in dims else []
        given.append(shape(dims, own))
    wide = np.broadcast_shapes(*batches)
    results = [shape(dims, wide) for dims in pattern.results] if draw(st.booleans()) else None
    return pattern.bind(given, results, sizes)


@st.composite
def factor_shardings(draw: st.DrawFn) -> FactorSharding:
    rule, mesh = draw(rules()), draw(meshes())
    names = [factor.name for factor in rule.factors if not factor.broadcast]
    chosen: dict[str, tuple[str, ...]] = {}
    for axis in mesh.axes:
        for part in draw(axis_parts(axis)):
            if names and draw(st.booleans()):
                name = draw(st.sampled_from(names))
                chosen[name] = (*chosen.get(name, ()), str(part))
    # A minor factor of a dim may be split only under a fully split major one; taking one away may bare another.
    pairs = [(rule.factors[a], rule.factors[b].name) for t in rule.tensors for dim in t for a, b in pairwise(dim)]
    for _ in rule.factors:
        for major, minor in pairs:
            if prod(mesh.axis(part).size for part in chosen.get(major.name, ())) != major.size:
                chosen.pop(minor, None)
    return FactorSharding.of(rule, mesh, chosen)


# -- graphs ---------------------------------------------------------------------------------------------

words = st.text(st.sampled_from("abcxe019._%\"'\\ /é\n-"), min_size=1, max_size=6) | st.sampled_from(
    ["none", "inf", "nan.0", "0.weight", "1e5", "10_1", "in", "view", "return", "update", "true"]
)
attributes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([nan, inf, -inf]) | words,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
types = st.builds(TensorType, st.integers(0, 3).flatmap(shapes), st.sampled_from(["f32", "bf16", "i64", "bool"]))
sources = st.builds(Source, words, st.integers(0, 999), st.just("") | words)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Anything that is well-formed, sensible or not."""
    builder = GraphBuilder(draw(words))
    values = [builder.input(draw(types), name=draw(st.none() | words)) for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 4))):
        value = st.sampled_from(values or [None])
        operand = value | st.none() | (st.lists(value, max_size=3) if values else st.just([]))
        operands = draw(st.lists(operand, max_size=3))
        reads = sum(len(o) if isinstance(o, list) else o is not None for o in operands)
        results = draw(st.lists(types, max_size=2))
        views = []
        if reads and results and draw(st.booleans()):
            views = [(draw(st.integers(0, len(results) - 1)), draw(st.integers(0, reads - 1)))]
        made = builder.op(
            draw(words),
            operands,
            results,
            names=[draw(words) for _ in results],
            attrs=draw(st.dictionaries(words, attributes, max_size=3)),
            views=views,
            source=draw(st.none() | sources),
        )
        values += made if isinstance(made, tuple) else [made]
    outputs = draw(st.lists(st.sampled_from(values), max_size=3)) if values else []
    updates = []
    for i, input in enumerate(builder.inputs):
        fitting = [o for o, v in enumerate(outputs) if builder.values[v].type == builder.values[input].type]
        if fitting and draw(st.booleans()):
            updates.append((i, draw(st.sampled_from(fitting))))
    return builder.finish(outputs, updates)


FLOWS = {
    "add": Flow.POINTWISE,
    "neg": Flow.POINTWISE,
    "transpose": Flow.VIEW,
    "split": Flow.VIEW,
    "merge": Flow.VIEW,
    "broadcast": Flow.BROADCAST,
    "slice": Flow.FORWARD,
}
TEXTS = {
    "add": "i j, i j -> i j",
    "neg": "i j -> i j",
    "transpose": "i j -> j i",
    "matmul": "m k, k n -> m n",
    "sums": "i j -> i j, i, j ; j: max",
    "split": "(a b) j -> a b j",
    "merge": "a b j -> (a b) j",
    "softmax": "i j -> i j ; j: whole",
    "slice": "i j -> i j ; i: permuted ; j: blocked",
    "broadcast": "i -> i j ; j: new",
}


def rule_of(graph: Graph, node: Node) -> OpView | None:
    """The rule book of the random programs; ``unknown`` is an op without a rule."""
    text = TEXTS.get(node.op)
    if text is None:
        return None
    operands = [graph.type(value).shape for value in node.inputs]
    results = [graph.type(value).shape for value in node.results]
    return OpView(RulePattern.parse(text).bind(operands, results), FLOWS.get(node.op, Flow.OTHER))


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """Programs whose ops have rules; few sizes, so that shapes often fit."""
    a, b = draw(st.sampled_from([(4, 6), (2, 4), (6, 3), (5, 8), (8, 12), (1, 4)]))
    builder = GraphBuilder("random")
    square = st.sampled_from([(a, b), (b, a), (a, a), (b, b)])
    values = [builder.input(draw(square)) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 7))):
        operands, op, results = draw(st.sampled_from(_steps(builder, values)))
        made = builder.op(op, operands, results)
        values += made if isinstance(made, tuple) else [made]
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
    return builder.finish(outputs)


def _steps(builder: GraphBuilder, values: list[int]) -> list[tuple[list[int], str, list[Shape]]]:
    """Every op that could come next."""
    found: list[tuple[list[int], str, list[Shape]]] = []
    shape: dict[int, Any] = {value: builder.values[value].shape for value in values}
    for v in values:
        if len(shape[v]) == 3:
            a, b, j = shape[v]
            found.append(([v], "merge", [(a * b, j)]))
        if len(shape[v]) == 1:
            found.append(([v], "broadcast", [(shape[v][0], 4)]))
        if len(shape[v]) != 2:
            continue
        i, j = shape[v]
        found += [([v], op, [(i, j)]) for op in ("neg", "softmax", "slice", "unknown")]
        found.append(([v], "transpose", [(j, i)]))
        found.append(([v], "sums", [(i, j), (i,), (j,)]))
        found += [([v], "split", [(p, i // p, j)]) for p in range(2, i) if i % p == 0]
        for w in values:
            if shape[w] == shape[v]:
                found.append(([v, w], "add", [(i, j)]))
            if len(shape[w]) == 2 and shape[w][0] == j:
                found.append(([v, w], "matmul", [(i, shape[w][1])]))
    return found


@dataclass(frozen=True)
class Said:
    """A program and what the user says of some of its values and outputs."""

    graph: Graph
    specs: dict[int, ShardingSpec]
    out_specs: dict[int, ShardingSpec]

    def __str__(self) -> str:
        lines = [f"{self.graph.values[value].name}: {spec!r}" for value, spec in self.specs.items()]
        lines += [f"output {i}: {spec!r}" for i, spec in self.out_specs.items()]
        return "\n".join([str(self.graph), *lines])

    __repr__ = __str__


@st.composite
def said(draw: st.DrawFn, replicated: bool = True) -> Said:
    graph, mesh = draw(programs()), draw(meshes(max_size=4, devices=False))
    found = {
        value.id: draw(specs(mesh, len(value.shape), replicated=replicated))
        for value in graph.values
        if draw(st.booleans())
    }
    outs = {
        i: draw(specs(mesh, len(graph.values[value].shape), replicated=replicated))
        for i, value in enumerate(graph.outputs)
        if draw(st.booleans())
    }
    return Said(graph, found, outs)
