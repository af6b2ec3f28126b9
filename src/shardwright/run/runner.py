"""`Runner`: a Program with its source, on an engine: compiled once.  `Step`: the same with its state kept in shards.

Everything that runs for a user runs here: `shard_map`, a plan that is called, a training step.  A `Runner` takes whole
arrays and gives whole arrays, and reads and writes state at every call, so that it does what the program itself would
do.  A `Step` loads state once and hands it from call to call.
"""

from __future__ import annotations

from typing import Any

from ..errors import ShardwrightError
from ..frontends.base import Source
from ..ir.program import Collective, Program
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


class Step:
    """A training step whose parameters, buffers and optimizer state live in shards between calls.

    Call it with a batch, whole on every rank: it returns what the step returns.  `sync` writes the state back into the
    modules and optimizers that the step was captured from, `load` takes it from there.

    A call hands the state over: what it updates is gone after its last use, so that old and new state are never there
    in full at once.  A call that fails while it runs leaves no state: the next use says so, until `load`.  One that is
    refused before it runs leaves the state as it was.  Modules and optimizers keep their own tensors all along.
    """

    def __init__(self, runner: Runner, plan: Any = None) -> None:
        self.runner = runner
        self.plan = plan
        """The plan that is trained."""
        self.gradients: dict[str, Any] = {}
        """Shards of the gradients that the last call left, if the step has no optimizer."""
        source, graph = runner.source, runner.source.graph
        self._first = source.data_count
        self._changed = {at - self._first for at, _ in graph.updates if at >= self._first}
        numbers = [i for i, value in enumerate(graph.inputs[self._first :]) if not graph.type(value).shape]
        self._numbers = [slot for slot in numbers if slot not in self._changed]
        self._check_updates()
        self.load()

    source = property(lambda self: self.runner.source)
    program = property(lambda self: self.runner.program)
    engine = property(lambda self: self.runner.engine)
    compiled = property(lambda self: self.runner.compiled)
    executed = property(lambda self: self.runner.executed)

    @property
    def mesh(self) -> Any:
        return self.program.mesh

    @property
    def collectives(self) -> list[Collective]:
        found: list[Collective] = self.program.collectives
        return found

    def _check_updates(self) -> None:
        """What a call leaves is what the next one reads, so it has to lie in the same way."""
        program = self.program
        for i, output in program.updates:
            old, new = program.values[program.inputs[i]], program.values[program.outputs[output]]
            if i >= self._first and not old.spec.same_layout(new.spec):
                raise ShardwrightError(
                    "a step leaves state in another sharding than it takes it",
                    rows=[("before", f"{old.name}: {old}"), ("after", str(new))],
                    help="give the state's sharding for both, or leave it to the planner",
                )

    def load(self) -> None:
        """Take the state anew from the modules and optimizers, where it is as of the last `sync`."""
        specs = self.runner.specs[self._first :]
        self.state: list[Any] = self.engine.load([self.source.read(slot) for slot in range(len(specs))], specs)
        self._failed = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check_state()
        source, graph = self.source, self.source.graph
        given = source.bind(args, kwargs)
        held = [self.engine.scatter(array, spec) for array, spec in zip(given, self.runner.specs)]
        self._read_numbers()
        outputs = self._run([*held, *self.state])
        source.advance()
        for position, output in graph.updates:
            if position >= self._first:
                self.state[position - self._first] = outputs[output]
            else:
                source.write_data(given[position], self.runner.whole(output, outputs[output]))
        self.gradients = {name: outputs[output] for name, output in source.gradients.items()}
        return source.result([self.runner.whole(i, outputs[i]) for i in range(source.results)])

    def _run(self, handed: list[Any]) -> list[Any]:
        """Nobody but the engine has the state while the program runs."""
        self.gradients = {}
        for slot in self._changed:
            self.state[slot] = None
        try:
            return self.runner.run(handed, donate=True)
        except BaseException as error:
            if handed:  # not taken: the program did not start
                self.state = handed[self._first :]
            else:
                self._failed = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise

    def _check_state(self) -> None:
        if self._failed:
            raise ShardwrightError(
                "this step has no state: a call failed while it ran, and what it updates was handed over",
                rows=[("failed", self._failed)],
                help="step.load() takes the state from the modules and optimizers, as of the last step.sync()",
            )

    def _read_numbers(self) -> None:
        """Numbers that the step reads and does not change, such as the learning rate, may change between steps."""
        for slot in self._numbers:
            self.state[slot] = self.engine.scatter(self.source.read(slot), self.runner.specs[self._first + slot])

    def sync(self) -> None:
        """Write parameters, buffers, optimizer state and gradients back to where they were captured from."""
        self._check_state()
        for slot in sorted(self._changed):
            local = self.program.values[self.program.inputs[self._first + slot]]
            self.source.write(slot, self.engine.assemble(self.state[slot], local.spec, local.type.shape))
        for name, held in self.gradients.items():
            self.source.write_gradient(name, self.runner.whole(self.source.gradients[name], held))
