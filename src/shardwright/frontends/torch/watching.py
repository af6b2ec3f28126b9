"""What a captured program cannot follow: noticed at every step, cheaply, and without reading from a device.

`ModuleWatch` looks at modes, at what is trained, and whether modules hold the tensors that they held.  `StepWatch`
looks at an optimizer: its groups, options that are no numbers, the outcomes of guards (see `numbers`) at present
values.  Where state is kept in shards by somebody else, counts are followed in a `Ledger`: a step's program says how
each comes from the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

from . import options
from .numbers import Guard, Term

_training = attrgetter("training")
_requires_grad = attrgetter("requires_grad")


class ModuleWatch:
    """Of all modules of a program."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
        self.held = [d for module in self.modules for d in (module._modules, module._parameters, module._buffers)]
        found = chain.from_iterable(module._parameters.values() for module in self.modules)
        self.parameters = [parameter for parameter in found if parameter is not None]
        self.things = self._things()

    def _things(self) -> list[int]:
        """Of the modules and parameters in their places, the identities; of buffers only that they are there."""
        return [
            *map(len, self.held),
            *map(id, chain.from_iterable(d.values() for i, d in enumerate(self.held) if i % 3 < 2)),
        ]

    def facts(self) -> Hashable:
        things = self._things()
        return (
            bytes(map(_training, self.modules)),
            bytes(map(_requires_grad, self.parameters)),
            () if things == self.things else tuple(things),
        )


@dataclass
class Ledger:
    """The state of an optimizer, as far as it is known on the host, while its tensors are kept by somebody else."""

    values: dict[str, float] = field(default_factory=dict)
    kept: bool = False
    """Whether somebody has taken steps since the state was last read from the optimizer."""
    tree: dict[str, Any] | None = None
    """What there is in the state by now, by name; see `own_steps`."""

    reads: int = 0
    partly: bool = False
    """While only what is missing is read from the optimizer, or a part of it is written back."""

    def forget(self) -> None:
        """The state is read from the optimizer: what was kept elsewhere is gone."""
        if self.partly:
            return
        self.reads += 1
        if self.kept:
            self.values, self.kept, self.tree = {}, False, None


@dataclass
class Count:
    """A number in an optimizer's state that follows from itself and options."""

    read: Callable[[], float]
    update: Term


@dataclass
class StepWatch:
    """Of one optimizer in one captured program."""

    optimizer: Any
    ledger: Ledger
    guards: list[Guard]
    options: dict[str, Callable[[], float]]
    counts: dict[str, Count]
    fresh: Callable[[], bool] | None = None
    """Where the first step is a program of its own: whether the optimizer still has no state."""
    tree: dict[str, Any] = field(default_factory=dict)
    hooks: tuple[Mapping[int, Any], ...] = ()
    _parameters: list[Any] = field(default_factory=list)
    _same: dict[str, str] = field(default_factory=dict)
    _asked: list[Guard] = field(default_factory=list)
    _reads: int = 0

    def __post_init__(self) -> None:
        self._parameters = self._present_parameters()
        self._asked = self._distinct()

    def _present_parameters(self) -> list[Any]:
        return [id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]]

    def facts(self) -> Hashable:
        parameters = self._present_parameters()
        if self._same and self._reads != self.ledger.reads and not self.ledger.kept:
            self._asked = self._distinct()
        known: dict[int, float] = {}
        return (
            () if parameters == self._parameters else tuple(parameters),
            options.structure(self.optimizer),
            tuple([guard.outcome(self._value, known) for guard in self._asked]),
            self._is_fresh(),
            tuple([key for held in self.hooks for key in held]),
        )

    def _is_fresh(self) -> bool:
        """Whether the state that the step leaves is not there yet, where the first step is a program of its own."""
        if self.fresh is None:
            return False
        return any(name not in (self.ledger.tree or ()) for name in self.tree) if self.ledger.kept else self.fresh()

    def _value(self, name: str) -> float:
        if name in self.options:
            return self.options[name]()
        name = self._same.get(name, name)
        return self.ledger.values[name] if self.ledger.kept else self.counts[name].read()

    def advance(self) -> None:
        """A step was taken by somebody who keeps the state."""
        ledger = self.ledger
        if not ledger.kept:
            ledger.values = {name: count.read() for name, count in self.counts.items()}
            self._asked = self._distinct()
        known: dict[int, float] = {}
        leaders = {self._same.get(name, name) for name in self.counts}
        new = {name: self.counts[name].update.value(self._value_in(ledger.values), known) for name in leaders}
        ledger.values.update({name: new[self._same.get(name, name)] for name in self.counts})
        ledger.kept, ledger.tree = True, {**(ledger.tree or {}), **self.tree}

    def _value_in(self, values: Mapping[str, float]) -> Callable[[str], float]:
        return lambda name: self.options[name]() if name in self.options else values[self._same.get(name, name)]

    def _distinct(self) -> list[Guard]:
        """Guards without those that ask the same of counts that are equal and stay so: there is one a parameter."""
        self._reads = self.ledger.reads
        needed = any(guard.leaves & self.counts.keys() for guard in self.guards)
        values = {}
        if needed or self.ledger.kept:
            values = {
                name: self.ledger.values.get(name) if self.ledger.kept else count.read()
                for name, count in self.counts.items()
            }
        self._same = _classes(values, {name: self.counts[name].update for name in values})
        found: dict[Hashable, Guard] = {}
        for guard in self.guards:
            sides = [_spelt(side, self._same.get) for side in (guard.left, guard.right)]
            found.setdefault((guard.test, *sides), guard)
        return list(found.values())


def _classes(values: Mapping[str, Any], updates: Mapping[str, Term]) -> dict[str, str]:
    """For every count the first that is equal to it now and after every step."""
    classes = _numbered(values)
    while True:
        finer = _numbered({name: (classes[name], _spelt(updates[name], _apart(name, classes))) for name in values})
        if max(finer.values(), default=0) == max(classes.values(), default=0):
            break
        classes = finer
    first: dict[int, str] = {}
    return {name: first.setdefault(kind, name) for name, kind in classes.items()}


def _apart(own: str, classes: Mapping[str, int]) -> Callable[[str], Hashable]:
    return lambda leaf: "itself" if leaf == own else classes.get(leaf)


def _numbered(kinds: Mapping[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(kind, len(numbers)) for name, kind in kinds.items()}


def _spelt(term: Term | float, rename: Callable[[str], Hashable]) -> Hashable:
    """A term as plain data, with other names for some leaves."""
    if not isinstance(term, Term):
        return term
    if term.leaf:
        name = rename(term.leaf)
        return term.leaf if name is None else name
    return (term.what, *(_spelt(part, rename) for part in term.parts))
