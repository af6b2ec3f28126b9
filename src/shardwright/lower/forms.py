"""Local forms: what a device computes when a factor is split and plain local execution is not enough.

A form writes instructions over ``core.*`` ops that every frontend evaluates.  It sees the node, its operands as
local copies, and the axes of the split factor.  `FORM_PENDING` in `propagation.choices`
says which leave a pending result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..ir.graph import Attr, Attrs, Graph, Node, Operand, TensorType
from ..propagation.complete import Complete, Decision, complete_parts
from ..propagation.parts import parts_of
from ..rules.registry import find
from ..spec.axes import Axes
from ..spec.sharding import ShardingSpec


class Writer(Protocol):
    """What a form writes with: the Program that is being made, as `lowering.Lowering` makes it."""

    graph: Graph
    complete: Complete

    def emit(
        self,
        op: str,
        operands: tuple[Operand, ...],
        type: TensorType,
        spec: ShardingSpec,
        name: str,
        attrs: Attrs = (),
        axes: Axes = (),
        node: int | None = None,
        origin: int | None = None,
    ) -> int:
        """One local instruction; its result."""

    def pend(self, value: int, spec: ShardingSpec, axes: Axes) -> int:
        """A copy of a value that is pending over these axes: it counts once in a sum."""

    def call(self, node: Node, decision: Decision, operands: tuple[Operand, ...]) -> tuple[int, ...]:
        """The op itself, on local shards."""

    def inline(self, inner: Complete, node: Node, decision: Decision, operands: tuple[Operand, ...]) -> tuple[int, ...]:
        """The instructions of an op's parts in its place."""


@dataclass(frozen=True)
class FormContext:
    """What a form works with."""

    lowering: Writer
    node: Node
    decision: Decision
    operands: tuple[Operand, ...]
    specs: tuple[ShardingSpec, ...]
    axes: Axes

    def offset(self, size: int, axes: Axes) -> int:
        """A 0-d value: where this device's part of a dim of this size begins."""
        mesh = self.lowering.complete.mesh
        return self.lowering.emit(
            "core.offset", (), TensorType((), "i64"), ShardingSpec.replicate(mesh, 0), "offset",
            (("size", size),), axes, self.decision.node,
        )  # fmt: skip

    def result(self, op: str, operands: tuple[Operand, ...], **attrs: Attr) -> int:
        """The instruction that makes the node's (first) result."""
        origin = self.node.results[0]
        value = self.lowering.graph.values[origin]
        said = tuple(sorted(attrs.items()))
        node = self.decision.node
        return self.lowering.emit(op, operands, value.type, self.specs[0], value.name, said, (), node, origin)

    def attr(self, name: str, default: Attr = None) -> Attr:
        """An attribute, in the words of the vocabulary that forms know."""
        record = find(self.node.op)
        if record is None or record.same_as is None:
            given: Attr = self.node.attr(name, default)
            return given
        first = self.lowering.graph.type(self.node.inputs[0]).rank if self.node.inputs else 0
        last = self.lowering.graph.type(self.node.results[0]).rank
        found: Attr = record.same_as(dict(self.node.attrs), first, last)[1].get(name, default)
        return found

    def shape(self, operand: int) -> tuple[int, ...]:
        return self.lowering.graph.values[self.node.inputs[operand]].shape

    def axes_of(self, dim: int, spec: ShardingSpec) -> Axes:
        return spec.dims[dim].axes


Form = Callable[[FormContext], tuple[int, ...]]


def take(context: FormContext) -> tuple[int, ...]:
    """Lookup in a table whose rows are split: each device looks up the rows it has and leaves zero elsewhere."""
    axis = _int(context.attr("axis"))
    size = context.shape(0)[axis]
    offset = context.offset(size, context.axes)
    return (context.result("core.take", (*context.operands, offset), axis=axis, size=size),)


def take_along(context: FormContext) -> tuple[int, ...]:
    """One lookup for each element of the index, in a table that is split along the looked-up dim: likewise."""
    axis = _int(context.node.attr("dim")) % len(context.shape(0))
    size = context.shape(0)[axis]
    offset = context.offset(size, context.axes)
    return (context.result("core.take_along", (*context.operands, offset), axis=axis, size=size),)


def take_grad(context: FormContext) -> tuple[int, ...]:
    """Rows summed where an index points: each device sums those that fall into its part of the table."""
    size = context.lowering.graph.values[context.node.results[0]].shape[0]
    offset = context.offset(size, context.axes)
    ignored = _int(context.node.attr("padding_idx", -1))
    return (context.result("core.take_grad", (*context.operands, offset), size=size, ignored=ignored),)


def once(context: FormContext) -> tuple[int, ...]:
    """Operands that lack the split factor are added to a sum over it: they count on one device only."""
    rule = context.decision.rule
    assert rule is not None
    split = [f for f, factor in enumerate(rule.factors) if factor.form == "once" and context.decision.axes[f]]
    operands = list(context.operands)
    for i, mapped in enumerate(rule.operands):
        if not any(f in dim for f in split for dim in mapped):
            operands[i] = context.lowering.pend(context.node.inputs[i], context.decision.operands[i], context.axes)
    return context.lowering.call(context.node, context.decision, tuple(operands))


def parts(context: FormContext) -> tuple[int, ...]:
    """The op in its parts, with what they need to exchange."""
    inner = parts_of(context.lowering.graph, context.node)
    assert inner is not None  # or `complete` would have said so
    decision = context.decision
    found = complete_parts(inner, context.lowering.complete.mesh, decision.operands, decision.results)
    assert isinstance(found, Complete)
    return context.lowering.inline(found, context.node, decision, context.operands)


def random(context: FormContext) -> tuple[int, ...]:
    """Random numbers of a part: drawn by the places that its elements have in the whole."""
    shape, spec = context.lowering.graph.values[context.node.results[0]].shape, context.specs[0]
    offsets = tuple(context.offset(size, context.axes_of(d, spec)) for d, size in enumerate(shape))
    return (context.result(context.node.op, (*context.operands, *offsets), **dict(context.node.attrs)),)


def rows(context: FormContext) -> tuple[int, ...]:
    """An op that must know where the rows of its split factor begin: one operand more says so."""
    rule = context.decision.rule
    assert rule is not None
    size = next(factor.size for factor, axes in zip(rule.factors, context.decision.axes) if factor.form and axes)
    operands = (*context.operands, context.offset(size, context.axes))
    return context.lowering.call(context.node, context.decision, operands)


def _int(value: object) -> int:
    assert isinstance(value, int), value
    return value


def arange(context: FormContext) -> tuple[int, ...]:
    """Numbers counted from where the shard begins."""
    size = context.lowering.graph.values[context.node.results[0]].shape[0]
    offset = context.offset(size, context.axes)
    start, step = context.attr("start"), context.attr("step")
    return (context.result("core.arange", (offset,), start=start, step=step),)


def triangle(lower: bool) -> Form:
    """One triangle of a matrix whose rows or columns are split: compare global indices."""

    def form(context: FormContext) -> tuple[int, ...]:
        shape, spec = context.shape(0), context.specs[0]
        rows = context.offset(shape[-2], context.axes_of(len(shape) - 2, spec))
        columns = context.offset(shape[-1], context.axes_of(len(shape) - 1, spec))
        operands = (*context.operands, rows, columns)
        return (context.result("core.triangle", operands, k=context.attr("k", 0), lower=lower),)

    return form


FORMS: dict[str, Form] = {
    "take": take,
    "take_along": take_along,
    "take_grad": take_grad,
    "once": once,
    "parts": parts,
    "random": random,
    "rows": rows,
    "arange": arange,
    "lower_triangle": triangle(lower=True),
    "upper_triangle": triangle(lower=False),
}
