"""Inputs held in less memory at the same price.

Cutting what is whole is free, so a solver that looks at time alone may as well leave an input whole.  Here every input
gets the sharding with the fewest bytes among those that cost no more, copies made anew around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cost.memory import local_bytes
from .readers import Variables


def tighten(assigner: Variables, choice: Sequence[int]) -> list[int]:
    """The same choice for nodes, with inputs that hold fewer bytes where that costs nothing.

    Among them are shardings that were dropped as never needed: that was for time.
    """
    found = list(choice)
    graph = assigner.graph
    for value in graph.inputs:
        if value in assigner.given:
            continue
        specs, type, at = assigner.inputs[value], graph.type(value), assigner.place[value]
        demand = assigner.demands[value]
        about = [value, *(graph.outputs[i] for i, state in assigner.updates.items() if state == value)]
        wanted = {int(place[found[g.variable]]) for g in demand.groups if g.variable >= 0 for place in g.places}
        # What a reader asks for itself costs no copy; others are seldom better.
        held = np.array([local_bytes(spec, type) for spec in specs])
        least = sum(assigner.spent(v, found) for v in dict.fromkeys(about))
        now = found[at]
        for pick in np.argsort(held, kind="stable").tolist():
            if held[pick] >= held[now]:
                break
            if int(demand.made[pick]) not in wanted:
                continue
            found[at] = pick
            if sum(assigner.spent(v, found) for v in dict.fromkeys(about)) <= least:
                break
            found[at] = now
    return found
