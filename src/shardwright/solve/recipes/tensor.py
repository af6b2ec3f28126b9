"""Which weights tensor parallelism splits, and along which dim: read off the graph.

Products are followed from one to the next, through whatever stands between them, by the factors of their rules:

- A product whose activation is whole splits its weight by *columns*: along what the weight adds to the result.
- A product that contracts over what is split splits its weight by *rows*, and leaves a sum to be reduced.
- A lookup splits its table by vocabulary, if that divides.
- Attention between whole activations is split by heads: its queries, keys and values are sliced.

A column is taken back, and all is followed anew, where what it splits would have to be gathered (a view or a split that
does not pass it on, as for fused queries, keys and values) or would meet an activation of its shape that is whole (the
residual stream).  Its weight is then whole.  Only the forward pass is looked at: the backward pass follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import PlanInfeasible
from ...propagation.choices import FORM_PENDING
from ...spec.axes import Axes, axes_size, axes_text
from ...spec.rule import Mapped, OpShardingRule
from ...spec.sharding import ShardingSpec
from .parts import Parts, divides, on_dim, size_of
from .walk import Walk, can_split


def tensor_parallel(parts: Parts, data: Axes, tensor: Axes) -> dict[int, ShardingSpec]:
    """Shardings of the inputs: the batch by the data axes, weights and their state by the tensor axes."""
    refused: set[int] = set()
    while True:
        walk = Deciding(parts, data, tensor, refused)
        walk.decide()
        if walk.refused == refused:
            break
        refused = walk.refused
    if not any(walk.specs[value].sharded_axes for value in parts.weights):
        raise PlanInfeasible(
            f"no weight can be split over {axes_text(tensor)}",
            rows=[("mesh", str(parts.mesh)), ("weights", str(len(parts.weights)))],
            help=f"tensor parallelism needs products whose features, heads or vocabulary {axes_size(tensor)} divides",
        )
    found = {value: walk.specs[value] for value in parts.graph.inputs}
    found |= {state: found[parameter] for state, parameter in parts.owners.items()}
    return found


class Deciding(Walk):
    """A walk that splits weights where it first meets them."""

    def __init__(self, parts: Parts, data: Axes, tensor: Axes, refused: set[int]) -> None:
        inputs = {value: parts.whole(value) for value in parts.graph.inputs}
        weights = set(parts.weights)
        inputs |= {value: parts.cut_batch(value, data) for value in parts.batch if value not in weights}
        super().__init__(parts, inputs, data, tensor)
        self.refused = set(refused)
        """Columns that were taken back: weights, and nodes of attention as numbers below zero."""
        self.decided: set[int] = set()
        self.columns: dict[int, frozenset[int]] = {}
        """Value -> the columns that split it."""
        self.chains: dict[int, list[int]] = {value: [] for value in parts.weights}
        """Weight -> the nodes that make something of it alone."""
        self.learned: set[int] = set(parts.weights)
        """Values that depend on a weight."""

    def decide(self) -> None:
        for n in self._forward():
            node, rule = self.graph.nodes[n], self.rule(n)
            if rule is not None:
                self._split(n, rule)
            self.visit(n)
            if len({self.roots.get(v) for v in node.results}) == 1 and (root := self.roots.get(node.results[0])):
                self.chains[root].append(n)
            if rule is not None:
                self._follow(n, rule)
            if any(value in self.learned for value in node.inputs):
                self.learned.update(node.results)

    def _forward(self) -> Iterator[int]:
        """Nodes up to the first product with a weight that an earlier product read: there the way back begins."""
        seen: set[int] = set()
        for n, node in enumerate(self.graph.nodes):
            if self.is_product(n):
                roots = {self.roots[value] for value in node.inputs if value in self.roots}
                if roots & seen:
                    return
                seen |= roots
            if node.results:
                yield n

    # -- before a node is visited ---------------------------------------------------------------------------

    def _split(self, n: int, rule: OpShardingRule) -> None:
        """Split the weight that a node reads, if it has to be decided here."""
        node, unit = self.graph.nodes[n], self.tensor
        weights = [i for i, value in enumerate(node.inputs) if value in self.roots]
        if len(weights) == len(node.inputs):
            return
        for i in weights:
            for d, dim in enumerate(rule.operands[i]):
                if rule.factors[dim[0]].form in FORM_PENDING and can_split(rule, dim[0], unit):
                    self._settle(node.inputs[i], d)
        if not self.is_product(n):
            return
        claims = [claim for claim in self.claims(n, rule, unit) if node.inputs[claim.operand] not in self.roots]
        if not weights:
            if not claims and -n - 1 not in self.refused:
                self._start(n, rule)
            return
        weight = max(weights, key=lambda i: size_of(self.graph, node.inputs[i]))
        mapped = rule.operands[weight]
        if claims:
            for claim in claims:
                self._settle(node.inputs[weight], _dim_of(mapped, claim.factor))
        elif self.roots[node.inputs[weight]] not in self.refused:
            read = {f for i, other in enumerate(rule.operands) if i not in weights for dim in other for f in dim}
            made = {f for result in rule.results for dim in result for f in dim}
            for f in sorted((made - read), key=lambda f: -rule.sizes[f]):
                if _dim_of(mapped, f) is not None and can_split(rule, f, unit):
                    if self._settle(node.inputs[weight], _dim_of(mapped, f)):
                        root = self.roots[node.inputs[weight]]
                        self.columns[node.inputs[weight]] = frozenset({root})
                    break

    def _start(self, n: int, rule: OpShardingRule) -> None:
        """Split attention by heads: the last factor that all its results and all operands have, or are stretched to."""
        node = self.graph.nodes[n]
        cut = {claim.factor for claim in self.claims(n, rule, self.data)} if self.data else set()
        both = [
            f
            for f in range(len(rule.factors))
            if f not in cut
            and rule.pass_through[f]
            and can_split(rule, f, self.tensor)
            and all(_dim_of(result, f) is not None for result in rule.results)
            and all(_dim_of(mapped, f) is not None or _is_stretched(rule, mapped) for mapped in rule.operands)
        ]
        if len(both) + len(cut) < 2:
            return  # a product of two activations; its only common factor is the batch
        for value, mapped in zip(node.inputs, rule.operands):
            d = _dim_of(mapped, both[-1]) if both else None
            if d is not None and not self.specs[value].partial and len(mapped[d]) == 1:
                self.specs[value] = on_dim(self.specs[value], d, self.tensor)
                self.columns[value] = frozenset({-n - 1})

    def _settle(self, value: int, d: int | None) -> bool:
        """Split a weight so that what is made of it is split along a dim."""
        root = self.roots[value]
        if root in self.decided or d is None:
            return False
        chain = self._chain(root, value)
        shape = self.graph.type(root).shape
        before = self.specs[root]
        for at in range(len(shape)):
            if not divides(shape[at], self.tensor):
                continue
            self.specs[root] = on_dim(before, at, self.tensor)
            for n in chain:
                self.visit(n)
            if self.specs[value].dims[d].axes[-len(self.tensor) :] == self.tensor:
                self.decided.add(root)
                return True
        self.specs[root] = before
        for n in chain:
            self.visit(n)
        return False

    def _chain(self, root: int, value: int) -> list[int]:
        """The nodes that lead from a weight to a value."""
        found = []
        while value != root:
            producer = self.graph.values[value].producer
            assert producer is not None
            found.append(producer[0])
            value = next(v for v in self.graph.nodes[producer[0]].inputs if self.roots.get(v) == root)
        return found[::-1]

    # -- after it was -----------------------------------------------------------------------------------------

    def _follow(self, n: int, rule: OpShardingRule) -> None:
        """Hand on which columns split the results, and take columns back that did not come far."""
        node, unit = self.graph.nodes[n], self.tensor
        for place, value in enumerate(node.inputs):  # biases lie as they are used
            if value in self.roots and self.roots[value] not in self.decided:
                dims = self.needs[value][n, place].dims
                self._settle(value, next((d for d, dim in enumerate(dims) if unit[0] in dim.axes), None))
        split = [axis for axes in self.axes[n] for axis in axes]
        holding = [value for value in node.inputs if unit[0] in self.specs[value].sharded_axes]
        columns = frozenset[int]().union(*(self.columns.get(value, frozenset()) for value in holding))
        if unit[0] not in split:
            self.refused |= columns
            return
        if not self.is_product(n):
            shapes = {self.graph.type(value).shape for value in holding if value not in self.roots}
            for value in node.inputs:
                alike = self.graph.type(value).shape in shapes and value in self.learned and value not in self.roots
                if alike and value not in holding:
                    self.refused |= columns
        for value in node.results:
            if unit[0] in self.specs[value].sharded_axes:
                self.columns[value] = columns


def _dim_of(mapped: Mapped, factor: int | None) -> int | None:
    """The dim that a factor leads, if any."""
    return next((d for d, dim in enumerate(mapped) if dim and dim[0] == factor), None)


def _is_stretched(rule: OpShardingRule, mapped: Mapped) -> bool:
    return any(rule.factors[f].broadcast for dim in mapped for f in dim)
