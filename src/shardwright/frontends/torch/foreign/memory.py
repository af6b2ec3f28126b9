"""`Memory`: which value every tensor shows, by the storage that it lies in.

Foreign programs write through views, flat buffers, ``.data`` and resized storages, so a tensor is known by where it
lies: a storage, an offset, sizes and strides.  A storage is made of *pieces*, stretches that were written at once; what
is read as it was written is the value that was written, and what is read otherwise is put together from pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ....errors import TraceError
from ....ir.graph import SourceLine, TensorType
from ..dtypes import dtype_name
from ..recording.recorder import Recorder

UNWRITTEN = "foreign.unwritten"
Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Offset, sizes and strides, in elements."""


@dataclass
class _Piece:
    """A stretch of memory, and the value whose elements stand there in order."""

    start: int
    stop: int
    value: int


@dataclass
class _Storage:
    alive: Any
    """Kept, lest another storage comes to lie at the same address."""
    dtype: str
    elements: int
    pieces: list[_Piece] = field(default_factory=list)
    """In order; what lies between them is not written."""
    shown: dict[Layout, int] = field(default_factory=dict)
    """What layouts show, all of the present state."""


class Memory:
    def __init__(
        self, recorder: Recorder, unseen: Callable[[Any], int], source: Callable[[], SourceLine | None]
    ) -> None:
        self._recorder, self._source = recorder, source
        self._unseen = unseen
        """The value of a tensor that nobody has made: a vector over a whole storage."""
        self._storages: dict[int, _Storage] = {}

    def knows(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def shows(self, tensor: Any) -> bool:
        """Whether it is known what a tensor shows."""
        held = self._storages.get(tensor.untyped_storage()._cdata)
        return held is not None and _layout(tensor) in held.shown

    def value(self, tensor: Any) -> int:
        """What a tensor shows now."""
        return self._read(self._storage(tensor), _layout(tensor))

    def make(self, tensor: Any, value: int) -> None:
        """A tensor that shows a value; it may be a view of one that is known."""
        held = self._storage(tensor, new=True)
        self._check_type(held, tensor)
        layout = _layout(tensor)
        if not held.pieces:
            self._put(held, layout, value)
        held.shown[layout] = value

    def write(self, tensor: Any, value: int) -> None:
        """From now on the tensor shows the value, and so does, in its part, whatever lies in the same memory."""
        held = self._storage(tensor, new=True)
        self._check_type(held, tensor)
        layout = _layout(tensor)
        if prod(layout[1]):
            self._put(held, layout, value)
            held.shown = {other: shown for other, shown in held.shown.items() if not prod(other[1])}
        held.shown[layout] = value  # where there is no element, too: the tensor has been given a value

    def _put(self, held: _Storage, layout: Layout, value: int) -> None:
        start, stop = layout[0], layout[0] + prod(layout[1])
        order = _dense(layout)
        if order is None:  # spread over other elements: all of the memory becomes one piece
            flat = self._stretch(held, 0, held.elements)
            attrs = {"storage_offset": layout[0], "size": layout[1], "stride": layout[2]}
            type = TensorType((held.elements,), held.dtype)
            made = self._recorder.node("aten.as_strided_scatter", [flat, value], [type], attrs)[0]
            held.pieces = [_Piece(0, held.elements, made)]
            return
        kept: list[_Piece] = []
        for piece in held.pieces:
            if piece.stop <= start or piece.start >= stop:
                kept.append(piece)
                continue
            for a, b in ((piece.start, min(piece.stop, start)), (max(piece.start, stop), piece.stop)):
                if a < b:  # what is left of a piece that is partly written over
                    kept.append(_Piece(a, b, self._part(held, piece, a, b)))
        kept.append(_Piece(start, stop, self._in_order(value, layout, order, held.dtype)))
        held.pieces = sorted(kept, key=lambda piece: piece.start)

    def _in_order(self, value: int, layout: Layout, order: Sequence[int], dtype: str) -> int:
        """The value with its dims in the order in which they lie."""
        if list(order) == list(range(len(order))):
            return value
        shape = tuple(layout[1][d] for d in order)
        return self._node("aten.permute", value, shape, dtype, {"dims": tuple(order)})

    def _storage(self, tensor: Any, new: bool = False) -> _Storage:
        storage = tensor.untyped_storage()
        held = self._storages.get(storage._cdata)
        elements = storage.nbytes() // tensor.element_size()
        if held is None:
            held = self._storages[storage._cdata] = _Storage(storage, dtype_name(tensor.dtype), elements)
            if not new:
                held.pieces = [_Piece(0, elements, self._unseen(tensor))]
        elif held.elements != elements and held.dtype == dtype_name(tensor.dtype):
            # Resized: what is there now was not written by anybody.
            held.elements, held.pieces, held.shown = elements, [], {}
        return held

    # -- reading ----------------------------------------------------------------------------------------------

    def _read(self, held: _Storage, layout: Layout) -> int:
        found = held.shown.get(layout)
        if found is None:
            found = held.shown[layout] = self._read_anew(held, layout)
        return found

    def _read_anew(self, held: _Storage, layout: Layout) -> int:
        offset, size, stride = layout
        order = _dense(layout)
        if order is None:
            flat = self._stretch(held, 0, held.elements)
            attrs = {"storage_offset": offset, "size": size, "stride": stride}
            return self._node("aten.as_strided", flat, size, held.dtype, attrs)
        found = self._stretch(held, offset, offset + prod(size))
        shape = tuple(size[d] for d in order)
        found = self._shaped(found, shape, held.dtype)
        if list(order) == list(range(len(order))):
            return found
        back = tuple(order.index(d) for d in range(len(order)))
        return self._node("aten.permute", found, size, held.dtype, {"dims": back})

    def _stretch(self, held: _Storage, start: int, stop: int) -> int:
        """The elements from one place to another, in order: a piece as it is, or a vector of several."""
        parts: list[int] = []
        at = start
        for piece in held.pieces:
            if piece.stop <= start or piece.start >= stop:
                continue
            if piece.start > at:
                parts.append(unwritten(self._recorder, TensorType((piece.start - at,), held.dtype)))
            parts.append(self._part(held, piece, max(piece.start, start), min(piece.stop, stop)))
            at = min(piece.stop, stop)
        if at < stop or not parts:
            parts.append(unwritten(self._recorder, TensorType((stop - at,), held.dtype)))
        if len(parts) == 1:
            return parts[0]
        flat = tuple(self._shaped(part, None, held.dtype) for part in parts)
        return self._recorder.node(
            "aten.cat", [flat], [TensorType((stop - start,), held.dtype)], {"dim": 0}, (), self._source()
        )[0]

    def _part(self, held: _Storage, piece: _Piece, start: int, stop: int) -> int:
        if (start, stop) == (piece.start, piece.stop):
            return piece.value
        flat = self._shaped(piece.value, None, held.dtype)
        attrs = {"dim": 0, "start": start - piece.start, "end": stop - piece.start, "step": 1}
        return self._node("aten.slice.Tensor", flat, (stop - start,), held.dtype, attrs)

    def _shaped(self, value: int, shape: tuple[int, ...] | None, dtype: str) -> int:
        """The value in another shape; without one, as a vector."""
        known = self._recorder.types[value].shape
        shape = (prod(known),) if shape is None else shape
        return value if known == shape else self._node("aten.view", value, shape, dtype, {"size": shape})

    def _node(self, op: str, value: int, shape: tuple[int, ...], dtype: str, attrs: dict[str, Any]) -> int:
        return self._recorder.node(op, [value], [TensorType(shape, dtype)], attrs, [(0, 0)], self._source())[0]

    def _check_type(self, held: _Storage, tensor: Any) -> None:
        if held.dtype == dtype_name(tensor.dtype):
            return
        if held.pieces:
            raise TraceError(
                f"memory that holds {held.dtype} is used as {dtype_name(tensor.dtype)}",
                help="bytes of numbers have no meaning in a proof; keep one element type in a buffer",
            )
        held.dtype = dtype_name(tensor.dtype)
        held.elements = tensor.untyped_storage().nbytes() // tensor.element_size()


def unwritten(recorder: Recorder, type: TensorType) -> int:
    """What stands in memory that nobody has written: any numbers, others on every rank."""
    return recorder.node(UNWRITTEN, [], [type], {"draw": recorder.draw()})[0]


def _layout(tensor: Any) -> Layout:
    shape = tuple(tensor.shape)
    # Strides of dims with one place say nothing.
    strides = tuple(0 if size == 1 else stride for size, stride in zip(shape, tensor.stride()))
    return tensor.storage_offset(), shape, strides


def _dense(layout: Layout) -> list[int] | None:
    """The dims in the order in which they lie, outermost first, if they fill a stretch of memory; else None."""
    _, shape, strides = layout
    if 0 in shape:
        return list(range(len(shape)))
    wide = [d for d in range(len(shape)) if shape[d] != 1]
    step = 1
    for d in sorted(wide, key=lambda d: (strides[d], -d)):
        if strides[d] != step:
            return None
        step *= shape[d]
    inner = sorted(wide, key=lambda d: (-strides[d], d))
    if inner == wide:  # as they are, ones included
        return list(range(len(shape)))
    return [*(d for d in range(len(shape)) if shape[d] == 1), *inner]
