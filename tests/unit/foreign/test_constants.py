"""Numbers of the field that a proof computes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwright.torch as swt
from shardwright.frontends.torch.foreign.kernels import TorchKernels
from shardwright.ir.graph import TensorType
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


@pytest.mark.parametrize("square", [2.0, 8.0, 1 / 8, 0.12, 210.0, 2 / 3])
def test_roots_of_small_numbers_are_roots(square: float) -> None:
    """Scores are divided by the root of a size, norms by that of a number of ranks."""
    for prime in PRIMES[:3]:
        numbers = Numbers(prime, 1)
        root, whole = numbers.number(square**0.5), numbers.number(square)
        assert numbers.multiply(root, numbers.number(square**0.5)).residue == whole.residue
        assert numbers.multiply(root, numbers.number(square**-0.5)).residue == 1
        assert numbers.negative(root).residue == numbers.number(-(square**0.5)).residue


def test_gradients_are_clipped_by_a_norm_of_parts_and_copies() -> None:
    """What every rank has counts on each of them for its share, by way of the root of their number."""

    def model() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

    def step_of(model: Any) -> Any:
        def step(x: Any) -> Any:
            model(x).square().mean().backward()
            return nn.utils.clip_grad_norm_(model.parameters(), 0.5)

        return step

    def parallel(mesh: Any) -> Any:
        return step_of(parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))

    x = torch.arange(24.0).reshape(4, 6).sin()
    for ranks in (2, 3):
        proof = swt.prove(parallel, like=step_of(model()), mesh={"tp": ranks}, inputs=(x,))
        assert proof, proof


def test_a_maximum_with_its_place_may_be_subtracted() -> None:
    """Its place is as it was in the run, and it is a maximum all the same."""

    def by_hand(x: Any) -> Any:
        e = (x - x.max(dim=-1, keepdim=True).values).exp()
        return e / e.sum(-1, keepdim=True)

    x = torch.arange(12.0).reshape(4, 3).sin()
    assert swt.prove(lambda mesh: by_hand, like=lambda x: x.softmax(-1), mesh={"dp": 2}, inputs=(x,))


def test_kernels_take_arrays_that_may_not_be_written() -> None:
    one = np.broadcast_to(np.ones((2, 3)), (1, 2, 3))
    (made,) = TorchKernels().compute("aten.bmm", {}, [one, np.ones((1, 3, 2))], [TensorType((1, 2, 2), "f64")])
    assert (made == 3).all()
