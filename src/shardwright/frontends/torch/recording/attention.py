"""Attention as one op, whatever the device.

PyTorch picks flash, cuDNN, memory-efficient or plain attention by device and shape, and autograd then records that
choice.  A captured program must not depend on it, so these operators stand in:

| op | operands -> results |
|---|---|
| ``aten.scaled_dot_product_attention`` | q, k, v, mask -> out: where no gradient is asked for |
| ``shardwright.attention`` | q, k, v, mask -> out, logsumexp: keeps what the backward op needs |
| ``shardwright.attention_backward`` | grad, q, k, v, mask, out, logsumexp -> dq, dk, dv, and dmask if ``mask_grad`` |

q is [..., heads, queries, width], k and v [..., kv heads, keys, width].  Which keys a query sees is said by
``is_causal``, or in the words of a `Band` by ``sees``; nothing of queries by keys is made for it.  On a device that has
a part of the queries, one operand more says where they begin.  What computes them here is the plain formula, in blocks
of queries; engines replace it by the device's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ....errors import TraceError
from ....ir.graph import TensorType
from ....spec.band import ATTRIBUTE, Band
from ..kernels import Kernel, kernel

_OPTIONS = "float dropout_p, bool is_causal, float scale, bool enable_gqa"
_library: Any = torch.library  # untyped in part
_LIBRARY = _library.Library("shardwright", "FRAGMENT")
_LIBRARY.define(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., "
    "bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"
)
_LIBRARY.define(
    f"attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, {_OPTIONS}, int draw, bool mask_grad, "
    "str? sees=None) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor out, "
    f"Tensor logsumexp, {_OPTIONS}, int draw, bool mask_grad, str? sees=None) -> Tensor[]"
)
_MASK_GRAD = 5
"""Where that option stands among those of the op."""
BLOCK = 1 << 20
"""Scores that are made at a time, or as many as the query has numbers."""


def _result(query: Any, value: Any) -> Any:
    """Laid out as flash attention does: heads inside the sequence, so that merging heads is a view."""
    *batch, heads, queries, _ = query.shape
    return query.new_empty([*batch, queries, heads, value.shape[-1]]).transpose(-2, -3)


def _inference_shape(query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **options: Any) -> Any:
    return _result(query, value)


def _forward_shape(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return _result(query, value), query.new_empty(query.shape[:-1], dtype=wide)


def _backward_shape(grad: Any, query: Any, key: Any, value: Any, attn_mask: Any, *rest: Any) -> Any:
    made = [torch.empty_like(tensor) for tensor in (query, key, value)]
    return [*made, torch.empty_like(attn_mask)] if rest[2 + _MASK_GRAD] else made


def _scores(query: Any, key: Any, mask: Any, band: Band, scale: float, wide: Any) -> Any:
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(-1, -2)
    if not band.sees_all:
        scores = scores.masked_fill(~_seen(band, scores.shape[-2], scores.shape[-1], scores.device), float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores


def _seen(band: Band, rows: int, keys: int, device: Any) -> Any:
    """Which keys each query sees."""
    row, key = torch.arange(rows, device=device).unsqueeze(1), torch.arange(keys, device=device)
    seen = torch.ones((rows, keys), dtype=torch.bool, device=device)
    if band.left is not None:
        seen = seen & (key >= row - band.left)
    if band.right is not None:
        seen = seen & (key <= row + band.right)
    return seen | (key < band.prefix) if band.prefix else seen


def _grouped(tensor: Any, heads: int, enable_gqa: bool) -> Any:
    """One key head serves several query heads."""
    return tensor.repeat_interleave(heads // tensor.shape[-3], -3) if enable_gqa else tensor


def _weights(scores: Any, logsumexp: Any) -> Any:
    """Softmax; zeros, not NaN, for a query that sees no key."""
    hidden = torch.isneginf(logsumexp).unsqueeze(-1)
    return torch.exp(scores - logsumexp.unsqueeze(-1)).masked_fill(hidden, 0.0)


def _no_dropout(dropout_p: float) -> None:
    if dropout_p > 0:
        raise TraceError(
            "attention with dropout is no op of a captured program: its random numbers would depend on the kernel",
            help="call torch.nn.functional.scaled_dot_product_attention, which is captured in parts then",
        )


def _blocks(query: Any, key: Any, mask: Any, band: Band) -> Iterator[tuple[slice, slice, Band]]:
    """Queries a few at a time, with the keys that they see, and which of those each does."""
    rows, keys = query.shape[-2], key.shape[-2]
    each = max(query[..., 0, 0].numel() * keys, 1) if rows else 1
    step = rows if mask is not None else max(max(BLOCK, query.numel()) // each, 1)
    if step >= rows:
        yield slice(0, rows), slice(0, keys), band
        return
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        low = 0 if band.left is None or band.prefix else min(max(start - band.left, 0), keys)
        high = keys if band.right is None else min(max(stop + band.right, band.prefix, low), keys)
        # Row i of the block is row i + start of all, and key j is key j + low.
        yield slice(start, stop), slice(low, high), band.moved(start - low)


def _forward(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: float, enable_gqa: bool,
    draw: int, mask_grad: bool, sees: str | None = None,
) -> Any:  # fmt: skip
    _no_dropout(dropout_p)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    heads = query.shape[-3] if enable_gqa else 1
    key, value = (_grouped(tensor, heads, enable_gqa).to(wide) for tensor in (key, value))
    found = []
    for rows, keys, band in _blocks(query, key, mask, Band.of({"is_causal": is_causal, ATTRIBUTE: sees})):
        scores = _scores(query[..., rows, :], key[..., keys, :], mask, band, scale, wide)
        logsumexp = torch.logsumexp(scores, -1)
        found.append(((_weights(scores, logsumexp) @ value[..., keys, :]).to(query.dtype), logsumexp))
    outs, sums = zip(*found)
    return found[0] if len(found) == 1 else (torch.cat(outs, -2), torch.cat(sums, -1))


def _backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, out: Any, logsumexp: Any, dropout_p: float,
    is_causal: bool, scale: float, enable_gqa: bool, draw: int, mask_grad: bool, sees: str | None = None,
) -> Any:  # fmt: skip
    _no_dropout(dropout_p)
    wide = logsumexp.dtype
    heads = query.shape[-3] if enable_gqa else 1
    keys, values = (_grouped(tensor, heads, enable_gqa).to(wide) for tensor in (key, value))
    d_query, d_mask = [], None
    d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
    for rows, at, band in _blocks(query, keys, mask, Band.of({"is_causal": is_causal, ATTRIBUTE: sees})):
        asked, towards, made = (tensor[..., rows, :].to(wide) for tensor in (query, grad, out))
        weights = _weights(_scores(asked, keys[..., at, :], mask, band, scale, wide), logsumexp[..., rows])
        change = towards @ values[..., at, :].transpose(-1, -2) - (towards * made).sum(-1, keepdim=True)
        d_scores = weights * change
        d_query.append((d_scores @ keys[..., at, :] * scale).to(query.dtype))
        d_keys[..., at, :] += d_scores.transpose(-1, -2) @ asked * scale
        d_values[..., at, :] += weights.transpose(-1, -2) @ towards
        d_mask = d_scores.sum_to_size(mask.shape).to(mask.dtype) if mask_grad else None
    found = [d_query[0] if len(d_query) == 1 else torch.cat(d_query, -2), _ungrouped(d_keys, key),
             _ungrouped(d_values, value)]  # fmt: skip
    return [*found, d_mask] if mask_grad else found


def _ungrouped(grad: Any, tensor: Any) -> Any:
    if grad.shape != tensor.shape:
        grad = grad.unflatten(-3, (tensor.shape[-3], -1)).sum(-3)
    return grad.to(tensor.dtype)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, mask, *options = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.options = options
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, grad: Any, _: Any) -> Any:
    none = [None] * len(ctx.options)
    if grad is None:
        return (None, None, None, None, *none)
    made = torch.ops.shardwright.attention_backward(grad, *ctx.saved_tensors, *ctx.options)
    return (*made[:3], made[3] if ctx.options[_MASK_GRAD] else None, *none)


_library.register_fake("shardwright::scaled_dot_product_attention", _inference_shape, lib=_LIBRARY)
_library.register_fake("shardwright::attention", _forward_shape, lib=_LIBRARY)
_library.register_fake("shardwright::attention_backward", _backward_shape, lib=_LIBRARY)
_LIBRARY.impl("attention", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("attention_backward", _backward, "CompositeExplicitAutograd")
_library.register_autograd("shardwright::attention", _gradient, setup_context=_save, lib=_LIBRARY)


def whole_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """What `torch.nn.functional.scaled_dot_product_attention` is while a program is captured."""
    if torch.is_autocast_enabled("cpu"):
        narrow = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(narrow) for tensor in (query, key, value))
        attn_mask = attn_mask.to(narrow) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    tensors = (query, key, value, attn_mask)
    wanted = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    options = (float(dropout_p), bool(is_causal))
    if not wanted and not dropout_p:
        inference = torch.ops.shardwright.scaled_dot_product_attention
        return inference(*tensors, *options, scale=scale, enable_gqa=enable_gqa)
    mask_grad = attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled()
    if dropout_p:
        return _with_dropout(*tensors, *options, scale, enable_gqa)
    return torch.ops.shardwright.attention(*tensors, *options, scale, enable_gqa, -1, mask_grad)[0]


def _with_dropout(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: float, enable_gqa: bool
) -> Any:
    """In plain ops: no device's kernel drops the same elements on every mesh."""
    heads = query.shape[-3] if enable_gqa else 1
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    band = Band(right=0) if is_causal else Band()
    scores = _scores(query, _grouped(key, heads, enable_gqa), mask, band, scale, wide)
    weights = torch.native_dropout(torch.softmax(scores, -1), dropout_p, True)[0]
    return (weights @ _grouped(value, heads, enable_gqa).to(wide)).to(query.dtype)


# -- on a part of the queries -------------------------------------------------------------------------------


def local_attrs(attrs: Mapping[str, Any], offset: int, rows: int, keys: int) -> dict[str, Any]:
    """Attributes of attention on queries that begin at this place: the band as these see it."""
    said = {name: value for name, value in attrs.items() if name != ATTRIBUTE}
    return {**said, **Band.of(attrs).moved(offset).normal(rows, keys).attrs}


def _kernel(op: Any, query: int, operands: int) -> Any:
    """What computes an op of attention; behind its ``operands`` there may be one that says where queries begin."""

    def make(attrs: Mapping[str, Any], results: Sequence[TensorType], device: Any) -> Kernel:
        def run(*given: Any) -> Any:
            said = dict(attrs)
            if len(given) > operands:
                rows, keys = given[query].shape[-2], given[query + 1].shape[-2]
                said = local_attrs(attrs, int(given[operands]), rows, keys)
            return op(*given[:operands], **said)

        return run

    return make


def _inference(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Any, enable_gqa: bool,
    sees: str | None = None,
) -> Any:  # fmt: skip
    if sees is None:
        own = torch.ops.aten.scaled_dot_product_attention.default
        return own(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _forward(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, -1, False, sees)[0]


kernel("shardwright.attention")(_kernel(torch.ops.shardwright.attention.default, 0, 4))
kernel("shardwright.attention_backward")(_kernel(torch.ops.shardwright.attention_backward.default, 1, 7))
kernel("aten.scaled_dot_product_attention")(_kernel(_inference, 0, 4))
