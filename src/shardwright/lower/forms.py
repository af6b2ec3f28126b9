"""Local forms: what a device computes when a factor is split and plain local execution is not enough.

A form writes instructions over ``core.*`` ops that every frontend evaluates.  It sees the node, its operands as
local copies, and the axes of the split factor.  `FORM_PENDING` in propagate says which leave a pending result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir.graph import Attr, Node, Operand, TensorType
from ..propagate.complete import Decision
from ..spec.axes import Axes
from ..spec.sharding import ShardingSpec

if TYPE_CHECKING:
    from .lowering import Lowering


@dataclass(frozen=True)
class FormContext:
    """What a form works with."""

    lowering: Lowering
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

    def shape(self, operand: int) -> tuple[int, ...]:
        return self.lowering.graph.values[self.node.inputs[operand]].shape

    def axes_of(self, dim: int, spec: ShardingSpec) -> Axes:
        return spec.dims[dim].axes


Form = Callable[[FormContext], tuple[int, ...]]


def take(context: FormContext) -> tuple[int, ...]:
    """Lookup in a table whose rows are split: each device looks up the rows it has and leaves zero elsewhere."""
    axis = context.node.attr("axis")
    size = context.shape(0)[axis]
    offset = context.offset(size, context.axes)
    return (context.result("core.take", (*context.operands, offset), axis=axis, size=size),)


def arange(context: FormContext) -> tuple[int, ...]:
    """Numbers counted from where the shard begins."""
    size = context.lowering.graph.values[context.node.results[0]].shape[0]
    offset = context.offset(size, context.axes)
    attrs = dict(context.node.attrs)
    return (context.result("core.arange", (offset,), start=attrs["start"], step=attrs["step"]),)


def triangle(lower: bool) -> Form:
    """One triangle of a matrix whose rows or columns are split: compare global indices."""

    def form(context: FormContext) -> tuple[int, ...]:
        shape, spec = context.shape(0), context.specs[0]
        rows = context.offset(shape[-2], context.axes_of(len(shape) - 2, spec))
        columns = context.offset(shape[-1], context.axes_of(len(shape) - 1, spec))
        operands = (*context.operands, rows, columns)
        return (context.result("core.triangle", operands, k=context.node.attr("k", 0), lower=lower),)

    return form


FORMS: dict[str, Form] = {
    "take": take,
    "arange": arange,
    "lower_triangle": triangle(lower=True),
    "upper_triangle": triangle(lower=False),
}
