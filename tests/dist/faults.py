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

KIND, ODD_RANK = sys.argv[1], int(sys.argv[2])
ODD = int(os.environ["RANK"]) == ODD_RANK


def say_when() -> None:
    print(f"fault {time.time()}", flush=True)


def kill() -> None:
    say_when()
    os.kill(os.getpid(), signal.SIGKILL)


import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from programs import lowered  # noqa: E402

import shardwright as sw  # noqa: E402
import shardwright.torch as swt  # noqa: E402
from shardwright.frontends.torch import capture  # noqa: E402
from shardwright.ir.digest import program_digest  # noqa: E402
from shardwright.run.torch import CompiledRank, Facts, TorchEngine, inputs_digest, text_digest  # noqa: E402

TRAINING = ("lr", "batch", "order", "skip", "skip alone", "short", "data", "seed")


def program(x: Any, w: Any) -> Any:
    return torch.relu(x @ w).sum(0)


def other_program(x: Any, w: Any) -> Any:
    return torch.tanh(x @ w).sum(0)


def compiled(engine: TorchEngine, fn: Any, x: Any, w: Any) -> tuple[CompiledRank, list[Any]]:
    lines = lowered(capture(fn, x, w), str(engine.mesh), ("[_, x]", "[x, _]"))
    run = engine.compile(lines)
    return run, [engine.scatter(whole, lines.values[v].spec) for whole, v in zip((x, w), lines.inputs)]


def steps() -> None:
    """A program by hand."""
    engine = TorchEngine({"x": int(os.environ["WORLD_SIZE"])})
    x, w = torch.randn(4, 6), torch.randn(6, 4)
    dist.barrier()
    if KIND in ("program", "dtype", "shape", "input"):
        say_when()
    if KIND == "shape" and ODD:
        x = torch.randn(8, 6)
    if KIND == "dtype" and ODD:
        x, w = x.double(), w.double()
    step, inputs = compiled(engine, other_program if KIND == "program" and ODD else program, x, w)
    if KIND == "input":
        inputs = [tensor.double() if ODD else tensor for tensor in inputs]
    if KIND == "refused":  # the same mistake everywhere: an ordinary error, and the engine goes on
        for _ in range(2):
            try:
                step(inputs[:1])
            except sw.errors.GraphError:
                print("refused", flush=True)
        step(inputs)
        print("went on", flush=True)
        return
    for n in range(10**9 if KIND != "idle" else 4):
        step(inputs)
        if n == 3:
            print("running", flush=True)
        if n == 3 and ODD:
            inputs = act(inputs)
    kill() if ODD else time.sleep(900)  # nobody waits for anybody


def act(inputs: list[Any]) -> list[Any]:
    if KIND == "kill":
        threading.Timer(0.2, kill).start()  # somewhere in a step
    if KIND in ("raise", "sleep", "leave", "bad step", "stop", "stop between"):
        say_when()
    if KIND == "raise":
        raise ValueError("no more data")
    if KIND == "sleep":
        time.sleep(3600)
    if KIND == "leave":
        sys.exit(0)
    if KIND == "bad step":
        return inputs[:1]
    if KIND == "stop":
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    if KIND == "stop between":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)
    return inputs


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x))).square().mean()


def training() -> None:
    """A training step, which tells the other ranks what it trains with."""
    torch.manual_seed(5 if KIND == "seed" and ODD else 3)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(512, 6, generator=torch.Generator().manual_seed(2)))
    seed = 1 if KIND in ("order", "data") and ODD else 0
    loader = torch.utils.data.DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(seed))
    batches = [batch for (batch,) in loader]
    alone = KIND == "skip alone"  # no collective would notice
    if KIND == "seed":
        say_when()
    step = swt.train_step(
        model, optimizer=optimizer, batch=(batches[0],), mesh={"dp": dist.get_world_size()},
        specs={"x": "[_, _]" if alone else "[dp, _]"}, data="local" if KIND == "data" else "global",
        init="check" if KIND == "seed" else "rank0",
    )  # fmt: skip
    count = 8 if KIND in ("short", "skip alone") else 10**9
    for n in range(count):
        batch = batches[n % len(batches)]
        if n == 3:
            print("running", flush=True)
        if n == 3 and ODD:
            say_when()
            if KIND in ("lr", "short"):
                optimizer.param_groups[0]["lr"] = 0.2
            if KIND == "batch":
                batch = batch + 1e-3
            if KIND in ("skip", "skip alone"):
                continue
        step(batch)
        if KIND == "data" and n == 50:
            print("went on", flush=True)
            return
        if KIND != "short":
            time.sleep(0.01)


def kill_at_start() -> None:
    """When the others wait already."""
    attempt = dist.PrefixStore("/worker/attempt_0", dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"])))
    attempt.wait([f"shardwright/join/{1 - ODD_RANK}"])
    time.sleep(0.5)
    kill()


def main() -> None:
    torch.set_num_threads(1)
    if KIND == "kill at start" and ODD:
        kill_at_start()
    if "own group" in sys.argv:
        dist.init_process_group("gloo")
    else:
        if KIND == "start":
            say_when()
        TorchEngine()
    (training if KIND in TRAINING else steps)()
    if KIND not in ("short", "skip alone"):  # these are noticed at the end
        print("finished", flush=True)


if __name__ == "__main__":
    main()
