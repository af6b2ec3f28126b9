"""A plan run on drawn inputs beside the program as captured, on one device: `tried`, for ``shardwright run``.

Arrays that the user gave are used as they are; shapes, and tensors without numbers, get numbers drawn from a seed, the
same on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SpecError
from ..frontends.base import OPTIMIZER, Input
from ..ir.graph import Graph, TensorType
from ..plans.amounts import amount_text

if TYPE_CHECKING:
    from ..api import Plan

TOLERANCE = {"f64": 1e-9, "c128": 1e-9, "f32": 1e-4, "c64": 1e-4, "f16": 2e-2, "bf16": 1e-1}
"""Largest difference beside the largest value of an output: sums are added up in another order."""


@dataclass(frozen=True)
class Trial:
    """What came out."""

    name: str
    mesh: str
    engine: str
    outputs: tuple[tuple[str, str, float, bool], ...]
    """Name, type, largest difference beside the largest value, and whether that is as much as rounding explains."""
    collectives: int
    as_planned: bool
    """Whether collectives were those of the plan."""
    peak: int
    planned_peak: int
    speaks: bool
    """Of several ranks one prints."""

    @property
    def equal(self) -> bool:
        return self.as_planned and all(alike for *_, alike in self.outputs)

    def __str__(self) -> str:
        worst = sorted(self.outputs, key=lambda item: (item[3], -item[2]))[:5]
        lines = [
            f"{self.name} on ({self.mesh}), engine {self.engine}: "
            f"{'equal to' if self.equal else 'NOT EQUAL to'} the program on one device, {len(self.outputs)} outputs",
            f"  {self.collectives} collectives, {'as planned' if self.as_planned else 'NOT those of the plan'}",
        ]
        if self.peak:
            lines.append(f"  at most {amount_text(self.peak)} a device; planned {amount_text(self.planned_peak)}")
        lines += [
            f"  {name} {type}: largest difference {difference:.1e} of the largest value{'' if alike else '  TOO MUCH'}"
            for name, type, difference, alike in worst
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal, "name": self.name, "mesh": self.mesh, "engine": self.engine,
            "collectives": self.collectives, "collectives_as_planned": self.as_planned, "peak_bytes": self.peak,
            "planned_peak_bytes": self.planned_peak, "outputs": [
                {"name": name, "type": type, "difference": difference, "equal": alike}
                for name, type, difference, alike in self.outputs
            ],
        }  # fmt: skip


def tried(plan: Plan, seed: int) -> Trial:
    """Run a plan and the program that it is for."""
    graph, source = plan.source.graph, plan.source
    _check_room(graph, plan.memory * plan.data.mesh.size)
    rng = np.random.default_rng(seed)
    whole = [
        _array(source.framework.name, _drawn(rng, graph.type(value), about))
        for value, about in zip(graph.inputs, source.inputs_are)
    ]
    for slot in range(len(graph.inputs) - source.data_count):
        there = source.read(slot)
        if not _is_empty(there):
            whole[source.data_count + slot] = there
    expected = [_numbers(array) for array in _reference(source.framework, graph, whole)]
    runner = plan.runner
    held = [runner.engine.scatter(_copy(array), spec) for array, spec in zip(whole, runner.specs, strict=True)]
    parts = runner.run(held, donate=False)
    found = [_numbers(runner.whole(i, part)) for i, part in enumerate(parts)]
    names = _output_names(graph, source.inputs_are)
    outputs = tuple(
        _compared(name, graph.type(value), one, other)
        for name, value, one, other in zip(names, graph.outputs, expected, found, strict=True)
    )
    done = runner.executed
    assert done is not None
    return Trial(
        plan.data.name, str(plan.data.mesh), runner.engine.name, outputs, len(done.collectives),
        sorted(done.collectives) == sorted(plan.program.collectives), done.peak_bytes, plan.memory,
        os.environ.get("RANK", "0") == "0",
    )  # fmt: skip


def _reference(framework: Any, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The graph as captured, op after op on whole arrays."""
    known: dict[int, Any] = {value: _copy(array) for value, array in zip(graph.inputs, inputs)}
    for node in graph.nodes:
        operands = [
            [known[item] for item in operand] if isinstance(operand, tuple)
            else None if operand is None else known[operand]
            for operand in node.operands
        ]  # fmt: skip
        made = framework.prepare(node.op, dict(node.attrs), graph.types(node.results))(operands)
        known.update(zip(node.results, made))
    return [known[value] for value in graph.outputs]


def _drawn(rng: np.random.Generator, type: TensorType, about: Input) -> Any:
    """Numbers that any program can take: small ones; whole numbers of 0 and 1, which are tokens of any vocabulary."""
    if type.dtype == "bool":
        return type.dtype, rng.integers(0, 2, type.shape).astype(bool)
    if type.dtype[0] in "iu" and type.dtype[1:].isdigit():
        return type.dtype, rng.integers(0, 2, type.shape)
    numbers = 0.1 * rng.standard_normal(type.shape)
    if about.role == OPTIMIZER:  # second moments are squares, and steps are counted from 1
        numbers = np.abs(numbers) + 0.01 if type.shape else np.ones(())
    return type.dtype, numbers


def _array(framework: str, drawn: tuple[str, Any]) -> Any:
    dtype, numbers = drawn
    if framework == "torch":
        import torch

        from ..frontends.torch.dtypes import torch_dtype

        return torch.from_numpy(np.asarray(numbers)).to(torch_dtype(dtype))
    from ..frontends.numpy.dtypes import numpy_dtype

    return np.asarray(numbers).astype(numpy_dtype(dtype))


def _is_empty(array: Any) -> bool:
    """A tensor on the meta device."""
    return bool(getattr(array, "is_meta", False))


def _copy(array: Any) -> Any:
    return array.detach().clone() if hasattr(array, "detach") else np.array(array)


def _numbers(array: Any) -> Any:
    """As NumPy's, in a type that holds them."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        return (array.double() if array.is_floating_point() else array).numpy()
    return np.asarray(array)


def _compared(name: str, type: TensorType, expected: Any, found: Any) -> tuple[str, str, float, bool]:
    if expected.size == 0 or expected.dtype.kind in "biu":
        wrong = float(np.any(expected != found))
        return name, str(type), wrong, not wrong
    with np.errstate(invalid="ignore", over="ignore"):
        same = (expected == found) | (np.isnan(expected) & np.isnan(found))
        largest = float(np.max(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=0.0)) or 1.0
        difference = float(np.max(np.where(same, 0, np.abs(expected - found)), initial=0.0)) / largest
    return name, str(type), difference, difference <= TOLERANCE.get(type.dtype, 1e-1)


def _output_names(graph: Graph, inputs: Sequence[Input]) -> list[str]:
    updated = {output: inputs[position].name for position, output in graph.updates}
    return [f"new {updated[i]}" if i in updated else f"output {i}" for i in range(len(graph.outputs))]


def _check_room(graph: Graph, needed: int) -> None:
    """All devices share this machine's memory; the program on one device needs as much again."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    inputs = sum(graph.type(value).bytes for value in graph.inputs)
    if needed + 2 * inputs > there:
        raise SpecError(
            f"all devices together hold {amount_text(needed)}, and this machine has {amount_text(there)}",
            help="run a smaller model of the same kind, or run it under torchrun; verify proves it at any size",
        )
