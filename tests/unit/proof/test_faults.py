"""The checks are tried on mistakes: every one that is put in is found."""

from __future__ import annotations

from functools import cache

import pytest
from planned import Case, cases
from program_faults import FAULTS

from shardwright.errors import VerifyError
from shardwright.ir.graph import Graph
from shardwright.ir.program import Program
from shardwright.proof import check_identity, check_structure

ONLY_STRUCTURE = {"bytes misstated", "value made twice"}
"""Kinds that change nothing in what is computed."""


@cache
def programs() -> dict[str, Case]:
    return cases()


def caught(graph: Graph, program: Program) -> set[str]:
    found = set()
    for name, check in (("structure", check_structure), ("identity", lambda broken: check_identity(graph, broken))):
        try:
            check(program)
        except VerifyError:
            found.add(name)
    return found


@pytest.mark.parametrize("name", cases())
def test_no_alarm_without_a_fault(name: str) -> None:
    graph, program = programs()[name]
    assert caught(graph, program) == set()


def test_there_are_faults_of_many_kinds() -> None:
    assert len(FAULTS) >= 14


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_is_caught(kind: str) -> None:
    by: list[set[str]] = []
    for name, (graph, program) in programs().items():
        for i, broken in enumerate(FAULTS[kind](program)):
            by.append(caught(graph, broken))
            assert by[-1], f"{kind} {i} of {name!r}\n{broken}"
    assert by, "this kind of fault is nowhere put in"
    if kind not in ONLY_STRUCTURE:
        assert any("identity" in found for found in by)


@pytest.mark.parametrize("kind", FAULTS)
def test_the_error_names_an_instruction_or_a_value(kind: str) -> None:
    for graph, program in programs().values():
        for broken in FAULTS[kind](program):
            with pytest.raises(VerifyError) as error:
                check_identity(graph, check_structure(broken))
            assert error.value.fact
            labels = {label for label, _ in error.value.rows}
            assert labels & {"instruction", "wrong first", "output", "type"}, str(error.value)
            return
