"""Mistakes in what is computed: operands, constants, element types, updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from typing import Any

from program_faults import over, renamed, with_attr, with_instr

from mutation.editing import FLOATS, after, before_reader, cast_to, floats, fresh, is_torch, kind, made, scaled
from shardwright.ir.program import Instr, Program

LOWER = {"f64": ("f32", "f16"), "f32": ("f16", "bf16"), "i64": ("i32",)}
SAME_FORM = (
    ("add", "subtract", "multiply", "divide", "maximum", "minimum"),
    ("exp", "tanh", "sin", "negative", "sqrt", "square"),
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), ("tril", "triu"), ("cumsum", "sort"),
    ("argmax", "argmin"),
    ("less", "greater", "less_equal", "greater_equal"),
    ("aten.mul.Tensor", "aten.div.Tensor"), ("aten.add.Tensor", "aten.sub.Tensor"), ("aten.addcmul", "aten.addcdiv"),
    ("aten.gelu", "aten.tanh", "aten.relu"), ("aten.sqrt", "aten.rsqrt", "aten.exp"),
    ("aten.eq.Scalar", "aten.ne.Scalar"),
)  # fmt: skip
"""Ops that take and make the same types."""


@kind("value", "weight decay, or a stale copy, in the place of the new value")
def another_operand(program: Program) -> Iterator[Program]:
    """An instruction reads another value of the same type and sharding that exists already."""
    known: dict[Any, list[int]] = {}
    for value in program.inputs:
        known.setdefault((program.values[value].type, program.values[value].spec), []).append(value)
    for n, instr in enumerate(program.instrs):
        for value in dict.fromkeys(instr.inputs):
            local = program.values[value]
            for other in known.get((local.type, local.spec), [])[-3:]:
                if other != value:
                    one = renamed(replace(program, instrs=(instr,)), {value: other}).instrs[0]
                    yield with_instr(program, n, one)
        for value in instr.results:
            known.setdefault((program.values[value].type, program.values[value].spec), []).append(value)


@kind("value", "a stale copy read instead of the new one: EMA and tied weights")
def stale_copy(program: Program) -> Iterator[Program]:
    """Where an output updates an input, the old one is read or returned."""
    for i, o in program.updates:
        old, new = program.inputs[i], program.outputs[o]
        if old != new and program.values[old].spec == program.values[new].spec:
            yield replace(program, outputs=(*program.outputs[:o], old, *program.outputs[o + 1 :]))
            if any(new in instr.inputs for instr in program.instrs):
                swapped = renamed(program, {new: old})
                yield replace(swapped, outputs=program.outputs)


@kind("update", "momentum and variance exchanged on loading a sharded checkpoint")
def update_from_another_output(program: Program) -> Iterator[Program]:
    for n, (i, o) in enumerate(program.updates):
        for m, (j, p) in enumerate(program.updates[:n]):
            same = all(program.values[program.inputs[i]].type == program.values[v].type
                       for v in (program.inputs[j], program.outputs[o], program.outputs[p]))  # fmt: skip
            if same:
                updates = list(program.updates)
                updates[n], updates[m] = (i, p), (j, o)
                yield replace(program, updates=tuple(updates))


@kind("update", "")
def outputs_exchanged(program: Program) -> Iterator[Program]:
    for i, first in enumerate(program.outputs):
        for j, second in enumerate(program.outputs[:i]):
            a, b = program.values[first], program.values[second]
            if a.type == b.type and first != second:
                outputs = list(program.outputs)
                outputs[i], outputs[j] = second, first
                yield replace(program, outputs=tuple(outputs))


@kind("value")
def another_op(program: Program) -> Iterator[Program]:
    for n, instr in enumerate(program.instrs):
        for ops in SAME_FORM:
            if instr.op in ops:
                for op in ops:
                    if op != instr.op:
                        yield with_instr(program, n, replace(instr, op=op))


@kind("value", "an op left out: dropout scale, bias correction")
def op_left_out(program: Program) -> Iterator[Program]:
    """Readers read its operand, of the same type and sharding."""
    for n, instr in enumerate(program.instrs):
        if instr.axes or len(instr.results) != 1:
            continue
        local = program.values[instr.results[0]]
        for value in dict.fromkeys(instr.inputs):
            if (program.values[value].type, program.values[value].spec) == (local.type, local.spec):
                yield renamed(program, {local.id: value}, after=n)


def _numbers(value: Any) -> Iterator[Any]:
    """Other numbers in the place of one."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        if value in (inf, -inf):
            yield from (0.0, -value, -1e9, nan)
        elif value != value:
            yield 0.0
        else:
            yield from (value * 2 + 1, -value, value * (1 + 1e-6), inf)
    elif isinstance(value, tuple):
        for n, item in enumerate(value):
            yield from ((*value[:n], other, *value[n + 1 :]) for other in _numbers(item))
            break


@kind("value", "mask of -inf taken for 0; eps, betas and scale mixed up")
def constant_changed(program: Program) -> Iterator[Program]:
    for n, instr in enumerate(program.instrs):
        if instr.axes:
            continue
        for name, value in instr.attrs:
            if name in ("dim", "axis", "to_dim", "size", "shape"):
                continue
            for other in _numbers(value):
                yield with_attr(program, n, **{name: other})


@kind("slice", "mask offset off by one; window one place further")
def place_changed(program: Program) -> Iterator[Program]:
    """A bound, a shift, an amount or a diagonal, by one or by a shard."""
    for n, instr in enumerate(program.instrs):
        for name in ("start", "stop", "shift", "low", "high", "k", "index", "end", "diagonal"):
            said = instr.attr(name)
            if said is None or isinstance(said, bool | float):
                continue
            for by in (-1, 1, 4):
                moved = tuple(x if x is None else x + by for x in said) if isinstance(said, tuple) else said + by
                yield with_attr(program, n, **{name: moved})


@kind("value", "dim of a reduction or softmax off by one")
def another_dim(program: Program) -> Iterator[Program]:
    for n, instr in enumerate(program.instrs):
        if instr.axes or not instr.inputs:
            continue
        rank = program.values[instr.inputs[0]].type.rank
        for name in ("axis", "dim"):
            said = instr.attr(name)
            if isinstance(said, int) and not isinstance(said, bool) and rank > 1:
                yield with_attr(program, n, **{name: (said + 1) % rank})
            elif isinstance(said, tuple) and said and rank > 1 and len(said) < rank:
                free = [d for d in range(rank) if d not in {x % rank for x in said}]
                yield with_attr(program, n, **{name: tuple(sorted((*said[:-1], free[0])))})


@kind("value", "loss scaled by the wrong count: gradient accumulation in `transformers`")
def scaled_by_a_count(program: Program) -> Iterator[Program]:
    """A value times, or divided by, what a wrong count would make of it."""
    for local in floats(program):
        for by in (2.0, 1 / program.mesh.size):
            yield after(program, local.id, lambda grown, value, by=by: scaled(grown, value, by))


@kind("value")
def operands_reversed(program: Program) -> Iterator[Program]:
    ops = (
        "power", "matmul", "less", "greater", "where", "concatenate", "aten.sub.Tensor", "aten.div.Tensor", "aten.mm",
        "aten.lerp.Scalar", "aten.bmm",
    )  # fmt: skip
    for n, instr in over(program, *ops):
        operands = instr.operands
        if instr.op == "where":
            yield with_instr(program, n, replace(instr, operands=(operands[0], operands[2], operands[1])))
        elif isinstance(operands[0], tuple):
            yield with_instr(program, n, replace(instr, operands=(operands[0][::-1], *operands[1:])))
        elif len(operands) == 2 and None not in operands:
            yield with_instr(program, n, replace(instr, operands=operands[::-1]))


@kind("value", "best of rounded scores: ties go to the first")
def coarse_before_an_order(program: Program) -> Iterator[Program]:
    """An op that rises, but not strictly, before argmax, argmin or argsort."""
    for n, instr in over(program, "argmax", "argmin", "argsort", "aten.argmax", "aten.topk", "aten.sort"):
        for op in ("aten.floor", "aten.relu") if is_torch(program) else ("floor", "sign", "rint"):

            def write(grown: Program, value: int, op: str = op) -> tuple[Program, list[Instr], int]:
                grown, new = fresh(grown, grown.values[value], "coarse")
                return grown, [Instr(op, (value,), (new,))], new

            if program.values[instr.inputs[0]].type.dtype in FLOATS:
                yield before_reader(program, n, instr.inputs[0], write)


# -- element types --------------------------------------------------------------------------------------


@kind("type", "an intermediate in half precision: softmax and norms under autocast")
def intermediate_of_another_type(program: Program) -> Iterator[Program]:
    """Retyped where it is made; readers take it as it is."""
    outputs = set(program.outputs)
    for value in made(program):
        local = program.values[value]
        for dtype in LOWER.get(local.type.dtype, ()):
            if value not in outputs and not is_torch(program):
                values = list(program.values)
                values[value] = replace(local, type=replace(local.type, dtype=dtype))
                yield replace(program, values=tuple(values))


@kind("type", "a cast to a narrow type and back")
def rounded(program: Program) -> Iterator[Program]:
    for local in floats(program):
        for dtype in LOWER.get(local.type.dtype, ()):

            def write(grown: Program, value: int, dtype: str = dtype) -> tuple[Program, list[Instr], int]:
                wide = grown.values[value].type.dtype
                grown, down, narrow = cast_to(grown, value, dtype, "narrow")
                grown, up, back = cast_to(grown, narrow, wide, "back")
                return grown, [down, up], back

            yield after(program, local.id, write)


@kind("type", "one reader reads a rounded copy")
def rounded_for_one_reader(program: Program) -> Iterator[Program]:
    """Such as argmax, to which half precision makes ties."""
    for n, instr in enumerate(program.instrs):
        for value in dict.fromkeys(instr.inputs):
            dtype = program.values[value].type.dtype
            for narrow in LOWER.get(dtype, ())[-1:]:

                def write(grown: Program, value: int, narrow: str = narrow) -> tuple[Program, list[Instr], int]:
                    wide = grown.values[value].type.dtype
                    grown, down, low = cast_to(grown, value, narrow, "narrow")
                    grown, up, back = cast_to(grown, low, wide, "back")
                    return grown, [down, up], back

                yield before_reader(program, n, value, write)


@kind("type", "gradients reduced in bf16: FSDP reduce_dtype, DeepSpeed communication_data_type")
def reduced_in_lower_precision(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute"):
        (read,), (result,) = instr.inputs, instr.results
        local = program.values[result]
        for dtype in LOWER.get(local.type.dtype, ()) if local.type.dtype in FLOATS else ():
            grown, down, low = cast_to(program, read, dtype, "narrow")
            grown, middle = fresh(grown, local, "low", type=replace(local.type, dtype=dtype))
            grown, up, _ = cast_to(grown, middle, local.type.dtype, into=result)
            ratio = grown.values[low].type.item_bytes / local.type.item_bytes
            moved = replace(instr, operands=(low,), results=(middle,), bytes=int(instr.bytes * ratio))
            yield with_instr(grown, n, down, moved, up)


@kind("type", "a cast to another type than the program's: tf32 and bf16 mixed up")
def cast_to_another_type(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "cast"):
        local = program.values[instr.results[0]]
        for dtype in LOWER.get(local.type.dtype, ()):
            if local.id not in program.outputs:
                values = list(program.values)
                values[local.id] = replace(local, type=replace(local.type, dtype=dtype))
                yield with_attr(replace(program, values=tuple(values)), n, dtype=dtype)
