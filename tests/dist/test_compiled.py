"""Ranks settle on one form of a step together, on two real processes."""

from __future__ import annotations

from launch import launch


def test_ranks_choose_together_and_train_alike() -> None:
    done = launch("compiled.py", ranks=2, timeout=120)
    assert all("passed compiled" in text for text in done.outputs), str(done)
    assert done.code == 0, str(done)
    assert done.left == ()
