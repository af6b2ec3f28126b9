"""Attention, as the op for which DTensor has a rule, on any device.

On a GPU ``scaled_dot_product_attention`` becomes a fused op, which DTensor knows how to shard; on a CPU it becomes one
that DTensor does not know.  So here every call becomes the GPU's op, and that is computed in plain words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.nn.functional as F

from ....errors import TraceError
from ..recording.dispatch import Interrupted

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward"
"""The names under which attention is recorded."""


@contextmanager
def fused_attention() -> Iterator[None]:
    known = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = _attend
    try:
        yield
    finally:
        F.scaled_dot_product_attention = known


def _attend(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p:
        raise Interrupted(
            TraceError("attention drops out, which differs between ranks and one device", help="set dropout_p to 0")
        )
    if query.dim() != 4:
        lead = query.shape[:-2]
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-2:]).reshape(-1, 1, *attn_mask.shape[-2:])
        wide = [x.reshape(-1, 1, *x.shape[-2:]) for x in (query, key, value)]
        made = _attend(wide[0], wide[1], wide[2], attn_mask, 0.0, is_causal, scale)
        return made.reshape(*lead, *made.shape[-2:])
    if attn_mask is None:
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)[0]
    if attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -inf)
    while attn_mask.dim() < 4:
        attn_mask = attn_mask.unsqueeze(0)
    save = query.requires_grad or key.requires_grad or value.requires_grad
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, save, 0.0, is_causal, scale=scale
    )[0]


def _scores(query: Any, key: Any, bias: Any, is_causal: bool, scale: float | None) -> Any:
    made = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        made = made + bias
    if is_causal:
        rows, columns = made.shape[-2:]
        made = made.masked_fill(torch.ones(rows, columns, dtype=torch.bool).triu(1), -inf)
    return made


def _wide(query: Any, x: Any) -> Any:
    return x if x.shape[1] == query.shape[1] else x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _exact(x: Any) -> Any:
    """In the type that kernels compute in: at least float32."""
    return x if x.dtype is torch.float64 else x.float()


def _forward(query: Any, key: Any, value: Any, bias: Any, is_causal: bool, scale: float | None) -> tuple[Any, Any]:
    scores = _scores(_exact(query), _exact(_wide(query, key)), bias, is_causal, scale)
    log = scores.logsumexp(-1)
    out = (scores - log.unsqueeze(-1)).exp() @ _exact(_wide(query, value))
    return out.to(query.dtype), log


def _backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, log: Any, bias: Any, is_causal: bool, scale: float | None
) -> tuple[Any, Any, Any]:
    grad, out, q = _exact(grad), _exact(out), _exact(query)
    k, v = _exact(_wide(query, key)), _exact(_wide(query, value))
    weights = (_scores(q, k, bias, is_causal, scale) - log.unsqueeze(-1)).exp()
    inner = weights * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
    inner = inner * (query.shape[-1] ** -0.5 if scale is None else scale)
    made = inner @ k, inner.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ grad

    def narrow(x: Any, like: Any) -> Any:
        if x.shape != like.shape:
            x = x.reshape(like.shape[0], like.shape[1], -1, *like.shape[2:]).sum(2)
        return x.to(like.dtype)

    return made[0].to(query.dtype), narrow(made[1], key), narrow(made[2], value)


FUSED = (
    "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_flash_attention_backward", "aten._scaled_dot_product_efficient_attention_backward",
)  # fmt: skip
"""A GPU's attention."""


@dataclass
class Fused:
    """One fused call: what is recorded, and what it computes."""

    op: str
    operands: list[Any]
    causal: bool
    scale: float | None

    @property
    def attrs(self) -> dict[str, Any]:
        return {"dropout_p": 0.0, "is_causal": self.causal, "scale": self.scale}

    def compute(self) -> tuple[Any, ...]:
        computed: Callable[..., tuple[Any, ...]] = _forward if self.op == FORWARD else _backward
        return computed(*self.operands, self.causal, self.scale)


def fused(name: str, args: Any, kwargs: Any) -> Fused:
    """A call of one of `FUSED`."""
    scale = kwargs.get("scale")
    if name == "aten._scaled_dot_product_flash_attention":
        q, k, v, _, causal = (*args, 0.0, False)[:5]
        return Fused(FORWARD, [q, k, v, None], causal, scale)
    if name == "aten._scaled_dot_product_efficient_attention":
        q, k, v, bias, _, _, causal = (*args, 0.0, False)[:7]
        return Fused(FORWARD, [q, k, v, bias], causal, scale)
    if name == "aten._scaled_dot_product_flash_attention_backward":
        return Fused(BACKWARD, [*args[:6], None], args[11], scale)
    grad, q, k, v, bias, out, log = args[:7]
    if args[10][3]:
        raise TraceError("the gradient of an attention bias is not followed", help="detach the bias")
    return Fused(BACKWARD, [grad, q, k, v, out, log, bias], args[11] if len(args) > 11 else False, scale)


def returned(name: str, made: tuple[Any, ...]) -> Any:
    """What the op returns, with what nobody looks at."""
    nothing = torch.zeros((), dtype=torch.int64)
    if name == "aten._scaled_dot_product_flash_attention":
        out, log = made
        return out, log, None, None, out.shape[2], out.shape[2], nothing, nothing, torch.empty(0)
    if name == "aten._scaled_dot_product_efficient_attention":
        return *made, nothing, nothing
    if name == "aten._scaled_dot_product_efficient_attention_backward":
        return *made, None
    return made
