"""Named baseline plans: what people do by hand, for any training step they fit.

| recipe | batch | parameters | optimizer state |
|---|---|---|---|
| `replicated` | whole | whole | whole |
| `dp` | cut by all axes | whole | whole |
| `zero1` | cut | whole | cut |
| `zero3`, `fsdp` | cut | cut | cut |

The batch is what among the inputs is no state; parameters are the state that arithmetic needs.  A tensor is cut along
the first dim that all axes together divide, and left whole where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..cost.overlap import graph_roles
from ..errors import SpecError, near_misses
from ..ir.graph import Graph
from ..spec.mesh import DeviceMesh
from ..spec.sharding import DimSpec, ShardingSpec

Specs = dict[int, ShardingSpec]
Recipe = Callable[[Graph, DeviceMesh], Specs]


def _parts(graph: Graph) -> tuple[list[int], list[int], list[int]]:
    """Inputs: the batch, parameters, and other state."""
    roles = graph_roles(graph)
    state = {graph.inputs[i] for i, _ in graph.updates}
    batch = [value for value in graph.inputs if value not in state]
    parameters = [value for value in graph.inputs if value in state and roles[value] == "weight"]
    return batch, parameters, [value for value in graph.inputs if value in state and value not in parameters]


def _cut(graph: Graph, mesh: DeviceMesh, value: int, first_only: bool = False) -> ShardingSpec:
    shape = graph.type(value).shape
    dims = [DimSpec()] * len(shape)
    for d, size in enumerate(shape[:1] if first_only else shape):
        if size >= mesh.size and size % mesh.size == 0:
            dims[d] = DimSpec(mesh.axes)
            break
    return ShardingSpec(mesh, dims)


def _recipe(batch: bool, parameters: bool, state: bool) -> Recipe:
    def make(graph: Graph, mesh: DeviceMesh) -> Specs:
        found: Specs = {}
        for values, cut, first in zip(_parts(graph), (batch, parameters, state), (True, False, False)):
            for value in values:
                rank = graph.type(value).rank
                found[value] = _cut(graph, mesh, value, first) if cut else ShardingSpec.replicate(mesh, rank)
        return found

    return make


RECIPES: Mapping[str, Recipe] = {
    "replicated": _recipe(False, False, False),
    "dp": _recipe(True, False, False),
    "zero1": _recipe(True, False, True),
    "zero3": _recipe(True, True, True),
    "fsdp": _recipe(True, True, True),
}


def recipe_specs(name: str, graph: Graph, mesh: DeviceMesh) -> Specs:
    """Shardings of the inputs, by a recipe."""
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise SpecError(f"no recipe is called {name!r}", rows=[("known", known)], help=near_misses(name, RECIPES))
    return RECIPES[name](graph, mesh)
