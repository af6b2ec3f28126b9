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
    """Counts, as they are by now."""
    tree: dict[str, Any] = field(default_factory=dict)
    """What there is in the state by now, by name; see `own_steps`."""
    starts: dict[str, Any] = field(default_factory=dict)
    """What new state begins with, by name."""
    changes: int = 0

    def forget(self, name: str) -> None:
        """A piece of state is read from the optimizer, or written to it: what is known of it stands there."""
        self.changes += 1
        self.values.pop(name, None)
        self.tree.pop(name, None)


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
    _changes: int = 0

    def __post_init__(self) -> None:
        self._parameters = self._present_parameters()
        self._asked = self._distinct()

    def _present_parameters(self) -> list[Any]:
        return [id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]]

    def facts(self) -> Hashable:
        parameters = self._present_parameters()
        if self._same and self._changes != self.ledger.changes:
            self._asked = self._distinct()
        known: dict[int, float] = {}
        return (
            () if parameters == self._parameters else tuple(parameters),
            options.structure(self.optimizer),
            tuple([guard.outcome(self._value, known) for guard in self._asked]),
            self.fresh is not None and self.fresh(),
            tuple([key for held in self.hooks for key in held]),
        )

    def _value(self, name: str) -> float:
        if name in self.options:
            return self.options[name]()
        return self._count(self._same.get(name, name))

    def _count(self, name: str) -> float:
        known = self.ledger.values.get(name)
        return self.counts[name].read() if known is None else known

    def advance(self) -> None:
        """A step was taken by somebody who keeps the state."""
        ledger = self.ledger
        if self._changes != ledger.changes or not self._same:
            self._asked = self._distinct(of_all=True)
        known: dict[int, float] = {}
        leaders = {self._same.get(name, name) for name in self.counts}
        new = {name: self.counts[name].update.value(self._value, known) for name in leaders}
        ledger.values.update({name: new[self._same.get(name, name)] for name in self.counts})
        ledger.tree.update(self.tree)

    def resume(self, numbers: Mapping[str, float]) -> None:
        """Somebody who keeps the state has taken it from elsewhere, with these counts."""
        self.ledger.values.update({name: float(numbers[name]) for name in self.counts if name in numbers})
        self.ledger.tree.update(self.tree)
        self.ledger.changes += 1

    def _distinct(self, of_all: bool = False) -> list[Guard]:
        """Guards without those that ask the same of counts that are equal and stay so: there is one a parameter."""
        self._changes = self.ledger.changes
        needed = of_all or any(guard.leaves & self.counts.keys() for guard in self.guards)
        values = {name: self._count(name) for name in self.counts} if needed else {}
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
