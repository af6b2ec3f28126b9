"""From shardings of inputs to how every op is split: one walk over the nodes, in program order.

Axes come in two *units*: the data axes, which cut the batch, and the tensor axes, which cut weights.  A node gives a
unit to the factor that an operand has it on:

| the unit | then |
|---|---|
| is on a factor that can be split | the node is split there; operands without it are sliced, which is free |
| is on factors that differ | a weight decides in a product, else the largest operand; the others are brought there |
| cuts a weight in storage only (data axes) | the weight is gathered for the node |
| is on a factor that cannot be split | the operand is gathered |
| is pending | it stays so through linear ops, while nobody else reads the value and it does not grow |

A value that only leads to new state follows the state.  Pending values are reduced into what their readers want:
whole, or cut, which is a reduce_scatter.  With ``scatter`` they are cut along the sequence, for as long as that passes
through.  What is whole but read in parts alone is made in parts to begin with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...cost.compute import ARITHMETIC, cost_class
from ...ir.graph import Node
from ...propagation import rule_of
from ...propagation.choices import find_transfer, forced_choices, legal_axes
from ...propagation.project import project
from ...rules.registry import find
from ...spec.axes import Axes, axes_size
from ...spec.rule import OpShardingRule
from ...spec.sharding import ShardingSpec
from .parts import Parts, divides, size_of


class Claim(NamedTuple):
    """An operand of a node has a unit on a factor; None where the dim is cut but no factor is."""

    operand: int
    factor: int | None


class Walk:
    """How every value is sharded as it is made, and which axes the factors of every node get."""

    def __init__(
        self,
        parts: Parts,
        inputs: Mapping[int, ShardingSpec],
        data: Axes = (),
        tensor: Axes = (),
        scatter: bool = False,
    ) -> None:
        self.parts, self.graph, self.mesh = parts, parts.graph, parts.mesh
        self.data, self.tensor, self.scatter = data, tensor, scatter
        self.specs = dict(inputs)
        """What is left of a value by the node that makes it, pending reductions included."""
        self.axes: dict[int, tuple[Axes, ...]] = {}
        self.needs: dict[int, dict[tuple[int, int], ShardingSpec]] = {v.id: {} for v in self.graph.values}
        """What readers want of a value, by node and place."""
        self.roots = {value: value for value in parts.weights}
        """Weights, and what is made of one weight alone without arithmetic."""

    def run(self) -> None:
        for n in range(len(self.graph.nodes)):
            self.visit(n)
        for n in reversed(range(len(self.graph.nodes))):
            self._make_in_parts(n)

    def visit(self, n: int) -> None:
        node = self.graph.nodes[n]
        self._root(node)
        rule = self.rule(n)
        if rule is None:
            for value in node.results:
                self.specs[value] = self.parts.whole(value)
            for place, value in enumerate(node.inputs):
                self.needs[value][n, place] = self.parts.whole(value)
            return
        homes = [self.specs[value] for value in node.inputs]
        given: list[Axes] = [()] * len(rule.factors)
        for unit in (self.data, self.tensor):
            if not unit:
                continue
            pending = [i for i, spec in enumerate(homes) if any(axis in unit for axis, _ in spec.partial)]
            factor = self.choose(n, rule, unit, [c for c in self.claims(n, rule, unit) if c.factor is not None])
            if pending and factor is None and self.carries(node, rule, pending, unit):
                continue
            for i in pending:
                left = tuple(pair for pair in homes[i].partial if pair[0] not in unit)
                homes[i] = ShardingSpec.make(self.mesh, homes[i].dims, left)
            if factor is None and pending:
                factor = self.scattered(n, rule, pending, unit)
            if factor is not None:
                given[factor] = self._ordered(rule, homes, factor, (*given[factor], *unit))
        legal = self.legal(rule, given)
        choice = forced_choices(rule, self.mesh, homes, legal)[0]
        self.axes[n] = legal
        for place, (value, spec) in enumerate(zip(node.inputs, choice.operands)):
            self.needs[value][n, place] = spec
        self.specs.update(zip(node.results, choice.results))

    # -- one node -----------------------------------------------------------------------------------------

    def rule(self, n: int) -> OpShardingRule | None:
        view = rule_of(self.graph, self.graph.nodes[n])
        return None if view is None else view.rule

    def is_product(self, n: int) -> bool:
        return cost_class(find(self.graph.nodes[n].op)) in ARITHMETIC

    def _root(self, node: Node) -> None:
        roots = {self.roots.get(value) for value in node.inputs}
        if len(roots) == 1 and (root := roots.pop()) is not None and cost_class(find(node.op)) not in ARITHMETIC:
            self.roots.update(dict.fromkeys(node.results, root))

    def claims(self, n: int, rule: OpShardingRule, unit: Axes) -> Iterator[Claim]:
        """Where operands have a unit; a weight that data axes cut is sharded so only until it is used."""
        node = self.graph.nodes[n]
        renews = all(self.parts.roles[value] in ("gradient", "renewed") for value in node.results)
        stored = unit == self.data and not renews and not all(value in self.roots for value in node.results)
        for i, (value, mapped) in enumerate(zip(node.inputs, rule.operands)):
            spec = self.specs[value]
            if not all(axis in spec.sharded_axes for axis in unit) or (stored and value in self.roots):
                continue
            factors = project(mapped, spec, rule.sizes).factors
            at = next((f for f, known in factors.items() if all(axis in known.axes for axis in unit)), None)
            yield Claim(i, at if at is not None and can_split(rule, at, unit) else None)

    def choose(self, n: int, rule: OpShardingRule, unit: Axes, claims: list[Claim]) -> int | None:
        """Of several factors that a unit is on, the one for which least has to be moved."""
        node = self.graph.nodes[n]
        if unit == self.tensor and self.is_product(n):
            weights = [claim for claim in claims if node.inputs[claim.operand] in self.roots]
            kept = [claim for claim in claims if claim.factor is not None and rule.pass_through[claim.factor]]
            claims = weights or kept or claims  # or else a gradient would be reduced twice
        bytes: dict[int, int] = {}
        for claim in claims:
            assert claim.factor is not None
            bytes[claim.factor] = bytes.get(claim.factor, 0) + size_of(self.graph, node.inputs[claim.operand])
        return max(bytes, key=lambda f: bytes[f], default=None)

    def carries(self, node: Node, rule: OpShardingRule, pending: list[int], unit: Axes) -> bool:
        """Whether a pending sum is better let through: nobody else wants it, and it does not grow."""
        graph = self.graph
        values = [node.inputs[i] for i in pending]
        if any(len(graph.uses[value]) + graph.output_uses[value] > 1 for value in values):
            return False
        if sum(size_of(graph, v) for v in node.results) > sum(size_of(graph, v) for v in values):
            return False
        for axis in unit:
            kinds = {kind for value in values for a, kind in self.specs[value].partial if a == axis}
            states = tuple(
                next((f"P({kind})" for a, kind in self.specs[value].partial if a == axis), "R") for value in node.inputs
            )
            if len(kinds) != 1 or find_transfer(rule.transfers, states, kinds.pop()) is None:
                return False
        return True

    def scattered(self, n: int, rule: OpShardingRule, pending: list[int], unit: Axes) -> int | None:
        """The factor along which what is pending may be cut: the sequence, or else the batch; never the features."""
        node = self.graph.nodes[n]
        leads_to_state = any(self.parts.roles[value] in ("gradient", "renewed") for value in node.results)
        if not self.scatter or unit != self.tensor or leads_to_state:
            return None
        value = node.inputs[pending[0]]
        mapped, dims = rule.operands[pending[0]], self.specs[value].dims
        for d in (*range(1, len(dims) - 1), 0) if len(dims) in (2, 3) else ():  # images are no sequences
            if len(mapped[d]) == 1 and rule.pass_through[mapped[d][0]]:
                whole = (*dims[d].axes, *unit)
                if divides(self.graph.type(value).shape[d], whole) and can_split(rule, mapped[d][0], whole):
                    factor: int = mapped[d][0]
                    return factor
        return None

    def _ordered(self, rule: OpShardingRule, homes: list[ShardingSpec], factor: int, axes: Axes) -> Axes:
        """Two units on one factor: in the order that an operand has them in, so that it need not move."""
        for mapped, spec in zip(rule.operands, homes):
            known = project(mapped, spec, rule.sizes).factors.get(factor)
            if known is not None and set(known.axes) == set(axes):
                return known.axes
        return axes

    def legal(self, rule: OpShardingRule, given: list[Axes]) -> tuple[Axes, ...]:
        """Units that do not fit are left out as a whole."""
        while (found := legal_axes(rule, given)) != tuple(given):
            fits = [{a for unit in (self.data, self.tensor) if {*unit} <= {*kept} for a in unit} for kept in found]
            given = [tuple(axis for axis in axes if axis in fit) for axes, fit in zip(given, fits)]
        return found

    # -- afterwards ---------------------------------------------------------------------------------------

    def homes(self) -> dict[int, ShardingSpec]:
        """How every value is sharded, reduced into what its readers want unless one of them takes it pending."""
        graph = self.graph
        found = {}
        state = {graph.outputs[output]: self.specs[graph.inputs[i]] for i, output in graph.updates}
        for value, spec in self.specs.items():
            wanted = list(self.needs[value].values())
            if not wanted and value in state:
                wanted = [state[value]]
            if spec.partial and not any(want.partial for want in wanted):
                finished = ShardingSpec.make(self.mesh, spec.dims)
                spec = wanted[0] if len(set(wanted)) == 1 and not graph.output_uses[value] else finished
                if value in state and len(set(wanted)) == 1:
                    spec = wanted[0]
            found[value] = spec
        return found

    def _make_in_parts(self, n: int) -> None:
        """Where all readers want whole results cut alike, cut them already here, if that leaves nothing pending."""
        node, rule = self.graph.nodes[n], self.rule(n)
        wants = {r: set(self.needs[value].values()) for r, value in enumerate(node.results)}
        wants = {r: wanted for r, wanted in wants.items() if wanted}
        if rule is None or not wants or any(len(wanted) > 1 for wanted in wants.values()):
            return
        if any(self.graph.output_uses[value] or self.specs[value].partial for value in node.results):
            return
        given = list(self.axes[n])
        used = [axis for axes in given for axis in axes]
        lead, (want,) = next(iter(wants.items()))
        for f, known in project(rule.results[lead], want, rule.sizes).factors.items():
            more = tuple(axis for axis in known.axes if axis not in given[f])
            if any(axis in used for axis in more):
                return
            given[f] = (*given[f], *more)
        if tuple(given) == self.axes[n] or legal_axes(rule, given) != tuple(given):
            return
        choices = forced_choices(rule, self.mesh, [self.needs[v][n, i] for i, v in enumerate(node.inputs)], given)
        if choices and all({choices[0].results[r]} == wanted for r, wanted in wants.items()):
            self.axes[n] = tuple(given)
            self.specs.update(zip(node.results, choices[0].results))
            for place, (value, need) in enumerate(zip(node.inputs, choices[0].operands)):
                self.needs[value][n, place] = need


def can_split(rule: OpShardingRule, f: int, unit: Axes) -> bool:
    """Whether a factor may be split, and evenly."""
    factor = rule.factors[f]
    stiff = factor.broadcast or ((factor.whole or factor.permuted) and factor.form is None)
    return not stiff and divides(factor.size, unit) and axes_size(unit) > 1
