"""The rest of a reshard when it has one permute in it, worked out rather than searched.

A permute can turn a layout into any other that has as many shards on each dim; which axes they are does not
matter.  So only counts matter.  With v shards per dim here and w at the goal, a recipe is to slice each dim until it
has a multiple of v, permute, move shards from dims that have too many to dims that have too few (all_to_all), and
gather what is still too much.  Which multiples are best depends on the counts alone.

Mesh axes are split freely into sub-axes, so the two layouts may even cut an axis into parts that exclude each other.
Where shards are uneven only a plain permute is possible, and only if both layouts cut the dim into the very same
pieces.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import gcd, prod

from ..axes import AxisRef, merge_axes
from ..collective import collective_bytes
from ..sharding import DimSpec, Shape, ShardingSpec
from .layouts import Layout, Move, Recipe, Space, primes

Counts = tuple[int, ...]
"""Shards of each dim."""
MOST_RECIPES = 4
"""Of one pair of counts: the next is asked only where axes cannot be split as the first needs it."""


def finish(space: Space, here: Layout, goal: Layout, budget: int) -> tuple[int, Layout, Recipe] | None:
    """The cheapest way to finish with one permute for less than the budget; the same atoms must be pending."""
    facts = space.facts(here)
    if here is goal or (space.by_bytes and facts.taken * space.smallest >= budget):
        return None
    have, want, taken, shape = facts.counts, space.facts(goal).counts, facts.taken, space.shape
    if have is None or want is None:
        fixed = _set_aside(space, here, goal)
        if fixed is None:
            plain = _plain(space, here, goal)
            price = space.permute_price(facts.elements)
            return (price, goal, plain) if plain and price < budget else None
        have, want, aside = fixed
        taken *= aside
        shape = tuple([1 if v == w == 1 and a else n for v, w, a, n in zip(have, want, here.dims, shape)])
    found = None
    for recipe in recipes(have, want, space.devices // taken, shape):
        if recipe.shifts and not _can_shift(space, goal, recipe):
            continue
        price = _price(space, here, goal, recipe)
        if price < budget:
            found, budget = (price, goal, recipe), price
        if space.by_bytes:
            break  # the others cost more
    return found


def _price(space: Space, here: Layout, goal: Layout, recipe: Recipe) -> int:
    if not space.by_bytes:  # then prices may depend on the names of the axes
        moves = named_moves(space, here, goal, recipe)
        return sum([space.cost(m.kind, m.axes, m.elements * space.item_bytes) for m in moves if m.kind != "slice"])
    size = space.elements(here) // prod(recipe.slices) * space.item_bytes
    price = collective_bytes("collective_permute", space.mesh.size, size)
    for _, _, ways in recipe.shifts:
        price += collective_bytes("all_to_all", ways, size)
    for ways in recipe.extras:
        if ways > 1:
            price += collective_bytes("all_gather", ways, size)
            size *= ways
    return price


def _set_aside(space: Space, here: Layout, goal: Layout) -> tuple[Counts, Counts, int] | None:
    """Uneven dims that stay as they are do not disturb the others; their axes are out of the game."""
    have, want = [], []
    aside = 1
    for d, (a, b) in enumerate(zip(here.dims, goal.dims)):
        now, then = space.cut(d, a), space.cut(d, b)
        if now.even and then.even:
            have.append(now.ways)
            want.append(then.ways)
        elif a == b:
            have.append(1)
            want.append(1)
            aside *= now.ways
        else:
            return None
    return tuple(have), tuple(want), aside


def _plain(space: Space, here: Layout, goal: Layout) -> Recipe | None:
    """Uneven shards: the same pieces on other devices, or nothing."""
    if not all(space.same_cut(d, a, b) for d, (a, b) in enumerate(zip(here.dims, goal.dims))):
        return None
    ones = (1,) * len(here.dims)
    return Recipe(ones, (), ones)


@lru_cache(maxsize=65536)
def recipes(have: Counts, want: Counts, devices: int, shape: Shape) -> tuple[Recipe, ...]:
    """The recipes for these counts, fewest bytes first, then fewest steps."""
    spare = devices // prod(have)
    choices = [[s for s in _divisors(spare) if size % (v * s) == 0] for size, v in zip(shape, have)]
    found: list[tuple[Fraction, int, Recipe]] = []
    for slices in product(*choices):
        if spare % prod(slices):
            continue
        shifted = _shifted(tuple([v * s for v, s in zip(have, slices)]), want)
        if shifted is not None:
            recipe = Recipe(slices, *shifted)
            steps = sum(s > 1 for s in (*slices, *recipe.extras)) + len(recipe.shifts)
            found.append((_share(recipe), steps, recipe))
    found.sort(key=lambda entry: entry[:2])
    return tuple([recipe for _, _, recipe in found[:MOST_RECIPES]])


@lru_cache(maxsize=4096)
def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _share(recipe: Recipe) -> Fraction:
    """What a recipe sends, as a part of what a device holds at first."""
    size = Fraction(1, prod(recipe.slices))
    sent = size
    for _, _, ways in recipe.shifts:
        sent += size * (ways - 1) / ways
    for ways in recipe.extras:
        sent += size * (ways - 1)
        size *= ways
    return sent


def _shifted(have: Counts, want: Counts) -> tuple[tuple[tuple[int, int, int], ...], Counts] | None:
    """Shifts between dims, then gathers, that lead from counts to others."""
    surplus = [v // gcd(v, w) for v, w in zip(have, want)]
    lack = [w // gcd(v, w) for v, w in zip(have, want)]
    if prod(surplus) % prod(lack):
        return None
    shifts = []
    for j in sorted(range(len(lack)), key=lambda d: -lack[d]):
        for i in sorted(range(len(lack)), key=lambda d: -gcd(surplus[d], lack[j])):
            ways = gcd(surplus[i], lack[j])
            if ways > 1 and i != j:
                shifts.append((i, j, ways))
                surplus[i] //= ways
                lack[j] //= ways
    if prod(lack) != 1 or any(surplus[j] > 1 for _, j, _ in shifts):
        return None
    return tuple(shifts), tuple(surplus)


def forget_recipes() -> None:
    recipes.cache_clear()


Lists = list[list[AxisRef]]


def _can_shift(space: Space, goal: Layout, recipe: Recipe) -> bool:
    """Whether the axes at the goal can be split as the shifts need."""
    key = (goal.dims, recipe.shifts)
    if key not in space.shiftable:
        end = [list(space.axes(dim)) for dim in goal.dims]
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


def between_spaces(space: Space, here: Layout, other: Space, goal: Layout) -> list[Move]:
    """The moves of the best recipe where the layouts cut mesh axes into parts that exclude each other, if there is one.

    Both spaces are of the same tensor and the same devices; pending has to be the same.
    """
    facts, wanted = space.facts(here), other.facts(goal)
    if facts.counts is None or wanted.counts is None or space.spec(here).partial != other.spec(goal).partial:
        return []
    for recipe in recipes(facts.counts, wanted.counts, space.devices // facts.taken, space.shape):
        if not recipe.shifts or _can_shift(other, goal, recipe):
            return named_moves(space, here, goal, recipe, other)
    return []


def named_moves(space: Space, here: Layout, goal: Layout, recipe: Recipe, other: Space | None = None) -> list[Move]:
    """Name the axes of a recipe; the goal may be of another space."""
    other = other or space
    lists: Lists = [list(space.axes(dim)) for dim in here.dims]
    end: Lists = [list(other.axes(dim)) for dim in goal.dims]
    partial = space.spec(here).partial
    found: list[Move] = []
    elements = space.elements(here)

    def record(kind: str, axes: list[AxisRef], after: Lists, dim: int | None, to: int | None = None) -> None:
        dims = tuple([DimSpec(merge_axes(refs)) for refs in after])
        spec = ShardingSpec.make(space.mesh, dims, partial)
        found.append(Move(kind, merge_axes(axes), elements, spec, dim, to))

    free = Spare(space, here)
    for d, ways in enumerate(recipe.slices):
        if ways > 1:
            taken = free.take(ways)
            lists[d] += taken
            record("slice", taken, lists, d)
            elements //= ways
    free = Spare(other, goal)
    gathers = [free.take(ways) if ways > 1 else [] for ways in recipe.extras]
    middle = [refs + more for refs, more in zip(end, gathers)]
    moved = _undo_shifts(middle, recipe)
    assert moved is not None, "finish() offers only what can be named"
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

    def __init__(self, space: Space, layout: Layout) -> None:
        used = space.facts(layout).used
        self.parts = list(space.axes(tuple([a for a in range(len(space.atoms)) if not used >> a & 1])))

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
