"""What a reshard costs at least: the bound that guides the search.

It counts the bytes that one device sends.  Let the *size* of a layout be what a device holds, padding included;
an all_gather costs what the size grows by or more, a reduce_scatter what it shrinks by, an all_reduce over n
devices 2(n-1)/n of it, an all_to_all (n-1)/n, a permute all of it.  Let N be the bytes of the tensor and D the
devices that the atoms tell apart: no size is below N / D.

*What is pending and not so at the goal must be combined.*  With q devices along it, and k along what may stay
pending, no size is below N k q / D: those devices do not cut the tensor.  So combining costs at least the
telescope N k / D (q - 1), in reduce_scatters and all_reduces.  What the last one leaves must grow to the goal's
size g, and leaving more only makes that last one more expensive: all in all at least g + N k / D (q - 2).

Whatever is pending, all_gathers, all_to_alls and permutes have to do the following, besides:

*Get what is missing.*  Say that on a dim a device holds in place the smaller of its parts, now and at the goal,
if the atoms of one begin those of the other, and nothing if they differ somewhere; and of the tensor, the
product over dims.  No step puts more in place than it costs, and at the goal all of g is.

*Clear what is wrong.*  Atoms from the first that differs on have to leave their dim, n devices of them for at
least (n-1)/n of N / D: an all_to_all takes them off one dim only.  After a permute, for N / D, it is the number
of shards alone that has to fit; what a dim has too many of has to leave it just so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import NamedTuple

from .layouts import SMALL, Atoms, Change, Dims, Layout, Pending, Space


class ChangesTo(dict[Atoms, Change]):
    """To the goal's atoms on one dim, from any others; filled as they are met."""

    def __init__(self, space: Space, d: int, want: Atoms) -> None:
        self.space, self.d, self.want = space, d, want
        self.local, self.ways, _, _ = space.cut(d, want)

    def __missing__(self, have: Atoms) -> Change:
        space, want = self.space, self.want
        local, ways, _, _ = space.cut(self.d, have)
        same = 0
        for a, b in zip(have, want):
            if a != b:
                break
            same += 1
        steps = (same < len(have)) + (same < len(want))
        in_place = 0 if steps == 2 else min(local, self.local)
        wrong = space.ways(have[same:])
        many = ways // gcd(ways, self.ways)
        smallest = space.smallest
        found = self[have] = Change(in_place, steps, smallest * (wrong - 1) // wrong, smallest * (many - 1) // many)
        return found


class DimsTo(dict[Dims, tuple[int, int]]):
    """To the goal's dims, from any others: bytes at least, whatever is pending, and about how many steps."""

    def __init__(self, space: Space, goal: Layout) -> None:
        self.space = space
        self.needed = space.elements(goal) * space.item_bytes
        self.dims = [_changes_to(space, d, want) for d, want in enumerate(goal.dims)]

    def __missing__(self, dims: Dims) -> tuple[int, int]:
        in_place, steps, wrong, surplus = self.space.item_bytes, 0, 0, self.space.smallest
        for table, have in zip(self.dims, dims):
            change = table[have]
            in_place *= change[0]
            steps += change[1]
            wrong += change[2]
            surplus += change[3]
        found = self[dims] = (max(self.needed - in_place, min(wrong, surplus)), steps)
        return found


class Combine(NamedTuple):
    """From what is pending to what is so at the goal."""

    steps: int
    alone: int
    """Bytes to combine values, at least."""
    least: int
    """Bytes to combine values and have all that the goal needs, at least."""


def bound_to(space: Space, goal: Layout) -> Callable[[Layout], tuple[int, int]]:
    """From a layout to the goal: bytes at least, and about how many steps (to choose among equals)."""
    to_dims = space.to_dims.get(goal.dims)
    if to_dims is None:
        to_dims = DimsTo(space, goal)
        if len(space.atoms) <= SMALL:  # else there are too many to keep
            space.to_dims[goal.dims] = to_dims
    needed = space.elements(goal) * space.item_bytes
    combines: dict[Pending, Combine] = {}

    def bound(layout: Layout) -> tuple[int, int]:
        combine = combines.get(layout.pending)
        if combine is None:
            combine = combines[layout.pending] = _combine(space, layout.pending, goal, needed)
        steps, alone, least = combine
        left, more = to_dims[layout.dims]
        left += alone
        return (least if least > left else left), steps + more

    if space.by_bytes:
        return bound
    return lambda layout: (0, bound(layout)[1])  # nothing is known of other costs


def _changes_to(space: Space, d: int, want: Atoms) -> Mapping[Atoms, Change]:
    key = (space.shape[d], want)  # dims of one size are alike
    found = space.changes.get(key)
    if found is None:
        found = space.changes[key] = ChangesTo(space, d, want)
    return found


def _combine(space: Space, pending: Pending, goal: Layout, needed: int) -> Combine:
    kept = combined = 1
    kinds = set()
    for pair in pending:
        if pair in goal.pending:
            kept *= space.sizes[pair[0]]
        else:
            combined *= space.sizes[pair[0]]
            kinds.add(pair[1])
    steps = len(kinds) + sum([pair not in pending for pair in goal.pending])
    if combined == 1:
        return Combine(steps, 0, 0)
    alone = space.bytes * kept * (combined - 1) // space.devices
    return Combine(steps, alone, needed + space.bytes * kept * (combined - 2) // space.devices)
