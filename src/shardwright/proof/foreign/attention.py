"""Fused attention: exponentials of scores, and values weighted by them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from .calls import Calling, Evaluator, Meaning
from .numbers import Number

# -- attention --------------------------------------------------------------------------------------------


def _scores(m: Evaluator, call: Calling, q: Number, k: Number, mask: Number | None) -> Number:
    numbers = m.numbers
    scale = call.attrs.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if k.shape[1] != q.shape[1]:  # grouped heads
        k = _repeated(k, q.shape[1] // k.shape[1])
    made = numbers.linear(lambda a, b: a @ b.swapaxes(-1, -2), q, k)
    made = numbers.multiply(made, numbers.number(scale))
    if call.attrs.get("is_causal"):
        rows, columns = made.shape[-2:]
        made = numbers.choose(np.tril(np.ones((rows, columns), np.bool_)), made, numbers.number(-inf))
    if mask is not None:
        if mask.whole is not None:
            made = numbers.choose(mask.whole != 0, made, numbers.number(-inf))
        else:
            # Numbers that are minus infinity, or else are added.
            made = numbers.add(made, mask)
    return made


def _repeated(x: Number, times: int) -> Number:
    return x.map(lambda part: np.repeat(part, times, axis=1))


def _attention(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    """Output, and the logarithm of the sum of exponentials."""
    q, k, v = operands[:3]
    mask = operands[3] if len(operands) > 3 else None
    numbers = m.numbers
    weights = numbers.exp(_scores(m, call, q, k, mask))
    total = numbers.linear(lambda a: a.sum(-1, keepdims=True), weights)
    if v.shape[1] != q.shape[1]:
        v = _repeated(v, q.shape[1] // v.shape[1])
    out = numbers.divide(numbers.linear(lambda a, b: a @ b, weights, v), total)
    log = numbers.log(total).map(lambda part: part[..., 0])
    return [out, log][: len(call.results)]


def _attention_backward(m: Evaluator, call: Calling, operands: Sequence[Any]) -> Any:
    grad, q, k, v, out, log = operands[:6]
    mask = operands[6] if len(operands) > 6 else None
    numbers = m.numbers
    groups = q.shape[1] // k.shape[1]
    wide_k, wide_v = (_repeated(x, groups) if groups > 1 else x for x in (k, v))
    scale = call.attrs.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    normaliser = numbers.exp(log).map(lambda part: part[..., None])
    weights = numbers.divide(numbers.exp(_scores(m, call, q, k, mask)), normaliser)
    grad_v = numbers.linear(lambda a, b: a.swapaxes(-1, -2) @ b, weights, grad)
    grad_weights = numbers.linear(lambda a, b: a @ b.swapaxes(-1, -2), grad, wide_v)
    delta = numbers.linear(lambda a: a.sum(-1, keepdims=True), numbers.multiply(grad, out))
    grad_scores = numbers.multiply(weights, numbers.subtract(grad_weights, delta))
    grad_scores = numbers.multiply(grad_scores, numbers.number(scale))
    grad_q = numbers.linear(lambda a, b: a @ b, grad_scores, wide_k)
    grad_k = numbers.linear(lambda a, b: a.swapaxes(-1, -2) @ b, grad_scores, q)
    if groups > 1:
        grad_k, grad_v = (
            numbers.linear(lambda a: a.reshape(a.shape[0], -1, groups, *a.shape[2:]).sum(2), x)
            for x in (grad_k, grad_v)
        )
    return [grad_q, grad_k, grad_v]


BY_NAME: dict[str, Meaning] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""By the names of ATen's overloads."""
