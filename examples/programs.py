"""Two programs to look at, written as graphs: a Megatron MLP and the transformer block of the seeds."""

from __future__ import annotations

from shardwright.ir.graph import Graph, GraphBuilder


def megatron_mlp(batch: int = 16, model: int = 512, hidden: int = 2048) -> Graph:
    """x @ w1, gelu, @ w2."""
    b = GraphBuilder("megatron_mlp")
    x = b.input((batch, model), name="x")
    w1 = b.input((model, hidden), name="w1")
    w2 = b.input((hidden, model), name="w2")
    h = b.op("matmul", [x, w1], [(batch, hidden)], names=["h"])
    a = b.op("gelu", [h], [(batch, hidden)], names=["a"])
    y = b.op("matmul", [a, w2], [(batch, model)], names=["y"])
    return b.finish([y])


def transformer_block(tokens: int = 64, model: int = 256, hidden: int = 1024) -> Graph:
    """The block of seed 001, line by line."""
    b = GraphBuilder("transformer_block")
    x = b.input((tokens, model), name="x")
    w_q, w_k, w_v, w_o = (b.input((model, model), name=f"w_{n}") for n in "qkvo")
    w_ff1 = b.input((model, hidden), name="w_ff1")
    w_ff2 = b.input((hidden, model), name="w_ff2")

    def matmul(left: int, right: int, rows: int, columns: int, name: str) -> int:
        value: int = b.op("matmul", [left, right], [(rows, columns)], names=[name])
        return value

    q, k, v = (matmul(x, w, tokens, model, n) for w, n in ((w_q, "q"), (w_k, "k"), (w_v, "v")))
    kt = b.op("transpose", [k], [(model, tokens)], names=["kT"], views=[(0, 0)])
    scores = matmul(q, kt, tokens, tokens, "scores")
    attn = matmul(scores, v, tokens, model, "attn")
    attn_out = matmul(attn, w_o, tokens, model, "attn_out")
    mid = b.op("add", [x, attn_out], [(tokens, model)], names=["mid"])
    h = matmul(mid, w_ff1, tokens, hidden, "h")
    h2 = matmul(h, w_ff2, tokens, model, "h2")
    out = b.op("add", [x, h2], [(tokens, model)], names=["out"])
    return b.finish([out])
