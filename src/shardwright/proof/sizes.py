"""Which sizes an op holds on to, and which are all the same to it.

Along most dims an op treats every place alike: elements pass one by one, or are summed.  There a proof at a small size
is a proof at any.  Where places are counted (a slice, a shift, a concatenation, a sort) the size has to stay what it
is.  What is alike is written down here for the ops whose meaning this room has, and is not taken from the rule book,
whose word is on trial; an op that is known by its rule alone is some function that treats the places along a factor
alike, so there the rule says which sizes make up a dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod
from typing import Any

from ..errors import ShardwrightError
from ..ir.graph import TensorType
from ..rules.registry import find, parts
from ..spec.op_record import slots_of
from ..spec.sharding import Shape
from .fields import arithmetic, contract, moving, pointwise

SIZES = frozenset({"shape", "size", "sizes", "normalized_shape", "new_shape", "input_sizes", "num_weights"})
"""Attributes that name sizes of dims: they change along with them."""
LEAST = 5
"""Smaller numbers in attributes are dims, counts and exponents rather than sizes."""

Operands = Sequence[Any]
"""Types of a call's operands, None for an absent one, a list for a list."""


@dataclass
class Sizes:
    """What is known of the sizes in some calls."""

    kept: set[int] = field(default_factory=set)
    made_of: dict[int, Shape] = field(default_factory=dict)
    """Sizes that are the product of others, outermost first."""
    looked_up: set[int] = field(default_factory=set)
    """Sizes of dims that an index points into."""

    def keep(self, sizes: Iterable[int]) -> None:
        self.kept.update(sizes)

    def product(self, size: int, of: Shape) -> None:
        """A dim of this size is cut into dims of those, or made of them."""
        of = tuple(part for part in of if part != 1)
        if len(of) < 2:
            return
        if self.made_of.setdefault(size, of) != of:  # seen in two ways
            self.keep((size, *of, *self.made_of[size]))

    def atoms(self, size: int) -> Shape:
        """What a size is made of in the end, outermost first."""
        of = self.made_of.get(size)
        return (size,) if of is None else tuple(atom for part in of for atom in self.atoms(part))

    def settle(self) -> bool:
        """What is made of sizes that stay, stays; and what stays has parts that do.  Whether that was news."""
        before = len(self.kept)
        known = -1
        while known != len(self.kept):
            known = len(self.kept)
            for size, of in self.made_of.items():
                if size in self.kept:
                    self.keep(of)
                elif self.kept.issuperset(of):
                    self.keep([size])
        return len(self.kept) > before

    def call(self, op: str, attrs: Mapping[str, Any], operands: Operands, results: Sequence[TensorType]) -> None:
        """Add what one call of an op holds on to."""
        call = _Call.of(op, attrs, operands, results)
        try:
            call.look(self, call)
        except (ShardwrightError, LookupError, TypeError, ValueError, AttributeError):
            _all(self, call)  # nothing is known of how it goes about its dims

    def numbers(self, attrs: Iterable[tuple[str, Any]], shapes: Iterable[Shape]) -> None:
        """Keep sizes that stand in an attribute, or of which a number in one is made: n, 1 / n, 1 / sqrt(n)."""
        found = {n for name, value in attrs if name not in SIZES for n in _numbers(value)}
        if not found:
            return
        for shape in shapes:
            dims = [size for size in shape if size > 1]
            for count in range(1, len(dims) + 1):
                for some in combinations(dims, count):
                    if prod(some) in found:
                        self.keep(some)


@dataclass
class _Call:
    op: str
    attrs: Mapping[str, Any]
    operands: Operands
    flat: list[TensorType]
    results: list[TensorType]

    @staticmethod
    def of(op: str, attrs: Mapping[str, Any], operands: Operands, results: Sequence[TensorType]) -> _Call:
        """In the words of the vocabulary that has a meaning."""
        flat = [t for o in operands if o is not None for t in (o if isinstance(o, list | tuple) else [o])]
        record = None if op in BY_NAME else find(op)
        if record is not None and record.meaning == "same" and record.same_as is not None:
            name, said = record.same_as(attrs, flat[0].rank if flat else 0, results[0].rank)
            return _Call.of(name, said if flat else {**attrs, **said}, operands, results)
        return _Call(op, attrs, operands, flat, list(results))

    @property
    def look(self) -> Look:
        """Who knows what it holds on to."""
        found = BY_NAME.get(self.op)
        if found is not None:
            return found
        record = find(self.op)
        if record is None or (record.meaning is None and record.random):
            return _opaque
        meaning = record.meaning or "by rule"
        return BY_MEANING.get(meaning, _all) if isinstance(meaning, str) else _meant(meaning)

    @property
    def rank(self) -> int:
        return self.flat[0].rank

    def along(self, dims: Iterable[int]) -> set[int]:
        """The sizes of all tensors along these dims."""
        wanted = list(dims)
        return {type.shape[d] for type in (*self.flat, *self.results) for d in wanted if d < type.rank}


def _numbers(value: Any) -> list[int]:
    """The sizes that a number may be made of."""
    if isinstance(value, tuple | list):
        return [n for item in value for n in _numbers(item)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    near = [abs(value), *((1 / abs(value), value**-2) if value and isinstance(value, float) else ())]
    return [round(n) for n in near if LEAST <= n < 1e15 and abs(n - round(n)) <= 1e-6 * n]


Look = Callable[[Sizes, _Call], None]


def _nothing(sizes: Sizes, call: _Call) -> None:
    """Every place along every dim is treated alike."""


def _opaque(sizes: Sizes, call: _Call) -> None:
    """Some function of all operands in full: right on whole tensors of any size, or of none."""


def _all(sizes: Sizes, call: _Call) -> None:
    for type in (*call.flat, *call.results):
        sizes.keep(type.shape)


def _axis(name: str) -> Look:
    """Places count along one dim, or along several; along all if none is named."""

    def look(sizes: Sizes, call: _Call) -> None:
        axis = call.attrs.get(name)
        if axis is None:
            return _all(sizes, call)
        dims = [axis] if isinstance(axis, int) else axis
        return sizes.keep(call.along(d % max(1, call.rank) for d in dims))  # of a 0-d tensor PyTorch takes dim 0

    return look


def _stack(sizes: Sizes, call: _Call) -> None:
    """The new dim, which is one of the result, has an operand in each place."""
    (made,) = call.results
    sizes.keep([made.shape[call.attrs.get("dim", 0) % made.rank]])


def _reshape(sizes: Sizes, call: _Call) -> None:
    """Dims that become one, or one that becomes several; what is more mixed stays."""
    before, after = call.flat[0].shape, call.results[0].shape
    for left, right in _groups(before, after):
        wide = [[before[d] for d in left if before[d] != 1], [after[d] for d in right if after[d] != 1]]
        if len(wide[0]) == 1:
            sizes.product(wide[0][0], tuple(wide[1]))
        elif len(wide[1]) == 1:
            sizes.product(wide[1][0], tuple(wide[0]))
        else:
            sizes.keep((*wide[0], *wide[1]))


def _groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of dims that hold the same elements before and after a reshape, as short as can be."""
    i = j = 0
    while i < len(before) or j < len(after):
        left, right = [*range(len(before))[i : i + 1]], [*range(len(after))[j : j + 1]]
        while (ours := prod(before[d] for d in left)) != (theirs := prod(after[d] for d in right)):
            if ours < theirs and i + len(left) < len(before):
                left.append(i + len(left))
            elif ours > theirs and j + len(right) < len(after):
                right.append(j + len(right))
            else:
                raise ValueError("other sizes")
        i, j = i + len(left), j + len(right)
        yield left, right


def bystanders(op: str, attrs: Mapping[str, Any], operand: TensorType, result: TensorType) -> list[tuple[int, int]]:
    """Dims of a reshape that pass as they are, but have the size of one that is taken apart or put together."""
    call = _Call.of(op, attrs, [operand], [result])
    if call.look is not _reshape or 0 in operand.shape:
        return []
    groups = list(_groups(operand.shape, result.shape))
    mixed = {
        size
        for left, right in groups
        if len(left) + len(right) > 2
        for size in (*(operand.shape[d] for d in left), *(result.shape[d] for d in right))
    }
    alone = [(left[0], right[0]) for left, right in groups if len(left) == len(right) == 1]
    return [(d, e) for d, e in alone if operand.shape[d] in mixed and operand.shape[d] > 1]


def _slice(sizes: Sizes, call: _Call) -> None:
    for d, cut in enumerate(moving.window(_as_op_call(call), call.rank)):
        size = call.flat[0].shape[d]
        if cut.indices(size) != (0, size, 1):
            sizes.keep(call.along([d]))


def _as_op_call(call: _Call) -> pointwise.OpCall:
    return pointwise.OpCall(call.op, call.attrs, call.results)


def _pad(sizes: Sizes, call: _Call) -> None:
    said = [call.attrs.get(name) or (0,) * call.rank for name in ("low", "high", "interior")]
    sizes.keep(call.along(d for d, amounts in enumerate(zip(*said)) if any(amounts)))


def _constant_pad(sizes: Sizes, call: _Call) -> None:
    sizes.keep(call.along(range(call.rank - len(call.attrs["pad"]) // 2, call.rank)))


def _diagonal(sizes: Sizes, call: _Call) -> None:
    sizes.keep(call.flat[0].shape[d] for d in moving.diagonal_dims(call.attrs))
    sizes.keep(call.results[0].shape[-1:])


def _triangle(sizes: Sizes, call: _Call) -> None:
    """A square beside its diagonal looks the same at any size; further away, places count."""
    rows, columns = call.flat[0].shape[-2:]
    if rows != columns or abs(call.attrs.get("k", 0)) > 1:
        sizes.keep((rows, columns))


def _take(sizes: Sizes, call: _Call) -> None:
    """An index is any number modulo the size, whatever that is."""
    if call.attrs.get("axis") is None:
        return _all(sizes, call)
    return sizes.looked_up.update(call.flat[0].shape)


def _take_grad(sizes: Sizes, call: _Call) -> None:
    sizes.looked_up.update(call.results[0].shape)


def _take_along(name: str) -> Look:
    """Along the other dims a shorter index cuts."""

    def look(sizes: Sizes, call: _Call) -> None:
        table, index = call.flat[0].shape, call.flat[1].shape
        axis = call.attrs[name] % max(len(table), 1)
        sizes.looked_up.update(table)
        sizes.keep(n for d, pair in enumerate(zip(table, index)) if d != axis and pair[0] != pair[1] for n in pair)

    return look


def _scatter(sizes: Sizes, call: _Call) -> None:
    sizes.keep(call.along([call.attrs["axis"]]))
    sizes.keep(call.flat[1].shape)


def _parts(sizes: Sizes, call: _Call) -> None:
    """What its parts hold on to."""
    frozen = tuple(sorted(call.attrs.items()))
    operands = tuple(tuple(o) if isinstance(o, list) else o for o in call.operands)
    graph = parts(call.op, frozen, operands, tuple(call.results))
    if graph is None:
        return _opaque(sizes, call)
    for node in graph.nodes:
        given = [
            [graph.type(v) for v in o] if isinstance(o, tuple) else None if o is None else graph.type(o)
            for o in node.operands
        ]
        sizes.call(node.op, dict(node.attrs), given, graph.types(node.results))
    return None


class _Pointwise:
    """An `Arithmetic` that has nothing but what goes element by element, and computes nothing."""

    def _made(self, *operands: Any) -> object:
        return self

    add = subtract = multiply = divide = negative = maximum = minimum = where = apply = rising = _made


def _meant(meaning: Callable[..., Any]) -> Look:
    """A meaning that its author gave: if it gets by with what goes element by element, places are all alike to it."""

    def look(sizes: Sizes, call: _Call) -> None:
        probe = _Pointwise()
        meaning(probe, *(probe for _ in call.flat), **call.attrs)

    return look


def _attention(sizes: Sizes, call: _Call) -> None:
    """Where queries begin is one operand more: a place is compared with places, and counted in nothing."""
    count = 7 if len(call.results) > 2 else 4
    operands = list(call.operands[:count])
    flat = [type for type in operands if type is not None]
    _by_rule(sizes, replace(call, operands=operands, flat=flat))


def _by_rule(sizes: Sizes, call: _Call) -> None:
    """The rule says which dims are made of several factors."""
    record = find(call.op)
    assert record is not None
    slots = slots_of([0 if isinstance(o, TensorType) else o for o in call.operands])
    shapes = [type.shape for type in call.flat]
    rule = record.bind(shapes, [type.shape for type in call.results], dict(call.attrs), slots)
    for shape, mapped in zip((*shapes, *(type.shape for type in call.results)), rule.tensors):
        for size, dim in zip(shape, mapped):
            if prod(rule.sizes[f] for f in dim) == size:
                sizes.product(size, tuple(rule.sizes[f] for f in dim))
            elif size != 1:
                sizes.keep((size, *(rule.sizes[f] for f in dim)))


_ANY_PLACE = (
    *pointwise.HANDLERS, *contract.HANDLERS, *arithmetic.NAMES, "transpose", "broadcast_to", "broadcast_in_dim",
    "full", "core.offset", "random.uniform", "random.normal",
)  # fmt: skip
BY_NAME: dict[str, Look] = {
    **dict.fromkeys(_ANY_PLACE, _nothing),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims", "flatten"), _reshape),
    **dict.fromkeys(
        ("concatenate", "flip", "roll", "cumsum", "cumprod", "sort", "argsort", "argmax", "argmin"), _axis("axis")
    ),
    **dict.fromkeys(("slice", "update_slice"), _slice),
    "pad": _pad,
    "diagonal": _diagonal,
    "reverse": _axis("dimensions"),
    **dict.fromkeys(("tril", "triu", "core.triangle"), _triangle),
    **dict.fromkeys(("arange", "core.arange"), _all),
    **dict.fromkeys(("take", "core.take"), _take),
    **dict.fromkeys(("take_along_axis", "core.take_along"), _take_along("axis")),
    "core.take_grad": _take_grad,
    "scatter": _scatter,
}
BY_MEANING: dict[str, Look] = {
    **dict.fromkeys((*pointwise.MEANINGS, "like", "cast", "random", "contract"), _nothing),
    "take_grad": _take_grad,
    "gather": _take_along("dim"),
    **dict.fromkeys(("select", "split"), _axis("dim")),
    "stack": _stack,
    "constant pad": _constant_pad,
    "parts": _parts,
    "attention": _attention,
    "by rule": _by_rule,
}
