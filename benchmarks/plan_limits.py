"""Whether `time_limit` is kept: how much longer than it a call takes, without capture.

    python benchmarks/plan_limits.py                                # 20 programs, limits of 1, 3 and 10 seconds
    python benchmarks/plan_limits.py --limits 1 t5-b64@x=8,y=8      # models of `quality_models`, by mesh

The clock is CPU time of one core, also for the planner, so that other work on the machine does not count.  ``beyond``
is what a call takes over its limit, or ``-`` where it was done before.  The plan of the longest limit is that without
one if it is not said to be ``late``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from quality_models import MODELS

from shardwright import DeviceMesh
from shardwright.api.deciding import Learning, planner_of
from shardwright.errors import ShardwrightError
from shardwright.frontends.base import capture_source

CASES = [
    "gpt2-b64@d=8", "gpt2-b64@x=8,y=8", "gpt2-b64@x=2,y=4,z=8", "experts-b64@x=8,y=8", "experts-b64@x=2,y=4,z=8",
    "recommender-b4096@x=8,y=8", "recommender-b4096@x=2,y=4,z=8", "vit6l-b64@d=8", "vit6l-b64@x=8,y=8",
    "unet-b16@d=8", "unet-b16@x=8,y=8", "unet-b16@x=2,y=4,z=8", "t5small-b64@x=8,y=8", "t5-b64@d=8",
    "t5-b64@x=8,y=8", "llama4l-b8@d=8", "llama4l-b8@x=8,y=8", "llama4l-b8@a=2,b=2,c=2,d=2",
    "llama8b-b8@x=8,y=8", "llama8b-b8@x=2,y=4,z=8",
]  # fmt: skip
COLUMNS = ("model", "mesh", "capture", "limit", "takes", "beyond", "ms", "solver", "late")


def by_cpu() -> None:
    """Let the planner look at CPU time."""
    for name, module in list(sys.modules.items()):
        if name.startswith("shardwright.") and hasattr(module, "monotonic"):
            module.monotonic = time.process_time  # type: ignore[attr-defined]


def rows(case: str, limits: list[float]) -> list[list[str]]:
    name, mesh = case.split("@")
    fn, args, about = MODELS[name]()
    optimizer, loss = about.pop("optimizer", None), about.pop("loss", None)
    began = time.process_time()
    source = capture_source(fn, args, about, optimizer=optimizer, loss=loss)
    capture = time.process_time() - began
    found = []
    for limit in limits:
        began = time.process_time()
        try:
            plan = planner_of(source, DeviceMesh(mesh), [], "h100", Learning()).best(time_limit=limit)
            told = [f"{plan.cost.objective / 1e9:.2f}", plan.solver, "late" if plan.timed_out else ""]
        except ShardwrightError as error:
            told = ["", type(error).__name__, ""]
        takes = time.process_time() - began
        beyond = f"{takes - limit:.2f}" if takes > limit else "-"
        found.append([name, mesh, f"{capture:.1f}", f"{limit:g}", f"{takes:.2f}", beyond, *told])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL@MESH")
    parser.add_argument("--limits", default="1,3,10", help="seconds")
    said = parser.parse_args()
    torch.set_num_threads(1)
    by_cpu()
    rows("recommender-b4096@d=2", [10.0])  # rules of ops are read once
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for case in said.cases or CASES:
        for row in rows(case, [float(part) for part in said.limits.split(",")]):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
