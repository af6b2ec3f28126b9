"""Calls of the ATen book's ops, as programs make them.

PyTorch's own samples (OpInfo) are captured by our frontend, with their gradients, and run: so every call stands as it
does in a graph, functional, sizes spelled out, backward ops included.  Ops that no sample leads to are called by
discovery's samples from schemas; what is left is written down in `torch_more`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import DiscoverError, ShardwrightError
from ...frontends.torch import capture, prepare, tensor_type
from ...frontends.torch.signatures import find_op, signature
from ...ir.graph import Graph, GraphBuilder, Node, TensorType
from ..operator import Sample
from ..torch.ops import TORCH, tensors_in, torch_operator
from ..torch.samples import opinfo_names, opinfo_operator, opinfos_named, samples_from_opinfo, samples_of
from .torch_more import written_arguments

MOST_ELEMENTS = 2048
"""Of one call: more teach nothing and cost time."""
OFFERED = 40
"""Calls of one op among which the most telling are chosen."""


@dataclass(frozen=True, eq=False)
class AtenCall:
    """One call as it stands in a graph, with its tensors."""

    op: str
    attrs: Mapping[str, Any]
    operands: tuple[Any, ...]
    """In the schema's order: a tensor, None, or a list of tensors."""
    results: tuple[TensorType, ...]
    label: str = ""

    @property
    def tensors(self) -> list[Any]:
        return tensors_in([operand for operand in self.operands if operand is not None])

    @property
    def slots(self) -> tuple[int | None, ...] | None:
        if all(isinstance(operand, torch.Tensor) for operand in self.operands):
            return None
        return tuple(None if o is None else len(o) if isinstance(o, list) else 1 for o in self.operands)

    @property
    def key(self) -> tuple[object, ...]:
        types = tuple((tuple(t.shape), t.dtype) for t in self.tensors)
        return self.slots, types, repr(sorted(self.attrs.items()))

    def filled(self, flat: Sequence[Any]) -> list[Any]:
        """The operands, with these tensors in place of its own."""
        rest = iter(flat)
        return [
            None if operand is None else [next(rest) for _ in operand] if isinstance(operand, list) else next(rest)
            for operand in self.operands
        ]

    def graph(self) -> Graph:
        """A program that is this call and nothing else."""
        builder = GraphBuilder("call")
        ids = [builder.input(tensor_type(tensor)) for tensor in self.tensors]
        operands = [tuple(operand) if isinstance(operand, list) else operand for operand in self.filled(ids)]
        made = builder.op(self.op, operands, list(self.results), attrs=dict(self.attrs))
        return builder.finish([made] if isinstance(made, int) else list(made))


Calls = dict[str, list[AtenCall]]


def calls_of(ops: Sequence[str], each: int = 6, drawn: int = 4) -> Calls:
    """Up to `each` calls of each of these ops: from what OpInfo's samples make, `drawn` an entry, or from schemas."""
    wanted = set(ops)
    found: dict[str, dict[tuple[object, ...], AtenCall]] = {op: {} for op in ops}
    for call in (*written_calls(ops), *captured_calls(drawn)):
        known = found.get(call.op, {}) if call.op in wanted else {}
        if call.op in wanted and len(known) < OFFERED and _small(call):
            known.setdefault(call.key, call)
    for op in ops:
        if not any(_telling(call) for call in found[op].values()):
            for call in _from_schema(op, 2 * each):
                found[op].setdefault(call.key, call)
    return {op: _spread(list(calls.values()), each) for op, calls in found.items()}


def written_calls(ops: Sequence[str]) -> Iterator[AtenCall]:
    """Every call of `torch_more` that this version of PyTorch has and runs; lists for the ops that are asked for."""
    with quiet():
        for op, (args, kwargs) in written_arguments(ops):
            try:
                yield call_of(op, args, kwargs, label="written")
            except (ShardwrightError, RuntimeError, NotImplementedError):
                continue


def captured_calls(drawn: int) -> Iterator[AtenCall]:
    """Every call that the programs of OpInfo's samples make, forward and backward; forward alone for the first."""
    with quiet():
        entries = [(name, entry) for name in opinfo_names() for entry in opinfos_named(name)]
        for name, entry in entries:
            operator = opinfo_operator(entry)
            for number, sample in enumerate(samples_from_opinfo(entry, limit=drawn)):
                label = f"{name} {number}"
                made = list(_program_calls(operator.call, sample, label, grad=True))
                if not made or number == 0:
                    made += _program_calls(operator.call, sample, label, grad=False)
                yield from made


def _program_calls(function: Callable[..., Any], sample: Sample, label: str, grad: bool) -> Iterator[AtenCall]:
    given = [TORCH.tensor(array.copy()) for array in sample.tensors]
    first = next((tensor for tensor in given if tensor.dtype.is_floating_point), None)
    for every in (True, False) if grad else (False,):  # some operands have no gradient, such as weights of classes
        for tensor in given:
            tensor.requires_grad_(grad and tensor.dtype.is_floating_point and (every or tensor is first))
        try:
            captured = capture(lambda *tensors: _with_gradients(function, sample, tensors), *given)
            yield from calls_in(captured.graph, captured.inputs(*given), label)
            return
        except Exception:  # whatever the library raises: this program is no sample
            continue


def _with_gradients(function: Callable[..., Any], sample: Sample, tensors: Sequence[Any]) -> list[Any]:
    args, kwargs = sample.fill(list(tensors))
    made = tensors_in(function(*args, **kwargs))
    smooth = [tensor for tensor in made if tensor.requires_grad]
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    if not smooth or not leaves:
        return made
    towards = [torch.sin(tensor.detach() + 1) for tensor in smooth]  # not constant: equal gradients hide faults
    found = torch.autograd.grad(smooth, leaves, towards, allow_unused=True)
    return [*made, *(gradient for gradient in found if gradient is not None)]


def calls_in(graph: Graph, inputs: Sequence[Any], label: str) -> Iterator[AtenCall]:
    """The nodes of a program, run, each with the tensors that reach it."""
    values: dict[int, Any] = {value: given.detach() for value, given in zip(graph.inputs, inputs)}
    with torch.no_grad():
        for node in graph.nodes:
            call = AtenCall(node.op, dict(node.attrs), _operands(node, values), tuple(graph.types(node.results)), label)
            made = prepare(node.op, call.attrs, call.results)(call.operands)
            if [tensor_type(tensor) for tensor in made] != list(call.results):
                raise DiscoverError(f"{node.op} gives other types than its program says")
            if "empty" in node.op:  # whatever lay in memory: the next op would see other numbers on every run
                made = tuple(torch.zeros_like(tensor) for tensor in made)
            values.update(zip(node.results, made, strict=True))
            yield call


def _operands(node: Node, values: Mapping[int, Any]) -> tuple[Any, ...]:
    return tuple(
        [values[value] for value in operand] if isinstance(operand, tuple) else None if operand is None else
        values[operand]
        for operand in node.operands
    )  # fmt: skip


def _from_schema(op: str, limit: int) -> Iterator[AtenCall]:
    """Calls by discovery's own samples: of the entry of the same name, or made up from the types."""
    name = op if op.count(".") > 1 else f"{op}.default"
    with quiet():
        try:
            samples = samples_of(torch_operator(name), limit)
        except Exception:  # an op without tensors, or of another version: no sample is known
            return
        for sample in samples:
            tensors = [TORCH.tensor(array.copy()) for array in sample.tensors]
            try:
                yield call_of(op, *sample.fill(tensors), label=sample.label)
            except Exception:  # whatever the library raises: this call is no sample
                continue


def call_of(op: str, args: Sequence[Any], kwargs: Mapping[str, Any], label: str = "") -> AtenCall:
    """A call of an overload, as the frontend writes it."""
    overload = find_op(op)
    with torch.no_grad():
        made = overload(*args, **kwargs)
    operands, attrs = signature(overload).split(args, kwargs)
    results = tensors_in(made)
    if not results:
        raise DiscoverError(f"{op} gives no tensor")
    if isinstance(made, tuple) and any(item is None for item in made):
        attrs["absent"] = tuple(i for i, item in enumerate(made) if item is None)
    return AtenCall(op, attrs, tuple(operands), tuple(map(tensor_type, results)), label)


def _small(call: AtenCall) -> bool:
    return sum(int(tensor.numel()) for tensor in call.tensors) <= MOST_ELEMENTS


def _telling(call: AtenCall) -> bool:
    """Something in it can be split."""
    return any(size > 1 for result in call.results for size in result.shape) or any(
        size > 1 for tensor in call.tensors for size in tensor.shape
    )


def _spread(calls: list[AtenCall], limit: int) -> list[AtenCall]:
    """The calls that show most: every rank, every value of an attribute, every operand there or absent."""
    waiting = sorted(calls, key=lambda call: (not _telling(call), not _has_elements(call), not _has_floats(call)))
    seen: set[object] = set()
    chosen: list[AtenCall] = []
    while waiting and len(chosen) < limit:
        best = max(range(len(waiting)), key=lambda i: (len(_shows(waiting[i]) - seen), -i))
        seen |= _shows(waiting[best])
        chosen.append(waiting.pop(best))
    return chosen


def _has_elements(call: AtenCall) -> bool:
    return all(tensor.numel() for tensor in call.tensors)


def _has_floats(call: AtenCall) -> bool:
    """In whole numbers little is exact: what is pending may be the least there is, which has no opposite."""
    return any(tensor.dtype.is_floating_point for tensor in call.tensors)


def _shows(call: AtenCall) -> set[object]:
    ranks = tuple(tensor.dim() for tensor in call.tensors)
    splits = _telling(call) and _has_elements(call) and (_has_floats(call) or not call.tensors)
    said = {(name, repr(value)) for name, value in call.attrs.items() if splits}
    alike = len({tuple(tensor.shape) for tensor in call.tensors}) == 1
    return {("ranks", ranks, splits), ("alike", alike, splits), ("slots", call.slots, splits), *said}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's warnings, and the tracebacks that it logs for calls that raise."""
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silenced)
