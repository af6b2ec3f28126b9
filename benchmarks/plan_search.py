"""Whether a local search finds a faster plan than the planner, given ten times its time.

    python benchmarks/plan_search.py                                    # a few models on a few meshes
    python benchmarks/plan_search.py gpt2-b64@x=8,y=8 --times 3         # a model of `quality_models`; less time

Two ways by turns: the best plan by a random sum (`solve.scheduled` has six or seven of them), and the best plan so far
with another strategy for one op, the same in all equal layers.  Each plan is lowered, ordered and simulated, and has to
fit.  Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence

import torch
from plan_limits import by_cpu
from quality_models import MODELS

from shardwright import DeviceMesh
from shardwright.api.deciding import Learning, planner_of
from shardwright.cost.machine import Overlap
from shardwright.errors import ShardwrightError
from shardwright.frontends.base import capture_source
from shardwright.optimize.compact import OutOfTime
from shardwright.plans.complete import Complete
from shardwright.solve.planner import Planner
from shardwright.solve.repeated.layers import find_layers
from shardwright.solve.scheduled import Scheduled, StandIn

CASES = ["gpt2-b64@x=8,y=8", "experts-b64@x=8,y=8", "llama4l-b8@x=8,y=8"]
COLUMNS = ("model", "mesh", "planner's s", "plan", "search's s", "plans", "best found", "by", "faster by")


def random_sum(rng: random.Random) -> StandIn:
    parts = [rng.choice((5, 10, 20, 30, 50, 70, 100)) for _ in range(4)]
    return StandIn(Overlap(*parts, bucketed=rng.random() < 0.6), rng.choice((0, 0, 300, 500, 700, 1000)))


def alike(planner: Planner) -> list[list[int]]:
    """Nodes in groups: those at the same place of equal layers, and each other one by itself."""
    layers = find_layers(planner.graph, planner.whole.given)
    groups: dict[object, list[int]] = {}
    for n in range(len(planner.graph.nodes)):
        inside = layers is not None and layers.layer[n] >= 0
        groups.setdefault(("in", int(layers.node_place[n])) if layers and inside else ("out", n), []).append(n)
    return [group for group in groups.values() if len(planner.whole.ways[group[0]]) > 1]


def choice_of(planner: Planner, plan: Complete) -> list[int]:
    """A plan as choices of the numeric problem; the first that is like it, where it has a strategy of no list."""
    about, found = planner.whole, []
    for ways, decision in zip(about.ways, plan.decisions):
        like = [
            sum(
                a.same_layout(b) for a, b in zip((*way.operands, *way.results), (*decision.operands, *decision.results))
            )
            for way in ways
        ]
        found.append(like.index(max(like)))
    for value, spec in zip(planner.graph.inputs, plan.inputs):
        same = [i for i, other in enumerate(about.inputs[value]) if other.same_layout(spec)]
        found.append(same[0] if same else 0)
    return found


def candidates(
    planner: Planner, search: Scheduled, start: Complete, rng: random.Random
) -> Iterator[tuple[str, Complete]]:
    groups, choice = alike(planner), choice_of(planner, start)
    while True:
        stand_in = random_sum(rng)
        found = search.beside(stand_in) if stand_in.between else search.by(stand_in.overlap)
        if found is not None:
            yield "a sum", found.complete
        for _ in range(3):
            other = list(choice)
            group = rng.choice(groups)
            pick = rng.randrange(len(planner.whole.ways[group[0]]))
            for n in group:
                other[n] = pick if pick < len(planner.whole.ways[n]) else other[n]
            is_better = yield "a change", planner.whole.decode(other)
            choice = other if is_better else choice


def row(case: str, times: float) -> Sequence[str]:
    name, mesh = case.split("@")
    fn, args, about = MODELS[name]()
    optimizer, loss = about.pop("optimizer", None), about.pop("loss", None)
    source = capture_source(fn, args, about, optimizer=optimizer, loss=loss)
    planner = planner_of(source, DeviceMesh(mesh), [], "h100", Learning())
    began = time.process_time()
    plan = planner.best()
    seconds = time.process_time() - began
    until = time.process_time() + times * seconds
    search = planner.scheduled("auto", until)
    best, by, count = plan.cost.objective, "", 0
    tried = candidates(planner, search, plan.complete, random.Random(0))
    is_better: bool | None = None
    while time.process_time() < until:
        try:
            how, complete = tried.send(is_better)
            other = planner.priced(complete, how)
        except (OutOfTime, ShardwrightError):
            break
        count, is_better = count + 1, other.memory <= planner.limit and other.cost.objective < best
        if is_better:
            best, by = other.cost.objective, how
    faster = 1 - best / plan.cost.objective
    spent = time.process_time() - until + times * seconds
    times_found = f"{plan.cost.objective / 1e9:.2f}", f"{spent:.0f}", str(count), f"{best / 1e9:.2f}"
    return [name, mesh, f"{seconds:.1f}", *times_found, by, f"{100 * faster:.1f}%"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL@MESH")
    parser.add_argument("--times", type=float, default=10.0, help="as much time as the planner took")
    said = parser.parse_args()
    torch.set_num_threads(1)
    by_cpu()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    for case in said.cases or CASES:
        print("| " + " | ".join(row(case, said.times)) + " |", flush=True)


if __name__ == "__main__":
    main()
