"""How good plans are: the plan's simulated step beside all recipes', and its gap.

    python benchmarks/plan_quality.py                                # a few models on a few meshes
    python benchmarks/plan_quality.py gpt2-b64@x=8,y=8 vit-b64@d=8   # models of `quality_models`, by mesh

Milliseconds by simulation on the H100 preset, within its memory; ``won`` is how much faster the plan is than the best
recipe that fits; seconds are CPU seconds of planning, without capture.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from quality_models import MODELS

from shardwright import DeviceMesh
from shardwright.api.deciding import Learning, planner_of
from shardwright.errors import ShardwrightError
from shardwright.frontends.base import capture_source
from shardwright.solve.recipes import DISTINCT

CASES = ["gpt2-b64@d=8", "gpt2-b64@x=8,y=8", "vit-b64@x=8,y=8", "unet-b16@x=8,y=8", "llama8b-b64@x=8,y=8"]
COLUMNS = ("model", "mesh", "plan", "bound", "gap", "best recipe", "won", "GiB", "seconds")


def measured(case: str) -> list[str]:
    name, mesh = case.split("@")
    fn, args, about = MODELS[name]()
    optimizer, loss = about.pop("optimizer", None), about.pop("loss", None)
    source = capture_source(fn, args, about, optimizer=optimizer, loss=loss)
    planner = planner_of(source, DeviceMesh(mesh), [], "h100", Learning())
    began = time.process_time()
    plan = planner.best()
    seconds = time.process_time() - began
    rivals = sorted(recipes(planner))
    ours, (best, recipe) = plan.cost.objective, rivals[0] if rivals else (0, "none fits")
    return [
        name, mesh, f"{ours / 1e9:.2f}", f"{plan.lower_bound / 1e9:.2f}", f"{100 * plan.gap:.1f}%",
        f"{recipe} {best / 1e9:.2f}", f"{100 * (best - ours) / max(best, 1):.1f}%", f"{plan.memory / 2**30:.1f}",
        f"{seconds:.1f}" + (" (late)" if plan.timed_out else ""),
    ]  # fmt: skip


def recipes(planner: object) -> Iterator[tuple[int, str]]:
    for name in DISTINCT:
        try:
            plan = planner.by_recipe(name)  # type: ignore[attr-defined]
        except ShardwrightError:
            continue
        if plan.memory <= planner.limit:  # type: ignore[attr-defined]
            yield plan.cost.objective, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="MODEL@MESH")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for case in parser.parse_args().cases:
        print("| " + " | ".join(measured(case)) + " |", flush=True)


if __name__ == "__main__":
    main()
