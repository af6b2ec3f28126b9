"""Slicing, joining, lookup and update: dims that are cut, shifted or addressed by index; the others just pass.

A dim that is cut, shifted or turned round is *permuted*: its shards would have to trade places.  A dim that is
joined, looked up or written to is *whole*, until a local form computes it shard by shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import RuleError
from ..spec.op_record import Call, RuleText
from ..spec.rule import factor_name
from .dims import ANY, broadcast, dim_of, dims_of, ints_of, per_dim, same_dims, write
from .registry import rule

LOOKUP = ("P(any), R -> P(any)",)


@rule("slice", cost="view", meaning="slice", view=True)
def slice_(call: Call) -> str:
    """Attributes ``start``, ``stop``, ``step``: an entry a dim, None where it is not cut."""
    return same_dims(call, dict.fromkeys(_cut(call, call.results[0]), "permuted"), [ANY])


def _cut(call: Call, region: Sequence[int]) -> list[int]:
    """Dims of the first operand of which a slice takes only a part, or takes it in another order.

    The size of the region tells, so that every way to write a stop is understood.
    """
    starts, steps = per_dim(call, "start", 0), per_dim(call, "step", 1)
    shape = call.operands[0]
    if len(region) != len(shape):
        raise RuleError(f"a slice of {len(shape)} dims cannot have {len(region)}")
    moved = [shape[d] > 1 and (starts[d] != 0 or steps[d] != 1) for d in range(len(shape))]
    return [d for d in range(len(shape)) if moved[d] or region[d] != shape[d]]


@rule("flip", cost="memory", meaning="flip")
def flip(call: Call) -> str:
    """Attribute ``axis``: the dims that are turned round."""
    turned = [d for d in dims_of(call) if call.operands[0][d] > 1]
    return same_dims(call, dict.fromkeys(turned, "permuted"), [ANY])


@rule("roll", cost="memory", meaning="roll", beyond="a shift by the size of the dim, and even shards only")
def roll(call: Call) -> str:
    """Attributes ``shift`` and ``axis``; shifts of the same dim add up."""
    dims, shifts = dims_of(call), ints_of(call, "shift")
    if len(dims) != len(shifts):
        raise RuleError(f"{len(shifts)} shifts for {len(dims)} dims")
    moved: Counter[int] = Counter()
    for d, shift in zip(dims, shifts):
        moved[d] += shift
    # A shift by the size of the whole dim changes nothing there, but does on a shard of it.
    return same_dims(call, {d: "permuted" for d, shift in moved.items() if shift}, [ANY])


@rule("pad", cost="memory", meaning="pad")
def pad(call: Call) -> str:
    """Attributes ``low``, ``high`` (negative ones cut), ``interior``; the value is an attribute or an operand."""
    low, high, interior = (per_dim(call, name, 0) for name in ("low", "high", "interior"))
    sizes = call.operands[0]
    touched = [d for d in range(len(low)) if low[d] or high[d] or (interior[d] and sizes[d] > 1)]
    grows = any((entry or 0) > 0 for entry in (*low, *high, *interior))
    return same_dims(call, dict.fromkeys(touched, "permuted"), _pad_transfers(call, grows))


def _pad_transfers(call: Call, grows: bool) -> list[str]:
    """Every device pads with the same value; what combines those must give the value back."""
    if len(call.operands) == 2:
        # Of an unknown value only these are sure; a value pending in the same way is combined along with the rest.
        return ["P(any), P(any) -> P(any)", *(f"P({kind}), R -> P({kind})" for kind in ("max", "min", "avg"))]
    if not grows:
        return [ANY]
    value = call.attr("value", 0)
    value = complex(*value) if isinstance(value, tuple) else value  # real and imaginary part
    kinds = ["max", "min", "avg", *(["sum"] if value + value == value else [])]
    kinds += ["prod"] if value * value == value else []
    return [f"P({kind}) -> P({kind})" for kind in kinds]


@rule("diagonal", cost="view", view=True)
def diagonal(call: Call) -> str:
    """Attributes ``offset``, ``axis1``, ``axis2``: these two dims become one, the last; their parts do not match."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    gone = [call.attr("axis1", 0), call.attr("axis2", 1)]
    notes = {**{names[d]: "whole" for d in sorted(gone)}, "diagonal": "new whole"}
    return write([names], [[*(name for d, name in enumerate(names) if d not in gone), "diagonal"]], notes, [ANY])


@rule("concatenate", cost="memory", meaning="concatenate")
def concatenate(call: Call) -> RuleText:
    """Attribute ``axis``; all parts may be pending in the same way."""
    axis = dim_of(call)
    both = ", ".join(["P(any)"] * len(call.operands))
    text = same_dims(call, {axis: "whole"}, [f"{both} -> P(any)"])
    return text, {factor_name(axis): call.results[0][axis]}


@rule("take", cost="gather", meaning="take")
def take(call: Call) -> str:
    """Rows of a table along ``axis``; without an axis, elements of the flattened table.

    Where the looked-up dim ``v`` is split, each device looks up the rows it has and leaves the rest zero.
    """
    table, index = (len(shape) for shape in call.operands)
    found = [f"i{d}" for d in range(index)]
    if call.attr("axis") is None:
        flat = [f"v{d}" for d in range(table)]
        return write([flat, found], [found], dict.fromkeys(flat, "whole"), LOOKUP)
    axis = dim_of(call)
    kept = [f"d{d}" for d in range(table - 1)]
    before, after = kept[:axis], kept[axis:]
    return write([[*before, "v", *after], found], [[*before, *found, *after]], {"v": "form(take)"}, LOOKUP)


@rule("take_along_axis", cost="gather", meaning="take_along_axis")
def take_along_axis(call: Call) -> str:
    """One lookup for each element of the index; beside ``axis`` table and index are stretched to each other.

    The looked-up dim ``v`` is whole for now; the index may be split along it.
    """
    axis = dim_of(call)
    table, index = call.operands
    if len(index) != len(table):
        raise RuleError(f"an index of {len(index)} dims for a table of {len(table)}")
    names = [f"d{d}" for d in range(len(table))]
    sizes = [max(sizes) if min(sizes) else 0 for sizes in zip(table, index)]
    sides = [broadcast(names, sizes, shape) for shape in call.operands]
    sides[0][axis] = "v"
    sides[1][axis] = names[axis]
    return write(sides, [names], {"v": "whole"}, LOOKUP)


@rule("update_slice", cost="memory", meaning="update_slice")
def update_slice(call: Call) -> str:
    """The operand with a part replaced by the second operand; attributes as for a slice.

    A dim of which only a part is written is whole for now: split, each device would write what falls to it.
    """
    shape, update = call.operands
    region = [1] * (len(shape) - len(update)) + list(update)
    said = [per_dim(call, name) for name in ("start", "stop", "step")]
    all_written = [d for d in range(len(shape)) if all(entries[d] is None for entries in said)]
    cut = [d for d in _cut(call, region) if d not in all_written]
    names = [f"d{d}" for d in range(len(shape))]
    written = [f"n{d}" if d in cut else name for d, name in enumerate(names)]
    sizes = [region[d] if d in cut else shape[d] for d in range(len(shape))]
    notes = dict.fromkeys((names[d] for d in cut), "whole")
    spelled = broadcast(written, sizes, update)
    notes |= {name: "whole" for name in spelled if name.startswith("n")}
    return write([names, spelled], [names], notes, ["P(any), P(any) -> P(any)"])


@rule("scatter", cost="gather", meaning="scatter")
def scatter(call: Call) -> str:
    """``x[..., idx, ...] = v`` along ``axis``: where the index points, rows are replaced by those of the third operand.

    The written dim ``v`` is whole for now, and so are those of the index: each row needs all that go there.
    """
    shape, index, update = call.operands
    axis = dim_of(call)
    kept = [f"d{d}" for d in range(len(shape) - 1)]
    before, after = kept[:axis], kept[axis:]
    points = [f"i{d}" for d in range(len(index))]
    sizes = [*shape[:axis], *index, *shape[axis + 1 :]]
    target = [*before, "v", *after]
    rows = broadcast([*before, *points, *after], sizes, update)
    notes = {"v": "whole", **dict.fromkeys(points, "whole")}
    return write([target, points, rows], [target], notes, ["P(any), R, P(any) -> P(any)"])
