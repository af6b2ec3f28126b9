"""`Attention`: one call of attention by what it computes: which tensors meet, which keys a query sees, what is shared.

A mask that says no more than a band is that band; keys and values whose heads are repeated are the heads that there
are.  Two calls that read alike compute the same, so a pass may write one for the other, and the proof numbers both
alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...ir.graph import Attrs, Graph, Node, Operand, TensorType
from ...spec.band import ATTRIBUTE, CAUSAL_FLAG, Band
from ..registry import find
from .bands import band_of
from .positions import Positions
from .repeats import repeated_from

MEANING = "attention"
"""What the record of attention says in words."""
INFERENCE, TRAINING = "aten.scaled_dot_product_attention", "shardwright.attention"
"""PyTorch's own op knows one band only; ours knows all, and has one result more."""
GROUPED = "enable_gqa"


@dataclass(frozen=True)
class Attention:
    """A call of attention.  ``around`` are the other operands of the backward op: gradient, result, logarithms."""

    node: Node
    query: int
    key: int
    value: int
    mask: int | None
    band: Band
    groups: int
    """How many query heads share a head of keys and values."""
    around: tuple[int, ...]

    @property
    def is_backward(self) -> bool:
        return bool(self.around)

    @property
    def is_grouped(self) -> bool:
        """Whether the call itself says that heads are shared."""
        return bool(self.node.attr(GROUPED))

    @property
    def options(self) -> Attrs:
        """What else it says: nothing is drawn, and whether the mask has a gradient counts where it has one."""
        spoken = (CAUSAL_FLAG, ATTRIBUTE, GROUPED, "draw")
        return tuple((k, v) for k, v in self.node.attrs if k not in spoken and (k, v) != ("mask_grad", False))

    def operands(self, key: int, value: int) -> tuple[Operand, ...]:
        tensors = (self.query, key, value, self.mask)
        return (self.around[0], *tensors, *self.around[1:]) if self.is_backward else tensors

    def attrs(self, grouped: bool) -> Mapping[str, Any]:
        """With the band as a flag or in words, instead of a mask."""
        said = {name: value for name, value in self.node.attrs if name not in (CAUSAL_FLAG, ATTRIBUTE)}
        return {**said, GROUPED: grouped, **self.band.attrs}

    def written(self, grouped: bool) -> tuple[str, Mapping[str, Any], int]:
        """The op that computes it, its attributes, and how many results it has more."""
        attrs = self.attrs(grouped)
        if self.node.op != INFERENCE or ATTRIBUTE not in attrs:
            return self.node.op, attrs, 0
        return TRAINING, {**attrs, "draw": -1, "mask_grad": False}, 1

    def sums_type(self, graph: Graph) -> TensorType:
        """Of the logarithm of sums, which the op for training leaves."""
        query = graph.type(self.query)
        return TensorType(query.shape[:-1], "f64" if query.dtype == "f64" else "f32")


def attention_of(graph: Graph, node: Node, positions: Positions) -> Attention | None:
    """A node as attention; None if it is something else, or drops out."""
    record = find(node.op)
    if record is None or record.meaning != MEANING or node.attr("dropout_p"):
        return None
    backward = len(node.operands) > 4
    query, key, value, mask = node.operands[1:5] if backward else node.operands[:4]
    around = (node.operands[0], *node.operands[5:7]) if backward else ()
    if not (isinstance(query, int) and isinstance(key, int) and isinstance(value, int)) or isinstance(mask, tuple):
        return None
    band = Band.of(dict(node.attrs))
    shapes = [graph.type(v).shape for v in (query, key)]
    rows, keys = (shape[-2] for shape in shapes)
    if mask is not None and band.sees_all and not node.attr("mask_grad"):
        about = mask, rows, keys, graph.type(query).dtype
        if about not in positions.bands:
            positions.bands[about] = band_of(positions.of(mask), graph.type(mask).shape, *about[1:])
        read = positions.bands[about]
        if read is not None:
            mask, band = None, read
    key, value, groups = _heads(graph, node, query, key, value)
    taken = tuple(v for v in around if isinstance(v, int))
    return Attention(node, query, key, value, mask, band.normal(rows, keys), groups, taken)


def _heads(graph: Graph, node: Node, query: int, key: int, value: int) -> tuple[int, int, int]:
    """The heads that there are, and how many query heads share each."""
    if graph.type(query).rank < 3:
        return key, value, 1
    heads, served = (graph.type(v).shape[-3] for v in (query, key))
    if node.attr(GROUPED):
        return key, value, heads // max(served, 1)
    of_key, of_value = repeated_from(graph, key), repeated_from(graph, value)
    if of_key is None or of_value is None or of_key[1] != of_value[1] or heads != served:
        return key, value, 1
    return of_key[0], of_value[0], of_key[1]
