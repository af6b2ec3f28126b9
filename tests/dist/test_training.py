"""Ordinary training runs on four real processes: local data, clipping, accumulation, schedules, smaller batches."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from launch import launch

SOURCE = ast.parse((Path(__file__).parent / "training.py").read_text())
RUNS = ast.literal_eval(
    next(node.value for node in SOURCE.body if isinstance(node, ast.Assign) and node.targets[0].id == "RUNS")
)
SHORT = ("gpt2 zero3",)


def trains(steps: int, cases: tuple[str, ...], timeout: float) -> None:
    done = launch("training.py", str(steps), *cases, timeout=timeout)
    for text in done.outputs:
        for case, _, how in RUNS:
            if not cases or case in cases:
                assert f"passed {case} {how}\n" in text, str(done)
        assert "passed refusals\n" in text, str(done)
        assert "passed warnings\n" in text, str(done)
    assert done.code == 0, str(done)
    assert done.left == ()


def test_ranks_train_as_one_process_does() -> None:
    """Ranks begin with other weights than rank 0; losses, norms and parameters are eager PyTorch's to 1e-9."""
    trains(5, SHORT, 400)


@pytest.mark.long
def test_fifty_steps_of_every_model() -> None:
    trains(50, (), 1800)
