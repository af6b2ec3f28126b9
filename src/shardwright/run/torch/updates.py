"""Optimizer steps as a device runs them: the ops of many parameters as one call of a fused kernel, in place.

Fused kernels take what is a tensor in the program (betas, decay, eps) as plain numbers: those are read on the host,
where an engine keeps options, so nobody waits for the device.  They also take memory as it comes: a parameter, its
gradient and its state must have their dims in one order, which is looked at for each of them; one that does not is
brought into line.

To extend: an op of `frontends.torch.steps.updates` gets a function in `KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...frontends.torch.steps.updates import ADAM, SGD, STATE
from ...ir.order import events_of
from ...ir.program import Instr, Program
from ...rules.registry import parts

aten = torch.ops.aten
_fx: Any = fx.node  # untyped in part
Tensors = list[Any]
DEVICES = ("cpu", "cuda")
"""Where PyTorch has fused kernels."""
NUMBERS: Mapping[str, tuple[int, ...]] = {ADAM: (6, 7, 8, 9, 10), SGD: (3, 4, 5, 6)}
"""Operands that are options, the same for all parameters of a call; ``step``, a count, may differ."""


def _aligned(lists: Sequence[Tensors], gradients: int = 1) -> list[tuple[Any, Any]]:
    """Bring parameters, gradients and state into line, in these lists; pairs to copy back, from and to."""
    back: list[tuple[Any, Any]] = []
    for i, tensors in enumerate(zip(*lists)):
        if all(map(torch.Tensor.is_contiguous, tensors)):
            continue
        state = [tensor for k, tensor in enumerate(tensors) if k != gradients]
        first = state[0].stride()
        if _is_dense(state[0]) and all(tensor.stride() == first for tensor in state):
            gradient = tensors[gradients]
            if gradient.stride() != first:
                lists[gradients][i] = torch.empty_like(state[0]).copy_(gradient)
            continue
        for k, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                lists[k][i] = tensor.contiguous()
                if k != gradients:
                    back.append((lists[k][i], tensor))
    return back


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill a piece of memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _finish(back: Sequence[tuple[Any, Any]]) -> None:
    for source, target in back:
        target.copy_(source)


def fused_adam(
    parameters: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, largest: Tensors, steps: Tensors,
    lr: Any, beta1: Any, beta2: Any, eps: Any, weight_decay: Any, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    state = [largest] if largest else []
    back = _aligned([parameters, gradients, means, squares, *state])
    kernel = aten._fused_adamw_ if decoupled else aten._fused_adam_
    rate, lr = (kernel.default, lr.item()) if lr.device.type == "cpu" else (kernel.tensor_lr, lr.float())
    if parameters[0].device.type != "cpu":  # there it is any number
        single = {id(step): step.to(parameters[0].device, torch.float32) for step in set(steps)}
        steps = [single[id(step)] for step in steps]
    rate(
        parameters, gradients, means, squares, largest, steps, lr=lr,
        beta1=beta1.item(), beta2=beta2.item(), weight_decay=0.0 if weight_decay is None else weight_decay.item(),
        eps=eps.item(), amsgrad=bool(largest), maximize=maximize,
    )  # fmt: skip
    _finish(back)


def fused_sgd(
    parameters: Tensors, gradients: Tensors, moving: Tensors, lr: Any, momentum: Any, dampening: Any, weight_decay: Any,
    nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    back = _aligned([parameters, gradients, *([moving] if moving else [])])
    kernel = aten._fused_sgd_
    rate, lr = (kernel.default, lr.item()) if lr.device.type == "cpu" else (kernel.tensor_lr, lr.float())
    numbers = (0.0 if number is None else number.item() for number in (weight_decay, momentum, dampening))
    decay, share, damp = numbers
    rate(
        parameters, gradients, moving, weight_decay=decay, momentum=share, lr=lr, dampening=damp, nesterov=nesterov,
        maximize=maximize, is_first_step=False,
    )  # fmt: skip
    _finish(back)


KERNELS: Mapping[str, Callable[..., None]] = {ADAM: fused_adam, SGD: fused_sgd}
for _kernel in KERNELS.values():
    _fx.has_side_effect(_kernel)


def arguments(op: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
    """What the kernel takes for these calls, each the operands of one parameter: lists of tensors, then numbers."""
    first, shared = calls[0], NUMBERS[op]
    lists = (i for i in range(len(first)) if i not in shared)
    of_all = [[] if first[i] is None else [operands[i] for operands in calls] for i in lists]
    return [*of_all, *(first[i] for i in shared)]


def host_numbers(program: Program) -> set[int]:
    """Values that kernels take as plain numbers."""
    found = set()
    for instr in program.instrs:
        for i in NUMBERS.get(instr.op, ()):
            operand = instr.operands[i]
            if isinstance(operand, int):
                found.add(operand)
    return found


def kind_of(instr: Instr, dtype: str) -> tuple[Any, ...]:
    """Equal for ops that one call of a kernel can do."""
    shared = tuple(instr.operands[i] for i in NUMBERS[instr.op])
    absent = tuple(operand is None for operand in instr.operands)
    return instr.op, dtype, instr.attrs, shared, absent


class Storages:
    """Which values share memory, as far as it is known, while events are walked."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.given = {value for i, value in enumerate(program.inputs) if i not in program.donated}
        self.of: dict[int, set[int]] = {}
        events = events_of(program)
        self.last = {v: at for at, (_, ns) in enumerate(events) for n in ns for v in program.instrs[n].inputs}
        """By event; what a collective sends is read until it was waited for."""
        self.last.update(dict.fromkeys(program.outputs, len(events)))

    def at(self, value: int) -> set[int]:
        return self.of.setdefault(value, {value})

    def free(self, value: int, at: int) -> bool:
        """Whether an event may write over a value: nobody reads it, or what it shares memory with, later."""
        return not any(other in self.given or self.last.get(other, -1) > at for other in self.at(value))

    def share(self, left: int, right: int) -> None:
        joined = self.at(left) | self.at(right)
        self.of.update(dict.fromkeys(joined, joined))


def state_of(instr: Instr) -> list[int]:
    """The operands that become the results, in order."""
    found = [instr.operands[i] for i in STATE[instr.op]]
    return [value for value in found if isinstance(value, int)]


class Updates:
    """The optimizer steps of a program while it is emitted: those in a row are one call for each kind of them.

    ``donated`` says that state may be written over; with ``fused`` kernels do it, else plain operators.
    """

    def __init__(self, emitter: Any, donated: bool, fused: bool) -> None:
        self.emitter, self.donated, self.fused = emitter, donated, fused
        self.storages = Storages(emitter.program)
        self.waiting: list[tuple[Instr, int]] = []
        self.raw: dict[int, Any] = {}
        """Numbers as they are given: options may be on the host."""
        self.numbers: dict[Any, Any] = {}
        """What was computed from options for one parameter, and is the same for others."""

    def bring_numbers(self) -> None:
        """What ops compute with comes to the device; options that kernels take as numbers may stay on the host."""
        emitter, program = self.emitter, self.emitter.program
        wanted = host_numbers(program) if self.fused else set()
        others = {value for instr in program.instrs if instr.op not in STATE for value in instr.inputs}
        for i, value in enumerate(program.inputs):
            if program.values[value].type.shape or i in program.donated:
                continue
            self.raw[value] = emitter.values[value]
            if emitter.device.type != "cpu" and (value in others or value not in wanted):
                given = emitter.values[value]
                emitter.values[value] = emitter.write(
                    aten._to_copy.default, given, device=emitter.device, non_blocking=True
                )

    def add(self, instr: Instr, at: int) -> None:
        self.waiting.append((instr, at))

    def passed(self, instr: Instr, aliases: bool) -> None:
        """Any other instruction; ``aliases`` says that its result may be its first operand."""
        for result, operand in instr.views:
            self.storages.share(instr.results[result], instr.inputs[operand])
        if aliases and instr.inputs:
            self.storages.share(instr.results[0], instr.inputs[0])

    def flush(self) -> None:
        """Write what is waiting."""
        together: dict[tuple[Any, ...], list[Instr]] = {}
        waiting, self.waiting = self.waiting, []
        for instr, at in waiting:
            state = state_of(instr)
            values = self.emitter.program.values
            if not self.emitter.type_here(instr.results[0]).elements:
                self.become(instr, [self.emitter.values[value] for value in state])  # of nothing nothing is changed
            elif not self.in_place(instr, at):
                self.alone(instr)
            elif self.fused:
                together.setdefault(kind_of(instr, values[state[0]].type.dtype), []).append(instr)
            else:
                old = [self.emitter.values[value] for value in state]
                made = self.plain(instr)
                self.become(instr, [self.emitter.write(aten.copy_.default, *pair) for pair in zip(old, made)])
        for instrs in together.values():
            self.kernel(instrs, [self.operands(instr) for instr in instrs])
            for instr in instrs:
                self.become(instr, [self.emitter.values[value] for value in state_of(instr)])

    def in_place(self, instr: Instr, at: int) -> bool:
        """Whether state is written over; then it shares memory with the results."""
        state = state_of(instr)
        held = [self.storages.at(value) for value in state]
        apart = len({id(values) for values in held}) == len(held)
        if not self.donated or not instr.views or not apart or not all(self.storages.free(v, at) for v in state):
            return False
        for value, result in zip(state, instr.results):
            self.storages.share(value, result)
        return True

    def become(self, instr: Instr, nodes: Sequence[Any]) -> None:
        self.emitter.values.update(zip(instr.results, nodes))

    def operands(self, instr: Instr) -> list[Any]:
        raw = self.raw
        return [
            operand if not isinstance(operand, int)
            else raw[operand] if i in NUMBERS[instr.op] and operand in raw else self.emitter.values[operand]
            for i, operand in enumerate(instr.operands)
        ]  # fmt: skip

    def kernel(self, instrs: Sequence[Instr], calls: Sequence[Sequence[Any]]) -> None:
        self.emitter.meta = self.emitter.said(instrs[0])
        self.emitter.meta["sharding"] = ", ".join(self.emitter.said(instr)["sharding"] for instr in instrs)
        self.emitter.write(KERNELS[instrs[0].op], *arguments(instrs[0].op, calls), **dict(instrs[0].attrs))

    def alone(self, instr: Instr) -> None:
        """Old state stays: new state is made beside it."""
        if not self.fused:
            self.become(instr, self.plain(instr))
            return
        operands = self.operands(instr)
        for i in STATE[instr.op]:
            if operands[i] is not None:
                operands[i] = self.emitter.write(aten.clone.default, operands[i])
        self.kernel([instr], [operands])
        self.become(instr, [operands[i] for i in STATE[instr.op] if operands[i] is not None])

    def plain(self, instr: Instr) -> list[Any]:
        """The op in its parts."""
        emitter = self.emitter
        emitter.meta = emitter.said(instr)
        operands = tuple(emitter.type_here(o) if isinstance(o, int) else None for o in instr.operands)
        graph = parts(instr.op, instr.attrs, operands, tuple(emitter.type_here(value) for value in instr.results))
        assert graph is not None
        nodes: dict[int, Any] = dict(zip(graph.inputs, (emitter.values[value] for value in instr.inputs)))
        for node in graph.nodes:
            given = [nodes[o] if isinstance(o, int) else None for o in node.operands]
            kinds = [graph.type(o) if isinstance(o, int) else None for o in node.operands]
            types = graph.types(node.results)
            key = (node.op, repr(node.attrs), *given) if not types[0].shape else None
            made = self.numbers.get(key)
            if made is None:
                made = emitter.calculated(node.op, dict(node.attrs), kinds, types, given)
            if key is not None:
                self.numbers[key] = made
            nodes.update(zip(node.results, made))
        return [nodes[value] for value in graph.outputs]
