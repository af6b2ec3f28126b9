"""Conjunctions of conditions, and the cases that they let in, as bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .cases import Situation
from .conditions import RANK_COST, Atom

Seen = tuple[Situation, int]

Partial = tuple[tuple[Atom, ...], int, int]
"""Atoms, and the holding and failing cases that they let in, as bits."""


def longer(partial: Sequence[Partial], masks: Sequence[tuple[Atom, int, int]]) -> Iterator[Partial]:
    """Conjunctions of one atom more that let some holding cases in; ranks are pleaded once."""
    seen: set[frozenset[int]] = set()
    for atoms, lets_in, lets_fail in partial:
        ranks = any(atom.cost >= RANK_COST for atom in atoms)
        for atom, good, bad in masks:
            if not lets_in & good or (atoms and lets_fail & bad == lets_fail) or (ranks and atom.cost >= RANK_COST):
                continue
            key = frozenset(map(id, (*atoms, atom)))
            if key not in seen:
                seen.add(key)
                yield (*atoms, atom), lets_in & good, lets_fail & bad


def mask_of(atom: Atom, cases: Sequence[Seen]) -> int:
    return sum(1 << i for i, (situation, d) in enumerate(cases) if atom.holds(situation, d))
