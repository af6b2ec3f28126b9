"""Constraints and groups, made ready for propagation."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shardwright.ir.graph import Graph, Node
from shardwright.propagation.constraints import apply_constraints, join_groups
from shardwright.propagation.engine import OpView, run_hierarchical_propagation_pass
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.op_record import Flow
from shardwright.spec.rule import OpShardingRule
from shardwright.spec.sharding import ShardingSpec

MESH = DeviceMesh("x=2, y=4")


def spec(text: str) -> ShardingSpec:
    return ShardingSpec.parse(text, MESH)


def parse(body: str) -> Graph:
    return Graph.parse(f"graph g(%a: f32[8], %z: f32[8]) {{ {body} }}".replace(";", " : f32[8]\n"))


def by_value(graph: Graph, specs: Mapping[str, str]) -> dict[int, ShardingSpec]:
    return {graph.by_name[name]: spec(text) for name, text in specs.items()}


def by_name(graph: Graph, specs: Mapping[int, ShardingSpec]) -> dict[str, str]:
    return {graph.values[value].name: str(found) for value, found in specs.items()}


def identity(graph: Graph, node: Node) -> OpView:
    return OpView(OpShardingRule.identity((8,), len(node.inputs)), Flow.POINTWISE)


# -- constraints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "specs", "pushed"),
    [
        ("%c = core.constraint(%a); return %c", {"c": "[x]"}, {"a": "[x]"}),
        ("%c = core.constraint(%a); %d = core.constraint(%a); return %c, %d", {"c": "[x]", "d": "[x]"}, {"a": "[x]"}),
        ("%b = neg(%a); %c = core.constraint(%b); return %c", {"c": "[_]"}, {"b": "[_]"}),
    ],
)
def test_a_closed_constraint_is_the_sharding_of_its_value(
    body: str, specs: dict[str, str], pushed: dict[str, str]
) -> None:
    graph = parse(body)
    made, found = apply_constraints(graph, by_value(graph, specs))
    assert made == graph
    assert by_name(made, found) == {**specs, **pushed}


@pytest.mark.parametrize(
    ("body", "specs"),
    [
        ("%c = core.constraint(%a); return %c", {"c": "[x+?]"}),
        ("%c = core.constraint(%a); return %c", {"c": "[x]", "a": "[?]"}),
        ("%c = core.constraint(%a); %d = core.constraint(%a); return %c, %d", {"c": "[x]", "d": "[y]"}),
        ("%c = core.constraint(%a); %d = core.constraint(%a); return %c, %d", {"c": "[x]"}),
        ("%c = core.constraint(%a); return %c", {}),
        ("%c = neg(%a); return %c", {"c": "[x]"}),
    ],
    ids=["open", "the value has its own", "two contradict", "two, one silent", "nothing said", "another op"],
)
def test_other_constraints_stay_where_they_are(body: str, specs: dict[str, str]) -> None:
    graph = parse(body)
    made, found = apply_constraints(graph, by_value(graph, specs))
    assert (made, by_name(made, found)) == (graph, specs)


def test_readers_after_a_chain_of_constraints_read_its_end() -> None:
    graph = parse(
        "%b = neg(%a); %c = core.constraint(%a); %d = core.constraint(%c);"
        "%e = neg(%a); %f = neg(%d); return %a, %b, %e, %f"
    )
    made, found = apply_constraints(graph, by_value(graph, {"c": "[x]", "d": "[y]"}))
    reads = {made.values[node.results[0]].name: made.values[node.inputs[0]].name for node in made.nodes}
    assert reads == {"b": "a", "c": "a", "d": "c", "e": "d", "f": "d"}
    assert [made.values[value].name for value in made.outputs] == ["a", "b", "e", "f"]
    assert by_name(made, found) == {"a": "[x]", "c": "[x]", "d": "[y]"}


def test_a_chain_that_somebody_looks_into_is_no_chain() -> None:
    graph = parse("%c = core.constraint(%a); %d = core.constraint(%c); %e = neg(%c); %f = neg(%a); return %d, %e, %f")
    made, found = apply_constraints(graph, by_value(graph, {"c": "[x]", "d": "[y]"}))
    assert made == graph
    assert by_name(made, found)["a"] == "[x]"


def test_a_chain_ends_at_an_output() -> None:
    graph = parse("%c = core.constraint(%a); %d = core.constraint(%c); %e = neg(%a); return %c, %d, %e")
    assert apply_constraints(graph, by_value(graph, {"c": "[x]", "d": "[y]"}))[0] == graph


# -- groups ---------------------------------------------------------------------------------------------

TWO = parse("%b = neg(%a); %c = neg(%z); %d = neg(%b); return %c, %d")


def grouped(specs: dict[str, str], *groups: str) -> tuple[Graph, dict[str, str], list[list[str]]]:
    members = [[TWO.by_name[name] for name in group.split()] for group in groups]
    made, found, joined = join_groups(TWO, by_value(TWO, specs), members)
    return made, by_name(made, found), [[made.values[value].name for value in group] for group in joined]


def test_a_group_shares_the_only_sharding() -> None:
    made, found, groups = grouped({"b": "[x]"}, "b c")
    assert made == TWO
    assert found == {"b": "[x]", "c": "[x]"}
    assert groups == [["b", "c"]]


def test_a_group_that_agrees_stays() -> None:
    assert grouped({"b": "[x]", "c": "[x]"}, "b c")[1] == {"b": "[x]", "c": "[x]"}


def test_a_group_of_which_nothing_is_said_stays() -> None:
    assert grouped({"b": "[?]"}, "b c c") == (TWO, {"b": "[?]"}, [["b", "c"]])


def test_a_group_that_contradicts_itself_moves_behind_constraints() -> None:
    made, found, groups = grouped({"b": "[x]", "c": "[y]"}, "b c")
    assert groups == [["b_1", "c_1"]]
    assert found == {"b": "[x]", "c": "[y]", "b_1": "[?]", "c_1": "[?]"}
    assert [node.op for node in made.nodes] == ["neg", "core.constraint", "neg", "core.constraint", "neg"]
    reads = {made.values[node.results[0]].name: made.values[node.inputs[0]].name for node in made.nodes}
    assert reads["d"] == "b_1"
    assert [made.values[value].name for value in made.outputs] == ["c_1", "d"]


def test_constraints_on_inputs_come_first() -> None:
    made, _, groups = grouped({"a": "[x]", "z": "[y]"}, "a z")
    assert [node.op for node in made.nodes[:2]] == ["core.constraint"] * 2
    assert groups == [["a_1", "z_1"]]


# -- groups and what the engine does with them ----------------------------------------------------------


def members(specs: dict[str, str]) -> tuple[str, str]:
    """b = neg(a) and z in one group: their shardings after propagation."""
    graph = parse("%b = neg(%a); return %b")
    group = [[graph.by_name["b"], graph.by_name["z"]]]
    made, found, groups = join_groups(graph, by_value(graph, specs), group)
    done = run_hierarchical_propagation_pass(made, found, identity, groups=groups)
    return str(done["b"]), str(done["z"])


def test_a_free_member_follows() -> None:
    assert members({"a": "[x]", "z": "[?]"}) == ("[x+?]", "[x+?]")


def test_a_member_that_keeps_an_axis_replicated() -> None:
    assert "x" not in members({"a": "[x]", "z": "[?] ~ x"})[1].split("~")[0]


def test_a_member_with_a_priority() -> None:
    assert members({"a": "[x]", "z": "[?!1]"}) == ("[x+?]", "[x+?]")
