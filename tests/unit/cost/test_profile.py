"""Memory of Programs: to the byte what running them takes, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardwright import Graph, Program
from shardwright.cost import METERED, RESIDENT, MemoryRules, memory_profile, program_memory
from shardwright.cost.profile import HELD, alive_at, value_kinds
from shardwright.ir.order import Buffer, buffer_bytes, packing
from shardwright.ir.program import Instr

Make = Callable[[int], tuple[Graph, Program]]


@pytest.mark.parametrize("seed", range(300))
def test_the_peak_is_what_running_measures(seed: int, random_program: Make, executed: Callable[..., object]) -> None:
    _, program = random_program(seed)
    for rules, donate in ((RESIDENT, True), (HELD, False)):
        measured = executed(program, donate).peak_bytes  # type: ignore[attr-defined]
        assert memory_profile(program, rules).peak == program_memory(program, rules) == measured
    assert program_memory(program) <= program_memory(program, RESIDENT) <= program_memory(program, HELD)


@pytest.mark.parametrize("rules", [METERED, RESIDENT, MemoryRules(True, False), MemoryRules(False, True)], ids=str)
@pytest.mark.parametrize("seed", range(0, 300, 10))
def test_what_is_alive_adds_up_to_the_peak(seed: int, rules: MemoryRules, random_program: Make) -> None:
    graph, program = random_program(seed)
    found = memory_profile(program, rules, graph)
    assert sum(item.bytes for item in found.alive) == sum(found.by_kind.values()) == found.peak
    assert found.peak >= program_memory(program)
    assert [item.bytes for item in found.alive] == sorted((item.bytes for item in found.alive), reverse=True)


def room_of(program: Program, instr: Instr) -> int:
    """What a collective packs into, alone."""
    at = program.instrs.index(instr)
    packs, unpacks = packing(program, instr)
    return buffer_bytes(program, Buffer("packed" if packs else "received", (at,))) if packs or unpacks else 0


@pytest.mark.parametrize("rules", [METERED, RESIDENT, HELD], ids=str)
@pytest.mark.parametrize("seed", range(0, 300, 7))
def test_bytes_alive_at_every_instruction(seed: int, rules: MemoryRules, random_program: Make) -> None:
    """Against the definition: what is there is needed now or later, or never goes."""
    _, program = random_program(seed)
    base = {local.id: local.id for local in program.values}
    reads = [instr.as_node().inputs for instr in program.instrs]
    for instr, inputs in zip(program.instrs, reads):
        base.update({instr.results[made]: base[inputs[shown]] for made, shown in instr.views})
    born = dict.fromkeys(program.inputs, -1)
    born.update({value: n for n, instr in enumerate(program.instrs) for value in instr.results if base[value] == value})
    donated = {i for i, _ in program.updates} if rules.donate else set()
    stay = {base[value] for value in program.outputs}
    stay |= {value for i, value in enumerate(program.inputs) if rules.keep_inputs and i not in donated}
    used = {value: [n for n, of in enumerate(reads) if value in {base[v] for v in of}] for value in born}
    stay |= {value for value in program.inputs if not used[value]}
    expected = []
    for n, instr in enumerate(program.instrs):
        there = [v for v, at in born.items() if at <= n and (v in stay or at == n or any(use >= n for use in used[v]))]
        there += [base[v] for v in instr.results if base[v] not in there]  # a view of what nobody reads
        packed = room_of(program, instr) if rules.buffers else 0
        size = {value: program.values[value].padded_bytes for value in there}
        total = sum(size.values())
        if rules.buffers and packing(program, instr) == (False, True):  # put together when what was sent is gone
            (sent,), (made,) = ({base[v] for v in values} for values in (reads[n], instr.results))
            gone = size[sent] if sent not in stay and max(used[sent]) == n else 0
            total -= min(gone, size[made])
        expected.append(total + packed)
    assert alive_at(program, rules) == expected
    assert max(expected) == memory_profile(program, rules).peak
    later = replace(program, outputs=(*program.outputs, *program.instrs[0].results))
    assert all(more >= less for more, less in zip(alive_at(later, rules), expected))


STEP = Graph.parse("""graph step(%x: f32[8, 4], %w: f32[4, 4], %m: f32[4, 4]) {
  %h = matmul(%x, %w) : f32[8, 4]
  %a = exp(%h) : f32[8, 4]
  %t = transpose(%x) : f32[4, 8]
  %g = matmul(%t, %a) : f32[4, 4]
  %n = add(%m, %g) : f32[4, 4]
  %v = add(%w, %n) : f32[4, 4]
  return %v, %n
  update %w := output 0
  update %m := output 1
}""")


def test_the_step_and_the_tensors_are_named(lowered: Callable[..., Program]) -> None:
    program = lowered(STEP, "d=1", {})
    found = memory_profile(program)
    # x, w, m, h and a at 128 + 64 + 64 + 128 + 128; then x, t, a instead of h: as much, later.
    assert (found.peak, found.step) == (512, 1)
    assert found.where == "exp -> %a"
    assert {item.name: item.kind for item in found.alive} == {
        "x": "input",
        "w": "parameter",
        "m": "state",
        "h": "activation",
        "a": "activation",
    }
    assert found.by_kind == {"parameter": 64, "state": 64, "input": 128, "activation": 256}


def test_every_value_has_a_kind(lowered: Callable[..., Program]) -> None:
    program = lowered(STEP, "d=2", {"x": "[d, _]", "w": "[_, d]"})
    kinds = dict(zip((local.name for local in program.values), value_kinds(program, STEP)))
    assert (kinds["w"], kinds["m"], kinds["x"]) == ("parameter", "state", "input")
    assert (kinds["v"], kinds["n"], kinds["h"]) == ("updated", "updated", "activation")
    assert kinds["g"] == "gradient"
    assert "copy" in kinds.values()


def test_donated_inputs_make_room_and_others_stay(lowered: Callable[..., Program]) -> None:
    graph = Graph.parse("""graph f(%x: f32[16]) {
      %a = exp(%x) : f32[16]
      %b = exp(%a) : f32[16]
      %c = exp(%b) : f32[16]
      return %c
    }""")
    program = lowered(graph, "d=1", {})
    kept = MemoryRules(keep_inputs=True)
    assert (program_memory(program), program_memory(program, kept)) == (128, 192)
    donated = replace(program, updates=((0, 0),))
    assert program_memory(donated, kept) == 128


def test_a_program_that_does_nothing_peaks_at_its_start(lowered: Callable[..., Program]) -> None:
    found = memory_profile(lowered(Graph.parse("graph f(%x: f32[4]) { return %x }"), "d=2", {}))
    assert (found.peak, found.step, found.where) == (16, -1, "at the start")


@pytest.mark.parametrize(
    ("given", "op", "room"),
    [
        ({"x": "[d, _]", "y": "[_, _]"}, "all_gather", 0),
        ({"x": "[_, d]", "y": "[_, _]"}, "all_gather", 256),
        ({"x": "[d, _]", "y": "[_, d]"}, "all_to_all", 128),
        ({"x": "[_, d]", "y": "[d, _]"}, "all_to_all", 128),
    ],
)
def test_collectives_pack_what_does_not_lie_in_a_row(
    given: dict[str, str], op: str, room: int, lowered: Callable[..., Program]
) -> None:
    graph = Graph.parse("graph f(%x: f32[8, 8]) { %y = exp(%x) : f32[8, 8] return %y }")
    program = lowered(graph, "d=2", given)
    assert [(i.op, room_of(program, i)) for i in program.instrs if i.is_collective] == [(op, room)]
    extra = program_memory(program, MemoryRules(buffers=True)) - program_memory(program)
    assert 0 <= extra <= room


def test_a_reduction_packs_its_operand(lowered: Callable[..., Program]) -> None:
    graph = Graph.parse("graph f(%x: f32[8, 8], %w: f32[8, 8]) { %y = matmul(%x, %w) : f32[8, 8] return %y }")
    for target, room in (("[d, _]", 0), ("[_, d]", 256), ("[_, _]", 0)):
        program = lowered(graph, "d=2", {"x": "[_, d]", "w": "[d, _]", "y": target})
        (instr,) = [i for i in program.instrs if i.is_collective]
        assert instr.op == ("all_reduce" if target == "[_, _]" else "reduce_scatter")
        assert room_of(program, instr) == room
