"""The same plan, to the letter, on every run and on every Python.

The golden files hold each plan as text: what it costs, how good it is, and its Program.  Where a plan is meant to
change, run this file as a script: it writes them anew, and the difference is there to read.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwright as sw

GOLDEN = Path(__file__).parents[2] / "golden" / "plans"


def shape(*dims: int) -> sw.ShapeDtype:
    return sw.ShapeDtype(dims, np.float32)


def mlp(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = np.maximum(x @ w, 0)
    return x


def attention(x: Any, q: Any, k: Any, v: Any) -> Any:
    scores = np.exp((x @ q) @ (x @ k).T)
    return (scores / scores.sum(1, keepdims=True)) @ (x @ v)


def residual(x: Any, *weights: Any) -> Any:
    for up, down in zip(weights[::2], weights[1::2]):
        x = x + np.maximum(x @ up, 0) @ down
    return x.sum()


PLANS: dict[str, Callable[[], sw.Plan]] = {
    "mlp-on-8": lambda: sw.plan(mlp, shape(4096, 1024), *[shape(1024, 1024)] * 4, mesh="d=8"),
    "wide-mlp-on-2x4": lambda: sw.plan(mlp, shape(64, 8192), *[shape(8192, 8192)] * 3, mesh="x=2, y=4"),
    "attention-on-4x8": lambda: sw.plan(attention, shape(2048, 1024), *[shape(1024, 1024)] * 3, mesh="x=4, y=8"),
    "three-axes": lambda: sw.plan(mlp, shape(512, 4096), *[shape(4096, 4096)] * 2, mesh="x=2, y=2, z=2"),
    "deep": lambda: sw.plan(residual, shape(2048, 1024), *[shape(1024, 4096), shape(4096, 1024)] * 9, mesh="x=2, y=4"),
    "within-memory": lambda: sw.plan(
        residual, shape(2048, 1024), *[shape(1024, 4096), shape(4096, 1024)] * 3, mesh="d=8", memory="40 MiB"
    ),
}


def text_of(name: str) -> str:
    """All that was decided, for people: the cost in picoseconds, bytes, the bound, and the Program."""
    plan = PLANS[name]()
    cost = plan.cost
    lines = [
        repr(plan),
        f"picoseconds  compute {cost.compute}, communication {cost.communication}, hidden {cost.hidden}, "
        f"exposed {cost.exposed}",
        f"bytes        {plan.memory} held, {plan.program.bytes} sent",
        f"bound        {plan.lower_bound}",
        str(plan.program).replace("tests/unit/api/", ""),  # as a script it is called otherwise
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", PLANS)
def test_as_ever(name: str) -> None:
    assert text_of(name) == (GOLDEN / f"{name}.txt").read_text()


def test_whatever_hashes_are_seeded_with() -> None:
    script = "import runpy, sys; found = runpy.run_path(sys.argv[1]); print(found['text_of'](sys.argv[2]), end='')"
    for name in ("attention-on-4x8", "within-memory"):
        command = [sys.executable, "-c", script, __file__, name]
        for seed in ("1", "2"):
            env = {**os.environ, "PYTHONHASHSEED": seed}
            done = subprocess.run(command, capture_output=True, check=True, text=True, env=env)
            assert done.stdout == (GOLDEN / f"{name}.txt").read_text()


if __name__ == "__main__":
    for name in PLANS:
        (GOLDEN / f"{name}.txt").write_text(text_of(name))
