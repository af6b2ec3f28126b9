"""Views and copies, slices, joins, pads: elements move or are shown otherwise, and every pending reduction passes."""

from __future__ import annotations

from ...errors import RuleError
from ...spec.op_record import Call, Flow, RuleText
from ...spec.rule import factor_name
from ..dims import ANY, write
from ..registry import rule
from .same import Attributes, dim, dims, same

_BEYOND = (
    "extremes and products, where elements only move; operands of which only the shape is read may lie "
    "anyhow; a part that is all of a dim"
)
"""What the oracle finds beyond these rules."""

for _name in (
    "view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze",
    "view_copy", "flatten.using_ints", "unflatten.int", "_reshape_copy", "unsqueeze_copy", "squeeze_copy",
    "squeeze_copy.dim", "squeeze_copy.dims",
):  # fmt: skip
    same(f"aten.{_name}", base="reshape")


def _swapped(attrs: Attributes, rank: int) -> Attributes:
    order = list(range(rank))
    if rank:
        a, b = (dim(attrs, rank, name if name in attrs else name.replace("dim", "axis")) for name in ("dim0", "dim1"))
        order[a], order[b] = order[b], order[a]
    return {"permutation": tuple(order)}


same("aten.t", "aten.t_copy", "aten.numpy_T", base="transpose")
for _name in ("transpose.int", "transpose_copy.int", "swapaxes", "swapdims"):
    same(f"aten.{_name}", base="transpose", to=_swapped)
for _name in ("permute", "permute_copy"):
    same(f"aten.{_name}", base="transpose", to=lambda attrs, rank: {"permutation": dims(attrs, rank, "dims") or ()})
for _name in ("mT", "adjoint", "mH"):
    same(
        f"aten.{_name}",
        base="transpose",
        to=lambda attrs, rank: {"permutation": (*range(rank - 2), rank - 1, rank - 2) if rank > 1 else ()},
    )
same("aten.expand", "aten.expand_copy", "aten.broadcast_to", base="broadcast_to")
same("aten.flip", base="flip", to=lambda attrs, rank: {"axis": dims(attrs, rank, "dims") or ()})


def _rolled(attrs: Attributes, rank: int) -> Attributes:
    shifts = attrs["shifts"]
    named = dims(attrs, rank, "dims")
    if named is None:
        raise RuleError("a roll of the flattened tensor moves everything")
    return {"axis": named, "shift": (shifts,) if isinstance(shifts, int) else tuple(shifts)}


same("aten.roll", base="roll", to=_rolled)


def _sliced(attrs: Attributes, rank: int) -> Attributes:
    at = dim(attrs, rank)
    said = {"start": attrs.get("start"), "stop": attrs.get("end"), "step": attrs.get("step", 1)}
    if said["start"] == 0:
        said["start"] = None
    return {key: tuple(value if d == at else None for d in range(rank)) for key, value in said.items()}


same("aten.slice.Tensor", "aten.slice_copy.Tensor", base="slice", to=_sliced)
for _name in ("cat", "concat"):
    same(f"aten.{_name}", base="concatenate", to=lambda attrs, rank: {"axis": dim(attrs, rank)})


@rule("aten.stack", cost="memory", meaning="stack", beyond=_BEYOND)
def stack(call: Call) -> str:
    """The new dim is whole: its parts are the operands."""
    rank = len(call.results[0])
    at = dim(call.attrs, rank)
    names = [factor_name(d) for d in range(rank)]
    operand = [name for d, name in enumerate(names) if d != at]
    count = len(call.operands)
    passing = f"{', '.join(['P(any)'] * count)} -> P(any)"
    return write([operand] * count, [names], {names[at]: "new whole"}, [passing])


@rule("aten.constant_pad_nd", cost="memory", meaning="constant pad", beyond=_BEYOND)
def constant_pad(call: Call) -> RuleText:
    """Attribute ``pad``: low and high of the last dim, of the one before it, and so on."""
    from ..index import pad as written

    rank, given = len(call.operands[0]), call.attr("pad")
    low, high = [0] * rank, [0] * rank
    for i in range(len(given) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = given[2 * i], given[2 * i + 1]
    return written(Call(call.operands, call.results, {"low": low, "high": high, "value": call.attr("value", 0)}))


for _name in ("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
              "replication_pad3d"):  # fmt: skip

    @rule(f"aten.{_name}", cost="memory", meaning="by rule", beyond=_BEYOND)
    def edge_pad(call: Call) -> str:
        """Padded dims are whole: what is added comes from elsewhere in them."""
        rank, padded = len(call.operands[0]), len(call.attr("padding")) // 2
        names = [factor_name(d) for d in range(rank)]
        outer = [*names[: rank - padded], *(f"p{d}" for d in range(padded))]
        notes = dict.fromkeys(names[rank - padded :], "whole") | dict.fromkeys(outer[rank - padded :], "new whole")
        return write([names], [outer], notes, ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])

    @rule(f"aten.{_name}_backward", cost="memory", meaning="by rule", beyond=_BEYOND)
    def edge_pad_backward(call: Call) -> str:
        """Gradient and input."""
        rank, padded = len(call.operands[1]), len(call.attr("padding")) // 2
        names = [factor_name(d) for d in range(rank)]
        outer = [*names[: rank - padded], *(f"p{d}" for d in range(padded))]
        notes = dict.fromkeys([*names[rank - padded :], *outer[rank - padded :]], "whole")
        return write([outer, names], [names], notes, ["P(sum), R -> P(sum)", "P(avg), R -> P(avg)"])


# -- one part of a tensor, or several --------------------------------------------------------------------


@rule("aten.select.int", flow=Flow.OTHER, cost="view", meaning="select", beyond=_BEYOND, view=True)
def select(call: Call) -> str:
    """One place along a dim, which must be whole."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    at = dim(call.attrs, len(names))
    return write([names], [[name for d, name in enumerate(names) if d != at]], {names[at]: "whole"}, [ANY])


rule("aten.select_copy.int", select, cost="view", meaning="select", beyond=_BEYOND, view=True)


@rule("aten.select_backward", cost="memory", meaning="by rule", beyond=_BEYOND)
def select_backward(call: Call) -> str:
    names = [factor_name(d) for d in range(len(call.results[0]))]
    at = dim(call.attrs, len(names))
    rows = ["P(sum) -> P(sum)", "P(avg) -> P(avg)"]
    return write([[name for d, name in enumerate(names) if d != at]], [names], {names[at]: "new whole"}, rows)


@rule("aten.slice_backward", cost="memory", meaning="by rule", beyond=_BEYOND)
def slice_backward(call: Call) -> str:
    """A gradient put back among zeros; the dim is whole if only a part of it was taken."""
    shape, result = call.operands[0], call.results[0]
    names = [factor_name(d) for d in range(len(result))]
    at = dim(call.attrs, len(names))
    rows = ["P(sum) -> P(sum)", "P(avg) -> P(avg)"]
    if shape[at] == result[at]:
        return write([names], [names], {}, rows)
    cut = [*names[:at], "cut", *names[at + 1 :]]
    return write([cut], [names], {"cut": "whole", names[at]: "new whole"}, rows)


def _split(call: Call) -> str:
    """Several parts along a dim, which must be whole."""
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    at = dim({"dim": call.attr("dim", 0)}, rank)
    results, notes = [], {names[at]: "whole"}
    for i in range(len(call.results)):
        results.append([*names[:at], f"part{i}", *names[at + 1 :]])
        notes[f"part{i}"] = "new whole"
    return write([names], results, notes, [f"P(any) -> {', '.join(['P(any)'] * len(call.results))}"])


for _name in ("split.Tensor", "unsafe_split.Tensor", "split_with_sizes", "unsafe_split_with_sizes", "split.sizes",
              "chunk", "tensor_split.sections",
              "split_with_sizes_copy", "split_copy.Tensor"):  # fmt: skip
    rule(f"aten.{_name}", _split, cost="view", meaning="split", beyond=_BEYOND, view=True)


@rule("aten.unbind.int", cost="view", meaning="split", beyond=_BEYOND, view=True)
def unbind(call: Call) -> str:
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    at = dim({"dim": call.attr("dim", 0)}, rank)
    result = [name for d, name in enumerate(names) if d != at]
    count = len(call.results)
    return write([names], [result] * count, {names[at]: "whole"}, [f"P(any) -> {', '.join(['P(any)'] * count)}"])


rule("aten.unbind_copy.int", unbind, cost="view", meaning="split", beyond=_BEYOND, view=True)


@rule("aten.repeat", cost="memory", meaning="by rule", beyond=_BEYOND)
def repeat(call: Call) -> str:
    """A dim repeated once passes; the others are whole."""
    shape, result = call.operands[0], call.results[0]
    times = call.attr("repeats")
    lead = len(result) - len(shape)
    names = [factor_name(d) for d in range(len(result))]
    operand, notes = [], {}
    for d in range(len(result)):
        if d < lead:
            notes[names[d]] = "new"
        elif times[d] == 1:
            operand.append(names[d])
        else:
            operand.append(f"o{d}")
            notes |= {f"o{d}": "whole", names[d]: "new whole"}
    return write([operand], [names], notes, ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])


@rule("aten.unfold", cost="view", meaning="by rule", beyond=_BEYOND)
def unfold(call: Call) -> str:
    """Windows along a dim, which must be whole."""
    rank = len(call.operands[0])
    at = dim(call.attrs, rank, "dimension")
    names = [factor_name(d) for d in range(rank)]
    result = [*names[:at], "windows", *names[at + 1 :], "within"]
    notes = {names[at]: "whole", "windows": "new whole", "within": "new whole"}
    return write([names], [result], notes, ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])


rule("aten.unfold_copy", unfold, cost="view", meaning="by rule", beyond=_BEYOND)


@rule("aten.unfold_backward", cost="memory", meaning="by rule", beyond=_BEYOND)
def unfold_backward(call: Call) -> str:
    rank = len(call.results[0])
    at = dim(call.attrs, rank)
    names = [factor_name(d) for d in range(rank)]
    windows = [*names[:at], "windows", *names[at + 1 :], "within"]
    notes = {names[at]: "new whole", "windows": "whole", "within": "whole"}
    return write([windows], [names], notes, ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])


@rule("aten.diagonal", cost="view", meaning="by rule", beyond=_BEYOND)
def diagonal(call: Call) -> str:
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    gone = sorted((call.attr("dim1", 0) % rank, call.attr("dim2", 1) % rank))
    rows = ["P(sum) -> P(sum)", "P(avg) -> P(avg)"]
    result = [*(name for d, name in enumerate(names) if d not in gone), "diagonal"]
    return write([names], [result], {**{names[d]: "whole" for d in gone}, "diagonal": "new whole"}, rows)


rule("aten.diagonal_copy", diagonal, cost="view", meaning="by rule", beyond=_BEYOND)


@rule("aten.diagonal_backward", cost="memory", meaning="by rule", beyond=_BEYOND)
def diagonal_backward(call: Call) -> str:
    rank = len(call.results[0])
    names = [factor_name(d) for d in range(rank)]
    gone = sorted((call.attr("dim1", 0) % rank, call.attr("dim2", 1) % rank))
    rows = ["P(sum) -> P(sum)", "P(avg) -> P(avg)"]
    operand = [*(name for d, name in enumerate(names) if d not in gone), "diagonal"]
    return write([operand], [names], {**{names[d]: "new whole" for d in gone}, "diagonal": "whole"}, rows)


@rule("aten.select_scatter", cost="memory", meaning="by rule", beyond=_BEYOND)
def select_scatter(call: Call) -> str:
    """One place along a dim, which must be whole, is replaced."""
    names = [factor_name(d) for d in range(len(call.results[0]))]
    at = dim(call.attrs, len(names))
    part = [name for d, name in enumerate(names) if d != at]
    return write([names, part], [names], {names[at]: "whole"}, ["P(any), P(any) -> P(any)"])


@rule("aten.slice_scatter", cost="memory", meaning="by rule", beyond=_BEYOND)
def slice_scatter(call: Call) -> str:
    """A part along a dim is replaced; that is whole, unless all of it is."""
    names = [factor_name(d) for d in range(len(call.results[0]))]
    at = dim({"dim": call.attr("dim", 0)}, len(names))
    if call.operands[0] == call.operands[1]:
        return write([names, names], [names], {}, ["P(any), P(any) -> P(any)"])
    part = [*names[:at], "part", *names[at + 1 :]]
    return write([names, part], [names], {names[at]: "whole", "part": "whole"}, ["P(any), P(any) -> P(any)"])


@rule("aten.diag_embed", cost="memory", meaning="by rule", beyond=_BEYOND)
def diag_embed(call: Call) -> str:
    """The last dim becomes the diagonal of two new ones."""
    rank = len(call.results[0])
    names = [factor_name(d) for d in range(rank)]
    made = sorted((call.attr("dim1", -2) % rank, call.attr("dim2", -1) % rank))
    operand = [*(name for d, name in enumerate(names) if d not in made), "diagonal"]
    notes = {**{names[d]: "new whole" for d in made}, "diagonal": "whole"}
    return write([operand], [names], notes, ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])


@rule("aten.diagonal_scatter", cost="memory", meaning="by rule", beyond=_BEYOND)
def diagonal_scatter(call: Call) -> str:
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    gone = sorted((call.attr("dim1", 0) % rank, call.attr("dim2", 1) % rank))
    source = [*(name for d, name in enumerate(names) if d not in gone), "diagonal"]
    notes = {**{names[d]: "whole" for d in gone}, "diagonal": "whole"}
    return write([names, source], [names], notes, ["P(any), P(any) -> P(any)"])


# -- complex numbers as pairs ------------------------------------------------------------------------------


def _as_pairs(call: Call) -> str:
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    return write([names], [[*names, "pair"]], {"pair": "new whole"}, ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])


def _from_pairs(call: Call) -> str:
    names = [factor_name(d) for d in range(len(call.results[0]))]
    return write([[*names, "pair"]], [names], {"pair": "whole"}, ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])


for _suffix in ("", "_copy"):
    rule(f"aten.view_as_real{_suffix}", _as_pairs, cost="view", meaning="by rule", beyond=_BEYOND)
    rule(f"aten.view_as_complex{_suffix}", _from_pairs, cost="view", meaning="by rule", beyond=_BEYOND)


@rule("aten.rot90", cost="memory", meaning="by rule", beyond=_BEYOND)
def rot90(call: Call) -> str:
    """The two dims that turn are whole."""
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    turned = dims(call.attrs, rank, "dims") or (0, 1)
    result = [f"r{d}" if d in turned else name for d, name in enumerate(names)]
    notes = {names[d]: "whole" for d in turned} | {f"r{d}": "new whole" for d in turned}
    return write([names], [result], notes, [ANY])
