"""What ATen's ops mean for `Number`: a few mechanisms, and short lists of who goes by which.

1. Whole numbers alone: the op is run as it is.
2. *Movement*: every element of the result is one of an operand, or 0.  The op is run on places instead of numbers, and
   elements follow.
3. *Linear*: sums and products of elements.  The op is run on residues, as exact floats, and the remainder taken.
4. Arithmetic and functions with laws: sums, quotients, exponentials, roots, order.
5. *Parts*: what the op is made of, as PyTorch says.
6. Pointwise: a hash of the operands.

An op that none of these knows counts as a function of all its operands in full, and is said to be taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...ir.graph import Graph, TensorType
from . import arithmetic, attention, moving, order
from .calls import Calling, Kernels, Meaning
from .numbers import Array, Number, Numbers, bounded

Operand = Number | list[Number] | None


MOVEMENT = """
view _unsafe_view reshape _reshape_alias expand permute t transpose.int squeeze squeeze.dim squeeze.dims unsqueeze
slice.Tensor select.int split.Tensor split_with_sizes unbind.int chunk cat stack repeat flip roll unfold diagonal
diagonal_copy clone contiguous alias detach as_strided as_strided_scatter slice_scatter select_scatter diagonal_scatter
index.Tensor index_select gather constant_pad_nd tril triu narrow movedim.int take unfold_backward lift_fresh
lift_fresh_copy view_copy expand_copy permute_copy t_copy transpose_copy.int slice_copy.Tensor select_copy.int
split_copy.Tensor split_with_sizes_copy unbind_copy.int squeeze_copy unsqueeze_copy as_strided_copy pixel_shuffle
pixel_unshuffle diag_embed rot90 masked_select slice_backward select_backward
"""
"""Every element of the result is an element of an operand, or 0."""
LIKE = "zeros_like ones_like full_like new_zeros new_ones new_full"
"""Made like a tensor, whatever stands in it."""
LINEAR = """
mm bmm mv dot sum sum.dim_IntList cumsum index_add scatter_add embedding_dense_backward convolution linear matmul trace
outer kron tensordot col2im im2col upsample_nearest2d upsample_nearest2d_backward block_diag einsum _trilinear
"""
"""Sums and products of elements."""
INDEXED = "index_add scatter_add embedding_dense_backward index_put _unsafe_index_put"
"""Linear ops that take indices."""


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in text.split())


class Meanings:
    """Ops over `Numbers`."""

    def __init__(self, numbers: Numbers, kernels: Kernels) -> None:
        self.numbers = numbers
        self.kernels = kernels
        self.trusted: set[str] = set()
        """Ops of which nothing is known."""
        self.inside: list[Number] | None = None
        """Where ops that are made of parts leave what they compute on the way."""

    def evaluate(self, call: Calling, operands: Sequence[Operand]) -> list[Number]:
        with np.errstate(all="ignore"):
            made = self._evaluate(call, operands)
        found = made if isinstance(made, list | tuple) else [made]
        return [self._typed(x, type) for x, type in zip(found, call.results, strict=True)]

    def _typed(self, x: Number, type: TensorType) -> Number:
        if x.shape != type.shape:
            x = x.map(lambda part: np.broadcast_to(part, type.shape))
        return x if x.dtype == type.dtype else replace(x, dtype=type.dtype)

    def _evaluate(self, call: Calling, operands: Sequence[Operand]) -> Any:
        flat = flatten(operands)
        if all(x.whole is not None for x in flat) and not call.op.startswith("foreign."):
            return self._as_it_is(call, operands)
        meaning = MEANINGS.get(call.op)
        if meaning is not None:
            found = meaning(self, call, operands)
            if found is not NotImplemented:
                return found
        if call.op in _LIKE:
            return self._as_it_is(call, [Number(flat[0].dtype, np.zeros(flat[0].shape)), *operands[1:]])
        if call.op in _MOVEMENT:
            return self.moved(call, operands)
        if call.op in _LINEAR:
            return self.linear(call, operands)
        parts = self.kernels.parts(call.op, call.attrs, [_type_of(x) for x in operands], call.results)
        if parts is not None:
            return self.in_parts(parts, flat)
        if self.kernels.pointwise(call.op):
            attrs = tuple(sorted((key, repr(value)) for key, value in call.attrs.items()))
            made = [self.numbers.hashed((call.op, attrs, r), flat, type.dtype) for r, type in enumerate(call.results)]
            return [self._truth(x) if x.dtype == "bool" else x for x in made]
        return self.opaque(call, flat)

    def _truth(self, x: Number) -> Number:
        return Number("bool", np.asarray(x.residue) % 2 == 1)

    # -- mechanisms -------------------------------------------------------------------------------------------

    def _as_it_is(self, call: Calling, operands: Sequence[Operand]) -> list[Number]:
        given = [_each(x, lambda one: one.whole) for x in operands]
        made = self.kernels.compute(call.op, call.attrs, given, call.results)
        return [self.constant(array, type.dtype) for array, type in zip(made, call.results)]

    def constant(self, array: Array, dtype: str) -> Number:
        if dtype == "bool" or dtype[:1] in ("i", "u"):
            return self.numbers.whole(array, dtype)
        return self.numbers.real(array, dtype)

    def moved(self, call: Calling, operands: Sequence[Operand]) -> list[Number]:
        """Run the op on places, counted from 1 through all operands that are not indices; 0 is a zero."""
        plain = moving.MOVES.get(call.op)
        if plain is not None and isinstance(operands[0], Number):
            return plain(operands[0], call)
        if call.op in ("aten.cat", "aten.stack"):
            parts = flatten(operands)
            if all(x.whole is None and x.shift is None and x.square is None for x in parts):
                return [moving.joined(parts, call)]
        sources: list[Number] = []

        def place(x: Number) -> Array:
            if x.whole is not None:
                return x.whole
            start = 1 + sum(prod(source.shape) for source in sources)
            sources.append(x)
            return np.arange(start, start + prod(x.shape), dtype=np.int64).reshape(x.shape)

        given = [_each(x, place) for x in operands]
        types = [replace(type, dtype="i64") for type in call.results]
        attrs = {key: value for key, value in call.attrs.items() if key != "dtype"}
        if call.attrs.get("value"):  # padding with a number
            attrs["value"] = 0
        places = self.kernels.compute(call.op, attrs, given, types)
        whole = self._side_by_side(sources)
        made = [whole.map(lambda part, at=at: part[at]) for at in places]  # type: ignore[misc]
        if call.attrs.get("value"):
            fill = self.numbers.number(call.attrs["value"])
            made = [self.numbers.choose(at == 0, fill, x) for at, x in zip(places, made)]
        return made

    def _side_by_side(self, sources: Sequence[Number]) -> Number:
        """A zero, and all elements of all of these."""
        numbers = self.numbers
        if any(x.shift is not None for x in sources):
            sources = [numbers.with_shift(x) for x in sources]
        parts = {}
        starts = {"residue": 0.0, "height": 0.0, "plain": 0.0, "shift": 1.0, "square": 0.0}
        for name, zero in starts.items():
            held = [getattr(x, name) for x in sources]
            if all(part is not None for part in held):
                parts[name] = np.concatenate([np.array([zero]), *(part.reshape(-1) for part in held)])
        logarithm = any(x.logarithm for x in sources)
        return Number(sources[0].dtype, logarithm=logarithm, **parts)

    def linear(self, call: Calling, operands: Sequence[Operand]) -> list[Number]:
        """Run the op on residues, and on heights."""
        numbers = self.numbers
        types = [replace(type, dtype="c128" if type.dtype[:1] == "c" else "f64") for type in call.results]
        attrs = {key: None if key == "dtype" else value for key, value in call.attrs.items()}

        def run(which: int) -> list[Array]:
            def part(x: Number) -> Array:
                index = x.whole is not None and call.op in _INDEXED
                return x.whole if index else numbers.parts(x)[which]  # type: ignore[return-value]

            return self.kernels.compute(call.op, attrs, [_each(x, part) for x in operands], types)

        residues, heights = run(0), run(1)
        return [
            Number(type.dtype, None, numbers.mod(residue), bounded(height))
            for type, residue, height in zip(call.results, residues, heights)
        ]

    def in_parts(self, graph: Graph, flat: Sequence[Number]) -> list[Number]:
        values: dict[int, Any] = dict(zip(graph.inputs, flat))
        for node in graph.nodes:
            given = [
                [values[v] for v in o] if isinstance(o, tuple) else None if o is None else values[o]
                for o in node.operands
            ]
            call = Calling(node.op, dict(node.attrs), tuple(graph.types(node.results)))
            made = self.evaluate(call, given)
            if self.inside is not None:
                self.inside += made
            values.update(zip(node.results, made))
        return [values[value] for value in graph.outputs]

    def opaque(self, call: Calling, flat: Sequence[Number]) -> list[Number]:
        """A function of all operands in full, right on whole tensors only."""
        self.trusted.add(call.op)
        field = self.numbers.field
        state = field.word(call.op, tuple(sorted((key, repr(value)) for key, value in call.attrs.items())))
        for x in flat:
            held = x.whole if x.whole is not None else x.residue
            assert held is not None
            state = field.word(state, x.shape, held.tobytes())
        made = []
        for r, type in enumerate(call.results):
            count = self.numbers.real(np.arange(type.elements, dtype=np.float64).reshape(type.shape), type.dtype)
            found = self.numbers.hashed((state, r), [count], type.dtype)
            made.append(self._truth(found) if type.dtype == "bool" else found)
        return made

    # -- by name ----------------------------------------------------------------------------------------------

    def apply(self, op: str, *operands: Number, **attrs: Any) -> Number:
        """Another op, on the way."""
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        return self.evaluate(Calling(op, attrs, [TensorType(shape, operands[0].dtype)]), list(operands))[0]


def flatten(operands: Sequence[Operand]) -> list[Number]:
    return [x for o in operands if o is not None for x in (o if isinstance(o, list) else [o])]


def _each(operand: Operand, of: Callable[[Number], Any]) -> Any:
    if operand is None:
        return None
    return [of(x) for x in operand] if isinstance(operand, list) else of(operand)


def _type_of(operand: Operand) -> Any:
    if isinstance(operand, list):
        return tuple(TensorType(x.shape, x.dtype) for x in operand)
    return None if operand is None else TensorType(operand.shape, operand.dtype)


_MOVEMENT, _LIKE, _LINEAR, _INDEXED = map(_names, (MOVEMENT, LIKE, LINEAR, INDEXED))
MEANINGS: dict[str, Meaning] = {
    **{f"aten.{name}": meaning for table in (arithmetic, order, attention) for name, meaning in table.BY_NAME.items()},
    "foreign.unwritten": order.UNWRITTEN,
}
