"""Mistakes put into Programs on purpose: each fault makes a list of broken Programs out of a good one.

Where it can be, the labels are changed along with the work, so that a fault is no easier to see than a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from shardwright.ir.graph import Operand
from shardwright.ir.program import Instr, Local, Program
from shardwright.spec.axes import Axes
from shardwright.spec.sharding import DimSpec, ShardingSpec

Fault = Callable[[Program], Iterator[Program]]
FAULTS: dict[str, Fault] = {}
OTHER_KIND = {"sum": "max", "max": "min", "min": "max", "prod": "sum", "avg": "sum"}
NON_LINEAR = ("gelu", "sin", "tanh", "exp")


def fault(make: Fault) -> Fault:
    FAULTS[make.__name__.replace("_", " ")] = make
    return make


# -- editing --------------------------------------------------------------------------------------------


def with_instr(program: Program, n: int, *new: Instr) -> Program:
    """Other instructions in the place of one."""
    return replace(program, instrs=(*program.instrs[:n], *new, *program.instrs[n + 1 :]))


def with_attr(program: Program, n: int, **attrs: Any) -> Program:
    instr = program.instrs[n]
    return with_instr(program, n, replace(instr, attrs=tuple(sorted({**dict(instr.attrs), **attrs}.items()))))


def with_spec(program: Program, value: int, spec: ShardingSpec) -> Program:
    """A value that claims another sharding."""
    values = list(program.values)
    values[value] = replace(values[value], spec=spec)
    return replace(program, values=tuple(values))


def with_value(program: Program, like: Local, name: str, **changes: Any) -> tuple[Program, int]:
    local = replace(like, id=len(program.values), name=name, **changes)
    return replace(program, values=(*program.values, local)), local.id


def renamed(program: Program, names: dict[int, int], after: int = -1) -> Program:
    """Every reader after an instruction reads other values."""

    def read(operand: Operand) -> Operand:
        if isinstance(operand, tuple):
            return tuple(names.get(value, value) for value in operand)
        return None if operand is None else names.get(operand, operand)

    instrs = tuple(
        replace(instr, operands=tuple(map(read, instr.operands))) if n > after else instr
        for n, instr in enumerate(program.instrs)
    )
    return replace(program, instrs=instrs, outputs=tuple(names.get(value, value) for value in program.outputs))


def without(program: Program, n: int) -> Program:
    """An instruction left out: its readers read its operand.  Its result is gone, and values are numbered anew."""
    instr = program.instrs[n]
    (gone,), read = instr.results, instr.as_node().inputs[0]
    program = renamed(with_instr(program, n), {gone: read})
    values = [local for local in program.values if local.id != gone]
    number = {local.id: i for i, local in enumerate(values)}
    program = renamed(program, number)
    return replace(
        program,
        values=tuple(replace(local, id=i) for i, local in enumerate(values)),
        instrs=tuple(replace(i, results=tuple(number[v] for v in i.results)) for i in program.instrs),
        inputs=tuple(number[value] for value in program.inputs),
    )


def over(program: Program, *ops: str) -> Iterator[tuple[int, Instr]]:
    return ((n, instr) for n, instr in enumerate(program.instrs) if instr.op in ops)


def others(program: Program, axes: Axes) -> list[Axes]:
    """Other single axes of the mesh."""
    return [(axis,) for axis in program.mesh.axes if (axis,) != axes]


def turned(spec: ShardingSpec) -> Iterator[ShardingSpec]:
    """The same axes on other dims."""
    made = [ShardingSpec.make(spec.mesh, spec.dims[d:] + spec.dims[:d], spec.partial) for d in range(1, spec.rank)]
    return (other for other in made if not other.same_layout(spec))


def reordered(spec: ShardingSpec) -> Iterator[ShardingSpec]:
    """The same axes on the same dims, in another order."""
    for d, dim in enumerate(spec.dims):
        if len(dim.axes) > 1:
            dims = (*spec.dims[:d], DimSpec(dim.axes[::-1]), *spec.dims[d + 1 :])
            yield ShardingSpec.make(spec.mesh, dims, spec.partial)


def only_read_locally(program: Program, value: int) -> bool:
    """Whether a value is read by nothing but local ops, which cannot adapt to another sharding."""
    readers = [instr for instr in program.instrs if value in instr.as_node().inputs]
    return value not in program.outputs and not any(instr.axes for instr in readers)


# -- faults ---------------------------------------------------------------------------------------------


@fault
def dropped_collective(program: Program) -> Iterator[Program]:
    """Local ops read its operand instead.  (Another step would start from there and come out right.)"""
    for n, instr in enumerate(program.instrs):
        if instr.is_collective and only_read_locally(program, instr.results[0]):
            yield without(program, n)


@fault
def dropped_collective_in_disguise(program: Program) -> Iterator[Program]:
    """Its operand claims to be what it would have made.  (An input that did would be given to us like that.)"""
    for n, instr in enumerate(program.instrs):
        read = instr.as_node().inputs[0] if instr.is_collective else None
        if read is not None and read not in program.inputs:
            yield without(with_spec(program, read, program.values[instr.results[0]].spec), n)


@fault
def dropped_slice(program: Program) -> Iterator[Program]:
    for n, _ in over(program, "core.slice", "core.to_partial"):
        yield without(program, n)


@fault
def doubled_all_reduce(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_reduce"):
        made = instr.results[0]
        grown, again = with_value(program, program.values[made], "again")
        grown = renamed(grown, {made: again}, after=n)
        yield with_instr(grown, n, instr, replace(instr, operands=(made,), results=(again,)))


@fault
def doubled_all_reduce_in_disguise(program: Program) -> Iterator[Program]:
    """The result of the first claims to be pending still."""
    for n, instr in over(program, "all_reduce"):
        made = instr.results[0]
        if instr.attr("reduction") in ("sum", "prod"):
            grown, again = with_value(program, program.values[made], "again")
            grown = renamed(grown, {made: again}, after=n)
            grown = with_instr(grown, n, instr, replace(instr, operands=(made,), results=(again,)))
            yield with_spec(grown, made, program.values[instr.as_node().inputs[0]].spec)


@fault
def wrong_axis(program: Program) -> Iterator[Program]:
    for n, instr in enumerate(program.instrs):
        if instr.is_collective and instr.op != "collective_permute":
            for axes in others(program, instr.axes):
                yield with_instr(program, n, replace(instr, axes=axes))


@fault
def wrong_kind(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_reduce", "reduce_scatter"):
        yield with_attr(program, n, reduction=OTHER_KIND[instr.attr("reduction")])


@fault
def wrong_kind_in_disguise(program: Program) -> Iterator[Program]:
    """Its operand claims to be pending in that way."""
    for n, instr in over(program, "all_reduce", "reduce_scatter"):
        kind = OTHER_KIND[instr.attr("reduction")]
        read = instr.as_node().inputs[0]
        spec = program.values[read].spec
        claimed = ShardingSpec.make(spec.mesh, spec.dims, tuple((axis, kind) for axis, _ in spec.partial))
        yield with_spec(with_attr(program, n, reduction=kind), read, claimed)


@fault
def exchanged_operands(program: Program) -> Iterator[Program]:
    """Two instructions read each other's operands."""
    for n, first in enumerate(program.instrs):
        for m, second in enumerate(program.instrs[:n]):
            reads = [first.as_node().inputs, second.as_node().inputs]
            if not all(len(read) == 1 for read in reads) or reads[0] == reads[1] or reads[0][0] in second.results:
                continue
            a, b = program.values[reads[0][0]], program.values[reads[1][0]]
            if (a.type, a.spec) == (b.type, b.spec) and a.id in program.inputs:
                swapped = with_instr(program, n, replace(first, operands=(b.id,)))
                yield with_instr(swapped, m, replace(second, operands=(a.id,)))


@fault
def exchanged_instructions(program: Program) -> Iterator[Program]:
    """An instruction before the one whose result it reads."""
    for n in range(1, len(program.instrs)):
        first, second = program.instrs[n - 1 : n + 1]
        if set(first.results) & set(second.as_node().inputs):
            yield replace(program, instrs=(*program.instrs[: n - 1], second, first, *program.instrs[n + 1 :]))


@fault
def gather_of_another_dim(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_gather"):
        for d in range(program.values[instr.results[0]].type.rank):
            if d != instr.attr("dim"):
                yield with_attr(program, n, dim=d)


@fault
def slice_by_axes_in_another_order(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "core.slice"):
        if len(instr.axes) > 1:
            yield with_instr(program, n, replace(instr, axes=instr.axes[::-1]))
        for axes in others(program, instr.axes):
            yield with_instr(program, n, replace(instr, axes=axes))


@fault
def slice_off_by_one(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "slice"):
        for by in (-1, 1):
            moved = {name: tuple(b if b is None else b + by for b in instr.attr(name)) for name in ("start", "stop")}
            if all(b is None or b >= 0 for b in moved["start"]):
                yield with_attr(program, n, **moved)


@fault
def lost_last_shard(program: Program) -> Iterator[Program]:
    """What the last device brings to a gather is zero."""
    for n, instr in over(program, "all_gather"):
        made, d = instr.results[0], instr.attr("dim")
        local, before = program.values[made], program.values[instr.as_node().inputs[0]]
        if local.spec.dims[d].axes:
            continue
        last = max(before.local_shape(position)[d] for position in program.mesh)
        size = local.type.shape[d]
        rest = size % last or last
        low = (0,) * local.type.rank
        high = tuple(rest if e == d else 0 for e in range(local.type.rank))
        less = replace(local.type, shape=tuple(s - h for s, h in zip(local.type.shape, high)))
        grown, cut = with_value(program, local, "cut", type=less, origin=None)
        grown, back = with_value(grown, local, "back")
        grown = renamed(grown, {made: back}, after=n)
        attrs = [(("high", tuple(sign * h for h in high)), ("low", low), ("value", 0)) for sign in (-1, 1)]
        pads = [Instr("pad", (made,), (cut,), attrs[0]), Instr("pad", (cut,), (back,), attrs[1])]
        yield with_instr(grown, n, instr, *pads)


@fault
def smaller_chunks(program: Program) -> Iterator[Program]:
    """A value that claims to be cut by half an axis."""
    for local in program.values:
        for d, dim in enumerate(local.spec.dims):
            if dim.axes and dim.axes[-1].size == 4:
                half = (*dim.axes[:-1], dim.axes[-1].split(2)[0])
                dims = (*local.spec.dims[:d], DimSpec(half), *local.spec.dims[d + 1 :])
                yield with_spec(program, local.id, ShardingSpec.make(program.mesh, dims, local.spec.partial))


@fault
def wrong_offset(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "core.offset"):
        yield with_attr(program, n, size=instr.attr("size") - 3)
        for axes in others(program, instr.axes):
            yield with_instr(program, n, replace(instr, axes=axes))


@fault
def offset_left_out(program: Program) -> Iterator[Program]:
    """Every device counts from zero."""
    for n, instr in over(program, "core.offset"):
        yield with_instr(program, n, replace(instr, axes=()))


@fault
def reduction_after_a_non_linear_op(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_reduce"):
        if n + 1 == len(program.instrs) or instr.attr("reduction") != "sum":
            continue
        after = program.instrs[n + 1]
        if after.op in NON_LINEAR and after.operands == instr.results:
            pending = program.values[instr.as_node().inputs[0]]
            (made,) = after.results
            grown = with_spec(program, instr.results[0], pending.spec)
            early = replace(after, operands=instr.operands, results=instr.results)
            late = replace(instr, operands=instr.results, results=(made,))
            values = list(grown.values)
            values[instr.results[0]] = replace(values[instr.results[0]], origin=values[made].origin)
            yield replace(grown, values=tuple(values), instrs=(*grown.instrs[:n], early, late, *grown.instrs[n + 2 :]))


@fault
def exchange_of_dims_turned_round(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_to_all"):
        yield with_attr(program, n, dim=instr.attr("to_dim"), to_dim=instr.attr("dim"))


@fault
def step_in_name_only(program: Program) -> Iterator[Program]:
    """A permute or exchange that moves nothing: the shards stay and get the new label."""
    for n, instr in over(program, "collective_permute", "all_to_all"):
        yield with_instr(program, n, replace(instr, op="copy", attrs=(), axes=(), bytes=0))


@fault
def input_in_another_sharding(program: Program) -> Iterator[Program]:
    for value in program.inputs:
        spec = program.values[value].spec
        readers = [instr.op for instr in program.instrs if value in instr.as_node().inputs]
        for other in turned(spec):
            yield with_spec(program, value, other)
        if not all(op.startswith("reduce_") for op in readers):  # to which one order is as good as another
            for other in reordered(spec):
                yield with_spec(program, value, other)


@fault
def output_in_another_sharding(program: Program) -> Iterator[Program]:
    made_by = {value: instr.op for instr in program.instrs for value in instr.results}
    for value in program.outputs:
        if made_by.get(value) != "collective_permute":  # which goes wherever its result says
            for other in (*turned(program.values[value].spec), *reordered(program.values[value].spec)):
                yield with_spec(program, value, other)


@fault
def another_output(program: Program) -> Iterator[Program]:
    """Another value of the same type is returned."""
    for i, value in enumerate(program.outputs):
        for local in program.values:
            same = (local.type, local.spec) == (program.values[value].type, program.values[value].spec)
            if same and local.origin != program.values[value].origin:
                yield replace(program, outputs=(*program.outputs[:i], local.id, *program.outputs[i + 1 :]))


@fault
def attribute_changed(program: Program) -> Iterator[Program]:
    """A local op along another dim, or on another diagonal."""
    for n, instr in enumerate(program.instrs):
        axis = instr.attr("axis")
        if instr.is_collective or (axis is None and instr.attr("k") is None):
            continue
        if axis is None:
            yield with_attr(program, n, k=instr.attr("k") + 1)
        else:
            rank = program.values[instr.as_node().inputs[0]].type.rank
            first = axis[0] if isinstance(axis, tuple) else axis
            moved = (first + 1) % rank
            yield with_attr(program, n, axis=(moved,) if isinstance(axis, tuple) else moved)


@fault
def operands_in_another_order(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "subtract", "divide"):
        yield with_instr(program, n, replace(instr, operands=instr.operands[::-1]))


@fault
def bytes_misstated(program: Program) -> Iterator[Program]:
    for n, instr in enumerate(program.instrs):
        if instr.is_collective:
            yield with_instr(program, n, replace(instr, bytes=instr.bytes + 4))


@fault
def value_made_twice(program: Program) -> Iterator[Program]:
    for n, instr in enumerate(program.instrs):
        yield with_instr(program, n, instr, instr)
