"""Kernels of attention, each as a few op calls, and attention put together of several calls.

All work on [batch, heads, sequence, width], have no empty dim and no dropout, and leave the logarithm of the sum of
exponentials per query, natural base, as the captured program has it.  So a backward kernel takes what any forward one
left, and of several calls on parts of the keys the results can be weighted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...ir.graph import TensorType
from ...spec.band import ATTRIBUTE, Band
from .wire import Call

aten = torch.ops.aten
Emit = Callable[[Call, Sequence[Any]], Sequence[Any]]
_HALF = ("f16", "bf16")
CAUSAL = Band(right=0)


@dataclass(frozen=True)
class Case:
    """One use of attention, as a rank sees it."""

    query: TensorType
    key: TensorType
    value: TensorType
    mask: TensorType | None
    band: Band
    scale: float
    grouped: bool

    @property
    def rows(self) -> int:
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        return self.key.shape[-2]

    @property
    def repeats(self) -> int:
        """How many query heads share a key head."""
        return self.query.shape[-3] // self.key.shape[-3]

    @property
    def causal(self) -> bool:
        return self.band == CAUSAL

    @property
    def is_plain(self) -> bool:
        """What every kernel asks for."""
        tensors = (self.query, self.key, self.value)
        alike = all(t.rank == 4 and t.elements and t.dtype == self.query.dtype for t in tensors)
        heads = self.query.shape[-3] % self.key.shape[-3] == 0 if alike else False
        same_batch = alike and self.query.shape[0] == self.key.shape[0] == self.value.shape[0]
        return heads and same_batch and (self.grouped or self.repeats == 1)

    def part(self, rows: slice, keys: slice, band: Band) -> Case:
        """Of some queries and keys."""

        def cut(type: TensorType, at: slice) -> TensorType:
            *outer, _, width = type.shape
            return replace(type, shape=(*outer, at.stop - at.start, width))

        return replace(
            self, query=cut(self.query, rows), key=cut(self.key, keys), value=cut(self.value, keys), band=band
        )


@dataclass(frozen=True)
class Kernel:
    """A kernel in both directions: ``(call, case, operands) -> results``."""

    takes: Callable[[Case], bool]
    forward: Callable[[Call, Case, Sequence[Any]], Sequence[Any]]
    backward: Callable[[Call, Case, Sequence[Any]], Sequence[Any]]
    shares: bool = False
    """Whether it takes heads of keys that query heads share."""

    def applies(self, case: Case) -> bool:
        """Whether it computes the case, by itself or in tiles."""
        if not case.is_plain:
            return False
        if self.takes(case):
            return True
        found = tiles(case)
        return found is not None and all(self.takes(case.part(t.rows, t.keys, t.band)) for t in found)


# -- tiles ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """Queries that see all of some keys, or of as many keys those up to their place."""

    rows: slice
    keys: slice
    band: Band


def tiles(case: Case) -> list[Tile] | None:
    """A band as calls that every kernel has; each query is in the first.  None if it is none such.

    Causal queries that begin at an offset see all keys before it, and from there on those up to their place; a prefix
    is seen by all, and keys behind it by the queries that come to them.
    """
    band, rows, keys = case.band, case.rows, case.keys
    if case.mask is not None or band.left is not None or band.right is None:
        return None
    first = max(band.right, band.prefix)  # keys that all see
    begin = max(band.prefix - band.right, 0)  # the first query that sees more
    count = rows - begin
    if band.right < 0 or first + max(count, 0) > keys:
        return None
    square = [Tile(slice(begin, rows), slice(first, first + count), CAUSAL)] if count > 0 else []
    return [*([Tile(slice(0, rows), slice(0, first), Band())] if first else []), *square]


def together(kernel: Kernel, case: Case, op: str) -> Emit:
    """An op of attention by a kernel, in tiles where it does not know the band."""
    found = [Tile(slice(0, case.rows), slice(0, case.keys), case.band)] if kernel.takes(case) else tiles(case)
    assert found is not None  # or the kernel would not apply
    backward, inference = op.endswith("backward"), not op.startswith("shardwright.")

    def emit(call: Call, operands: Sequence[Any]) -> Sequence[Any]:
        if backward:
            return _backward(call, kernel, case, found, operands)
        made = _forward(call, kernel, case, found, operands)
        return made[:1] if inference else made

    return emit


def _cut(call: Call, x: Any, dim: int, part: slice, size: int) -> Any:
    if x is None or (part.start, part.stop) == (0, size):
        return x
    return call(aten.slice.Tensor, x, dim, part.start, part.stop)


def _inputs(call: Call, case: Case, tile: Tile, tensors: Sequence[Any]) -> list[Any]:
    query, key, value = tensors
    return [_cut(call, query, 2, tile.rows, case.rows), _cut(call, key, 2, tile.keys, case.keys),
            _cut(call, value, 2, tile.keys, case.keys)]  # fmt: skip


def _forward(call: Call, kernel: Kernel, case: Case, parts: Sequence[Tile], operands: Sequence[Any]) -> Sequence[Any]:
    found: Sequence[Any] = ()
    for tile in parts:
        part = case.part(tile.rows, tile.keys, tile.band)
        tensors = _inputs(call, case, tile, operands[:3])
        made = kernel.forward(call, part, [*_heads(call, kernel, part, tensors), operands[3]])
        found = made if tile is parts[0] else _weighted(call, case, found, made, tile.rows)
    return found


def _weighted(call: Call, case: Case, first: Sequence[Any], second: Sequence[Any], rows: slice) -> Sequence[Any]:
    """Two results of the same queries on different keys as one; of queries before ``rows`` the first alone counts."""
    begin, size = rows.start, case.rows
    out, sums = (_cut(call, x, 2, rows, size) for x in first)
    total = call(aten.logaddexp.default, sums, second[1])
    made = None
    for part, log in ((out, sums), (second[0], second[1])):
        weight = call(aten.unsqueeze.default, call(aten.exp.default, call(aten.sub.Tensor, log, total)), 3)
        one = call(aten.mul.Tensor, part, weight)
        made = one if made is None else call(aten.add.Tensor, made, one)
    if case.query.dtype in _HALF:
        made = call(aten._to_copy.default, made, dtype=_dtype(case))
    if begin:
        rest = slice(0, begin)
        made = call(aten.cat.default, [_cut(call, first[0], 2, rest, size), made], 2)
        total = call(aten.cat.default, [_cut(call, first[1], 2, rest, size), total], 2)
    return [made, total]


def _backward(call: Call, kernel: Kernel, case: Case, parts: Sequence[Tile], operands: Sequence[Any]) -> Sequence[Any]:
    grad, *tensors, mask, out, sums = operands[:7]
    d_query, d_keys, d_values, end = None, [], [], 0
    for tile in parts:
        part = case.part(tile.rows, tile.keys, tile.band)
        ready = _heads(call, kernel, part, _inputs(call, case, tile, tensors))
        towards, made, log = (_cut(call, x, 2, tile.rows, case.rows) for x in (grad, out, sums))
        if log is not sums:
            log = call(aten.contiguous.default, log)
        of_query, of_key, of_value = kernel.backward(call, part, [towards, *ready, mask, made, log])
        if not kernel.shares:
            of_key, of_value = (_gather(call, part, x, t) for x, t in ((of_key, part.key), (of_value, part.value)))
        d_keys.append(of_key)
        d_values.append(of_value)
        d_query = of_query if d_query is None else _added(call, d_query, of_query, tile.rows)
        end = tile.keys.stop
    unseen = case.keys - end
    return [d_query, *(_joined(call, made, unseen) for made in (d_keys, d_values))]


def _added(call: Call, whole: Any, part: Any, rows: slice) -> Any:
    """What later queries have more."""
    if rows.start:
        part = call(aten.constant_pad_nd.default, part, [0, 0, rows.start, 0])
    return call(aten.add.Tensor, whole, part)


def _joined(call: Call, made: list[Any], unseen: int) -> Any:
    """Gradients of all keys; of those that nobody sees zero."""
    joined = made[0] if len(made) == 1 else call(aten.cat.default, made, 2)
    return call(aten.constant_pad_nd.default, joined, [0, 0, 0, unseen]) if unseen else joined


def plain(op: str, attrs: Mapping[str, Any], count: int) -> Emit:
    """The op itself, with a band in its words."""

    def emit(call: Call, operands: Sequence[Any]) -> Sequence[Any]:
        given, ours = list(operands[:count]), torch.ops.shardwright
        if op == "aten.scaled_dot_product_attention":
            if ATTRIBUTE not in attrs:
                options = {name: attrs[name] for name in ("scale", "enable_gqa")}
                said = [attrs[name] for name in ("dropout_p", "is_causal")]
                return [call(aten.scaled_dot_product_attention.default, *given, *said, **options)]
            more = {"draw": -1, "mask_grad": False}
            return [call(operator.getitem, call(ours.attention.default, *given, **attrs, **more), 0)]
        backward = op.endswith("backward")
        made = call(ours.attention_backward.default if backward else ours.attention.default, *given, **attrs)
        return _pick(call, made, *range(3 + bool(attrs["mask_grad"]) if backward else 2))

    return emit


# -- parts ----------------------------------------------------------------------------------------------


def _pick(call: Call, made: Any, *places: int) -> list[Any]:
    return [call(operator.getitem, made, place) for place in places]


def _heads(call: Call, kernel: Kernel, case: Case, tensors: Sequence[Any]) -> list[Any]:
    query, key, value = tensors
    if kernel.shares:
        return [query, key, value]
    return [query, _spread(call, case, key, case.key), _spread(call, case, value, case.value)]


def _spread(call: Call, case: Case, tensor: Any, type: TensorType) -> Any:
    """A key head for every query head."""
    if case.repeats == 1:
        return tensor
    batch, heads, length, width = type.shape
    tensor = call(
        aten.expand.default, call(aten.unsqueeze.default, tensor, 2), [batch, heads, case.repeats, length, width]
    )
    return call(aten.reshape.default, tensor, [batch, heads * case.repeats, length, width])


def _gather(call: Call, case: Case, grad: Any, type: TensorType) -> Any:
    """The gradients of the query heads that share a key head, summed."""
    if case.repeats == 1:
        return grad
    batch, heads, length, width = type.shape
    grad = call(aten.reshape.default, grad, [batch, heads, case.repeats, length, width])
    return call(aten.sum.dim_IntList, grad, [2])


def _bias(call: Call, case: Case, mask: Any, expand: bool) -> Any:
    """A mask as numbers that are added to scores, with dims for batch and heads."""
    if mask is None or case.mask is None:
        return None
    if case.mask.dtype == "bool":
        wanted = call(aten.zeros_like.default, mask, dtype=_dtype(case))
        mask = call(aten.masked_fill.Scalar, wanted, call(aten.logical_not.default, mask), float("-inf"))
    elif case.mask.dtype != case.query.dtype:
        mask = call(aten._to_copy.default, mask, dtype=_dtype(case))
    if expand:
        full = [*case.query.shape[:-1], case.key.shape[-2]]
        return call(aten.expand.default, mask, full)
    missing = 4 - case.mask.rank
    return mask if missing <= 0 else call(aten.reshape.default, mask, [*[1] * missing, *case.mask.shape])


def _dtype(case: Case) -> torch.dtype:
    from ...frontends.torch import torch_dtype

    return torch_dtype(case.query.dtype)


def _square(case: Case) -> bool:
    """What kernels know: all keys, or of as many keys as queries those up to a query's place."""
    return case.band.sees_all or (case.causal and case.rows == case.keys and case.mask is None)


# -- CPU ------------------------------------------------------------------------------------------------


def _cpu_takes(case: Case) -> bool:
    same_width = case.query.shape[-1] == case.value.shape[-1]
    return case.query.dtype in ("f32", "f64", *_HALF) and same_width and _square(case)


def _cpu_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = operands[:3]
    mask = _bias(call, case, operands[3], expand=False)
    options = {"attn_mask": mask} if mask is not None else {}
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    return _pick(call, call(op, query, key, value, 0.0, case.causal, scale=case.scale, **options), 0, 1)


def _cpu_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, query, key, value, mask, out, logsumexp = operands
    mask = _bias(call, case, mask, expand=False)
    options = {"attn_mask": mask} if mask is not None else {}
    op = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    made = call(op, grad, query, key, value, out, logsumexp, 0.0, case.causal, scale=case.scale, **options)
    return _pick(call, made, 0, 1, 2)


# -- CUDA -----------------------------------------------------------------------------------------------


def _half_of(case: Case, widest: int) -> bool:
    width = case.query.shape[-1]
    fits = width <= widest and width % 8 == 0 and case.value.shape[-1] == width
    return case.query.dtype in _HALF and fits and case.mask is None


def _flash_takes(case: Case) -> bool:
    return _half_of(case, 256) and (_square(case) or _window(case) is not None)


def _window(case: Case) -> tuple[slice, int, int] | None:
    """The keys that are seen, and how far a query sees to either side; -1 for all.

    The kernel aligns the last query with the last key, so keys end with the last one that the last query sees.
    """
    band, rows, keys = case.band, case.rows, case.keys
    if band.prefix or not band.every_row_sees(rows, keys):
        return None
    end = keys if band.right is None else min(keys, rows + band.right)
    begin = 0 if band.left is None else max(0, -band.left)
    right = -1 if band.right is None else band.right + rows - end
    left = -1 if band.left is None else band.left + end - rows
    if (band.right is not None and right < 0) or (band.left is not None and left < 0):
        return None
    return slice(begin, end), left, right


def _flash_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = operands[:3]
    if _square(case):
        op = aten._scaled_dot_product_flash_attention.default
        return _pick(call, call(op, query, key, value, 0.0, case.causal, scale=case.scale), 0, 1)
    tensors, sizes, options = _windowed(call, case, (query, key, value))
    op = aten._flash_attention_forward.default
    causal = _only_causal(options)
    made = call(op, *tensors, None, None, *sizes, 0.0, causal, False, scale=case.scale, **options)
    out, logsumexp = _pick(call, made, 0, 1)
    return [call(aten.transpose.int, out, 1, 2), logsumexp]


def _windowed(call: Call, case: Case, tensors: Sequence[Any]) -> tuple[list[Any], tuple[int, int], dict[str, int]]:
    """Query, key and value as the kernel has them: [batch, sequence, heads, width]; and the window."""
    window = _window(case)
    assert window is not None
    keys, left, right = window
    query, key, value = tensors
    cut = [query, *(_cut(call, x, 2, keys, case.keys) for x in (key, value))]
    turned = [call(aten.transpose.int, x, 1, 2) for x in cut]
    return turned, (case.rows, keys.stop - keys.start), {"window_size_left": left, "window_size_right": right}


def _only_causal(options: Mapping[str, int]) -> bool:
    return options["window_size_left"] < 0 and options["window_size_right"] == 0


def _flash_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, query, key, value, _, out, logsumexp = operands
    seed = _no_random(call, logsumexp)
    if _square(case):
        op = aten._scaled_dot_product_flash_attention_backward.default
        made = call(
            op, grad, query, key, value, out, logsumexp, None, None, case.rows, case.keys, 0.0, case.causal, seed,
            seed, scale=case.scale,
        )  # fmt: skip
        return _pick(call, made, 0, 1, 2)
    tensors, sizes, options = _windowed(call, case, (query, key, value))
    towards, result = (call(aten.transpose.int, x, 1, 2) for x in (grad, out))
    op = aten._flash_attention_backward.default
    made = call(
        op, towards, *tensors, result, logsumexp, None, None, *sizes, 0.0, _only_causal(options), seed, seed,
        scale=case.scale, **options,
    )  # fmt: skip
    d_query, d_key, d_value = (call(aten.transpose.int, x, 1, 2) for x in _pick(call, made, 0, 1, 2))
    window = _window(case)
    assert window is not None
    keys = window[0]
    around = [0, 0, keys.start, case.keys - keys.stop]
    if any(around):
        d_key, d_value = (call(aten.constant_pad_nd.default, x, around) for x in (d_key, d_value))
    return [d_query, d_key, d_value]


def _cudnn_takes(case: Case) -> bool:
    return _half_of(case, 128) and _square(case) and case.rows > 1


def _cudnn_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = operands[:3]
    op = aten._scaled_dot_product_cudnn_attention.default
    out, logsumexp = _pick(call, call(op, query, key, value, None, True, 0.0, case.causal, scale=case.scale), 0, 1)
    return [out, call(aten.reshape.default, logsumexp, list(case.query.shape[:-1]))]


def _cudnn_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, query, key, value, _, out, logsumexp = operands
    seed = _no_random(call, logsumexp)
    op = aten._scaled_dot_product_cudnn_attention_backward.default
    rows = call(aten.unsqueeze.default, logsumexp, 3)
    made = call(
        op, grad, query, key, value, out, rows, seed, seed, None, None, None, case.rows, case.keys, 0.0, case.causal,
        scale=case.scale,
    )  # fmt: skip
    return _pick(call, made, 0, 1, 2)


_LSE_STEP = 32  # the efficient kernel keeps rows of this many


def _efficient_takes(case: Case) -> bool:
    step = 8 if case.query.dtype in _HALF else 4
    widths = case.query.shape[-1] % step == 0 and case.value.shape[-1] % step == 0
    mask = case.mask is None or case.keys % 16 == 0
    return case.query.dtype in ("f32", *_HALF) and widths and mask and _square(case)


def _efficient_forward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    query, key, value = operands[:3]
    bias = _bias(call, case, operands[3], expand=True)
    op = aten._scaled_dot_product_efficient_attention.default
    made = call(op, query, key, value, bias, True, 0.0, case.causal, scale=case.scale)
    out, logsumexp = _pick(call, made, 0, 1)
    if case.rows % _LSE_STEP:
        logsumexp = call(aten.slice.Tensor, logsumexp, 2, 0, case.rows)
    return [out, logsumexp]


def _efficient_backward(call: Call, case: Case, operands: Sequence[Any]) -> Sequence[Any]:
    grad, query, key, value, mask, out, logsumexp = operands
    bias = _bias(call, case, mask, expand=True)
    missing = -case.rows % _LSE_STEP
    if missing:
        logsumexp = call(aten.constant_pad_nd.default, logsumexp, [0, missing], float("inf"))
    seed = _no_random(call, logsumexp)
    op = aten._scaled_dot_product_efficient_attention_backward.default
    made = call(
        op, grad, query, key, value, bias, out, call(aten.contiguous.default, logsumexp), seed, seed, 0.0,
        [True, True, True, False], case.causal, scale=case.scale,
    )  # fmt: skip
    return _pick(call, made, 0, 1, 2)


def _no_random(call: Call, like: Any) -> Any:
    """Seed and offset, which nobody reads without dropout."""
    return call(aten.new_zeros.default, like, [], dtype=torch.int64)


KERNELS: dict[str, dict[str, Kernel]] = {
    "cpu": {"flash": Kernel(_cpu_takes, _cpu_forward, _cpu_backward, shares=True)},
    "cuda": {
        "cudnn": Kernel(_cudnn_takes, _cudnn_forward, _cudnn_backward, shares=True),
        "flash": Kernel(_flash_takes, _flash_forward, _flash_backward, shares=True),
        "efficient": Kernel(_efficient_takes, _efficient_forward, _efficient_backward),
    },
}
"""By device and name; where nothing was measured, in this order."""
