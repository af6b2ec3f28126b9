"""Random plans of random programs against the bound of each: what a long test and a script share.

python tests/random_steps.py 5000        # so many programs; prints what is below its bound, which nothing is
"""

from __future__ import annotations

import random
import sys

from all_plans import step_of
from shardwright import DeviceMesh
from shardwright.cost import H100
from shardwright.errors import ShardwrightError
from shardwright.plans import Asked
from shardwright.solve.model import Assigner
from shardwright.solve.planner import Planner
from shardwright.solve.recipes import DISTINCT
from small_graphs import random_graph

MESHES = ("d=2", "d=4", "x=2, y=2", "d=6", "x=2, y=8", "d=8")
PLANS = 12
"""Random choices for each program, beside its plan and the recipes'."""


def below_bound(seed: int) -> list[str]:
    """What of a program takes less than its bound; the planner itself raises where its own plans do."""
    sizes = random.Random(seed).choice([(768, 1536, 3072), (64, 96, 192), (6144, 12288)])
    graph, mesh = random_graph(seed, 1 + seed % 7, sizes), DeviceMesh(MESHES[seed % len(MESHES)])
    planner = Planner(graph, mesh, H100.on(mesh), Asked(graph))
    plan = planner.best()
    times = {"plan": plan.cost.objective}
    for name in DISTINCT:
        try:
            times[name] = planner.by_recipe(name).cost.objective
        except ShardwrightError:
            continue  # it does not fit the program
    about, rng = Assigner(graph, mesh, planner.hardware), random.Random(seed)
    counts = [len(ways) for ways in about.ways] + [len(about.inputs[value]) for value in graph.inputs]
    for i in range(PLANS):
        times[f"random {i}"] = step_of(about.decode([rng.randrange(count) for count in counts]), planner.hardware)
    bound = plan.lower_bound
    return [f"{seed} on ({mesh}): {name} {time} < {bound}" for name, time in times.items() if time < bound]


def main() -> None:
    count = int(sys.argv[1])
    found = [line for seed in range(count) for line in below_bound(seed)]
    print(*found, f"{len(found)} below the bound, of {count} programs", sep="\n")


if __name__ == "__main__":
    main()
