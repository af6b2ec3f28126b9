"""Ops in the form StableHLO gives them: windows, decompositions, dimension numbers, collectives.

None of them has an exact meaning here.  A few may be split further than local execution alone allows, since
XLA's partitioner rewrites the op: with the attribute ``partitioner="xla"`` the rule says so; without it such
factors are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import RuleError
from ..spec.op_record import Call, Flow, RuleText
from ..spec.rule import OpShardingRule, factor_name
from .dims import LINEAR, dim_of, dims_of, ints_of, per_dim, same_dims, write
from .registry import rule

MATRIX = "r: whole ; c: whole"
XLA_FORM = "form(xla)"
"""A factor that only XLA's own rewriting of the op can split."""


def by_xla(call: Call) -> bool:
    return bool(call.attr("partitioner") == "xla")


# -- decompositions and transforms ----------------------------------------------------------------------

rule("cholesky", f"... r c -> ... r c ; {MATRIX}", cost="matmul")
rule("qr", f"... r c -> ... r c, ... t ; {MATRIX} ; t: new whole", cost="matmul")
rule("householder_product", f"... r c, ... t -> ... r c ; {MATRIX} ; t: whole", cost="matmul")


@rule("eigh", cost="matmul")
def eigh(call: Call) -> str:
    """Eigenvectors, then eigenvalues."""
    words = XLA_FORM if by_xla(call) else "whole"
    return f"... r c -> ... r c, ... c ; r: {words} ; c: {words}"


@rule("triangular_solve", cost="matmul")
def triangular_solve(call: Call) -> str:
    """Attributes ``left_side`` (the matrix stands left of the unknown) and ``transpose_a``.

    With ``k`` the dim that the matrix and the right-hand side share, ``m`` the one of the matrix and the unknown, ``n``
    the right-hand sides, each solved for itself; XLA does not split those either.
    """
    left = call.attr("left_side", True)
    matrix = "k m" if left != call.attr("transpose_a", False) else "m k"
    given, found = ("k n", "m n") if left else ("n k", "n m")
    notes = "k: whole ; m: whole" + (" ; n: whole" if by_xla(call) else "")
    return f"... {matrix}, ... {given} -> ... {found} ; {notes} ; R, P(sum) -> P(sum) ; R, P(avg) -> P(avg)"


@rule("fft", cost="memory")
def fft(call: Call) -> str:
    """Along the last dims, as many as ``fft_length`` has; half a spectrum does not line up with the signal."""
    rank = len(call.operands[0])
    notes = dict.fromkeys(range(rank - len(ints_of(call, "fft_length")), rank), "whole")
    if call.operands[0][-1] != call.results[0][-1]:
        notes[rank - 1] = "whole blocked"
    return same_dims(call, notes, LINEAR)


@rule("approx_top_k", cost="sort")
def approx_top_k(call: Call) -> str:
    """Values, where they stand, and two initial scalars -> the largest along ``axis`` and where they stood."""
    axis = dim_of(call)
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    best = [*names[:axis], "best", *names[axis + 1 :]]
    notes = {names[axis]: XLA_FORM if by_xla(call) else "whole", "best": "new whole blocked"}
    return write([names, names, [], []], [best, best], notes)


# -- windows --------------------------------------------------------------------------------------------


@rule("reduce_window", cost="conv")
def reduce_window(call: Call) -> RuleText:
    """Operands, then as many initial scalars; a split goes by windows, that is by the result's dims."""
    touched = _windowed(call, call.results[0])
    sizes = {factor_name(d): call.results[0][d] for d in touched}
    return same_dims(call, dict.fromkeys(touched, "permuted")), sizes


@rule("select_and_scatter", cost="conv")
def select_and_scatter(call: Call) -> str:
    """Operand, source and initial scalar: each window's chosen element gets what the source has for the window."""
    touched = _windowed(call, call.operands[1])
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    source = [f"w{d}" if d in touched else name for d, name in enumerate(names)]
    notes = {names[d]: "permuted" for d in touched} | {f"w{d}": "whole" for d in touched}
    return write([names, source, []], [names], notes)


def _windowed(call: Call, windows: Sequence[int]) -> list[int]:
    """Dims along which a window is more than the element in its place."""
    shape = call.operands[0]
    padding = call.attr("padding") or ((0, 0),) * len(shape)
    plain = [tuple(pair) == (0, 0) for pair in padding]
    for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        plain = [so_far and entry == 1 for so_far, entry in zip(plain, per_dim(call, name, 1))]
    return [d for d in range(len(shape)) if not plain[d] or windows[d] != shape[d]]


@dataclass
class _Table:
    """A rule built factor by factor, each with the dims it stands in: (tensor, dim), operands before results."""

    call: Call
    sizes: dict[str, int] = field(default_factory=dict)
    places: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, size: int, *places: tuple[int, int], words: str = "") -> None:
        name = factor_name(len(self.sizes))
        self.sizes[name] = size
        for place in places:
            self.places.setdefault(place, []).append(name)
        if words:
            self.notes[name] = words

    def rule(self, *transfers: str) -> OpShardingRule:
        """Bound by its own sizes: a window's factor need not fill the dims it stands in."""
        shapes = [*self.call.operands, *self.call.results]
        for t, shape in enumerate(shapes):
            for d, size in enumerate(shape):
                if (t, d) not in self.places:
                    self.add(size, (t, d), words="whole")
        tensors = [[self.dim(t, d) for d in range(len(shape))] for t, shape in enumerate(shapes)]
        count = len(self.call.operands)
        text = write(tensors[:count], tensors[count:], self.notes, transfers)
        return OpShardingRule.parse(f"{text} | {' '.join(f'{name}={size}' for name, size in self.sizes.items())}")

    def dim(self, tensor: int, dim: int) -> str:
        names = self.places[tensor, dim]
        return names[0] if len(names) == 1 else f"({' '.join(names)})"


@rule("convolution", cost="conv")
def convolution(call: Call) -> OpShardingRule:
    """Attribute ``dims`` such as ``"b01f,01io->b01f"``, and ``feature_group_count`` or ``batch_group_count``."""
    sides, _, out = call.attr("dims", "").partition("->")
    image, _, kernel = sides.partition(",")
    labels = (image, kernel, out)
    if [len(label) for label in labels] != [len(shape) for shape in (*call.operands, *call.results)]:
        raise RuleError(f"dims {call.attr('dims')!r} do not fit the shapes")

    def place(tensor: int, letter: str) -> tuple[int, int]:
        return tensor, labels[tensor].index(letter)

    def size(tensor: int, letter: str) -> int:
        return (*call.operands, *call.results)[tensor][place(tensor, letter)[1]]

    table = _Table(call)
    groups, batch_groups = call.attr("feature_group_count", 1), call.attr("batch_group_count", 1)
    features = place(1, "o"), place(2, "f")
    if batch_groups > 1:
        table.add(batch_groups, place(0, "b"), *features)
    if groups > 1:
        table.add(groups, place(0, "f"), *features)
    _split(table, size(2, "b"), [place(0, "b")], [place(2, "b")])
    _split(table, size(1, "i"), [place(0, "f")], [place(1, "i")], "sum")
    _split(table, size(2, "f") // (groups * batch_groups), list(features), [])
    if by_xla(call):
        for letter in filter(str.isdigit, image):
            _windows(table, size(0, letter), size(1, letter), size(2, letter), [place(t, letter) for t in range(3)])
    return table.rule("P(sum), R -> P(sum)", "R, P(sum) -> P(sum)")


def _split(
    table: _Table, size: int, grouped: list[tuple[int, int]], own: list[tuple[int, int]], words: str = ""
) -> None:
    """A factor that may share dims with a group: of size 1 it stands only in dims of its own."""
    places = [place for place in grouped if size > 1 or place not in table.places] + own
    if places:
        table.add(size, *places, words=words)


def _windows(table: _Table, image: int, window: int, count: int, places: list[tuple[int, int]]) -> None:
    """An image dim is split by windows (their count) or inside them; the greater of the two comes first."""
    at_image, at_kernel, at_result = places
    by_count = (count, at_result, "permuted")
    by_window = (window, at_kernel, "sum")
    rest = image
    for size, other, words in (by_count, by_window) if count >= window else (by_window, by_count):
        fits = min(rest, size)
        if fits > 1:
            table.add(fits, at_image, other, words=words)
            rest //= fits


# -- dimension numbers ----------------------------------------------------------------------------------


@rule("stablehlo.gather", cost="gather")
def gather(call: Call) -> OpShardingRule:
    """StableHLO's gather with its dimension numbers and ``slice_sizes`` as attributes.

    A dim from which single elements are taken is looked up: XLA lets each device look among its own and adds up.
    """
    operand, index = call.operands
    result = call.results[0]
    looked_up = "sum" if by_xla(call) else "whole"
    slices = per_dim(call, "slice_sizes", 1)
    offset_dims, collapsed = _dims(call, "offset_dims"), _dims(call, "collapsed_slice_dims")
    pairs = dict(zip(_dims(call, "start_indices_batching_dims"), _dims(call, "operand_batching_dims")))
    table = _Table(call)
    points = [d for d in range(len(index)) if d != call.attr("index_vector_dim", 0)]
    for d, r in zip(points, (r for r in range(len(result)) if r not in offset_dims)):
        also = [(0, pairs[d])] if d in pairs else []
        table.add(index[d], *also, (1, d), (2, r))
    window = [d for d in range(len(operand)) if d not in collapsed and d not in pairs.values()]
    for d, r in zip(window, offset_dims):
        if slices[d] == operand[d]:
            table.add(operand[d], (0, d), (2, r))
        elif slices[d] == 1:
            table.add(operand[d], (0, d), words=looked_up)
        else:
            table.add(operand[d], (0, d), (2, r), words="whole blocked")
    for d in collapsed:
        table.add(operand[d], (0, d), words=looked_up if operand[d] > 1 else "whole")
    return table.rule("P(any), R -> P(any)")


@rule("stablehlo.scatter", cost="gather")
def scatter(call: Call) -> OpShardingRule:
    """StableHLO's scatter, of several inputs at once, with its dimension numbers as attributes.

    XLA lets each device write what falls to it, and adds up what devices write from different parts of the index.
    A dim that is written in full may be indexed all the same: XLA drops a window that does not start at 0, StableHLO
    cuts it, and then what is written there comes from another shard.
    """
    count = len(call.results)
    operand, index, update = call.operands[0], call.operands[count], call.operands[count + 1]
    at_operand = [*range(count), *range(len(call.operands), len(call.operands) + count)]
    at_update = range(count + 1, 2 * count + 1)
    window_dims, inserted = _dims(call, "update_window_dims"), _dims(call, "inserted_window_dims")
    pairs = dict(zip(_dims(call, "scatter_indices_batching_dims"), _dims(call, "input_batching_dims")))
    point, written = ("sum", "") if by_xla(call) else ("whole", "whole")
    shifted = () if by_xla(call) else _dims(call, "scatter_dims_to_operand_dims")
    table = _Table(call)
    points = [d for d in range(len(index)) if d != call.attr("index_vector_dim", 0)]
    for d, u in zip(points, (u for u in range(len(update)) if u not in window_dims)):
        also = [(t, pairs[d]) for t in at_operand] if d in pairs else []
        table.add(index[d], *also, (count, d), *((t, u) for t in at_update), words="" if also else point)
    window = [d for d in range(len(operand)) if d not in inserted and d not in pairs.values()]
    for d, u in zip(window, window_dims):
        if update[u] == operand[d]:
            places = [*((t, d) for t in at_operand), *((t, u) for t in at_update)]
            table.add(operand[d], *places, words="whole" if d in shifted else "")
            continue
        table.add(operand[d], *((t, d) for t in at_operand), words=written if update[u] == 1 else "whole")
        table.add(update[u], *((t, u) for t in at_update), words="whole")
    for d in inserted:
        table.add(operand[d], *((t, d) for t in at_operand), words=written)
    return table.rule()


def _dims(call: Call, name: str) -> tuple[int, ...]:
    return tuple(call.attr(name, ()))


@rule("dynamic_slice", flow=Flow.FORWARD)
def dynamic_slice(call: Call) -> str:
    """Operand and a start for each dim; who has the slice is not known beforehand."""
    shape, result = call.operands[0], call.results[0]
    cut = [d for d in range(len(shape)) if shape[d] != result[d]]
    starts = ", R" * len(shape)
    return same_dims(call, dict.fromkeys(cut, "whole blocked"), [f"P(any){starts} -> P(any)"])


@rule("dynamic_update_slice", flow=Flow.FORWARD)
def dynamic_update_slice(call: Call) -> str:
    """Operand, update and a start for each dim; XLA lets each device write what falls to it."""
    shape, update = call.operands[:2]
    names = [factor_name(d) for d in range(len(shape))]
    cut = [d for d in range(len(shape)) if shape[d] != update[d]]
    notes = {} if by_xla(call) else {names[d]: "whole" for d in cut}
    part = [f"u{d}" if d in cut else name for d, name in enumerate(names)]
    notes |= {f"u{d}": "whole" for d in cut}
    starts: list[list[str]] = [[] for _ in names]
    pending = f"P(any), P(any){', R' * len(shape)} -> P(any)"
    return write([names, part, *starts], [names], notes, [pending])


# -- the rest -------------------------------------------------------------------------------------------


@rule("bitcast_convert", cost="view")
def bitcast_convert(call: Call) -> str:
    """Between types of different width the wider element becomes a last dim of narrower ones."""
    before, after = len(call.operands[0]), len(call.results[0])
    if abs(before - after) > 1:
        raise RuleError(f"elements cannot be recast from {before} to {after} dims")
    names = [factor_name(d) for d in range(max(before, after))]
    notes = {} if before == after else {names[-1]: "whole" if before > after else "new whole"}
    return write([names[:before]], [names[:after]], notes)


@rule("reverse")
def reverse(call: Call) -> str:
    """Attribute ``dimensions``: those that are turned round."""
    return same_dims(call, dict.fromkeys(dims_of(call, "dimensions"), "permuted"), ["P(any) -> P(any)"])


@rule("batch_norm_inference", cost="pointwise")
def batch_norm_inference(call: Call) -> str:
    """Operand, then scale, offset, mean and variance of each feature (``feature_index``)."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    return write([names, *[[names[dim_of(call, "feature_index")]]] * 4], [names])


@rule("rng_bit_generator", random=True)
def rng_bit_generator(call: Call) -> str:
    """State -> new state and bits.  Whole: a part of the numbers is not what a smaller call would draw."""
    state = [factor_name(d) for d in range(len(call.operands[0]))]
    bits = [f"n{d}" for d in range(len(call.results[1]))]
    return write([state], [state, bits], dict.fromkeys(state, "whole blocked") | dict.fromkeys(bits, "new whole"))


@rule("rng", random=True)
def rng(call: Call) -> str:
    """Two parameters of the distribution and a shape -> numbers; whole as those above."""
    numbers = [f"n{d}" for d in range(len(call.results[0]))]
    return write([[], [], ["shape"]], [numbers], {"shape": "whole", **dict.fromkeys(numbers, "new whole")})


# -- collectives that a program holds already -----------------------------------------------------------

for _op in ("all_reduce", "collective_permute", "collective_broadcast"):
    rule(f"stablehlo.{_op}", lambda call: same_dims(call, {}))
rule("stablehlo.all_gather", lambda call: _exchanged(call, "all_gather_dim"))
rule("stablehlo.all_to_all", lambda call: _exchanged(call, "split_dimension", "concat_dimension"))
rule("stablehlo.reduce_scatter", lambda call: _exchanged(call, "scatter_dimension"))


def _exchanged(call: Call, *attrs: str) -> str:
    """Dims whose size or contents change: before and after have nothing in common."""
    dims = {dim_of(call, name) for name in attrs}
    before = [factor_name(d) for d in range(len(call.operands[0]))]
    after = [f"x{d}" if d in dims else name for d, name in enumerate(before)]
    notes = {before[d]: "whole" for d in sorted(dims)} | {f"x{d}": "new whole" for d in sorted(dims)}
    return write([before] * len(call.operands), [after] * len(call.results), notes)
