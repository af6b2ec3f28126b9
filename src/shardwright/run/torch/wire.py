"""How numbers travel: what is sent for an element type, how it is combined, and what is made of it on arrival.

Backends lack element types, and their max and min lose NaN.  Both are mended by another encoding that is exact:

| what | sent as |
|---|---|
| moved: types that gloo or NCCL lack | a type of the same width that they have; the bits are not looked at |
| max, min of floats | signed integers in the same order, NaN the winner; half types as f32, twice the bytes |
| sum, prod of 16-bit and unsigned integers | a wider or the signed type; arithmetic wraps alike |
| max, min of u64 | i64 with the sign bit flipped |
| max, min, prod of bool | bytes, by max and min |
| sum of complex | pairs of floats |
| avg | sum, then divided in the type of the result |

What has no such encoding is refused before anything runs.  To extend: `reduced_as` for a reduction, `moved_as` for a
type that is only moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import SpecError
from ...frontends.torch import torch_dtype
from ...ir.nodes import ITEM_BYTES

aten = torch.ops.aten
Call = Callable[..., Any]
"""call(op, *args, **kwargs): runs an op, or writes it down."""
Coding = Callable[[Call, Any], Any]

NATIVE = frozenset({"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64"})
"""What gloo and NCCL both have, to move and to combine."""
_SAME_WIDTH = {"bool": "u8", "i16": "bf16", "u16": "bf16", "u32": "i32", "u64": "i64", "f8e4m3": "u8", "f8e5m2": "u8",
               "c64": "i64"}  # fmt: skip
_NAMES = {"sum": "sum", "avg": "sum", "max": "max", "min": "min", "prod": "product"}


def same(call: Call, x: Any) -> Any:
    return x


@dataclass(frozen=True)
class Wire:
    """One way to send tensors of one type."""

    item_bytes: int
    encode: Coding = same
    decode: Coding = same
    reduction: str = ""
    """The backend's name of what combines them."""
    pairs: bool = False
    """What is sent has one more dim, of 2, at the end."""


def moved_as(dtype: str) -> Wire:
    """For collectives that move and do not compute.

    >>> moved_as("f8e4m3").encode(lambda op, *args: op(*args), torch.zeros(2, dtype=torch.float8_e4m3fn)).dtype
    torch.uint8
    """
    size = ITEM_BYTES[dtype]
    if dtype in NATIVE:
        return Wire(size)
    if dtype == "c128":
        return Wire(size // 2, _as_pairs, _from_pairs, pairs=True)
    code = _viewed(_SAME_WIDTH[dtype])
    if dtype == "c64":
        return Wire(size, lambda call, x: code(call, call(aten.resolve_conj.default, x)), _viewed(dtype))
    return Wire(size, code, _viewed(dtype))


def reduced_as(dtype: str, kind: str, ways: int = 1) -> Wire:
    """For collectives that combine; ``ways`` is how many are averaged."""
    wire = _reduced_as(dtype, kind)
    if kind != "avg":
        return wire
    narrow = torch_dtype(dtype)

    def decode(call: Call, x: Any) -> Any:
        total = call(aten.div.Scalar, wire.decode(call, x), ways)
        return (
            total if narrow.is_floating_point or narrow.is_complex else call(aten._to_copy.default, total, dtype=narrow)
        )

    return Wire(wire.item_bytes, wire.encode, decode, wire.reduction, wire.pairs)


def _reduced_as(dtype: str, kind: str) -> Wire:
    name, size = _NAMES[kind], ITEM_BYTES[dtype]
    ordered = kind in ("max", "min")
    if dtype == "bool":
        if kind in ("sum", "avg"):
            raise _refused(dtype, kind, "convert it to integers before it is summed")
        return Wire(1, _viewed("u8"), _viewed("bool"), "max" if kind == "max" else "min")
    if dtype in ("c64", "c128"):
        if ordered or kind == "prod":
            raise _refused(dtype, kind, "gather the tensor first, or shard it so that nothing is pending")
        return Wire(size // 2, _as_pairs, _from_pairs, name, pairs=True)
    if dtype[0] == "f" or dtype == "bf16":
        if ordered:
            return _ordered(dtype, kind)
        if dtype.startswith("f8"):
            raise _refused(dtype, kind, "compute in bf16 or f32 and convert the result")
        return Wire(size, reduction=name)
    if dtype in NATIVE:
        return Wire(size, reduction=name)
    if dtype == "u64":
        flip = _flipped if ordered else same
        encode, decode = _viewed("i64"), _viewed("u64")
        return Wire(8, lambda c, x: flip(c, encode(c, x)), lambda c, x: decode(c, flip(c, x)), name)
    wider = "i64" if dtype == "u32" else "i32"
    return Wire(ITEM_BYTES[wider], _converted(wider), _converted(dtype), name)


def _ordered(dtype: str, kind: str) -> Wire:
    """Floats as integers that compare alike: negative ones have all bits but the sign flipped."""
    code = "i64" if dtype == "f64" else "i32"
    wide = "f64" if dtype == "f64" else "f32"
    limits = torch.iinfo(torch_dtype(code))
    winner = limits.max if kind == "max" else limits.min  # both decode to a NaN
    view, back = _viewed(code), _viewed(wide)
    widen = same if dtype == wide else _converted(wide)
    narrow = same if dtype == wide else _converted(dtype)

    def turn(call: Call, bits: Any) -> Any:
        negative = call(aten.lt.Scalar, bits, 0)
        return call(aten.where.self, negative, call(aten.bitwise_xor.Scalar, bits, limits.max), bits)

    def encode(call: Call, x: Any) -> Any:
        x = widen(call, x)
        return call(aten.masked_fill.Scalar, turn(call, view(call, x)), call(aten.isnan.default, x), winner)

    return Wire(ITEM_BYTES[code], encode, lambda call, x: narrow(call, back(call, turn(call, x))), kind)


def _viewed(dtype: str) -> Coding:
    to = torch_dtype(dtype)
    return lambda call, x: call(aten.view.dtype, x, to)


def _converted(dtype: str) -> Coding:
    to = torch_dtype(dtype)
    return lambda call, x: call(aten._to_copy.default, x, dtype=to)


def _flipped(call: Call, x: Any) -> Any:
    return call(aten.bitwise_xor.Scalar, x, torch.iinfo(torch.int64).min)


def _as_pairs(call: Call, x: Any) -> Any:
    return call(aten.view_as_real.default, call(aten.resolve_conj.default, x))


def _from_pairs(call: Call, x: Any) -> Any:
    return call(aten.view_as_complex.default, x)


def _refused(dtype: str, kind: str, help: str) -> SpecError:
    return SpecError(f"a pending {kind} of {dtype} cannot be combined between processes", help=help)
