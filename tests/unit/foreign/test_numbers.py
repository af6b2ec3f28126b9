"""Numbers of a field: order, and functions that keep their laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shardwright.errors import VerifyError
from shardwright.frontends.ranks import ARGUMENT, OUTPUT, Given, Left, Traced
from shardwright.frontends.torch.foreign.kernels import TorchKernels
from shardwright.ir.graph import GraphBuilder, TensorType
from shardwright.proof.foreign.calls import Calling
from shardwright.proof.foreign.lockstep import Lockstep
from shardwright.proof.foreign.meanings import Meanings
from shardwright.proof.foreign.numbers import FAR, PRIMES, Number, Numbers, is_infinite


@pytest.fixture
def meanings() -> Meanings:
    return Meanings(Numbers(PRIMES[0], 5), TorchKernels())


def some(meanings: Meanings, *shape: int, seed: int = 0) -> Number:
    return meanings.numbers.random(np.random.default_rng(seed), shape, "f64")


def evaluate(meanings: Meanings, op: str, *operands: Any, **attrs: Any) -> Number:
    return meanings.evaluate(Calling(op, attrs, [TensorType((6,), "f64")]), list(operands))[0]


def test_large_numbers_are_not_infinite(meanings: Meanings) -> None:
    """Sums of squares of gradients grow; their roots are still told apart."""
    numbers = meanings.numbers
    x = some(meanings, 6)
    for _ in range(12):
        x = numbers.multiply(x, numbers.number(1e30))
    assert x.height is not None
    assert np.abs(x.height).max() == FAR
    assert not is_infinite(x.height).any()
    roots = numbers.sqrt(x).residue
    assert roots is not None
    assert len(set(roots.tolist())) == 6


def test_infinity_stays_infinite(meanings: Meanings) -> None:
    numbers = meanings.numbers
    low = numbers.multiply(numbers.number(-np.inf), numbers.number(0.5))
    assert numbers.exp_of(numbers.add(some(meanings, 6), low)).tolist() == [0.0] * 6


def test_the_gradient_of_log_sigmoid_is_a_sigmoid(meanings: Meanings) -> None:
    """Ring attention merges parts by it."""
    numbers = meanings.numbers
    x = numbers.subtract(numbers.log(some(meanings, 6)), numbers.log(some(meanings, 6, seed=1)))
    grad, kept = some(meanings, 6, seed=2), some(meanings, 6, seed=3)
    found = evaluate(meanings, "aten.log_sigmoid_backward", grad, x, kept)
    weight = evaluate(meanings, "aten.sigmoid", numbers.negative(x))
    assert np.array_equal(found.residue, numbers.multiply(grad, weight).residue)  # type: ignore[arg-type]


def test_a_collective_of_parts_that_do_not_fit_is_no_crash(meanings: Meanings) -> None:
    ranks = []
    for rank in (0, 1):
        builder = GraphBuilder("rank")
        x = builder.input((2 + rank,), "f64", "x")
        attrs = {"group": (0, 1), "reduce": "sum", "root": 0, "tag": 0, "at": 0, "channel": "0"}
        out = builder.op("comm.all_reduce", [[x]], [(2 + rank,)], dtype="f64", attrs=attrs)
        ranks.append(Traced(rank, builder.finish([out]), [Given("x", ARGUMENT)], [Left("output", OUTPUT)]))
    with pytest.raises(VerifyError, match="are reduced to one"):
        Lockstep(ranks, meanings, lambda given, rank: some(meanings, 2 + rank)).run()


def test_constants_that_are_roots_keep_the_laws_of_roots(meanings: Meanings) -> None:
    """DTensor makes a part of a norm from a whole one: it divides by the root of the number of ranks."""
    numbers = meanings.numbers

    def residue(value: float) -> float:
        return float(np.asarray(numbers.number(value).residue))

    half = numbers.number(math.sqrt(0.5))
    assert float(np.asarray(numbers.multiply(half, half).residue)) == residue(0.5)
    assert residue(math.sqrt(8)) == residue(math.sqrt(2)) * 2 % numbers.prime
    assert residue(math.sqrt(6)) == residue(math.sqrt(2)) * residue(math.sqrt(3)) % numbers.prime
    assert residue(-math.sqrt(2)) == numbers.prime - residue(math.sqrt(2))
    norm = numbers.divide(numbers.sqrt(some(meanings, 6)), numbers.number(math.sqrt(3)))
    square = meanings.apply("aten.pow.Tensor_Scalar", norm, exponent=2)
    third = numbers.divide(some(meanings, 6), numbers.number(3.0))
    assert np.array_equal(square.residue, third.residue)  # type: ignore[arg-type]
    norm = numbers.divide(numbers.sqrt(some(meanings, 6)), numbers.number(2.0))  # of 4 ranks
    square = meanings.apply("aten.pow.Tensor_Scalar", norm, exponent=2)
    fourth = numbers.divide(some(meanings, 6), numbers.number(4.0))
    assert np.array_equal(square.residue, fourth.residue)  # type: ignore[arg-type]


def test_a_root_is_not_negative_and_a_multiple_of_it_may_be(meanings: Meanings) -> None:
    root = meanings.numbers.sqrt(some(meanings, 6))
    opposite = meanings.numbers.multiply(root, meanings.numbers.number(-1.0))
    for x in (root, opposite):
        assert np.array_equal(evaluate(meanings, "aten.abs", x).residue, root.residue)  # type: ignore[arg-type]


def test_numbers_near_roots_are_themselves(meanings: Meanings) -> None:
    assert meanings.numbers.number(0.7071).square is None
    assert meanings.numbers.number(0.75).square is None


def test_a_number_shows_whether_its_bound_is_taken_or_not(meanings: Meanings) -> None:
    """A mistake in the one that is not taken would hide: clipping by a wrong norm."""
    x, y = some(meanings, 6), some(meanings, 6, seed=1)
    for op, attrs in (("aten.clamp", {"min": None, "max": 1.0}), ("aten.clamp_min", {"min": 0.5})):
        found, other = (evaluate(meanings, op, value, **attrs).residue for value in (x, y))
        assert not (np.asarray(found) == np.asarray(other)).any()


def test_laws_of_bounds(meanings: Meanings) -> None:
    numbers = meanings.numbers
    x, one = some(meanings, 6), numbers.real(np.ones(6), "f64")
    low, high = evaluate(meanings, "aten.minimum", x, one), evaluate(meanings, "aten.maximum", one, x)
    assert np.array_equal(numbers.add(low, high).residue, numbers.add(x, one).residue)  # type: ignore[arg-type]
    assert np.array_equal(low.residue, evaluate(meanings, "aten.minimum", one, x).residue)  # type: ignore[arg-type]
    clamped = evaluate(meanings, "aten.clamp", x, min=None, max=1.0)
    assert np.array_equal(low.residue, clamped.residue)  # type: ignore[arg-type]
    masked = numbers.real(np.full(6, -np.inf), "f64")
    assert np.array_equal(evaluate(meanings, "aten.maximum", x, masked).residue, x.residue)  # type: ignore[arg-type]


def test_a_logarithm_is_subtracted_before_or_after_a_mean(meanings: Meanings) -> None:
    """mean(x - logsumexp(x)) is mean(x) - logsumexp(x), whatever is subtracted on the way."""
    numbers = meanings.numbers
    x = some(meanings, 6)

    def mean(number: Number) -> Number:
        return numbers.divide(numbers.linear(lambda part: part.sum(keepdims=True), number), numbers.number(6.0))

    highest = numbers.remembered(x.map(lambda part: part[:1]))
    apart = numbers.subtract(x, highest)
    total = numbers.linear(lambda part: part.sum(keepdims=True), numbers.exp(apart))
    logs = numbers.subtract(apart, numbers.log(total))
    sums = numbers.log(numbers.linear(lambda part: part.sum(keepdims=True), numbers.exp(x)))
    assert np.array_equal(mean(logs).residue, numbers.subtract(mean(x), sums).residue)  # type: ignore[arg-type]
    assert np.array_equal(numbers.add(logs, sums).residue, x.residue)  # type: ignore[arg-type]
