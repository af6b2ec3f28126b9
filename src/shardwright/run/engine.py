"""`Engine`: what runs a Program, and the one that has a single device.

An engine holds the shards of arrays, moves them between devices, and compiles Programs.  `supports_distributed` tells
whether it has more than one device; one that has not raises `NotImplementedError` for every collective.

| method | what it does |
|---|---|
| ``compile(program)`` | a `Compiled`: ``run(shards, donate=False)`` gives the outputs' shards and what was `Executed` |
| ``scatter(whole, spec)`` | what this engine holds of a whole array: parts whose combination it is (`spec.pending`) |
| ``load(wholes, specs)`` | the same of a program's state, all of it at once; counted |
| ``assemble(held, spec, shape)`` | the whole array again, what is pending combined |
| ``all_reduce_sum``, ``all_gather``, ``reduce_scatter`` | collectives by name; ``group`` None means all devices |
| ``start(kind, tensor, group)``, ``wait(handle)`` | a collective begun, and waited for; done at once if synchronous |

``counts`` says how often Programs were compiled and state was loaded.  Engines are found by name: the module
``run/NAME`` with a function ``make(mesh, framework)``; one of several processes also has ``share(make_text, devices,
what)``.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..errors import SpecError, near_misses
from ..frontends.base import Framework
from ..ir.program import Collective, Program
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec

COMPILE, LOAD = "compile", "load"
OFF, AUTO, ON, GRAPH = FORMS = ("off", "auto", "on", "graph")
"""How ``compile=`` says in which form programs run, on engines whose programs have a ``choose_form``."""


@dataclass
class Executed:
    """What a run did."""

    collectives: list[Collective] = field(default_factory=list)
    peak_bytes: int = 0
    """The most that a device held, where the engine can tell."""
    starts: int = 0
    """How often communication was started: collectives in a bucket share one."""


class Compiled(Protocol):
    """A Program ready to run."""

    def run(self, inputs: Sequence[Any], donate: bool = False) -> tuple[list[Any], Executed]:
        """What the engine holds of the inputs -> of the outputs, and what was done.

        With ``donate`` the list is taken over, and empty when the program starts: where the caller holds them nowhere
        else, inputs that the program updates are gone after their last use.
        """


@dataclass(frozen=True)
class Handle:
    """A collective that was started; ``result`` is there once it is waited for."""

    result: Any


@runtime_checkable
class Engine(Protocol):
    """What runs a Program."""

    name: str
    mesh: DeviceMesh
    counts: Counter[str]

    def supports_distributed(self) -> bool: ...

    def compile(self, program: Program) -> Compiled: ...

    def scatter(self, whole: Any, spec: ShardingSpec) -> Any: ...

    def load(self, wholes: Sequence[Any], specs: Sequence[ShardingSpec]) -> list[Any]: ...

    def assemble(self, held: Any, spec: ShardingSpec, shape: Sequence[int]) -> Any: ...

    def all_reduce_sum(self, tensor: Any, group: Any = None) -> Any: ...

    def all_gather(self, tensor: Any, group: Any = None) -> Any: ...

    def reduce_scatter(self, tensor: Any, group: Any = None) -> Any: ...

    def start(self, kind: str, tensor: Any, group: Any = None) -> Handle: ...

    def wait(self, handle: Handle) -> Any: ...


class EngineBase:
    """What engines share: state is loaded array by array, and a collective is finished when it was started."""

    counts: Counter[str]

    def load(self, wholes: Sequence[Any], specs: Sequence[ShardingSpec]) -> list[Any]:
        """Copies: whoever changes the whole arrays later does not change what is loaded."""
        self.counts[LOAD] += 1
        return [self.scatter(self.copy(whole), spec) for whole, spec in zip(wholes, specs, strict=True)]

    def copy(self, whole: Any) -> Any:
        return whole

    def scatter(self, whole: Any, spec: ShardingSpec) -> Any:
        raise NotImplementedError

    def start(self, kind: str, tensor: Any, group: Any = None) -> Handle:
        """``kind`` is the name of a collective of the engine."""
        return Handle(getattr(self, kind)(tensor, group))

    def wait(self, handle: Handle) -> Any:
        return handle.result


def engine_names() -> list[str]:
    """The engines that there are, by listing."""
    here = sys.modules[__package__ or "shardwright.run"]
    return sorted(module.name for module in pkgutil.iter_modules(here.__path__) if module.name not in _NO_ENGINES)


_NO_ENGINES = ("engine", "runner", "lifetimes", "calibrate")


def engine_for(mesh: Any, framework: Framework, engine: Any = None, timeout: float | None = None) -> Engine:
    """An engine, by its name or as it is; None takes processes where this is one of several.

    ``timeout``: seconds that ranks wait for each other, where there are several and the engine is made here.
    """
    if engine is None:
        processes = framework.processes
        engine = processes if processes is not None and is_one_of_several() else "virtual"
    check_engine(engine)
    if not isinstance(engine, str):
        made: Engine = engine
        return made
    options = {} if timeout is None or engine != framework.processes else {"timeout": timeout}
    return _module(engine).make(mesh, framework, **options)  # type: ignore[no-any-return]


def check_engine(engine: Any) -> None:
    """None, the name of an engine, or one."""
    if engine is not None and not isinstance(engine, str | Engine):
        raise SpecError(
            f"engine= takes a name or an engine, not {engine!r}", rows=[("known", ", ".join(engine_names()))],
            help="what runs a Program follows the protocol shardwright.run.Engine",
        )  # fmt: skip
    names = engine_names()
    if isinstance(engine, str) and engine not in names:
        raise SpecError(
            f"no engine is called {engine!r}", rows=[("known", ", ".join(names))], help=near_misses(engine, names)
        )


def _module(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")


def share_between_processes(make: Callable[[], str], mesh: DeviceMesh, processes: str | None, what: str) -> str | None:
    """The text that rank 0 makes, on every rank; None where this process is alone, or the mesh is another one.

    ``processes`` names the engine of the framework that runs on several; ``what`` is the work, such as planning: the
    others wait for it as long as it takes.
    """
    if processes is None or not is_one_of_several():
        return None
    found: str | None = _module(processes).share(make, mesh.size, what)
    return found


def phase_of(engine: Engine, name: str) -> AbstractContextManager[None]:
    """Work that may last while others wait, such as saving; an engine of several processes tells them."""
    phase = getattr(engine, "phase", None)
    return nullcontext() if phase is None else phase(name)


def checkpoints_of(framework: Framework) -> Any:
    """The package that saves and loads what engines hold of a framework's arrays."""
    if framework.processes is None:
        raise SpecError(f"there are no checkpoints for programs of {framework.name}")
    return _module(f"{framework.processes}.checkpoints")


def compare_launch(engine: Engine, node: int | None) -> None:
    """An engine of several processes says if its machines are not as planned: ``node`` devices on each."""
    compare = getattr(engine, "compare_launch", None)
    if compare is not None:
        compare(node)


def check_form(wish: str) -> str:
    """That this is a word for ``compile=``."""
    if wish not in FORMS:
        raise SpecError(
            f"compile= is no {wish!r}", rows=[("known", ", ".join(map(repr, FORMS)))],
            help=near_misses(str(wish), FORMS) or 'compile="auto" takes what is faster',
        )  # fmt: skip
    return wish


def is_one_of_several() -> bool:
    """Whether torchrun started this process with others, or somebody made a group of several."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return True
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1 and distributed.get_backend() != "fake")
