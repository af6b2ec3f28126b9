"""How good plans are: the plan's simulated step beside those of all recipes and of layouts that others publish.

    python benchmarks/plan_quality.py                                # a few models on a few meshes
    python benchmarks/plan_quality.py gpt2-b64@x=8,y=8 vit-b64@d=8   # models of `quality_models`, by mesh
    python benchmarks/plan_quality.py --all                          # every model on every mesh: hours
    python benchmarks/plan_quality.py --limits 0.9,0.7 gpt2-b64@d=8  # under parts of the memory that the plan takes

Milliseconds by simulation on the H100 preset, within its memory.  A layout (`published_layouts`) pins inputs; what it
leaves open is spread by propagation (``specs``) or planned (``planned``), and the faster of both counts.  ``won`` is
how much less the plan takes than the best of all others that fit: below -0.5% it lost.  ``computes`` is the part of
the step that is compute.  Seconds are CPU seconds of planning, without capture.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from published_layouts import layouts_of
from quality_models import MODELS

from shardwright import DeviceMesh
from shardwright.api.deciding import Learning, planner_of
from shardwright.errors import ShardwrightError
from shardwright.frontends.base import Source, capture_source
from shardwright.plans.plan import Plan
from shardwright.plans.requests import Request, requests_of
from shardwright.solve.planner import Planner
from shardwright.solve.recipes import DISTINCT

CASES = ["gpt2-b64@d=8", "gpt2-b64@x=8,y=8", "experts-b64@x=8,y=8", "recommender-b4096@x=8,y=8", "llama4l-b8@x=8,y=8"]
MESHES = ("d=8", "x=4,y=8", "x=8,y=8", "x=16,y=8", "x=2,y=4,z=8")
COLUMNS = ("model", "mesh", "plan", "bound", "gap", "best recipe", "best layout", "won", "GiB", "computes", "seconds")
LOST = 0.005


def measured(case: str, limits: list[float]) -> Iterator[list[str]]:
    name, mesh = case.split("@")
    fn, args, about = MODELS[name]()
    optimizer, loss = about.pop("optimizer", None), about.pop("loss", None)
    source, on = capture_source(fn, args, about, optimizer=optimizer, loss=loss), DeviceMesh(mesh)
    planner = planner_of(source, on, [], "h100", Learning())
    plan, seconds = _planned(planner)
    recipes, layouts = (sorted(found) for found in (_recipes(planner), _layouts(name, source, on)))
    ours = plan.cost.objective
    best = min((row[0] for row in (*recipes[:1], *layouts[:1])), default=ours)
    told = [f"{rows[0][1]} {rows[0][0] / 1e9:.2f}" if rows else "none fits" for rows in (recipes, layouts)]
    yield [name, mesh, *_figures(plan), *told, _won(ours, best), *_more(plan), seconds]
    before = ours
    for part in sorted(limits, reverse=True):
        tight = planner_of(source, on, [Request("memory", int(plan.memory * part))], "h100", Learning())
        row = [name, f"{mesh}, {100 * part:.0f}% of the memory"]
        try:
            other, seconds = _planned(tight)
        except ShardwrightError:
            yield [*row, "none fits", *[""] * (len(COLUMNS) - 3)]
            continue
        # Of a tighter limit it counts whether its plan is faster than that of a wider one.
        yield [*row, *_figures(other), "", "", _won(before, other.cost.objective), *_more(other), seconds]
        before = other.cost.objective


def _planned(planner: Planner) -> tuple[Plan, str]:
    began = time.process_time()
    plan = planner.best()
    return plan, f"{time.process_time() - began:.1f}" + (" (late)" if plan.timed_out else "")


def _figures(plan: Plan) -> list[str]:
    return [f"{plan.cost.objective / 1e9:.2f}", f"{plan.lower_bound / 1e9:.2f}", f"{100 * plan.gap:.1f}%"]


def _more(plan: Plan) -> list[str]:
    return [f"{plan.memory / 2**30:.1f}", f"{100 * plan.cost.compute / max(plan.cost.objective, 1):.0f}%"]


def _won(ours: int, other: int) -> str:
    won = (other - ours) / max(other, 1)
    return f"{100 * won:.1f}%" + (" **lost**" if won < -LOST else "")


def _recipes(planner: Planner) -> Iterator[tuple[int, str]]:
    for name in DISTINCT:
        try:
            plan = planner.by_recipe(name)
        except ShardwrightError:
            continue
        if plan.memory <= planner.limit:
            yield plan.cost.objective, name


def _layouts(name: str, source: Source, mesh: DeviceMesh) -> Iterator[tuple[int, str]]:
    for layout, pins in layouts_of(name, source, mesh):
        planner = planner_of(source, mesh, requests_of(pins), "h100", Learning())
        for how, make in (("specs", planner.by_specs), ("planned", planner.best)):
            try:
                plan = make()
            except ShardwrightError:
                continue
            if plan.memory <= planner.limit:
                yield plan.cost.objective, f"{layout} ({how})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL@MESH")
    parser.add_argument("--all", action="store_true", help="every model on every mesh")
    parser.add_argument("--limits", default="", help="parts of the plan's memory that it is planned for once more")
    said = parser.parse_args()
    everything = [f"{name}@{mesh}" for name in MODELS for mesh in MESHES]
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for case in everything if said.all else said.cases or CASES:
        for row in measured(case, [float(part) for part in said.limits.split(",") if part]):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
