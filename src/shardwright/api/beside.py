"""Recipes beside a plan: what each would take, or why it does not go with the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import ShardwrightError
from ..plans.plan import Plan as Data
from ..report import Overview
from ..solve.planner import Planner
from ..solve.recipes import DISTINCT


def priced_recipes(planner: Planner, names: Iterable[str]) -> Iterator[tuple[str, Data | str]]:
    """The plan of each recipe, whatever it holds; or why there is none."""
    free = planner.keeping(tuple(r for r in planner.requested.requests if r.memory is None))
    for name in names:
        try:
            data = free.by_recipe(name)
        except ShardwrightError as error:
            yield name, f"does not go with this program: {error.fact}"
            continue
        lost = free.broken(data)
        yield name, f"does not keep {', '.join(map(str, lost))}" if lost else data


def comparison_rows(planner: Planner, view: Overview) -> list[dict[str, Any]]:
    """The plan first, then every recipe, by the same simulated schedule."""
    found = [(f"this plan ({view.plan.solver})", view.plan), *priced_recipes(planner, DISTINCT)]
    return [
        {"name": name, "why": data} if isinstance(data, str) else {
            "name": name, "step_ps": data.cost.compute + data.cost.exposed, "compute_ps": data.cost.compute,
            "exposed_ps": data.cost.exposed, "memory_bytes": data.memory, "fits": data.memory <= planner.limit,
        }
        for name, data in found
    ]  # fmt: skip
