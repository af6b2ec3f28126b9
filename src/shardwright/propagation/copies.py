"""`Copies`: which copies of each value exist while a program is gone through, node by node.

The one place that says so.  Completing asks it for bytes, costs for time, lowering for instructions; they differ in
what a copy *is* to them, and in what making one by a step of a reshard does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from ..ir.graph import Graph
from ..plans.complete import Complete, held_by_caller
from ..spec.axes import Axes
from ..spec.resharding.single_steps import steps_to
from ..spec.resharding.steps import Step
from ..spec.sharding import ShardingSpec, sort_partial

T = TypeVar("T")
Make = Callable[[int, T, Step, str], T]
"""From a value, a copy of it, a step and why: the copy that the step makes."""


class Copies(Generic[T]):
    """The copies of every value, as they are made and let go."""

    def __init__(self, graph: Graph, make: Make[T], decided: Complete | None = None) -> None:
        self.graph, self.make = graph, make
        self.of: dict[int, dict[ShardingSpec, T]] = {}
        self.sources: Mapping[int, Mapping[ShardingSpec, ShardingSpec]] = {} if decided is None else decided.sources
        self.kept: Mapping[int, ShardingSpec] = {} if decided is None else decided.kept
        self._stay = held_by_caller(decided) if decided is not None and decided.kept else {}

    def start(self, value: int, spec: ShardingSpec, copy: T) -> None:
        """A value is there in this sharding, and in no other."""
        self.of[value] = {spec.closed(): copy}

    def bring(self, value: int, spec: ShardingSpec, cause: str = "") -> T:
        """A copy in this sharding: the one at hand, or made from the one that was said, or else from the nearest."""
        spec, there = spec.closed(), self.of[value]
        found = there.get(spec)
        if found is not None:
            return found
        source = self.sources.get(value, {}).get(spec)
        if source is not None:
            self.bring(value, source, cause)
        type = self.graph.type(value)
        best, steps = steps_to(spec, list(there), source, type.shape, type.item_bytes)
        copy = list(there.values())[best]
        for step in steps:
            copy = self.make(value, copy, step, cause)
        there[spec] = copy
        return copy

    def settle(self, value: int, made: ShardingSpec, home: ShardingSpec, copy: T, cause: str = "") -> None:
        """What a node made; where a sharding is pinned it goes there at once, and what was made is let go."""
        self.start(value, made, copy)
        if not home.same_layout(made):
            self.bring(value, home, cause)
            del self.of[value][made.closed()]

    def pend(self, value: int, spec: ShardingSpec, axes: Axes, cause: str = "") -> T:
        """A copy that is pending over these axes: zero on all devices along them but one, so that it counts once in a
        sum."""
        pending = sort_partial([*spec.partial, *((axis, "sum") for axis in axes)], spec.mesh)
        target = ShardingSpec.make(spec.mesh, spec.dims, pending)
        there = self.of[value]
        if target not in there:
            step = Step("to_partial", axes, spec, target, 0, 0, reduction="sum")
            there[target] = self.make(value, self.bring(value, spec), step, cause)
        return there[target]

    def let_go(self, values: Iterable[int], cause: str = "") -> None:
        """After a node: of what is to be kept in one sharding, copies in others go; what the caller holds stays."""
        for value in dict.fromkeys(values) if self.kept else ():
            kept = self.kept.get(value)
            if kept is not None:
                self.bring(value, kept, cause)
                at_hand = [kept.closed(), *self._stay.get(value, ())]
                self.of[value] = {spec: copy for spec, copy in self.of[value].items() if spec in at_hand}
