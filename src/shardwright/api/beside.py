"""Recipes beside a plan, as rows of a comparison: what each would take, or why it does not go with the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ShardwrightError
from ..report import Overview
from ..solve.planner import Planner
from ..solve.recipes import DISTINCT


def comparison_rows(planner: Planner, view: Overview) -> list[dict[str, Any]]:
    """The plan first, then every recipe, by the same simulated schedule."""
    return [
        {
            "name": f"this plan ({view.plan.solver})", "step_ps": view.step, "compute_ps": view.compute,
            "exposed_ps": view.exposed, "memory_bytes": view.plan.memory,
            "fits": view.plan.memory <= _limit(planner),
        },
        *_recipes(planner),
    ]  # fmt: skip


def _recipes(planner: Planner) -> Iterator[dict[str, Any]]:
    free = planner.keeping(tuple(r for r in planner.requested.requests if r.memory is None))
    for name in DISTINCT:
        try:
            data = free.by_recipe(name)
        except ShardwrightError as error:
            yield {"name": name, "why": f"does not go with this program: {error.fact}"}
            continue
        lost = free.broken(data)
        if lost:
            yield {"name": name, "why": f"does not keep {', '.join(map(str, lost))}"}
            continue
        yield {
            "name": name, "step_ps": data.cost.compute + data.cost.exposed, "compute_ps": data.cost.compute,
            "exposed_ps": data.cost.exposed, "memory_bytes": data.memory, "fits": data.memory <= _limit(planner),
        }  # fmt: skip


def _limit(planner: Planner) -> int:
    """Bytes of a device: what was asked for, or what there is, less a reserve."""
    return planner.limit
