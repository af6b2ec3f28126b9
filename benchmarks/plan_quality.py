"""How good plans are: the plan's simulated step beside those of all recipes and of layouts that others publish.

    python benchmarks/plan_quality.py                                # a few models on a few meshes
    python benchmarks/plan_quality.py gpt2-b64@x=8,y=8 vit-b64@d=8   # models of `quality_models`, by mesh
    python benchmarks/plan_quality.py --all                          # every model on every mesh: hours
    python benchmarks/plan_quality.py --limits 0.9,0.7 gpt2-b64@d=8  # under parts of the memory that the plan takes
    python benchmarks/plan_quality.py --seconds 200 --all            # so many CPU seconds for each case at most

Milliseconds by simulation on the H100 preset, within its memory.  A layout (`published_layouts`) pins inputs; what it
leaves open is spread by propagation (``specs``) or planned (``planned``), and the faster of both counts.  ``won`` is
how much less the plan takes than the best of all others that fit: below -0.5% it lost.  ``computes`` is the part of
the step that is compute.  Seconds are CPU seconds of planning, without capture.

Each case runs in a process of its own, under limits of CPU time and memory.  Of deep stacks of equal layers recipes are
estimated by a few layers first, and those within `NEAR` of the least are priced in full, of 32 layers as of 4.  What
there was no time for is counted.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from plan_limits import by_cpu
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
from shardwright.solve.recipes.costs import recipe_cost
from shardwright.solve.repeated.depth import deep_time

CASES = ["gpt2-b64@d=8", "gpt2-b64@x=8,y=8", "experts-b64@x=8,y=8", "recommender-b4096@x=8,y=8", "llama4l-b8@x=8,y=8"]
MESHES = ("d=8", "x=4,y=8", "x=8,y=8", "x=16,y=8", "x=2,y=4,z=8")
COLUMNS = ("model", "mesh", "plan", "bound", "gap", "best recipe", "best layout", "won", "GiB", "computes", "seconds")
LOST = 0.005
NEAR = 1.05
"""Recipes whose estimate is no more than this part of the least one are priced in full."""
Found = list[tuple[int, str]]


def measured(case: str, limits: Sequence[float], until: float) -> Iterator[list[str]]:
    name, mesh = case.split("@")
    fn, args, about = MODELS[name]()
    optimizer, loss = about.pop("optimizer", None), about.pop("loss", None)
    source, on = capture_source(fn, args, about, optimizer=optimizer, loss=loss), DeviceMesh(mesh)
    planner = planner_of(source, on, [], "h100", Learning())
    plan, seconds = _planned(planner)
    ours = plan.cost.objective
    rows = list(_under_limits(source, on, plan, limits))
    others = [_recipes(planner, until), _layouts(name, source, on, until)]
    best = min((time for found, _ in others for time, _ in found), default=ours)
    told = [_best(found) + missed for found, missed in others]
    yield [name, mesh, *_figures(plan), *told, _won(ours, best), *_more(plan), seconds]
    for row in rows:
        yield [name, *row]


def _under_limits(source: Source, mesh: DeviceMesh, plan: Plan, limits: Sequence[float]) -> Iterator[list[str]]:
    """Of a tighter limit it counts whether its plan is faster than that of a wider one."""
    before = plan.cost.objective
    for part in sorted(limits, reverse=True):
        tight = planner_of(source, mesh, [Request("memory", int(plan.memory * part))], "h100", Learning())
        row = f"{mesh}, {100 * part:.0f}% of the memory"
        try:
            other, seconds = _planned(tight)
        except ShardwrightError:
            yield [row, "none fits", *[""] * (len(COLUMNS) - 3)]
            continue
        yield [row, *_figures(other), "", "", _won(before, other.cost.objective), *_more(other), seconds]
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


def _best(found: Found) -> str:
    return f"{min(found)[1]} {min(found)[0] / 1e9:.2f}" if found else "none fits"


def _recipes(planner: Planner, until: float) -> tuple[Found, str]:
    asked, estimates = planner.asked, dict[str, int]()
    for name in DISTINCT:
        try:
            about = planner.graph, planner.mesh, planner.hardware, asked.pins, asked.outs, planner.known
            folded = recipe_cost(name, *about)[1]
        except ShardwrightError:
            continue
        estimates[name] = 0 if folded is None else deep_time(*folded, planner.hardware)
    found, missed, least = Found(), 0, 0
    for name in sorted(estimates, key=lambda name: estimates[name]):
        if found and least and estimates[name] > NEAR * least:
            continue
        if time.process_time() > until:
            missed += 1
            continue
        plan = planner.by_recipe(name)
        if plan.memory <= planner.limit:
            found.append((plan.cost.objective, name))
            least = least or estimates[name]
    return found, f" ({missed} not looked at)" if missed else ""


def _layouts(name: str, source: Source, mesh: DeviceMesh, until: float) -> tuple[Found, str]:
    found, missed = Found(), 0
    for layout, pins in layouts_of(name, source, mesh):
        planner = planner_of(source, mesh, requests_of(pins), "h100", Learning())
        for how, make in (("specs", planner.by_specs), ("planned", planner.best)):
            if time.process_time() > until:
                missed += 1
                continue
            try:
                plan = make()
            except ShardwrightError:
                continue
            if plan.memory <= planner.limit:
                found.append((plan.cost.objective, f"{layout} ({how})"))
    return found, f" ({missed} not looked at)" if missed else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL@MESH")
    parser.add_argument("--all", action="store_true", help="every model on every mesh")
    parser.add_argument("--limits", default="", help="parts of the plan's memory that it is planned for once more")
    parser.add_argument("--seconds", type=int, default=600, help="CPU seconds for each case")
    parser.add_argument("--gib", type=float, default=4.0, help="memory for each case")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # a case, in this process
    said = parser.parse_args()
    limits = [float(part) for part in said.limits.split(",") if part]
    if said.here:
        by_cpu()  # what else the machine does cuts no plan short
        resource.setrlimit(resource.RLIMIT_CPU, (2 * said.seconds, 2 * said.seconds))
        resource.setrlimit(resource.RLIMIT_DATA, (int(said.gib * 2**30),) * 2)
        for row in measured(said.cases[0], limits, said.seconds):
            print("| " + " | ".join(row) + " |", flush=True)
        return
    everything = [f"{name}@{mesh}" for name in MODELS for mesh in MESHES]
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    for case in everything if said.all else said.cases or CASES:
        about = ["--here", case, "--seconds", str(said.seconds), "--gib", str(said.gib), "--limits", said.limits]
        done = subprocess.run([sys.executable, __file__, *about], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"])[-1]
            print(f"| {case.replace('@', ' | ')} | {why[:200]} |", flush=True)


if __name__ == "__main__":
    main()
