"""`Runner`: a Program with its source, on an engine: compiled once.

It takes whole arrays and gives whole arrays, and reads and writes state at every call, so that it does what the program
itself would do.  A training step keeps its state in shards from call to call: `api.training`.
"""

from __future__ import annotations

from typing import Any

from ..frontends.base import Source
from ..ir.program import Program
from ..spec.sharding import ShardingSpec
from .engine import Engine, Executed


class Runner:
    """One program, compiled for one engine."""

    def __init__(self, source: Source, program: Program, engine: Engine) -> None:
        self.source, self.program, self.engine = source, program, engine
        self.compiled = engine.compile(program)
        self.executed: Executed | None = None
        """What the last call did: collectives, peak of live bytes."""

    @property
    def specs(self) -> list[ShardingSpec]:
        """Of the program's inputs."""
        return [self.program.values[value].spec for value in self.program.inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Whole arrays in, whole arrays out; state is read before and written after."""
        source = self.source
        given = source.bind(args, kwargs)
        whole = [*given, *(source.read(slot) for slot in range(len(self.program.inputs) - len(given)))]
        held = [self.engine.scatter(array, spec) for array, spec in zip(whole, self.specs, strict=True)]
        outputs = self.run(held)
        return source.deliver(given, [self.whole(i, part) for i, part in enumerate(outputs)])

    def run(self, held: list[Any], donate: bool = False) -> list[Any]:
        """What the engine holds of the inputs -> of the outputs."""
        outputs, self.executed = self.compiled.run(held, donate)
        return list(outputs)

    def whole(self, output: int, held: Any) -> Any:
        """An output put together."""
        local = self.program.values[self.program.outputs[output]]
        return self.engine.assemble(held, local.spec, local.type.shape)
