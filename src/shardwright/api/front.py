"""`reshard`, `needs_reshard`, `propagate` and the like on what users have in hand: text, ``P(...)``, functions.

The rooms below take their own types; here what a user writes is read first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import GraphError, SpecError, front, near_misses
from ..frontends.base import capture_source
from ..ir.graph import Graph
from ..propagation import Propagated, rule_of, run_hierarchical_propagation_pass
from ..propagation import propagate_sharding as propagate_op
from ..rules.extract import GraphExtractor as OfGraph
from ..spec.mesh import DeviceMesh
from ..spec.resharding.cheapest import reshard as reshard_specs
from ..spec.resharding.steps import Step
from ..spec.rule import OpShardingRule
from ..spec.sharding import P, ShardingSpec
from ..spec.sharding import needs_reshard as specs_differ


def _specs(specs: Sequence[Any], mesh: Any, ranks: Sequence[int]) -> list[ShardingSpec]:
    """Shardings from what was written; those that know their mesh say which one."""
    known = next((spec.mesh for spec in specs if isinstance(spec, ShardingSpec)), None)
    on = known if mesh is None else DeviceMesh.of(mesh)
    if on is None:
        raise SpecError("these shardings do not say of which mesh they are", help='pass mesh="dp=2, tp=4"')
    return [ShardingSpec.of(spec, on, rank) for spec, rank in zip(specs, ranks)]


@front
def reshard(
    source: Any, target: Any, shape: Sequence[int], item_bytes: int = 4, *, mesh: Any = None, **options: Any
) -> tuple[Step, ...]:
    """Steps from one sharding of a tensor to another, at least cost; both as ``P(...)``, text or specs.

    `shardwright.spec.resharding` says where that is the least possible.

    >>> from shardwright import P
    >>> [step.kind for step in reshard(P("x", None), P(None, "x"), (8, 8), mesh="x=4")]
    ['all_to_all']
    """
    if not isinstance(shape, list | tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise SpecError(f"{shape!r} is no shape of a tensor", help="write the size of every dim, such as (8, 16)")
    before, after = _specs([source, target], mesh, [len(shape)] * 2)
    return reshard_specs(before, after, tuple(shape), item_bytes, **options)


@front
def needs_reshard(source: Any, target: Any, *, mesh: Any = None, rank: int | None = None) -> bool:
    """Whether data has to move, or be combined, to get from one sharding to the other (None: replicated).

    >>> needs_reshard("[x, _]", "[_, x]", mesh="x=2"), needs_reshard("[x, _]", "[x, _]", mesh="x=2")
    (True, False)
    """
    said = [spec for spec in (source, target) if spec is not None]
    if all(isinstance(spec, ShardingSpec) for spec in said):
        return specs_differ(source, target)
    ranks = [rank if rank is not None else _rank(said)] * len(said)
    read = iter(_specs(said, mesh, ranks))
    return specs_differ(*(None if spec is None else next(read) for spec in (source, target)))


def _rank(specs: Sequence[Any]) -> int:
    """How many dims a tensor has, as its shardings tell: the longest `P` or list, or text as it is written."""
    counts = [spec.rank for spec in specs if isinstance(spec, ShardingSpec)]
    counts += [len(spec.strip().strip("[]").split(",")) for spec in specs if isinstance(spec, str)]
    counts += [len(spec) for spec in specs if isinstance(spec, P)]
    if not counts:
        raise SpecError("these shardings do not say how many dims the tensor has", help="pass rank=")
    return max(counts)


@front
def propagate_sharding(rule: Any, specs: Sequence[Any], *, mesh: Any = None, **options: Any) -> tuple[Any, ...]:
    """One op: the shardings of its operands, then results, with everything spread that can be.

    ``rule`` is text with sizes or an `OpShardingRule`; shardings are specs, ``P(...)``, text, None where nobody said.

    >>> print(*propagate_sharding("m k, k n -> m n | m=8 k=4 n=8", ["[dp, _]", None, None], mesh="dp=2"))
    [dp, _] None [dp+?, ?]
    """
    bound = OpShardingRule.parse(rule) if isinstance(rule, str) else rule
    if len(specs) != len(bound.tensors):
        raise SpecError(
            f"{len(specs)} shardings for an op of {len(bound.tensors)} operands and results",
            rows=[("rule", str(bound))], help="give one for each, None where nobody said",
        )  # fmt: skip
    if any(spec is not None and not isinstance(spec, ShardingSpec) for spec in specs):
        said = [spec for spec in specs if spec is not None]
        ranks = [len(mapped) for mapped, spec in zip(bound.tensors, specs) if spec is not None]
        read = iter(_specs(said, mesh, ranks))
        specs = [None if spec is None else next(read) for spec in specs]
    return propagate_op(bound, specs, **options)


@front
def propagate(
    graph: Graph | Callable[..., Any],
    mesh: object,
    specs: Mapping[str, object],
    out_specs: Mapping[int, object] | None = None,
    *,
    args: tuple[Any, ...] = (),
) -> Propagated:
    """Spread shardings over a graph, or over a function of ``args``: ``specs`` by name, ``out_specs`` by output.

    >>> graph = Graph.parse("graph f(%x: f32[8, 4]) { %y = exp(%x) : f32[8, 4] return %y }")
    >>> print(propagate(graph, "dp=2", {"x": "[dp, _]"})["y"])
    [dp+?, ?]
    """
    graph = _graph_of(graph, args, {})
    on = DeviceMesh.of(mesh)
    for name in specs:
        if name not in graph.by_name:
            raise GraphError(
                f"no value is called {name!r}",
                rows=[("inputs", ", ".join(graph.values[value].name for value in graph.inputs))],
                help=near_misses(name, graph.by_name),
            )
    said = {
        graph.by_name[name]: ShardingSpec.of(spec, on, graph.type(graph.by_name[name]).rank)
        for name, spec in specs.items()
    }
    outs = {i: ShardingSpec.of(spec, on, graph.type(graph.outputs[i]).rank) for i, spec in (out_specs or {}).items()}
    return run_hierarchical_propagation_pass(graph, said, rule_of, out_specs=outs)


def _graph_of(item: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Graph:
    if isinstance(item, Graph):
        return item
    graph = getattr(item, "graph", None)
    if isinstance(graph, Graph):
        return graph
    if isinstance(item, str):
        return Graph.parse(item)
    return capture_source(item, args, kwargs).graph


class GraphExtractor(OfGraph):
    """The extractor of a program's JSON; takes a graph, its text, what was captured, or a function with arguments."""

    def __init__(self, program: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(_graph_of(program, args, kwargs))


__all__ = ["GraphExtractor", "needs_reshard", "propagate", "propagate_sharding", "reshard"]
