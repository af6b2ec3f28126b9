"""Where the default discounts for overlap come from: typical training steps, simulated with and without overlap.

    python tools/overlap_defaults.py

Steps of a Llama-3-8B-like model (32 layers, bf16), data parallel (gradients reduced) and fully sharded (weights
gathered in both passes, gradients scattered), for several batch sizes on one node and on four.  For each role the share
of its time that shows in the step is printed, then its mean: that is `machine.OVERLAPPED`, rounded up to 5 percent.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from shardwright import DeviceMesh
from shardwright.cost import Hardware, communication_cost, hardware_of
from shardwright.cost.compute import op_time
from shardwright.cost.schedule import COMMUNICATION, COMPUTE, Task, schedule

LAYERS = 32
SHAPES = [(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)]
"""Weights of a layer: qkv, output, gate and up, down."""
CASES = [("h100", "d=8"), ("h200", "d=8"), ("a100", "d=8"), ("h100x4", "d=32"), ("b200x4", "d=32")]
TOKENS = (2048, 4096, 8192, 16384)
"""On each device."""


def product(tokens: int, shape: tuple[int, int], hardware: Hardware) -> int:
    k, n = shape
    return op_time("matmul", 2 * tokens * k * n, [2 * tokens * k, 2 * k * n], [2 * tokens * n], "bf16", hardware)


def step(tokens: int, mesh: DeviceMesh, hardware: Hardware, sharded: bool, free: str = "") -> Iterator[Task]:
    """Tasks of a step in program order; collectives of the role ``free`` cost nothing."""
    numbers = iter(range(10**6))
    ways = mesh.size

    def collective(role: str, kind: str, put_in: int, value: int) -> Task:
        time = 0 if role == free else communication_cost(kind, mesh.axes, put_in, hardware)
        return Task(COMMUNICATION, time, (value,), (next(numbers),))

    weights = [(shape, next(numbers)) for _ in range(LAYERS) for shape in SHAPES]
    state = next(numbers)

    gradients = []
    for backward in (False, True):
        for shape, held in reversed(weights) if backward else weights:
            size = 2 * shape[0] * shape[1]
            reads = held
            if sharded:
                gather = collective("weight", "all_gather", size // ways, held)
                yield gather
                reads = gather.makes[0]
            for gradient in (False, True)[: 1 + backward]:
                made = next(numbers)
                yield Task(COMPUTE, product(tokens, shape, hardware), (state, reads), (made,))
                if gradient:
                    reduce = collective("gradient", "reduce_scatter" if sharded else "all_reduce", size, made)
                    yield reduce
                    gradients.append((size // (ways if sharded else 1), reduce.makes[0]))
                else:
                    state = made
    for size, gradient in gradients:
        yield Task(COMPUTE, op_time("pointwise", 0, [7 * size], [5 * size], "f32", hardware), (gradient,), ())


def main() -> None:
    shares: dict[str, list[float]] = {"weight": [], "gradient": []}
    for name, axes in CASES:
        mesh = DeviceMesh(axes)
        hardware = hardware_of(name).on(mesh)
        for tokens in TOKENS:
            for sharded in (False, True):
                whole = schedule([*step(tokens, mesh, hardware, sharded)])
                for role in ("weight", "gradient") if sharded else ("gradient",):
                    without = schedule([*step(tokens, mesh, hardware, sharded, free=role)])
                    share = (whole.total - without.total) / (whole.communication - without.communication)
                    shares[role].append(share)
                    kind = "sharded" if sharded else "replicated"
                    print(f"{name:7} {tokens:6} tokens  {kind:10} {role:8} shows {share:6.1%}")
    for role, found in shares.items():
        print(f"{role}: {mean(found):.1%} of its time shows")


if __name__ == "__main__":
    main()
