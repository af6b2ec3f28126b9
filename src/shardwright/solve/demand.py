"""`Demand`: for one value, how it may lie once it is made, and in which shardings it is then wanted by whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..spec.sharding import ShardingSpec

if TYPE_CHECKING:
    from .assign import Assigner

Specs = tuple[ShardingSpec, ...]


def finished(spec: ShardingSpec) -> ShardingSpec:
    """The same with nothing pending."""
    return ShardingSpec.make(spec.mesh, spec.dims) if spec.partial else spec


@dataclass(frozen=True, eq=False)
class Group:
    """What one variable needs of a value: for each place at which it reads it, a sharding for each of its choices."""

    variable: int
    """Negative where there is nothing to choose."""
    specs: tuple[Specs, ...]


@dataclass(frozen=True, eq=False)
class Demand:
    """A node that reads a value twice is one reader; places that are always needed alike are one place."""

    decider: int
    """The variable that decides how the value lies."""
    made: Specs
    groups: tuple[Group, ...]
    finish: bool
    """Whether it is an output that nobody asked for in a sharding, and may be pending."""
    home: ShardingSpec | None
    """Where it goes at once, if some way leaves it elsewhere; hubs are for values that stay as they are made."""
    order: tuple[tuple[int, Specs], ...]
    """All that is wanted, in the order of lowering, with the variable that decides it."""
    signature: object
    domain: Specs
    """The shardings that a hub may have."""

    @property
    def count(self) -> int:
        return len(self.groups) + self.finish

    @property
    def places(self) -> int:
        """In how many places it is wanted; one variable may want it in two shardings."""
        return sum(len(group.specs) for group in self.groups) + self.finish

    @property
    def is_shared(self) -> bool:
        return self.count > 1

    @cached_property
    def pending(self) -> npt.NDArray[np.bool_]:
        return np.array([bool(spec.partial) for spec in self.made], np.bool_)

    def wanted(self, choice: Sequence[int], source: ShardingSpec) -> list[ShardingSpec]:
        found = [specs[0] if variable < 0 else specs[choice[variable]] for variable, specs in self.order]
        return [*found, finished(source)] if self.finish else found


@dataclass
class Demands:
    """Of all values of a graph; equal values share their domains."""

    assigner: Assigner
    _known: dict[int, Demand] = field(default_factory=dict)
    _domains: dict[object, Specs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outputs: dict[int, list[int]] = {}
        for i, value in enumerate(self.assigner.graph.outputs):
            self.outputs.setdefault(value, []).append(i)

    def of(self, value: int) -> Demand:
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._make(value)
        return found

    def _make(self, value: int) -> Demand:
        about = self.assigner
        made = about.leaves(value)
        order = [(n, about.needs(n, place)) for n, place in about.readers[value]]
        free = 0
        asked = True
        for i in self.outputs.get(value, ()):
            if i in about.updates:
                state = about.updates[i]
                order.append((about.place[state], about.inputs[state]))
            elif i in about.out_specs:
                free -= 1
                order.append((free, about.alike((about.out_specs[i].closed(),))))
            else:
                asked = False
        groups: dict[int, dict[int, Specs]] = {}
        for variable, specs in order:
            groups.setdefault(variable, {})[id(specs)] = specs
        finish = not asked and any(spec.partial for spec in made)
        # Equal lists are one object (`Assigner.alike`), so identities say it all.
        signature = (id(made), tuple((at < 0, *places) for at, places in groups.items()), finish)
        domain = self._domains.get(signature)
        if domain is None:
            ends = map(finished, made) if finish else ()
            there = dict.fromkeys([*made, *(spec for _, specs in order for spec in specs), *ends])
            domain = self._domains[signature] = tuple(there)
        listed = tuple(Group(at, tuple(places.values())) for at, places in groups.items())
        home = about.home(value)
        return Demand(about.decider(value), made, listed, finish, home, tuple(order), (signature, home), domain)
