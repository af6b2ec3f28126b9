"""Reads Shardy's test vectors into our own nouns.

A record holds one function before and after a pass of Shardy.  Meshes are compared by what they are, not by
name.  Two meshes are special: one without axes and without devices says nothing; one without axes but with a
device id is that single device.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.ir.core import CONSTANT, CONSTRAINT
from shardwright.ir.graph import Graph, Node, TensorType, Value
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.rule import Factor, OpShardingRule, factor_name
from shardwright.spec.sharding import DimSpec, ShardingSpec

PLAIN_TAGS = {
    "rewritten",
    "priority",
    "multi_mesh",
    "sdy.reshard",
    "sdy.sharding_constraint",
    "sdy.sharding_group",
    "sdy.propagation_barrier",
    "sdy.constant",
}
DTYPES = {"i1": "bool", "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64", "i4": "i8", "ui4": "u8"}
OUR_OPS = {
    "sdy.sharding_constraint": CONSTRAINT,
    "sdy.constant": CONSTANT,
    "stablehlo.constant": CONSTANT,
}
KNOWN = {"bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64"}


def load(path: Path) -> list[dict[str, Any]]:
    data = json.loads(path.read_text())
    if isinstance(data, dict):  # programs that share one mesh
        return [{"mesh": data["mesh"], **case} for case in data["cases"]]
    return data


def odd_tags(record: dict[str, Any]) -> list[str]:
    """Tags that take a record out of the plain ones."""
    return sorted(set(record.get("tags", [])) - PLAIN_TAGS)


def tensor_type(type: dict[str, Any]) -> TensorType:
    shape = type.get("shape")
    dtype = DTYPES.get(type.get("dtype"), type.get("dtype"))
    if shape is None:
        return TensorType((), "token")
    return TensorType(tuple(max(size, 0) for size in shape), dtype if dtype in KNOWN else "f32")


def read_rule(rule: dict[str, Any] | None) -> OpShardingRule | None:
    """Shardy's rule in ours: its reduced factors are summed in every result that lacks them."""
    if rule is None:
        return None
    reduction = set(rule["reduction"])
    factors = tuple(
        Factor(
            factor_name(f),
            size,
            whole=f in rule["need_replication"],
            permuted=f in rule["permutation"],
            blocked=f in rule["blocked"],
        )
        for f, size in enumerate(rule["sizes"])
    )
    operands = tuple(tuple(tuple(dim) for dim in tensor) for tensor in rule["operands"])
    results = tuple(tuple(tuple(dim) for dim in tensor) for tensor in rule["results"])
    reductions = tuple(
        tuple((f, "sum") for f in sorted(reduction - {f for dim in result for f in dim})) for result in results
    )
    return OpShardingRule(factors, operands, results, reductions)


@dataclass
class Meshes:
    """The meshes of a record, by name."""

    records: dict[str, Any]
    found: dict[str, DeviceMesh] = field(default_factory=dict)

    def __getitem__(self, name: str) -> DeviceMesh:
        if name not in self.found:
            self.found[name] = self._read(name)
        return self.found[name]

    def _read(self, name: str) -> DeviceMesh:
        if name not in self.records and name.startswith("#sdy.mesh"):
            return DeviceMesh({axis: int(size) for axis, size in re.findall(r'"(\w+)"=(\d+)', name)})
        if name not in self.records and self.found:  # an inlined mesh that the pass has given a name
            return next(iter(self.found.values()))
        record = self.records[name]
        axes, ids = dict(record["axes"]), record["device_ids"] or None
        if not axes and ids:
            return DeviceMesh({"device": 1}, device_ids=ids)
        return DeviceMesh(axes, device_ids=ids)

    def spec(self, sharding: dict[str, Any] | None, rank: int) -> ShardingSpec | None:
        if sharding is None:
            return None
        mesh = self[sharding["mesh"]]
        dims = [
            DimSpec(tuple(mesh.axis(axis) for axis in dim["axes"]), dim["open"], dim.get("priority"))
            for dim in sharding["dims"]
        ]
        if not dims:
            dims = [DimSpec()] * rank
        partial = [(mesh.axis(axis), "sum") for axis in sharding.get("unreduced") or ()]
        replicated = [mesh.axis(axis) for axis in sharding.get("replicated") or ()]
        return ShardingSpec(mesh, dims, partial, replicated)


@dataclass
class Function:
    """One side of a record: a graph with shardings."""

    graph: Graph
    specs: dict[int, ShardingSpec]
    out_specs: dict[int, ShardingSpec]
    rules: dict[int, OpShardingRule]
    attrs: dict[int, dict[str, Any]]
    groups: list[list[int]]


def read_function(side: dict[str, Any], meshes: Meshes) -> Function:
    """Sharding groups are taken out of the program; everything else stays in order.

    Attribute ``n`` of a node is its number in the record, so that passes may move it.
    """
    values: list[Value] = []
    ids: dict[int, int] = {}
    specs: dict[int, ShardingSpec] = {}

    def add(id: int, type: TensorType, sharding: Any, name: str, producer: Any) -> int:
        ids[id] = len(values)
        values.append(Value(len(values), type, name, producer))
        spec = meshes.spec(sharding, type.rank)
        if spec is not None:
            specs[ids[id]] = spec
        return ids[id]

    inputs = [add(arg["id"], tensor_type(arg), arg["sharding"], f"arg{i}", None) for i, arg in enumerate(side["args"])]
    nodes: list[Node] = []
    rules: dict[int, OpShardingRule] = {}
    attrs: dict[int, dict[str, Any]] = {}
    groups: dict[str, list[int]] = {}
    computing = [op for op in side["ops"] if op["op"] != "sdy.sharding_group"]
    made: list[tuple[int, ...]] = []
    for n, op in enumerate(computing):  # all results first: what is called may stand behind who calls it
        shardings = op["shardings"] + [None] * (len(op["results"]) - len(op["shardings"]))
        made.append(tuple(
            add(id, tensor_type(type), sharding, f"v{id}", (n, r))
            for r, (id, type, sharding) in enumerate(zip(op["results"], op["types"], shardings))
        ))  # fmt: skip
    for n, (op, results) in enumerate(zip(computing, made)):
        operands = tuple(ids[operand] for operand in op["operands"])
        attrs[n] = op["attrs"]
        rule = read_rule(op.get("rule"))
        if rule is not None:
            rules[n] = rule
        nodes.append(Node(OUR_OPS.get(op["op"], op["op"]), operands, results, attrs=(("n", n),)))
    for op in side["ops"]:
        if op["op"] == "sdy.sharding_group":
            groups.setdefault(op["attrs"]["group_id"], []).append(ids[op["operands"][0]])
    outputs = tuple(ids[id] for id in side["returns"])
    graph = Graph("f", tuple(values), tuple(nodes), tuple(inputs), outputs)
    out_specs = {}
    for i, sharding in enumerate(side["results"]):
        spec = meshes.spec(sharding, values[outputs[i]].type.rank) if i < len(outputs) else None
        if spec is not None:
            out_specs[i] = spec
    return Function(graph, specs, out_specs, rules, attrs, list(groups.values()))
