"""A bound and rounded choices by message passing with prices for memory; some choice that fits, if those do not."""

from __future__ import annotations

import math

import numpy as np

from ..messages import Messages, ascend
from ..problem import NumericProblem
from ..repair import repair
from .regions import part_solver
from .state import Accepts, Search

NAME = "messages"
ACCEPTS = Accepts(message_passing=True)
THRIFT = 5
"""How often bytes are made ten times more expensive to find some choice that fits."""


def solve(problem: NumericProblem, search: Search) -> bool:
    pass_messages(search, math.inf, 1.0)
    find_fitting(search)
    return search.left() > 0


def pass_messages(search: Search, steps: float, part: float, messages: Messages | None = None) -> Messages:
    """Sweep for this part of the time that is left, from these messages on."""
    search.doing = "messages"
    messages = messages or Messages(search.core)
    high = ascend(messages, search.share(part), search.cost, lambda choice, _: search.offer(choice), steps=steps)
    search.raise_bound(high)
    return messages


def find_fitting(search: Search) -> None:
    """Find some choice that fits, if passing messages found none."""
    if search.choice is not None:
        return
    search.doing = "repair"
    core = search.core
    messages = Messages(core)
    choice = messages.round(tight=True)
    for power in range(THRIFT):
        # Bytes more and more expensive, at all steps alike, until cost hardly counts.
        search.offer(choice)
        if search.choice is not None or search.left() < 0:
            return
        total = float(core.held(choice).astype(np.float64).sum())
        price = 10.0**power * max(1, abs(core.evaluate(choice).cost)) / max(1.0, total)
        messages.set_prices(np.full(core.limits.size, price))
        for _ in range(6):
            messages.sweep()
        choice = messages.round(tight=True)
    found = repair(core, choice, part_solver(), search.share(0.8))
    if found is not None:
        search.offer(found)
