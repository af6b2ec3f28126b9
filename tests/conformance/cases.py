"""Running one call of an op, split in many ways, against the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from calls import prepare

from shardwright.frontends.numpy import trace
from shardwright.frontends.numpy.samples import Sample
from shardwright.frontends.numpy.trees import flatten
from shardwright.ir.graph import Graph, Node
from shardwright.ir.program import Local, Program
from shardwright.lower import lower
from shardwright.propagation import rule_of
from shardwright.propagation.choices import legal_axes
from shardwright.propagation.complete import complete
from shardwright.propagation.engine import OpView
from shardwright.run import VirtualEngine, assemble, scatter
from shardwright.spec.axes import Axes
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

Array = np.ndarray[Any, Any]
TOLERANCE = {"f": 1e-5, "d": 1e-12, "e": 5e-3, "D": 1e-12, "F": 1e-5}


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
