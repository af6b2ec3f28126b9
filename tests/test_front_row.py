"""What `import shardwright` offers: a short front row, the seeds' names, and functions on what users have in hand."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.errors import GraphError, SpecError


def test_the_front_row_is_short_and_all_of_it_is_there() -> None:
    assert 20 <= len(sw.__all__) <= 25
    assert all(getattr(sw, name) is not None for name in sw.__all__)
    assert set(sw.__all__) <= set(dir(sw))


SEEDS = [
    "DeviceMesh",
    "DimSpec",
    "ShardingSpec",
    "compute_global_shape",
    "needs_reshard",
    "OpShardingRule",
    "FactorSharding",
    "propagate_sharding",
    "run_hierarchical_propagation_pass",
    "sharding_rule",
    "GraphExtractor",
    "SimpleSolver",
    "shard_map",
    "randn",
    "zeros",
    "ones",
    "asarray",
    "log",
    "Graph",
    "GraphBuilder",
    "Program",
    "propagate",
    "P",
    "reshard",
    "rule",
    "trace",
    "pin",
    "forbid",
    "cap_gather",
    "compare",
    "load_plan",
    "plan",
    "VerifyError",
    "MeshError",
    "NotationError",
    "PropagationError",
    "ReshardError",
    "RuleError",
    "SpecError",
    "TraceError",
    "UnknownOpError",
    "GraphError",
]


@pytest.mark.parametrize("name", SEEDS)
def test_other_names_can_be_imported(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(compile(f"from shardwright import {name} as found", "test", "exec"), scope)
    assert scope["found"] is getattr(sw, name)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plna'"):
        _ = sw.plna


def test_importing_imports_nothing_that_is_not_used() -> None:
    code = "import sys, shardwright; print(*sorted(m for m in sys.modules if m.startswith('shardwright')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["shardwright"]


# -- what users have in hand ----------------------------------------------------------------------------------


def test_reshard_takes_whatever_says_a_sharding() -> None:
    mesh = sw.DeviceMesh("x=4")
    specs = [sw.ShardingSpec.parse(text, mesh) for text in ("[x, _]", "[_, x]")]
    expected = [step.kind for step in sw.reshard(*specs, (8, 8))]
    assert expected == ["all_to_all"]
    for source, target, about in (
        (P("x", None), P(None, "x"), {"mesh": "x=4"}),
        ("[x, _]", "[_, x]", {"mesh": mesh}),
        (specs[0], "[_, x]", {}),
        (P("x", None), specs[1], {}),
    ):
        assert [step.kind for step in sw.reshard(source, target, (8, 8), **about)] == expected
    with pytest.raises(SpecError, match="do not say of which mesh"):
        sw.reshard("[x, _]", "[_, x]", (8, 8))
    with pytest.raises(sw.MeshError, match="no axis 'y'"):
        sw.reshard("[x, _]", "[_, y]", (8, 8), mesh="x=4")


def test_needs_reshard_takes_text() -> None:
    assert sw.needs_reshard("[x, _]", "[_, x]", mesh="x=2")
    assert not sw.needs_reshard(P("x"), P("x"), mesh="x=2")
    assert sw.needs_reshard(P("x", None), None, mesh="x=2")
    assert not sw.needs_reshard("[_, _]", None, mesh="x=2")
    assert sw.needs_reshard(sw.ShardingSpec.parse("[x]", sw.DeviceMesh("x=2")), "[_]")
    with pytest.raises(SpecError):
        sw.needs_reshard("[x]", "[_]")


def test_propagate_sharding_takes_text() -> None:
    rule, mesh = sw.OpShardingRule.parse("m k, k n -> m n | m=8 k=4 n=8"), sw.DeviceMesh("dp=2, tp=2")
    expected = sw.propagate_sharding(rule, [sw.ShardingSpec(mesh, ["dp", None]), None, None])
    found = sw.propagate_sharding("m k, k n -> m n | m=8 k=4 n=8", [P("dp", None), None, None], mesh="dp=2, tp=2")
    assert list(map(str, found)) == list(map(str, expected))


def mlp(x: Any, w: Any) -> Any:
    return np.maximum(x @ w, 0)


def test_the_extractor_and_propagation_take_functions() -> None:
    x, w = np.ones((8, 4)), np.ones((4, 6))
    traced = sw.trace(mlp, x, w)
    for given in ((mlp, x, w), (traced,), (traced.graph,), (str(traced.graph),)):
        nodes = sw.GraphExtractor(*given).extract()["nodes"]
        assert [node["op"] for node in nodes] == ["matmul", "full", "maximum"]
        assert all(node["rule"] for node in nodes)
    for program, about in ((mlp, {"args": (x, w)}), (traced, {}), (traced.graph, {})):
        assert str(sw.propagate(program, "dp=2", {"x": "[dp, _]"}, **about)["4"]).startswith("[dp")
    with pytest.raises(GraphError, match="no value is called 'y'"):
        sw.propagate(traced, "dp=2", {"y": "[dp, _]"})


def test_shardings_as_others_write_them() -> None:
    spec = sw.ShardingSpec.parse("[dp, tp] // max(x)", sw.DeviceMesh("dp=2, tp=2, x=2"))
    types = SimpleNamespace(
        Shard=lambda dim: ("S", dim), Partial=lambda kind: ("P", kind), Replicate=lambda: "R", _StridedShard=None
    )
    assert spec.to_placements(types) == (("S", 0), ("S", 1), ("P", "max"))
    plain = sw.ShardingSpec.parse("[dp+tp, _]", sw.DeviceMesh("dp=2, tp=2"))
    assert plain.to_partition_spec(lambda *entries: entries) == (("dp", "tp"), None)
    assert sw.ShardingSpec.from_json(spec.to_json()) == spec
    for wrong in ("[]", '{"mesh": "x=2"}', '{"mesh": "x=2", "spec": 3}', "{", '{"mesh": "x=2", "spec": "[y]"}'):
        with pytest.raises(sw.ShardwrightError):
            sw.ShardingSpec.from_json(wrong)


def test_graphs_as_json() -> None:
    graph = sw.trace(mlp, np.ones((8, 4)), np.ones((4, 6))).graph
    assert sw.Graph.from_json(graph.to_json()) == graph
    assert sw.Graph.from_json(json.loads(graph.to_json())) == graph
    with pytest.raises(GraphError):
        sw.Graph.from_json("{}")
