"""Overhead of the virtual mesh, and speed of tracing: ``python benchmarks/virtual.py``

The overhead is what the engine adds to each op on each device, against a plain loop that makes the same NumPy calls
on the same shards, in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import shardwright as sw
from shardwright import P
from shardwright.run import scatter

OPS = 200


def chain(x: Any, w: Any) -> Any:
    """Ops of several kinds, none of which communicates."""
    for _ in range(OPS // 4):
        x = np.tanh(x)
        x = x + 1
        x = x * w
        x = np.maximum(x, 0)
    return x


def plain_loop(shards: list[np.ndarray], weights: list[np.ndarray]) -> list[np.ndarray]:
    """What the engine does, by hand: op after op, device after device."""
    one, zero = np.float64(1), np.float64(0)
    for _ in range(OPS // 4):
        shards = [np.tanh(x) for x in shards]
        shards = [np.add(x, one) for x in shards]
        shards = [np.multiply(x, w) for x, w in zip(shards, weights)]
        shards = [np.maximum(x, zero) for x in shards]
    return shards


def best(work: Callable[[], object], repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def overhead(devices: int) -> tuple[float, float]:
    """Microseconds per op and device: the engine's, and the plain loop's."""
    x, w = np.ones((devices * 4, 8)), np.ones(8)
    mapped = sw.shard_map(chain, {"x": devices}, in_specs=(P("x", None), P()))
    plan = mapped.plan(x, w)
    inputs = [scatter(a, spec) for a, spec in zip((x, w), plan.complete.inputs)]
    ops = sum(instr.op != "full" for instr in plan.program.instrs)
    engine = best(lambda: plan.runner.compiled.run(inputs))
    loop = best(lambda: plain_loop(list(inputs[0]), list(inputs[1])))
    return engine / ops / devices * 1e6, loop / OPS / devices * 1e6


def tracing() -> float:
    """Seconds to trace 1,000 ops."""

    def f(x: Any) -> Any:
        for _ in range(250):
            x = np.tanh(x @ x.T)[:, :8] + 1
        return x

    x = np.ones((8, 8))
    nodes = len(sw.trace(f, x).graph.nodes)
    return best(lambda: sw.trace(f, x), 3) / nodes * 1000


def main() -> None:
    print(f"{'what':<60}{'measured':>22}{'goal':>10}")
    for devices in (2, 8, 64):
        pairs = [overhead(devices) for _ in range(3)]
        added = statistics.median(engine - loop for engine, loop in pairs)
        loop = statistics.median(loop for _, loop in pairs)
        row = f"{added:.2f} us (loop {loop:.2f})"
        print(f"{f'engine over a plain loop, per op and device, {devices} devices':<60}{row:>22}{'10 us':>10}")
    print(f"{'tracing 1,000 ops':<60}{f'{tracing():.2f} s':>22}{'1 s':>10}")


if __name__ == "__main__":
    main()
