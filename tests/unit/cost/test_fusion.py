"""What compiled programs take: few passes over memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardwright import Graph, Program
from shardwright.cost import hardware_of, program_cost
from shardwright.cost.program import instr_costs

EAGER = hardware_of("h200")
COMPILED = hardware_of("h200-compiled")
SIZE = 2 * 4096 * 4096
"""Bytes of a matrix."""


def passes(lowered: Callable[..., Program], text: str) -> float:
    """How many times the bytes of a matrix are moved."""
    program = lowered(Graph.parse(text.replace("M", "bf16[4096, 4096]").replace("V", "bf16[4096]")), "d=1", {})
    fused = replace(COMPILED.roofline("fused"), launch=0.0)
    matrix = SIZE * fused.bytes_percent * 10**12 / (100 * COMPILED.bandwidth)
    return sum(instr_costs(program, replace(COMPILED, classes=(("fused", fused),)))) / matrix


def test_a_chain_is_one_pass(lowered) -> None:
    text = "graph f(%x: M, %y: M) { %a = exp(%x) : M %b = multiply(%a, %y) : M %c = tanh(%b) : M return %c }"
    assert passes(lowered, text) == pytest.approx(3, rel=0.01)  # two are read, one is written


def test_what_a_product_needs_is_stored(lowered) -> None:
    text = "graph f(%x: M, %w: M) { %a = exp(%x) : M %b = matmul(%a, %w) : M %c = tanh(%b) : M return %c }"
    program = lowered(Graph.parse(text.replace("M", "bf16[4096, 4096]")), "d=1", {})
    exp, matmul, tanh = instr_costs(program, COMPILED)
    assert exp == tanh == pytest.approx(2 * SIZE * 1.2 * 10**12 / COMPILED.bandwidth + 2.5e6, rel=0.01)
    assert matmul == instr_costs(program, EAGER)[1]


def test_what_is_cheap_is_computed_again_rather_than_stored(lowered) -> None:
    """Both products are fed from ``x``; ``a`` is read after the first product, but is made of ``x`` then, too."""
    text = (
        "graph f(%x: M, %w: M) { %a = exp(%x) : M %s = tanh(%a) : M %b = matmul(%s, %w) : M"
        " %c = multiply(%b, %a) : M return %c }"
    )
    program = lowered(Graph.parse(text.replace("M", "bf16[4096, 4096]")), "d=1", {})
    times = dict(zip([i.op for i in program.instrs], instr_costs(program, COMPILED)))
    assert times["exp"] == 0
    three = 3 * SIZE * 1.2 * 10**12 / COMPILED.bandwidth
    assert times["multiply"] == pytest.approx(three + 2.5e6, rel=0.01)  # b and x are read, c is written


def test_reductions_along_rows_are_part_of_a_kernel_and_others_are_not(lowered) -> None:
    text = "graph f(%x: M) {{ %a = exp(%x) : M %s = reduce_sum(%a) {{axis={axis}, keepdims=false}} : V return %s }}"
    assert passes(lowered, text.format(axis=1)) == pytest.approx(1, rel=0.01)
    both = (
        "graph f(%x: M) {{ %a = exp(%x) : M %s = reduce_sum(%a) {{axis={axis}, keepdims=false}} : V"
        " %b = tanh(%a) : M return %s, %b }}"
    )
    rows, columns = (passes(lowered, both.format(axis=axis)) for axis in (1, 0))
    assert rows == pytest.approx(2, rel=0.01)  # x is read once
    assert columns == pytest.approx(3, rel=0.01)  # and once more in another order


def test_no_program_takes_longer_compiled(lowered) -> None:
    text = (
        "graph f(%x: M, %w: M) { %a = exp(%x) : M %s = tanh(%a) : M %b = matmul(%s, %w) : M"
        " %c = multiply(%b, %a) : M %d = add(%c, %x) : M return %d, %b }"
    )
    for specs in ({}, {"x": "[d, _]"}, {"w": "[_, d]"}, {"x": "[_, d]", "w": "[d, _]"}):
        program = lowered(Graph.parse(text.replace("M", "bf16[4096, 4096]")), "d=2", specs)
        eager, compiled = program_cost(program, EAGER), program_cost(program, COMPILED)
        assert compiled.compute < eager.compute
        assert compiled.communication == eager.communication


def test_the_name_says_it() -> None:
    assert EAGER.as_compiled() == COMPILED
    assert COMPILED.name == "H200 SXM, compiled"
    assert hardware_of("h100x4-compiled").nodes == 4
