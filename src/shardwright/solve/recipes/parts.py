"""What each input of a program is, and how it may be cut.

A training step updates its state.  Parameters are the state that arithmetic needs; other state belongs to the parameter
whose update it has a part in and whose shape it has; the batch is the rest.  A program without state is taken to have
its batch first and parameters behind it.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

from ...cost.overlap import graph_roles
from ...ir.graph import Graph
from ...spec.axes import Axes, axes_size
from ...spec.mesh import DeviceMesh
from ...spec.sharding import DimSpec, ShardingSpec


class Parts:
    """The inputs of a graph by what they are."""

    def __init__(self, graph: Graph, mesh: DeviceMesh) -> None:
        self.graph, self.mesh = graph, mesh
        self.roles = graph_roles(graph)
        state = {graph.inputs[i] for i, _ in graph.updates}
        self.batch = [value for value in graph.inputs if value not in state]
        self.parameters = [value for value in graph.inputs if value in state and self.roles[value] == "weight"]
        self.state = [value for value in graph.inputs if value in state and value not in self.parameters]
        self.weights = self.parameters if state else list(graph.inputs[1:])
        """What columns and rows are looked for in."""

    @cached_property
    def owners(self) -> dict[int, int]:
        """State -> the parameter that it belongs to."""
        graph = self.graph
        new = {graph.inputs[i]: graph.outputs[output] for i, output in graph.updates}
        state, found = set(self.state), dict[int, int]()
        for parameter in self.parameters:
            shape, seen, left = graph.type(parameter).shape, {new[parameter]}, [new[parameter]]
            while left:
                value = left.pop()
                if value in state and graph.type(value).shape == shape:
                    found.setdefault(value, parameter)
                producer = graph.values[value].producer
                if producer is None or self.roles[value] not in ("gradient", "renewed"):
                    continue
                for read in graph.nodes[producer[0]].inputs:
                    if read not in seen and graph.type(read).shape == shape:
                        seen.add(read)
                        left.append(read)
        return found

    def whole(self, value: int) -> ShardingSpec:
        return ShardingSpec.replicate(self.mesh, self.graph.type(value).rank)

    @cached_property
    def batch_size(self) -> int:
        """The first dim that most of the batch has, or else the most bytes: tables that lie beside it have another."""
        votes: dict[int, tuple[int, int]] = {}
        for value in self.batch if self.state or self.parameters else self.graph.inputs[:1]:
            if shape := self.graph.type(value).shape:
                count, bytes = votes.get(shape[0], (0, 0))
                votes[shape[0]] = (count + 1, bytes + size_of(self.graph, value))
        return max(votes, key=lambda size: votes[size], default=0)

    def cut_batch(self, value: int, axes: Axes) -> ShardingSpec:
        """Cut along the batch, where that divides."""
        shape = self.graph.type(value).shape
        is_cut = shape and shape[0] == self.batch_size and divides(shape[0], axes)
        return on_dim(self.whole(value), 0, axes) if is_cut else self.whole(value)

    def cut(self, value: int, axes: Axes, lies: ShardingSpec | None = None) -> ShardingSpec:
        """Cut along the first whole dim that divides.

        A dim that is cut already is left so: cut once more, by axes that come before in the mesh, it would be in an
        order that PyTorch's placements do not say.
        """
        spec, shape = lies or self.whole(value), self.graph.type(value).shape
        for d, size in enumerate(shape):
            if not spec.dims[d].axes and divides(size, axes):
                return on_dim(spec, d, axes)
        return spec


def divides(size: int, axes: Axes) -> bool:
    """Whether axes cut a dim, and into equal parts that are not empty."""
    return bool(axes) and size > 0 and size % axes_size(axes) == 0


def on_dim(spec: ShardingSpec, dim: int, axes: Axes) -> ShardingSpec:
    """The same sharding with more axes on a dim."""
    dims = list(spec.dims)
    dims[dim] = DimSpec((*dims[dim].axes, *axes))
    return ShardingSpec.make(spec.mesh, tuple(dims), spec.partial)


def size_of(graph: Graph, value: int) -> int:
    """Bytes of a whole value."""
    type = graph.type(value)
    return prod(type.shape) * type.item_bytes
