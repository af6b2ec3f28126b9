"""The rest of a reshard when it has one permute in it, worked out rather than searched.

A permute can turn a layout into any other that has as many shards on each dim; which axes they are does not
matter.  So only counts matter.  With v shards per dim here and w at the goal, two recipes are tried:

* *slice, permute, gather*: slice each dim until it has lcm(v, w) shards, permute, gather what is too much;
* *permute, all_to_all, gather*: where a dim has too few shards, move some over from dims that have too many.

Both split mesh axes freely into sub-axes.  Where shards are uneven only a plain permute is possible, and only
if both layouts cut the dim into the very same pieces.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import gcd, lcm, prod
from typing import NamedTuple

from .axes import AxisRef, merge_axes
from .chunks import all_chunks
from .layouts import Layout, Move, Space, primes
from .sharding import DimSpec, ShardingSpec


class Recipe(NamedTuple):
    """Counts of a finish: cut dims further, permute, shift shards between dims, gather."""

    slices: tuple[int, ...]
    shifts: tuple[tuple[int, int, int], ...] = ()
    """(from dim, to dim, ways)"""
    extras: tuple[int, ...] = ()


def recipes(space: Space, here: Layout, goal: Layout) -> list[Recipe]:
    """Ways to finish from ``here`` with one permute."""
    if here[1] != goal[1]:
        return []
    if here[0] == goal[0]:
        return []
    have, want = space.counts(here[0]), space.counts(goal[0])
    taken = 1
    for atom, _ in here[1]:
        taken *= space.sizes[atom]
    if have is None or want is None:
        fixed = _set_aside(space, here, goal)
        if fixed is None:
            return _plain(space, here, goal)
        have, want, aside = fixed
        taken *= aside
    counted = _count_recipes(have, want, space.devices // taken, space.shape)
    return [recipe for recipe in counted if not recipe.shifts or _can_shift(space, goal, recipe)]


def _set_aside(space: Space, here: Layout, goal: Layout) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """Uneven dims that stay as they are do not disturb the others; their axes are out of the game."""
    have, want = [], []
    aside = 1
    for d, (a, b) in enumerate(zip(here[0], goal[0])):
        ways = [prod([space.sizes[atom] for atom in atoms]) for atoms in (a, b)]
        if space.divides(d, a) and space.divides(d, b):
            have.append(ways[0])
            want.append(ways[1])
        elif a == b:
            have.append(1)
            want.append(1)
            aside *= ways[0]
        else:
            return None
    return tuple(have), tuple(want), aside


def _plain(space: Space, here: Layout, goal: Layout) -> list[Recipe]:
    """Uneven shards: the same pieces on other devices, or nothing."""
    for d, (a, b) in enumerate(zip(here[0], goal[0])):
        parts = [tuple(axis.size for axis in space.axes(atoms)) for atoms in (a, b)]
        if prod(parts[0]) != prod(parts[1]):
            return []
        if parts[0] != parts[1] and all_chunks(space.shape[d], parts[0]) != all_chunks(space.shape[d], parts[1]):
            return []
    ones = (1,) * len(here[0])
    return [Recipe(ones, (), ones)]


_memo: dict[tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...]], list[Recipe]] = {}


def _count_recipes(have: tuple[int, ...], want: tuple[int, ...], devices: int, shape: tuple[int, ...]) -> list[Recipe]:
    key = (have, want, devices, shape)
    found = _memo.get(key)
    if found is None:
        if len(_memo) > 100_000:
            _memo.clear()
        tried = [_by_slices(have, want, devices, shape), _by_shifts(have, want)]
        found = _memo[key] = list(dict.fromkeys(recipe for recipe in tried if recipe is not None))
    return found


def _by_slices(have: tuple[int, ...], want: tuple[int, ...], devices: int, shape: tuple[int, ...]) -> Recipe | None:
    both = [lcm(v, w) for v, w in zip(have, want)]
    if any(size % ways for size, ways in zip(shape, both)) or devices % prod(both):
        return None
    slices = tuple(ways // v for ways, v in zip(both, have))
    extras = tuple(ways // w for ways, w in zip(both, want))
    return Recipe(slices, (), extras)


def _by_shifts(have: tuple[int, ...], want: tuple[int, ...]) -> Recipe | None:
    surplus = [v // gcd(v, w) for v, w in zip(have, want)]
    lack = [w // gcd(v, w) for v, w in zip(have, want)]
    shifts = []
    for j in sorted(range(len(lack)), key=lambda d: -lack[d]):
        for i in sorted(range(len(lack)), key=lambda d: -gcd(surplus[d], lack[j])):
            ways = gcd(surplus[i], lack[j])
            if ways > 1 and i != j:
                shifts.append((i, j, ways))
                surplus[i] //= ways
                lack[j] //= ways
    if prod(lack) != 1 or not shifts or any(surplus[j] > 1 for _, j, _ in shifts):
        return None
    return Recipe((1,) * len(have), tuple(shifts), tuple(surplus))


def finish_by_permute(space: Space, here: Layout, goal: Layout) -> list[list[Move]]:
    """The moves of each recipe."""
    return [named_moves(space, here, goal, recipe) for recipe in recipes(space, here, goal)]


def finish_sizes(space: Space, here: Layout, recipe: Recipe) -> list[tuple[str, int, int]]:
    """(kind, ways, elements put in) of each collective of a recipe, without naming axes."""
    elements = space.elements(here[0]) // prod(recipe.slices)
    found = [("collective_permute", space.mesh.size, elements)]
    found += [("all_to_all", ways, elements) for _, _, ways in recipe.shifts]
    for ways in recipe.extras:
        if ways > 1:
            found.append(("all_gather", ways, elements))
            elements *= ways
    return found


Lists = list[list[AxisRef]]


def _can_shift(space: Space, goal: Layout, recipe: Recipe) -> bool:
    """Whether the axes at the goal can be split as the shifts need."""
    key = (goal[0], recipe.shifts)
    if key not in space.shiftable:
        end = [list(space.axes(dim)) for dim in goal[0]]
        space.shiftable[key] = _undo_shifts(end, recipe) is not None
    return space.shiftable[key]


def _undo_shifts(lists: Lists, recipe: Recipe) -> list[list[AxisRef]] | None:
    """Turn the lists after all shifts into those before; returns what each shift moves."""
    moved: list[list[AxisRef]] = []
    for i, j, ways in reversed(recipe.shifts):
        suffix = _suffix(lists[j], ways)
        if suffix is None:
            return None
        lists[i] += suffix
        moved.insert(0, suffix)
    return moved


def named_moves(space: Space, here: Layout, goal: Layout, recipe: Recipe) -> list[Move]:
    """Name the axes of a recipe."""
    lists: Lists = [list(space.axes(dim)) for dim in here[0]]
    end: Lists = [list(space.axes(dim)) for dim in goal[0]]
    pending = [space.atoms[a] for a, _ in here[1]]
    found: list[Move] = []
    elements = space.elements(here[0])

    def record(kind: str, axes: list[AxisRef], after: Lists, dim: int | None, to: int | None = None) -> None:
        dims = tuple(DimSpec(merge_axes(refs)) for refs in after)
        spec = ShardingSpec.make(space.mesh, dims, space.spec(here).partial)
        found.append(Move(kind, (), elements, goal, dim, to, None, merge_axes(axes), spec))

    free = Spare(space, [axis for refs in lists for axis in refs] + pending)
    for d, ways in enumerate(recipe.slices):
        if ways > 1:
            taken = free.take(ways)
            lists[d] += taken
            record("slice", taken, lists, d)
            elements //= ways
    free = Spare(space, [axis for refs in end for axis in refs] + pending)
    gathers = [free.take(ways) if ways > 1 else [] for ways in recipe.extras]
    middle = [refs + more for refs, more in zip(end, gathers)]
    moved = _undo_shifts(middle, recipe)
    assert moved is not None, "recipes() offers only what can be named"
    if [merge_axes(refs) for refs in middle] != [merge_axes(refs) for refs in lists]:
        record("collective_permute", list(space.mesh.axes), middle, None)
    for (i, j, ways), suffix in zip(recipe.shifts, moved):
        _suffix(middle[i], ways)
        middle[j] += suffix
        record("all_to_all", suffix, middle, i, j)
    for d, more in enumerate(gathers):
        if more:
            middle[d] = end[d]
            record("all_gather", more, middle, d)
            elements *= recipe.extras[d]
    return found


def _suffix(refs: list[AxisRef], ways: int) -> list[AxisRef] | None:
    """Take axes that make ``ways`` off the end of a list, splitting one if need be."""
    taken: list[AxisRef] = []
    while ways > 1:
        if not refs:
            return None
        last = refs.pop()
        if ways % last.size == 0:
            taken.insert(0, last)
            ways //= last.size
        elif last.size % ways == 0:
            major, minor = last.split(last.size // ways)
            refs.append(major)
            taken.insert(0, minor)
            ways = 1
        else:
            return None
    return taken


class Spare:
    """Parts of mesh axes that are not in use."""

    def __init__(self, space: Space, used: list[AxisRef]) -> None:
        self.parts: list[AxisRef] = []
        for axis in merge_axes(space.atoms):
            ends = [p for u in used if u.name == axis.name for p in (u.pre, u.end) if axis.pre <= p <= axis.end]
            for a, b in pairwise(sorted({axis.pre, axis.end, *ends})):
                part = AxisRef(axis.name, a, b // a, axis.full)
                if not any(part.overlaps(u) for u in used):
                    self.parts.append(part)

    def take(self, ways: int) -> list[AxisRef]:
        """Axes that make ``ways``; whole parts first."""
        taken = []
        for part in list(self.parts):
            if part.size == ways:
                self.parts.remove(part)
                return [part]
        for p, times in Counter(primes(ways)).items():
            for _ in range(times):
                i = next(i for i, part in enumerate(self.parts) if part.size % p == 0)
                part = self.parts[i]
                if part.size == p:
                    self.parts.pop(i)
                    taken.append(part)
                else:
                    major, self.parts[i] = part.split(p)
                    taken.append(major)
        return taken
