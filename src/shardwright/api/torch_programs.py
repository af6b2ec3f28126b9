"""PyTorch functions, modules and training steps, split over a mesh: `TorchMapped`, `ShardedStep` (with its own state).

Both capture a program, shard it as the user says, and run it on the virtual mesh in this process or, under
``torchrun``, on real ones.  Imported only where tensors of PyTorch are met.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ShardwrightError, SpecError, near_misses
from ..frontends.torch import Captured, capture, capture_step, prepare
from ..frontends.torch.private import tree_flatten, tree_unflatten
from ..ir.graph import Graph
from ..ir.program import Collective, Program
from ..run import Executed, VirtualEngine
from ..run.torch import TorchArrays, TorchEngine, assemble, scatter
from ..run.torch.engine import has_processes
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .compile import Auto, Learning, Lowered, Said, compile_graph
from .specs import by_pattern, is_spec


class VirtualTorch:
    """All devices of a mesh in this process."""

    name = "virtual"

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.engine = VirtualEngine(mesh, prepare, TorchArrays())

    def compile(self, program: Program) -> Any:
        return self.engine.compile(program)

    def scatter(self, whole: Any, spec: ShardingSpec) -> Any:
        return scatter(whole, spec)

    def assemble(self, shards: Any, spec: ShardingSpec, shape: Sequence[int]) -> Any:
        return assemble(shards, spec, shape)


def engine_for(mesh: Any, engine: Any = None) -> Any:
    """``"virtual"``, ``"torch"`` or an engine; None takes processes where this is one of several."""
    if engine is None:
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        several = several or (has_processes() and torch.distributed.get_world_size() > 1)
        engine = "torch" if several else "virtual"
    if engine == "virtual":
        return VirtualTorch(DeviceMesh.of(mesh))
    if engine == "torch":
        return TorchEngine(mesh)
    if isinstance(engine, str):
        raise SpecError(f"no engine is called {engine!r}", help=near_misses(engine, ("virtual", "torch")))
    return engine


# -- specs ----------------------------------------------------------------------------------------------


class Leaf:
    """Stands for a tensor in the tree of a result."""


def tensors_in(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor | Leaf)]


def spread(specs: Any, tree: Any, what: str) -> list[Any]:
    """One spec for each tensor of a tree; a spec in place of a container stands for all that is in it."""
    if specs is None or is_spec(specs) or isinstance(tree, torch.Tensor | Leaf):
        return [specs] * len(tensors_in(tree))
    if isinstance(specs, Mapping):
        items = dict(tree) if isinstance(tree, Mapping) else {}
        for key in specs:
            if key not in items:
                raise SpecError(
                    f"{what} names {key!r}, which is not there", help=near_misses(str(key), map(str, items))
                )
        return [spec for key, part in items.items() for spec in spread(specs.get(key), part, what)]
    inner, parts = list(specs), list(tree) if isinstance(tree, list | tuple) else [tree]
    if len(inner) != len(parts):
        raise SpecError(f"{what} has {len(inner)} entries where there are {len(parts)}")
    return [spec for part, child in zip(inner, parts) for spec in spread(part, child, what)]


def bind(spec: Any, mesh: DeviceMesh, graph: Graph, value: int, name: str) -> ShardingSpec:
    try:
        return ShardingSpec.of(spec, mesh, graph.type(value).rank)
    except ShardwrightError as error:
        raise error.add("for", f"{name}: {list(graph.type(value).shape)}") from None


def shard_captured(
    captured: Captured,
    mesh: DeviceMesh,
    given: Sequence[Any] = (),
    specs: Mapping[str, Any] | None = None,
    out_specs: Any = None,
    *,
    auto: Auto | bool = False,
    debug: bool = False,
) -> Lowered:
    """Lower a captured program: ``given`` are specs of the tensors among its arguments, ``specs`` by name."""
    graph = captured.graph
    values = by_pattern(specs or {}, graph, mesh)
    for value, spec in zip(graph.inputs, given):
        if spec is not None:
            values[value] = bind(spec, mesh, graph, value, graph.values[value].name)
    wanted = {}
    if out_specs is not None:
        filled = [Leaf() if is_tensor else None for is_tensor in captured.out_tensors]
        asked = spread(out_specs, tree_unflatten(filled, captured.out_spec), "out_specs")
        for i, spec in enumerate(asked):
            if spec is not None:
                wanted[i] = bind(spec, mesh, graph, graph.outputs[i], f"output {i}")
    return compile_graph(graph, mesh, Said(values, wanted), auto=auto, debug=debug)


# -- functions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchEntry:
    """One signature, compiled."""

    captured: Captured
    lowered: Lowered
    compiled: Any


class TorchMapped:
    """A function or module of PyTorch, split: what it takes and gives are whole tensors."""

    def __init__(
        self,
        fn: Any,
        mesh: Any,
        in_specs: Any,
        out_specs: Any,
        specs: Mapping[str, Any] | None,
        auto: Auto | bool,
        debug: bool,
        engine: Any,
        learning: Learning | None = None,
    ) -> None:
        self.fn = fn
        self.learning = learning or Learning()
        self.mesh = DeviceMesh.of(mesh)
        self.in_specs, self.out_specs, self.specs = in_specs, out_specs, specs
        self.auto, self.debug = auto, debug
        self.engine = engine_for(mesh, engine)
        self.executed: Executed | None = None
        self._entries: dict[Any, TorchEntry] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry(args, kwargs)
        inputs = entry.captured.inputs(*args, **kwargs)
        specs = entry.lowered.complete.inputs
        shards = [self.engine.scatter(x.detach(), spec) for x, spec in zip(inputs, specs)]
        outputs, self.executed = entry.compiled.run(shards)
        return entry.captured.deliver(inputs, list(whole(entry.lowered.program, outputs, self.engine)))

    def entry(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TorchEntry:
        """Compile for these arguments, or find that it was done before."""
        leaves, tree = tree_flatten((args, dict(kwargs)))
        key = (tree, tuple(_signature(leaf) for leaf in leaves), torch.is_grad_enabled())
        if key not in self._entries:
            captured = capture(self.fn, *args, **kwargs)
            self.learning.run(captured.graph)
            given = spread(self._by_position(args, kwargs), (args, dict(kwargs)), "in_specs")
            if self.debug:
                print(f"[shard_map] captured {captured.graph.name}: {len(captured.graph.nodes)} nodes")
            lowered = shard_captured(
                captured, self.mesh, given, self.specs, self.out_specs, auto=self.auto, debug=self.debug
            )
            if self.debug:
                print(lowered.program)
            self._entries[key] = TorchEntry(captured, lowered, self.engine.compile(lowered.program))
        return self._entries[key]

    def _by_position(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        from .shard_map import in_specs_by_position

        fn = self.fn.forward if isinstance(self.fn, torch.nn.Module) else self.fn
        return in_specs_by_position(self.in_specs, fn, args, kwargs)


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), str(leaf.dtype), leaf.requires_grad
    return repr(leaf)


def whole(program: Program, outputs: Sequence[Any], engine: Any) -> Iterator[Any]:
    """Whole tensors from the shards of a program's outputs."""
    for value, shards in zip(program.outputs, outputs):
        local = program.values[value]
        yield engine.assemble(shards, local.spec, local.type.shape)


# -- training steps -------------------------------------------------------------------------------------


class ShardedStep:
    """A training step whose parameters, buffers and optimizer state live in shards between calls.

    Call it with a batch, whole on every rank: it returns what the step returns.  `sync` writes the state back into the
    modules and optimizers that the step was captured from, `load` takes it from there.

    A call hands the state over: what it updates is gone after its last use, so that old and new state are never there
    in full at once.  A call that fails while it runs leaves no state: the next use says so, until `load`.  One that is
    refused before it runs leaves the state as it was.  Modules and optimizers keep their own tensors all along.
    """

    def __init__(
        self,
        captured: Captured,
        mesh: Any,
        *,
        specs: Mapping[str, Any] | None = None,
        in_specs: Sequence[Any] = (),
        engine: Any = None,
        auto: Auto | bool = False,
    ) -> None:
        self.captured = captured
        self.mesh = DeviceMesh.of(mesh)
        self.lowered = shard_captured(captured, self.mesh, in_specs, specs, auto=auto)
        self.engine = engine_for(mesh, engine)
        self.compiled = self.engine.compile(self.program)
        self.executed: Executed | None = None
        self.gradients: dict[str, Any] = {}
        """Shards of the gradients that the last call left, if the step has no optimizer."""
        self._changed = {at - captured.leaves for at, _ in captured.graph.updates if at >= captured.leaves}
        self.load()
        kept = [i for i in range(len(captured.slots)) if i not in self._changed]
        self._numbers = [i for i in kept if captured.slots[i].read().dim() == 0]

    def load(self) -> None:
        """Take the state anew from the modules and optimizers, where it is as of the last `sync`."""
        captured = self.captured
        held = [*(slot.read() for slot in captured.slots), *captured.consts]
        placed = self.lowered.complete.inputs[captured.leaves :]
        self.state: list[Any] = [self.engine.scatter(x.detach(), spec) for x, spec in zip(held, placed)]
        self._failed = ""

    @property
    def program(self) -> Program:
        return self.lowered.program

    @property
    def collectives(self) -> list[Collective]:
        return self.program.collectives

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        captured, complete = self.captured, self.lowered.complete
        self._check_state()
        given = captured.tensors(*args, **kwargs)
        shards = [self.engine.scatter(x.detach(), spec) for x, spec in zip(given, complete.inputs)]
        self._read_again()
        outputs = self._run([*shards, *self.state])
        for position, output in captured.graph.updates:
            if position >= captured.leaves:
                self.state[position - captured.leaves] = outputs[output]
            else:
                with torch.no_grad():
                    given[position].copy_(self._whole(output, outputs[output]))
        self.gradients = {name: outputs[output] for name, output in captured.gradients.items()}
        results = sum(captured.out_tensors)
        return captured.result([self._whole(i, outputs[i]) for i in range(results)])

    def _run(self, handed: list[Any]) -> list[Any]:
        """Nobody but the engine has the state while the program runs."""
        self.gradients = {}
        for i in self._changed:
            self.state[i] = None
        try:
            outputs, self.executed = self.compiled.run(handed, donate=True)
        except BaseException as error:
            if handed:  # not taken: the program did not start
                self.state = handed[self.captured.leaves :]
            else:
                self._failed = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise
        return list(outputs)

    def _check_state(self) -> None:
        if self._failed:
            raise ShardwrightError(
                "this step has no state: a call failed while it ran, and what it updates was handed over",
                rows=[("failed", self._failed)],
                help="step.load() takes the state from the modules and optimizers, as of the last step.sync()",
            )

    def _read_again(self) -> None:
        """Numbers that the step reads and does not change, such as the learning rate, may change between steps."""
        for i in self._numbers:
            spec = self.lowered.complete.inputs[self.captured.leaves + i]
            self.state[i] = self.engine.scatter(self.captured.slots[i].read(), spec)

    def _whole(self, output: int, shards: Any) -> Any:
        local = self.program.values[self.program.outputs[output]]
        return self.engine.assemble(shards, local.spec, local.type.shape)

    def sync(self) -> None:
        """Write parameters, buffers, optimizer state and gradients back to where they were captured from."""
        captured = self.captured
        self._check_state()
        for i, slot in enumerate(captured.slots):
            if i not in self._changed:
                continue
            local = self.program.values[self.program.inputs[captured.leaves + i]]
            slot.write(self.engine.assemble(self.state[i], local.spec, local.type.shape).clone())
        owners = {slot.name: slot.owner for slot in captured.slots}
        for name, shards in self.gradients.items():
            owners[name].grad = self._whole(captured.gradients[name], shards).clone()


def shard_step(
    model: Callable[..., Any] | Any,
    *args: Any,
    mesh: Any,
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    specs: Mapping[str, Any] | None = None,
    in_specs: Sequence[Any] = (),
    engine: Any = None,
    **kwargs: Any,
) -> ShardedStep:
    """Forward, backward and the optimizer's step, captured and split over a mesh.

    ``specs`` gives shardings by the names of inputs (arguments, parameters, buffers, optimizer state) or by patterns
    of them; what is not named follows by propagation.

    >>> model = torch.nn.Linear(4, 2)
    >>> step = shard_step(model, torch.ones(6, 4), mesh="dp=2", loss=lambda out: out.sum(), specs={"input": "[dp, _]"})
    >>> [collective.kind for collective in step.collectives]
    ['all_reduce', 'all_reduce', 'all_reduce']
    """
    captured = capture_step(model, *args, optimizer=optimizer, loss=loss, **kwargs)
    return ShardedStep(captured, mesh, specs=specs, in_specs=in_specs, engine=engine)
