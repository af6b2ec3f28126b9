"""`Subject`: a Program with the graph it was made from, and random inputs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardwright.frontends.base import Framework
from shardwright.frontends.numpy.framework import NUMPY
from shardwright.ir.graph import Graph
from shardwright.ir.program import Program

TRIES = 5
"""Random inputs on which a mutant may show."""


@dataclass(frozen=True)
class Subject:
    name: str
    graph: Graph
    program: Program
    captured: Graph
    framework: Framework
    examples: tuple[Any, ...]
    """One array for each input: its values say what an input may be."""
    training: bool = False

    @property
    def is_torch(self) -> bool:
        return self.framework is not NUMPY

    @property
    def splits(self) -> bool:
        """Half of the bytes of the inputs are cut, or there are five collectives."""
        inputs = [self.program.values[value] for value in self.program.inputs]
        total = sum(local.type.bytes for local in inputs)
        cut = sum(local.type.bytes for local in inputs if local.spec.sharded_axes)
        return 2 * cut >= total > 0 or len(self.program.collectives) >= 5

    @cached_property
    def inputs(self) -> list[list[Any]]:
        """`TRIES` times all inputs, at random."""
        names = [self.program.values[value].name for value in self.program.inputs]
        found = []
        for n in range(TRIES):
            generator = np.random.default_rng(n)
            found.append([_like(x, name, generator) for x, name in zip(self.examples, names, strict=True)])
        return found


def of_plan(name: str, plan: Any, data: Sequence[Any], training: bool = False) -> Subject:
    """The subject of a plan; ``data`` are the arrays among the arguments of a call."""
    source, program = plan.source, plan.program
    state = [source.read(slot) for slot in range(len(program.inputs) - len(data))]
    return Subject(name, plan.graph, program, source.graph, source.framework, (*data, *state), training)


def _like(example: Any, name: str, generator: np.random.Generator) -> Any:
    """Numbers as an input takes them: whole numbers are shuffled, floats drawn, options nearly kept."""
    array = np.asarray(example.detach() if hasattr(example, "detach") else example)
    if array.dtype.kind in "iub":
        made = generator.permutation(array.reshape(-1)).reshape(array.shape)
    elif array.dtype.kind == "c":
        made = generator.normal(size=array.shape) + 1j * generator.normal(size=array.shape)
    elif name.endswith("step"):
        made = np.full(array.shape, float(generator.integers(1, 9)))
    elif not array.shape:
        made = array * generator.uniform(0.5, 2)
    else:
        made = generator.normal(size=array.shape)
        made = np.abs(made) if name.endswith(("_sq", "var")) else made
    made = np.ascontiguousarray(made, array.dtype) if array.shape else np.asarray(made, array.dtype)
    if hasattr(example, "detach"):
        import torch

        return torch.from_numpy(made.copy()).to(example.dtype)
    return made
