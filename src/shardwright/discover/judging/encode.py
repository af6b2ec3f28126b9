"""From a tensor to what the devices of one mesh axis hold, and back.

A pending tensor can be split in many ways, and a false rule must fail for one of them.  So there are several
*encodings*: random asymmetric parts, parts far larger than the tensor, parts that differ a little, and parts of
which one device holds all.  Who holds what differs from element to element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from ...spec.chunks import all_chunks
from ..operator import Array, Role
from ..placement import KINDS, Placement

ENCODINGS = ("random", "small", "large", "alone")
"""The ways to split a pending tensor; the first one screens, the others confirm."""

_RELATIVE = 1e-9
_ABSOLUTE = 1e-13
"""float64 keeps 1e-16; a few hundred roundings and a cancellation stay below these, a false rule does not."""

_EPSILON = float(np.finfo(np.float64).eps)
_ROUNDINGS = 16
"""float32 cannot tell that finely: so many roundings of the largest number are let through."""
MANY_ROUNDINGS = 1 << 14
"""What is within these may have cancelled in float32, or is a kernel's own error (series that end early for some
matrices of a batch): it neither holds nor fails."""


@lru_cache(4096)
def chunk_sizes(size: int, world: int) -> tuple[int, ...]:
    """What each device gets of a dim."""
    return tuple(stop - start for start, stop in all_chunks(size, (world,)))


def kinds_for(array: Array, role: Role, kinds: Sequence[str] = KINDS) -> tuple[str, ...]:
    """The reductions that such a tensor may be pending on.

    Parts of a pending index are no indices, so no rule can hold for every way to split it: none is tried.
    Truth values have *or* (max) and *and* (min); complex numbers have no order; whole numbers no average.
    """
    if role == "index":
        return ()
    allowed = {"b": ("max", "min"), "c": ("sum", "avg", "prod"), "f": KINDS}
    return tuple(kind for kind in kinds if kind in allowed.get(array.dtype.kind, ("sum", "max", "min", "prod")))


def shards(array: Array, dim: int, world: int) -> list[Array]:
    """Chunks along a dim, as DTensor cuts them: the last ones may be smaller, or empty."""
    before = (slice(None),) * dim
    bounds = all_chunks(array.shape[dim], (world,))
    return [np.ascontiguousarray(array[(*before, slice(*bound))]) for bound in bounds]


def shard_grade(sizes: Sequence[int], world: int) -> str:
    """How the worst of these dims is cut: even, uneven or with empty shards."""
    grade = "even"
    for size in sizes:
        if size % world:
            grade = "empty" if not chunk_sizes(size, world)[-1] or grade == "empty" else "uneven"
    return grade


def split(array: Array, placement: Placement, world: int, encoding: str, seed: int) -> list[Array]:
    """What each device holds of a tensor that lies like this."""
    if placement.kind == "R":
        return [array] * world
    if placement.kind == "S":
        return shards(array, placement.dim, world)
    make = _drawn_once if array.size <= _SMALL else _drawn
    draws = make(array.dtype.kind, array.shape, world, encoding, seed, placement.reduce)
    if placement.reduce in ("sum", "avg"):
        parts = _summands(array, encoding, draws)
        return parts if placement.reduce == "sum" else [part * array.dtype.type(world) for part in parts]
    if placement.reduce == "prod":
        return _factors(array, encoding, draws)
    return _bounded(array, encoding, draws, upper=placement.reduce == "max")


@dataclass(frozen=True, slots=True)
class _Draws:
    """What is random in the parts of a tensor: it depends on the shape alone, and shapes come again and again."""

    numbers: tuple[tuple[Array, ...], ...]
    """For each device but one."""
    places: Array
    """Where each device finds its elements, in all parts one after another: who holds what differs by element."""

    def dealt(self, parts: list[Array]) -> list[Array]:
        return list(np.concatenate([part.reshape(-1) for part in parts])[self.places])


_SMALL = 512
"""Elements of tensors whose draws are kept."""


def _drawn(kind: str, shape: tuple[int, ...], world: int, encoding: str, seed: int, reduce: str) -> _Draws:
    rng = np.random.default_rng([seed, world, ENCODINGS.index(encoding), KINDS.index(reduce)])
    if reduce in ("sum", "avg"):
        numbers = [_summand_draws(kind, shape, encoding, rng) for _ in range(world - 1)]
    elif reduce == "prod":
        numbers = [_factor_draws(kind, shape, encoding, rng) for _ in range(world - 1)]
    elif kind == "b":
        numbers = [(rng.random(shape),)]
    else:
        span = _SPANS[encoding]
        numbers = [(np.asarray(rng.uniform(0.1, 1.0, shape) * span),) for _ in range(world - 1)]
    holders = np.asarray(rng.integers(0, world, shape))
    ranks = np.arange(world).reshape((world, *(1,) * holders.ndim))
    places = (ranks - holders) % world * holders.size + np.arange(holders.size).reshape(shape)
    return _Draws(tuple(numbers), places)


_drawn_once = lru_cache(2048)(_drawn)

_SPANS = {"random": 2.0, "small": 2.0**-6, "large": 997.0, "alone": 2.0**40}
"""How far below the largest the other parts lie."""


def _summand_draws(kind: str, shape: tuple[int, ...], encoding: str, rng: np.random.Generator) -> tuple[Array, ...]:
    span = _SPANS[encoding] if encoding != "alone" else 0.0
    draw = np.asarray(rng.uniform(-span, span, shape))
    if kind in "iu":
        most = int(span * 3) + 1 if encoding != "alone" else 0
        return (np.asarray(rng.integers(-most, most + 1, shape)),)
    return (draw, np.asarray(rng.uniform(-span, span, shape))) if kind == "c" else (draw,)


def _factor_draws(kind: str, shape: tuple[int, ...], encoding: str, rng: np.random.Generator) -> tuple[Array, ...]:
    signs = np.asarray(rng.choice([-1, 1], shape))
    if kind in "iu":
        return (signs,)
    powers = {"random": 3, "small": 1, "large": 12, "alone": 0}[encoding]
    return signs, np.asarray(rng.integers(-powers, powers + 1, shape))


def _summands(array: Array, encoding: str, draws: _Draws) -> list[Array]:
    parts: list[Array] = []
    own = np.abs(_finite(array)) + 0.5 if encoding == "random" and array.dtype.kind not in "iu" else None
    for draw, *imaginary in draws.numbers:
        draw = draw if own is None else draw * own
        if imaginary:
            draw = draw + 1j * imaginary[0]
        parts.append(_exact(draw).astype(array.dtype))
    with np.errstate(all="ignore"):
        rest = array - sum(parts, np.zeros_like(array))
    return draws.dealt([rest.astype(array.dtype), *parts])


def _bounded(array: Array, encoding: str, draws: _Draws, upper: bool) -> list[Array]:
    """Parts whose greatest (or least) is the array: others lie below it, by as much as the encoding says."""
    if array.dtype.kind == "b":
        chosen = draws.numbers[0][0] < 0.5
        others = [array & chosen if upper else array | chosen]
        others += [np.zeros_like(array) if upper else np.ones_like(array) for _ in range(len(draws.places) - 2)]
        return draws.dealt([array, *others])
    sign = -1 if upper else 1
    parts = [array]
    own = np.abs(_finite(array)) + 0.5 if encoding == "random" else None
    for (below,) in draws.numbers:
        if own is not None:
            below = below * own
        elif encoding == "alone":  # others hold 0 where they may: what a kernel takes for nothing
            away = _finite(array) * -sign
            below = np.where(away > 0, away, below)
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            below = np.minimum(np.ceil(below), 2.0**20).astype(np.int64)
            wide = array.astype(np.float64)  # the difference of two large ones fits no integer
            room = np.minimum(wide - limits.min if upper else limits.max - wide, 2.0**20).astype(np.int64)
            parts.append((array.astype(np.int64) + sign * np.minimum(below, room)).astype(array.dtype))
        else:
            moved = _exact(below) if encoding != "alone" else below
            parts.append((array + sign * moved).astype(array.dtype))
    return draws.dealt(parts)


def _factors(array: Array, encoding: str, draws: _Draws) -> list[Array]:
    """Parts whose product is the array: powers of two, so that dividing them out is exact."""
    parts: list[Array] = []
    rest = array
    for signs, *powers in draws.numbers:
        if array.dtype.kind in "iu":
            part = np.where(rest % 2 == 0, 2, 1) * (1 if array.dtype.kind == "u" else signs)
            part = part if encoding in ("random", "large") else np.sign(part)
            part = part.astype(array.dtype)
            rest = rest // part
        else:
            part = (signs * 2.0 ** powers[0]).astype(array.dtype)
            rest = rest / part
        parts.append(part)
    return draws.dealt([rest.astype(array.dtype), *parts])


def _finite(array: Array) -> Array:
    if array.dtype.kind not in "fc":
        return array.astype(np.float64)
    finite = np.isfinite(array)
    return array if finite.all() else np.where(finite, array, 1.0)


def _exact(draw: Array) -> Array:
    """Rounded to multiples of 2**-16, so that few bits are lost in sums."""
    return np.round(draw * 65536.0) / 65536.0


_FINISH: dict[str, Callable[[Sequence[Array]], Array]] = {
    "sum": lambda parts: reduce(np.add, parts),
    "avg": lambda parts: reduce(np.add, parts) / len(parts),
    "max": lambda parts: reduce(np.maximum, parts),
    "min": lambda parts: reduce(np.minimum, parts),
    "prod": lambda parts: reduce(np.multiply, parts),
}


def assemble(parts: Sequence[Array], placement: Placement) -> Array | None:
    """The tensor that these parts are, lying like this; None if they cannot lie so (unequal copies, say)."""
    if placement.kind == "S":
        try:
            whole = np.concatenate(parts, axis=placement.dim)
        except ValueError:
            return None
        sizes = chunk_sizes(whole.shape[placement.dim], len(parts))
        return whole if [part.shape[placement.dim] for part in parts] == list(sizes) else None
    if any(part.shape != parts[0].shape for part in parts):
        return None
    if placement.kind == "R":
        return parts[0] if all(same(part, parts[0]) for part in parts[1:]) else None
    with np.errstate(all="ignore"):
        return np.asarray(_FINISH[placement.reduce](parts)).astype(parts[0].dtype, copy=False)


def same(got: Array, want: Array, scale: Array | float = 0.0, roundings: int = _ROUNDINGS) -> bool:
    """Whether two arrays are equal: exactly for whole numbers, up to rounding for floats, NaN and Inf in place.

    `scale` is the size of the numbers that `got` was computed from, where it may exceed the result's; `roundings` is
    for numbers narrower than float64, and lets through as much more of those.
    """
    if got.shape != want.shape:
        return False
    if got.dtype.kind not in "fc" or want.dtype.kind not in "fc":
        return bool((got == want).all())
    if want.size == 0 or np.array_equal(got, want):
        return True
    with np.errstate(all="ignore"):
        sizes = np.maximum(np.abs(want), scale)
        most = float(sizes.max())
        if not math.isfinite(most):
            sizes = np.where(np.isfinite(sizes), sizes, 0.0)
            most = float(sizes.max())
        if np.finfo(got.dtype).eps > _EPSILON:
            close = np.abs(got - want) <= roundings * float(np.finfo(got.dtype).eps) * most
        else:
            loose = roundings / _ROUNDINGS
            close = np.abs(got - want) <= loose * (_RELATIVE * sizes + _ABSOLUTE * most)
        if close.all():
            return True
        return bool((close | (got == want) | (np.isnan(got) & np.isnan(want))).all())
