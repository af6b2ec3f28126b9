"""Mistakes that show at full size only: at a place, a device or a count beyond what a smaller size has.

The proof looks at small sizes on small meshes.  Each of these is wrong at one place of many, on one device of many, or
by a number that is right at a small size: a count of places or of devices against a constant.  They go into Programs
of large dims on long axes, as lowering notes them and without any notes, when a Program is looked at in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from program_faults import with_attr

import shardwright as sw
from mutation.editing import after, before_reader, floats, fresh, specced, without_notes
from mutation.subjects import Subject, of_plan
from shardwright import P
from shardwright.ir.graph import TensorType
from shardwright.ir.program import Instr, Local, Program
from shardwright.proof.fields.modular import PRIMES
from shardwright.spec.axes import AxisRef, axes_size
from shardwright.spec.collective import collective_bytes
from shardwright.spec.sharding import ShardingSpec

LARGE = 48
"""Dims of at least this size are large."""
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
"""What is left of a large size or of a long axis may be one of these."""
Mutate = Callable[[Program], Iterator[Program]]
FAR: dict[str, Mutate] = {}


def far(mutate: Mutate) -> Mutate:
    FAR[mutate.__name__.replace("_", " ")] = mutate
    return mutate


class Writer:
    """Instructions to be put after a value."""

    def __init__(self, program: Program) -> None:
        self.program, self.instrs = program, list[Instr]()

    def add(self, op: str, operands: tuple[Any, ...], like: Local, axes: Any = (), sent: int = 0, **about: Any) -> int:
        """One more; ``like`` says what it makes, but for what ``type`` and ``spec`` say."""
        changes = {name: about.pop(name) for name in ("type", "spec") if name in about}
        self.program, new = fresh(self.program, like, "far", **changes)
        self.instrs.append(Instr(op, operands, (new,), tuple(sorted(about.items())), axes, sent))
        return new

    def local(self, value: int) -> Local:
        return self.program.values[value]

    @property
    def whole(self) -> ShardingSpec:
        return ShardingSpec.replicate(self.program.mesh, 0)

    def number(self, like: Local, value: float) -> int:
        return self.add("full", (), like, type=replace(like.type, shape=()), spec=self.whole, value=value)

    def offset(self, size: int, axes: Any) -> int:
        like = self.program.values[0]
        return self.add("core.offset", (), like, axes, type=TensorType((), "i64"), spec=self.whole, size=size)

    def count(self, like: Local, d: int) -> int:
        """The places along a dim, as floats, cut as it is."""
        size, axes = like.type.shape[d], like.spec.dims[d].axes
        spec = specced(ShardingSpec.replicate(self.program.mesh, 1), 0, axes)
        about: dict[str, Any] = {"type": TensorType((size,), like.type.dtype), "spec": spec, "start": 0, "step": 1}
        made = self.add("core.arange", (self.offset(size, axes),), like, **about) if axes else (
            self.add("arange", (), like, **about))  # fmt: skip
        shape = tuple(size if e == d else 1 for e in range(like.type.rank))
        wide = specced(ShardingSpec.replicate(self.program.mesh, like.type.rank), d, axes)
        return self.add("reshape", (made,), like, type=replace(like.type, shape=shape), spec=wide, shape=shape)

    def all_reduce(self, value: int, axis: AxisRef, kind: str) -> int:
        local = self.local(value)
        spec = ShardingSpec.make(
            local.spec.mesh, local.spec.dims, tuple(pair for pair in local.spec.partial if pair[0] != axis)
        )
        sent = collective_bytes("all_reduce", axes_size([axis]), local.padded_bytes)
        return self.add("all_reduce", (value,), local, (axis,), sent, spec=spec, reduction=kind)

    def scaled(self, value: int, by: int) -> int:
        return self.add("multiply", (value, by), self.local(value))


def inserted(program: Program, value: int, write: Callable[[Writer, int], int]) -> Program:
    def body(grown: Program, v: int) -> tuple[Program, list[Instr], int]:
        writer = Writer(grown)
        new = write(writer, v)
        return writer.program, writer.instrs, new

    if value in program.inputs:
        n = next((n for n, instr in enumerate(program.instrs) if value in instr.inputs and not instr.axes), None)
        return program if n is None else before_reader(program, n, value, body)
    return after(program, value, body)


def places(program: Program) -> Iterator[tuple[Local, int]]:
    """Large dims of floats that are not pending."""
    inputs = [program.values[v] for v in program.inputs if program.values[v].type.dtype == "f64"]
    for local in (*floats(program), *inputs):
        for d, size in enumerate(local.type.shape):
            if size >= LARGE and not local.spec.partial:
                yield local, d


@far
def last_place_overwritten(program: Program) -> Iterator[Program]:
    """By the first, in a dim that is whole."""
    for local, d in places(program):
        size, rank = local.type.shape[d], local.type.rank

        def bounds(start: int, d: int = d, rank: int = rank) -> dict[str, Any]:
            said = (("start", start), ("stop", start + 1), ("step", 1))
            return {name: tuple(number if e == d else None for e in range(rank)) for name, number in said}

        def write(to: Writer, value: int, d: int = d, size: int = size, bounds: Any = bounds) -> int:
            like = to.local(value)
            shape = tuple(1 if e == d else n for e, n in enumerate(like.type.shape))
            first = to.add("slice", (value,), like, type=replace(like.type, shape=shape), **bounds(0))
            return to.add("update_slice", (value, first), like, **bounds(size - 1))

        if not local.spec.dims[d].axes:
            yield inserted(program, local.id, write)


@far
def corner_of_a_triangle(program: Program) -> Iterator[Program]:
    """One corner of a matrix is zero."""
    for local in {local.id: local for local, _ in places(program)}.values():
        if local.type.rank < 2:
            continue
        rows, columns = local.type.shape[-2:]
        for lower, k in ((True, columns - 2), (False, 2 - rows)):

            def write(to: Writer, value: int, lower: bool = lower, k: int = k) -> int:
                like = to.local(value)
                axes = [dim.axes for dim in like.spec.dims[-2:]]
                if not any(axes):
                    return to.add("tril" if lower else "triu", (value,), like, k=k)
                offsets = [to.offset(size, over) for size, over in zip(like.type.shape[-2:], axes)]
                return to.add("core.triangle", (value, *offsets), like, k=k, lower=lower)

            yield inserted(program, local.id, write)


@far
def zero_from_a_place_on(program: Program) -> Iterator[Program]:
    """The last place, or all that the last device has."""
    for local, d in places(program):
        size, ways = local.type.shape[d], local.spec.dims[d].shards
        for bound in {size - 1, size - size // ways if ways > 1 else size - 2}:

            def write(to: Writer, value: int, d: int = d, bound: int = bound) -> int:
                like = to.local(value)
                count = to.count(like, d)
                small = to.local(count)
                mask = to.add("less", (count, to.number(like, bound)), small, type=replace(small.type, dtype="bool"))
                return to.add("where", (mask, value, to.number(like, 0.0)), like)

            yield inserted(program, local.id, write)


@far
def count_of_places_for_a_constant(program: Program) -> Iterator[Program]:
    """Times the size of a dim, over a constant that a smaller size would be."""
    for size in sorted({local.type.shape[d] for local, d in places(program)}):
        for local in [program.values[program.inputs[0]], *floats(program)[:1], *floats(program)[-1:]]:
            for by in COUNTS:

                def write(to: Writer, value: int, size: int = size, by: int = by) -> int:
                    like = to.local(value)
                    row = replace(like.type, shape=(size,))
                    spec = ShardingSpec.replicate(to.program.mesh, 1)
                    ones = to.add("full", (), like, type=row, spec=spec, value=1.0)
                    total = to.add(
                        "reduce_sum", (ones,), like, type=replace(like.type, shape=()), spec=to.whole, axis=(0,),
                        keepdims=False,
                    )  # fmt: skip
                    over = to.add("divide", (total, to.number(like, float(by))), to.local(total))
                    return to.scaled(value, over)

                yield inserted(program, local.id, write)


@far
def count_of_shards_for_a_constant(program: Program) -> Iterator[Program]:
    """The same with a dim that is cut: every device counts its part."""
    for local, d in places(program):
        axes = local.spec.dims[d].axes
        if len(axes) != 1:
            continue
        for by in COUNTS:

            def write(to: Writer, value: int, d: int = d, axis: AxisRef = axes[0], by: int = by) -> int:
                like = to.local(value)
                row = replace(like.type, shape=(like.type.shape[d],))
                spec = specced(ShardingSpec.replicate(to.program.mesh, 1), 0, (axis,))
                ones = to.add("full", (), like, type=row, spec=spec, value=1.0)
                pending = ShardingSpec.make(to.program.mesh, (), ((axis, "sum"),))
                total = to.add(
                    "reduce_sum", (ones,), like, type=replace(like.type, shape=()), spec=pending, axis=(0,),
                    keepdims=False,
                )  # fmt: skip
                total = to.all_reduce(total, axis, "sum")
                return to.scaled(value, to.add("divide", (total, to.number(like, float(by))), to.local(total)))

            yield inserted(program, local.id, write)


@far
def count_of_devices_for_a_constant(program: Program) -> Iterator[Program]:
    """Times the ways of an axis, over a constant that a shorter axis would be."""
    for axis in program.mesh.axes:
        for local in [program.values[program.inputs[0]], *floats(program)[:1], *floats(program)[-1:]]:
            for by in COUNTS:

                def write(to: Writer, value: int, axis: AxisRef = axis, by: int = by) -> int:
                    like = to.local(value)
                    pending = ShardingSpec.make(to.program.mesh, (), ((axis, "sum"),))
                    one = to.add("full", (), like, type=replace(like.type, shape=()), spec=pending, value=1.0)
                    total = to.all_reduce(one, axis, "sum")
                    return to.scaled(value, to.add("divide", (total, to.number(like, float(by))), to.local(total)))

                yield inserted(program, local.id, write)


@far
def product_over_places(program: Program) -> Iterator[Program]:
    """A number to the power of a size, over what it would be at a smaller one."""
    for size in sorted({local.type.shape[d] for local, d in places(program)})[:2]:
        local = program.values[program.inputs[0]]
        for by in (2, 3, 4, 8):

            def write(to: Writer, value: int, size: int = size, by: int = by) -> int:
                like = to.local(value)
                about = {"type": replace(like.type, shape=(size,)), "spec": ShardingSpec.replicate(to.program.mesh, 1)}
                many = to.add("full", (), like, value=1.25, **about)
                total = to.add(
                    "reduce_prod", (many,), like, type=replace(like.type, shape=()), spec=to.whole, axis=(0,),
                    keepdims=False,
                )  # fmt: skip
                over = to.add("divide", (total, to.number(like, 1.25**by)), to.local(total))
                return to.scaled(value, over)

            yield inserted(program, local.id, write)


@far
def sum_of_a_stretched_value(program: Program) -> Iterator[Program]:
    """A value stretched along a large dim and summed again, over a constant."""
    for local, d in places(program):
        size = local.type.shape[d] + 16
        for by in COUNTS[:6]:

            def write(to: Writer, value: int, size: int = size, by: int = by) -> int:
                like = to.local(value)
                shape = (size, *like.type.shape)
                spec = ShardingSpec.make(
                    to.program.mesh, (ShardingSpec.replicate(to.program.mesh, 1).dims[0], *like.spec.dims), ()
                )
                wide = to.add(
                    "broadcast_to", (value,), like, type=replace(like.type, shape=shape), spec=spec, shape=shape
                )
                total = to.add("reduce_sum", (wide,), like, axis=(0,), keepdims=False)
                return to.add("divide", (total, to.number(like, float(by))), like)

            yield inserted(program, local.id, write)


@far
def index_beyond_a_small_size(program: Program) -> Iterator[Program]:
    """One place looked up and put where it was: the first, or one so many further."""
    for local, d in places(program):
        if local.spec.dims[d].axes:
            continue
        for at in (*COUNTS[:6], local.type.shape[d] - 1):

            def write(to: Writer, value: int, d: int = d, at: int = at) -> int:
                """Place ``at`` less the first, which is nothing where they are the same."""
                like = to.local(value)
                shape = tuple(1 if e == d else n for e, n in enumerate(like.type.shape))
                row = replace(like.type, shape=shape)
                spec = ShardingSpec.replicate(to.program.mesh, 1)
                rows = [
                    to.add(
                        "take",
                        (value, to.add("full", (), like, type=TensorType((1,), "i64"), spec=spec, value=n)),
                        like, type=row, axis=d,
                    )
                    for n in (at, 0)
                ]  # fmt: skip
                return to.add("add", (value, to.add("subtract", tuple(rows), to.local(rows[0]))), like)

            yield inserted(program, local.id, write)


@far
def rolled_by_a_small_size(program: Program) -> Iterator[Program]:
    for local, d in places(program):
        if not local.spec.dims[d].axes:
            for by in COUNTS[:5]:
                yield inserted(
                    program,
                    local.id,
                    lambda to, value, d=d, by=by: to.add("roll", (value,), to.local(value), axis=(d,), shift=(by,)),
                )


@far
def folded_and_turned(program: Program) -> Iterator[Program]:
    """A large dim cut in two that are exchanged: rows of a small matrix and columns of a large one."""
    for local, d in places(program):
        size = local.type.shape[d]
        for inner in (2, 4, size // 2, size // 4):
            if local.spec.dims[d].axes or size % inner:
                continue

            def write(to: Writer, value: int, d: int = d, inner: int = inner) -> int:
                like = to.local(value)
                shape, dims = like.type.shape, like.spec.dims
                none = ShardingSpec.replicate(to.program.mesh, 1).dims
                fold = (*shape[:d], shape[d] // inner, inner, *shape[d + 1 :])
                spec = ShardingSpec.make(to.program.mesh, (*dims[:d], *none, *none, *dims[d + 1 :]), ())
                made = to.add("reshape", (value,), like, type=replace(like.type, shape=fold), spec=spec, shape=fold)
                order = list(range(len(fold)))
                order[d], order[d + 1] = d + 1, d
                turned = tuple(fold[e] for e in order)
                made = to.add(
                    "transpose", (made,), like, type=replace(like.type, shape=turned), spec=spec,
                    permutation=tuple(order),
                )  # fmt: skip
                return to.add("reshape", (made,), like, shape=shape)

            yield inserted(program, local.id, write)


@far
def shards_in_another_order(program: Program) -> Iterator[Program]:
    """What is cut by an axis is taken for cut by its parts in another order, by a copy that claims so."""
    for local, d in places(program):
        axes = local.spec.dims[d].axes
        if len(axes) != 1 or axes[0].size < 8 or axes[0].size % 4:
            continue
        major, rest = axes[0].split(2)
        middle, minor = rest.split(rest.size // 2)
        for order in ((major, minor, middle), (middle, major, minor), (minor, middle, major)):

            def write(to: Writer, value: int, d: int = d, order: Any = order) -> int:
                like = to.local(value)
                moved = specced(like.spec, d, order)
                sent = collective_bytes("collective_permute", to.program.mesh.size, like.padded_bytes)
                away = to.add("collective_permute", (value,), like, to.program.mesh.axes, sent, spec=moved)
                return to.add("copy", (away,), like, spec=like.spec)

            yield inserted(program, local.id, write)


@far
def constant_off_by_the_primes(program: Program) -> Iterator[Program]:
    """A number that is the same modulo the primes of the proof: a wrong constant far out."""
    far_out = PRIMES[0] * PRIMES[1]
    for n, instr in enumerate(program.instrs):
        value = instr.attr("value")
        if instr.op == "full" and isinstance(value, float) and value == int(value):
            yield with_attr(program, n, value=value + far_out)


# -- large programs ---------------------------------------------------------------------------------------


def _normed(x: Any, w: Any) -> Any:
    y = np.tanh(x @ w) * 2.0
    return y - y.mean(axis=-1, keepdims=True), x.max(axis=0)


def _summed(x: Any, w: Any) -> Any:
    return (x * 3.0 + w).sum(axis=0), np.exp(x - 1.0)


def _moved(x: Any, w: Any) -> Any:
    return (x + w).T @ (x - w), x.reshape(-1) * 4.0


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str, tuple[Any, ...]]] = {
    "normed, one axis of 8": (_normed, ((256, 96), (96, 64)), "x=8", (P("x", None), P(None, None))),
    "normed, tensor parallel on 16": (_normed, ((64, 256), (256, 128)), "x=16", (P(None, "x"), P("x", None))),
    "normed, uneven": (_normed, ((100, 96), (96, 60)), "x=8", (P("x", None), P(None, "x"))),
    "normed, two axes": (_normed, ((128, 64), (64, 96)), "a=8, b=2", (P("a", None), P(None, "b"))),
    "summed, 16": (_summed, ((192, 64), (192, 64)), "x=16", (P("x", None), P("x", None))),
    "summed, 10": (_summed, ((200, 60), (200, 60)), "x=10", (P("x", None), P("x", None))),
    "summed, two axes on a dim": (_summed, ((512, 48), (512, 48)), "a=8, b=4", (P(("a", "b"), None), P())),
    "moved, square": (_moved, ((64, 64), (64, 64)), "x=8", (P("x", None), P("x", None))),
    "moved, 2 x 8": (_moved, ((96, 128), (96, 128)), "a=2, b=8", (P("a", "b"), P("a", None))),
}


def large(name: str) -> Subject:
    function, shapes, mesh, specs = CASES[name]
    arrays = tuple(np.zeros(shape) for shape in shapes)
    return of_plan(name, sw.shard_map(function, mesh, in_specs=specs, verify="off").plan(*arrays), arrays)


def bare(subject: Subject) -> Subject:
    """The same without notes: the proof sees it in one piece."""
    return replace(subject, name=f"{subject.name}, without notes", program=without_notes(subject.program))
