"""Plans of the solver on four real processes: one launch, many models."""

from __future__ import annotations

import ast
from pathlib import Path

from launch import launch


def test_plans_train_on_four_processes() -> None:
    """Three AdamW steps equal eager ones, collectives and memory are the plan's, one rank plans for all."""
    done = launch("plans.py", timeout=600)
    source = ast.parse((Path(__file__).parent / "plans.py").read_text())
    cases = next(node.value for node in source.body if isinstance(node, ast.Assign) and node.targets[0].id == "CASES")
    for text in done.outputs:
        for case, part in ast.literal_eval(cases):
            assert f"passed {case} {part}\n" in text, str(done)
        assert "passed rank 0 plans\n" in text, str(done)
        assert "passed rank 0 proves\n" in text, str(done)
    assert done.code == 0, str(done)
    assert done.left == ()
