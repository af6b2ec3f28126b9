"""The oracle's parts: ways to split, grades of shards, shape arguments, in-place and out variants."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.discover.judging.confirm import confirm
from shardwright.discover.judging.encode import ENCODINGS, assemble, kinds_for, same, split
from shardwright.discover.judging.oracle import check, refute
from shardwright.discover.operator import Argument, NumpyLibrary, Operator, Sample, Slot
from shardwright.discover.placement import KINDS, P, Placement, R, S, at_least, parse_placement
from shardwright.discover.table import _weaker, folded, strongest


def operator(call: object, *arguments: Argument, mutates: tuple[str, ...] = ()) -> Operator:
    return Operator("op", call, NumpyLibrary(), arguments, mutates=mutates)  # type: ignore[arg-type]


def sample(*tensors: object, roles: tuple[str, ...] = (), **kwargs: object) -> Sample:
    arrays = tuple(map(np.asarray, tensors))
    given_roles = roles or ("data",) * len(arrays)
    return Sample(tuple(map(Slot, range(len(arrays)))), kwargs, arrays, given_roles)  # type: ignore[arg-type]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@given(
    kind=st.sampled_from(KINDS),
    encoding=st.sampled_from(ENCODINGS),
    world=st.integers(2, 5),
    dtype=st.sampled_from(["f8", "i8", "?", "c16", "u1"]),
    shape=st.sampled_from([(), (1,), (5,), (4, 3), (2, 0)]),
)
def test_parts_make_up_the_tensor(kind: str, encoding: str, world: int, dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    array = np.asarray(rng.integers(0, 9, shape) if dtype in ("i8", "u1") else rng.standard_normal(shape)).astype(dtype)
    if kind not in kinds_for(array, "data"):
        return
    parts = split(array, P(kind), world, encoding, seed=1)
    whole = assemble(parts, P(kind))
    assert whole is not None
    assert same(whole, array, np.abs(np.stack(parts)).max(axis=0) if dtype in ("f8", "c16") else 0.0)
    assert whole.dtype == array.dtype


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_parts_differ_between_devices(encoding: str) -> None:
    array = normal(6, 4)
    for kind in ("sum", "max", "min"):
        parts = split(array, P(kind), 2, encoding, seed=0)
        assert not np.array_equal(parts[0], parts[1]), kind


def test_shards_are_cut_as_dtensor_cuts_them() -> None:
    assert [part.shape[0] for part in split(np.zeros((5, 2)), S(0), 4, "random", 0)] == [2, 2, 1, 0]


def test_copies_must_be_equal_and_shards_well_cut() -> None:
    assert assemble([np.zeros(3), np.ones(3)], R) is None
    assert assemble([np.zeros(1), np.zeros(2)], S(0)) is None
    assert assemble([np.zeros(2), np.zeros(1)], S(0)) is not None


def test_placements_read_back() -> None:
    for placement in (R, S(3), P("max")):
        assert parse_placement(str(placement)) is placement
    with pytest.raises(ValueError, match="no placement"):
        parse_placement("S(x)")
    with pytest.raises(ValueError, match="one of sum"):
        P("median")


def test_implied_placements_are_folded() -> None:
    assert strongest(frozenset({R, P("max"), P("avg"), P("sum")})) == {R, P("sum")}
    table = check(operator(np.add), sample(normal(4, 6), normal(4, 6, seed=1)))
    rows = folded(table)
    assert (P("sum"), P("sum")) in rows
    assert (P("avg"), P("avg")) not in rows, "the rule for averages is the rule for sums"
    assert (R, R) in rows


def test_rows_are_folded_alike_whether_they_are_few_or_many() -> None:
    """Of a list of tensors there are thousands of rows: those that imply one are looked up, not gone through."""
    placements = (R, S(0), P("sum"), P("avg"), P("max"))
    every = list(itertools.product(placements, repeat=3))
    for rows in (every, every[::7]):
        for inputs in rows:
            wider = {row for row in rows if row != inputs and all(map(at_least, inputs, row))}
            assert set(_weaker(rows, inputs)) == wider


def test_even_only_rules_are_graded() -> None:
    even = check(operator(lambda x: x.mean(axis=1)), sample(normal(4, 6)))
    assert even.grades[(S(1),), 0, P("avg")] != "empty"
    uneven = check(operator(lambda x: x.mean(axis=1)), sample(normal(5, 5)))
    assert uneven.grades[(S(1),), 0, P("avg")] == "even"
    assert uneven.grades[(S(0),), 0, S(0)] == "empty"


def test_an_error_on_empty_shards_lowers_the_grade_only() -> None:
    table = check(operator(lambda x: x.max(axis=1)), sample(normal(4, 5)))
    assert table.holds((S(1),), 0, P("max"))
    assert table.grades[(S(1),), 0, P("max")] == "uneven"


def test_shape_arguments_are_localised() -> None:
    table = check(operator(lambda x, shape: x.reshape(shape)), sample(normal(4, 6), shape=[24]))
    assert table.holds((S(0),), 0, S(0))
    assert not table.holds((S(1),), 0, S(0))
    grown = check(operator(np.broadcast_to), sample(normal(4, 1), shape=[4, 6]))
    assert grown.holds((S(0),), 0, S(0))
    assert grown.holds((R,), 0, S(1)), "every device may make its part of the new dim"


def test_constant_results_say_nothing() -> None:
    table = check(operator(lambda x: np.zeros_like(x)), sample(normal(4, 6)))
    assert not table.holds((P("sum"),), 0, P("sum"))
    assert "constant" in table.dropped[(P("sum"),), 0, P("sum")]
    assert table.holds((S(0),), 0, S(0))


def test_outputs_are_judged_one_by_one() -> None:
    table = check(operator(lambda x: (x * 2, x.sum(axis=0))), sample(normal(4, 6)))
    assert table.valid[(S(0),)] == (frozenset({S(0)}), frozenset({P("sum")}))


def test_a_tensor_that_is_written_to_is_the_result() -> None:
    def add_(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x += y
        return x

    given_sample = sample(normal(4, 6), normal(4, 6, seed=1))
    before = given_sample.tensors[0].copy()
    table = check(operator(add_, Argument("x", True), Argument("y", True), mutates=("x",)), given_sample)
    assert table.holds((S(0), S(0)), 0, S(0))
    assert not table.holds((P("sum"), R), 0, P("sum"))
    assert np.array_equal(given_sample.tensors[0], before), "the sample itself is not written to"


def test_indices_are_never_pending() -> None:
    def take(x: np.ndarray, i: np.ndarray) -> np.ndarray:
        assert i.min() >= 0
        assert i.max() < 6
        return x[i]

    table = check(operator(take), sample(normal(6, 4), [0, 5, 2, 2], roles=("data", "index")))
    assert table.holds((R, S(0)), 0, S(0))
    assert table.holds((S(1), R), 0, S(1))
    assert all(inputs[1].kind != "P" for inputs in table.valid)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: np.random.default_rng().random(x.shape), "different numbers"),
        (lambda x: 3, "no tensor"),
        (lambda x: x[:0], "results are empty"),
        (lambda x: 1 / 0, "does not run: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_judged_says_why(call: object, reason: str) -> None:
    assert reason in check(operator(call), sample(normal(4))).refused


def test_a_counterexample_names_the_case() -> None:
    found = refute(operator(np.exp), [sample(normal(4, 6))], (P("sum"),), 0, P("sum"))
    assert found is not None
    assert str(found).startswith("P(sum) -> P(sum) on 2 devices, shapes [(4, 6)]: off by")
    assert refute(operator(np.exp), [sample(normal(4, 6))], (P("max"),), 0, P("max")) is None


def test_many_tensors_are_not_tried_in_every_way() -> None:
    tensors = [normal(2, 3, seed=i) for i in range(6)]
    table = check(operator(lambda *x: np.concatenate(x, axis=1)), sample(*tensors), most=500)
    assert "not replicated" in table.restricted
    assert table.holds((S(0),) * 6, 0, S(0))


@given(st.sampled_from([R, S(0), S(1), P("sum"), P("max")]))
def test_placements_are_single_objects(placement: Placement) -> None:
    assert parse_placement(str(placement)) is placement


def test_rows_are_confirmed_on_two_axes_and_in_float32() -> None:
    rows = sample(normal(8, 4), normal(8, 4, seed=1))
    found = confirm(operator(np.multiply), [check(operator(np.multiply), rows)])
    assert found.pairs >= 9
    assert found.rows >= 4
    assert found.failures == ()


def test_confirmation_can_fail() -> None:
    """An operator that changes its mind on quarters, and one that does in float32."""
    small = operator(lambda x: x if x.shape[0] % 4 == 0 else np.cumsum(x, axis=0))
    found = confirm(small, [check(small, sample(normal(8, 4)), worlds=(2,))])
    assert any(text.startswith("on two axes: S(0) -> S(0) with S(0) -> S(0)") for text in found.failures)
    single = operator(lambda x: x if x.dtype == np.float64 else np.cumsum(x, axis=0))
    found = confirm(single, [check(single, sample(normal(8, 4)))])
    assert any(text.startswith("in float32: S(0) -> S(0)") for text in found.failures)
