"""Graphs as text and as JSON, on random ones."""

from __future__ import annotations

from hypothesis import given

from shardwright.ir.graph import Graph
from shardwright.ir.rewrite import Rewriter
from shardwright.ir.verify import verify
from strategies import graphs


@given(graphs())
def test_graph_text(graph: Graph) -> None:
    assert Graph.parse(str(graph)) == graph


@given(graphs())
def test_graph_json(graph: Graph) -> None:
    assert Graph.from_json(graph.to_json()) == graph


@given(graphs())
def test_a_graph_stays_well_formed_when_copied(graph: Graph) -> None:
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        rewriter.copy(node)
    assert verify(rewriter.finish()) == graph


@given(graphs())
def test_views_end_at_a_value_that_owns_its_bytes(graph: Graph) -> None:
    for value in graph.values:
        base = graph.base_of(value.id)
        assert graph.base_of(base) == base
