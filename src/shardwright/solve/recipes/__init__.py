"""Named baseline plans: what people do by hand, for any training step they fit.

| recipe | batch | parameters | optimizer state | activations |
|---|---|---|---|---|
| `replicated` | whole | whole | whole | whole |
| `dp` | cut by all axes | whole | whole | follow the batch |
| `zero1`, `zero2` | cut | whole | cut | follow the batch |
| `zero3`, `fsdp` | cut | cut, gathered for each use | cut | follow the batch |
| `hsdp` | cut | cut by the last axis, copied along the others | cut by the last axis | follow the batch |
| `megatron` | cut by all axes but the last | column after row over the last | as their parameters | whole between products |
| `sequence` | as `megatron` | as `megatron` | as `megatron` | cut along the sequence between products |
| `fsdp+tp` | as `megatron` | as `megatron`, and cut by the other axes | as their parameters | as `megatron` |
| `fsdp+tp+sequence` | as `megatron` | as `fsdp+tp` | as their parameters | as `sequence` |

ZeRO's first two stages are one here: a gradient is reduced straight into the shards of the state that it updates, by a
reduce_scatter, and never whole on any device.

Batch and parameters are told as `parts` says.  A tensor is cut along the first dim that all axes together divide, and
left whole where there is none; a batch that they do not divide is cut by those that do, and so is all else then.
Nothing is found by name: see `tensor` for how columns and rows are told.

| file | what it holds |
|---|---|
| `parts` | what each input is: batch, parameter, or state, and of which parameter; cuts |
| `walk` | `Walk`: from shardings of inputs to how every op is split, node by node |
| `tensor` | `tensor_parallel`: which weights are split by columns, by rows or by vocabulary |
| `costs` | `recipe_complete`, `recipe_cost`: what a recipe makes of a graph, and what that costs |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import SpecError, near_misses
from ...ir.graph import Graph
from ...spec.axes import Axes
from ...spec.mesh import DeviceMesh
from ...spec.sharding import ShardingSpec
from .parts import Known, Parts
from .tensor import tensor_parallel
from .walk import Walk

Specs = dict[int, ShardingSpec]


@dataclass(frozen=True)
class Layout:
    """All that a recipe says: how every value is sharded, and which axes the factors of every node get."""

    values: Specs
    forced: dict[int, tuple[Axes, ...]]


Recipe = Callable[[Graph, DeviceMesh, Known | None], Layout]


def _finish(walk: Walk) -> Layout:
    walk.run()
    return Layout(walk.homes(), dict(walk.axes))


def _zero(batch: bool, parameters: bool, state: bool, inside: bool = False) -> Recipe:
    def make(graph: Graph, mesh: DeviceMesh, known: Known | None) -> Layout:
        parts = Parts(graph, mesh, known)
        data = parts.batch_axes(mesh.axes)
        storage = data[-1:] if inside else data
        inputs = {value: parts.whole(value) for value in graph.inputs}
        if batch:
            inputs |= {value: parts.cut_batch(value, data) for value in parts.batch}
        for values, is_cut in ((parts.parameters, parameters), (parts.state, state)):
            if is_cut:
                inputs |= {value: parts.cut(value, storage) for value in values}
        return _finish(Walk(parts, inputs, data=data))

    return make


def _tensor(sequence: bool, cut: bool) -> Recipe:
    def make(graph: Graph, mesh: DeviceMesh, known: Known | None) -> Layout:
        parts = Parts(graph, mesh, known)
        data, tensor = mesh.axes[:-1], mesh.axes[-1:]
        inputs = tensor_parallel(parts, data, tensor)
        for value in (*parts.parameters, *parts.state) if cut else ():
            inputs[value] = parts.cut(value, data, inputs[value])
        return _finish(Walk(parts, inputs, data, tensor, scatter=sequence))

    return make


_OPTIMIZER, _FULLY = _zero(True, False, True), _zero(True, True, True)

RECIPES: Mapping[str, Recipe] = {
    "replicated": _zero(False, False, False),
    "dp": _zero(True, False, False),
    "zero1": _OPTIMIZER,
    "zero2": _OPTIMIZER,
    "zero3": _FULLY,
    "fsdp": _FULLY,
    "hsdp": _zero(True, True, True, inside=True),
    "megatron": _tensor(sequence=False, cut=False),
    "sequence": _tensor(sequence=True, cut=False),
    "fsdp+tp": _tensor(sequence=False, cut=True),
    "fsdp+tp+sequence": _tensor(sequence=True, cut=True),
}
DISTINCT = tuple({recipe: name for name, recipe in reversed(list(RECIPES.items()))}.values())[::-1]
"""One name for each: whoever tries them all need not try one twice."""


def recipe_layout(name: str, graph: Graph, mesh: DeviceMesh, known: Known | None = None) -> Layout:
    """What a recipe says of a graph; a `PlanInfeasible` where it does not fit."""
    if name not in RECIPES:
        names = ", ".join(RECIPES)
        raise SpecError(f"no recipe is called {name!r}", rows=[("known", names)], help=near_misses(name, RECIPES))
    return RECIPES[name](graph, mesh, known)


def recipe_specs(name: str, graph: Graph, mesh: DeviceMesh) -> Specs:
    """The sharding of every value, by a recipe; ops are then split as these suggest."""
    return recipe_layout(name, graph, mesh).values
