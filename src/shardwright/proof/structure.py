"""What a well-formed Program is: checked without running it, and without what made it.

Every value is made once, from values that exist; every sharding is possible; every collective turns the sharding
of its operand into that of its result, at the price it names; and devices differ only in where they stand.  One
text serves all devices, so they meet in the same collectives in the same order, as long as nothing but
``core.offset`` depends on the device and nothing but the forms made for it reads what that gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import prod

from ..errors import ShardwrightError, VerifyError
from ..ir.order import check_order
from ..ir.program import Instr, Local, Program
from ..ir.text import node_text, quoted
from ..rules.reading.attention import MEANING as ATTENTION
from ..rules.registry import find
from ..spec.axes import Axes, AxisRef, axes_size, axes_text
from ..spec.chunks import all_chunks
from ..spec.collective import COLLECTIVES, REDUCTIONS, collective_bytes
from ..spec.pending import pending_axes
from ..spec.resharding.steps import permute_sources
from ..spec.sharding import ShardingSpec

OFFSET = "core.offset"
LOCAL_STEPS = ("core.slice", "core.to_partial")
Atom = tuple[str, int, int]
"""A part of a mesh axis: name, from, to."""


def check_structure(program: Program) -> Program:
    """Return the program, or say what is wrong with it and where."""
    _Structure(program).check()
    return check_order(program)


def instruction_text(program: Program, n: int) -> str:
    """One line of a program, as it prints."""

    def name(value: int) -> str:
        return "%" + quoted(program.values[value].name) if 0 <= value < len(program.values) else f"value {value}"

    def type_text(value: int) -> str:
        return str(program.values[value]) if 0 <= value < len(program.values) else "?"

    return f"{n}: {node_text(program.instrs[n].as_node(), name, type_text, sources=False)}"


def add_instruction(error: ShardwrightError, program: Program, n: int) -> ShardwrightError:
    """Say which instruction it is about, why that is there, and where it comes from."""
    instr = program.instrs[n]
    error.add("instruction", instruction_text(program, n))
    if instr.axes:
        error.add("axes", axes_text(instr.axes))
    if instr.cause:
        error.add("cause", instr.cause)
    return error.add("at", instr.source) if instr.source is not None else error


def _cutting(axes: Sequence[AxisRef]) -> list[AxisRef]:
    """Those of one device cut nothing, and a copy may leave them out."""
    return [axis for axis in axes if axis.size > 1]


def _need(holds: bool, fact: str, *rows: tuple[str, object]) -> None:
    if not holds:
        raise VerifyError(fact, rows=[(label, str(value)) for label, value in rows])


class _Structure:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.mesh = program.mesh
        self.seen: set[object] = set()
        """What was looked at already: a deep network says the same again and again."""
        self.offsets: dict[int, Instr] = {}
        """Values that differ from device to device, and what made them."""
        self.steps: dict[str, Callable[[Instr, Local, Local], None]] = {
            "all_gather": self.all_gather,
            "all_to_all": self.all_to_all,
            "reduce_scatter": self.reduce_scatter,
            "all_reduce": self.all_reduce,
            "collective_permute": self.collective_permute,
            "core.slice": self.slice,
            "core.to_partial": self.to_partial,
        }
        self.forms: dict[str, Callable[[Instr], None]] = {
            "core.take": self.take,
            "core.arange": self.arange,
            "core.triangle": self.triangle,
            "core.take_along": self.take_along,
            "core.take_grad": self.take_grad,
            "random.uniform": self.random,
            "random.normal": self.random,
        }

    def check(self) -> None:
        for i, local in enumerate(self.program.values):
            self.local(i, local)
        names = [local.name for local in self.program.values]
        _need(len(set(names)) == len(names), "two values have the same name")
        made = self.inputs()
        for n, instr in enumerate(self.program.instrs):
            try:
                self.instruction(instr, made)
            except ShardwrightError as error:
                raise add_instruction(error, self.program, n) from None
        for i, local in enumerate(self.program.values):
            _need(i in made, f"%{local.name} is neither an input nor made by an instruction")
        self.ends()

    # -- values -----------------------------------------------------------------------------------------

    def local(self, i: int, local: Local) -> None:
        """A sharding that this mesh has, for a tensor of this rank."""
        _need(local.id == i, f"value {i} is numbered {local.id}")
        if not self.is_new(local.type, local.spec):
            return
        try:
            _need(local.spec.mesh == self.mesh, "is on another mesh", ("mesh", local.spec.mesh))
            _need(all(size >= 0 for size in local.type.shape), "has a negative size")
            _ = local.type.item_bytes
            local.spec.check_rank(local.type.shape)
            self.axes(local.spec.used_axes)
            local.spec.replace()  # read anew, which refuses an axis used twice and reductions that do not exist
        except ShardwrightError as error:
            raise VerifyError(f"%{local.name}: {error.fact}", rows=error.rows).add(
                "type", f"{local.type} as {local.spec}"
            ) from None

    def is_new(self, *what: object) -> bool:
        before = len(self.seen)
        self.seen.add(what)
        return len(self.seen) > before

    def axes(self, axes: Axes) -> None:
        for axis in axes:
            self.mesh.axis(axis)
            self.mesh.sub_axis(axis.name, axis.pre, axis.size)

    def inputs(self) -> set[int]:
        inputs = self.program.inputs
        _need(all(0 <= value < len(self.program.values) for value in inputs), "an input does not exist")
        _need(len(set(inputs)) == len(inputs), "a value stands twice among the inputs")
        return set(inputs)

    def ends(self) -> None:
        program = self.program
        for i, value in enumerate(program.outputs):
            _need(0 <= value < len(program.values), f"output {i} does not exist")
            local = program.values[value]
            _need(value not in self.offsets, f"output {i} differs from device to device", ("output", f"%{local.name}"))
        targets = [i for i, _ in program.updates]
        _need(len(set(targets)) == len(targets), "an input is updated twice")
        for i, o in program.updates:
            known = 0 <= i < len(program.inputs) and 0 <= o < len(program.outputs)
            _need(known, f"update {i} := {o} names no input or no output")
            old, new = program.values[program.inputs[i]], program.values[program.outputs[o]]
            _need(new.type == old.type, f"the update of %{old.name} changes its type", ("from", old), ("to", new))

    # -- instructions -----------------------------------------------------------------------------------

    def instruction(self, instr: Instr, made: set[int]) -> None:
        for value in instr.as_node().inputs:
            _need(value in made, f"reads value {value}, which is not made yet")
            reads = self.form_of(instr) is not None
            _need(value not in self.offsets or reads, "reads an offset, so that devices would go different ways")
        for value in instr.results:
            _need(0 <= value < len(self.program.values), f"makes value {value}, which does not exist")
            _need(value not in made, f"makes %{self.program.values[value].name} a second time")
            made.add(value)
        self.axes(instr.axes)
        if instr.axes:
            _need(instr.op in self.steps or instr.op == OFFSET, "depends on the device, but is no step that may")
            self.groups(instr)
        if instr.op in self.steps:
            self.step(instr)
        else:
            _need(instr.bytes == 0, f"a local op claims to send {instr.bytes} bytes")
            if instr.op == OFFSET:
                self.offset(instr)
            elif (form := self.form_of(instr)) is not None:
                form(instr)

    def form_of(self, instr: Instr) -> Callable[[Instr], None] | None:
        """What looks at an op that may read offsets."""
        found = self.forms.get(instr.op)
        if found is None and (record := find(instr.op)) is not None and record.meaning == ATTENTION:
            return self.attention
        return found

    def groups(self, instr: Instr) -> None:
        if not self.is_new("groups", instr.axes):
            return
        groups = self.mesh.groups(instr.axes)
        found = sorted(position for group in groups for position in group)
        ways = axes_size(instr.axes)
        even = all(len(group) == ways for group in groups)
        _need(even and found == list(self.mesh), "its groups do not part the mesh", ("groups", groups))

    def step(self, instr: Instr) -> None:
        reads = instr.as_node().inputs
        _need(len(reads) == 1 and len(instr.results) == 1, "a step has one operand and one result")
        before, after = self.program.values[reads[0]], self.program.values[instr.results[0]]
        told = (("from", before), ("to", after))
        _need(before.type == after.type, "changes the type of its operand", *told)
        same = before.origin == after.origin or None in (before.origin, after.origin)
        _need(same, "claims to be a copy of another value than its operand", *told)
        if not self.is_new(instr.op, instr.attrs, instr.axes, instr.bytes, before.type, before.spec, after.spec):
            return
        try:
            self.steps[instr.op](instr, before, after)
        except VerifyError as error:
            raise error.add("from", before).add("to", after) from None
        sends = self.bytes(instr, before, after)
        _need(instr.bytes == sends, f"sends {sends} bytes, not {instr.bytes}", *told)

    def bytes(self, instr: Instr, before: Local, after: Local) -> int:
        """By definition: from what one device puts in, padded so that the exchange is even."""
        if instr.op not in COLLECTIVES:
            return 0
        ways = axes_size(instr.axes)
        shape = list(before.spec.padded_shape(before.type.shape))
        cut = {"all_to_all": "to_dim", "reduce_scatter": "dim"}.get(instr.op)
        if cut is not None:
            d = instr.attr(cut)
            shape[d] = after.spec.padded_shape(after.type.shape)[d] * ways
        return collective_bytes(instr.op, ways, prod(shape) * before.type.item_bytes)

    # -- steps from one sharding to another -------------------------------------------------------------

    def all_gather(self, instr: Instr, before: Local, after: Local) -> None:
        view = _Layouts(instr, before.spec, after.spec)
        d = self.dim(instr, "dim", before)
        view.undone(d, before.type.shape[d])
        view.kept(but=[d])

    def all_to_all(self, instr: Instr, before: Local, after: Local) -> None:
        view = _Layouts(instr, before.spec, after.spec)
        d, e = self.dim(instr, "dim", before), self.dim(instr, "to_dim", before)
        _need(d != e, "moves axes from a dim to itself")
        view.undone(d, before.type.shape[d])
        view.cut(e, before.type.shape[e])
        view.kept(but=[d, e])

    def reduce_scatter(self, instr: Instr, before: Local, after: Local) -> None:
        view = _Layouts(instr, before.spec, after.spec)
        d = self.dim(instr, "dim", before)
        view.cut(d, before.type.shape[d])
        view.combined(self.reduction(instr))
        view.kept(but=[d], pending=False)

    def all_reduce(self, instr: Instr, before: Local, after: Local) -> None:
        view = _Layouts(instr, before.spec, after.spec)
        view.combined(self.reduction(instr))
        view.kept(pending=False)

    def collective_permute(self, instr: Instr, before: Local, after: Local) -> None:
        for d, size in enumerate(before.type.shape):
            pieces = [all_chunks(size, spec.dims[d].parts) for spec in (before.spec, after.spec)]
            _need(pieces[0] == pieces[1], f"cuts dim {d} into other pieces")
        _need(pending_axes(before.spec) == pending_axes(after.spec), "changes what is pending")
        permute_sources(before.spec, after.spec)  # refuses what is no permutation
        whole = set(_atoms(self.mesh.axes, {}))
        _need(set(_atoms(instr.axes, {})) == whole, "a permute runs over the whole mesh")

    def slice(self, instr: Instr, before: Local, after: Local) -> None:
        view = _Layouts(instr, before.spec, after.spec)
        d = self.dim(instr, "dim", before)
        view.unused()
        view.cut(d, before.type.shape[d])
        view.kept(but=[d])

    def to_partial(self, instr: Instr, before: Local, after: Local) -> None:
        view = _Layouts(instr, before.spec, after.spec)
        view.unused()
        view.pended(self.reduction(instr))
        view.kept(pending=False)

    def dim(self, instr: Instr, name: str, local: Local) -> int:
        d = instr.attr(name)
        _need(isinstance(d, int) and 0 <= d < local.type.rank, f"{name} {d!r} of a tensor with {local.type.rank} dims")
        return int(d)

    def reduction(self, instr: Instr) -> str:
        kind = instr.attr("reduction")
        _need(kind in REDUCTIONS, f"no pending reduction is called {kind!r}")
        return str(kind)

    # -- where a shard begins ---------------------------------------------------------------------------

    def offset(self, instr: Instr) -> None:
        _need(not instr.operands and len(instr.results) == 1, "an offset has no operands and one result")
        size = instr.attr("size")
        _need(isinstance(size, int) and size >= 0, f"an offset into a dim of size {size!r}")
        _need(self.program.values[instr.results[0]].type.rank == 0, "an offset is one number")
        self.offsets[instr.results[0]] = instr

    def place(self, value: object, local: Local, d: int) -> None:
        """An operand must be the offset of this dim of this value."""
        made = self.offsets.get(value) if isinstance(value, int) else None
        if made is None:
            raise VerifyError(f"needs an offset into dim {d} of %{local.name}")
        size, axes = local.type.shape[d], local.spec.dims[d].axes
        _need(made.attr("size") == size, f"has an offset into {made.attr('size')} elements, not {size}")
        told = (("offset over", axes_text(made.axes) or "_"), ("dim cut by", axes_text(axes) or "_"))
        same = _cutting(made.axes) == _cutting(axes)
        _need(same, f"has an offset that is not of dim {d} of %{local.name}", *told)

    def operands(self, instr: Instr, count: int) -> list[Local]:
        reads = instr.as_node().inputs
        _need(len(reads) == len(instr.operands) == count, f"has {len(reads)} operands, not {count}")
        _need(len(instr.results) == 1, f"has {len(instr.results)} results, not 1")
        return list(self.program.locals_of((*reads, *instr.results)))

    def take(self, instr: Instr) -> None:
        table, index, _, result = self.operands(instr, 3)
        axis = self.dim(instr, "axis", table)
        shape = table.type.shape
        _need(instr.attr("size") == shape[axis], f"looks up in {instr.attr('size')} rows of {shape[axis]}")
        wanted = (*shape[:axis], *index.type.shape, *shape[axis + 1 :])
        fits = (result.type.shape, result.type.dtype) == (wanted, table.type.dtype)
        _need(fits, "has a result of another type than its rows", ("table", table), ("result", result))
        self.place(instr.operands[2], table, axis)
        pending = _atoms([axis for axis, kind in result.spec.partial if kind == "sum"], {})
        split = _atoms(table.spec.dims[axis].axes, {})
        _need(set(split) <= set(pending), "leaves rows out, but its result is not pending", ("result", result))

    def take_along(self, instr: Instr) -> None:
        table, index, _, result = self.operands(instr, 3)
        axis = self.dim(instr, "axis", table)
        size = table.type.shape[axis]
        _need(instr.attr("size") == size, f"looks up in {instr.attr('size')} rows of {size}")
        fits = (result.type.shape, result.type.dtype) == (index.type.shape, table.type.dtype)
        _need(fits, "has a result of another type than its rows", ("table", table), ("result", result))
        self.place(instr.operands[2], table, axis)
        self.pending(table.spec.dims[axis].axes, result)

    def pending(self, axes: Axes, result: Local) -> None:
        found = _atoms([axis for axis, kind in result.spec.partial if kind == "sum"], {})
        _need(set(_atoms(axes, {})) <= set(found), "leaves rows out, but its result is not pending", ("result", result))

    def take_grad(self, instr: Instr) -> None:
        _, _, _, result = self.operands(instr, 3)
        _need(instr.attr("size") == result.type.shape[0], "sums into another number of rows", ("result", result))
        self.place(instr.operands[2], result, 0)

    def random(self, instr: Instr) -> None:
        """Drawn whole, or with the place of every dim."""
        result = self.program.values[instr.results[0]]
        _need(instr.attr("size") == result.type.shape, "draws for another shape", ("result", result))
        offsets = instr.operands[1:]
        if not offsets:
            _need(not result.spec.sharded_axes, "draws a part as if it were the whole", ("result", result))
            return
        _need(len(offsets) == result.type.rank, "needs the place of every dim")
        for d, offset in enumerate(offsets):
            self.place(offset, result, d)

    def attention(self, instr: Instr) -> None:
        """Behind its own operands may stand where its queries begin."""
        query, count = (1, 7) if len(instr.results) > 2 else (0, 4)
        reads = instr.operands[query]
        _need(len(instr.operands) in (count, count + 1), f"has {len(instr.operands)} operands, not {count}")
        _need(not any(value in self.offsets for value in instr.operands[:count]), "takes an offset for a tensor")
        if len(instr.operands) > count:
            assert isinstance(reads, int)
            local = self.program.values[reads]
            self.place(instr.operands[count], local, local.type.rank - 2)

    def arange(self, instr: Instr) -> None:
        _, result = self.operands(instr, 1)
        _need(result.type.rank == 1, "counts in one dim", ("result", result))
        self.place(instr.operands[0], result, 0)

    def triangle(self, instr: Instr) -> None:
        x, _, _, result = self.operands(instr, 3)
        same = x.type == result.type and x.spec.same_layout(result.spec)
        _need(same and x.type.rank >= 2, "a triangle lies as its matrix", ("matrix", x), ("result", result))
        self.place(instr.operands[1], x, x.type.rank - 2)
        self.place(instr.operands[2], x, x.type.rank - 1)


class _Layouts:
    """The shardings before and after a step in the parts of axes that they and the step speak of."""

    def __init__(self, instr: Instr, before: ShardingSpec, after: ShardingSpec) -> None:
        self.specs = (before, after)
        self.over = instr.axes
        cuts: dict[str, set[int]] = {}
        for axis in (*before.used_axes, *after.used_axes, *instr.axes):
            cuts.setdefault(axis.name, set()).update((axis.pre, axis.end))
        self.moved = _atoms(instr.axes, cuts)
        self.dims = [[_atoms(dim.axes, cuts) for dim in spec.dims] for spec in self.specs]
        self.pending = [
            {atom: kind for axis, kind in spec.partial for atom in _atoms([axis], cuts)} for spec in self.specs
        ]

    def unused(self) -> None:
        used = {atom for dim in self.dims[0] for atom in dim} | set(self.pending[0])
        _need(not used & set(self.moved), "takes an axis that is in use already")

    def undone(self, d: int, size: int) -> None:
        """The axes were the minor-most of dim d, and what they cut joins up to what is left."""
        before, after = self.dims[0][d], self.dims[1][d]
        rest = before[len(after) :]
        fits = before[: len(after)] == after and sorted(rest) == sorted(self.moved)
        _need(fits, f"does not take its axes off the minor end of dim {d}")
        fine, wide = (all_chunks(size, spec.dims[d].parts) for spec in self.specs)
        ways = axes_size(self.over)
        joined = [(fine[i * ways][0], fine[i * ways + ways - 1][1]) for i in range(len(wide))]
        # Empty pieces lie anywhere.
        same = all(a == b or (a[0] == a[1] and b[0] == b[1]) for a, b in zip(joined, wide))
        _need(same, f"joins pieces of dim {d} that are not what is left", ("joined", joined), ("left", wide))

    def cut(self, d: int, size: int) -> None:
        """The axes come to the minor end of dim d, and cut it as its sharding says."""
        fits = self.dims[1][d] == self.dims[0][d] + self.moved
        _need(fits, f"does not put its axes to the minor end of dim {d}")
        before, after = (spec.dims[d].parts for spec in self.specs)
        made, said = all_chunks(size, before + tuple(axis.size for axis in self.over)), all_chunks(size, after)
        _need(made == said, f"cuts dim {d} into other pieces than its result has", ("made", made), ("said", said))

    def combined(self, kind: str) -> None:
        """The axes were pending by this reduction, and are not any more."""
        before, after = self.pending
        for atom in self.moved:
            _need(before.get(atom) == kind, f"combines by {kind} what is {_state(before.get(atom))}")
        rest = {atom: how for atom, how in before.items() if atom not in self.moved}
        _need(after == rest, "leaves pending what it combines, or combines more than it says")

    def pended(self, kind: str) -> None:
        grown = {**self.pending[0], **dict.fromkeys(self.moved, kind)}
        _need(self.pending[1] == grown, "leaves something else pending than it says")

    def kept(self, but: Sequence[int] = (), pending: bool = True) -> None:
        for d, (before, after) in enumerate(zip(*self.dims)):
            _need(d in but or before == after, f"changes dim {d}, with which it has nothing to do")
        _need(not pending or self.pending[0] == self.pending[1], "changes what is pending")


def _atoms(axes: Iterable[AxisRef], cuts: dict[str, set[int]]) -> list[Atom]:
    """Axes cut at every place where one that is spoken of begins or ends."""
    found = []
    for axis in axes:
        points = sorted({axis.pre, axis.end} | {p for p in cuts.get(axis.name, ()) if axis.pre < p < axis.end})
        found += [(axis.name, a, b) for a, b in pairwise(points)]
    return found


def _state(kind: str | None) -> str:
    return "not pending" if kind is None else f"pending by {kind}"
