"""Message passing, then large-neighbourhood search."""

from __future__ import annotations

import math

from ..local_search import improve
from ..problem import NumericProblem
from .messages import find_fitting, pass_messages
from .regions import part_solver
from .state import Accepts, Search

NAME = "search"
ACCEPTS = Accepts(library="highspy")
BARREN = 40
"""Regions in a row without a gain after which search gives up, where no clock says so."""


def solve(problem: NumericProblem, search: Search) -> bool:
    pass_messages(search, math.inf, 0.25)
    find_fitting(search)
    return search.closed() or improve_regions(search, 1.0)


def improve_regions(search: Search, part: float, barren: int | None = None) -> bool:
    """Solve regions exactly, from the best choice on; returns whether it is proven to be the best of all."""
    search.doing = "search"
    assert search.choice is not None
    choice, proven = improve(
        search.core,
        search.choice,
        part_solver(),
        search.share(part),
        lambda found, _: search.offer(found),
        slice_seconds=max(0.5, min(6.0, search.left() / 40)) if search.limited else 30.0,
        barren=barren or (2 * BARREN if search.limited else BARREN),
    )
    search.offer(choice)
    if proven:
        search.raise_bound(search.cost)
    return proven
