"""Communication that brings nothing new is left out; numbers, proof and peak stay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from by_hand import Said, compile_graph
from shardwright import DeviceMesh, Graph, Program, ShardingSpec
from shardwright.cost import H100, RESIDENT
from shardwright.cost.profile import program_memory
from shardwright.errors import ShardwrightError
from shardwright.frontends.numpy import prepare
from shardwright.ir.program import Instr, check_program
from shardwright.lower import ordered, without_repeats
from shardwright.lower.lowering import step_instr
from shardwright.proof.proving import prove
from shardwright.run import VirtualEngine, scatter
from shardwright.spec.resharding.cheapest import reshard

Make = Callable[[int], tuple[Graph, Program]]
PLENTY = 2**40


def steps(program: Program) -> list[int]:
    return [n for n, i in enumerate(program.instrs) if i.is_collective and i.node is None]


def said_again(program: Program, n: int, draw: random.Random) -> Program:
    """One of the readers of a collective's result reads one that is made for it anew."""
    instr = program.instrs[n]
    (value,) = instr.results
    readers = [m for m, other in enumerate(program.instrs) if value in other.inputs]
    if not readers:
        return program
    reader, copy = draw.choice(readers), len(program.values)
    local = replace(program.values[value], id=copy, name=f"{program.values[value].name}_again_{n}")
    instrs = list(program.instrs)
    instrs[reader] = reading(instrs[reader], value, copy)
    instrs.insert(reader, replace(instr, results=(copy,)))
    return check_program(replace(program, values=(*program.values, local), instrs=tuple(instrs)))


def reading(instr: Instr, value: int, other: int) -> Instr:
    def put(operand: Any) -> Any:
        if isinstance(operand, tuple):
            return tuple(map(put, operand))
        return other if operand == value else operand

    return replace(instr, operands=tuple(map(put, instr.operands)))


def in_a_roundabout_way(program: Program, n: int, draw: random.Random) -> Program:
    """What an instruction reads is gathered along a dim and cut again before."""
    values, instr = list(program.values), program.instrs[n]
    for value in instr.inputs:
        local = program.values[value]
        cut = [d for d, dim in enumerate(local.spec.dims) if dim.axes]
        if not cut:
            continue
        dims = list(local.spec.dims)
        dims[draw.choice(cut)] = replace(dims[0], axes=())
        whole = ShardingSpec.make(program.mesh, tuple(dims), local.spec.partial)
        made, at = [], value
        there = reshard(local.spec, whole, local.type.shape, local.type.item_bytes, idle=False)
        back = reshard(whole, local.spec, local.type.shape, local.type.item_bytes, idle=False)
        if [step.kind for step in there] != ["all_gather"] or {step.kind for step in back} != {"slice"}:
            continue
        for step in (*there, *back):
            made.append(step_instr(step, at, len(values), "roundabout"))
            values.append(replace(local, id=len(values), spec=step.after.closed(), name=f"{local.name}_{len(values)}_"))
            at = len(values) - 1
        instrs = [*program.instrs[:n], *made, reading(instr, value, at), *program.instrs[n + 1 :]]
        return check_program(replace(program, values=tuple(values), instrs=tuple(instrs)))
    return program


def ran(program: Program) -> list[Any]:
    generator = np.random.default_rng(0)
    shards = []
    for value in program.inputs:
        local = program.values[value]
        shards.append(scatter(generator.integers(-3, 4, local.type.shape).astype(np.float32), local.spec))
    outputs, _ = VirtualEngine(program.mesh, prepare).compile(program).run(shards)
    return [part for shards in outputs for part in shards]


@pytest.mark.parametrize("seed", range(120))
def test_what_was_put_in_is_taken_out_again(seed: int, random_program: Make) -> None:
    graph, program = random_program(seed)
    before, draw = without_repeats(program, (), PLENTY), random.Random(seed)
    more = before
    for _ in range(3):
        if steps(more):
            more = said_again(more, draw.choice(steps(more)), draw)
        if more.instrs:
            more = in_a_roundabout_way(more, draw.randrange(len(more.instrs)), draw)
    made = without_repeats(more, (), PLENTY)
    assert len(made.collectives) <= len(before.collectives)
    assert made.bytes <= before.bytes
    assert made is more or made.notes[-1].startswith("redundancy: ")
    for one, other in zip(ran(made), ran(program), strict=True):
        np.testing.assert_array_equal(one, other)
    if seed % 4 == 0:
        prove(graph, ordered(made, H100, graph))
    assert without_repeats(made, (), PLENTY) is made
    tight = without_repeats(more, (), 0)
    assert program_memory(tight, RESIDENT) <= program_memory(more, RESIDENT)
    assert program_memory(made, RESIDENT) <= PLENTY


SUM = """graph f(%x: f64[16, 8], %w: f64[16, 8]) {
  %a = exp(%x) : f64[16, 8]
  %b = tanh(%w) : f64[16, 8]
  %c = exp(%b) : f64[16, 8]
  %d = add(%a, %c) : f64[16, 8]
  %e = add(%x, %d) : f64[16, 8]
  return %d, %e
}"""


def twice() -> tuple[Graph, Program]:
    """x is gathered for its first reader, and for the last one again."""
    graph, mesh = Graph.parse(SUM), DeviceMesh("d=4")
    inputs = [ShardingSpec.of(spec, mesh, 2) for spec in ("[d, _]", "[_, _]")]
    whole = dict.fromkeys(range(len(graph.nodes)), ((), ()))
    said = Said(dict(zip(graph.inputs, inputs)), dict.fromkeys(range(2), inputs[1]), whole)
    program = compile_graph(graph, mesh, said).program
    (gather,) = steps(program)
    last = max(n for n, i in enumerate(program.instrs) if program.instrs[gather].results[0] in i.inputs)
    found = said_again(program, gather, Last(last, program, gather))
    assert len(found.collectives) == 2
    return graph, found


class Last(random.Random):
    """Chooses the last one."""

    def __init__(self, *_: Any) -> None:
        super().__init__(0)

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def test_a_gather_is_kept_where_memory_allows() -> None:
    graph, program = twice()
    peak = program_memory(program, RESIDENT)
    made = without_repeats(program, (), PLENTY)
    assert [c.bytes for c in made.collectives] == [c.bytes for c in program.collectives][:1]
    assert made.notes == ("redundancy: 1 collectives fewer, 768 bytes a device less",)
    needed = program_memory(made, RESIDENT)
    assert needed > peak, "x would be kept through all that is computed"
    assert without_repeats(program, (), needed) == made
    assert without_repeats(program, (), needed - 1) is program
    assert without_repeats(program) is program
    prove(graph, made)


def test_what_is_gathered_anew_on_purpose_stays() -> None:
    graph, program = twice()
    origin = program.values[program.instrs[steps(program)[0]].results[0]].origin
    assert without_repeats(program, {origin}, PLENTY) is program
    prove(graph, program)


def cut_again(text: str, parts: tuple[str, ...], shape: str = "16, 8") -> Program:
    """x is gathered, and parts of it are kept."""
    graph, mesh = Graph.parse(f"graph f(%x: f64[{shape}]) {{\n  return %x\n}}"), DeviceMesh("d=2, t=2")
    specs = [ShardingSpec.of(spec, mesh, 2) for spec in (text, "[_, _]", *parts)]
    program = compile_graph(graph, mesh, Said({graph.inputs[0]: specs[0]}, {0: specs[0]})).program
    x = program.values[program.inputs[0]]
    values = [replace(x, id=i, spec=spec.closed(), name=f"x{i}") for i, spec in enumerate(specs)]
    instrs = []

    def go(at: int, to: int) -> None:
        for step in reshard(values[at].spec, specs[to], x.type.shape, x.type.item_bytes, idle=False):
            made = to if step.after.same_layout(specs[to]) else len(values)
            if made == len(values):
                values.append(replace(x, id=made, spec=step.after.closed(), name=f"x{made}"))
            instrs.append(step_instr(step, at, made, "test"))
            at = made

    go(0, 1)
    for i in range(len(parts)):
        go(1, i + 2)
    outputs = tuple(range(2, len(parts) + 2))
    return check_program(replace(program, values=tuple(values), instrs=tuple(instrs), inputs=(0,), outputs=outputs))


@pytest.mark.parametrize(
    ("text", "parts", "kinds", "sent"),
    [
        ("[d, _]", ("[d, _]",), [], 0),
        ("[d, _]", ("[_, d]",), ["all_to_all"], 256),
        ("[d, _]", ("[d, t]",), ["core.slice"], 0),
        ("[d, _]", ("[d, _]", "[_, d]"), ["all_to_all"], 256),
        ("[d, _]", ("[t, _]",), None, 512),
        ("[d, _]", ("[_, t]",), ["core.slice", "all_gather"], 256),
        ("[d, _]", ("[_, d]", "[t, _]"), None, 512),
        ("[d, _]", ("[_, d]", "[_, t]", "[t, _]"), None, 512),
        ("[_, d]", ("[d, _]", "[_, d]"), ["all_to_all"], 256),
    ],
)
def test_a_gather_that_is_only_cut_again(text: str, parts: tuple[str, ...], kinds: list[str] | None, sent: int) -> None:
    program = cut_again(text, parts)
    made = without_repeats(program)
    assert made.bytes == sent < program.bytes or (made is program and kinds is None)
    if kinds is not None:
        assert [i.op for i in made.instrs] == kinds
    x = np.arange(128.0).reshape(16, 8)
    for some in (program, made):
        (shards,) = [scatter(x, some.values[v].spec) for v in some.inputs]
        outputs, _ = VirtualEngine(some.mesh, prepare).compile(some).run([shards])
        for output, spec in zip(outputs, parts, strict=True):
            for found, expected in zip(output, scatter(x, ShardingSpec.of(spec, some.mesh, 2)), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_a_gather_that_somebody_reads_whole_stays() -> None:
    program = cut_again("[d, _]", ("[_, d]", "[d, _]"))
    whole = replace(program, outputs=(*program.outputs, 1))
    assert without_repeats(whole) is whole


def wrong(program: Program) -> Iterator[Program]:
    """What a pass would make that took things for the same that are not."""
    for n, instr in enumerate(program.instrs):
        if not instr.is_collective or instr.node is not None:
            continue
        (value,) = instr.results
        for other in program.instrs:
            if other is not instr and other.is_collective and other.node is None:
                (instead,) = other.results
                alike = program.values[instead].type == program.values[value].type
                if not alike or program.values[instead].spec != program.values[value].spec:
                    continue
                instrs = [reading(i, value, instead) for m, i in enumerate(program.instrs) if m != n]
                yield replace(program, instrs=tuple(instrs))
        if instr.op in ("all_reduce", "reduce_scatter", "all_to_all", "collective_permute"):
            instrs = [reading(i, value, instr.inputs[0]) for m, i in enumerate(program.instrs) if m != n]
            yield replace(program, instrs=tuple(instrs))


def test_the_proof_refuses_what_is_not_the_same(random_program: Make) -> None:
    tried = refused = 0
    for seed in range(40):
        graph, program = random_program(seed)
        for mutant in wrong(program):
            try:
                check_program(mutant)
            except ShardwrightError:
                continue
            try:
                changed = any(not np.array_equal(a, b) for a, b in zip(ran(mutant), ran(program), strict=True))
            except Exception:
                changed = True
            if not changed:
                continue
            tried += 1
            with pytest.raises(ShardwrightError):
                prove(graph, mutant)
            refused += 1
    assert refused == tried >= 10
