"""Running one call of an op, split in many ways, against the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from calls import prepare
from samples import Sample

from shardwright.frontends.numpy import trace
from shardwright.frontends.numpy.trees import flatten
from shardwright.ir.graph import Graph, Node
from shardwright.ir.program import Local, Program
from shardwright.lower import lower
from shardwright.propagate import rule_of
from shardwright.propagate.choices import legal_axes
from shardwright.propagate.complete import complete
from shardwright.propagate.engine import OpView
from shardwright.run import VirtualEngine, assemble, scatter
from shardwright.spec.axes import Axes
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

Array = np.ndarray[Any, Any]
TOLERANCE = {"f": 1e-5, "d": 1e-12, "e": 5e-3, "D": 1e-12, "F": 1e-5}


def arguments(sample: Sample, sizes: tuple[int, int], dtype: str, special: bool = False) -> list[Array]:
    """Arrays of the shapes a sample asks for."""
    random = np.random.default_rng(7)
    named = {"n": sizes[0], "m": sizes[1]}
    made: list[Array] = []
    for text in sample.shapes:
        dims, _, kind = text.partition(":")
        words = [(word[:-1] or "1", named[word[-1]]) if word[-1] in named else (word, 1) for word in dims.split()]
        shape = tuple(int(times) * size for times, size in words)
        if kind in INDICES:
            made.append(INDICES[kind](random, shape, sizes[0]))
        elif kind == "spd":
            made.append(_with_special(_definite(random, shape, dtype), special))
        else:
            made.append(_with_special(_numbers(random, shape, kind or dtype, sample.domain), special))
    return made


INDICES = {
    # Rows of the first argument, from either end; each of them once at most.
    "index": lambda random, shape, rows: random.integers(-rows, rows, shape),
    "distinct": lambda random, shape, rows: random.permutation(rows)[: shape[0]],
    # Of StableHLO, which has no negative indices: also some that point outside; none twice along the dim before last.
    "points": lambda random, shape, rows: random.integers(-1, 6, shape),
    "apart": lambda random, shape, rows: np.arange(shape[-2])[:, None] + random.integers(0, 5, (*shape[:-2], 1, 1)),
    "start": lambda random, shape, rows: random.integers(-1, 5, shape),
}


def _numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str, domain: str) -> Array:
    if dtype == "?":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in ("i8", "u8"):
        low, high = {"positive": (1, 9), "small": (0, 4)}.get(domain, (-5, 6) if dtype == "i8" else (0, 9))
        return random.integers(low, high, shape).astype(dtype)
    values = random.standard_normal(shape)
    if domain == "positive":
        values = np.abs(values) + 0.5
    elif domain in ("unit", "small"):
        values = np.tanh(values)
    if dtype == "c16":
        return values + 1j * random.standard_normal(shape)
    return np.asarray(values, dtype)


def _definite(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Symmetric matrices far from singular."""
    values = np.tanh(random.standard_normal(shape))
    return np.asarray(values + values.swapaxes(-1, -2) + 2 * shape[-1] * np.eye(shape[-1]), dtype)


def _with_special(values: Array, special: bool) -> Array:
    if special and values.dtype.kind in "fc" and values.size > 3:
        values.flat[:: max(2, values.size // 3)] = np.nan
        values.flat[1] = np.inf
        values.flat[2] = -np.inf
    return values


def same(found: Array, expected: Array, what: str) -> None:
    assert found.shape == expected.shape, what
    assert found.dtype == expected.dtype, what
    if expected.dtype.kind in "fc":
        close = TOLERANCE[expected.dtype.char]
        np.testing.assert_allclose(found, expected, rtol=close, atol=close, equal_nan=True, err_msg=what)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=what)


@dataclass
class Case:
    """One call of a sample: traced and computed once, then split in many ways."""

    op: str
    graph: Graph
    inputs: list[Array]
    expected: list[Array]
    rules: dict[int, OpShardingRule]
    """Of the op's nodes."""
    done: dict[tuple[DeviceMesh, tuple[tuple[Axes, ...], ...]], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, op: str, sample: Sample, args: list[Array]) -> Case | None:
        """Nothing if these sizes do not fit the sample, or if NumPy needs no such op for them."""
        try:
            result = sample.fn(*args)
        except ValueError:
            return None
        traced = trace(sample.fn, *args)
        graph = traced.graph
        rules = {}
        for n, node in enumerate(graph.nodes):
            if node.op == op:
                view = rule_of(graph, node)
                assert view is not None, f"the book has no rule for this call of {op}: {graph}"
                rules[n] = view.rule
        expected = [np.asarray(leaf) for _, leaf in flatten(result)[0]]
        return cls(op, graph, [*args, *traced.consts], expected, rules) if rules else None

    @property
    def factors(self) -> int:
        """How many the rule has."""
        return max(len(rule.factors) for rule in self.rules.values())

    def check(self, mesh: DeviceMesh, places: tuple[int, ...]) -> bool:
        """Mesh axis i goes to factor places[i], as far as the rule lets it; returns whether anything was split.

        What comes to the same once it is cut back is run once.
        """
        legal = {n: legal_axes(rule, _dealt(rule, mesh, places)) for n, rule in self.rules.items()}
        key = mesh, tuple(legal.values())
        if key not in self.done:
            self.done[key] = any(axes for given in legal.values() for axes in given)
            self.run(mesh, legal, f"factors {places}")
        return self.done[key]

    def run(
        self, mesh: DeviceMesh, forced: dict[int, tuple[Axes, ...]], what: str, instead: OpShardingRule | None = None
    ) -> None:
        """``instead``: another rule than the op's own, to see whether it would do."""

        def rules(graph: Graph, node: Node) -> OpView | None:
            return OpView(instead) if instead is not None and node.op == self.op else rule_of(graph, node)

        specs = [ShardingSpec.replicate(mesh, value.type.rank) for value in self.graph.values]
        fixed = complete(self.graph, mesh, specs, rules, forced=forced)
        program = lower(fixed)
        try:
            self.execute(program, fixed.inputs)
        except AssertionError as error:
            error.add_note(f"{self.op} on {mesh}, {what}\n{program}")
            raise

    def execute(self, program: Program, specs: Sequence[ShardingSpec]) -> None:
        """On a virtual mesh, beginning with inputs in these shardings."""
        shards = [scatter(np.asarray(a), spec) for a, spec in zip(self.inputs, specs)]
        outputs, executed = VirtualEngine(program.mesh, prepare).compile(program).run(shards)
        assert executed.collectives == program.collectives
        for value, parts, expected in zip(program.outputs, outputs, self.expected):
            check_output(program.values[value], parts, expected)


def check_output(local: Local, parts: Sequence[Array], expected: Array) -> None:
    """Shards of the shapes they should have, alike where they overlap, that make up what was expected."""
    spec, shape = local.spec, local.type.shape
    assert [part.shape for part in parts] == [local.local_shape(position) for position in spec.mesh]
    whole = assemble(parts, spec, shape)
    same(whole, expected, f"%{local.name}")
    for position, part in enumerate(parts):
        assert part.tobytes() == whole[spec.local_slices(shape, position)].tobytes(), "devices disagree"


def _dealt(rule: OpShardingRule, mesh: DeviceMesh, places: tuple[int, ...]) -> list[Axes]:
    axes: list[Axes] = [()] * len(rule.factors)
    for axis, f in zip(mesh.axes, places):
        if f < len(axes):
            axes[f] = (*axes[f], axis)
    return axes
