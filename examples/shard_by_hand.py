"""A NumPy function on 8 virtual devices: shardings by hand, and chosen."""

from __future__ import annotations

from typing import Any

import numpy as np

import shardwright as sw
from shardwright import P


def attention(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
    scores = (x @ w_q) @ (x @ w_k).T / np.sqrt(w_q.shape[1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ (x @ w_v) @ w_o


def main() -> None:
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(size) / 8 for size in ((32, 64), (64, 64), (64, 64), (64, 64), (64, 64))]
    rows = sw.shard_map(attention, "dp=2, tp=4", in_specs=(P("dp", None), *[P(None, "tp")] * 3, P("tp", None)))
    chosen = sw.shard_map(attention, "dp=2, tp=4", auto_sharding=True)
    for name, split in (("by hand", rows), ("chosen", chosen)):
        same = np.allclose(split(*args), attention(*args))
        sent = [f"{c.kind} over {c.axis}" for c in split.program(*args).collectives]
        print(f"{name}: equal to NumPy {same}; {', '.join(sent) or 'no communication'}")


if __name__ == "__main__":
    main()
