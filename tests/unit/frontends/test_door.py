"""`shardwright.numpy`: the same on arrays and on traced values, and right on arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardwright.numpy as snp
from shardwright.frontends.numpy import ShapeDtype, trace

Case = Callable[..., Any]
FLOATS = ["f8", "f4", "f2"]
CLOSE = {"f8": 1e-12, "f4": 1e-5, "f2": 1e-2}

POINTWISE: dict[str, Case] = {
    "softmax": snp.softmax, "softmax 0": lambda x: snp.softmax(x, axis=0),
    "softmax two": lambda x: snp.softmax(x, axis=(0, 1)),
    "log_softmax": snp.log_softmax, "logsumexp": snp.logsumexp, "logsumexp axis": lambda x: snp.logsumexp(x, axis=-1),
    "logsumexp keep": lambda x: snp.logsumexp(x, axis=0, keepdims=True), "layer_norm": snp.layer_norm,
    "layer_norm 0": lambda x: snp.layer_norm(x, axis=0, eps=1e-3), "gelu": snp.gelu,
    "gelu exact": lambda x: snp.gelu(x, exact=True),
    "relu": snp.relu, "silu": snp.silu,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(POINTWISE))
@pytest.mark.parametrize("dtype", FLOATS)
def test_traced_as_direct(name: str, dtype: str, agree: Case, numbers: Case) -> None:
    for shape in ((3, 5), (1, 1), (4, 3, 2)):
        x = numbers(shape, dtype)
        traced = agree(POINTWISE[name], x)
        assert not traced.consts
        assert POINTWISE[name](x).dtype == x.dtype


def test_softmax_values(numbers: Case) -> None:
    x = numbers((3, 5), "f8") * 100
    p = snp.softmax(x)
    np.testing.assert_allclose(p.sum(axis=-1), 1)
    np.testing.assert_allclose(np.log(p[p > 1e-200]), snp.log_softmax(x)[p > 1e-200])
    np.testing.assert_allclose(
        snp.logsumexp(x, axis=-1), x.max(-1) + np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1))
    )


def test_logsumexp_of_nothing_and_of_infinity() -> None:
    with np.errstate(divide="ignore"):
        assert snp.logsumexp(np.array([-np.inf, -np.inf])) == -np.inf
    assert snp.logsumexp(np.array([np.inf, 0.0]), axis=0) == np.inf


def test_layer_norm_values(agree: Case, numbers: Case) -> None:
    x, w, b = numbers((3, 5), "f8"), numbers((5,), "f8", 1), numbers((5,), "f8", 2)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(snp.layer_norm(x, w, b), expected)
    agree(lambda x, w, b: snp.layer_norm(x, w, b), x, w, b)
    agree(lambda x, w: snp.layer_norm(x, w, axis=(0, 1)), x, w)


def test_activations(numbers: Case) -> None:
    x = np.linspace(-6, 6, 41)
    np.testing.assert_allclose(snp.silu(x), x / (1 + np.exp(-x)), atol=1e-12)
    np.testing.assert_allclose(snp.gelu(x, exact=True), [v * (1 + math.erf(v / 2**0.5)) / 2 for v in x], atol=1e-12)
    np.testing.assert_allclose(snp.gelu(x), snp.gelu(x, exact=True), atol=2e-3)
    assert snp.relu(np.array([-1, 2])).tolist() == [0, 2]
    for dtype in FLOATS:
        with np.errstate(all="raise", under="ignore"):
            snp.silu(np.array([-100.0, 100.0], dtype))
            snp.softmax(np.array([-100.0, 100.0], dtype))


def plain_attention(q: Any, k: Any, v: Any, allowed: Any, scale: float) -> Any:
    """One query at a time, over the keys it may look at."""
    made = np.zeros((*q.shape[:-1], v.shape[-1]))
    for at in np.ndindex(q.shape[:-1]):
        row = allowed[at[-1]]
        scores = k[at[:-1]][row] @ q[at] * scale
        p = np.exp(scores - scores.max())
        made[at] = (p / p.sum()) @ v[at[:-1]][row]
    return made


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention(dtype: str, agree: Case, numbers: Case) -> None:
    q, k, v = (numbers((2, 2, n, 3), dtype, i) for i, n in enumerate((4, 5, 5)))
    everything, triangle = np.ones((4, 5), bool), np.tri(4, 5, 1, dtype=bool)
    wide = [array.astype("f8") for array in (q, k, v)]
    same: Case = np.testing.assert_allclose
    close = CLOSE[dtype]
    same(snp.attention(q, k, v), plain_attention(*wide, everything, 3**-0.5), rtol=close, atol=close)
    same(snp.attention(q, k, v, causal=True), plain_attention(*wide, triangle, 3**-0.5), rtol=close, atol=close)
    same(
        snp.attention(q, k, v, mask=triangle, scale=0.5), plain_attention(*wide, triangle, 0.5), rtol=close, atol=close
    )
    assert snp.attention(q, k, v, causal=True).dtype == q.dtype
    assert not agree(lambda q, k, v: snp.attention(q, k, v, causal=True), q, k, v).consts
    agree(lambda q, k, v, m: snp.attention(q, k, v, mask=m), q, k, v, triangle)
    agree(lambda q, k, v, m: snp.attention(q, k, v, mask=m, causal=True), q, k, v, numbers((4, 5), dtype, 3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy(dtype: str, agree: Case, numbers: Case) -> None:
    logits, labels = numbers((6, 4), dtype), np.array([0, 1, 2, 3, 3, 0])
    wide = logits.astype("f8")
    expected = np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(wide, labels)])
    np.testing.assert_allclose(snp.cross_entropy(logits, labels), expected, rtol=CLOSE[dtype])
    agree(snp.cross_entropy, logits, labels)
    agree(lambda x, y: snp.cross_entropy(x, y, axis=0), logits, np.array([0, 5, 2, 1]))
    agree(snp.cross_entropy, numbers((2, 3, 4), dtype), np.array([[0, 1, 2], [3, 3, 0]]))


def test_a_whole_block(agree: Case, numbers: Case) -> None:
    """Pre-norm transformer block with heads, as a user writes it."""

    def block(x: Any, p: dict[str, Any], heads: int = 2) -> Any:
        b, t, d = x.shape
        h = snp.layer_norm(x, p["w"], p["b"])
        q, k, v = np.split((h @ p["qkv"]).reshape(b, t, 3 * heads, d // heads).transpose(0, 2, 1, 3), 3, axis=1)
        a = snp.attention(q, k, v, causal=True).transpose(0, 2, 1, 3).reshape(b, t, d)
        x = x + a @ p["out"]
        return x + snp.gelu(snp.layer_norm(x) @ p["up"]) @ p["down"]

    shapes = {"w": (8,), "b": (8,), "qkv": (8, 24), "out": (8, 8), "up": (8, 16), "down": (16, 8)}
    params = {name: numbers(shape, "f4", i) for i, (name, shape) in enumerate(shapes.items())}
    traced = agree(block, numbers((2, 5, 8), "f4", 9), params)
    assert traced.names == ("x", "p.w", "p.b", "p.qkv", "p.out", "p.up", "p.down")
    assert not traced.consts


def test_every_function_is_documented() -> None:
    for name in snp.__all__:
        assert ">>>" in getattr(snp, name).__doc__
    assert trace(snp.softmax, ShapeDtype((2, 2))).graph.name == "softmax"
