"""`reduced`: a case at smaller sizes, with the same ops and collectives.

Along most dims a program treats every place alike, so that what holds at a small size holds at a large one.  Sizes of
parameters become smaller; then every program is followed from its inputs, and what it says of sizes (views, slices,
parts of buffers) is said again of the new ones.  A dim that is taken apart keeps its outer parts (heads), and the
innermost takes the rest; a slice stays the same share of its dim; a buffer that is made of parts side by side is cut
between them.  An index into a table points to the same share of it.  Where that does not work out the case stays as it
is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ...errors import ShardwrightError
from ...frontends.ranks import ARGUMENT, COMMUNICATION, CONSTANT, PARAMETER, Given, Left, Placed, Traced
from ...ir.graph import Graph, Node, TensorType, Value
from .rounds import Case

SMALLEST = 16
"""Sizes below stay."""
INNER = 4
"""What is left of the size of a head."""
_VIEWS = ("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias")
_SPLITS = ("aten.split.Tensor", "aten.split_with_sizes")
_MADE = (
    "aten.full",
    "aten.zeros",
    "aten.ones",
    "aten.new_zeros",
    "aten.new_full",
    "aten.new_ones",
    "foreign.unwritten",
)

Shape = tuple[int, ...]
Segments = tuple[tuple[int, int], ...]
"""What a dim is made of, side by side: old and new sizes."""


class Stays(Exception):
    """A size cannot be found again."""


def reduced(case: Case) -> tuple[Case, tuple[tuple[int, int], ...]]:
    """The case at smaller sizes, and which of the parameters' became which; itself if none can be smaller."""
    try:
        sizes = _chosen(case)
        if not sizes:
            return case, ()
        tables = set(_indices(case.single.graph).values())
        single = _Replay(case, case.single, sizes, tables).traced()
        ranks = [_Replay(case, traced, sizes, tables).traced() for traced in case.ranks]
    except (Stays, ShardwrightError):
        return case, ()
    return replace(case, single=single, ranks=ranks), tuple(sorted(sizes.items()))


# -- which sizes ------------------------------------------------------------------------------------------


def _parameter_sizes(traced: Traced) -> set[int]:
    shapes = [traced.graph.type(v).shape for g, v in zip(traced.given, traced.graph.inputs) if g.kind == PARAMETER]
    return {size for shape in shapes for size in shape}


def _chosen(case: Case) -> dict[int, int]:
    """New sizes for the parameters of the single program."""
    single = case.single
    kept = set(_kept(single))
    wanted = sorted(size for size in _parameter_sizes(single) - kept if size >= SMALLEST)
    splits = _splits(single.graph)
    ranks = len(case.ranks)
    made: dict[int, int] = {}
    taken = {size for size in kept if size < 4096}
    heads: set[int] = set()
    for size in wanted:
        outer = splits.get(size, ())[:-1]
        inner = size // prod(outer, start=1)
        if outer and inner > INNER and not inner % INNER:
            made[size] = prod(outer, start=1) * INNER
            heads.add(inner)
            taken.add(made[size])
    for size in wanted:
        if size in made:
            continue
        whole = next((head for head in heads if head % size == 0 and INNER % (head // size) == 0), None)
        if whole is not None:  # a head, or the half of one that turns
            made[size] = INNER // (whole // size)
            continue
        smaller = next((n for n in range(2 * ranks, size, ranks) if n not in taken), size)
        if smaller < size:
            made[size] = smaller
            taken.add(smaller)
    return made


def _kept(traced: Traced) -> Iterator[int]:
    """Sizes of arguments, and those that are counted in."""
    graph = traced.graph
    for given, value in zip(traced.given, graph.inputs):
        if given.kind == ARGUMENT:
            yield from graph.type(value).shape
    for node in graph.nodes:
        reads = [graph.type(v).shape for v in node.inputs]
        name = node.op.removeprefix("aten.")
        if name.startswith(("gather", "scatter", "index_select", "index_add", "topk", "sort", "cumsum")):
            dim: Any = dict(node.attrs).get("dim", -1)
            if reads[0]:
                yield reads[0][dim]


_TABLES = {"aten.embedding": (0, 1), "aten.nll_loss_forward": (0, 1), "aten.nll_loss_backward": (1, 2)}
"""Ops that look up: which operand, along its first or last dim, and by which index."""


def _indices(graph: Graph) -> dict[int, int]:
    """Values that point into a dim, and its size: indices, and whole numbers that these are made of."""
    makers = {value: node for node in graph.nodes for value in node.results}
    found: dict[int, int] = {}
    for node in graph.nodes:
        if node.op not in _TABLES:
            continue
        table, index = (node.operands[n] for n in _TABLES[node.op])
        if not isinstance(table, int) or not isinstance(index, int):
            continue
        size = graph.type(table).shape[0 if node.op == "aten.embedding" else -1]
        waiting = [index]
        while waiting:
            value = waiting.pop()
            if graph.type(value).dtype[:1] != "i":
                continue
            if found.setdefault(value, size) >= size:
                found[value] = max(found[value], size)
            maker = makers.get(value)
            if maker is not None and not maker.op.startswith(COMMUNICATION):
                waiting += [v for v in maker.inputs if v not in found]
    return found


def _splits(graph: Graph) -> dict[int, Shape]:
    """Sizes that a view takes apart, and into what."""
    found: dict[int, Shape] = {}
    for node in graph.nodes:
        if node.op in _VIEWS:
            for left, right in _groups(graph.type(node.inputs[0]).shape, graph.type(node.results[0]).shape):
                if len(left) == 1 and len(right) > 1:
                    found.setdefault(left[0], tuple(right))
    return found


def _groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of sizes with equal products, as short as can be, without ones."""
    left, right = [n for n in before if n != 1], [n for n in after if n != 1]
    if 0 in left or 0 in right:
        raise Stays("nothing there")
    i = j = 0
    while i < len(left) and j < len(right):
        ours, theirs = [left[i]], [right[j]]
        i, j = i + 1, j + 1
        while prod(ours) != prod(theirs):
            if prod(ours) < prod(theirs):
                ours.append(left[i])
                i += 1
            else:
                theirs.append(right[j])
                j += 1
        yield ours, theirs


# -- following a program ------------------------------------------------------------------------------------


@dataclass
class _Dims:
    """What became of a value's shape."""

    new: list[int]
    segments: dict[int, Segments] = field(default_factory=dict)
    """Of dims that are made of parts."""


class _Replay:
    """One program, from its inputs on."""

    def __init__(self, case: Case, traced: Traced, sizes: dict[int, int], tables: set[int]) -> None:
        self.case, self.traced_, self.sizes, self.tables = case, traced, sizes, tables
        self.graph = traced.graph
        self.dims: dict[int, _Dims] = {}
        self.indices = _indices(self.graph)
        self.here: dict[int, int] = {}
        """Sizes of this program's inputs: where nothing else says what a size becomes."""

    def traced(self) -> Traced:
        given = [self._given(item, value) for item, value in zip(self.traced_.given, self.graph.inputs)]
        nodes = []
        for node in self.graph.nodes:
            attrs = tuple(sorted(self._follow(node).items()))
            nodes.append(node if attrs == node.attrs else replace(node, attrs=attrs))
        values = tuple(self._value(value) for value in self.graph.values)
        small = replace(self.graph, values=values, nodes=tuple(nodes))
        left = [self._left(item) for item in self.traced_.left]
        return replace(self.traced_, graph=small, given=given, left=left)

    def _value(self, value: Value) -> Value:
        shape = tuple(self.dims[value.id].new)
        return value if shape == value.type.shape else replace(value, type=TensorType(shape, value.type.dtype))

    def old(self, value: int) -> Shape:
        return self.graph.type(value).shape

    # -- inputs and outputs -----------------------------------------------------------------------------------

    def _given(self, given: Given, value: int) -> Given:
        old = self.old(value)
        if given.kind in (ARGUMENT, CONSTANT):
            self.dims[value] = _Dims(list(old))
            table = self._table(value)
            if table is None or given.numbers is None:
                return given
            numbers = np.asarray(given.numbers)
            inside = (numbers >= 0) & (numbers < table[0])
            return replace(given, numbers=np.where(inside, numbers * table[1] // table[0], numbers))
        placed = None if given.placed is None else self._placed(given.placed)
        new = placed.local_shape if placed is not None else self._whole(old)
        self.dims[value] = _Dims(list(new))
        for a, b in zip(old, new):
            self.here.setdefault(a, b)
        return replace(given, placed=placed, numbers=None)

    def _table(self, value: int) -> tuple[int, int] | None:
        """The size of the whole table that a value points into, and what that becomes."""
        local = self.indices.get(value)
        whole = (
            None
            if local is None
            else next((n for n in sorted(self.sizes) if n % local == 0 and n in self.tables), None)
        )
        return None if whole is None else (whole, self.sizes[whole])

    def _left(self, left: Left) -> Left:
        return replace(left, placed=None if left.placed is None else self._placed(left.placed), numbers=None)

    def _whole(self, shape: Shape) -> Shape:
        return tuple(self.sizes.get(size, size) for size in shape)

    def _placed(self, placed: Placed) -> Placed:
        if placed.flat is not None:
            raise Stays("a tensor is placed element by element")
        new = self._whole(placed.shape)
        places = tuple(_share(rows, a, b) for rows, a, b in zip(placed.places, placed.shape, new))
        return replace(placed, shape=new, places=places)

    # -- nodes ------------------------------------------------------------------------------------------------

    def _follow(self, node: Node) -> dict[str, Any]:
        attrs: dict[str, Any] = dict(node.attrs)
        attrs.update(self._offsets(node, attrs))
        if node.op.startswith(COMMUNICATION):
            self._communication(node)
        elif node.op in _VIEWS:
            attrs["size"] = tuple(self._view(node))
        elif node.op == "aten.expand":
            attrs["size"] = tuple(self._expand(node))
        elif node.op in _MADE:
            new = self._said(self.old(node.results[0]))
            self._set(node, [new])
            if "size" in attrs:
                attrs["size"] = tuple(new)
        elif node.op == "aten.slice.Tensor":
            attrs.update(self._slice(node, attrs))
        elif node.op == "aten.slice_backward":
            attrs.update(self._slice_backward(node, attrs))
        elif node.op in _SPLITS:
            attrs.update(self._split(node, attrs))
        elif node.op == "aten.cat":
            self._cat(node, attrs["dim"])
        elif node.op == "aten.select.int":
            dims = self.dims[node.inputs[0]]
            d = attrs["dim"]
            if dims.new[d] != self.old(node.inputs[0])[d]:
                raise Stays("one place of a dim is looked at")
            self._set(node, [[n for i, n in enumerate(dims.new) if i != d]])
        elif node.op in ("aten.as_strided", "aten.as_strided_scatter"):
            if any(self.dims[v].new != list(self.old(v)) for v in node.inputs):
                raise Stays("memory is read in strides")
            self._set(node, [list(self.old(v)) for v in node.results])
        else:
            self._other(node, attrs)
        return attrs

    def _offsets(self, node: Node, attrs: dict[str, Any]) -> dict[str, Any]:
        """Places in a table that are compared with, or subtracted: the same share of it."""
        other = attrs.get("other")
        if type(other) is not int or other <= 0 or not node.inputs:
            return {"num_weights": self.sizes.get(n, self.here.get(n, n))} if (n := attrs.get("num_weights")) else {}
        table = self._table(node.inputs[0])
        if table is None or other * table[1] % table[0]:
            return {}
        return {"other": other * table[1] // table[0]}

    def _set(self, node: Node, shapes: Sequence[Sequence[int]], segments: Sequence[dict[int, Segments]] = ()) -> None:
        for r, (value, shape) in enumerate(zip(node.results, shapes, strict=True)):
            self.dims[value] = _Dims(list(shape), segments[r] if r < len(segments) else {})

    def _said(self, shape: Shape) -> list[int]:
        """A shape that the program says: sizes as the inputs have them."""
        return [self.here.get(size, self.sizes.get(size, size)) for size in shape]

    def _communication(self, node: Node) -> None:
        """What comes back is like what is given."""
        given = list(node.inputs)
        for r, value in enumerate(node.results):
            like = [v for v in given if self.old(v) == self.old(value)]
            if not like:
                raise Stays("what comes back is not like what is given")
            dims = self.dims[like[min(r, len(like) - 1)]]
            self.dims[value] = _Dims(list(dims.new), dict(dims.segments))

    def _view(self, node: Node) -> list[int]:
        source, value = node.inputs[0], node.results[0]
        before, after, dims = self.old(source), self.old(value), self.dims[source]
        if before == after:
            self.dims[value] = dims
            return dims.new
        wide = [d for d in range(len(before)) if before[d] != 1]
        made: list[int] = []
        segments: dict[int, Segments] = {}
        out = [d for d in range(len(after)) if after[d] != 1]
        i = j = 0
        for left, right in _groups(before, after):
            ours, theirs = wide[i : i + len(left)], out[j : j + len(right)]
            i, j = i + len(left), j + len(right)
            new, found = self._regrouped(dims, before, ours, right)
            made += new
            segments.update({theirs[k]: segs for k, segs in found.items()})
        shape = [1] * len(after)
        for d, size in zip(out, made, strict=True):
            shape[d] = size
        self._set(node, [shape], [segments])
        return shape

    def _regrouped(
        self, dims: _Dims, before: Shape, ours: list[int], right: list[int]
    ) -> tuple[list[int], dict[int, Segments]]:
        """The new sizes of a run of dims that become others."""
        known = [dims.new[d] for d in ours]
        if len(ours) == len(right) == 1:
            segments = dims.segments.get(ours[0])
            return known, {} if segments is None else {0: segments}
        if len(right) == 1:
            inner = dims.segments.get(ours[-1])
            outer = prod(known[:-1])
            if inner is not None and known[:-1] == [before[d] for d in ours[:-1]]:
                return [prod(known)], {0: inner * outer}
            return [prod(known)], {}
        if known == [before[d] for d in ours]:
            return right, {}
        said = self._said(tuple(right))
        if prod(said) == prod(known) and ours[0] not in dims.segments:
            return said, {}
        if len(ours) > 1:
            raise Stays("dims are mixed")
        total, lead = known[0], right[:-1]
        segments = dims.segments.get(ours[0])
        if segments is not None:
            count = prod(lead)
            period = segments[: len(segments) // count]
            if len(segments) % count or period * count != segments:
                raise Stays("parts are mixed")
            return [*lead, total // count], {len(right) - 1: period}
        if total % prod(lead):
            raise Stays(f"{total} is not made of {lead}")
        return [*lead, total // prod(lead)], {}

    def _expand(self, node: Node) -> list[int]:
        source, value = node.inputs[0], node.results[0]
        before, after, dims = self.old(source), self.old(value), self.dims[source]
        lead = len(after) - len(before)
        said = self._said(after)
        shape = [
            dims.new[d - lead] if d >= lead and before[d - lead] == after[d] else said[d] for d in range(len(after))
        ]
        self._set(node, [shape])
        return shape

    def _slice(self, node: Node, attrs: dict[str, Any]) -> dict[str, Any]:
        source, d = node.inputs[0], attrs["dim"]
        old, dims = self.old(source)[d], self.dims[source]
        shape = list(dims.new)
        if attrs.get("step", 1) != 1:
            if shape[d] != old:
                raise Stays("a slice in steps")
            self._set(node, [[shape[i] if i != d else self.old(node.results[0])[d] for i in range(len(shape))]])
            return {}
        cuts = dims.segments.get(d, ((old, shape[d]),))
        start, end = (_cut(cuts, attrs[name]) for name in ("start", "end"))
        shape[d] = end - start
        self._set(node, [shape])
        return {"start": start, "end": end}

    def _slice_backward(self, node: Node, attrs: dict[str, Any]) -> dict[str, Any]:
        """The dim that was cut is as many times the part as it was."""
        source, d = node.inputs[0], attrs["dim"]
        part, whole = self.old(source)[d], attrs["input_sizes"][d]
        shape = list(self.dims[source].new)
        if shape[d] != part and (attrs.get("step", 1) != 1 or shape[d] * whole % part):
            raise Stays("a slice that is no share of its dim")
        new = shape[d] * whole // part if shape[d] != part else whole
        places = {name: min(attrs[name], whole) * new // whole for name in ("start", "end")}
        shape[d] = new
        self._set(node, [shape])
        return {**places, "input_sizes": tuple(shape)}

    def _split(self, node: Node, attrs: dict[str, Any]) -> dict[str, Any]:
        source, d = node.inputs[0], attrs["dim"]
        old, dims = self.old(source), self.dims[source]
        cuts = dims.segments.get(d, ((old[d], dims.new[d]),))
        shapes, found, at = [], [], 0
        for value in node.results:
            size = self.old(value)[d]
            shape = list(dims.new)
            shape[d] = _cut(cuts, at + size) - _cut(cuts, at)
            found.append({d: inner} if len(inner := _between(cuts, at, at + size)) > 1 else {})
            shapes.append(shape)
            at += size
        self._set(node, shapes, found)
        if "split_sizes" in attrs:
            return {"split_sizes": tuple(shape[d] for shape in shapes)}
        return {"split_size": shapes[0][d]}

    def _cat(self, node: Node, dim: int) -> None:
        parts = [v for v in node.inputs if len(self.old(v)) == len(self.old(node.results[0]))]
        rank = len(self.old(node.results[0]))
        d = dim % rank
        shape = list(self.dims[parts[0]].new)
        shape[d] = sum(self.dims[v].new[d] for v in parts)
        segments: list[tuple[int, int]] = []
        for v in parts:
            dims = self.dims[v]
            segments += dims.segments.get(d, ((self.old(v)[d], dims.new[d]),))
        self._set(node, [shape], [{d: tuple(segments)}])

    def _other(self, node: Node, attrs: dict[str, Any]) -> None:
        """Any other op says its shape by itself."""
        changed = any(self.dims[v].new != list(self.old(v)) for v in node.inputs)
        if not changed:
            self._set(node, [list(self.old(v)) for v in node.results])
            return
        operands = [
            None if o is None else tuple(self._type(v) for v in o) if isinstance(o, tuple) else self._type(o)
            for o in node.operands
        ]
        shapes = self.case.kernels.shapes(node.op, attrs, operands)
        if len(shapes) != len(node.results):
            raise Stays(f"{node.op} has another number of results")
        self._set(node, shapes)

    def _type(self, value: int) -> TensorType:
        return TensorType(tuple(self.dims[value].new), self.graph.type(value).dtype)


def _share(rows: Any, old: int, new: int) -> Any:
    """A run of places, at the same share of the dim."""
    if old == new or not len(rows):
        return rows
    start, stop = int(rows[0]), int(rows[-1]) + 1
    if len(rows) != stop - start or start * new % old or stop * new % old:
        raise Stays("places are not in one piece")
    return np.arange(start * new // old, stop * new // old)


def _cut(segments: Segments, place: int) -> int:
    """Where a place of a dim is now."""
    at = new = 0
    for old, size in segments:
        if place <= at:
            break
        inside = min(place - at, old)
        if inside * size % old:
            raise Stays("a cut within a part")
        at, new = at + inside, new + inside * size // old
    return new


def _between(segments: Segments, start: int, stop: int) -> Segments:
    """The parts from one place to another, as far as they are whole."""
    found, at = [], 0
    for old, size in segments:
        if at >= start and at + old <= stop:
            found.append((old, size))
        at += old
    return tuple(found) if sum(old for old, _ in found) == stop - start else ()
