"""Lemmas at small sizes say what they say at their own: with faults and without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from planned import Case, cases, mlp, plan, softmax
from program_faults import FAULTS
from random_programs import random_case

from shardwright.errors import ShardwrightError, VerifyError
from shardwright.ir.graph import Graph, GraphBuilder
from shardwright.ir.program import Program
from shardwright.proof import check_identity, check_structure, prove
from shardwright.proof.identity import check_lemma
from shardwright.proof.lemmas import Lemma, lemmas, whole_lemma
from shardwright.proof.shrink import elements, shrunk


def holds(lemma: Lemma) -> bool:
    try:
        check_lemma(lemma)
    except VerifyError:
        return False
    return True


def well_formed(program: Program) -> bool:
    try:
        check_structure(program)
    except VerifyError:
        return False
    return True


def mutants(program: Program, seed: int) -> Iterator[Program]:
    """One of each kind of fault, where it can be put in: another one with every seed."""
    for make in FAULTS.values():
        made = [broken for broken in make(program) if well_formed(broken)]
        if made:
            yield made[seed % len(made)]


def wide(seed: int) -> Case:
    """A network whose sizes all shrink, on meshes that do."""
    sizes = [(24, 36, 48), (64, 32, 128), (48, 96, 16)][seed % 3]
    mesh, given = [
        ("dp=2, tp=8", {"x": "[dp, _]", "w1": "[_, tp]", "w2": "[tp, _]"}),
        ("x=8", {"x": "[_, x]", "w1": "[x, _]"}),
        ("x=16", {"x": "[x:(1)8, _]", "w1": "[_, x:(8)2]"}),
        ("x=2, y=6", {"x": "[y, x]"}),
    ][seed % 4]
    graph = mlp(*sizes)
    return graph, plan(graph, mesh, given)


@pytest.mark.parametrize("seed", range(200))
def test_the_verdict_is_the_same_at_both_sizes(seed: int) -> None:
    graph, program = random_case(seed) if seed % 4 else wide(seed // 4)
    tried = [program, *mutants(program, seed)]
    for broken in tried[: 3 if seed % 4 else None]:
        for lemma in lemmas(graph, broken):
            small = shrunk(lemma)
            assert elements(small) <= elements(lemma)
            assert holds(small) == holds(lemma), f"{lemma.program}\n{small.program}"


def test_networks_do_shrink() -> None:
    for seed in range(12):
        graph, program = wide(seed)
        found = [(elements(shrunk(lemma)), elements(lemma)) for lemma in lemmas(graph, program)]
        assert sum(a for a, _ in found) < 0.3 * sum(b for _, b in found)


@pytest.mark.parametrize("name", cases())
def test_lemmas_refuse_what_the_whole_refuses(name: str) -> None:
    graph, program = cases()[name]
    prove(graph, program)
    for make in FAULTS.values():
        for broken in make(program):
            try:
                check_identity(graph, check_structure(broken))
            except ShardwrightError:
                with pytest.raises(VerifyError):
                    prove(graph, broken)


def test_a_program_in_one_lemma_is_the_program() -> None:
    graph, program = wide(0)
    assert holds(whole_lemma(graph, program))


def counted_shift(size: int, by: int) -> Graph:
    """Rows moved by a number of places, and scaled."""
    b = GraphBuilder("shift")
    x = b.input((size, 48), name="x")
    r = b.op("roll", [x], [(size, 48)], names=["r"], attrs={"shift": by, "axis": 0})
    return b.finish([b.op("negative", [r], [(size, 48)], names=["out"])])


def test_places_that_are_counted_stay() -> None:
    """A shift by 8 of 64 rows is no shift at 8: its rows keep their number, its columns do not."""
    graph = counted_shift(64, 8)
    program = plan(graph, "x=4", {"x": "[_, x]"})
    (first, *_) = lemmas(graph, program)
    assert [local.type.shape for local in shrunk(first).program.values] == [(64, 8), (64, 8)]


def test_a_number_made_from_a_size_keeps_it() -> None:
    graph = softmax(8, 64)
    for lemma in lemmas(graph, plan(graph, "x=4", {"x": "[_, x]"})):
        assert holds(shrunk(lemma))


def test_an_axis_that_nothing_uses_goes() -> None:
    graph = mlp(64, 64, 64)
    program = plan(graph, "a=64, b=8", {"x": "[a, _]"})
    assert {shrunk(lemma).program.mesh.size for lemma in lemmas(graph, program)} <= {1, 4}


def test_uneven_cuts_keep_size_and_axis() -> None:
    graph = mlp(10, 64, 64)
    program = plan(graph, "a=8", {"x": "[a, _]"})
    small = [shrunk(lemma).program for lemma in lemmas(graph, program)]
    assert any(local.type.shape[0] == 10 and local.spec.dims[0].shards == 8 for p in small for local in p.values)


def test_every_element_type_counts() -> None:
    """A value between that is rounded to fewer digits."""
    from dataclasses import replace

    graph = mlp(8, 16, 8)
    program = plan(graph, "x=2", {"x": "[x, _]"})
    for local in program.values:
        if local.id in program.inputs or local.id in program.outputs:
            continue
        for dtype in ("f16", "bf16", "f64"):
            values = list(program.values)
            values[local.id] = replace(local, type=replace(local.type, dtype=dtype))
            with pytest.raises(VerifyError):
                prove(graph, replace(program, values=tuple(values)))


def test_what_is_shown_is_kept() -> None:
    graph, program = wide(1)
    assert prove(graph, program) is prove(graph, program)
