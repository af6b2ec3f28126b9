"""Runs Shardy, as it comes with jaxlib, on programs in its own text, and records them as its vectors are recorded.

Runs where jax is installed and nothing of ours is: reads one JSON object a line, ``{"text": module, "pass": name,
"options": text}``, and writes one a line, a record as `vectors.read_function` takes it or ``{"error": text}``.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from jax._src.interpreters import mlir as lowering
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy

RULES = "sdy-populate-op-sharding-rules"
CONSERVATIVE = "conservative-propagation=true"
EDGES = "sdy-add-data-flow-edges,sdy-add-func-data-flow-edges"
HANDS_ON = re.compile(r"stablehlo\.case|func\.call")
FUNCTION_PASSES = ("sdy-reshard-to-collectives", "sdy-insert-explicit-reshards")


def main() -> None:
    context = lowering.make_ir_context()
    for line in sys.stdin:
        try:
            with context:
                made = record(json.loads(line))
        except Exception as error:
            made = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(made), flush=True)


def record(asked: dict[str, str]) -> dict[str, Any]:
    name, options = asked["pass"], asked.get("options", "")
    module = ir.Module.parse(asked["text"])
    ruled = ir.Module.parse(asked["text"])
    if HANDS_ON.search(asked["text"]):
        for copy in (module, ruled):
            passmanager.PassManager.parse(f"builtin.module({EDGES})").run(copy.operation)
    careful = f"{{{CONSERVATIVE}}}" if CONSERVATIVE in options else ""
    passmanager.PassManager.parse(f"builtin.module(func.func({RULES}{careful}))").run(ruled.operation)
    before = sides(module, ruled)
    text = f"{name}{{{options}}}" if options else name
    text = f"func.func({text})" if name in FUNCTION_PASSES else text
    passmanager.PassManager.parse(f"builtin.module({text})").run(module.operation)
    after = sides(module, module)
    about = {"passes": [[name, options]], "meshes": meshes(ruled), "file": ""}
    main, *callees = [
        {**about, "func": func, "input": before[func], "expected": after[func], "tags": after[func]["tags"]}
        for func in before
    ]
    return {**main, "callees": callees}


def meshes(module: Any) -> dict[str, Any]:
    found = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            about = sdy.MeshAttr(op.attributes["mesh"])
            name = ir.StringAttr(op.attributes["sym_name"]).value
            axes = [[axis.name, axis.size] for axis in map(sdy.MeshAxisAttr, about.axes)]
            found[name] = {"axes": axes, "device_ids": list(about.device_ids)}
    return found


def functions(module: Any) -> dict[str, Any]:
    """By name, the first one first, which is the program."""
    found = [op for op in module.body.operations if op.operation.name == "func.func"]
    return {ir.StringAttr(op.attributes["sym_name"]).value: op for op in found}


def sides(module: Any, ruled: Any) -> dict[str, dict[str, Any]]:
    others = functions(ruled)
    return {name: side(func, others[name]) for name, func in functions(module).items()}


def in_order(block: Any, other: Any) -> Any:
    """The ops of a block and of its twin; those of branches stand before the op that has them."""
    for op, twin in zip(block.operations, other.operations):
        if op.operation.name == "stablehlo.case":
            for region, same in zip(op.regions, twin.regions):
                yield from in_order(region.blocks[0], same.blocks[0])
        yield op, twin


def side(func: Any, ruled: Any) -> dict[str, Any]:
    """A function before or after; rules stand in another copy of the same ops."""
    block = func.regions[0].blocks[0]
    ids: dict[Any, int] = {}

    def number(value: Any) -> int:
        return ids.setdefault(value, len(ids))

    given = func.attributes["arg_attrs"] if "arg_attrs" in func.attributes else [None] * len(block.arguments)
    args = [
        {"id": number(arg), **type_of(arg), "sharding": of_attributes(said)}
        for arg, said in zip(block.arguments, given)
    ]
    ops, returns, tags = [], [], set()
    branches: list[list[int]] = []
    for op, other in in_order(block, ruled.regions[0].blocks[0]):
        name = op.operation.name
        if name == "func.return":
            returns = [number(value) for value in op.operands]
            continue
        if name == "stablehlo.return":
            branches.append([number(value) for value in op.operands])
            continue
        tags |= {"call"} if name == "func.call" else set()
        results = list(op.results)
        held = op.attributes["sdy.sharding"] if "sdy.sharding" in op.attributes else None  # noqa: SIM401
        specs = per_value(held) if held is not None else [None] * len(results)
        for place in ("sharding", "out_sharding"):
            if name.startswith("sdy.") and place in op.attributes:
                specs = [sharding(op.attributes[place])]
        if name.startswith("sdy."):
            tags.add(name)
        there = other.attributes
        rule = there["sdy.sharding_rule"] if "sdy.sharding_rule" in there else None  # noqa: SIM401
        ops.append({
            "op": name,
            "operands": [number(value) for value in op.operands],
            "results": [number(value) for value in results],
            "types": [type_of(value) for value in results],
            "shardings": specs,
            "attrs": {
                key: str(op.attributes[key]) for key in op.attributes if not key.startswith("sdy.")
            },
            "rule": None if rule is None else read_rule(rule),
        })  # fmt: skip
        if name == "stablehlo.case":
            ops[-1]["branches"], branches = branches, []
            tags.add("region:stablehlo.case")
    said = func.attributes["res_attrs"] if "res_attrs" in func.attributes else [None] * len(returns)
    results = [of_attributes(attributes) for attributes in said]
    return {"args": args, "ops": ops, "returns": returns, "results": results, "tags": sorted(tags)}


def type_of(value: Any) -> dict[str, Any]:
    held = ir.RankedTensorType(value.type)
    return {"shape": list(held.shape), "dtype": str(held.element_type)}


def of_attributes(attributes: Any) -> Any:
    if attributes is None:
        return None
    attributes = ir.DictAttr(attributes)
    return sharding(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else None


def per_value(attribute: Any) -> list[Any]:
    return [sharding(item) for item in sdy.TensorShardingPerValueAttr(attribute).shardings]


def sharding(attribute: Any) -> dict[str, Any]:
    about = sdy.TensorShardingAttr(attribute)
    dims = []
    for item in about.dimension_shardings:
        dim = sdy.DimensionShardingAttr(item)
        entry: dict[str, Any] = {"axes": axes(dim.axes), "open": not dim.is_closed}
        if dim.priority is not None:
            entry["priority"] = dim.priority
        dims.append(entry)
    found = {"mesh": re.search(r"@(\w+)", str(about.mesh_or_ref)).group(1), "dims": dims}  # type: ignore[union-attr]
    for name, refs in (("replicated", about.replicated_axes), ("unreduced", about.unreduced_axes)):
        if len(refs):
            found[name] = axes(refs)
    return found


def axes(refs: Any) -> list[str]:
    found = []
    for item in refs:
        ref = sdy.AxisRefAttr(item)
        part = ref.sub_axis_info
        part = None if part is None else sdy.SubAxisInfoAttr(part)
        found.append(ref.name if part is None else f"{ref.name}:({part.pre_size}){part.size}")
    return found


def read_rule(attribute: Any) -> dict[str, Any]:
    about = sdy.OpShardingRuleAttr(attribute)

    def tensors(mappings: Any) -> list[Any]:
        return [
            [list(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(mapping).dim_mappings]
            for mapping in mappings
        ]

    return {
        "text": str(attribute),
        "sizes": list(about.factor_sizes),
        "operands": tensors(about.operand_mappings),
        "results": tensors(about.result_mappings),
        "reduction": list(about.reduction_factors),
        "need_replication": list(about.need_replication_factors),
        "permutation": list(about.permutation_factors),
        "blocked": list(about.blocked_propagation_factors),
        "custom": about.is_custom,
    }


if __name__ == "__main__":
    main()
