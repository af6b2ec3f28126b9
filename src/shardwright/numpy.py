"""Functions of deep learning, written with plain NumPy calls: they take arrays and traced values alike.

>>> import numpy as np
>>> from shardwright.frontends.numpy import ShapeDtype, trace
>>> traced = trace(softmax, ShapeDtype((8, 16), np.float32))
>>> [node.op for node in traced.graph.nodes]
['reduce_max', 'subtract', 'exp', 'reduce_sum', 'divide']

Each comes apart into ops that the rule book knows, so that nothing here needs a rule of its own.

What does not is an op of one's own, in one file: `op` makes it of a function, a rule, an exact meaning and samples, and
`check_op` runs all that it claims::

    @op("mine.square_add", rule="i j, j -> i j", samples=[("n m", "m")], cost="pointwise",
        meaning=lambda a, x, w: a.add(a.multiply(x, x), w))
    def square_add(x, w):
        return x * x + w

    check_op("mine.square_add")
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from .frontends.numpy import Sample, erf, op

if TYPE_CHECKING:
    from .discover.book.own_op import check_op

__all__ = [
    "Sample",
    "attention",
    "check_op",
    "cross_entropy",
    "gelu",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "op",
    "relu",
    "silu",
    "softmax",
]


def __getattr__(name: str) -> Any:
    """`check_op` when it is asked for: discovery is not loaded with the package."""
    if name == "check_op":
        return import_module("shardwright.discover.book.own_op").check_op
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def softmax(x: Any, axis: int | tuple[int, ...] = -1) -> Any:
    """Exponentials that sum to one along ``axis``.

    >>> softmax(np.array([0.0, 0.0]))
    array([0.5, 0.5])
    """
    exps = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return exps / np.sum(exps, axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int | tuple[int, ...] = -1) -> Any:
    """The logarithm of `softmax`, without the loss of its small values.

    >>> log_softmax(np.array([1000.0, 0.0]))
    array([    0., -1000.])
    """
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def logsumexp(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """The logarithm of the sum of exponentials; the greatest of them is taken out first.

    >>> float(logsumexp(np.array([1000.0, 1000.0])) - np.log(2.0))
    1000.0
    """
    greatest = np.max(x, axis=axis, keepdims=True)
    # Minus infinity stands for nothing: taking it out would leave NaN.
    greatest = np.where(np.isfinite(greatest), greatest, 0)
    total = np.log(np.sum(np.exp(x - greatest), axis=axis, keepdims=True)) + greatest
    return total if keepdims else np.squeeze(total, axis=axis)


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, axis: int | tuple[int, ...] = -1, eps: float = 1e-5
) -> Any:
    """Mean 0 and variance 1 along ``axis``, then scaled and shifted if asked.

    >>> layer_norm(np.array([1.0, 3.0]), eps=0.0)
    array([-1.,  1.])
    """
    away = x - np.mean(x, axis=axis, keepdims=True)
    variance = np.mean(np.square(away), axis=axis, keepdims=True)
    made = away / np.sqrt(variance + eps)
    if weight is not None:
        made = made * weight
    return made if bias is None else made + bias


def relu(x: Any) -> Any:
    """
    >>> relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    return np.maximum(x, 0)


def silu(x: Any) -> Any:
    """``x * sigmoid(x)``, with the sigmoid as a hyperbolic tangent, which does not overflow.

    >>> silu(np.array([0.0, 1000.0]))
    array([   0., 1000.])
    """
    return x * (np.tanh(x * 0.5) + 1) * 0.5


def gelu(x: Any, exact: bool = False) -> Any:
    """``x`` times the normal distribution up to ``x``: by a hyperbolic tangent, or ``exact`` by the error function.

    >>> np.abs(gelu(np.linspace(-3, 3, 7)) - gelu(np.linspace(-3, 3, 7), exact=True)).max() < 1e-3
    np.True_
    """
    if exact:
        return x * (erf(x * math.sqrt(0.5)) + 1) * 0.5
    inner = (x + 0.044715 * (x * x * x)) * math.sqrt(2 / math.pi)
    return x * (np.tanh(inner) + 1) * 0.5


def attention(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    """Scaled dot-product attention over ``[..., tokens, features]``.

    ``mask`` is boolean (true where a query may look) or is added to the scores; with ``causal`` a query sees only keys
    that are not later than itself, the last query standing at the last key.  A query that may look nowhere gives NaN.

    >>> x = np.eye(3)
    >>> attention(x, x, x, causal=True)[0]
    array([1., 0., 0.])
    """
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        queries, keys = scores.shape[-2:]
        # A triangle of minus infinity beside zeros, made of nothing: no mask is carried in from outside.
        scores = scores + np.triu(np.full_like(scores, -np.inf, shape=(queries, keys)), k=1 + keys - queries)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    return np.matmul(softmax(scores, axis=-1), v)


def cross_entropy(logits: Any, labels: Any, axis: int = -1) -> Any:
    """The mean of ``-log_softmax(logits)`` at the labels, which are class numbers.

    >>> float(cross_entropy(np.zeros((2, 4)), np.array([0, 3]))) == math.log(4)
    True
    """
    chosen = np.take_along_axis(log_softmax(logits, axis), np.expand_dims(labels, axis), axis)
    return -np.mean(chosen)
