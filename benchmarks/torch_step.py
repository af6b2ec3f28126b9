"""What emitted programs cost beside the ops they call: ``python benchmarks/torch_step.py``

1. One rank, many small ops: the emitted program against the same operator calls made by hand, and against plain eager.
2. A tensor-parallel block on a fake process group (collectives return at once): the emitted program against DTensor
   with the same placements.  Only the time that a process spends in Python and dispatch is seen.
3. The same block on real processes, gloo: the emitted program against DTensor, under torchrun.

All figures of a row come from one run, in turns, so that a busy machine slows both.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import shardwright as sw
from shardwright.ir.program import Program
from shardwright.run.torch import TorchEngine, emit
from shardwright.spec.mesh import DeviceMesh

ROUNDS = 80
LAYERS = 8
PROCESSES = 2


def in_turns(*works: Callable[[], object], repeats: int = 25) -> list[float]:
    """Seconds of each, the best of many: first one, then the other, again and again."""
    best = [float("inf")] * len(works)
    for work in works:
        work()
    for _ in range(repeats):
        for i, work in enumerate(works):
            start = time.perf_counter()
            work()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


# -- one rank -------------------------------------------------------------------------------------------


def eager(x: Any, w: Any) -> Any:
    """Ops of several kinds, five a round."""
    for _ in range(ROUNDS):
        x = torch.tanh(x)
        x = x + 1.0
        x = x * w
        x = torch.relu(x)
        x = x @ w
    return x


def by_hand(x: Any, w: Any) -> Any:
    """The same calls that the emitted program makes."""
    aten = torch.ops.aten
    tanh, add, mul, relu, mm = (
        aten.tanh.default, aten.add.Tensor, aten.mul.Tensor, aten.relu.default, aten.mm.default,
    )  # fmt: skip
    for _ in range(ROUNDS):
        x = tanh(x)
        x = add(x, 1.0)
        x = mul(x, w)
        x = relu(x)
        x = mm(x, w)
    return x


def lowered(fn: Callable[..., Any], args: Sequence[Any], mesh: DeviceMesh, specs: Sequence[str]) -> Program:
    return sw.shard_map(fn, mesh, in_specs=tuple(spec or None for spec in specs)).program(*args)


def one_rank() -> tuple[float, float, float]:
    """Microseconds per op: emitted, by hand, eager."""
    x, w = torch.randn(8, 8), torch.randn(8, 8) / 8
    program = lowered(eager, (x, w), DeviceMesh("x=1"), ("", ""))
    forward = emit(program, 0).forward
    ops = len(program.instrs)
    assert ops == 5 * ROUNDS
    assert torch.equal(forward(x, w)[0], eager(x, w))
    emitted, hand, plain = in_turns(lambda: forward(x, w), lambda: by_hand(x, w), lambda: eager(x, w), repeats=60)
    return emitted / ops * 1e6, hand / ops * 1e6, plain / ops * 1e6


def one_step() -> float:
    """Microseconds that the engine adds to a step."""
    x = torch.randn(8, 8)
    mesh = DeviceMesh("x=1")
    program = lowered(torch.tanh, (x,), mesh, ("",))
    compiled = TorchEngine(mesh).compile(program)
    forward = compiled.module.forward

    def many(work: Callable[[], object]) -> Callable[[], object]:
        return lambda: [work() for _ in range(100)]

    run, bare = in_turns(many(lambda: compiled.run([x])), many(lambda: forward(x)))
    return (run - bare) / 100 * 1e6


# -- a tensor-parallel block ----------------------------------------------------------------------------


def block(x: Any, *weights: Any) -> Any:
    """Columns, then rows: one all_reduce a layer."""
    for i in range(0, len(weights), 2):
        x = x + torch.relu(x @ weights[i]) @ weights[i + 1]
    return x


def parts(width: int, layers: int) -> tuple[list[Any], list[str]]:
    torch.manual_seed(0)
    tensors = [torch.randn(8, width), *(torch.randn(width, width) / width for _ in range(2 * layers))]
    return tensors, ["[dp, _]", *["[_, tp]", "[tp, _]"] * layers]


def both_ways(torch_mesh: Any, width: int, layers: int) -> tuple[float, float, int]:
    """Seconds a step: emitted, DTensor; and collectives in it."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    tensors, specs = parts(width, layers)
    engine = TorchEngine(torch_mesh, check=False)
    program = lowered(block, tensors, engine.mesh, specs)
    compiled = engine.compile(program)
    locals_ = [engine.scatter(t, program.values[v].spec) for t, v in zip(tensors, program.inputs)]
    placed = {
        "[dp, _]": [Shard(0), Replicate()],
        "[_, tp]": [Replicate(), Shard(1)],
        "[tp, _]": [Replicate(), Shard(0)],
    }
    dtensors = [
        distribute_tensor(tensor, torch_mesh, placed[spec], src_data_rank=None) for tensor, spec in zip(tensors, specs)
    ]
    kept = placed["[dp, _]"]

    def with_dtensor() -> Any:
        """Where a sum is pending it is made at once, as in our program; left alone DTensor would scatter and gather."""
        x, *weights = dtensors
        with torch.no_grad():
            for i in range(0, len(weights), 2):
                x = x + (torch.relu(x @ weights[i]) @ weights[i + 1]).redistribute(torch_mesh, kept)
        return x

    with CommDebugMode() as counted:
        with_dtensor()
    assert counted.get_total_counts() == len(program.collectives)
    repeats = 25 if dist.get_backend() == "fake" else 60
    emitted, theirs = in_turns(lambda: compiled.run(locals_), with_dtensor, repeats=repeats)
    return emitted, theirs, len(program.collectives)


def on_a_fake_group(width: int) -> tuple[float, float, int]:
    from torch.testing._internal.distributed.fake_pg import FakeStore  # the only process group without processes

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        return both_ways(mesh, width, LAYERS)
    finally:
        dist.destroy_process_group()


def worker() -> None:
    """One of the real processes; the first one prints."""
    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, PROCESSES), mesh_dim_names=("dp", "tp"))
    for width in (32, 512):
        emitted, theirs, collectives = both_ways(mesh, width, 4)
        if dist.get_rank() == 0:
            print(f"row {width} {emitted} {theirs} {collectives}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def on_gloo() -> list[tuple[int, float, float, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(PROCESSES), "--master-addr", "127.0.0.1",
        "--master-port", port, __file__, "--worker",
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("row ")]
    return [(int(width), float(a), float(b), int(count)) for _, width, a, b, count in rows]


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if "--worker" in sys.argv:
        return worker()
    print(f"{'what':<62}{'measured':>34}{'goal':>14}")

    def row(what: str, measured: str, goal: str = "") -> None:
        print(f"{what:<62}{measured:>34}{goal:>14}")

    with torch.no_grad():
        rounds = [one_rank() for _ in range(7)]
        step = one_step()
    emitted, hand, plain = (statistics.median(figures) for figures in zip(*rounds))
    over_hand = statistics.median(figures[0] - figures[1] for figures in rounds)
    over_eager = statistics.median(figures[0] - figures[2] for figures in rounds)
    row("emitted over the same operator calls, per op", f"{over_hand:+.2f} us ({emitted:.2f} / {hand:.2f})", "0.5 us")
    row("emitted over plain eager, per op", f"{over_eager:+.2f} us ({emitted:.2f} / {plain:.2f})", "3 us")
    row("engine over the emitted program, per step", f"{step:+.1f} us")
    for width in (16, 256):
        ours, theirs, count = on_a_fake_group(width)
        what = f"DTensor over emitted, fake group of 8, width {width}, {count} collectives"
        row(what, f"{theirs / ours:.1f} x ({theirs * 1e3:.2f} / {ours * 1e3:.2f} ms)", "5 x" if width == 16 else "")
    for width, ours, theirs, count in on_gloo():
        what = f"DTensor over emitted, {PROCESSES} processes on gloo, width {width}, {count} collectives"
        row(what, f"{theirs / ours:.1f} x ({theirs * 1e3:.2f} / {ours * 1e3:.2f} ms)")
    return None


if __name__ == "__main__":
    main()
