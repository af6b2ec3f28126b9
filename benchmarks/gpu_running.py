"""Rank 0 of a Program alone on a device, with stand-ins for collectives: its inputs, its steps, what it holds where."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from shardwright.cost import RESIDENT
from shardwright.cost.profile import alive_at
from shardwright.frontends.base import DATA, OPTIMIZER, OPTION
from shardwright.frontends.torch import torch_dtype
from shardwright.ir.program import Program
from shardwright.run.torch import emit

MIB = 2**20


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Running:
    """A Program's rank 0 with its inputs, step after step: what it updates is handed over and taken back."""

    def __init__(self, program: Program, inputs: list[Any], call: Callable[..., Any], taking: bool) -> None:
        self.program, self.call, self.taking = program, call, taking
        self.updates = dict(program.updates)
        self.inputs: list[Any] = inputs

    def __call__(self) -> Any:
        given, self.inputs = self.inputs, []
        kept = [None if i in self.updates else x for i, x in enumerate(given)]
        with torch.no_grad():
            outputs = self.call(given) if self.taking else self.call(*given)
        self.inputs = [outputs[self.updates[i]] if i in self.updates else x for i, x in enumerate(kept)]
        return outputs[0]


def inputs_of(plan: Any, position: int, words: int, device: str) -> list[Any]:
    """One rank's inputs as training has them: weights and data random, moments zero."""
    program, found = plan.program, []
    generator = torch.Generator(device=device).manual_seed(0)
    for value, about in zip(program.inputs, plan.source.inputs_are, strict=True):
        local = program.values[value]
        shape, dtype = local.local_shape(position), torch_dtype(local.type.dtype)
        if not dtype.is_floating_point:
            # Of data only: what a program looks up by numbers of its own may be shorter.
            most = words if about.role == DATA else 1
            made = torch.randint(0, most, shape, device=device, generator=generator).to(dtype)
        elif about.role == OPTIMIZER or not shape:
            # Options stay on the host, as an engine has them; counts of steps are state.
            where = "cpu" if about.role == OPTION else device
            made = torch.full(shape, 0.0 if shape else 1e-3, dtype=dtype, device=where)
        else:
            made = (torch.randn(shape, device=device, generator=generator) * 0.02).to(dtype)
        found.append(made)
    return found


def interpret(module: Any, inputs: list[Any], visit: Callable[[Any, Callable[[], Any]], Any]) -> None:
    """Run a module call by call; ``visit(node, call)`` makes the call.  Values go after their last use."""
    env: dict[Any, Any] = {}
    last = {used: node for node in module.graph.nodes for used in node.all_input_nodes}
    inputs.reverse()
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = inputs.pop()
            elif node.op == "get_attr":
                env[node] = getattr(module, node.target)
            elif node.op == "call_function":
                args, kwargs = (torch.fx.node.map_arg(part, env.__getitem__) for part in (node.args, node.kwargs))
                env[node] = visit(node, partial(node.target, *args, **kwargs))
                del args, kwargs
                for used in {node, *node.all_input_nodes}:
                    if last.get(used, node) is node:
                        del env[used]


def without_copies(module: Any, inputs: list[Any], device: str) -> Any:
    """Collectives' results are memory that nobody writes: what is left to run is a rank's own compute.

    Whole numbers, which look others up, are copied as before.
    """
    fresh: dict[Any, torch.Tensor] = {}

    def visit(node: Any, call: Any) -> Any:
        made = call()
        if "collective" in node.meta and isinstance(made, torch.Tensor) and made.is_floating_point():
            given = (x for x in _tensors([*call.args, *call.keywords.values()]))
            if all(x.untyped_storage().data_ptr() != made.untyped_storage().data_ptr() for x in given):
                fresh[node] = made.to("meta")
        return made

    interpret(module, inputs, visit)
    empty = torch.ops.aten.empty_strided.default
    for node, made in fresh.items():
        with module.graph.inserting_before(node):
            layout = list(made.shape), list(made.stride())
            put = module.graph.call_function(empty, layout, {"dtype": made.dtype, "device": torch.device(device)})
        put.meta = node.meta
        node.replace_all_uses_with(put)
        module.graph.erase_node(node)
    module.recompile()
    return module


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _tensors(part)


def gathers_time(module: Any, inputs: list[Any], device: str) -> float:
    """Milliseconds of the ops that stand for gathers, each kind of call measured by itself: what a compiler leaves of
    stand-ins, as copies are nothing to it.  (Of a step `without_copies` it would leave nothing at all.)"""
    known: dict[Any, float] = {}
    total = 0.0

    def measured(call: Callable[[], Any]) -> float:
        call()
        synchronize(device)
        start = time.perf_counter()
        for _ in range(10):
            call()
        synchronize(device)
        return (time.perf_counter() - start) * 100

    def visit(node: Any, call: Any) -> Any:
        nonlocal total
        if "collective" in node.meta and node.target is torch.ops.aten.cat.default:
            key = (node.target, *(_form(x) for x in (*call.args, *call.keywords.values())))
            if key not in known:
                known[key] = measured(call)
            total += known[key]
        return call()

    interpret(module, inputs, visit)
    return total


def show_where(program: Program, module: Any, inputs: list[Any]) -> None:
    """The instructions of a rank on a GPU at which most is held, beside what was predicted there."""
    predicted, held = alive_at(program, RESIDENT), dict[int, int]()
    kept = [x for i, x in enumerate(inputs) if i not in program.donated]
    before = torch.cuda.memory_allocated() - sum(x.untyped_storage().nbytes() for x in inputs)

    def visit(node: Any, call: Any) -> Any:
        torch.cuda.reset_peak_memory_stats()
        made, at = call(), node.meta.get("instr", -1)
        held[at] = max(held.get(at, 0), torch.cuda.max_memory_allocated() - before)
        return made

    interpret(module, inputs, visit)
    del kept
    most = sorted((n for n in held if n >= 0), key=lambda n: -held[n])[:8]
    high = [n for n in held if n >= 0 and held[n] > 0.9 * held[most[0]]]
    far = sorted(high, key=lambda n: -abs(held[n] - predicted[n]))[:8]
    for text, order in (("most held", most), ("farthest from it, where much is held", far)):
        print(f"  {text}:")
        for n in order:
            made = ", ".join(str(program.values[value]) for value in program.instrs[n].results)
            figures = f"held {held[n] / MIB:.2f} MiB, predicted {predicted[n] / MIB:.2f}"
            print(f"    {n} {program.instrs[n].op} -> {made}: {figures}")


def difference(program: Program, inputs: list[Any], device: str) -> float:
    """The largest difference between the outputs here and on the CPU, of their norm; bf16 keeps 8 bits."""
    worst = 0.0
    with torch.no_grad():
        here = emit(program, 0, device=device, stand_ins=True)(*inputs)
        there = emit(program, 0, device="cpu", stand_ins=True)(*(x.cpu() for x in inputs))
    for one, other in zip(here, there, strict=True):
        if other.numel() and other.is_floating_point():
            one, other = one.double().cpu(), other.double()
            worst = max(worst, float((one - other).norm() / other.norm().clamp_min(1e-6)))
    return worst


def _form(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), x.dtype, x.stride()
    return tuple(_form(part) for part in x) if isinstance(x, list | tuple) else repr(x)
