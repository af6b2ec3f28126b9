"""Lookup by index: embedding, gather, scatter, index, index_put, and their gradients.

Where the looked-up dim is split, each device looks up the rows that it has and leaves zero elsewhere: ``form(take)``
and its kin.  Dims that the index does not speak of pass.
"""

from __future__ import annotations

from functools import partial

from ...spec.op_record import Call
from ...spec.rule import factor_name
from ...spec.sharding import Shape
from ..dims import broadcast, write
from ..registry import rule
from .same import dim, same

_BEYOND = (
    "extremes and products, where elements only move; and a source that is pending alone, which holds "
    "where the target is zero or written over"
)
"""What the oracle finds beyond these rules."""

same("aten.embedding", base="take", to=lambda attrs, rank: {"axis": 0})
same("aten.index_select", base="take", to=lambda attrs, rank: {"axis": dim(attrs, rank)})


@rule("aten.embedding_dense_backward", cost="gather", meaning="take_grad", beyond=_BEYOND)
def embedding_backward(call: Call) -> str:
    """Rows of the gradient are summed where the index points; each device sums what falls into its rows."""
    if call.attr("scale_grad_by_freq"):  # counts how often each row is used, in all samples
        points = [f"i{d}" for d in range(len(call.operands[1]))]
        whole = dict.fromkeys(points, "whole") | {"v": "new whole"}
        return write([[*points, "d"], points], [["v", "d"]], whole, ["P(sum), R -> P(sum)"])
    points = [f"i{d}" for d in range(len(call.operands[1]))]
    return write([[*points, "d"], points], [["v", "d"]], {"v": "new form(take_grad)"}, ["P(sum), R -> P(sum)"])


@rule("aten.gather", cost="gather", meaning="gather", beyond=_BEYOND)
def gather(call: Call) -> str:
    """One lookup for each element of the index; beside ``dim`` the two must be of one size to be split."""
    table, index = call.operands
    at = dim(call.attrs, len(table))
    names = [factor_name(d) for d in range(len(table))]
    of_table = list(names)
    notes: dict[str, str] = {}
    for d in range(len(table)):
        if d == at:
            of_table[d] = "v"
            notes["v"] = "form(take_along)"
        elif table[d] != index[d]:
            of_table[d] = f"t{d}"
            notes |= {f"t{d}": "whole", names[d]: "whole"}
    return write([of_table, names], [names], notes, ["P(any), R -> P(any)"])


def _scattered(call: Call, rows: list[str]) -> str:
    """Target, index, perhaps a source of the index's shape: dims beside ``dim`` pass if all agree on their size."""
    target, index = call.operands[:2]
    at = dim(call.attrs, len(target))
    names = [factor_name(d) for d in range(len(target))]
    of_index = list(names)
    notes: dict[str, str] = {}
    source = call.operands[2] if len(call.operands) > 2 else index
    for d in range(len(target)):
        if d == at:
            of_index[d] = "s"
            notes |= {"s": "whole", names[d]: "whole"}
        elif not target[d] == index[d] == source[d]:
            of_index[d] = f"s{d}"
            notes |= {f"s{d}": "whole", names[d]: "whole"}
    of_source = [f"x{d}" if source[d] != index[d] else name for d, name in enumerate(of_index)]
    notes |= {name: "whole" for name in of_source if name.startswith("x")}
    return write([names, of_index, of_source][: len(call.operands)], [names], notes, rows)


for _name, _rows in {
    "scatter.src": ["P(any), R, P(any) -> P(any)"],
    "scatter.value": ["P(max), R -> P(max)", "P(min), R -> P(min)"],
    "scatter_add": ["P(sum), R, P(sum) -> P(sum)"],
    "scatter_reduce.two": [],
    "scatter.reduce": [],
    "scatter.value_reduce": [],
}.items():
    rule(f"aten.{_name}", partial(_scattered, rows=_rows), cost="gather", meaning="by rule", beyond=_BEYOND)


@rule("aten.index_add", cost="gather", meaning="by rule", beyond=_BEYOND)
def index_add(call: Call) -> str:
    """Rows of the source are added where the index points: it is whole, and so is the dim."""
    rank = len(call.operands[0])
    at = dim(call.attrs, rank)
    names = [factor_name(d) for d in range(rank)]
    source = [*names[:at], "s", *names[at + 1 :]]
    return write([names, ["s"], source], [names], {"s": "whole", names[at]: "whole"} if names else {},
                 ["P(sum), R, P(sum) -> P(sum)"])  # fmt: skip


@rule("aten.index_fill.int_Scalar", cost="gather", meaning="by rule", beyond=_BEYOND)
def index_fill(call: Call) -> str:
    """Rows of one number where the index points."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    at = dim(call.attrs, len(names))
    beside: list[list[str]] = [[]] * (len(call.operands) - 2)
    index = ["s"][: len(call.operands[1])]
    notes = ({names[at]: "whole"} if names else {}) | dict.fromkeys(index, "whole")
    return write([names, index, *beside], [names], notes)


rule("aten.index_fill.int_Tensor", index_fill, cost="gather", meaning="by rule", beyond=_BEYOND)
rule(
    "aten.index_reduce",
    lambda call: index_add(call).partition(" ; P(")[0],
    cost="gather",
    meaning="by rule",
    beyond=_BEYOND,
)
rule(
    "aten.index_copy",
    lambda call: index_add(call).replace("P(sum), R, P(sum) -> P(sum)", "P(any), R, P(any) -> P(any)"),
    cost="gather",
    meaning="by rule",
    beyond=_BEYOND,
)


def _points(call: Call) -> tuple[list[int], list[str], list[list[str]], bool]:
    """Dims that are indexed; names of what the indices stand for together; of each; whether they stand together.

    A mask of booleans is of as many dims as it has, and stands for a list of the places where it holds.
    """
    present = call.attr("indices_present")
    masks = call.attr("indices_masks", (False,) * len(present))
    given = iter(call.operands[1:])
    dims: list[int] = []
    shapes: list[tuple[Shape, bool]] = []
    at = 0
    for there, mask in zip(present, masks, strict=True):
        shape = next(given) if there else ()
        covered = len(shape) if mask else 1
        if there:
            dims += range(at, at + covered)
            shapes.append((shape, mask))
        at += covered
    lists = [(1,) if mask else shape for shape, mask in shapes]
    rank = max(map(len, lists), default=0)
    sizes = [max((s[len(s) - rank + d] for s in lists if len(s) - rank + d >= 0), default=1) for d in range(rank)]
    names = [f"i{d}" for d in range(rank)]
    each = [[f"m{n}{d}" for d in range(len(shape))] if mask else broadcast(names, sizes, shape)
            for n, (shape, mask) in enumerate(shapes)]  # fmt: skip
    adjacent = not dims or dims == list(range(dims[0], dims[-1] + 1))
    return dims, names, each, adjacent


def _looked_up(names: list[str], dims: list[int], points: list[str], adjacent: bool) -> list[str]:
    rest = [name for d, name in enumerate(names) if d not in dims]
    at = dims[0] if adjacent and dims else 0
    return [*rest[:at], *points, *rest[at:]]


def _of_masks(call: Call, each: list[list[str]]) -> dict[str, str]:
    """Where a mask holds is found in all of it."""
    masks = [mask for mask, there in zip(call.attr("indices_masks", ()), call.attr("indices_present")) if there]
    return {name: "whole" for mask, side in zip(masks, each) for name in side if mask}


@rule("aten.index.Tensor", cost="gather", meaning="by rule", beyond=_BEYOND)
def index(call: Call) -> str:
    """``x[:, i, j]``: indexed dims are whole, the others and those of the indices pass."""
    dims, points, each, adjacent = _points(call)
    names = [f"d{d}" for d in range(len(call.operands[0]))]
    result = _looked_up(names, dims, points, adjacent)
    rows = [f"P({kind}){', R' * len(each)} -> P({kind})" for kind in ("sum", "avg")]
    notes = {names[d]: "whole" for d in dims} | _of_masks(call, each)
    if call.attr("indices_masks"):
        notes |= {name: "whole" if any(name in side for side in each) else "new whole" for name in points}
    return write([names, *each], [result], notes, rows)


rule("aten._unsafe_index.Tensor", index, cost="gather", meaning="by rule", beyond=_BEYOND)


@rule("aten.index_put", cost="gather", meaning="by rule", beyond=_BEYOND)
def index_put(call: Call) -> str:
    """``x[:, i, j] = v``: indexed dims and those of the indices are whole, the others pass."""
    dims, points, each, adjacent = _points(call)
    shape = call.operands[0]
    names = [f"d{d}" for d in range(len(shape))]
    rows = [f"P(sum){', R' * len(each)}, P(sum) -> P(sum)"]
    if call.attr("indices_masks") and len(each) == 1 and not call.operands[2]:  # one number, where the mask holds
        return write([names, [names[d] for d in dims], []], [names], {}, rows)
    written = _looked_up(names, dims, points, adjacent)
    sizes = dict(zip(names, shape))
    for spelled, given in zip(each, call.operands[1:]):
        sizes |= {name: size for name, size in zip(spelled, given) if name != "1"}
    value = broadcast(written, [sizes.get(name, 1) for name in written], call.operands[1 + len(each)])
    notes = {names[d]: "whole" for d in dims} | dict.fromkeys(points, "whole") | _of_masks(call, each)
    notes = {name: words for name, words in notes.items() if any(name in side for side in (names, *each, value))}
    return write([names, *each, value], [names], notes, rows)


for _name in ("_unsafe_index_put", "_index_put_impl"):
    rule(f"aten.{_name}", index_put, cost="gather", meaning="by rule", beyond=_BEYOND)


@rule("aten.masked_scatter", cost="gather", meaning="by rule", beyond=_BEYOND)
def masked_scatter(call: Call) -> str:
    """Elements are taken in order, over all dims."""
    names = [[f"{letter}{d}" for d in range(len(shape))] for letter, shape in zip("xms", call.operands)]
    names[1] = broadcast(names[0], call.operands[0], call.operands[1])
    return write(names, [names[0]], dict.fromkeys([*names[0], *names[2]], "whole"))


# -- bags of embeddings ---------------------------------------------------------------------------------


@rule("aten._embedding_bag", cost="gather", meaning="by rule", beyond=_BEYOND)
def embedding_bag(call: Call) -> str:
    """Weight, indices, offsets, perhaps weights of samples: only the embedding dim passes."""
    operands = [["v", "d"], ["i"], ["o"], *([["i"]] if len(call.operands) > 3 else [])]
    results, notes = [["o2", "d"]], {"v": "whole", "i": "whole", "o": "whole", "o2": "new whole"}
    for r, shape in enumerate(call.results[1:]):
        names = [f"r{r}x{d}" for d in range(len(shape))]
        notes |= dict.fromkeys(names[:1], "new whole")
        if len(shape) == 2:
            results.append([*names[:1], "d"])
        else:
            results.append(names)
            notes[f"d@{r + 1}"] = "same"  # which rows go into which bag
    return write(operands, results, notes)


rule("aten._embedding_bag_forward_only", embedding_bag, cost="gather", meaning="by rule", beyond=_BEYOND)


@rule("aten._embedding_bag_per_sample_weights_backward", cost="gather", meaning="by rule", beyond=_BEYOND)
def sample_weights_backward(call: Call) -> str:
    """Gradient, weight, indices, offsets, bags: a product summed over the embedding dim."""
    rest = call.operands[2:]
    operands, notes = [["o", "d"], ["v", "d"]], {"o": "whole", "v": "whole"}
    for i, shape in enumerate(rest):
        names = ["i"] if shape == call.results[0] else [f"x{i}x{d}" for d in range(len(shape))]
        operands.append(names)
        notes |= dict.fromkeys(names, "whole")
    rows = [f"P(sum), R{', R' * len(rest)} -> P(sum)", f"R, P(sum){', R' * len(rest)} -> P(sum)"]
    return write(operands, [["i"]], notes | ({} if ["i"] in operands else {"i": "new whole"}), rows)


@rule("aten._embedding_bag_backward", cost="gather", meaning="by rule", beyond=_BEYOND)
@rule("aten._embedding_bag_dense_backward", cost="gather", meaning="by rule", beyond=_BEYOND)
def embedding_bag_backward(call: Call) -> str:
    """Gradient, then which rows went into which bag; of the greatest ones, for each place of the embedding dim."""
    operands, notes = [["o", "d"]], {"o": "whole", "v": "new whole"}
    for i, shape in enumerate(call.operands[1:]):
        names = [f"x{i}x{d}" for d in range(len(shape))]
        notes |= dict.fromkeys(names[:1], "whole")
        operands.append([*names[:1], "d"] if len(shape) == 2 else names)
    return write(operands, [["v", "d"]], notes, [f"P(sum){', R' * (len(operands) - 1)} -> P(sum)"])
