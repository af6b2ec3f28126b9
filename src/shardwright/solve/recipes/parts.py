"""What each input of a program is, and how it may be cut.

A training step updates its state.  Parameters are the state that arithmetic needs; other state belongs to the parameter
whose update it has a part in and whose shape it has.  The batch is what the Source says is data with a dim that counts
examples; parameters that nothing updates are parameters too (`Known`).  Where there is no Source that knows parameters,
the batch is all that is no state, and a program without state is taken to have its batch first and parameters behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import combinations
from math import prod
from typing import NamedTuple

from ...cost.overlap import graph_roles
from ...ir.graph import Graph
from ...spec.axes import Axes, axes_size
from ...spec.mesh import DeviceMesh
from ...spec.sharding import DimSpec, ShardingSpec


class Known(NamedTuple):
    """What a Source says of its inputs, by name."""

    batch: Mapping[str, int]
    """Data, and the dim of each that counts examples."""
    parameters: frozenset[str]


class Parts:
    """The inputs of a graph by what they are."""

    def __init__(self, graph: Graph, mesh: DeviceMesh, known: Known | None = None) -> None:
        self.graph, self.mesh, self.known = graph, mesh, known
        self.roles = graph_roles(graph)
        state = {graph.inputs[i] for i, _ in graph.updates}
        self.batch = [value for value in graph.inputs if value not in state]
        self.parameters = [value for value in graph.inputs if value in state and self.roles[value] == "weight"]
        self.state = [value for value in graph.inputs if value in state and value not in self.parameters]
        self.weights = self.parameters if state else list(graph.inputs[1:])
        """What columns and rows are looked for in."""
        if known is not None:
            frozen = [v for v in graph.inputs if v not in state and graph.values[v].name in known.parameters]
            self.batch = [v for v in self.batch if graph.values[v].name in known.batch]
            self.parameters = self.weights = [*self.parameters, *frozen]

    @cached_property
    def owners(self) -> dict[int, int]:
        """State -> the parameter that it belongs to."""
        graph = self.graph
        new = {graph.inputs[i]: graph.outputs[output] for i, output in graph.updates}
        state, found = set(self.state), dict[int, int]()
        for parameter in (value for value in self.parameters if value in new):
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
        """The first dim that most of the batch has, or else the most bytes: tables beside it have another."""
        votes: dict[int, tuple[int, int]] = {}
        if self.known is not None:
            sizes = [self.graph.type(v).shape[self._batch_dim(v)] for v in self.batch]
            return max(sizes, key=sizes.count, default=0)
        for value in self.batch if self.state or self.parameters else self.graph.inputs[:1]:
            if shape := self.graph.type(value).shape:
                count, bytes = votes.get(shape[0], (0, 0))
                votes[shape[0]] = (count + 1, bytes + size_of(self.graph, value))
        return max(votes, key=lambda size: votes[size], default=0)

    def cut_batch(self, value: int, axes: Axes) -> ShardingSpec:
        """Cut along the batch, where that divides."""
        shape, dim = self.graph.type(value).shape, self._batch_dim(value)
        is_cut = shape and shape[dim] == self.batch_size and divides(shape[dim], axes)
        return on_dim(self.whole(value), dim, axes) if is_cut else self.whole(value)

    def _batch_dim(self, value: int) -> int:
        return 0 if self.known is None else self.known.batch[self.graph.values[value].name]

    def batch_axes(self, axes: Axes) -> Axes:
        """Those that cut the batch: all, or the most that together divide it; all where none does."""
        if not self.batch or divides(self.batch_size, axes):
            return axes
        some = (part for count in range(1, len(axes)) for part in combinations(axes, count))
        fitting = [part for part in some if divides(self.batch_size, part)]
        return max(fitting, key=axes_size, default=axes)

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
