"""A program as a tree of modules: what each holds, how that is sharded, and what it costs.

Equal layers stand once: siblings that are numbered, follow each other, and hold equal tensors in equal shardings.
Every figure of a folded row is the sum of all its layers, so that rows add up to the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..frontends.base import BUFFER, CONSTANT, DATA, FORWARD, OPTIMIZER, PARAMETER
from ..plans.complete import Complete
from ..spec.tensors import tensor_text
from .lifespans import Lifespan
from .places import ROOT, Places, input_module
from .schedule import Schedule
from .uses import Use, uses_of


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer with the state that belongs to it."""

    name: str
    """Without its module."""
    value: int
    text: str
    """``bf16[1024@tp, 4096]``"""
    spec: str
    bytes: int
    """Of the whole tensor."""
    role: str
    state: tuple[str, ...]
    """Shardings of what an optimizer keeps for it, each once."""
    use: Use
    """What is made of its axes where it is used."""


@dataclass
class Sums:
    """What some instructions take, picoseconds and bytes of one device."""

    compute: Counter[str] = field(default_factory=Counter)
    """By phase."""
    communication: int = 0
    exposed: int = 0
    sent: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    memory: int = 0
    """At the peak of the step."""

    def add(self, other: Sums) -> None:
        self.compute += other.compute
        self.communication += other.communication
        self.exposed += other.exposed
        self.sent += other.sent
        self.collectives += other.collectives
        self.memory += other.memory

    @property
    def computing(self) -> int:
        return sum(self.compute.values())

    @property
    def time(self) -> int:
        """Of the step: what is computed, and what is waited for."""
        return self.computing + self.exposed


@dataclass
class Module:
    """A module, or several equal ones, with what is in them."""

    path: str
    """``model.layers.0``; of folded ones the first."""
    label: str
    """The last part of the path, or ``0-31``."""
    paths: tuple[str, ...]
    weights: tuple[Weight, ...] = ()
    activation: str = ""
    """What it hands on in forward."""
    own: Sums = field(default_factory=Sums)
    total: Sums = field(default_factory=Sums)
    children: list[Module] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.paths)

    def walk(self) -> Iterator[Module]:
        yield self
        for child in self.children:
            yield from child.walk()


def module_tree(places: Places, schedule: Schedule, complete: Complete, alive: Iterable[Lifespan]) -> list[Module]:
    """The top modules in the order in which they first compute, equal ones folded."""
    tree = _Tree(places, schedule, complete, alive)
    top = tree.build()
    return _folded(top)


def titles_of(modules: Iterable[Module]) -> dict[str, str]:
    """For every module of the program the title of the row that it stands in: ``model.layers.0-31.mlp``."""
    found: dict[str, str] = {}

    def visit(module: Module, around: str) -> None:
        title = f"{around}.{module.label}" if around else module.label
        found.update(dict.fromkeys(module.paths, title))
        for child in module.children:
            visit(child, title)

    for module in modules:
        visit(module, "")
    return found


class _Tree:
    """The tree while it is made."""

    def __init__(self, places: Places, schedule: Schedule, complete: Complete, alive: Iterable[Lifespan]) -> None:
        self.places, self.schedule, self.complete, self.alive = places, schedule, complete, alive
        self.modules: dict[str, Module] = {}
        self.top: list[Module] = []
        self.homes = complete.homes
        self.uses = uses_of(places, complete)

    def build(self) -> list[Module]:
        self._instructions()
        self._weights()
        self._activations()
        for span in self.alive:
            self.at(self._module_of(span)).own.memory += span.bytes
        for module in self.top:
            self._totals(module)
        return self.top

    def at(self, path: str) -> Module:
        """The module of a path, made with those around it where it is new."""
        found = self.modules.get(path)
        if found is None:
            plain = path.startswith("(")
            parent, _, label = ("", "", path) if plain else path.rpartition(".")
            found = self.modules[path] = Module(path, label or path, (path,))
            (self.at(parent).children if parent else self.top).append(found)
        return found

    def _instructions(self) -> None:
        places, schedule = self.places, self.schedule
        for n, instr in enumerate(places.program.instrs):
            sums = self.at(places.modules[n]).own
            if instr.is_collective:
                sums.communication += schedule.times[n]
                sums.exposed += schedule.exposed.get(n, 0)
                sums.sent += instr.bytes
                sums.collectives[instr.op] += 1
            else:
                sums.compute[places.phases[n]] += schedule.times[n]

    def _weights(self) -> None:
        graph, inputs = self.places.graph, self.places.inputs
        states: dict[str, list[str]] = {}
        for value, about in inputs.items():
            if about.role == OPTIMIZER and about.owner and graph.type(value).rank:
                texts = states.setdefault(about.owner, [])
                if str(self.homes[value]) not in texts:
                    texts.append(str(self.homes[value]))
        for value, about in inputs.items():
            if about.role not in (PARAMETER, BUFFER, DATA, CONSTANT) or (about.role == CONSTANT and not about.module):
                continue
            if about.role == DATA and any(other.role == PARAMETER for other in inputs.values()):
                continue  # of a program without modules the arguments are all there is to see
            module = self.at(input_module(about, inputs.values()) or ROOT)
            type, spec = graph.type(value), self.homes[value]
            name = about.name.removeprefix(f"{about.module}.") if about.module else about.name
            text = tensor_text(type.dtype, type.shape, spec)
            module.weights += (
                Weight(name, value, text, str(spec), type.bytes, about.role, tuple(states.get(about.name, ())),
                       self.uses[value]),
            )  # fmt: skip

    def _activations(self) -> None:
        """Of each module what its last op of the forward pass makes."""
        graph, places = self.places.graph, self.places
        for n, node in enumerate(graph.nodes):
            if places.node_phases[n] != FORWARD or not node.results:
                continue
            value = node.results[0]
            type = graph.type(value)
            if not type.rank:
                continue
            text = tensor_text(type.dtype, type.shape, self.homes[value])
            path = places.node_modules[n]
            self.at(path).activation = text
            while "." in path and not path.startswith("("):  # it is the latest of those around it, too
                path = path.rpartition(".")[0]
                if path in self.modules:
                    self.modules[path].activation = text

    def _module_of(self, span: Lifespan) -> str:
        places = self.places
        if span.value is not None and places.program.values[span.value].origin is not None:
            return places.value_module(span.value)
        return ROOT if span.instr is None else places.modules[span.instr]

    def _totals(self, module: Module) -> None:
        module.total.add(module.own)
        for child in module.children:
            self._totals(child)
            module.total.add(child.total)


def _signature(module: Module) -> tuple[object, ...]:
    """Equal for modules that are alike."""
    return (
        tuple((w.name, w.text, w.state, w.use) for w in module.weights),
        module.activation,
        tuple((child.label, _signature(child)) for child in module.children if child.weights or child.children),
    )


def _folded(modules: list[Module]) -> list[Module]:
    """Numbered neighbours that are alike as one."""
    found: list[Module] = []
    last: tuple[object, ...] | None = None
    for module in modules:
        module.children = _folded(module.children)
        signature = (_signature(module), len(module.label) and module.label.isdigit())
        if module.label.isdigit() and found and last == signature:
            _merge(found[-1], module)
        else:
            found.append(module)
        last = signature
    return found


def _merge(into: Module, other: Module) -> None:
    """Add an equal module to a row."""
    _add(into, other)
    into.label = f"{into.path.rpartition('.')[2]}-{into.paths[-1].rpartition('.')[2]}"


def _add(into: Module, other: Module) -> None:
    into.own.add(other.own)
    into.total.add(other.total)
    into.paths += other.paths
    known = {child.label: child for child in into.children}
    for child in other.children:
        if child.label in known:
            _add(known[child.label], child)
        else:
            into.children.append(child)
