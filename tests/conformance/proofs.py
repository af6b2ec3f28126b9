"""No false alarm: every split of every ATen op that its rule allows, and every line of its table, is proven.

One op a program, so that an op that the proof cannot follow has nothing to hide behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from shardwright.discover.book.torch_calls import AtenCall
from shardwright.errors import ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.program import Program
from shardwright.lower import lower
from shardwright.plans.complete import Complete, Decision
from shardwright.proof import prove
from shardwright.propagation import rule_of
from shardwright.propagation.choices import legal_axes
from shardwright.propagation.complete import complete
from shardwright.spec.collective import REDUCTIONS
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

MESHES = (DeviceMesh("x=2"), DeviceMesh("x=3"))


def split(graph: Graph, rule: OpShardingRule) -> Iterator[Program]:
    """Each factor that may be split, on each mesh."""
    for mesh in MESHES:
        specs = [ShardingSpec.replicate(mesh, value.type.rank) for value in graph.values]
        for f in range(len(rule.factors)):
            legal = legal_axes(rule, [mesh.axes if g == f else () for g in range(len(rule.factors))])
            if legal[f]:
                yield lower(complete(graph, mesh, specs, rule_of, forced={0: legal}))


def pending(graph: Graph, rule: OpShardingRule) -> Iterator[Program]:
    """Each line of the table: operands come in pending, results go out so."""
    mesh, (node,) = MESHES[0], graph.nodes
    for row in rule.transfers:
        kinds = sorted(REDUCTIONS) if "P(any)" in row.operands else [""]
        for kind in kinds:
            states = [state.replace("any", kind) for state in (*row.operands, *row.results)]
            values = (*node.inputs, *node.results)
            specs = [
                ShardingSpec.replicate(mesh, graph.type(value).rank).replace(
                    partial=() if state == "R" else ((mesh.axes[0], state[2:-1]),)
                )
                for state, value in zip(states, values)
            ]
            by_value = dict(zip(values, specs))
            if any(by_value[value] != spec for value, spec in zip(values, specs)):
                continue  # one tensor in two places of different states
            operands, results = tuple(specs[: len(node.inputs)]), tuple(specs[len(node.inputs) :])
            decision = Decision(0, rule, ((),) * len(rule.factors), operands, results, results)
            inputs, outputs = (tuple(by_value[value] for value in ends) for ends in (graph.inputs, graph.outputs))
            yield lower(Complete(graph, mesh, inputs, (decision,), outputs))


def proofs_hold(calls_by_op: Mapping[str, Sequence[AtenCall]]) -> int:
    """How many programs were proven; fails on the first few that were not."""
    proven = 0
    wrong = []
    for op, calls in calls_by_op.items():
        for call in calls:
            try:
                graph = call.graph()
            except RuntimeError:  # of a tensor without elements 2.11 describes no maximum
                if not torch.__version__.startswith("2.11"):
                    raise
                continue
            view = rule_of(graph, graph.nodes[0])
            if view is None or set(graph.inputs) != set(graph.nodes[0].inputs):
                continue
            for program in (*split(graph, view.rule), *pending(graph, view.rule)):
                proven += 1
                try:
                    prove(graph, program)
                except ShardwrightError as error:
                    wrong.append(f"{op}: {error}\n{program}")
    assert not wrong, f"{len(wrong)} of {proven}\n" + "\n".join(wrong[:5])
    return proven
