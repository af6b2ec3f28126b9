"""Collectives that a program holds already: their rules, run.

Such an op stands in a part of a program that is written for one device of some axes, its replicas; each of them has
an array of its own.  The rule says how these arrays may be split over the *other* axes of the mesh.  So here a device
of the mesh stands for all replicas and holds as many arrays, the op works on those, and what the devices of a mesh
make of their shards must be the shards of what the replicas make of whole arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shardwright.discover.book.numpy_mesh import GRID, LINE, SIZES, Case, check_output
from shardwright.discover.operator import Array
from shardwright.errors import VerifyError
from shardwright.frontends.numpy.samples import ALL, NUMBERS, Sample, arguments
from shardwright.ir.graph import GraphBuilder, TensorType
from shardwright.ir.program import Program
from shardwright.propagation import rule_of
from shardwright.run import NumpyArrays, VirtualEngine, scatter
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

REPLICAS = 4
PAIRS = ((0, 2), (3, 1))
"""Two groups, one of them not in order."""
Replicas = list[Array]


class ReplicaArrays(NumpyArrays):
    """What collectives of the mesh do, for each replica."""

    def concatenate(self, parts: Sequence[Any], dim: int) -> Any:
        return [super(ReplicaArrays, self).concatenate(same, dim) for same in zip(*parts)]

    def part(self, array: Any, dim: int, start: int, stop: int) -> Any:
        return [super(ReplicaArrays, self).part(one, dim, start, stop) for one in array]

    def shape(self, array: Any) -> tuple[int, ...]:
        return array[0].shape

    def item_bytes(self, array: Any) -> int:
        return array[0].dtype.itemsize


# -- what the ops do, by StableHLO's definitions ----------------------------------------------------------


def all_reduce(parts: list[Array], attrs: Mapping[str, Any]) -> list[Array]:
    return [REDUCE[attrs["reduction"]].reduce(np.stack(parts))] * len(parts)


def reduce_scatter(parts: list[Array], attrs: Mapping[str, Any]) -> list[Array]:
    return np.split(all_reduce(parts, attrs)[0], len(parts), attrs["scatter_dimension"])


def all_gather(parts: list[Array], attrs: Mapping[str, Any]) -> list[Array]:
    return [np.concatenate(parts, attrs["all_gather_dim"])] * len(parts)


def all_to_all(parts: list[Array], attrs: Mapping[str, Any]) -> list[Array]:
    cut = [np.split(part, len(parts), attrs["split_dimension"]) for part in parts]
    return [np.concatenate(received, attrs["concat_dimension"]) for received in zip(*cut)]


def collective_broadcast(parts: list[Array], attrs: Mapping[str, Any]) -> list[Array]:
    return parts[:1] * len(parts)


REDUCE = {"add": np.add, "max": np.maximum, "or": np.logical_or}
IN_GROUPS = {op.__name__: op for op in (all_reduce, reduce_scatter, all_gather, all_to_all, collective_broadcast)}


def exchange(op: str, attrs: Mapping[str, Any], given: Replicas) -> Replicas:
    """One operand's arrays, by replica, to its result's; who takes no part gets zeros."""
    made: list[Any] = [np.zeros_like(one) for one in given]
    if op == "collective_permute":
        for source, target in attrs["source_target_pairs"]:
            made[target] = given[source]
        return made
    for group in attrs["replica_groups"]:
        for replica, part in zip(group, IN_GROUPS[op]([given[member] for member in group], attrs)):
            made[replica] = part
    return made


def prepare(op: str, attrs: Mapping[str, Any], results: Sequence[TensorType]) -> Callable[..., Any]:
    name = op.removeprefix("stablehlo.")
    return lambda operands: tuple(exchange(name, attrs, operand) for operand in operands)


# -- running them ---------------------------------------------------------------------------------------


@dataclass
class ReplicaCase(Case):
    """Inputs and outputs have one array for each replica."""

    @classmethod
    def made(cls, op: str, exchanged: Exchanged, sizes: tuple[int, int], dtype: str, special: bool) -> ReplicaCase:
        sample = Sample(None, exchanged.shapes * REPLICAS, (dtype,))
        arrays = arguments(sample, sizes, dtype, special)
        count = len(exchanged.shapes)
        inputs = [arrays[i::count] for i in range(count)]
        if special:  # not the same places in all
            inputs = [[np.roll(one, r) for r, one in enumerate(replicas)] for replicas in inputs]
        expected = [exchange(op.removeprefix("stablehlo."), exchanged.attrs, given) for given in inputs]
        builder = GraphBuilder(op)
        name = {"?": "bool", "f8": "f64", "f4": "f32", "f2": "f16", "i8": "i64"}[dtype]
        reads = [builder.input(given[0].shape, name) for given in inputs]
        made = builder.op(op, reads, [one[0].shape for one in expected], dtype=name, attrs=exchanged.attrs)
        graph = builder.finish(made if isinstance(made, tuple) else [made])
        view = rule_of(graph, graph.nodes[0])
        assert view is not None
        return cls(op, graph, inputs, expected, {0: view.rule})

    def execute(self, program: Program, specs: Sequence[ShardingSpec]) -> None:
        shards = [
            [list(parts) for parts in zip(*(scatter(one, spec) for one in replicas))]
            for replicas, spec in zip(self.inputs, specs)
        ]
        outputs, executed = VirtualEngine(program.mesh, prepare, ReplicaArrays()).compile(program).run(shards)
        assert executed.collectives == program.collectives
        for value, parts, expected in zip(program.outputs, outputs, self.expected):
            for replica in range(REPLICAS):
                check_output(program.values[value], [part[replica] for part in parts], expected[replica])


@dataclass(frozen=True)
class Exchanged:
    """A call: the shapes of one replica's operands, written as in samples."""

    shapes: tuple[str, ...]
    attrs: Mapping[str, Any]
    dtypes: tuple[str, ...] = NUMBERS


EXCHANGES: dict[str, list[Exchanged]] = {
    "stablehlo.all_reduce": [
        Exchanged(("n m",), {"reduction": "add", "replica_groups": PAIRS}),
        Exchanged(("n m", "n m"), {"reduction": "max", "replica_groups": ((0, 1, 2, 3),)}),
        Exchanged(("n m",), {"reduction": "or", "replica_groups": PAIRS}, ("?",)),
    ],
    "stablehlo.reduce_scatter": [
        Exchanged(("n 2m",), {"reduction": "add", "replica_groups": PAIRS, "scatter_dimension": 1}),
        Exchanged(("4n m 2",), {"reduction": "max", "replica_groups": ((2, 1, 0, 3),), "scatter_dimension": 0}),
    ],
    "stablehlo.all_gather": [
        Exchanged(("n m",), {"replica_groups": PAIRS, "all_gather_dim": 1}, ALL),
        Exchanged(("n m 2", "n m 2"), {"replica_groups": ((2, 1, 0, 3),), "all_gather_dim": 0}),
    ],
    "stablehlo.all_to_all": [
        Exchanged(("2n m",), {"replica_groups": PAIRS, "split_dimension": 0, "concat_dimension": 0}, ALL),
        Exchanged(("n 2m 3",), {"replica_groups": PAIRS, "split_dimension": 1, "concat_dimension": 2}),
    ],
    "stablehlo.collective_broadcast": [
        Exchanged(("n m",), {"replica_groups": ((3, 1), (0,))}, ALL),
        Exchanged(("n m", "n m"), {"replica_groups": ((2, 0, 1, 3),)}),
    ],
    "stablehlo.collective_permute": [
        Exchanged(("n m",), {"source_target_pairs": ((0, 1), (1, 3), (3, 0))}, ALL),
        Exchanged(("n m 2",), {"source_target_pairs": ((0, 1), (1, 2), (2, 3), (3, 0))}),
    ],
}


@pytest.mark.parametrize("op", EXCHANGES)
def test_rule_by_execution(op: str) -> None:
    for exchanged in EXCHANGES[op]:
        split = 0
        for sizes, dtype, special in itertools.chain(
            ((sizes, exchanged.dtypes[0], False) for sizes in SIZES.values()),
            (((5, 4), dtype, dtype[0] == "f") for dtype in exchanged.dtypes),
        ):
            case = ReplicaCase.made(op, exchanged, sizes, dtype, special)
            for mesh in LINE:
                split = max(split, sum(case.check(mesh, (f,)) for f in range(case.factors)))
            for mesh in GRID:
                for places in itertools.product(range(case.factors), repeat=2):
                    case.check(mesh, places)
        assert split, f"no factor of {op} was split"


def test_an_exchanged_dim_cannot_be_split() -> None:
    """The check must bite: exchanging parts of a dim is not the same as parts of the exchanged dim."""
    op = "stablehlo.all_to_all"
    case = ReplicaCase.made(op, EXCHANGES[op][0], (4, 3), "f8", False)
    loose = OpShardingRule.parse("i j -> i j | i=8 j=3")
    case.run(LINE[0], {0: ((), LINE[0].axes)}, loose)
    with pytest.raises(VerifyError, match="differs from the unsharded result"):
        case.run(LINE[0], {0: (LINE[0].axes, ())}, loose)
