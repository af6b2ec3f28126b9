"""Speed of the foundations, on one core: ``python benchmarks/core.py``

Prints each figure beside its goal.  Propagation runs on a graph of 10,000 nodes, a stack of transformer blocks
whose layers are all alike, and on one whose every layer has other sizes, so that no work can be shared.

A search is over in less than the system's time slice, so it is timed by what this thread ran, not by the clock
on the wall; else as `timeit` does it: the best of a few passes, each from nothing, and without the garbage
collector, whose pauses grow with all that is alive in the process and fall on whoever allocates next.
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable

from shardwright import DeviceMesh, Graph, GraphBuilder, ShardingSpec, run_hierarchical_propagation_pass
from shardwright.propagation import rule_of
from shardwright.rules.registry import _by_signature
from shardwright.spec.resharding.cheapest import clear_cache, reshard, reshard_table


def stack_of_blocks(nodes: int, vary: bool) -> Graph:
    """Transformer blocks until the graph has this many nodes; ``vary`` gives each layer its own sizes."""
    b = GraphBuilder("stack")
    tokens, model = 64, 128
    x = b.input((tokens, model), name="x")
    layer = 0
    while len(b.nodes) < nodes:
        hidden = 256 + (8 * layer if vary else 0)
        inner = 128 + (8 * layer if vary else 0)
        w = [b.input((model, inner), name=f"l{layer}.w{i}") for i in range(3)]
        w_o = b.input((inner, model), name=f"l{layer}.wo")
        w1, w2 = b.input((model, hidden), name=f"l{layer}.w1"), b.input((hidden, model), name=f"l{layer}.w2")
        q, k, v = (b.op("matmul", [x, m], [(tokens, inner)]) for m in w)
        heads = [b.op("reshape", [t], [(tokens, 8, inner // 8)]) for t in (q, k, v)]
        heads = [b.op("transpose", [t], [(8, tokens, inner // 8)], attrs={"permutation": (1, 0, 2)}) for t in heads]
        kt = b.op("transpose", [heads[1]], [(8, inner // 8, tokens)], attrs={"permutation": (0, 2, 1)})
        s = b.op("matmul", [heads[0], kt], [(8, tokens, tokens)])
        m = b.op("reduce_max", [s], [(8, tokens, 1)], attrs={"axis": -1, "keepdims": True})
        e = b.op("exp", [b.op("subtract", [s, m], [(8, tokens, tokens)])], [(8, tokens, tokens)])
        z = b.op("reduce_sum", [e], [(8, tokens, 1)], attrs={"axis": -1, "keepdims": True})
        p = b.op("divide", [e, z], [(8, tokens, tokens)])
        o = b.op("matmul", [p, heads[2]], [(8, tokens, inner // 8)])
        o = b.op("transpose", [o], [(tokens, 8, inner // 8)], attrs={"permutation": (1, 0, 2)})
        o = b.op("matmul", [b.op("reshape", [o], [(tokens, inner)]), w_o], [(tokens, model)])
        x = b.op("add", [x, o], [(tokens, model)])
        h = b.op("gelu", [b.op("matmul", [x, w1], [(tokens, hidden)])], [(tokens, hidden)])
        x = b.op("add", [x, b.op("matmul", [h, w2], [(tokens, model)])], [(tokens, model)])
        layer += 1
    return b.finish([x])


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of a few: other programs on the machine only ever add."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def propagation(vary: bool) -> tuple[float, int, int]:
    mesh = DeviceMesh("dp=2, tp=4")
    graph = stack_of_blocks(10_000, vary)
    specs = {graph.by_name["x"]: ShardingSpec(mesh, ["dp", "?"])}
    for name, value in graph.by_name.items():
        if name.endswith((".w0", ".w1", ".w2")) and graph.values[value].shape[0] == 128:
            specs[value] = ShardingSpec(mesh, ["?", "tp"])

    def work() -> object:
        _by_signature.clear()  # rules are worked out anew, as for a program seen for the first time
        return run_hierarchical_propagation_pass(graph, specs, rule_of)

    found = run_hierarchical_propagation_pass(graph, specs, rule_of)
    return seconds(work), len(graph.nodes), found.updates


def specs_of_rank(mesh: DeviceMesh, rank: int) -> list[ShardingSpec]:
    """Every axis on a dim, replicated or pending: 125 for rank 3 on three axes."""
    found = []
    for places in itertools.product(range(rank + 2), repeat=mesh.ndim):
        dims: list[list[object]] = [[] for _ in range(rank)]
        partial = []
        for axis, where in zip(mesh.axes, places):
            if where < rank:
                dims[where].append(axis)
            elif where == rank:
                partial.append(axis)
        found.append(ShardingSpec(mesh, [tuple(dim) for dim in dims], partial))
    return found


def search_times(
    pairs: list[tuple[ShardingSpec, ShardingSpec]], shape: tuple[int, ...], cold: bool = False, repeats: int = 3
) -> list[float]:
    """Milliseconds of each search, ascending; ``cold`` forgets before each what earlier ones learned."""
    best = [float("inf")] * len(pairs)
    for _ in range(repeats):
        clear_cache()
        gc.collect()
        gc.disable()
        for i, (source, target) in enumerate(pairs):
            if cold:
                clear_cache()
            start = time.thread_time()
            reshard(source, target, shape, 2)
            best[i] = min(best[i], (time.thread_time() - start) * 1e3)
        gc.enable()
    return sorted(best)


def main() -> None:
    print(f"{'what':<64}{'measured':>14}{'goal':>12}")

    def row(what: str, value: str, goal: str) -> None:
        print(f"{what:<64}{value:>14}{goal:>12}")

    for vary, what in ((False, "equal layers"), (True, "every layer different")):
        spent, nodes, updates = propagation(vary)
        row(f"propagation, {nodes:,} nodes, {updates:,} updates, {what}", f"{spent:.2f} s", "2 s")

    mesh, shape = DeviceMesh("a=2, b=4, c=8"), (1024, 512, 256)
    specs = specs_of_rank(mesh, 3)

    def table() -> object:
        clear_cache()
        return reshard_table(specs, shape, 2)

    row(f"all-pairs table, {len(specs)} specs on 2x4x8", f"{seconds(table):.3f} s", "0.3 s")

    random.seed(0)
    pairs = random.sample(list(itertools.permutations(specs, 2)), 1000)  # all different, so none is cached
    uneven = (1000, 500, 250)
    for what, size, cold in (
        ("one search on 2x4x8, 1,000 random pairs", shape, False),
        ("the same, nothing known of the mesh", shape, True),
        ("one search of uneven shards", uneven, False),
    ):
        times = search_times(pairs, size, cold)
        row(f"{what}: mean", f"{statistics.mean(times):.2f} ms", "1 ms")
        row("  99th percentile", f"{times[len(times) * 99 // 100]:.2f} ms", "1 ms")
        row("  worst", f"{times[-1]:.2f} ms", "1 ms")

    for source, target in pairs:
        reshard(source, target, shape, 2)

    def cached() -> None:
        for source, target in pairs:
            reshard(source, target, shape, 2)

    row("cached lookup", f"{seconds(cached) / len(pairs) * 1e6:.2f} us", "5 us")


if __name__ == "__main__":
    main()
