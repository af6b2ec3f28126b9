"""Faults on real processes: every rank ends within 15 s, naming the rank and the reason, and no process is left."""

from __future__ import annotations

import re

import pytest
from launch import Launched, launch, launch_bare

REASONS = {
    "kill": r"rank 1 died: its process \d+ is gone",
    "raise": r"rank 1 failed: ValueError: no more data",
    "sleep": r"rank 1 did not arrive at step \d+ \(program\) within 5 s",
    "program": r"rank 1 would not do the same as the others[^$]*rank 1: other_program",
    "dtype": r"rank 1 would not do the same as the others[^$]*rank 1: x: f64",
    "input": r"rank 1 would not do the same as the others[^$]*rank 1: x is f64\[4, 3\], not f32\[4, 3\]",
    "leave": r"rank 1 ended while others wait for it in step \d+ \(program\)",
    "bad step": r"rank 1 failed: GraphError: the inputs are not those of program",
}
ON_ITSELF = {"kill": r"fault", "raise": r"ValueError: no more data", "leave": r"fault", "bad step": r"1 inputs, not 2"}
"""What the odd rank has to say: not much if it is dead."""


def check(done: Launched, odd: int, reason: str, on_itself: str) -> None:
    for rank, text in enumerate(done.outputs):
        wanted = on_itself if rank == odd else reason
        assert re.search(wanted, text), f"rank {rank} does not say {wanted!r}\n{done}"
        assert "finished" not in text
    assert done.code != 0
    assert done.left == (), str(done)
    assert done.ended - when(done) < 15.0, f"{done.ended - when(done):.1f} s\n{done}"


def when(done: Launched) -> float:
    lines = [line for text in done.outputs for line in text.splitlines() if line.startswith("fault ")]
    assert lines, str(done)
    return max(float(line.split()[1]) for line in lines)


@pytest.mark.parametrize("kind", REASONS)
def test_fault(kind: str) -> None:
    ranks = 3 if kind in ("kill", "raise", "sleep") else 2
    check(launch("faults.py", kind, "1", ranks=ranks), 1, REASONS[kind], ON_ITSELF.get(kind, REASONS[kind]))


@pytest.mark.parametrize("kind", ["kill", "idle"])
def test_the_rank_with_the_store_is_killed(kind: str) -> None:
    """Without torchrun, which would end the others."""
    check(launch_bare("faults.py", kind, "0"), 0, r"rank 0 (died: its process \d+ is gone|is gone)", r"fault")
