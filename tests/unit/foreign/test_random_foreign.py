"""A fixed sample of `benchmarks/foreign_programs.py`: no correct program is refused, every mistake that shows is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import foreign_programs
from foreign.mistakes import KINDS, mutants
from foreign.programs import draw
from foreign.tally import Tally, judged, traced

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # names that PyTorch 2.11 has, too

SAMPLE = (3, 4, 6, 7, 9, 12, 16, 18, 21, 24, 27, 33)
"""Seeds: hand-written and DTensor, all wrappers, steps with and without clipping."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_random_program_is_proven_and_its_mutants_are_refused(seed: int) -> None:
    tally = judged(seed, 3 if seed % 3 == 0 else 2)
    assert not tally.broken, tally.broken[0]
    assert not tally.alarms, tally.alarms[0]
    assert not tally.survivors, tally.survivors[0]


def test_mutants_are_of_many_kinds_and_most_change_a_result() -> None:
    tally = Tally()
    tally.add(judged(6, 10))
    assert not tally.survivors, tally.survivors[0]
    assert tally.total("changing") >= 7
    assert len(tally.rows) >= 4
    assert set(tally.rows) <= set(KINDS)


def test_the_same_seed_is_the_same_program() -> None:
    assert draw(6).name == draw(6).name
    first, second = ([m.kind for m in mutants(traced(draw(6)), 6, 5)] for _ in range(2))
    assert first == second


def test_mutants_are_shared_out() -> None:
    assert foreign_programs.share(range(4), 10) == [3, 3, 2, 2]
