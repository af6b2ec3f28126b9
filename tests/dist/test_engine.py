"""The engine on four real processes: one launch, many checks."""

from __future__ import annotations

import pytest
from launch import launch

CHECKS = {
    "collectives.py": ("reduce", "nan", "gather", "scatter", "exchange", "groups", "under_way", "refused"),
    "programs.py": ("even", "uneven", "empty", "turned", "step"),
    "state.py": ("sent", "held", "compared", "unlike"),
    "pending.py": ("trips", "parts", "doors", "steps"),
}


@pytest.mark.parametrize("script", CHECKS)
def test_on_four_processes(script: str) -> None:
    """Collectives against NumPy; emitted programs against the virtual mesh, one device and what PyTorch counts; state
    that all ranks start from."""
    done = launch(script, timeout=240)
    for text in done.outputs:
        for name in CHECKS[script]:
            assert f"passed {name}\n" in text, str(done)
    assert done.code == 0, str(done)
    assert done.left == ()
