"""Whole graphs: both directions, priorities, barriers, groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from shardwright.errors import PropagationError
from shardwright.ir.graph import Graph, Node
from shardwright.propagation.directions import LEVELS, directions, every_way
from shardwright.propagation.engine import OpView, Propagated, run_hierarchical_propagation_pass
from shardwright.propagation.factors import Direction, basic
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.op_record import Flow
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec
from strategies import rule_of

MESH = DeviceMesh("x=2, y=4")
MLP = Graph.parse(
    """graph mlp(%x: f32[8, 16], %w: f32[16, 32], %v: f32[32, 16]) {
  %h = matmul(%x, %w) : f32[8, 32]
  %r = neg(%h) : f32[8, 32]
  %o = matmul(%r, %v) : f32[8, 16]
  return %o
}"""
)


def spec(text: str) -> ShardingSpec:
    return ShardingSpec.parse(text, MESH)


def spread(
    graph: Graph,
    specs: Mapping[str, str],
    outs: Mapping[int, str] | None = None,
    groups: Iterable[Iterable[str]] = (),
    **options: Any,
) -> Propagated:
    options.setdefault("rule_of", rule_of)
    return run_hierarchical_propagation_pass(
        graph,
        {graph.by_name[name]: spec(text) for name, text in specs.items()},
        out_specs={i: spec(text) for i, text in (outs or {}).items()},
        groups=[[graph.by_name[name] for name in group] for group in groups],
        **options,
    )


# -- both directions ------------------------------------------------------------------------------------


def test_forward_and_backward() -> None:
    found = spread(MLP, {"x": "[x, _]", "w": "[_, y]"})
    assert str(found) == (
        "graph mlp(%x: f32[8@x, 16], %w: f32[16, 32@y], %v: f32[32@y, 16]) {\n"
        "  %h = matmul(%x, %w) : f32[8@x, 32@y]\n"
        "  %r = neg(%h) : f32[8@x, 32@y]\n"
        "  %o = matmul(%r, %v) : f32[8@x, 16]\n"
        "  return %o as [x+?, ?]\n"
        "}"
    )


def test_from_an_output() -> None:
    found = spread(MLP, {}, {0: "[x, y]"})
    assert [str(found[name]) for name in "xwvo"] == ["[x+?, ?]", "None", "[?, y+?]", "[x+?, y+?]"]
    assert str(found.out_specs[0]) == "[x, y]"


def test_an_output_that_is_closed_is_not_changed() -> None:
    found = spread(MLP, {"x": "[x, _]"}, {0: "[_, _]"})
    assert str(found["o"]) == "[x+?, ?]"
    assert str(found.out_specs[0]) == "[_, _]"


def test_nothing_said_nothing_known() -> None:
    found = spread(MLP, {})
    assert found.specs == (None,) * 6
    assert found.updates == 0


def test_specs_are_found_by_name() -> None:
    found = spread(MLP, {"x": "[x, _]"})
    assert found["x"] == spec("[x, _]")
    with pytest.raises(KeyError):
        found["nobody"]


def test_an_op_without_a_rule_stops_shardings() -> None:
    graph = Graph.parse("graph g(%a: f32[8, 8]) { %b = unknown(%a) : f32[8, 8] return %b }")
    found = spread(graph, {"a": "[x, _]"}, {0: "[_, y]"})
    assert (str(found["a"]), str(found["b"])) == ("[x, _]", "[?, y+?]")


def test_the_basic_strategy() -> None:
    specs = {"x": "[x, _]", "w": "[_, x]"}
    assert str(spread(MLP, specs)["h"]) == "[?, x+?]"
    assert spread(MLP, specs, strategy=basic)["h"] is None


def test_rank_is_checked() -> None:
    with pytest.raises(PropagationError, match="the sharding of x has 1 dims, the tensor 2"):
        spread(MLP, {"x": "[x]"})
    with pytest.raises(PropagationError, match="the sharding of output 0 has 1 dims, the tensor 2"):
        spread(MLP, {}, {0: "[x]"})


def test_the_same_whatever_the_hash_seed() -> None:
    code = (
        "from shardwright.ir.graph import Graph\n"
        "from shardwright.spec.mesh import DeviceMesh\n"
        "from shardwright.spec.sharding import ShardingSpec\n"
        "from shardwright.spec.rule import OpShardingRule\n"
        "from shardwright.propagation.engine import OpView, run_hierarchical_propagation_pass as run\n"
        "lines = ''.join(f' %v{i + 2} = add(%v{i}, %v{i + 1}) : f32[8, 8]' for i in range(9))\n"
        "graph = Graph.parse('graph g(%v0: f32[8, 8], %v1: f32[8, 8]) {' + lines + ' return %v10, %v4 }')\n"
        "mesh = DeviceMesh('x=2, y=2, z=2')\n"
        "specs = {0: '[x+y, ?]', 1: '[?, x]', 6: '[z+?, y]', 8: '[y+?, ?] ~ x'}\n"
        "specs = {value: ShardingSpec.parse(text, mesh) for value, text in specs.items()}\n"
        "found = run(graph, specs, lambda *_: OpView(OpShardingRule.identity((8, 8), 2)))\n"
        "print(found, found.visits, found.updates, found.provenance)\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


# -- user priorities ------------------------------------------------------------------------------------


def test_an_earlier_priority_wins() -> None:
    assert str(spread(MLP, {"x": "[x!0, _]", "w": "[_, x!1]"})["h"]) == "[x+?, ?]"
    assert str(spread(MLP, {"x": "[x!1, _]", "w": "[_, x!0]"})["h"]) == "[?, x+?]"


def test_none_is_the_first_priority() -> None:
    assert str(spread(MLP, {"x": "[x!1, _]", "w": "[_, x]"})["h"]) == "[?, x+?]"
    assert str(spread(MLP, {"x": "[x, _]", "w": "[_, x!1]"})["h"]) == "[x+?, ?]"


def test_what_waits_keeps_its_axes() -> None:
    """y is promised to dim 0, so it may not cut dim 1 in the meantime."""
    graph = Graph.parse("graph g(%a: f32[8, 8], %b: f32[8, 8]) { %c = add(%a, %b) : f32[8, 8] return %c }")
    found = spread(graph, {"a": "[y!1, ?]", "b": "[?, y]"})
    assert str(found["a"]) == "[y, ?]"
    assert str(found["c"]) == "[?, y+?]"


def test_priorities_are_gone_in_the_end() -> None:
    found = spread(MLP, {"x": "[x!2, ?!1]"})
    assert str(found["x"]) == "[x, ?]"


def test_priorities_can_be_switched_off() -> None:
    found = spread(MLP, {"x": "[x!0, _]", "w": "[_, x!1]"}, user_priorities=False)
    assert str(found["h"]) == "[?, x+?]"  # w is the larger tensor


def test_priorities_of_outputs() -> None:
    found = spread(MLP, {"v": "[_, x]"}, {0: "[x!1, ?]"})
    assert str(found["o"]) == "[?, x+?]"


# -- op priorities --------------------------------------------------------------------------------------

FORK = Graph.parse(
    """graph g(%a: f32[8, 8], %b: f32[8, 8]) {
  %m = matmul(%a, %b) : f32[8, 8]
  %s = add(%m, %b) : f32[8, 8]
  return %s
}"""
)


def test_pointwise_ops_go_before_contractions() -> None:
    specs = {"a": "[x, ?]", "b": "[?, x]"}
    assert str(spread(FORK, specs)["m"]) == "[?, x+?]"
    assert str(spread(FORK, specs, op_priorities=False)["m"]) == "[x+?, ?]"


@pytest.mark.parametrize(
    ("flow", "single_use", "ways"),
    [
        (Flow.POINTWISE, True, ["BOTH"] * 5),
        (Flow.POINTWISE, False, ["NONE", "BOTH", "BOTH", "BOTH", "BOTH"]),
        (Flow.VIEW, True, ["BOTH"] * 5),
        (Flow.FORWARD, True, ["FORWARD", "FORWARD", "BOTH", "BOTH", "BOTH"]),
        (Flow.BROADCAST, True, ["NONE", "NONE", "BACKWARD", "BACKWARD", "BOTH"]),
        (Flow.OTHER, True, ["NONE", "NONE", "BOTH", "BOTH", "BOTH"]),
    ],
)
def test_levels_for_a_factor_that_passes_through(flow: Flow, single_use: bool, ways: list[str]) -> None:
    rule = OpShardingRule.parse("i -> i | i=4")
    found = [directions(rule, flow, single_use, level)[0].name for level in range(LEVELS)]
    assert found == ways


def test_a_reduced_factor_waits_longer() -> None:
    rule = OpShardingRule.parse("i k -> i | i=4 k=4")
    assert [directions(rule, Flow.OTHER, True, level)[1].name for level in (2, 3)] == ["NONE", "BOTH"]


def test_a_blocked_factor_never_moves() -> None:
    rule = OpShardingRule.parse("i -> i ; i: blocked | i=4")
    assert directions(rule, Flow.POINTWISE, True, LEVELS - 1) == (Direction.NONE,)
    assert every_way(rule) == (Direction.NONE,)


# -- barriers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only", "forward", "backward"),
    [
        (Direction.NONE, False, False),
        (Direction.FORWARD, True, False),
        (Direction.BACKWARD, False, True),
        (Direction.BOTH, True, True),
    ],
)
def test_a_barrier_lets_one_direction_through(only: Direction, forward: bool, backward: bool) -> None:
    graph = Graph.parse("graph g(%a: f32[8]) { %b = barrier(%a) : f32[8] return %b }")

    def barrier(graph: Graph, node: Node) -> OpView:
        return OpView(OpShardingRule.identity((8,)), only=only)

    assert (spread(graph, {"a": "[x]"}, rule_of=barrier)["b"] is not None) is forward
    assert (spread(graph, {}, {0: "[x]"}, rule_of=barrier)["a"] is not None) is backward


# -- ties -----------------------------------------------------------------------------------------------


def test_a_tie_goes_before_a_contraction() -> None:
    """What branches return, and what is read from then on: no priority level holds that back."""
    graph = Graph.parse(
        """graph g(%a: f32[8, 8], %b: f32[8, 8], %w: f32[8, 8]) {
  %h = matmul(%a, %w) : f32[8, 8]
  %n = neg(%h) : f32[8, 8]
  %t = tie(%a, %b) : f32[8, 8]
  return %t, %n
}"""
    )

    def view(graph: Graph, node: Node) -> OpView | None:
        return OpView.tie((8, 8), 2) if node.op == "tie" else rule_of(graph, node)

    found = spread(graph, {"b": "[?, x]", "n": "[x, ?]"}, rule_of=view)
    assert [str(found[name]) for name in "abt"] == ["[?, x+?]", "[?, x]", "[?, x+?]"]
    alone = spread(graph, {"n": "[x, ?]"}, rule_of=view)
    assert [str(alone[name]) for name in "abt"] == ["[x+?, ?]"] * 3


# -- groups ---------------------------------------------------------------------------------------------

PAIR = Graph.parse(
    """graph g(%a: f32[8, 8], %c: f32[8, 8]) {
  %b = neg(%a) : f32[8, 8]
  %d = neg(%c) : f32[8, 8]
  return %d
}"""
)


def test_members_of_a_group_end_up_alike() -> None:
    found = spread(PAIR, {"a": "[x, _]"}, groups=[["b", "c"]])
    assert found["b"] == found["c"] == spec("[x+?, ?]")
    assert str(found["d"]) == "[x+?, ?]"


def test_without_the_group_they_do_not() -> None:
    assert spread(PAIR, {"a": "[x, _]"})["c"] is None


def test_a_group_takes_what_was_said_of_an_output() -> None:
    found = spread(PAIR, {}, {0: "[_, y]"}, groups=[["a", "d"]])
    assert str(found["a"]) == str(found["b"]) == "[?, y+?]"


# -- effort ---------------------------------------------------------------------------------------------


def test_a_chain_is_walked_once_each_way() -> None:
    count = 50
    lines = "\n".join(f"%v{i + 1} = neg(%v{i}) : f32[8, 8]" for i in range(count))
    graph = Graph.parse(f"graph g(%v0: f32[8, 8]) {{ {lines} return %v{count} }}")
    found = spread(graph, {"v0": "[x, y]"})
    assert str(found[f"v{count}"]) == "[x+?, y+?]"
    assert found.visits <= 3 * count
