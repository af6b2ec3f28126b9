"""Where each axis on each tensor came from: "from argument 0, through node 3"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ir.graph import Graph
from ..spec.axes import Axes, AxisRef
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec
from .project import Projection


@dataclass(frozen=True, slots=True)
class Link:
    """One step back: through ``node`` (None: directly) to ``value`` (``~i`` is what was said of output i)."""

    node: int | None
    value: int
    dim: int


@dataclass
class Provenance:
    """For every value and dim, the axes that propagation put there and the step they came by."""

    links: dict[tuple[int, int], list[tuple[AxisRef, Link]]] = field(default_factory=dict)

    def add(self, value: int, dim: int, axes: Axes, link: Link) -> None:
        if axes:
            self.links.setdefault((value, dim), []).extend((axis, link) for axis in axes)

    def find(self, value: int, dim: int, axis: AxisRef) -> Link | None:
        for known, link in self.links.get((value, dim), ()):
            if known.overlaps(axis):
                return link
        return None

    def path(self, value: int, dim: int, axis: AxisRef) -> tuple[int, list[int]]:
        """The value an axis started from, and the nodes it went through, nearest first."""
        nodes: list[int] = []
        seen: set[tuple[int, int]] = set()
        while (value, dim) not in seen and (link := self.find(value, dim, axis)) is not None:
            seen.add((value, dim))
            if link.node is not None:
                nodes.append(link.node)
            value, dim = link.value, link.dim
            if value < 0:
                break
        return value, nodes

    def explain(self, graph: Graph, specs: Sequence[ShardingSpec | None], value: int, dim: int) -> str:
        spec = specs[value]
        if spec is None or not spec.dims[dim].axes:
            return f"dim {dim} of %{graph.values[value].name} is not cut"
        reasons = []
        for axis in spec.dims[dim].axes:
            start, nodes = self.path(value, dim, axis)
            reason = f"{axis}: from {start_text(graph, start)}"
            if nodes:
                through = ", ".join(f"node {n} ({graph.nodes[n].op})" for n in reversed(nodes))
                reason += f", through {through}"
            reasons.append(reason)
        return "; ".join(reasons)


def start_text(graph: Graph, value: int) -> str:
    if value < 0:
        return f"output {~value}"
    if value in graph.inputs:
        return f"argument {graph.inputs.index(value)} (%{graph.values[value].name})"
    return f"%{graph.values[value].name} itself"


def new_axes(
    rule: OpShardingRule, before: Sequence[dict[int, Axes]], after: Projection, tensor: int
) -> tuple[tuple[int, Axes, int, int], ...]:
    """For a changed tensor: (dim, added axes, tensor they come from, its dim), factor by factor."""
    links = []
    for d, dim in enumerate(rule.tensors[tensor]):
        for f in dim:
            had = before[tensor][f]
            added = tuple(axis for axis in after.tensors[tensor].factors[f].axes if axis not in had)
            if not added:
                continue
            source = _source(before, tensor, f, added)
            if source is not None:
                source_dim = next(i for i, facs in enumerate(rule.tensors[source]) if f in facs)
                links.append((d, added, source, source_dim))
    return tuple(links)


def _source(before: Sequence[dict[int, Axes]], tensor: int, f: int, added: Axes) -> int | None:
    """The first tensor that already had these axes on this factor."""
    for t, factors in enumerate(before):
        if t != tensor and any(axis.overlaps(added[-1]) for axis in factors.get(f, ())):
            return t
    return None
