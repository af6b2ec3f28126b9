"""What Shardy's program leaves to later passes, and how it is counted.

The record of such a program holds fewer bytes than the program will move.  Four things are left unsaid:

- An op splits a *permuted* factor: its shards exchange data inside the op (see `exchange`).
- Shardy knows nothing about an op: only whole operands are right for it.
- An operand lies otherwise than the result needs it: on another mesh, or split in a dim of size 1 that the result
  does not have.  It is brought to the result's layout.
- A function returns a value in another layout than it says; only the partial version of the pass leaves that.

The latter three are priced as the reshards they stand for, like those that Shardy writes down.  For the first there
is no such price, only the least that any exchange must move.  Where even with that Shardy's program needs no fewer
bytes than ours, nothing is left to say.  Else our lowering is to blame, which has no exchange inside an op and makes
the dim whole, and the decisions are compared apart from it, in two ways, ours having to be no worse in both: with the
exchange left inside the op in both programs, as Shardy's pass has it, counted at the least that it must move; and
with both carried out by our lowering, as they would run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from exchange import least_exchange
from explicit import completed, move_bytes, our_bytes, shardy_total, spec_of
from vectors import Function

from shardwright.ir.core import CONSTRAINT
from shardwright.ir.graph import Node
from shardwright.lower import lower
from shardwright.propagation.project import project
from shardwright.spec.axes import Axes
from shardwright.spec.factors import FactorSharding
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import Shape, ShardingSpec

EXCHANGE = "exchange inside an op"
_PASSES_ON = "stablehlo.optimization_barrier"


@dataclass(frozen=True)
class Unsaid:
    """What is left unsaid in one place."""

    reason: str
    bytes: int = 0


def with_rules(expected: Function, given: Function) -> Function:
    """Rules are recorded in the input only; ops are the same, in the same order."""
    pairs = list(zip(_ops(given), _ops(expected), strict=True))
    return replace(expected, rules={theirs: given.rules[ours] for ours, theirs in pairs if ours in given.rules})


def _ops(function: Function) -> list[int]:
    """The nodes that compute."""
    nodes = enumerate(function.graph.nodes)
    return [n for n, node in nodes if node.op != CONSTRAINT and not node.op.startswith("sdy.")]


def unsaid(expected: Function, mesh: DeviceMesh) -> Iterator[Unsaid]:
    """All that Shardy's program leaves to later passes; ``expected`` has its rules."""
    for n in _ops(expected):
        node, rule = expected.graph.nodes[n], expected.rules.get(n)
        if rule is None:
            if node.inputs and node.results and node.op != _PASSES_ON:
                whole = [ShardingSpec.replicate(mesh, expected.graph.type(value).rank) for value in node.inputs]
                yield Unsaid("op without a rule", _brought(expected, node, whole, mesh))
        elif _exchanges(expected, node, rule, mesh):
            yield Unsaid(EXCHANGE)
        elif needs := _needed(expected, node, rule, mesh):
            yield Unsaid("operand in another layout than the result", _brought(expected, node, needs, mesh))
    for i, said in expected.out_specs.items():
        value = expected.graph.outputs[i]
        cost = move_bytes(spec_of(expected, value, mesh), said, *_size(expected, value))
        if cost:
            yield Unsaid("returned in another layout than said", cost)


def _size(function: Function, value: int) -> tuple[Shape, int]:
    type = function.graph.type(value)
    return type.shape, type.item_bytes


def _axes(rule: OpShardingRule, function: Function, node: Node, mesh: DeviceMesh) -> list[dict[int, Axes]]:
    """For each tensor of an op the axes of its factors."""
    specs = [spec_of(function, value, mesh) for value in (*node.inputs, *node.results)]
    return [
        {f: factor.axes for f, factor in project(mapped, spec, rule.sizes).factors.items()}
        for mapped, spec in zip(rule.tensors, specs)
    ]


def _exchanges(function: Function, node: Node, rule: OpShardingRule, mesh: DeviceMesh) -> bool:
    tensors = _axes(rule, function, node, mesh)
    return any(rule.factors[f].permuted and axes for factors in tensors for f, axes in factors.items())


def _needed(function: Function, node: Node, rule: OpShardingRule, mesh: DeviceMesh) -> list[ShardingSpec]:
    """Operands as local computation of the results needs them, what is summed as it is; nothing if they lie so."""
    tensors = _axes(rule, function, node, mesh)
    operands, results = tensors[: len(node.inputs)], tensors[len(node.inputs) :]
    wanted: list[Axes] = []
    for f in range(len(rule.factors)):
        among = tensors if f in rule.reduced else results
        wanted.append(next((factors[f] for factors in among if f in factors), ()))
    home = spec_of(function, node.results[0], mesh).mesh
    at_home = all(spec_of(function, value, mesh).mesh == home for value in node.inputs)
    if at_home and all(axes == wanted[f] for factors in operands for f, axes in factors.items()):
        return []
    return list(FactorSharding(rule, home, tuple(wanted)).operand_specs)


def _brought(function: Function, node: Node, to: list[ShardingSpec], mesh: DeviceMesh) -> int:
    moves = dict.fromkeys(zip(node.inputs, to))
    return sum(move_bytes(spec_of(function, value, mesh), spec, *_size(function, value)) for value, spec in moves)


# -- exchanges inside ops ---------------------------------------------------------------------------------


def exchanging_bytes(given: Function, mesh: DeviceMesh) -> int:
    """Ours, if it may split permuted factors: reshards, and the least that its ops exchange."""
    loose = {
        n: replace(rule, factors=tuple(replace(factor, permuted=False) for factor in rule.factors))
        for n, rule in given.rules.items()
    }
    fixed = completed(replace(given, rules=loose), mesh)
    total = lower(fixed).bytes
    for n in _ops(given):
        decision = fixed.decisions[n]
        total += _exchanged(given, n, [*decision.operands, *decision.results])
    return total


def exchanging_total(expected: Function, mesh: DeviceMesh) -> int:
    """Shardy's, likewise."""
    total = shardy_total(expected, mesh)
    for n in _ops(expected):
        node = expected.graph.nodes[n]
        total += _exchanged(expected, n, [spec_of(expected, v, mesh) for v in (*node.inputs, *node.results)])
    return total


def _exchanged(function: Function, n: int, specs: list[ShardingSpec]) -> int:
    node, rule = function.graph.nodes[n], function.rules.get(n)
    if rule is None:
        return 0
    types = [function.graph.type(value) for value in (*node.inputs, *node.results)]
    return least_exchange(node.op, function.attrs[n], rule, types, specs)


def compare_exchanging(given: Function, expected: Function, mesh: DeviceMesh) -> tuple[str, str]:
    """How ours was compared with Shardy's program, and what is wrong, if anything; ``expected`` has its rules."""
    least = exchanging_total(expected, mesh)
    if our_bytes(given, mesh) <= least:
        return f"{EXCHANGE}, at its least", ""
    pairs = [("with exchanges inside ops", exchanging_bytes(given, mesh), least)]
    if all(node.op != "sdy.all_reduce" for node in expected.graph.nodes):  # which our lowering puts in by itself
        pairs.append(("carried out here", our_bytes(given, mesh), our_bytes(expected, mesh)))
    wrong = [f"{ours} bytes where Shardy needs {theirs}, {how}" for how, ours, theirs in pairs if ours > theirs]
    return f"{EXCHANGE}, decisions apart from it", "; ".join(wrong)
