"""The conditions that a statement may set: on where ``d`` lies, on sizes, on arguments, dtypes and ranks.

An atom is true or false in a case (a call and a dim ``d``).  None negates over an open set: of words it says which
ones, of numbers on which side of a threshold they lie.  To teach discovery a new condition, add one function here.
"""

from __future__ import annotations

import math
import operator as operator_module
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from ..statement import FRAME, Expr
from .cases import Situation, rank_code


@dataclass(frozen=True)
class Atom:
    """A condition on a case, what it costs to say, and why it is needed."""

    expr: Expr
    holds: Callable[[Situation, int], bool]
    cost: int
    why: str


def dim_atoms(
    names: Sequence[str], reference: int, lists: frozenset[str], optional: Collection[str] = ()
) -> Iterator[Atom]:
    """Conditions on where d lies.  `lists`: arguments that may name several dims; `optional`: that may be None."""
    for name in names:
        yield from _in_list(name) if name in lists else _against(name, name in optional)
    for back in (1, 2, 3):
        yield _before_last(back, reference)
        yield _at_last(back, reference)
    for place in (0, 1):
        yield _at_place(place, True)
        yield _at_place(place, False)
    yield Atom(Expr("d >= 2", "d >= 2"), lambda s, d: d >= 2, 3, "the first two dims are computed along")


def _in_list(name: str) -> Iterator[Atom]:
    uses = frozenset((name,))
    yield Atom(
        Expr(f"d not in {name}", f"d not in {name}", uses),
        lambda s, d: d not in s.dims[name],
        1,
        f"the dims in {name} are computed along; slices along the others are independent",
    )
    why = f"only along {name} do the results of the shards combine so"
    yield Atom(Expr(f"d in {name}", f"d in {name}", uses), lambda s, d: d in s.dims[name], 1, why)
    why = f"of several dims in {name} the result has another form"
    yield Atom(Expr(f"{name} is one dim", f"len({name}) == 1", uses), lambda s, d: len(s.dims[name]) == 1, 2, why)


def _against(name: str, optional: bool) -> Iterator[Atom]:
    uses = frozenset((name,))
    given = f"{name} is not None and " if optional else ""

    def atom(word: str, test: Callable[[int, int], bool], cost: int, why: str) -> Atom:
        def holds(s: Situation, d: int) -> bool:
            dim = s.one_dim(name)
            return dim is not None and test(d, dim)

        return Atom(Expr(f"d {word} {name}", f"{given}d {word} {name}", uses), holds, cost, why)

    yield atom("!=", operator_module.ne, 1, f"{name} is computed along; slices along other dims are independent")
    yield atom("==", operator_module.eq, 1, f"only along {name} do the results of the shards combine so")
    yield atom("<", operator_module.lt, 2, f"dims before {name} are independent")
    yield atom(">", operator_module.gt, 2, f"dims after {name} are independent")


def _before_last(back: int, reference: int) -> Atom:
    text = "d != last" if back == 1 else f"d < ndim-{back}"
    why = "the last dims are computed together; those before them are a batch"
    return Atom(
        Expr(text, f"d < {rank_code(reference)} - {back}"), lambda s, d: d < s.rank_of(reference) - back, 2, why
    )


def _at_last(back: int, reference: int) -> Atom:
    text = "d == last" if back == 1 else f"d == ndim-{back}"
    why = "this dim alone is combined so"
    return Atom(
        Expr(text, f"d == {rank_code(reference)} - {back}"), lambda s, d: d == s.rank_of(reference) - back, 2, why
    )


def _at_place(place: int, sense: bool) -> Atom:
    text = f"d {'==' if sense else '!='} {place}"
    why = "this dim alone is combined so" if sense else f"dim {place} is computed along"
    return Atom(Expr(text, text), lambda s, d: (d == place) is sense, 3, why)


def size_atoms(reference: int, tensors: int) -> Iterator[Atom]:
    """Conditions on sizes along d, dims aligned from the right as broadcasting does."""
    if reference == FRAME:
        if tensors > 1:
            yield _all_alike(tensors)
        return
    for other in range(tensors):
        if other != reference:
            yield from _sizes_against(other, reference)
    yield Atom(
        Expr("size along d != 1", f"shape[{reference}][d] != 1"),
        lambda s, d: s.shape[reference][d] != 1,
        3,
        "a dim of size 1 is broadcast",
    )
    yield Atom(
        Expr("the last dim does not have size 1", f"shape[{reference}][rank[{reference}] - 1] != 1"),
        lambda s, d: s.shape[reference][s.rank[reference] - 1] != 1,
        4,
        "of one element alone it does not compute the same",
    )


def _size_along(s: Situation, tensor: int, d: int, rank: int) -> int:
    """The size of a tensor along the dim that stands, from the right, where d stands in a tensor of this rank."""
    place = d - rank + s.rank[tensor]
    return s.shape[tensor][place] if 0 <= place < s.rank[tensor] else 1


def _all_alike(tensors: int) -> Atom:
    sizes = [
        f"(shape[{i}][d - max(rank) + rank[{i}]] if d - max(rank) + rank[{i}] >= 0 else 1)" for i in range(tensors)
    ]
    code = " and ".join(f"{size} == {sizes[0]}" for size in sizes[1:])

    def alike(s: Situation, d: int) -> bool:
        return len({_size_along(s, i, d, max(s.rank)) for i in range(tensors)}) == 1

    return Atom(Expr("all inputs have the same size along d", code), alike, 2, "a broadcast dim is not split")


def _sizes_against(other: int, reference: int) -> Iterator[Atom]:
    aligned = f"d - rank[{reference}] + rank[{other}]"
    there = f"shape[{other}][{aligned}]"

    def size(s: Situation, d: int) -> int:
        return _size_along(s, other, d, s.rank[reference])

    yield Atom(
        Expr(f"input {other} has the same size along d", f"{aligned} >= 0 and {there} == shape[{reference}][d]"),
        lambda s, d: d - s.rank[reference] + s.rank[other] >= 0 and size(s, d) == s.shape[reference][d],
        2,
        "a broadcast dim is not split",
    )
    yield Atom(
        Expr(f"input {other} is broadcast along d", f"({aligned} < 0 or {there} == 1)"),
        lambda s, d: size(s, d) == 1,
        2,
        "every shard needs the row that is broadcast",
    )


def extent_atoms(situations: Sequence[Situation], dim_names: Sequence[str], reference: int) -> Iterator[Atom]:
    """Conditions that compare the size along d with a whole number among the arguments: a window, a block."""
    if reference == FRAME:
        return
    for name in dict.fromkeys(name for s in situations for name in s.values if name not in (*dim_names, *RESERVED)):
        if any(_whole(s.values.get(name)) and s.values[name] > 1 for s in situations):
            yield from _against_extent(name, reference)
        if any(isinstance(s.values.get(name), (list, tuple)) for s in situations):
            yield from (_sizes_kept(name, reference, more) for more in (0, 1))
            yield _last_size_kept(name, reference)


def _against_extent(name: str, reference: int) -> Iterator[Atom]:
    uses = frozenset((name,))
    size = f"shape[{reference}][d]"

    def number(s: Situation) -> int:
        value = s.values.get(name)
        return value if _whole(value) else 0

    equal = Expr(f"size along d == {name}", f"{size} == {name}", uses)
    yield Atom(equal, lambda s, d: s.shape[reference][d] == number(s), 4, f"there is one window of {name}")
    divides = Expr(f"{name} divides the size along d", f"{name} > 0 and {size} % {name} == 0", uses)
    yield Atom(
        divides, lambda s, d: number(s) > 0 and s.shape[reference][d] % number(s) == 0, 4, f"whole blocks of {name}"
    )


def _sizes_kept(name: str, reference: int, more: int) -> Atom:
    """A list of sizes has the tensor's own in front: what lies there, row by row, is not regrouped.

    A multiple of the size along d is cut evenly wherever d is; a part of it may not be.
    """
    text = f"{name} keeps the sizes up to d" if more else f"{name} keeps the sizes before d, and a multiple along d"
    own = f"shape[{reference}]"
    along = f"{name}[d] == {own}[d]" if more else f"{name}[d] > 0 and {own}[d] > 0 and {name}[d] % {own}[d] == 0"
    code = f"len({name}) > d and {along} and tuple({name}[:d]) == tuple({own}[:d])"

    def holds(s: Situation, d: int) -> bool:
        sizes, own = s.values.get(name), s.shape[reference]
        if not isinstance(sizes, (list, tuple)) or len(sizes) <= d or tuple(sizes[:d]) != own[:d]:
            return False
        return bool(sizes[d] == own[d] if more else min(sizes[d], own[d]) > 0 and sizes[d] % own[d] == 0)

    return Atom(Expr(text, code, frozenset((name,))), holds, 3, "rows in front of a regrouped dim stay together")


def _last_size_kept(name: str, reference: int) -> Atom:
    own = f"shape[{reference}][rank[{reference}] - 1]"
    code = f"len({name}) > 0 and {name}[len({name}) - 1] == {own}"
    expr = Expr(f"{name} keeps the last size", code, frozenset((name,)))

    def holds(s: Situation, d: int) -> bool:
        sizes = s.values.get(name)
        return isinstance(sizes, (list, tuple)) and bool(sizes) and sizes[-1] == s.shape[reference][-1]

    return Atom(expr, holds, 3, "rows are regrouped, but not what lies in a row")


def value_atoms(
    situations: Sequence[Situation], dim_names: Sequence[str], named: Collection[Any] = ()
) -> Iterator[Atom]:
    """Conditions on arguments; what names dims has conditions of its own.  `named`: numbers that the operator's code
    or the call names, which thresholds may lie at."""
    spoken = (name for s in situations for name in s.values if name not in (*dim_names, *RESERVED))
    for name in dict.fromkeys(spoken):
        seen = list({repr(s.values.get(name)): s.values.get(name) for s in situations}.values())
        if len(seen) < 2:
            continue
        if any(dtype_named(v) for v in seen):
            yield from _asked_dtypes(
                name, [kind for v in seen if (kind := dtype_named(v))], any(v is None for v in seen)
            )
        if any(isinstance(v, (list, tuple)) for v in seen):
            yield from (_all_items(name, value) for value in (0, 1))
            yield _one_for_each_dim(name)
            continue
        flags = all(isinstance(v, bool) for v in seen)
        for value in seen[:12]:
            if isinstance(value, bool):
                yield _flag(name, value, alone=flags)
            else:
                yield from _equalities(name, value, named)
        numbers = [v for v in seen if _number(v)]
        given = f"{name} is not None and " if any(v is None for v in seen) else ""
        for end, word, test in ((math.inf, "<", operator_module.lt), (-math.inf, ">", operator_module.gt)):
            if end in numbers:
                yield _side(name, word, end, test, f"an infinite {name} leaves no finite parts", given)
        if any(math.isinf(v) for v in numbers):
            yield _finite(name, given)
        for threshold in (*THRESHOLDS, *(v for v in named if _number(v) and v not in THRESHOLDS)):
            if any(v > threshold for v in numbers) or any(v < threshold for v in numbers):
                yield from _sides(name, threshold, given)


RESERVED = ("d", "rank", "shape", "dtypes")
"""Names that expressions read of a call; an argument called so cannot be spoken of."""

THRESHOLDS = (0, 1, -1, 0.5, 2)
"""Where the behaviour of an argument that is a number changes, as a rule."""


def _sides(name: str, threshold: float, given: str) -> Iterator[Atom]:
    why = f"the sign of {name} decides on the order" if threshold == 0 else f"{threshold} is where {name} turns"
    tests: dict[str, Callable[[Any, Any], bool]] = {
        ">": operator_module.gt,
        "<": operator_module.lt,
        ">=": operator_module.ge,
        "<=": operator_module.le,
    }
    for word, test in tests.items():
        yield _side(name, word, threshold, test, why, given)


def _side(name: str, word: str, threshold: float, test: Callable[[Any, Any], bool], why: str, given: str) -> Atom:
    text = f"{name} {word} {threshold!r}"
    expr = Expr(text, f"{given}{name} {word} {_literal(threshold)}", frozenset((name,)))
    # At 0 a strict sign is what people say; elsewhere the wider claim comes first, and the attack narrows it.
    cost = 2 if threshold == 0 and len(word) == 1 else 3 if threshold == 0 or len(word) == 2 else 4
    return Atom(expr, lambda s, d: _number(s.values.get(name)) and test(s.values[name], threshold), cost, why)


def _finite(name: str, given: str) -> Atom:
    code = f'{given}float("-inf") < {name} < float("inf")'
    expr = Expr(f"{name} is finite", code, frozenset((name,)))

    def holds(s: Situation, d: int) -> bool:
        value = s.values.get(name)
        return _number(value) and math.isfinite(value)

    # It says less than any threshold does.
    return Atom(expr, holds, 2, f"an infinite {name} leaves no finite parts")


def _all_items(name: str, value: int) -> Atom:
    """A number, or every number of a list: strides of 1, no padding."""
    expr = Expr(f"every {name} == {value}", f"all(item == {value} for item in {name})", frozenset((name,)))

    def holds(s: Situation, d: int) -> bool:
        items = s.values.get(name)
        return isinstance(items, (list, tuple)) and all(item == value for item in items)

    return Atom(expr, holds, 3, f"with {name} of {value} neighbours do not meet")


def _one_for_each_dim(name: str) -> Atom:
    expr = Expr(f"{name} has one item for each dim", f"len({name}) == max(rank)", frozenset((name,)))

    def holds(s: Situation, d: int) -> bool:
        items = s.values.get(name)
        return isinstance(items, (list, tuple)) and len(items) == max(s.rank)

    return Atom(expr, holds, 2, f"a longer {name} adds dims")


def _flag(name: str, value: bool, alone: bool) -> Atom:
    """`alone`: it is a flag in every call, and never None."""
    text = name if value else f"not {name}"
    expr = Expr(text, text if alone else f"{name} is {value}", frozenset((name,)))
    return Atom(expr, lambda s, d: s.values.get(name) is value, 1, f"{name} changes the result")


def _equalities(name: str, value: Any, named: Collection[Any]) -> Iterator[Atom]:
    uses = frozenset((name,))
    if value is None:
        why = f"{name} changes the computation"
        none, given = Expr(f"{name} is None", f"{name} is None", uses), f"{name} is not None"
        yield Atom(none, lambda s, d: s.values.get(name) is None, 2, why)
        yield Atom(Expr(f"{name} is given", given, uses), lambda s, d: s.values.get(name) is not None, 2, why)
    elif isinstance(value, (str, int)) or value in SPECIAL_FLOATS or (_number(value) and value in named):
        # A number that a sample happened to have explains nothing.
        expr = Expr(f"{name} == {value!r}", f"{name} == {_literal(value)}", uses)
        yield Atom(expr, lambda s, d: _equal(s.values.get(name), value), 3, f"{name} chooses the computation")


def _equal(a: Any, b: Any) -> bool:
    """Equal as Python's code has it, but a flag is no number."""
    return isinstance(a, bool) == isinstance(b, bool) and not isinstance(a, (list, tuple)) and bool(a == b)


SPECIAL_FLOATS = (0.0, 0.5, 1.0, -1.0, 2.0, float("inf"), float("-inf"))


def word_among(name: str, values: Sequence[Any]) -> Atom:
    """One of these words: what is not named is not spoken of."""
    shown = sorted(values, key=repr)
    text = f"{name} in ({', '.join(map(repr, shown))})"
    chosen = frozenset(shown)
    return Atom(
        Expr(text, text, frozenset((name,))),
        lambda s, d: isinstance(s.values.get(name), str) and s.values[name] in chosen,
        3,
        f"{name} chooses the computation",
    )


def words_of(situations: Sequence[Situation], dim_names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Of the arguments that are words, those seen."""
    found: dict[str, dict[str, None]] = {}
    for s in situations:
        for name, value in s.values.items():
            if isinstance(value, str) and name not in (*dim_names, *RESERVED):
                found.setdefault(name, {})[value] = None
    return {name: tuple(seen) for name, seen in found.items() if len(seen) > 2}


def _literal(value: str | int | float) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(value)


def _number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any) -> TypeGuard[int]:
    return type(value) is int


KINDS_OF_DTYPE: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "whole": ("uint8", "int8", "int16", "int32", "int64"),
    "floating": ("float16", "bfloat16", "float32", "float64"),
    "complex": ("complex64", "complex128"),
}
"""The kinds of numbers; every dtype is of one of them, so that what is not of one is of another."""


def dtype_atoms(situations: Sequence[Situation], named: Collection[str] = ()) -> Iterator[Atom]:
    """Conditions on dtypes: kinds of numbers, and those dtypes that the operator's code names."""
    count = min(len(s.dtype) for s in situations)
    for tensor in range(count):
        seen = {s.dtype[tensor] for s in situations}
        if len(seen) < 2:
            continue
        for kinds in (*((kind,) for kind in KINDS_OF_DTYPE), *_SAID):
            inside = {dtype for kind in kinds for dtype in KINDS_OF_DTYPE[kind]}
            if seen & inside and seen - inside:
                yield _dtype(tensor, kinds, inside)
        for dtype in sorted(seen & set(named)):
            yield _this_dtype(tensor, dtype, True)
            yield _this_dtype(tensor, dtype, False)


def dtype_named(value: Any) -> str:
    """The dtype that an argument asks for; empty if it is none."""
    name = str(value).removeprefix("torch.") if type(value).__name__ == "dtype" else ""
    return name if any(name in names for names in KINDS_OF_DTYPE.values()) else ""


def _asked_dtypes(name: str, seen: Sequence[str], optional: bool) -> Iterator[Atom]:
    """Conditions on an argument that asks for a dtype: which kind of numbers, and whether it keeps those of input 0."""
    uses = frozenset((name,))
    for kind, names in KINDS_OF_DTYPE.items():
        if set(seen) & set(names):
            expr = Expr(f"{name} is {kind}", f"str({name}) in {_torch_names(names)}", uses)
            yield Atom(expr, lambda s, d, names=names: dtype_named(s.values.get(name)) in names, 3, WHY_DTYPE)  # type: ignore[misc]
    order = list(KINDS_OF_DTYPE)

    def keeps(s: Situation, d: int) -> bool:
        asked = dtype_named(s.values.get(name))
        return s.values.get(name) is None or (asked != "" and _kind_of(s.dtype[0]) <= _kind_of(asked))

    def _kind_of(dtype: str) -> int:
        return next((place for place, kind in enumerate(order) if dtype in KINDS_OF_DTYPE[kind]), len(order))

    cases = []
    for place, kind in enumerate(order):
        below = [n for lower in order[: place + 1] for n in KINDS_OF_DTYPE[lower]]
        asked = _torch_names(KINDS_OF_DTYPE[kind])
        cases.append(f"str({name}) in {asked} and dtypes[0] in {_names(below)}")
    code = " or ".join([*([f"{name} is None"] if optional else []), *cases])
    text = f"{name} keeps the numbers of input 0"
    yield Atom(Expr(text, f"({code})", uses), keeps, 2, WHY_DTYPE)


WHY_DTYPE = "numbers of this kind are computed so"


def _names(dtypes: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{dtype}"' for dtype in dtypes) + ",)"


def _torch_names(dtypes: Sequence[str]) -> str:
    return _names([f"torch.{dtype}" for dtype in dtypes])


_SAID = {
    ("whole", "floating"): "real numbers",
    ("bool", "whole"): "whole numbers or bool",
    ("floating", "complex"): "floating or complex",
    ("bool", "whole", "floating"): "not complex",
    ("whole", "floating", "complex"): "not bool",
}


def _dtype(tensor: int, kinds: tuple[str, ...], inside: Collection[str]) -> Atom:
    text = f"input {tensor} is {_SAID.get(kinds, kinds[0])}"
    names = ", ".join(f'"{dtype}"' for kind in kinds for dtype in KINDS_OF_DTYPE[kind])
    code = f"dtypes[{tensor}] in ({names},)"
    why = "numbers of this kind are computed so"
    return Atom(Expr(text, code), lambda s, d: s.dtype[tensor] in inside, 2 + (len(kinds) > 1), why)


def _this_dtype(tensor: int, dtype: str, sense: bool) -> Atom:
    word = "==" if sense else "!="
    expr = Expr(f"dtype of input {tensor} {word} {dtype}", f'dtypes[{tensor}] {word} "{dtype}"')
    why = "the operator's code names this dtype"
    return Atom(expr, lambda s, d: (s.dtype[tensor] == dtype) is sense, 4, why)


RANK_COST = 5
"""Of a condition on a rank: more than any other's."""


def rank_atoms(situations: Sequence[Situation]) -> Iterator[Atom]:
    """Conditions on ranks: last resort, for they explain little."""
    for tensor in range(min(len(s.rank) for s in situations)):
        seen = sorted({s.rank[tensor] for s in situations})
        for rank in seen if len(seen) > 1 else ():
            yield _rank(tensor, rank, "==", operator_module.eq)
            if rank > seen[0]:
                yield _rank(tensor, rank, ">=", operator_module.ge)
            if rank < seen[-1]:
                yield _rank(tensor, rank, "<=", operator_module.le)


def _rank(tensor: int, rank: int, word: str, test: Callable[[int, int], bool]) -> Atom:
    expr = Expr(f"ndim of input {tensor} {word} {rank}", f"rank[{tensor}] {word} {rank}")
    return Atom(expr, lambda s, d: test(s.rank[tensor], rank), RANK_COST, "the rank chooses the computation")
