"""Whether communication hides behind compute as the simulated schedule says: stand-ins that take a known time.

    python benchmarks/overlap.py                       # on this machine's CPU
    python benchmarks/overlap.py --device cuda         # on a GPU
    python benchmarks/overlap.py --device cuda --width 4096 --tokens 2048 --batch 8

One rank of a whole AdamW step of a Llama-like model, zero3, in its Program's order.  In place of each collective a
local op makes the same shapes, and the link is taken for a known time: on a GPU by a kernel on a stream of its
own that waits for the device's timer, elsewhere by a clock.  Five times are tried, from none to twice the compute.
`simulate` replays the same order with those times and the compute measured in the very same run, op by op; the columns
stand for the median of that run's `measured / simulated`.  ``in turn`` is what the step would take if nothing
overlapped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from gpu_running import inputs_of

import shardwright as sw
from shardwright.cost import RESIDENT, Hardware, program_memory, simulate
from shardwright.cost.links import Link
from shardwright.cost.program import instr_costs
from shardwright.cost.schedule import start_time
from shardwright.ir.order import RUN, START
from shardwright.ir.program import Event, Program
from shardwright.lower import ordered
from shardwright.run.torch import emit
from shardwright.run.torch.exchange import waits_for

PS = 10**12
FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Communication as a share of compute."""


# -- clocks: compute, and a link that is taken -----------------------------------------------------------------


class HostClock:
    """Compute runs at once, in this thread; a link is a moment until which it is taken.

    ``wall``: who waits sleeps.  Else seconds are those of the CPU, and who waits puts the clock forward: what other
    programs on the machine do then changes little.
    """

    def __init__(self, wall: bool = False, now: Callable[[], float] | None = None) -> None:
        self.wall, self.free, self.skipped = wall, 0.0, 0.0
        self.now = now or (time.perf_counter if wall else time.thread_time)

    def mark(self) -> float:
        return self.now() + self.skipped

    def begin(self, seconds: float) -> float:
        self.free = max(self.mark(), self.free) + seconds
        return self.free

    def wait(self, until: float) -> None:
        left = max(until - self.mark(), 0.0)
        if self.wall:
            time.sleep(left)
        else:
            self.skipped += left

    def between(self, one: float, other: float) -> float:
        return other - one

    def settle(self) -> None:
        self.free = 0.0


TAKE = """
extern "C" __global__ void take(int ns) {
    long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
"""
"""A kernel that takes a time by the device's timer, whose pace does not change while it computes as a clock's does."""


class GpuClock:
    """Compute goes to the current stream; a link is a stream on which a kernel takes its time."""

    def __init__(self) -> None:
        self.link = torch.cuda.Stream()
        self.take = torch.cuda._compile_kernel(TAKE, "take")

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self, seconds: float) -> Any:
        here, done = self.mark(), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.link):
            self.link.wait_event(here)
            if seconds:
                self.take(args=[round(seconds * 1e9)])
            done.record()
        return done

    def wait(self, until: Any) -> None:
        torch.cuda.current_stream().wait_event(until)

    def between(self, one: Any, other: Any) -> float:
        return float(one.elapsed_time(other)) / 1e3

    def settle(self) -> None:
        torch.cuda.synchronize()


# -- a rank, and the links beside it ---------------------------------------------------------------------------


@dataclass
class Rank:
    """Rank 0 of a Program, call by call, with links that are taken as long as ``hardware`` says."""

    program: Program
    hardware: Hardware
    clock: Any
    device: str = "cpu"
    visit: Callable[[Any, Callable[[], Any]], Any] = field(default=lambda node, call: call())

    def __post_init__(self) -> None:
        self.starts = [event for event in self.program.order if event.kind == START]
        self.seconds = [start_time(self.program, event, self.hardware) / PS for event in self.starts]
        self.module = emit(self.program, 0, device=self.device, stand_ins=True, taking=True)
        nodes = list(self.module.graph.nodes)
        self.last = {used: node for node in nodes for used in node.all_input_nodes}
        waits = [node for node in nodes if waits_for(node) is not None]
        place = {node: at for at, node in enumerate(nodes)}
        made = sorted({waits_for(node) for node in waits}, key=place.__getitem__)
        assert len(made) == len(waits) == len(self.starts)
        self.begins = {node: k for k, node in enumerate(made)}
        self.waits = {node: self.begins[waits_for(node)] for node in waits}

    def run(self, inputs: list[Any]) -> tuple[float, Program, list[int]]:
        """A step: its seconds, and what it did as a Program of which the simulator is told the times."""
        clock, env, marks = self.clock, dict[Any, Any](), list[tuple[Any, Any]]()
        until: dict[int, Any] = {}
        events: list[Event] = []
        inputs.reverse()
        clock.settle()
        start = since = clock.mark()

        def computed() -> None:
            """What ran since then is one piece of compute."""
            nonlocal since
            now = clock.mark()
            events.append(Event(RUN, (len(self.program.instrs) + len(marks),)))
            marks.append((since, now))
            since = now

        with torch.no_grad():
            for node in self.module.graph.nodes:
                if node.op == "placeholder":
                    env[node] = inputs.pop()
                elif node.op == "get_attr":
                    env[node] = getattr(self.module, node.target)
                elif node.op == "call_function":
                    if node in self.waits:
                        k = self.waits[node]
                        computed()
                        clock.wait(until[k])
                        events.append(Event("wait", self.starts[k].members))
                        since = clock.mark()
                    args, kwargs = (torch.fx.node.map_arg(part, env.__getitem__) for part in (node.args, node.kwargs))
                    env[node] = self.visit(
                        node, lambda node=node, args=args, kwargs=kwargs: node.target(*args, **kwargs)
                    )
                    del args, kwargs
                    if node in self.begins:
                        k = self.begins[node]
                        computed()
                        events.append(self.starts[k])
                        until[k] = clock.begin(self.seconds[k])
                    for used in {node, *node.all_input_nodes}:
                        if self.last.get(used, node) is node:
                            env.pop(used, None)
        computed()
        end = marks[-1][1]
        clock.settle()
        pieces = [round(clock.between(*pair) * PS) for pair in marks]
        times = [0] * len(self.program.instrs) + pieces
        instrs = (*self.program.instrs, *([self.program.instrs[0]] * len(pieces)))
        return clock.between(start, end), replace(self.program, instrs=instrs, order=tuple(events)), times


def simulated(did: Program, times: Sequence[int], hardware: Hardware) -> tuple[float, float, float]:
    """Seconds that the simulator says: of the step, of compute, of communication."""
    found = simulate(did, hardware, times=times)
    return found.total / PS, found.compute / PS, found.communication / PS


def linked(hardware: Hardware, axis: str, bytes_a_second: float) -> Hardware:
    """The same machine with a link of which only the rate counts: who sleeps slows nobody down."""
    return replace(hardware, contention=0).with_links({axis: Link(0.0, max(1, round(bytes_a_second)))})


# -- the benchmark ---------------------------------------------------------------------------------------------


def plan_of(told: argparse.Namespace) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=told.words, hidden_size=told.width, intermediate_size=told.width * 11 // 4, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        model = model.to(torch.bfloat16) if told.device == "cuda" else model
        ids = torch.zeros(told.batch, told.tokens, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = {"input_ids": ids, "labels": ids}
    return sw.plan(
        model, mesh=f"dp={told.ranks}", optimizer=optimizer, loss=lambda out: out.loss, kwargs=batch, recipe="zero3",
        hardware="h200" if told.device == "cuda" else "virtual", verify="off",
    )  # fmt: skip


def measure(plan: Any, factor: float, compute: float, told: argparse.Namespace) -> list[str]:
    """One row: ``factor`` times the compute is what communication takes."""
    clock = GpuClock() if told.device == "cuda" else HostClock(told.wall)
    rate = plan.program.bytes / (factor * compute) if factor else 1e18
    hardware = linked(plan.hardware, "dp", rate).on(plan.program.mesh)
    times = tuple(round(t * compute * PS / plan.cost.compute) for t in plan_times(plan))
    program = ordered(replace(plan.program, order=()), hardware, plan.graph, times)
    if not program.order:
        program = plan.program  # nothing to hide: any order will do
    rank = Rank(program, hardware, clock, told.device)
    rows = []
    for n in range(told.steps + 2):
        seconds, did, pieces = rank.run(inputs_of(plan, 0, told.words, told.device))
        if n >= 2:
            rows.append((seconds, *simulated(did, pieces, hardware)))
    ratio = statistics.median(row[0] / row[1] for row in rows)
    took, said, worked, sent = (statistics.median(column) * 1e3 for column in zip(*rows))
    return [
        f"{factor:.2f}", f"{len(rank.starts)}", f"{worked:.2f}", f"{sent:.2f}", f"{worked + sent:.2f}", f"{said:.2f}",
        f"{took:.2f}", f"{ratio:.3f}", f"{program_memory(program, RESIDENT) / 2**20:.0f}",
    ]  # fmt: skip


def plan_times(plan: Any) -> tuple[int, ...]:
    """Picoseconds of each instruction, as the plan has them."""
    return instr_costs(plan.program, plan.hardware.on(plan.program.mesh), plan.graph)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--words", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--wall", action="store_true", help="on a CPU: whoever waits sleeps; wants a quiet machine")
    told = parser.parse_args(argv)
    on_gpu = told.device == "cuda"
    told.width, told.tokens = told.width or (4096 if on_gpu else 256), told.tokens or (2048 if on_gpu else 128)
    told.batch = told.batch or (8 if on_gpu else 4)
    torch.set_num_threads(1)
    plan = plan_of(told)
    clock = GpuClock() if on_gpu else HostClock(told.wall)
    free = Rank(plan.program, linked(plan.hardware, "dp", 1e18).on(plan.program.mesh), clock, told.device)
    alone = [free.run(inputs_of(plan, 0, told.words, told.device))[0] for _ in range(told.steps)]
    compute = statistics.median(alone[2:] or alone)
    columns = ("communication / compute", "starts", "compute, ms", "communication, ms", "in turn, ms", "simulated, ms",
               "measured, ms", "measured / simulated", "peak, MiB")  # fmt: skip
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for factor in FACTORS:
        print("| " + " | ".join(measure(plan, factor, compute, told)) + " |", flush=True)


if __name__ == "__main__":
    main()
