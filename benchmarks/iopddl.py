"""Contest problems: ``python benchmarks/iopddl.py FILE... --time-limit S``

Solves each file and prints what came out beside the best team's result and that of XLA's own solver, which are read
from ``contest_results.csv`` next to the file, by the instance's last letter.  Cost and memory are recomputed here from
the file, by code that shares nothing with the solver; the script fails if they differ from what the solver says.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
import time
from pathlib import Path

from shardwright.errors import PlanInfeasible
from shardwright.optimize import Progress, read, solve, solver_names

FORBIDDEN = 10**18


def recompute(path: Path, choice: tuple[int, ...]) -> tuple[int, int, int | None]:
    """Cost, peak and limit of a choice, straight from the file."""
    data = path.read_bytes()
    problem = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["problem"]
    nodes, edges = problem["nodes"], problem["edges"]
    cost = sum(costs[pick] for costs, pick in zip(nodes["costs"], choice))
    for (i, j), costs in zip(edges["nodes"], edges["costs"]):
        cost += costs[choice[i] * len(nodes["costs"][j]) + choice[j]]
    change: dict[int, int] = {}
    for interval, usages, pick in zip(nodes["intervals"], nodes["usages"], choice):
        if interval and interval[0] < interval[1]:
            change[interval[0]] = change.get(interval[0], 0) + usages[pick]
            change[interval[1]] = change.get(interval[1], 0) - usages[pick]
    held = peak = 0
    for moment in sorted(change):
        held += change[moment]
        peak = max(peak, held)
    return cost, peak, problem.get("usage_limit")


def results(path: Path) -> tuple[int | None, int | None]:
    """The best team's cost and XLA's, where the table is at hand and they have one."""
    table = path.parent / "contest_results.csv"
    letter = path.name.split(".")[0].split("-")[-1]
    if not table.exists():
        return None, None
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {row["TEAM #"]: int(row[letter]) for row in rows if row.get(letter)}
    teams = [cost for team, cost in found.items() if team != "XLA" and cost < FORBIDDEN]
    return min(teams, default=None), found.get("XLA")


def ratio(cost: int, other: int | None) -> str:
    return "-" if other is None else f"{cost / other:.4f}"


def show(progress: Progress) -> None:
    print(f"\r  {progress.seconds:6.1f} s  {progress.doing:<8}  {progress.cost} >= {progress.lower_bound}  ", end="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--time-limit", type=float, default=300.0, metavar="S", help="seconds per file, reading included"
    )
    parser.add_argument("--solver", choices=solver_names(), default="auto")
    options = parser.parse_args()
    columns = "{:<24} {:>16} {:>16} {:>9} {:>8} {:>8} {:>8} {:>8}  {}"
    print(columns.format("instance", "cost", "bound", "gap", "seconds", "CPU", "to best", "to XLA", "solver"))
    failed = 0
    for path in options.files:
        start, cpu = time.perf_counter(), time.process_time()
        problem = read(path)
        name = problem.name or path.name
        left = max(1.0, options.time_limit - (time.perf_counter() - start))
        try:
            found = solve(problem, options.solver, left, show if sys.stdout.isatty() else None)
        except PlanInfeasible as error:
            print(f"{name:<24} {error.fact}")
            failed += 1
            continue
        seconds, spent = time.perf_counter() - start, time.process_time() - cpu
        cost, peak, limit = recompute(path, found.choice)
        if cost != found.cost or (limit is not None and peak > limit):
            print(f"{name}: the file says cost {cost}, peak {peak} of {limit}; the solver said cost {found.cost}")
            failed += 1
            continue
        best, xla = results(path)
        gap = "optimal" if found.optimal else f"{found.gap:.3%}"
        row = (cost, found.lower_bound, gap, f"{seconds:.1f}", f"{spent:.1f}", ratio(cost, best), ratio(cost, xla))
        print("\r" * sys.stdout.isatty() + columns.format(name, *row, found.solver), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
