"""Numbers of the field that a proof computes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import shardwright.torch as swt
from shardwright.proof.foreign.numbers import PRIMES, Numbers


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        (0.1 + 0.2, (3, 10)),
        (0.0875 * 8 / 7, (1, 10)),
        (1 - 4 / 35, (31, 35)),
        (np.float32(0.1) * np.float32(9), (9, 10)),
    ],
    ids=str,
)
def test_roundings_of_constants_are_not_asked(value: Any, fraction: tuple[int, int]) -> None:
    """A constant that the program computed by itself is what it would be without roundings."""
    numbers = Numbers(PRIMES[0], 1)
    above, below = (numbers.number(float(n)) for n in fraction)
    assert numbers.real(np.asarray(value), "f32").residue == numbers.divide(above, below).residue


def test_other_constants_are_told_apart() -> None:
    numbers = Numbers(PRIMES[0], 1)
    values = [0.1, 0.1 + 1e-9, 1e-6, 1e-6 + 1e-15, 1e-300, 3.14159, 0.0]
    assert len({float(numbers.number(value).residue) for value in values}) == len(values)


def test_a_factor_may_be_computed_in_another_order() -> None:
    x = torch.arange(12.0).reshape(4, 3).sin()

    def parallel(mesh: Any) -> Any:
        return lambda x: x * (0.1 * 3) + x * (1 - 0.3 - 0.2)

    assert swt.prove(parallel, like=lambda x: x * 0.8, mesh={"dp": 2}, inputs=(x,))
    assert not swt.prove(parallel, like=lambda x: x * 0.8001, mesh={"dp": 2}, inputs=(x,))
