"""`Memory`: which value every tensor shows, by the storage that it lies in.

Foreign programs write through views, flat buffers, ``.data`` and resized storages, so a tensor is known by where it
lies: a storage, an offset, sizes and strides.  A storage has a value that covers it, and for other layouts the value
that was last seen there.  A write counts as one to the storage; a layout that has missed it is read anew, as a strided
view of what covers the storage now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ....errors import TraceError
from ....ir.graph import TensorType
from ..dtypes import dtype_name
from ..recorder import Recorder

UNWRITTEN = "foreign.unwritten"
Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Offset, sizes and strides, in elements."""


@dataclass
class _Storage:
    alive: Any
    """Kept, lest another storage comes to lie at the same address."""
    dtype: str
    elements: int
    flat: int | None = None
    """The value that covers it, as a vector."""
    shown: dict[Layout, int] = field(default_factory=dict)
    """What other layouts show, all of the present state."""


class Memory:
    def __init__(self, recorder: Recorder, unseen: Callable[[Any], int]) -> None:
        self._recorder = recorder
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
        held = self._storage(tensor)
        return self._read(held, _layout(tensor))

    def make(self, tensor: Any, value: int) -> None:
        """A tensor that shows a value; it may be a view of one that is known."""
        held = self._storage(tensor, new=True)
        self._check_type(held, tensor)
        held.shown[_layout(tensor)] = value

    def write(self, tensor: Any, value: int) -> None:
        """From now on the tensor shows the value, and so does, in its part, whatever lies in the same memory."""
        held = self._storage(tensor, new=True)
        self._check_type(held, tensor)
        layout = _layout(tensor)
        if not prod(layout[1]):  # a part without elements is written, too: other ranks leave theirs
            held.shown[layout] = value
            return
        if not _covers(layout, held.elements):
            flat = self._read(held, (0, (held.elements,), (1,)))
            attrs = {"storage_offset": layout[0], "size": layout[1], "stride": layout[2]}
            type = TensorType((held.elements,), held.dtype)
            held.flat = self._recorder.node("aten.as_strided_scatter", [flat, value], [type], attrs)[0]
            held.shown = {}
        else:
            held.flat, held.shown = None, {}
        held.shown[layout] = value

    def _storage(self, tensor: Any, new: bool = False) -> _Storage:
        storage = tensor.untyped_storage()
        held = self._storages.get(storage._cdata)
        elements = storage.nbytes() // tensor.element_size()
        if held is None or (held.elements != elements and not held.elements):
            held = self._storages[storage._cdata] = _Storage(storage, dtype_name(tensor.dtype), elements)
            if not new:
                held.flat = self._unseen(tensor)
            elif elements > tensor.numel():
                held.flat = unwritten(self._recorder, TensorType((elements,), held.dtype))
        elif held.elements != elements:  # resized: what is there now was not written by anybody
            held.elements, held.shown = elements, {}
            held.flat = unwritten(self._recorder, TensorType((elements,), held.dtype))
        return held

    def _read(self, held: _Storage, layout: Layout) -> int:
        found = held.shown.get(layout)
        if found is None:
            found = held.shown[layout] = self._read_anew(held, layout)
        return found

    def _read_anew(self, held: _Storage, layout: Layout) -> int:
        flat: Layout = (0, (held.elements,), (1,))
        if layout == flat and held.flat is not None:
            return held.flat
        whole = held.flat
        if whole is None:
            base = next((known for known in held.shown if _contiguous(known, held.elements)), None)
            if base is not None:
                if layout[0] == 0 and _contiguous(layout, held.elements):
                    return self._node("aten.view", held.shown[base], layout[1], held.dtype, {"size": layout[1]})
                whole = self._node("aten.view", held.shown[base], flat[1], held.dtype, {"size": flat[1]})
            else:
                whole = self._gathered(held)
            held.flat = whole
            if layout == flat:
                return whole
        attrs = {"storage_offset": layout[0], "size": layout[1], "stride": layout[2]}
        return self._node("aten.as_strided", whole, layout[1], held.dtype, attrs)

    def _gathered(self, held: _Storage) -> int:
        """A storage that is covered by a layout which is not in order: transposed, say."""
        for layout, value in held.shown.items():
            if _covers(layout, held.elements):
                order = sorted(range(len(layout[1])), key=lambda d: (-layout[2][d], -layout[1][d]))
                shape = tuple(layout[1][d] for d in order)
                moved = self._node("aten.permute", value, shape, held.dtype, {"dims": tuple(order)})
                return self._node("aten.view", moved, (held.elements,), held.dtype, {"size": (held.elements,)})
        return unwritten(self._recorder, TensorType((held.elements,), held.dtype))

    def _node(self, op: str, value: int, shape: tuple[int, ...], dtype: str, attrs: dict[str, Any]) -> int:
        return self._recorder.node(op, [value], [TensorType(shape, dtype)], attrs, [(0, 0)])[0]

    def _check_type(self, held: _Storage, tensor: Any) -> None:
        if held.dtype == dtype_name(tensor.dtype):
            return
        if held.shown or held.flat is not None:
            raise TraceError(
                f"memory that holds {held.dtype} is used as {dtype_name(tensor.dtype)}",
                help="bytes of numbers have no meaning in a proof; keep one element type in a buffer",
            )
        held.dtype = dtype_name(tensor.dtype)


def unwritten(recorder: Recorder, type: TensorType) -> int:
    """What stands in memory that nobody has written: any numbers, others on every rank."""
    return recorder.node(UNWRITTEN, [], [type], {"draw": recorder.draw()})[0]


def _layout(tensor: Any) -> Layout:
    shape = tuple(tensor.shape)
    # Strides of dims with one place say nothing.
    strides = tuple(0 if size == 1 else stride for size, stride in zip(shape, tensor.stride()))
    return tensor.storage_offset(), shape, strides


def _contiguous(layout: Layout, elements: int) -> bool:
    offset, shape, strides = layout
    if offset or prod(shape) != elements:
        return False
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _covers(layout: Layout, elements: int) -> bool:
    """Whether every element of the storage is shown once."""
    offset, shape, strides = layout
    if offset or prod(shape) != elements:
        return False
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides) if size != 1):
        if stride != step:
            return False
        step *= size
    return True
