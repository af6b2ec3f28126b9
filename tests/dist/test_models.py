"""Models on four real processes: one launch, many models."""

from __future__ import annotations

import torch_zoo as zoo
from launch import launch

CHECKS = (*zoo.CASES, "strategies", "mapped")


def test_models_on_four_processes() -> None:
    """Three AdamW steps equal eager ones; collectives are the Program's and those that PyTorch counts."""
    done = launch("models.py", timeout=400)
    for text in done.outputs:
        for name in CHECKS:
            assert f"passed {name}\n" in text, str(done)
    assert done.code == 0, str(done)
    assert done.left == ()
