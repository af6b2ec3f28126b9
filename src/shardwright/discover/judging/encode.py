"""From a tensor to what the devices of one mesh axis hold, and back.

A pending tensor can be split in many ways, and a false rule must fail for one of them.  So there are several
*encodings*: random asymmetric parts, parts far larger than the tensor, parts that differ a little, and parts of
which one device holds all.  Who holds what differs from element to element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
"""What is within these may have cancelled in float32: it neither holds nor fails."""


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
    edges = np.cumsum(chunk_sizes(array.shape[dim], world))[:-1]
    return [np.ascontiguousarray(part) for part in np.split(array, edges, axis=dim)]


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
    rng = np.random.default_rng([seed, world, ENCODINGS.index(encoding), KINDS.index(placement.reduce)])
    if placement.reduce in ("sum", "avg"):
        parts = _summands(array, world, encoding, rng)
        return parts if placement.reduce == "sum" else [part * array.dtype.type(world) for part in parts]
    if placement.reduce == "prod":
        return _factors(array, world, encoding, rng)
    return _bounded(array, world, encoding, rng, upper=placement.reduce == "max")


def _holders(array: Array, world: int, rng: np.random.Generator) -> Array:
    """Per element, the device that holds the rest."""
    return np.asarray(rng.integers(0, world, array.shape))


def _summands(array: Array, world: int, encoding: str, rng: np.random.Generator) -> list[Array]:
    whole = array.dtype.kind in "iu"
    span = {"random": 2.0, "small": 2.0**-6, "large": 997.0, "alone": 0.0}[encoding]
    parts: list[Array] = []
    for _ in range(world - 1):
        draw: Array = np.asarray(rng.uniform(-span, span, array.shape))
        if whole:
            most = int(span * 3) + 1 if encoding != "alone" else 0
            draw = np.asarray(rng.integers(-most, most + 1, array.shape))
        elif encoding == "random":
            draw = draw * (np.abs(_finite(array)) + 0.5)
        if array.dtype.kind == "c":
            draw = draw + 1j * rng.uniform(-span, span, array.shape)
        parts.append(_exact(draw).astype(array.dtype))
    with np.errstate(all="ignore"):
        rest = array - sum(parts, np.zeros_like(array))
    return _dealt([rest.astype(array.dtype), *parts], _holders(array, world, rng))


def _bounded(array: Array, world: int, encoding: str, rng: np.random.Generator, upper: bool) -> list[Array]:
    """Parts whose greatest (or least) is the array: others lie below it, by as much as the encoding says."""
    if array.dtype.kind == "b":
        others = [array & (rng.random(array.shape) < 0.5) if upper else array | (rng.random(array.shape) < 0.5)]
        others += [np.zeros_like(array) if upper else np.ones_like(array) for _ in range(world - 2)]
        return _dealt([array, *others], _holders(array, world, rng))
    span = {"random": 2.0, "small": 2.0**-6, "large": 997.0, "alone": 2.0**40}[encoding]
    sign = -1 if upper else 1
    parts = [array]
    for _ in range(world - 1):
        below: Array = np.asarray(rng.uniform(0.1, 1.0, array.shape) * span)
        if encoding == "random":
            below = below * (np.abs(_finite(array)) + 0.5)
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
    return _dealt(parts, _holders(array, world, rng))


def _factors(array: Array, world: int, encoding: str, rng: np.random.Generator) -> list[Array]:
    """Parts whose product is the array: powers of two, so that dividing them out is exact."""
    parts: list[Array] = []
    rest = array
    for _ in range(world - 1):
        signs = rng.choice([-1, 1], array.shape)
        if array.dtype.kind in "iu":
            part = np.where(rest % 2 == 0, 2, 1) * (1 if array.dtype.kind == "u" else signs)
            part = part if encoding in ("random", "large") else np.sign(part)
            part = part.astype(array.dtype)
            rest = rest // part
        else:
            powers = {"random": 3, "small": 1, "large": 12, "alone": 0}[encoding]
            part = (signs * 2.0 ** rng.integers(-powers, powers + 1, array.shape)).astype(array.dtype)
            rest = rest / part
        parts.append(part)
    return _dealt([rest.astype(array.dtype), *parts], _holders(array, world, rng))


def _dealt(parts: list[Array], holders: Array) -> list[Array]:
    """Part k of an element goes to device (its holder + k)."""
    world = len(parts)
    ranks = np.arange(world).reshape((world, *(1,) * holders.ndim))
    return list(np.take_along_axis(np.stack(parts), (ranks - holders) % world, axis=0))


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 1.0)


def _exact(draw: Array) -> Array:
    """Rounded to multiples of 2**-16, so that few bits are lost in sums."""
    return np.round(draw * 65536.0) / 65536.0


_FINISH: dict[str, Callable[[Array], Array]] = {
    "sum": lambda parts: parts.sum(axis=0),
    "avg": lambda parts: parts.mean(axis=0),
    "max": lambda parts: parts.max(axis=0),
    "min": lambda parts: parts.min(axis=0),
    "prod": lambda parts: parts.prod(axis=0),
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
        return _FINISH[placement.reduce](np.stack(parts)).astype(parts[0].dtype)


def same(got: Array, want: Array, scale: Array | float = 0.0, roundings: int = _ROUNDINGS) -> bool:
    """Whether two arrays are equal: exactly for whole numbers, up to rounding for floats, NaN and Inf in place.

    `scale` is the size of the numbers that `got` was computed from, where it may exceed the result's; `roundings` is
    for numbers narrower than float64.
    """
    if got.shape != want.shape:
        return False
    if got.dtype.kind not in "fc" or want.dtype.kind not in "fc":
        return bool((got == want).all())
    if want.size == 0:
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
            close = np.abs(got - want) <= _RELATIVE * sizes + _ABSOLUTE * most
        if close.all():
            return True
        return bool((close | (got == want) | (np.isnan(got) & np.isnan(want))).all())
