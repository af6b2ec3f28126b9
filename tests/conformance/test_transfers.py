"""Every line of every transfer table, run: what an op makes of pending operands is pending as the rule says."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from calls import prepare
from test_rules import EVERY

from by_execution import COMBINE, check_transfer
from shardwright.discover.book.numpy_mesh import Case
from shardwright.frontends.numpy.samples import Sample, arguments
from shardwright.ir.graph import Graph


def values_of(graph: Graph, inputs: list[Any]) -> dict[int, Any]:
    """Every value of a graph, computed on whole arrays."""
    values = dict(zip(graph.inputs, inputs))
    for node in graph.nodes:
        operands = [[values[v] for v in o] if isinstance(o, tuple) else values[o] for o in node.operands]
        made = prepare(node.op, dict(node.attrs), graph.types(node.results))(operands)
        values.update(zip(node.results, made))
    return values


def check_transfers(op: str, sample: Sample) -> int:
    """How many lines there were, a line for any kind counting once for each."""
    case = Case.of(op, sample, arguments(sample, (6, 4), "f8"))
    if case is None:
        return 0
    values = values_of(case.graph, case.inputs)
    count = 0
    for n, rule in case.rules.items():
        node = case.graph.nodes[n]
        compute = prepare(node.op, dict(node.attrs), case.graph.types(node.results))

        def run(*flat: Any, node: Any = node, compute: Any = compute) -> tuple[Any, ...]:
            rest = iter(flat)
            operands = [[next(rest) for _ in o] if isinstance(o, tuple) else next(rest) for o in node.operands]
            return compute(operands)

        for transfer in rule.transfers:
            for kind in COMBINE if "P(any)" in (*transfer.operands, *transfer.results) else [""]:
                check_transfer(transfer, kind, run, [values[v] for v in node.inputs])
                count += 1
    return count


@pytest.mark.parametrize("op", EVERY)
def test_transfers_by_execution(op: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for sample in EVERY[op]:
            if sample.dtypes[0] == "f8":
                check_transfers(op, sample)
