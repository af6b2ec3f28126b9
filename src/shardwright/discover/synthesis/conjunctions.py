"""Conjunctions of conditions and the cases that they let in, as bits; what is known of one template; its price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .cases import Situation
from .conditions import RANK_COST, Atom
from .templates import Row, Template

Seen = tuple[Situation, int]

Partial = tuple[tuple[Atom, ...], int, int]
"""Atoms, and the holding and failing cases that they let in, as bits."""


Way = tuple[int, int, tuple[Atom, ...]]
"""A condition that keeps every failing case out: its cost, the cases it lets in (as bits), and its atoms."""

Case = tuple[int, int, Row]
"""The number of a situation, a dim, and the row that a template means there."""


@dataclass
class Cases:
    """Where a template holds and where it fails, of the situations read so far, and the conditions that part them."""

    read: int = 0
    held: list[Case] = field(default_factory=list)
    failed: list[Case] = field(default_factory=list)
    weak: list[Case] = field(default_factory=list)
    """Of what even shards tell nothing, but where it fails on others."""
    telling: list[Case] = field(default_factory=list)
    """Those where it holds that the conditions are chosen by."""
    ways: list[Way] | None = None
    rest: tuple[int, list[Way]] | None = None
    """How many cases were left to cover at last, and the conditions for these."""


Found = tuple[Template, tuple[Atom, ...], set[Row]]
"""A rule of the search: its template, its condition, and the rows in which it holds."""


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


def cost_of(template: Template, atoms: Sequence[Atom]) -> int:
    return template.cost + 2 * sum(atom.cost for atom in atoms)


def needed(rules: list[Found], rows: set[Row]) -> list[Found]:
    """Without rules all of whose rows later ones cover, too: the most far-fetched go first."""
    kept = list(rules)
    for rule in sorted(rules, key=lambda rule: -cost_of(rule[0], rule[1])):
        others = [other for other in kept if other is not rule]
        if rule[2] & rows <= set().union(*(covers for _, _, covers in others)):
            kept = others
    return kept
