"""A plan's figures as data; a plan kept in a file, and read for the same program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return np.maximum(x @ w1, 0) @ w2


def main(folder: Path) -> None:
    shapes = [sw.ShapeDtype(size, np.float32) for size in ((4096, 1024), (1024, 4096), (4096, 1024))]
    plan = sw.plan(mlp, *shapes, mesh="dp=2, tp=4")
    figures = plan.overview.to_json()
    print(
        "step",
        figures["step_ps"],
        "= compute",
        figures["compute_ps"],
        "+ exposed",
        figures["exposed_ps"],
        "picoseconds",
    )
    print("memory", figures["memory_bytes"], "=", " + ".join(map(str, figures["memory_kinds"].values())), "bytes")
    assert figures["step_ps"] == figures["compute_ps"] + figures["exposed_ps"]
    (folder / "trace.json").write_text(json.dumps(plan.trace_events()))  # for ui.perfetto.dev
    (folder / "plan.json").write_text(plan.to_json())
    again = sw.load_plan(folder / "plan.json", mlp, *shapes)
    print("read again:", again.specs == plan.specs, again.verify() == plan.verify())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
