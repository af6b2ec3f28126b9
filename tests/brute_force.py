"""An independent check of stated sharding rules, by brute force: chunk, run, put together, compare in float64.

It takes a statement as plain attributes (rules with `inputs`, `outputs`, `conditions`, `reference`, `grade`) and calls
of the operator, and imports nothing that discovery is made of: its own fresh calls, its own way to cut and to split
pending tensors, its own reading of conditions.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import random
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WORLDS = (2, 3, 4, 5)
MOST_ELEMENTS = 3000
POSITIONS = {"index", "indices", "pivots", "LU_pivots", "target", "offsets", "sorter", "repeats"}
WORDS = (
    "sum", "mean", "none", "prod", "amax", "amin", "reflect", "constant", "replicate", "circular", "trunc",
    "floor", "linear", "nearest", "lower", "higher", "midpoint", "valid", "same", "fro", "nuc", "tanh",
    "ortho", "forward", "backward", "ij", "xy", "L", "U", "left", "right", "bilinear", "nearest-exact", "area",
)  # fmt: skip


@dataclass
class Call:
    """Arguments by name, tensors among them; lists of tensors are lists."""

    arguments: dict[str, Any]

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        found = []
        for name, value in self.arguments.items():
            if isinstance(value, torch.Tensor):
                found.append((name, value))
            elif isinstance(value, (list, tuple)):
                found += [(name, item) for item in value if isinstance(item, torch.Tensor)]
        return found

    def having(self, tensors: Sequence[torch.Tensor]) -> Call:
        left = iter(tensors)
        made: dict[str, Any] = {}
        for name, value in self.arguments.items():
            if isinstance(value, torch.Tensor):
                made[name] = next(left)
            elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
                made[name] = [next(left) if isinstance(item, torch.Tensor) else item for item in value]
            else:
                made[name] = value
        return Call(made)


class Subject:
    """The operator as it is called: by keyword, or in the order of its arguments."""

    def __init__(self, function: Any, positional: Sequence[str], keyword: Sequence[str], mutates: Sequence[str] = ()):
        self.function, self.positional, self.keyword, self.mutates = function, positional, keyword, mutates

    def __call__(self, call: Call) -> list[torch.Tensor]:
        given = {
            n: v.clone() if isinstance(v, torch.Tensor) and n in self.mutates else v for n, v in call.arguments.items()
        }
        args = []
        for name in self.positional:
            if name not in given:
                break
            args.append(given[name])
        named = {n: v for n, v in given.items() if n not in self.positional[: len(args)]}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            result = self.function(*args, **named)
        if self.mutates:
            return [given[name] for name in self.mutates if isinstance(given.get(name), torch.Tensor)]
        return [item for item in _flat(result) if isinstance(item, torch.Tensor)]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


class _Overheard(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copied = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        self.calls.append((func, tuple(copied), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def calls_of_overload(function: Any, args: Sequence[Any], kwargs: dict[str, Any], overload: str) -> list[Call]:
    """The calls of an ATen overload that a call of a function makes."""
    with warnings.catch_warnings(), torch.no_grad(), _Overheard() as heard:
        warnings.simplefilter("ignore")
        function(*args, **kwargs)
    found = []
    for func, given, named in heard.calls:
        if str(func) == overload:
            names = [a.name for a in func._schema.arguments]
            found.append(Call({**dict(zip(names, given)), **named}))
    return found


# ---- fresh calls -------------------------------------------------------------------------------------------------


def fresh(subject: Subject, base: Call, rng: random.Random) -> Call | None:
    """The call changed in up to three ways, if it runs."""
    for _ in range(6):
        call = base
        for _ in range(rng.randint(1, 3)):
            call = rng.choice((_sizes, _sizes, _sizes, _dims, _values, _dtype, _arguments, _arguments))(call, rng)
        call = _values(call, rng)
        if sum(t.numel() for _, t in call.tensors()) > MOST_ELEMENTS:
            continue
        try:
            if _tells(subject, call):
                return call
        except Exception:  # whatever torch raises: this is no legal call
            continue
    return None


def _tells(subject: Subject, call: Call) -> bool:
    """Whether the call gives tensors, and the same ones again where their memory held other numbers before."""
    first = subject(call)
    for result in first:
        litter = torch.full_like(result, 113)
        del litter
    return bool(first) and all(close(a, b) for a, b in zip(subject(call), first))


def _drawn_like(name: str, like: torch.Tensor, shape: Sequence[int], rng: random.Random, beside: bool) -> torch.Tensor:
    made = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if like.dtype == torch.bool:
        return torch.rand(tuple(shape), generator=made) < rng.choice((0.5, 0.2, 0.8))
    if not like.dtype.is_floating_point and not like.dtype.is_complex:
        low, high = (int(like.min()), int(like.max())) if like.numel() else (0, 0)
        if not (beside or name in POSITIONS):
            low, high = rng.choice(((-4, 5), (0, 9), (low, high)))
        whole = torch.randint(low, high + 1, tuple(shape), generator=made).to(like.dtype)
        return whole.sort(-1).values if name == "boundaries" and whole.ndim else whole
    style = rng.randrange(6)
    numbers = torch.randn(tuple(shape), generator=made, dtype=torch.float64)
    if style == 1:
        numbers = numbers.round() * rng.choice((1, 2))
    elif style == 2:
        numbers = numbers * 10.0 ** rng.randint(-2, 2)
    elif style == 3 or (like.numel() and not like.dtype.is_complex and bool((like >= 0).all()) and rng.random() < 0.7):
        numbers = numbers.abs() + 0.05
        if like.numel() and not like.dtype.is_complex and bool((like <= 1).all()):
            numbers = numbers / (numbers + 1)
    elif style == 4:
        numbers = numbers + rng.choice((-6, -3, -1, 1, 3, 6, 20))
    if like.dtype.is_complex:
        numbers = torch.complex(numbers, torch.randn(tuple(shape), generator=made, dtype=torch.float64))
    if ("sorted" in name or name == "boundaries") and not like.dtype.is_complex:
        numbers = numbers.sort(-1).values if numbers.ndim else numbers
    return numbers.to(like.dtype)


def _remade(call: Call, shapes: Sequence[Sequence[int]], rng: random.Random) -> Call:
    beside = any(t.dtype.is_floating_point or t.dtype.is_complex for _, t in call.tensors())
    return call.having([_drawn_like(n, t, s, rng, beside) for (n, t), s in zip(call.tensors(), shapes)])


def _values(call: Call, rng: random.Random) -> Call:
    return _remade(call, [t.shape for _, t in call.tensors()], rng)


def _sizes(call: Call, rng: random.Random) -> Call:
    shapes = [list(t.shape) for _, t in call.tensors()]
    places = [(i, d) for i, shape in enumerate(shapes) for d in range(len(shape))]
    if not places:
        return call
    i, d = rng.choice(places)
    old, new = shapes[i][d], rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 2 * shapes[i][d]))
    if rng.random() < 0.3:
        shapes[i][d] = new
        return _remade(call, shapes, rng)
    changed = Call(
        {
            n: type(v)(new if x == old else x for x in v)
            if isinstance(v, list) and rng.random() < 0.5 and all(type(x) is int for x in v)
            else v
            for n, v in call.arguments.items()
        }
    )
    return _remade(changed, [[new if size == old else size for size in shape] for shape in shapes], rng)


def _dims(call: Call, rng: random.Random) -> Call:
    shapes = [list(t.shape) for _, t in call.tensors()]
    size, how = rng.choice((1, 2, 3, 4, 6)), rng.randrange(4)
    some = [rng.randrange(len(shapes))] if rng.random() < 0.3 else range(len(shapes))
    for i in some:
        if how < 2 and len(shapes[i]) < 5:
            shapes[i] = [size, *shapes[i]] if how == 0 else [*shapes[i], size]
        elif how >= 2 and shapes[i]:
            shapes[i] = shapes[i][1:]
    return _remade(call, shapes, rng)


def _dtype(call: Call, rng: random.Random) -> Call:
    tensors = call.tensors()
    beside = any(t.dtype.is_floating_point or t.dtype.is_complex for _, t in tensors)
    chosen = rng.choice((torch.int64, torch.bool, torch.complex128, torch.float64))
    free = [
        t.dtype.is_floating_point or t.dtype.is_complex or (not beside and t.dtype != torch.bool and n not in POSITIONS)
        for n, t in tensors
    ]
    return call.having([_cast(t, chosen) if go else t for (_, t), go in zip(tensors, free)])


def _cast(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    t = t.real if t.dtype.is_complex and not dtype.is_complex else t
    return (t.round() if t.dtype.is_floating_point and not (dtype.is_floating_point or dtype.is_complex) else t).to(
        dtype
    )


def _arguments(call: Call, rng: random.Random) -> Call:
    plain = [n for n, v in call.arguments.items() if isinstance(v, (bool, int, float, str, list, tuple)) and
             not any(isinstance(x, torch.Tensor) for x in _flat(v))]  # fmt: skip
    if not plain:
        return call
    name = rng.choice(plain)
    value = call.arguments[name]
    other: Any = value
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int):
        other = rng.choice((value + 1, value - 1, 0, 1, 2, -1, -2, 3))
    elif isinstance(value, float):
        other = rng.choice((-2.0, -1.0, -0.5, 0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, value + 0.1, math.inf))
    elif isinstance(value, str):
        other = rng.choice(WORDS)
    elif value and all(type(x) is int for x in value):
        other = [*value]
        other[rng.randrange(len(other))] = rng.choice((0, 1, 2, 3, -1, value[0] + 1))
    return Call({**call.arguments, name: other})


# ---- a rule's region ---------------------------------------------------------------------------------------------

_BINARY: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
                            ast.FloorDiv: operator.floordiv}  # fmt: skip
_COMPARE: dict[type, Any] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_CALLS = {"max": max, "min": min, "sum": sum, "len": len, "all": all, "any": any, "float": float, "str": str,
          "tuple": tuple}  # fmt: skip


def worth(code: str, names: dict[str, Any]) -> Any:
    """An expression's value; only what conditions are made of is read."""

    def of(node: Any, known: dict[str, Any]) -> Any:
        kind = type(node)
        if kind is ast.Constant:
            return node.value
        if kind is ast.Name:
            return known[node.id]
        if kind is ast.BinOp:
            return _BINARY[type(node.op)](of(node.left, known), of(node.right, known))
        if kind is ast.UnaryOp:
            value = of(node.operand, known)
            return not value if isinstance(node.op, ast.Not) else -value
        if kind is ast.BoolOp:
            if isinstance(node.op, ast.And):
                return all(of(part, known) for part in node.values)
            return any(of(part, known) for part in node.values)
        if kind is ast.Compare:
            left = of(node.left, known)
            for op, right_node in zip(node.ops, node.comparators):
                right = of(right_node, known)
                if not _COMPARE[type(op)](left, right):
                    return False
                left = right
            return True
        if kind is ast.IfExp:
            return of(node.body if of(node.test, known) else node.orelse, known)
        if kind is ast.Subscript:
            return of(node.value, known)[of(node.slice, known)]
        if kind is ast.Slice:
            return slice(of(node.upper, known))
        if kind in (ast.Tuple, ast.List):
            return tuple(of(item, known) for item in node.elts)
        if kind is ast.GeneratorExp:
            loop = node.generators[0]
            return [of(node.elt, {**known, loop.target.id: item}) for item in of(loop.iter, known)]
        if kind is ast.Call and isinstance(node.func, ast.Attribute):
            return of(node.func.value, known).index(*(of(a, known) for a in node.args))
        return _CALLS[node.func.id](*(of(a, known) for a in node.args))

    return of(ast.parse(code, mode="eval").body, names)


Place = tuple[str, Any]
"""("R", None), ("S", dim) or ("P", kind)."""
REPLICATED: Place = ("R", None)


def _codes(rule: Any) -> list[str]:
    return [c.code for c in rule.conditions] + [
        t.dim.code for t in (*rule.inputs, *rule.outputs) if hasattr(t, "broadcasts")
    ]


def instances(
    statement: Any, rule: Any, call: Call, defaults: dict[str, Any]
) -> Iterator[tuple[list[Place], list[Place]]]:
    """The placements that a rule means for a call, for each dim that its conditions admit."""
    tensors = call.tensors()
    if len(tensors) != len(rule.inputs):
        return
    rank = [t.ndim for _, t in tensors]
    shape = [tuple(t.shape) for _, t in tensors]
    names: dict[str, Any] = {**defaults, **{n: v for n, v in call.arguments.items() if not isinstance(v, torch.Tensor)}}
    room = max(max(rank, default=0) + statement.inserts, 1)
    codes = " ; ".join(_codes(rule))
    for name in statement.dim_parameters:
        value = names.get(name)
        many = re.search(rf"\bin {name}\b|\b{name}\.index|\blen\({name}\)", codes)
        if isinstance(value, int):
            names[name] = (value % room,) if many else value % room
        elif value is None and not many:
            names[name] = None
        else:
            names[name] = tuple(v % room for v in value) if value else tuple(range(room))
    names.update(rank=rank, shape=shape, dtypes=[str(t.dtype).removeprefix("torch.") for _, t in tensors])
    over = [None] if rule.reference is None else range(max(rank) if rule.reference < 0 else rank[rule.reference])
    for d in over:
        known = names if d is None else {**names, "d": d}
        try:
            if not all(worth(condition.code, known) for condition in rule.conditions):
                continue
            inputs = [_place(term, known, s) for term, s in zip(rule.inputs, shape)]
            outputs = [_place(term, known, None) for term in rule.outputs]
        except (IndexError, TypeError):  # it speaks of another kind of value
            continue
        if any(p is None for p in (*inputs, *outputs)) or all(p == REPLICATED for p in inputs):
            continue
        yield [p for p in inputs if p is not None], [p for p in outputs if p is not None]


def _place(term: Any, names: dict[str, Any], shape: tuple[int, ...] | None) -> Place | None:
    if not hasattr(term, "broadcasts"):
        return (term.kind, term.dim if term.kind == "S" else term.reduce or None)
    dim = worth(term.dim.code, names)
    if term.broadcasts and shape is not None and (dim < 0 or shape[dim] == 1):
        return REPLICATED
    return ("S", dim) if dim >= 0 and (shape is None or dim < len(shape)) else None


# ---- one row of one call --------------------------------------------------------------------------------------------


def chunk_sizes(size: int, world: int) -> list[int]:
    step = -(-size // world)
    return [max(0, min(step, size - step * rank)) for rank in range(world)]


def cut(t: torch.Tensor, place: Place, world: int, rng: random.Random) -> list[torch.Tensor]:
    """What each device holds."""
    kind, what = place
    if kind == "R":
        return [t] * world
    if kind == "S":
        # Copies: an operator that reads strides could see the whole tensor behind a view of it.
        return [
            part.clone(memory_format=torch.contiguous_format)
            for part in t.split(chunk_sizes(t.shape[what], world), dim=what)
        ]
    made = torch.Generator().manual_seed(rng.randrange(1 << 30))
    whole = not (t.dtype.is_floating_point or t.dtype.is_complex)
    # Parts may lie far from what they make up: 2 to the power of one may overflow where the whole does not.
    reach = rng.choice((0.01, 1.0, 100.0, 3000.0))

    def noise() -> torch.Tensor:
        found = torch.rand(t.shape, generator=made, dtype=torch.float64) * reach
        return (found.ceil() if whole else (found * 65536).round() / 65536).to(t.dtype)

    owner = torch.randint(0, world, t.shape, generator=made)
    if what in ("sum", "avg"):
        parts = [noise() - noise() for _ in range(world - 1)]
        parts.append(t - sum(parts) if parts else t)
        parts = parts if what == "sum" else [part * world for part in parts]
    elif what == "prod":
        parts, rest = [], t
        for _ in range(world - 1):
            sign = 1 - 2 * torch.randint(0, 2, t.shape, generator=made)
            power = 2.0 ** torch.randint(-2, 3, t.shape, generator=made)
            part = (sign * (torch.where(rest % 2 == 0, 2, 1) if whole else power)).to(t.dtype)
            rest = rest // part if whole else rest / part
            parts.append(part)
        parts.append(rest)
    elif t.dtype == torch.bool:
        other = torch.rand(t.shape, generator=made) < 0.5
        parts = [t, *[(t & other) if what == "max" else (t | other)] * (world - 1)]
    else:
        parts = [t, *(t - noise() if what == "max" else t + noise() for _ in range(world - 1))]
    stacked = torch.stack([part.to(t.dtype) for part in parts])
    return [stacked.gather(0, ((owner + rank) % world).unsqueeze(0))[0] for rank in range(world)]


def whole_of(parts: Sequence[torch.Tensor], place: Place, want: torch.Tensor) -> torch.Tensor | None:
    kind, what = place
    if any(part.ndim != want.ndim for part in parts):
        return None
    if kind == "S":
        if what >= want.ndim or [p.shape[what] for p in parts] != chunk_sizes(want.shape[what], len(parts)):
            return None
        try:
            return torch.cat(list(parts), what)
        except RuntimeError:
            return None
    if any(part.shape != want.shape for part in parts):
        return None
    if kind == "R":
        return parts[0] if all(close(part, parts[0]) for part in parts) else None
    stacked = torch.stack(list(parts))
    if what in ("sum", "prod", "avg"):
        found = stacked.prod(0) if what == "prod" else stacked.sum(0)
        return found / len(parts) if what == "avg" else found
    return (stacked.amax(0) if what == "max" else stacked.amin(0)) if want.numel() else want


def close(got: torch.Tensor, want: torch.Tensor, scale: float = 0.0) -> bool:
    if got.shape != want.shape:
        return False
    wide = torch.complex128 if want.dtype.is_complex or got.dtype.is_complex else torch.float64
    a, b = got.to(wide), want.to(wide)
    narrow = (torch.float32, torch.float16, torch.bfloat16, torch.complex64)
    exact = 1e-4 if want.dtype in narrow else 1e-9
    finite = b.abs()[torch.isfinite(b.abs())]
    size = max(scale if math.isfinite(scale) else 0.0, float(finite.max()) if finite.numel() else 0.0)
    near = (a - b).abs() <= exact * b.abs() + exact * 1e-2 * size
    return bool((near | (a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def grade_of(sizes: Sequence[int], world: int) -> int:
    """0 if all are cut evenly, 1 if not, 2 if some shard is empty."""
    return max((0 if s % world == 0 else 2 if 0 in chunk_sizes(s, world) else 1 for s in sizes), default=0)


GRADES = {"even": 0, "uneven": 1, "empty": 2}


def possible(call: Call, inputs: Sequence[Place], want: Sequence[torch.Tensor], outputs: Sequence[Place]) -> bool:
    """Whether tensors of these dtypes can be pending so: parts of a position are no positions."""
    tensors = call.tensors()
    beside = any(t.dtype.is_floating_point or t.dtype.is_complex for _, t in tensors)
    for (name, t), (kind, what) in zip(tensors, inputs):
        if kind == "P":
            integral = not (t.dtype.is_floating_point or t.dtype.is_complex)
            if integral and t.dtype != torch.bool and (beside or name in POSITIONS or what == "avg"):
                return False
            if t.dtype == torch.bool and (what not in ("max", "min") or name in ("condition", "mask")):
                return False
            if t.dtype.is_complex and what in ("max", "min"):
                return False
    for w, (kind, what) in zip(want, outputs):
        if kind == "P" and (
            (not w.dtype.is_floating_point and not w.dtype.is_complex and what == "avg")
            or (w.dtype.is_complex and what in ("max", "min"))
            or (w.dtype == torch.bool and what not in ("max", "min"))
        ):
            return False
    if any(kind == "P" for kind, _ in (*inputs, *outputs)):
        numbers = [t for _, t in tensors] + list(want)
        return all(bool(torch.isfinite(t).all()) for t in numbers)
    return True


def holds(
    subject: Subject, call: Call, inputs: Sequence[Place], outputs: Sequence[Place], world: int, rng: random.Random
) -> str:
    """Empty if local computation gives what the rule says; else what went wrong."""
    want = subject(call)
    if len(want) != len(outputs):
        return f"{len(want)} results"
    held = [cut(t, p, world, rng) for (_, t), p in zip(call.tensors(), inputs)]
    trouble = ""
    for sized in (None, *range(want[0].ndim)):
        found = []
        try:
            for rank in range(world):
                local = call.having([parts[rank] for parts in held])
                if sized is not None:
                    local = _told_local_shape(local, want[0].shape, sized, world, rank)
                    if local is None:
                        break
                found.append(subject(local))
        except Exception as error:  # whatever torch raises
            trouble = trouble or f"{type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
            continue
        if len(found) < world:
            break
        wrong = ""
        for place, w, parts in zip(outputs, want, zip(*found)):
            whole = whole_of(parts, place, w)
            sizes = [float(p.abs().to(torch.float64).max()) for p in parts if p.numel() and p.dtype != torch.bool]
            scale = max(sizes, default=0.0) if place[0] == "P" else 0.0
            if whole is None:
                wrong = wrong or "the parts do not fit"
            elif not close(whole, w, scale):
                wrong = wrong or "other numbers"
        if not wrong:
            return ""
        trouble = trouble or wrong
    return trouble


def _told_local_shape(call: Call, shape: Sequence[int], dim: int, world: int, rank: int) -> Call | None:
    for name, value in call.arguments.items():
        sized = isinstance(value, (list, tuple)) and len(value) == len(shape) and len(value) > 0
        if sized and all(type(v) is int and v in (-1, s) for v, s in zip(value, shape)):
            local = list(shape)
            local[dim] = chunk_sizes(shape[dim], world)[rank]
            return Call({**call.arguments, name: local})
    return None


@dataclass
class Verdict:
    """What a check of one statement found."""

    calls: int = 0
    rows: int = 0
    false: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    valid: int = 0
    covered: int = 0
    wide_valid: int = 0
    """Of calls without a dim of size 1, where rows hold because there is one element."""
    wide_covered: int = 0
    missed: list[str] = field(default_factory=list)


def check_statement(
    statement: Any, subject: Subject, bases: Sequence[Call], defaults: dict[str, Any], seed: str, wanted: int = 200,
    draws: int = 1500, complete: int = 4,
) -> Verdict:  # fmt: skip
    """Up to `wanted` fresh calls inside each rule's region; and whether rows that hold are covered by some rule."""
    rng = random.Random(f"{seed} {statement.operator.name}")
    verdict = Verdict()
    if not bases:
        return verdict
    pool: list[Call] = []
    for number in range(draws):
        start = rng.choice(pool) if pool and rng.random() < 0.3 else bases[number % len(bases)]
        call = fresh(subject, start, rng)
        if call is not None:
            pool.append(call)
        if number == 60 and not pool:
            break
    verdict.calls = len(pool)
    for rule in (*statement.rules, *statement.variants):
        inside = 0
        bad: list[str] = []
        trivial = all(not hasattr(t, "broadcasts") and t.kind == "R" for t in rule.inputs)
        for call in pool if not trivial else ():
            if inside >= wanted or len(bad) > 2:
                break
            rows = list(instances(statement, rule, call, defaults))
            inside += bool(rows)
            for inputs, outputs in rows:
                verdict.rows += 1
                trouble = _try(subject, call, inputs, outputs, GRADES[rule.grade], rng)
                if trouble:
                    bad.append(f"{rule} [{rule.grade}]: {trouble} on {_told(call)}, {inputs} -> {outputs}")
        verdict.false += bad[:1]
        if not inside and not trivial:
            verdict.untried.append(str(rule))
    # Where a tensor has no elements rows hold because there is nothing to compute.
    full = [c for c in pool if all(t.numel() for _, t in c.tensors())]
    small = [c for c in full if len(c.tensors()) <= 3 and sum(t.numel() for _, t in c.tensors()) > 3]
    for call in rng.sample(small, min(complete, len(small))):
        _completeness(statement, subject, call, defaults, verdict, rng)
    return verdict


def _try(
    subject: Subject, call: Call, inputs: Sequence[Place], outputs: Sequence[Place], grade: int, rng: random.Random
) -> str:
    try:
        want = subject(call)
    except Exception:
        return ""
    if len(want) != len(outputs) or not possible(call, inputs, want, outputs):
        return ""
    unbounded = any(isinstance(v, float) and math.isinf(v) for v in call.arguments.values())
    if unbounded and not all(bool(torch.isfinite(t).all()) for t in want):
        return ""  # times infinity: which elements are NaN depends on the order of computation
    cut = any(kind == "S" for kind, _ in (*inputs, *outputs))
    if cut and grade < GRADES["empty"] and not all(t.numel() for t in (*want, *(t for _, t in call.tensors()))):
        return ""  # shards of a tensor without elements are empty
    if any(k == "S" and d >= w.ndim for w, (k, d) in zip(want, outputs)):
        return "no such dim in the result"
    sizes = [t.shape[d] for (_, t), (k, d) in zip(call.tensors(), inputs) if k == "S"]
    sizes += [w.shape[d] for w, (k, d) in zip(want, outputs) if k == "S"]
    worlds = [world for world in WORLDS if grade_of(sizes, world) <= grade]
    for world in rng.sample(worlds, min(2, len(worlds))):
        trouble = holds(subject, call, inputs, outputs, world, rng)
        if trouble:
            return f"{trouble} ({world} devices)"
    return ""


def _told(call: Call) -> str:
    words = []
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            words.append(f"{name}: {str(value.dtype).removeprefix('torch.')}{list(value.shape)}")
        elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            words.append(f"{name}: {[list(v.shape) for v in value if isinstance(v, torch.Tensor)]}")
        else:
            words.append(f"{name}={value!r}")
    return "; ".join(words)


def _completeness(
    statement: Any, subject: Subject, call: Call, defaults: dict[str, Any], verdict: Verdict, rng: random.Random
) -> None:
    """Every row of a call that holds for several draws of numbers should be an instance of some rule."""
    tensors = call.tensors()
    want = subject(call)
    kinds = ("sum", "max", "min", "prod")
    # Where a call does not read an input, it may be pending on anything: that is no rule to look for.
    unread = {i for i in range(len(tensors)) if len(tensors) > 1 and not _reads(subject, call, i, want, rng)}
    choices: list[list[Place]] = [
        [REPLICATED, *(("S", d) for d in range(t.ndim) if t.shape[d] > 1),
         *(("P", kind) for kind in kinds if i not in unread)]
        for i, (_, t) in enumerate(tensors)
    ]  # fmt: skip
    if math.prod(map(len, choices)) > 700 or len(want) != 1:
        return
    claimed: set[Any] = set()
    for rule in (*statement.rules, *statement.variants):
        claimed |= {(*map(tuple, inputs), "->", *map(tuple, outputs)) for inputs, outputs in
                    instances(statement, rule, call, defaults)}  # fmt: skip
    again = [call]
    for _ in range(12):
        other = _values(call, rng)
        try:
            if [w.shape for w in subject(other)] == [w.shape for w in want]:
                again.append(other)
        except Exception:
            continue
    again = again[:5]
    if len(again) < 3 or any(w.numel() < 2 or bool((w == w.reshape(-1)[0]).all()) for w in want):
        return
    results = [subject(other) for other in again]
    if all(close(a, b) for other in results[1:] for a, b in zip(other, results[0])):
        return  # whatever the numbers, the result is the same
    for inputs in itertools.product(*choices):
        if all(p == REPLICATED for p in inputs):
            continue
        sizes = [t.shape[d] for (_, t), (k, d) in zip(tensors, inputs) if k == "S"]
        world = next((n for n in (2, 3, 5, 7) if all(s % n == 0 for s in sizes)), 0)
        if not world:
            continue
        plain = [REPLICATED if i in unread else p for i, p in enumerate(inputs)]
        if plain != list(inputs) and all(p == REPLICATED for p in plain):
            continue
        for output in (("S", d) for d in range(want[0].ndim)) if any(k == "S" for k, _ in inputs) else ():
            _cover(subject, again, inputs, output, world, claimed, plain, verdict, rng)
        for kind in kinds:
            _cover(subject, again, inputs, ("P", kind), world, claimed, plain, verdict, rng)


def _reads(subject: Subject, call: Call, index: int, want: Sequence[torch.Tensor], rng: random.Random) -> bool:
    """Whether the results depend on the numbers of a tensor."""
    for _ in range(4):
        again = [t for _, t in call.tensors()]
        again[index] = [t for _, t in _values(call, rng).tensors()][index]
        try:
            if not all(close(a, b) for a, b in zip(subject(call.having(again)), want)):
                return True
        except Exception:  # whatever torch raises
            return True
    return False


def _cover(
    subject: Subject, calls: Sequence[Call], inputs: Sequence[Place], output: Place, world: int, claimed: set[Any],
    plain: Sequence[Place], verdict: Verdict, rng: random.Random,
) -> None:  # fmt: skip
    if output[0] == "S" and subject(calls[0])[0].shape[output[1]] < 2:
        return
    for call in calls:
        if not possible(call, inputs, subject(call), [output]) or holds(subject, call, inputs, [output], world, rng):
            return
    for (_, t), (kind, _) in zip(calls[0].tensors(), inputs):
        if kind == "P" and t.numel() < 4:
            return
    wide = all(size > 1 for _, t in calls[0].tensors() for size in t.shape)
    verdict.valid += 1
    verdict.wide_valid += wide
    if any(_implied(tuple(map(tuple, said)), output, claimed) for said in (inputs, plain)):
        verdict.covered += 1
        verdict.wide_covered += wide
    else:
        verdict.missed.append(f"{inputs} -> {output} on {_told(calls[0])}")


def _implied(inputs: tuple[Any, ...], output: Place, claimed: set[Any]) -> bool:
    """Whether a rule says it, or says it of inputs that these are a special case of: equal copies are a pending max."""
    for row in claimed:
        ins, out = row[: len(inputs)], row[-1]
        if out == output and all(
            mine == theirs or (mine == REPLICATED and theirs[0] == "P" and theirs[1] in ("max", "min", "avg"))
            for mine, theirs in zip(inputs, ins)
        ):
            return True
    # All replicated gives a pending max of anything.
    return all(p == REPLICATED for p in inputs)
