"""Contest problems with known optima, where they are at hand; else one of the same make, small, with its proof.

Only problems that are solved in seconds run here; ``benchmarks/iopddl.py`` measures the others.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwright.optimize import read, reduce, solve

ROOT = Path(__file__).parents[2]
FULL = ROOT.parent / "shared" / "iopddl"
OPTIMA = {"B": 532_843, "G": 217_039}


def generated(path: Path, seed: int = 0) -> None:
    """A file like the contest's: a chain of matmuls with weights, elementwise followers and a residual, twelve layers,
    and a limit a tenth above the least peak."""
    rng = np.random.default_rng(seed)
    kinds = 4
    bytes_, move = np.array([16, 4, 4, 1]), np.array([[0, 3, 3, 9], [5, 0, 8, 4], [5, 8, 0, 4], [12, 6, 6, 0]])
    costs, usages, intervals, pairs, tables = [], [], [], [], []

    def node(weight: int, start: int, end: int, cost: list[int]) -> int:
        costs.append(cost)
        usages.append([int(b) * weight for b in bytes_])
        intervals.append([start, end])
        return len(costs) - 1

    def edge(i: int, j: int, table: np.ndarray) -> None:
        pairs.append([i, j])
        tables.append([int(value) for value in table.reshape(-1)])

    follow = np.where(np.eye(kinds, dtype=bool), 0, 10**18)
    last = node(2, 0, 4, [0] * kinds)
    for layer in range(12):
        now = 3 * layer + 1
        weight = node(8, 0, 40, [0] * kinds)
        product = node(3, now, now + 3, rng.integers(20, 60, kinds).tolist())
        activation = node(3, now + 1, now + 4, [0] * kinds)
        total = node(2, now + 2, now + 6, [0] * kinds)
        edge(last, product, move * int(rng.integers(1, 30)))
        edge(weight, product, move * int(rng.integers(1, 90)))
        edge(product, activation, follow)
        edge(activation, total, move * 7)
        edge(last, total, move * 7)
        last = total
    least = max(
        sum(min(usage) for usage, (start, end) in zip(usages, intervals) if start <= time < end) for time in range(44)
    )
    nodes = {"intervals": intervals, "costs": costs, "usages": usages}
    problem = {
        "name": "generated-Z",
        "nodes": nodes,
        "edges": {"nodes": pairs, "costs": tables},
        "usage_limit": least * 11 // 10,
    }
    path.write_bytes(gzip.compress(json.dumps({"problem": problem}).encode(), mtime=0))


def test_a_generated_problem_is_solved_alike_by_all(tmp_path: Path) -> None:
    generated(tmp_path / "Z.json.gz")
    problem = read(tmp_path / "Z.json.gz")
    small = reduce(problem).problem
    assert small.nodes < problem.nodes
    found = {name: solve(problem, name) for name in ("elimination", "ilp", "auto", "search", "messages")}
    assert all(problem.evaluate(solution.choice).feasible for solution in found.values())
    assert found["ilp"].optimal
    assert found["auto"].optimal
    assert {found[name].cost for name in ("elimination", "ilp", "auto", "search")} == {found["ilp"].cost}


def test_the_benchmark_recomputes_what_the_solver_says(tmp_path: Path) -> None:
    generated(tmp_path / "Z.json.gz")
    (tmp_path / "contest_results.csv").write_text("TEAM #,Z\nteam01,1000\nteam02,\nXLA,2000\n")
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "iopddl.py"),
        str(tmp_path / "Z.json.gz"),
        "--time-limit",
        "30",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = done.stdout.splitlines()[-1].split()
    cost = solve(read(tmp_path / "Z.json.gz")).cost
    assert line[:4] == ["generated-Z", str(cost), str(cost), "optimal"]
    assert line[6:8] == [f"{cost / 1000:.4f}", f"{cost / 2000:.4f}"]


@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_proven_optima(name: str) -> None:
    path = FULL / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("contest problems not at hand")
    problem = read(path)
    solution = solve(problem)
    assert solution.optimal
    assert solution.cost == OPTIMA[name]
    assert problem.evaluate(solution.choice).feasible
