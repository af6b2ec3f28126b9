"""Programs that the tests of solvers share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardwright import Graph, GraphBuilder

Build = Callable[..., Graph]


def _mlp(batch: int, model: int, hidden: int, layers: int = 1, dtype: str = "f32") -> Graph:
    b = GraphBuilder("mlp")
    x = b.input((batch, model), dtype, name="x")
    for i in range(layers):
        w1 = b.input((model, hidden), dtype, name=f"w1_{i}")
        w2 = b.input((hidden, model), dtype, name=f"w2_{i}")
        h = b.op("matmul", [x, w1], [(batch, hidden)], dtype=dtype, names=[f"h{i}"])
        a = b.op("gelu", [h], [(batch, hidden)], dtype=dtype, names=[f"a{i}"])
        x = b.op("matmul", [a, w2], [(batch, model)], dtype=dtype, names=[f"y{i}"])
    return b.finish([x])


def _matmul(m: int, k: int, n: int, dtype: str = "f32") -> Graph:
    b = GraphBuilder("matmul")
    x, w = b.input((m, k), dtype, name="x"), b.input((k, n), dtype, name="w")
    return b.finish([b.op("matmul", [x, w], [(m, n)], dtype=dtype, names=["y"])])


def _transformer_block(tokens: int = 64, model: int = 256, hidden: int = 1024) -> Graph:
    """Seed 001's, line by line."""
    b = GraphBuilder("transformer_block")
    x = b.input((tokens, model), name="x")
    w_q, w_k, w_v, w_o = (b.input((model, model), name=f"w_{n}") for n in "qkvo")
    w_ff1, w_ff2 = b.input((model, hidden), name="w_ff1"), b.input((hidden, model), name="w_ff2")

    def matmul(left: int, right: int, shape: tuple[int, int], name: str) -> int:
        made: int = b.op("matmul", [left, right], [shape], names=[name])
        return made

    q, k, v = (matmul(x, w, (tokens, model), n) for w, n in ((w_q, "q"), (w_k, "k"), (w_v, "v")))
    kt = b.op("transpose", [k], [(model, tokens)], names=["kT"], views=[(0, 0)])
    attn = matmul(matmul(q, kt, (tokens, tokens), "scores"), v, (tokens, model), "attn")
    mid = b.op("add", [x, matmul(attn, w_o, (tokens, model), "attn_out")], [(tokens, model)], names=["mid"])
    h = matmul(matmul(mid, w_ff1, (tokens, hidden), "h"), w_ff2, (tokens, model), "h2")
    return b.finish([b.op("add", [x, h], [(tokens, model)], names=["out"])])


def _diamond(rows: int = 64, inner: int = 256, columns: int = 256) -> Graph:
    """Seed 001's: h + 1 and h * 2 meet again."""
    b = GraphBuilder("diamond")
    x, w1 = b.input((rows, inner), name="x"), b.input((inner, columns), name="w1")
    one, two = b.input((), name="one"), b.input((), name="two")
    h = b.op("matmul", [x, w1], [(rows, columns)], names=["h"])
    branch1 = b.op("add", [h, one], [(rows, columns)], names=["branch1"])
    branch2 = b.op("multiply", [h, two], [(rows, columns)], names=["branch2"])
    turned = b.op("transpose", [branch2], [(columns, rows)], names=["turned"], views=[(0, 0)])
    return b.finish([b.op("matmul", [branch1, turned], [(rows, rows)], names=["out"])])


@pytest.fixture
def mlp() -> Build:
    return _mlp


@pytest.fixture
def matmul() -> Build:
    return _matmul


@pytest.fixture
def transformer_block() -> Build:
    return _transformer_block


@pytest.fixture
def diamond() -> Build:
    return _diamond
