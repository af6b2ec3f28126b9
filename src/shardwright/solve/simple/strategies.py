"""The ways to split one op: every mesh axis goes to any factor, or to none.

A factor of the left operand that the result keeps is *data* (rows, batch): splitting it is data parallel.  One that
only the right operand brings (columns), or that is summed, is *model*: splitting it is model parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from ...cost.memory import local_bytes
from ...errors import PlanInfeasible
from ...propagation.choices import choices, legal_axes
from ...spec.axes import Axes, axes_text, merge_axes
from ...spec.factors import FactorSharding
from ...spec.mesh import DeviceMesh
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from .problem import Problem

MOST = 256
"""About how many ways of one op are looked at; with more, the smallest factors are not split."""

DATA, MODEL, NONE = "Data Parallel", "Model Parallel", "Replicated"


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way: axes by factor, what that needs and leaves, and what it costs by itself."""

    axes: tuple[Axes, ...]
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]
    kinds: frozenset[str]
    text: str
    time: int
    bytes: int
    """Of operands and results on one device."""

    @property
    def is_data(self) -> bool:
        return self.kinds == {DATA}

    @property
    def is_model(self) -> bool:
        return MODEL in self.kinds

    @property
    def used(self) -> int:
        return sum(len(axes) for axes in self.axes)


def kind_of(rule: OpShardingRule, f: int) -> str:
    """Whether splitting a factor is data or model parallel."""
    if f in rule.reduced:
        return MODEL
    first = rule.operands[0] if rule.operands else rule.results[0]
    return DATA if any(f in dim for dim in first) else MODEL


def describe(rule: OpShardingRule, mesh: DeviceMesh, axes: Iterable[Axes]) -> tuple[frozenset[str], str]:
    """``Data Parallel (Split M over dp) + Model Parallel (Split N over tp)``; axes are named if not all are meant."""
    split = [(f, given) for f, given in enumerate(axes) if any(axis.size > 1 for axis in given)]
    if not split:
        return frozenset(), NONE
    every = tuple(axis for axis in mesh.axes if axis.size > 1)
    words = []
    for f, given in sorted(split, key=lambda item: (kind_of(rule, item[0]) != DATA, item[0])):
        over = "" if len(split) == 1 and set(given) == set(every) else f" over {axes_text(given)}"
        words.append(f"{kind_of(rule, f)} (Split {rule.factors[f].name.upper()}{over})")
    return frozenset(kind_of(rule, f) for f, _ in split), " + ".join(words)


def strategies(problem: Problem, n: int) -> tuple[Strategy, ...]:
    """Every way to split a node that fits in memory; those that use fewer axes come first."""
    rule = problem.rules[n]
    assert rule is not None
    node, types = problem.graph.nodes[n], problem.types[n]
    found: dict[tuple[Axes, ...], Strategy] = {}
    least: int | None = None
    for axes in _assignments(problem, n, rule):
        legal = legal_axes(rule, axes)
        if legal in found:
            continue
        split = FactorSharding(rule, problem.mesh, legal)
        operands, results = (tuple(map(problem.same, specs)) for specs in (split.operand_specs, split.result_specs))
        sizes = {
            value: local_bytes(spec, type)
            for value, spec, type in zip((*node.inputs, *node.results), (*operands, *results), types)
        }
        held = sum(sizes.values())
        least = held if least is None else min(least, held)
        if held > problem.hardware.memory:
            continue
        kinds, text = describe(rule, problem.mesh, legal)
        time = problem.time(n, legal, (*operands, *results))
        found[legal] = Strategy(legal, operands, results, kinds, text, time, held)
    if not found:
        raise PlanInfeasible(
            f"node {n} fits on no device, however it is split",
            rows=[
                ("op", f"{node.op}   at {node.source}" if node.source else node.op),
                ("needs", f"{least} bytes on a device for its operands and results"),
                ("memory", f"{problem.hardware.memory} bytes ({problem.hardware.name})"),
            ],
            help="use more devices, or a smaller program",
        )
    return tuple(sorted(found.values(), key=lambda strategy: strategy.used))


def _assignments(problem: Problem, n: int, rule: OpShardingRule) -> Iterator[list[Axes]]:
    """Products over axes, then what the user's shardings suggest (other orders, parts of axes)."""
    axes = [axis for axis in problem.mesh.axes if axis.size > 1]
    factors = [
        f
        for f, factor in enumerate(rule.factors)
        if factor.size > 1 and not (factor.broadcast or factor.whole or factor.permuted or factor.form)
    ]
    factors.sort(key=lambda f: -rule.sizes[f])
    while len(factors) > 1 and (len(factors) + 1) ** len(axes) > MOST:
        factors.pop()
    for chosen in product([None, *sorted(factors)], repeat=len(axes)):
        given: list[Axes] = [()] * len(rule.factors)
        for axis, f in zip(axes, chosen):
            if f is not None:
                given[f] = merge_axes((*given[f], axis))
        yield given
    node = problem.graph.nodes[n]
    if any(value in problem.given for value in (*node.inputs, *node.results)):
        operands = [problem.given.get(value, problem.replicated(value)).closed() for value in node.inputs]
        wanted = [problem.given.get(value) for value in node.results]
        for choice in choices(rule, problem.mesh, operands, wanted):
            yield list(choice.axes)
