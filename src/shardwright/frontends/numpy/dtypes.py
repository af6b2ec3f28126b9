"""NumPy's element types and the names that graphs give them; shapes without data; scalars as attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import SpecError, TraceError, front, near_misses
from ...ir.graph import Attr, TensorType
from ...spec.sharding import Shape

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]

_SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_BY_NAME: dict[str, DType] = {
    "bool": np.dtype(np.bool_),
    **{f"{kind}{8 * size}": np.dtype(f"{kind}{size}") for kind, sizes in _SIZES.items() for size in sizes},
    "index": np.dtype(np.int64),
}
_BY_KIND = {(dtype.kind, dtype.itemsize): name for name, dtype in reversed(_BY_NAME.items())}
BOOL, INT, FLOAT = np.dtype(np.bool_), np.dtype(np.intp), np.dtype(np.float64)


def dtype_name(dtype: DType) -> str:
    """
    >>> dtype_name(np.dtype(np.float32)), dtype_name(np.dtype(bool))
    ('f32', 'bool')
    """
    name = _BY_KIND.get((dtype.kind, dtype.itemsize))
    if name is None:
        known = ", ".join(str(known) for name, known in _BY_NAME.items() if name != "index")
        raise TraceError(f"a traced array cannot have element type {dtype}", rows=[("known", known)])
    return name


def numpy_dtype(name: str) -> DType:
    """
    >>> numpy_dtype("c64")
    dtype('complex64')
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise TraceError(f"NumPy has no element type {name}", rows=[("known", ", ".join(_BY_NAME))])
    return found


def tensor_type(shape: Shape, dtype: DType) -> TensorType:
    return TensorType(shape, dtype_name(dtype))


@dataclass(frozen=True, slots=True)
class ShapeDtype:
    """An array that is not there: enough to trace with.  ``dtype`` is whatever NumPy takes for one.

    >>> ShapeDtype((8, 16), np.float32)
    ShapeDtype(shape=(8, 16), dtype=dtype('float32'))
    """

    shape: Shape
    dtype: DType

    @front
    def __init__(self, shape: Sequence[int], dtype: Any = np.float64) -> None:
        object.__setattr__(self, "shape", _shape(shape))
        object.__setattr__(self, "dtype", _dtype(dtype))
        if any(size < 0 for size in self.shape):
            raise TraceError(f"a shape cannot have a negative size: {self.shape}")
        dtype_name(self.dtype)


def _shape(shape: Any) -> Shape:
    sizes = () if isinstance(shape, str | bytes) or not isinstance(shape, Iterable) else tuple(shape)
    whole = [isinstance(size, int | np.integer) and not isinstance(size, bool) for size in sizes]
    if not all(whole) or (not sizes and shape != ()):
        raise SpecError(f"{shape!r} is no shape", help='write the size of every dim: ShapeDtype((8, 16), "float32")')
    return tuple(map(int, sizes))


def _dtype(dtype: Any) -> DType:
    """NumPy's element type; a name of ours (``f32``) where it is none of NumPy's."""
    try:
        if dtype is None:  # which NumPy takes for float64
            raise TypeError
        found: DType = np.dtype(dtype)
        if found.kind == "V" and isinstance(dtype, str):  # of ml_dtypes, which is there by chance
            raise TypeError
        return found
    except TypeError:
        if isinstance(dtype, str) and dtype in _BY_NAME:
            return _BY_NAME[dtype]
        word = str(dtype).removeprefix("torch.")
        known = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]
        half = "bfloat16 is not NumPy's: plan a PyTorch program, or give float16"
        other = half if word in ("bf16", "bfloat16") else near_misses(word, known)
        help = f"write {word!r}" if word in known else other
        raise SpecError(
            f"{dtype!r} is no element type of NumPy", rows=[("known", ", ".join(known))], help=help
        ) from None


def number_attr(value: Any, dtype: DType) -> Attr:
    """A number as an attribute, first brought to ``dtype`` as NumPy does; a complex one is a pair.

    >>> number_attr(1.7, np.dtype(int)), number_attr(2, np.dtype(np.complex64))
    (1, (2.0, 0.0))
    """
    item = np.array(value, dtype=dtype).item()
    return (item.real, item.imag) if isinstance(item, complex) else item


def number_of(attr: Any) -> Any:
    """The number that `number_attr` wrote."""
    return complex(*attr) if isinstance(attr, tuple) else attr


def stand_in(shape: Shape, dtype: DType) -> Array:
    """An array of this shape that takes no memory: NumPy answers questions of shape on it."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def tiny(dtype: DType) -> Array:
    """An array without elements: NumPy answers questions of dtype on it, and computes nothing."""
    return np.empty(0, dtype)
