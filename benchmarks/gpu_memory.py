"""Peak memory of one rank against its prediction: ``PYTHONPATH=src python benchmarks/gpu_memory.py``

A Llama-3-8B-like training step (fewer layers), split over 8 devices by a recipe; rank 0's program runs alone on a GPU,
collectives replaced by local ops whose results have the same shapes and memory of their own.  What PyTorch's allocator
held at most is compared with the profile of the Program: once with the state handed over, as a `ShardedStep` does, once
with a caller that keeps it.  Without a GPU (``--tiny``) storages are counted instead, which sees no memory that
operators take inside.

Ends with 1 if a prediction is under 95% or over 102% of what was held.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from gpu_block import Block
from torch import nn

import shardwright as sw
from shardwright.cost.profile import HELD, RESIDENT, alive_at, memory_profile
from shardwright.frontends.torch import torch_dtype
from shardwright.run.torch import emit
from shardwright.run.torch.held import Held

MIB = 2**20
LOW, HIGH = 0.95, 1.02


class Model(nn.Module):
    def __init__(self, layers, vocabulary=128256, width=4096, heads=32, served=8, inner=14336):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, served, inner) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


class Counter:
    """What tensors hold: a GPU's own counter, or storages."""

    def __init__(self, device):
        self.device = device
        self.on_gpu = device == "cuda"
        if self.on_gpu:
            torch.zeros(8, 8, device=device) @ torch.zeros(8, 8, device=device)  # its library takes a workspace
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self.before = torch.cuda.memory_allocated()

    def __enter__(self):
        self.held = None if self.on_gpu else Held(self.inputs).__enter__()
        self.forget()
        return self

    def __exit__(self, *error):
        if self.held is not None:
            self.held.__exit__(*error)

    def zeros(self, program):
        self.inputs = []
        for value in program.inputs:
            local = program.values[value]
            shape, dtype = local.local_shape(0), torch_dtype(local.type.dtype)
            self.inputs.append(torch.zeros(shape, dtype=dtype, device=self.device))
        given, updated = self.inputs, {i for i, _ in program.updates}
        return given, [x for i, x in enumerate(given) if i not in updated]

    def forget(self):
        if self.held is None:
            torch.cuda.reset_peak_memory_stats()
        else:
            self.held.peak = self.held.bytes

    @property
    def peak(self):
        return self.held.peak if self.held is not None else torch.cuda.max_memory_allocated() - self.before


def measured(program, device, donate):
    """What rank 0 held at most."""
    run, counter = emit(program, 0, device=device, stand_ins=True, taking=True), Counter(device)
    given, kept = counter.zeros(program)
    if not donate:
        kept = given[:]
    with counter, torch.no_grad():
        made = run(given)
        peak = counter.peak
    del made, kept
    return peak


def by_instruction(program, device):
    """What rank 0 held while each instruction ran, with the state handed over."""
    module, counter, found, env = emit(program, 0, device=device, stand_ins=True), Counter(device), {}, {}
    given, kept = counter.zeros(program)
    last = {used: node for node in module.graph.nodes for used in node.all_input_nodes}
    given.reverse()
    with counter, torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = given.pop()
            elif node.op == "get_attr":
                env[node] = getattr(module, node.target)
            elif node.op == "call_function":
                counter.forget()
                args, kwargs = (torch.fx.node.map_arg(part, env.__getitem__) for part in (node.args, node.kwargs))
                env[node] = node.target(*args, **kwargs)
                del args, kwargs
                at = node.meta.get("instr", -1)
                found[at] = max(found.get(at, 0), counter.peak)
                for used in {node, *node.all_input_nodes}:
                    if last.get(used, node) is node:
                        del env[used]
    del kept
    return found


def show_where(program, device):
    expected = alive_at(program, RESIDENT)
    found = by_instruction(program, device)
    top = max(found.values())
    high = sorted(found, key=lambda n: -found[n])[:8]
    most = sorted((n for n in found if n >= 0 and found[n] > 0.9 * top), key=lambda n: -abs(found[n] - expected[n]))[:8]
    for text, order in (("most held", high), ("farthest from it, where much is held", most)):
        print(f"  {text}:")
        for n in order:
            if n >= 0:
                made = ", ".join(str(program.values[value]) for value in program.instrs[n].results)
                figures = f"held {found[n] / MIB:.2f}, predicted {expected[n] / MIB:.2f}"
                print(f"    {n} {program.instrs[n].op} -> {made}: {figures}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--recipes", nargs="*", default=["dp", "zero1", "zero3"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model, for machines without a GPU")
    parser.add_argument("--where", action="store_true", help="also the instructions at which most is held")
    options = parser.parse_args()
    sizes = (2, 512, 64, 8, 8, 128) if options.tiny else (options.layers,)
    batch, tokens = (8, 32) if options.tiny else (options.batch, options.tokens)
    with torch.device("meta"):
        model = Model(*sizes).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.empty(batch, tokens, dtype=torch.long, device="meta")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, storages counted"
    print(f"{name}, torch {torch.__version__}; {sizes[0]} layers, {batch} x {tokens} tokens, one rank of 8")
    print("| recipe | state | held at most, MiB | predicted | predicted / held |\n|---|---|---|---|---|")
    wrong = False
    for recipe in options.recipes:
        start = time.perf_counter()
        program = sw.plan(
            model, mesh="d=8", optimizer=optimizer, loss=lambda out: out, recipe=recipe, ids=ids, labels=ids,
            hardware="h200",
        ).program  # fmt: skip
        for rules, text in ((RESIDENT, "handed over"), (HELD, "kept")):
            predicted, held = memory_profile(program, rules).peak, measured(program, options.device, rules.donate)
            wrong |= not LOW <= predicted / held <= HIGH
            figures = f"{held / MIB:.2f} | {predicted / MIB:.2f} | {predicted / held:.4f}"
            print(f"| {recipe} | {text} | {figures} |", flush=True)
        if options.where:
            print(f"  {len(program.instrs)} instructions, {time.perf_counter() - start:.1f} s")
            show_where(program, options.device)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
