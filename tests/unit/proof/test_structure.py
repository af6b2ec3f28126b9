"""What a well-formed Program is, and what is said of one that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import counted, embedding, mlp, moved, plan, reduced, update
from program_faults import with_attr, with_instr, with_spec, with_value
from random_programs import random_case

from shardwright.errors import VerifyError
from shardwright.ir.graph import TensorType
from shardwright.ir.program import Instr, Local, Program
from shardwright.proof import check_structure
from shardwright.spec.axes import AxisRef
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import DimSpec, ShardingSpec


def megatron() -> Program:
    return plan(mlp(), "dp=2, tp=4", {"x": "[dp, _]", "w1": "[_, tp]", "w2": "[tp, _]"})


def fact(program: Program) -> str:
    with pytest.raises(VerifyError) as error:
        check_structure(program)
    return error.value.fact


def find(program: Program, op: str) -> int:
    return next(n for n, instr in enumerate(program.instrs) if instr.op == op)


def test_a_good_program_comes_back() -> None:
    program = megatron()
    assert check_structure(program) is program


def test_the_error_shows_the_line_and_its_cause() -> None:
    program = megatron()
    n = find(program, "all_reduce")
    with pytest.raises(VerifyError) as error:
        check_structure(with_attr(program, n, reduction="max"))
    assert str(error.value).splitlines() == [
        "combines by max what is pending by sum",
        "  from         f32[10@dp, 6] // tp",
        "  to           f32[10@dp, 6]",
        '  instruction  3: %y_1 = all_reduce(%y) {reduction="max"} : f32[10@dp, 6]',
        "  axes         tp",
        "  cause        operand 0 of node 3 subtract",
    ]


# -- values ---------------------------------------------------------------------------------------------


def test_values_are_numbered_and_named_once() -> None:
    program = megatron()
    twice = replace(program.values[1], name=program.values[0].name)
    assert fact(replace(program, values=(program.values[0], twice, *program.values[2:]))) == (
        "two values have the same name"
    )
    wrong = replace(program.values[1], id=7)
    assert "is numbered 7" in fact(replace(program, values=(program.values[0], wrong, *program.values[2:])))


def test_a_value_that_nobody_makes() -> None:
    program, _ = with_value(megatron(), megatron().values[0], "orphan")
    assert fact(program) == "%orphan is neither an input nor made by an instruction"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (ShardingSpec(DeviceMesh("dp=2"), ["dp", None]), "another mesh"),
        (ShardingSpec(DeviceMesh("dp=2, tp=4"), ["dp"]), "a sharding of 1 dims for a tensor of 2"),
        (
            ShardingSpec.make(DeviceMesh("dp=2, tp=4"), (DimSpec((AxisRef("dp", 1, 2, 2),)),) * 2),
            "mesh axis dp is used twice",
        ),
        (
            ShardingSpec.make(DeviceMesh("dp=2, tp=4"), (DimSpec((AxisRef("tp", 1, 3, 4),)), DimSpec())),
            "is not a part of axis 'tp'",
        ),
        (
            ShardingSpec.make(DeviceMesh("dp=2, tp=4"), (DimSpec((AxisRef("pp", 1, 3, 3),)), DimSpec())),
            "the mesh has no axis 'pp'",
        ),
        (
            ShardingSpec.make(DeviceMesh("dp=2, tp=4"), (DimSpec(), DimSpec()), ((AxisRef("dp", 1, 2, 2), "median"),)),
            "no pending reduction is called 'median'",
        ),
    ],
    ids=["mesh", "rank", "twice", "part", "axis", "reduction"],
)
def test_every_sharding_is_one_of_the_mesh(spec: ShardingSpec, says: str) -> None:
    program = megatron()
    assert says in fact(with_spec(program, program.inputs[0], spec))


# -- reading and making ---------------------------------------------------------------------------------


def test_reads_come_after_what_makes_them() -> None:
    program = megatron()
    assert "which is not made yet" in fact(replace(program, instrs=program.instrs[::-1]))
    first = program.instrs[0]
    assert fact(with_instr(program, 0, first, first)) == "makes %h a second time"
    assert "which does not exist" in fact(with_instr(program, 0, replace(first, results=(99,))))


def test_inputs_and_outputs_exist() -> None:
    program = megatron()
    assert fact(replace(program, inputs=(*program.inputs, 99))) == "an input does not exist"
    assert fact(replace(program, inputs=(*program.inputs, program.inputs[0]))) == (
        "a value stands twice among the inputs"
    )
    assert fact(replace(program, outputs=(99,))) == "output 0 does not exist"


def test_an_output_may_be_pending() -> None:
    """Whoever puts it together combines it."""
    program = plan(reduced("reduce_sum"), "x=2", {"x": "[_, x]"})
    n = find(program, "all_reduce")
    returned = program.instrs[n].inputs
    check_structure(replace(program, outputs=returned, instrs=program.instrs))


def test_updates_keep_types() -> None:
    program = plan(update(), "x=2", {"w": "[x, _]"})
    check_structure(program)
    assert "changes its type" in fact(replace(program, updates=((2, 0),)))
    assert "names no input or no output" in fact(replace(program, updates=((0, 5),)))
    assert fact(replace(program, updates=((0, 0), (0, 0)))) == "an input is updated twice"


# -- collectives ----------------------------------------------------------------------------------------


def gathered() -> Program:
    return plan(moved(), "x=2, y=3", {}, pinned={"x": "[y+x, _]", "c": "[y, _]"})


def test_an_all_gather_takes_the_minor_end() -> None:
    program = gathered()
    n = find(program, "all_gather")
    y = program.mesh.axis("y")
    assert "off the minor end of dim 0" in fact(with_instr(program, n, replace(program.instrs[n], axes=(y,))))
    assert "dim 2 of a tensor with 2 dims" in fact(with_attr(program, n, dim=2))
    assert "off the minor end of dim 1" in fact(with_attr(program, n, dim=1))


def test_pieces_must_join_up() -> None:
    """Half of an axis cannot be undone where it does not divide: 4 + 1 is not 3 + 2."""
    mesh = DeviceMesh("x=4")
    type = TensorType((5,))
    values = (
        Local(0, type, ShardingSpec(mesh, ["x"]), "a"),
        Local(1, type, ShardingSpec(mesh, ["x:(1)2"]), "b"),
    )
    gather = Instr("all_gather", (0,), (1,), (("dim", 0),), (mesh.axis("x:(2)2"),), 8)
    program = Program("odd", mesh, values, (gather,), (0,), (1,))
    assert fact(program) == "joins pieces of dim 0 that are not what is left"
    cut = Instr("core.slice", (0,), (1,), (("dim", 0),), (mesh.axis("x:(2)2"),))
    back = replace(program, values=(replace(values[1], id=0), replace(values[0], id=1)), instrs=(cut,))
    assert fact(back) == "cuts dim 0 into other pieces than its result has"
    even = [replace(local, type=TensorType((8,))) for local in values]
    check_structure(replace(program, values=tuple(even)))


def test_a_step_keeps_what_it_has_nothing_to_do_with() -> None:
    program = gathered()
    n = find(program, "all_gather")
    made = program.instrs[n].results[0]
    other = ShardingSpec(program.mesh, ["y", "x"])
    assert "changes dim 1" in fact(with_spec(program, made, other))
    pending = ShardingSpec(program.mesh, ["y", None], partial="x")
    assert fact(with_spec(program, made, pending)) == "changes what is pending"


def test_a_step_keeps_the_type_and_the_value() -> None:
    program = gathered()
    made = program.instrs[find(program, "all_gather")].results[0]
    values = list(program.values)
    values[made] = replace(values[made], type=TensorType(values[made].type.shape, "f64"))
    assert fact(replace(program, values=tuple(values))) == "changes the type of its operand"
    values[made] = replace(program.values[made], origin=0)
    assert "a copy of another value" in fact(replace(program, values=tuple(values)))


def test_bytes_are_those_of_the_definition() -> None:
    program = gathered()
    n = find(program, "all_gather")
    sends = program.instrs[n].bytes
    assert fact(with_instr(program, n, replace(program.instrs[n], bytes=1))) == f"sends {sends} bytes, not 1"
    n = find(program, "exp")
    assert "a local op claims to send 8 bytes" in fact(with_instr(program, n, replace(program.instrs[n], bytes=8)))


def test_a_slice_takes_unused_axes() -> None:
    program = plan(moved(), "x=2, y=3", {}, pinned={"x": "[x, _]", "c": "[x, y]"})
    n = find(program, "core.slice")
    x = program.mesh.axis("x")
    assert "in use already" in fact(with_instr(program, n, replace(program.instrs[n], axes=(x,))))


def test_an_exchange_moves_axes_from_one_dim_to_another() -> None:
    program = plan(moved(), "x=4", {}, pinned={"x": "[x, _]", "c": "[_, x]"})
    n = find(program, "all_to_all")
    assert fact(with_attr(program, n, to_dim=0)) == "moves axes from a dim to itself"
    assert "minor end of dim 1" in fact(with_attr(program, n, dim=1, to_dim=0))


def test_a_permute_keeps_the_pieces() -> None:
    program = plan(moved((8, 8)), "x=2, y=2", {}, pinned={"x": "[x, y]", "c": "[y, x]"})
    n = find(program, "collective_permute")
    made = program.instrs[n].results[0]
    assert fact(with_spec(program, made, ShardingSpec(program.mesh, ["y+x", None]))) == "cuts dim 0 into other pieces"
    half = replace(program.instrs[n], axes=program.mesh.axes[:1])
    assert fact(with_instr(program, n, half)) == "a permute runs over the whole mesh"


def test_groups_part_the_mesh() -> None:
    program = plan(reduced("reduce_sum"), "x=4", {"x": "[_, x]"})
    n = find(program, "all_reduce")
    axes = (program.mesh.axis("x"), program.mesh.axis("x:(1)2"))
    assert fact(with_instr(program, n, replace(program.instrs[n], axes=axes))) == "its groups do not part the mesh"


# -- what depends on the device -------------------------------------------------------------------------


def test_only_steps_and_offsets_have_axes() -> None:
    program = megatron()
    local = replace(program.instrs[0], axes=program.mesh.axes[:1])
    assert fact(with_instr(program, 0, local)) == "depends on the device, but is no step that may"


def test_only_forms_read_an_offset() -> None:
    program = plan(counted(), "x=2, y=3", {"x": "[x, y]"})
    check_structure(program)
    offset = program.instrs[find(program, "core.offset")].results[0]
    n = find(program, "add")
    add = replace(program.instrs[n], operands=(program.instrs[n].operands[0], offset))
    assert "devices would go different ways" in fact(with_instr(program, n, add))
    assert fact(replace(program, outputs=(offset,))) == "output 0 differs from device to device"


def test_an_offset_is_of_the_dim_that_is_cut() -> None:
    program = plan(embedding(), "dp=2, tp=4", {"table": "[tp, _]", "index": "[dp]"})
    n = find(program, "core.offset")
    dp = program.mesh.axis("dp")
    wrong = with_instr(program, n, replace(program.instrs[n], axes=(dp,)))
    assert fact(wrong) == "has an offset that is not of dim 0 of %table"
    assert fact(with_attr(program, n, size=9)) == "has an offset into 9 elements, not 10"
    n = find(program, "core.take")
    assert fact(with_attr(program, n, size=9)) == "looks up in 9 rows of 10"
    table, index, _ = program.instrs[n].operands
    plain = replace(program.instrs[n], operands=(table, index, index))
    assert fact(with_instr(program, n, plain)) == "needs an offset into dim 0 of %table"
    made = program.instrs[n].results[0]
    finished = ShardingSpec(program.mesh, ["dp", None])
    assert fact(with_spec(program, made, finished)) == "leaves rows out, but its result is not pending"


def test_random_programs_are_well_formed() -> None:
    for seed in range(20):
        check_structure(random_case(seed)[1])
