"""What becomes of a weight's axes where it is used: cut for good, gathered first, or cut in its state only.

| use | the weight | where arithmetic reads it | what people call it |
|---|---|---|---|
| ``split`` | split over the axis, or cut on its way | split | tensor parallel |
| ``gathered`` | split | whole | ZeRO-3, FSDP |
| ``state`` | whole, its moments split | whole | ZeRO-1 |
| ``copied`` | whole | whole, and the batch is split | data parallel |
| ``idle`` | whole | whole | replicated |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ..cost.compute import ARITHMETIC, cost_class
from ..frontends.base import BACKWARD, FORWARD, OPTIMIZER
from ..plans.complete import Complete
from ..rules.registry import find
from ..spec.sharding import ShardingSpec
from .places import Places

SPLIT, GATHERED, STATE, COPIED, IDLE = "split", "gathered", "state", "copied", "idle"


class Use(NamedTuple):
    """Axes of the mesh by what is made of them, and the dims that are split where it is used."""

    axes: tuple[tuple[str, str], ...]
    dims: tuple[int, ...]

    def of(self, axis: str) -> str:
        return dict(self.axes)[axis]


def axis_names(spec: ShardingSpec) -> frozenset[str]:
    """The mesh axes that split a tensor, parts of axes by the whole's name."""
    return frozenset(axis.name for axis in spec.sharded_axes)


def activation_dims(places: Places, complete: Complete) -> dict[str, str]:
    """What each mesh axis splits of the activations for most of their bytes: batch, sequence, features, or nothing."""
    graph = places.graph
    weights: dict[str, Counter[str]] = {axis: Counter() for axis in complete.mesh.axis_names}
    for decision in complete.decisions:
        node = graph.nodes[decision.node]
        if places.node_phases[decision.node] != FORWARD:
            continue
        for value, spec in zip(node.results, decision.homes):
            type = graph.type(value)
            if type.rank < 2:
                continue
            split = {axis.name: d for d, dim in enumerate(spec.dims) for axis in dim.axes}
            for axis, count in weights.items():
                d = split.get(axis)
                name = "nothing" if d is None else "batch" if d == 0 else (
                    "features" if d == type.rank - 1 else "sequence")  # fmt: skip
                # What is flattened does not tell the sequence from the batch.
                count[name] += type.bytes * (1 if type.rank > 2 else 0) or 1
    return {axis: count.most_common(1)[0][0] if count else "nothing" for axis, count in weights.items()}


def uses_of(places: Places, complete: Complete) -> Mapping[int, Use]:
    """For every input of the graph what becomes of each mesh axis."""
    graph, homes = places.graph, complete.homes
    batch = {axis for axis, dim in activation_dims(places, complete).items() if dim == "batch"}
    states: dict[str, set[str]] = {}
    for value, about in places.inputs.items():
        if about.role == OPTIMIZER and about.owner:
            states.setdefault(about.owner, set()).update(axis_names(homes[value]))
    found = {}
    for value, about in places.inputs.items():
        home, (used, dims) = axis_names(homes[value]), _where_used(places, complete, value)
        state = states.get(about.name, set())
        axes = tuple(
            (axis, SPLIT if axis in used else GATHERED if axis in home else STATE if axis in state
             else COPIED if axis in batch else IDLE)
            for axis in complete.mesh.axis_names
        )  # fmt: skip
        found[value] = Use(axes, tuple(sorted(dims)))
    assert len(found) == len(graph.inputs)
    return found


def _where_used(places: Places, complete: Complete, value: int) -> tuple[set[str], set[int]]:
    """Axes that split a value, and along which of its dims, in the first op of forward or backward that computes with
    it; views and changes of type are looked through."""
    graph = places.graph
    axes, dims, todo, seen = set[str](), set[int](), [value], {value}
    while todo:
        current = todo.pop()
        for n in graph.uses[current]:
            node, decision = graph.nodes[n], complete.decisions[n]
            if places.node_phases[n] not in (FORWARD, BACKWARD):
                continue
            alone = len(node.inputs) == 1 and cost_class(find(node.op)) not in ARITHMETIC
            if alone and graph.type(node.results[0]).rank == graph.type(value).rank:
                new = [result for result in node.results if result not in seen]
                seen.update(new)
                todo += new
                if any(graph.uses[result] for result in new):
                    continue
            for operand, spec in zip(node.inputs, decision.operands):
                if operand == current:
                    axes |= axis_names(spec)
                    dims |= {d for d, dim in enumerate(spec.dims) if dim.axes}
        if axes:
            break
    return axes, dims
