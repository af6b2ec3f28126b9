"""Mistakes in collectives, slices and shardings.  Where it can be, labels are changed along with the work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import program_faults as faults
from program_faults import others, over, renamed, reordered, with_attr, with_instr, with_spec

from mutation.editing import KINDS, Kind, after, fresh, is_torch, kind, specced
from shardwright.ir.program import Instr, Program
from shardwright.spec.axes import axes_size
from shardwright.spec.collective import REDUCTIONS, collective_bytes
from shardwright.spec.sharding import ShardingSpec

_OF_TESTS = {
    "dropped collective": ("collective", "missing gradient all-reduce: PyTorch DDP no_sync, Megatron-LM embeddings"),
    "dropped collective in disguise": (
        "collective",
        "missing gradient reduction of layer norms under sequence parallel",
    ),
    "dropped slice": ("slice", "a replicated bias or target added on every rank: Megatron-LM RowParallelLinear"),
    "doubled all reduce": ("collective", "gradients reduced twice: DeepSpeed ZeRO with tied weights"),
    "doubled all reduce in disguise": ("collective", "gradients reduced twice, by a hook and by the optimizer"),
    "wrong axis": ("collective", "wrong process group: tensor-parallel in the place of data-parallel"),
    "wrong kind": ("collective", ""),
    "wrong kind in disguise": ("collective", ""),
    "gather of another dim": ("collective", "all_gather_into_tensor always along dim 0"),
    "slice by axes in another order": ("slice", "swapped shard order on two mesh axes: PyTorch DTensor, FSDP + TP"),
    "slice off by one": ("slice", ""),
    "smaller chunks": ("sharding", ""),
    "wrong offset": ("slice", "offset of a split lookup: vocabulary-parallel embeddings"),
    "offset left out": ("slice", "every rank looks up from row zero"),
    "reduction after a non linear op": ("collective", "row-parallel linear reduced after the activation"),
    "exchange of dims turned round": ("collective", "sequence and head dims exchanged in Ulysses attention"),
    "step in name only": ("collective", ""),
    "input in another sharding": ("sharding", ""),
    "output in another sharding": ("sharding", ""),
    "another output": ("update", ""),
    "attribute changed": ("value", ""),
    "operands in another order": ("value", ""),
    "exchanged operands": ("value", ""),
    "exchanged instructions": ("value", "read before the asynchronous collective is done"),
}
for _name, (_family, _public) in _OF_TESTS.items():
    KINDS[_name] = Kind(_name, _family, faults.FAULTS[_name], _public)


@kind("collective", "padding cut off the wrong rank in FSDP's uneven shards")
def lost_last_shard(program: Program) -> Iterator[Program]:
    """What the last device brings to a gather is zero."""
    if not is_torch(program):  # it is written with NumPy's `pad`
        yield from faults.lost_last_shard(program)


def _sent(program: Program, instr: Instr) -> int:
    local = program.values[instr.inputs[0]]
    return collective_bytes(instr.op, axes_size(instr.axes), local.padded_bytes)


@kind("collective", "gradients averaged by all ranks where they are summed: PyTorch DDP with sum losses")
def average_for_sum_in_disguise(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_reduce", "reduce_scatter"):
        read = program.values[instr.inputs[0]]
        claimed = {"sum": "avg", "avg": "sum"}.get(instr.attr("reduction"))
        if claimed is not None and read.id not in program.inputs:
            spec = ShardingSpec.make(
                read.spec.mesh, read.spec.dims, tuple((axis, claimed) for axis, _ in read.spec.partial)
            )
            yield with_spec(with_attr(program, n, reduction=claimed), read.id, spec)


@kind("collective", "gradient norm reduced over one of two groups: Megatron-LM clip_grad_norm")
def reduced_over_too_few_axes(program: Program) -> Iterator[Program]:
    """And what is left pending is said to be done."""
    for n, instr in over(program, "all_reduce"):
        read = program.values[instr.inputs[0]]
        if read.id in program.inputs:
            continue
        if len(instr.axes) > 1:
            for axis in instr.axes:
                rest = tuple(a for a in instr.axes if a != axis)
                partial = tuple(pair for pair in read.spec.partial if pair[0] != axis)
                shorter = replace(instr, axes=rest)
                shorter = replace(shorter, bytes=_sent(program, shorter))
                spec = ShardingSpec.make(read.spec.mesh, read.spec.dims, partial)
                yield with_spec(with_instr(program, n, shorter), read.id, spec)
        elif instr.axes[0].size % 2 == 0 and instr.axes[0].size > 2:
            for part in instr.axes[0].split(2):
                shorter = replace(instr, axes=(part,))
                shorter = replace(shorter, bytes=_sent(program, shorter))
                partial = tuple((part if a == instr.axes[0] else a, kind) for a, kind in read.spec.partial)
                spec = ShardingSpec.make(read.spec.mesh, read.spec.dims, partial)
                yield with_spec(with_instr(program, n, shorter), read.id, spec)


@kind("collective", "wrong process group, with everything else to match: ranks of another axis are summed")
def wrong_axis_in_disguise(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "all_reduce", "reduce_scatter"):
        read = program.values[instr.inputs[0]]
        if read.id in program.inputs or len(instr.axes) != 1:
            continue
        for axes in others(program, instr.axes):
            moved = replace(instr, axes=axes)
            partial = tuple((axes[0] if a == instr.axes[0] else a, kind) for a, kind in read.spec.partial)
            if len({a.name for a, _ in partial}) != len(partial) or set(axes) & set(read.spec.sharded_axes):
                continue
            spec = ShardingSpec.make(read.spec.mesh, read.spec.dims, partial)
            yield with_spec(with_instr(program, n, replace(moved, bytes=_sent(program, moved))), read.id, spec)


@kind("collective", "reduce-scatter taken for a slice: ZeRO-2 keeps its own gradients only")
def slice_for_reduce_scatter(program: Program) -> Iterator[Program]:
    for n, instr in over(program, "reduce_scatter"):
        read = program.values[instr.inputs[0]]
        sliced = replace(instr, op="core.slice", attrs=(("dim", instr.attr("dim")),), bytes=0)
        partial = tuple(pair for pair in read.spec.partial if pair[0] not in instr.axes)
        claimed = ShardingSpec.make(read.spec.mesh, read.spec.dims, partial)
        if read.id not in program.inputs:
            yield with_spec(with_instr(program, n, sliced), read.id, claimed)
        yield with_instr(program, n, sliced)


@kind("collective", "shards of a gather in another order: two mesh axes on one dim")
def gather_in_another_order(program: Program) -> Iterator[Program]:
    """What a gather reads claims the other order of its axes."""
    for _, instr in over(program, "all_gather", "all_to_all", "collective_permute"):
        read = program.values[instr.inputs[0]]
        if read.id not in program.inputs:
            yield from (with_spec(program, read.id, spec) for spec in reordered(read.spec))
        yield from (
            with_spec(program, instr.results[0], spec) for spec in reordered(program.values[instr.results[0]].spec)
        )


@kind("sharding", "halves of an axis exchanged: interleaved and blocked ranks of one group")
def parts_of_an_axis_exchanged(program: Program) -> Iterator[Program]:
    """A dim that is cut by an axis claims to be cut by its parts in the other order."""
    for local in program.values:
        for d, dim in enumerate(local.spec.dims):
            for axis in dim.axes:
                if axis.size % 2 == 0 and axis.size > 2:
                    major, minor = axis.split(2)
                    axes = tuple(a for old in dim.axes for a in ((minor, major) if old == axis else (old,)))
                    yield with_spec(program, local.id, specced(local.spec, d, axes))


@kind("sharding", "view across a shard edge: PyTorch DTensor view ops on a sharded dim")
def view_across_a_shard_edge(program: Program) -> Iterator[Program]:
    """What a reshape or transpose makes claims to be cut along another dim."""
    for _, instr in over(program, "reshape", "transpose", "aten.view", "aten.t", "aten.transpose.int", "aten.permute"):
        local = program.values[instr.results[0]]
        sizes = local.type.shape
        for d, dim in enumerate(local.spec.dims):
            for e in range(local.type.rank):
                if dim.axes and e != d and not local.spec.dims[e].axes and sizes[e] >= dim.shards:
                    spec = specced(specced(local.spec, d, ()), e, dim.axes)
                    yield with_spec(program, local.id, spec)


@kind("slice", "bias added on every rank before the reduction: Megatron-LM RowParallelLinear")
def added_on_every_device(program: Program) -> Iterator[Program]:
    """What should count on one device only counts on all."""
    for n, instr in over(program, "core.to_partial"):
        yield with_instr(
            program, n, replace(instr, op="aten.alias" if is_torch(program) else "copy", attrs=(), axes=())
        )


@kind("slice", "every rank keeps the first shard")
def slice_of_the_first_shard(program: Program) -> Iterator[Program]:
    """By a slice with fixed bounds."""
    for n, instr in over(program, "core.slice"):
        local, read = program.values[instr.results[0]], program.values[instr.inputs[0]]
        d = instr.attr("dim")
        size = local.local_shape(0)[d]
        if read.spec.dims[d].axes or is_torch(program):
            continue
        bounds = {
            name: tuple(number if e == d else None for e in range(local.type.rank))
            for name, number in (("start", 0), ("stop", size), ("step", 1))
        }
        yield with_instr(program, n, Instr("slice", instr.operands, instr.results, tuple(sorted(bounds.items())),
                                           node=instr.node))  # fmt: skip


@kind("slice", "offsets of rows and columns exchanged in a causal mask")
def offsets_exchanged(program: Program) -> Iterator[Program]:
    offsets = [instr.results[0] for _, instr in over(program, "core.offset")]
    for n, instr in enumerate(program.instrs):
        reads = [o for o in instr.operands if o in offsets]
        if len(reads) == 2:
            yield with_instr(program, n, replace(instr, operands=(*instr.operands[:-2], reads[1], reads[0])))
        elif len(reads) == 1:
            for other in offsets:
                if other != reads[0] and other < instr.results[0]:
                    operands = tuple(other if o == reads[0] else o for o in instr.operands)
                    yield with_instr(program, n, replace(instr, operands=operands))


@kind("slice", "another part of an axis gathered, then taken back")
def slice_and_gather_by_other_axes(program: Program) -> Iterator[Program]:
    """A value is sliced by one axis, and what one of another axis gathers takes its place."""
    for local in [program.values[v] for instr in program.instrs for v in instr.results][:40]:
        for axis in program.mesh.axes:
            for other in program.mesh.axes:
                d = next((d for d, dim in enumerate(local.spec.dims) if not dim.axes), None)
                free = {axis, other}.isdisjoint(local.spec.used_axes)
                if d is None or axis == other or axis.size != other.size or not free:
                    continue
                if local.type.shape[d] % axis.size:
                    continue

                def write(grown: Program, value: int, d: int = d, axis=axis, other=other):  # type: ignore[no-untyped-def]
                    like = grown.values[value]
                    grown, cut = fresh(grown, like, "cut", spec=specced(like.spec, d, (other,)))
                    grown, back = fresh(grown, like, "back")
                    gather = Instr("all_gather", (cut,), (back,), (("dim", d),), (other,))
                    return grown, [
                        Instr("core.slice", (value,), (cut,), (("dim", d),), (axis,)),
                        replace(gather, bytes=_sent(grown, gather)),
                    ], back  # fmt: skip

                yield after(program, local.id, write)


@kind("collective", "an all-reduce of what is whole already: gradients of replicated parameters times the ranks")
def reduced_though_whole(program: Program) -> Iterator[Program]:
    """With labels that say it was pending."""
    for local in [program.values[v] for instr in program.instrs for v in instr.results]:
        for axis in program.mesh.axes:
            if any(a.name == axis.name for a in local.spec.used_axes):
                continue
            for reduction in ("sum", "max"):

                def write(grown: Program, value: int, axis=axis, reduction=reduction):  # type: ignore[no-untyped-def]
                    like = grown.values[value]
                    pending = ShardingSpec.make(like.spec.mesh, like.spec.dims, (*like.spec.partial, (axis, reduction)))
                    grown = with_spec(grown, value, pending)
                    grown, total = fresh(grown, like, "total")
                    reduce = Instr("all_reduce", (value,), (total,), (("reduction", reduction),), (axis,))
                    return grown, [replace(reduce, bytes=_sent(grown, reduce))], total

                yield after(program, local.id, write)


@kind("collective", "what a rank is given counts as its part of a sum")
def input_claims_to_be_pending(program: Program) -> Iterator[Program]:
    """An input that every device has whole is summed."""
    for value in program.inputs:
        local = program.values[value]
        for axis in program.mesh.axes:
            if any(a.name == axis.name for a in local.spec.used_axes) or local.type.dtype == "bool":
                continue

            def write(grown: Program, value: int, axis=axis):  # type: ignore[no-untyped-def]
                like = grown.values[value]
                pending = ShardingSpec.make(like.spec.mesh, like.spec.dims, (*like.spec.partial, (axis, "sum")))
                grown, total = fresh(with_spec(grown, value, pending), like, "total")
                reduce = Instr("all_reduce", (value,), (total,), (("reduction", "sum"),), (axis,))
                return grown, [replace(reduce, bytes=_sent(grown, reduce))], total

            yield after(program, value, write)


@kind("collective", "mean over uneven shards: the mean of each rank's mean")
def mean_of_means(program: Program) -> Iterator[Program]:
    """A sum over shards as the average of local means, times the count: right where shards are even."""
    for n, instr in over(program, "reduce_sum"):
        (read,), (total,) = instr.inputs, instr.results
        local, before = program.values[total], program.values[read]
        axes = [axis for axis, kind in local.spec.partial if kind == "sum"]
        if len(axes) != 1 or len(local.spec.partial) != 1:
            continue
        count = 1
        for d in instr.attr("axis") or range(before.type.rank):
            count *= before.type.shape[d]
        rest = ShardingSpec.make(local.spec.mesh, local.spec.dims, ())
        average = ShardingSpec.make(local.spec.mesh, local.spec.dims, ((axes[0], "avg"),))
        grown, part = fresh(program, local, "part", spec=average)
        grown, ones = fresh(grown, before, "ones")
        grown, counts = fresh(grown, local, "counts", spec=rest)
        grown, mean = fresh(grown, local, "mean", spec=average)
        grown, whole = fresh(grown, local, "whole", spec=rest)
        grown, number = fresh(
            grown, local, "number", type=replace(local.type, shape=()), spec=ShardingSpec.replicate(program.mesh, 0)
        )
        grown, scaled = fresh(grown, local, "scaled", spec=rest)
        joined = Instr("all_reduce", (mean,), (whole,), (("reduction", "avg"),), (axes[0],))
        instrs = [
            replace(instr, results=(part,), node=None),
            Instr("full", (), (ones,), (("value", 1.0),)),
            replace(instr, operands=(ones,), results=(counts,), node=None),
            Instr("divide", (part, counts), (mean,)),
            replace(joined, bytes=_sent(grown, joined)),
            Instr("full", (), (number,), (("value", float(count)),)),
            Instr("multiply", (whole, number), (scaled,)),
        ]
        back = Instr("core.to_partial", (scaled,), (total,), (("reduction", "sum"),), (axes[0],))
        yield with_instr(grown, n, *instrs, back)


@kind("collective", "")
def another_reduction_left_pending(program: Program) -> Iterator[Program]:
    """What is pending claims to be so by another reduction, from where it is made to where it is combined."""
    for n, instr in over(program, "all_reduce", "reduce_scatter"):
        read = program.values[instr.inputs[0]]
        for other in REDUCTIONS:
            if other != instr.attr("reduction") and read.id not in program.inputs:
                spec = ShardingSpec.make(
                    read.spec.mesh, read.spec.dims, tuple((axis, other) for axis, _ in read.spec.partial)
                )
                yield with_spec(with_attr(program, n, reduction=other), read.id, spec)


@kind("collective", "parameters used before they are gathered: FSDP reads its own shard")
def gather_forgotten_by_one_reader(program: Program) -> Iterator[Program]:
    """One reader reads what is not yet gathered, reduced or moved."""
    for _, instr in [(n, i) for n, i in enumerate(program.instrs) if i.is_collective]:
        for m, reader in enumerate(program.instrs):
            if instr.results[0] in reader.inputs and not reader.axes:
                swapped = renamed(replace(program, instrs=(reader,)), {instr.results[0]: instr.inputs[0]}).instrs[0]
                yield with_instr(program, m, swapped)


@kind("collective", "two gradients exchanged in a bucket")
def collectives_exchanged(program: Program) -> Iterator[Program]:
    """Readers of two collectives' results read each other's."""
    found = [instr for instr in program.instrs if instr.is_collective]
    for n, first in enumerate(found):
        for second in found[n + 1 :]:
            a, b = program.values[first.results[0]], program.values[second.results[0]]
            if (a.type, a.spec) == (b.type, b.spec) and a.origin != b.origin:
                at = next(m for m, instr in enumerate(program.instrs) if instr is second)
                yield renamed(program, {a.id: b.id, b.id: a.id}, after=at)
