"""Checkpoints on real processes: saved by four, gone on from by four, three, two and one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from launch import launch

ON_FOUR = ("dp=2, tp=2", "tp=2, dp=2", "dp=1, tp=4")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> Any:
    """Where four processes saved, and how they ended: one of them was killed while it saved once more."""
    path = tmp_path_factory.mktemp("checkpoints") / "last"
    return path, launch("checkpoints.py", str(path), *ON_FOUR, timeout=240)


def test_four_processes_save_and_go_on(saved: Any) -> None:
    _, done = saved
    for text in done.outputs:
        for part in ("stopped and gone on", "saved by PyTorch", "refused", *(f"resumed on {mesh}" for mesh in ON_FOUR)):
            assert f"passed {part}\n" in text, str(done)


def test_a_kill_while_saving_leaves_the_checkpoint_before(saved: Any) -> None:
    """Which one process reads."""
    path, done = saved
    assert "fault" in done.outputs[2], str(done)
    assert done.code != 0
    assert done.left == ()
    assert path.with_name(".last.saving").is_dir()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        state = torch.load(path.with_suffix(".whole"))
        for mesh in ("dp=1", "dp=3"):
            step = checkpoints.made(mesh, seed=3)
            step.restore(path)
            assert step.steps == 3
            checkpoints.check_same(checkpoints.whole(step), checkpoints.tensors(state))
        step.save(path)
        assert not path.with_name(".last.saving").exists()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(("mesh", "ranks"), [("tp=2", 2), ("dp=3", 3)])
def test_fewer_processes_go_on(mesh: str, ranks: int, saved: Any) -> None:
    path: Path = saved[0]
    done = launch("checkpoints.py", str(path), mesh, ranks=ranks)
    assert all(f"passed resumed on {mesh}\n" in text for text in done.outputs), str(done)
    assert done.code == 0, str(done)
    assert done.left == ()
