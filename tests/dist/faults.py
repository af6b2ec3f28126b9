"""Every rank: steps of a small program, in which one rank does something wrong.

Arguments: the kind of fault, and the rank it happens on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from programs import lowered

from shardwright.frontends.torch import capture
from shardwright.run.torch import CompiledRank, TorchEngine


def say_when() -> None:
    print(f"fault {time.time()}", flush=True)


def program(x: Any, w: Any) -> Any:
    return torch.relu(x @ w).sum(0)


def other_program(x: Any, w: Any) -> Any:
    return torch.tanh(x @ w).sum(0)


def compiled(engine: TorchEngine, fn: Any, x: Any, w: Any) -> tuple[CompiledRank, list[Any]]:
    lines = lowered(capture(fn, x, w), str(engine.mesh), ("[_, x]", "[x, _]"))
    run = engine.compile(lines)
    return run, [engine.scatter(whole, lines.values[v].spec) for whole, v in zip((x, w), lines.inputs)]


def kill() -> None:
    say_when()
    os.kill(os.getpid(), signal.SIGKILL)


def main(kind: str, odd_rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    engine = TorchEngine(timeout=5) if kind == "sleep" else TorchEngine()
    engine = TorchEngine({"x": dist.get_world_size()}, timeout=engine.timeout)
    odd = engine.rank == odd_rank
    x, w = torch.randn(4, 6), torch.randn(6, 4)
    dist.barrier()
    if kind == "program":
        say_when()
        step, inputs = compiled(engine, other_program if odd else program, x, w)
    elif kind == "dtype":
        say_when()
        step, inputs = compiled(engine, program, *((x.double(), w.double()) if odd else (x, w)))
    else:
        step, inputs = compiled(engine, program, x, w)
    if kind == "input":
        say_when()
        inputs = [tensor.double() if odd else tensor for tensor in inputs]
    for n in range(4000 if kind != "idle" else 4):
        step(inputs)
        if odd and n == 3:
            if kind == "kill":
                threading.Timer(0.2, kill).start()  # somewhere in a step
            if kind == "raise":
                say_when()
                raise ValueError("no more data")
            if kind == "sleep":
                say_when()
                time.sleep(600)
            if kind == "leave":
                say_when()
                sys.exit(0)
            if kind == "bad step":
                say_when()
                inputs = inputs[:1]
    if kind == "idle":  # nobody waits for anybody
        if odd:
            kill()
        time.sleep(600)
    print("finished", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
