"""What ranks compute alike is computed once, and nothing else is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import shardwright.proof.foreign.lockstep as shared
from shardwright.frontends.ranks import ARGUMENT, OUTPUT, Given, Left, Traced
from shardwright.frontends.torch.foreign.kernels import TorchKernels
from shardwright.ir.graph import GraphBuilder
from shardwright.proof.foreign.lockstep import Lockstep
from shardwright.proof.foreign.meanings import Meanings
from shardwright.proof.foreign.numbers import PRIMES, Number, Numbers

RANKS = 3
COLLECTIVE = {"group": tuple(range(RANKS)), "root": 0, "tag": 0, "at": 0, "channel": "0"}


def program(rank: int) -> Traced:
    """An op on what all hold, on what each holds, on their sum, and with a number of the rank's own."""
    builder = GraphBuilder("rank")
    w, x = builder.input((4,), "f64", "w"), builder.input((4,), "f64", "x")
    common = builder.op("aten.sin", [w], [(4,)], dtype="f64")
    own = builder.op("aten.cos", [x], [(4,)], dtype="f64")
    total = builder.op("comm.all_reduce", [[own]], [(4,)], dtype="f64", attrs={**COLLECTIVE, "reduce": "sum"})
    after = builder.op("aten.exp", [builder.op("aten.neg", [total], [(4,)], dtype="f64")], [(4,)], dtype="f64")
    shifted = builder.op("aten.add.Tensor", [after, None], [(4,)], dtype="f64", attrs={"other": 2 + rank, "alpha": 1})
    noise = builder.op("foreign.unwritten", [], [(4,)], dtype="f64", attrs={"draw": 0})
    given = [Given("w", ARGUMENT), Given("x", ARGUMENT)]
    outputs = [common, after, shifted, noise]
    return Traced(rank, builder.finish(outputs), given, [Left(f"output.{i}", OUTPUT) for i in range(len(outputs))])


def run(monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[Any]], Counter[str]]:
    meanings = Meanings(Numbers(PRIMES[0], 5), TorchKernels())
    evaluate, counts = meanings.evaluate, Counter[str]()

    def counted(call: Any, operands: Any) -> list[Number]:
        counts[call.op] += 1
        return evaluate(call, operands)

    monkeypatch.setattr(meanings, "evaluate", counted)
    held = {name: meanings.numbers.random(np.random.default_rng(i), (4,), "f64") for i, name in enumerate("w012")}
    ranks = [program(rank) for rank in range(RANKS)]
    values = Lockstep(ranks, meanings, lambda given, rank: held["w" if given.name == "w" else str(rank)], False).run()
    return [[values[r][v].residue for v in traced.graph.outputs] for r, traced in enumerate(ranks)], counts


def test_equal_ops_on_the_same_numbers_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    results, counts = run(monkeypatch)
    once = {"aten.sin": 1, "aten.neg": 1, "aten.exp": 1}
    assert counts == {**once, "aten.cos": RANKS, "aten.add.Tensor": RANKS, "foreign.unwritten": RANKS}
    with monkeypatch.context() as alone:
        alone.setattr(shared.Shared, "key", lambda *about: None)
        apart, counts = run(alone)
    assert counts["aten.sin"] == counts["aten.exp"] == RANKS
    for one, other in zip(results, apart, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert not np.array_equal(results[0][2], results[1][2])
    assert not np.array_equal(results[0][3], results[1][3])


def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = run(monkeypatch)
    monkeypatch.setattr(shared, "HELD", 4)
    tight, _ = run(monkeypatch)
    for one, other in zip(results, tight, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    monkeypatch.setattr(shared, "HELD", 0)
    _, counts = run(monkeypatch)
    assert counts["aten.exp"] == RANKS
