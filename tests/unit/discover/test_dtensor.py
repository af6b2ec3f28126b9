"""What DTensor claims and gives, asked directly: the seven known faults by hand, and how its answers are read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

from shardwright.discover.audit.dtensor import (
    Foreign,
    answers_in_full,
    claim,
    claims,
    has_handler,
    registered_overloads,
    run_dispatched,
    same_cache_key,
)
from shardwright.discover.judging.encode import split
from shardwright.discover.operator import Sample, Slot
from shardwright.discover.placement import P, R, S, placements
from torch_versions import of_torch_2_13

RNG = np.random.default_rng(0)
INF = float("inf")
MATRIX = np.round(RNG.normal(size=(4, 6)), 2)


def sample(*args, **kwargs):
    """A call; arrays in the arguments become slots."""
    tensors = []

    def slotted(value):
        if isinstance(value, np.ndarray):
            tensors.append(value)
            return Slot(len(tensors) - 1)
        return [slotted(item) for item in value] if isinstance(value, list) else value

    made = tuple(map(slotted, args))
    named = {name: slotted(value) for name, value in kwargs.items()}
    return Sample(made, named, tuple(tensors), ("data",) * len(tensors))


def run(overload, call, inputs, world=2, parts=None, before=None):
    held = parts or [split(array, p, world, "random", i) for i, (array, p) in enumerate(zip(call.tensors, inputs))]
    return run_dispatched(overload, call, inputs, world, held, before=before)


@of_torch_2_13
def test_about_a_thousand_overloads_have_a_rule():
    found = registered_overloads()
    assert len(found) > 1000
    assert found == sorted(set(found))
    assert {"aten.add.Tensor", "aten.mm.default", "aten.fill_.Scalar"} <= set(found)


@pytest.mark.parametrize(
    ("overload", "call", "inputs", "outputs"),
    [
        ("aten.add.Tensor", sample(MATRIX, MATRIX), (S(0), S(0)), (S(0),)),
        ("aten.mm.default", sample(MATRIX, MATRIX.T.copy()), (S(1), S(0)), (P("sum"),)),
        ("aten.amax.default", sample(MATRIX, [0]), (S(0),), (P("max"),)),
        ("aten.sort.default", sample(MATRIX, 1), (S(0),), (S(0), S(0))),
        ("aten.cat.default", sample([MATRIX, MATRIX], 1), (S(0), S(0)), (S(0),)),
    ],
)
def test_a_rule_that_moves_nothing(overload, call, inputs, outputs):
    found = claim(overload, call, inputs, 2)
    assert found.free
    assert found.outputs == outputs


def test_inputs_that_do_not_fit_are_moved():
    found = claim("aten.add.Tensor", sample(MATRIX, MATRIX), (S(0), S(1)), 2)
    assert not found.free
    assert found.redistributed_to is not None
    assert len(set(found.redistributed_to)) == 1


def test_a_shape_argument_is_rewritten_not_moved():
    found = claim("aten.view.default", sample(MATRIX, [2, 2, 6]), (S(0),), 2)
    assert found.free
    assert found.rewritten
    assert run("aten.view.default", sample(MATRIX, [2, 2, 6]), (S(0),)).outputs[0].shape == (2, 2, 6)


def test_a_pending_norm_is_foreign_and_finished_in_its_own_way():
    call = sample(MATRIX, 2.0, [1])
    (norm,) = claim("aten.linalg_vector_norm.default", call, (S(1),), 2).outputs
    assert isinstance(norm, Foreign)
    assert "pending norm" in norm.meaning
    given = run("aten.linalg_vector_norm.default", call, (S(1),))
    np.testing.assert_allclose(given.outputs[0], np.linalg.norm(MATRIX, axis=1))


def test_an_op_without_a_rule_says_so():
    assert (
        "NotImplementedError" in claim("aten.searchsorted.Tensor", sample(np.arange(4.0), MATRIX), (R, S(0)), 2).error
    )


def test_many_claims_are_the_single_ones():
    call = sample(MATRIX, MATRIX)
    ways = list(itertools.product(placements(2), repeat=2))
    assert claims("aten.mul.Tensor", call, ways, 2) == [claim("aten.mul.Tensor", call, way, 2) for way in ways]


def test_collectives_are_counted():
    call = sample(MATRIX, MATRIX)
    assert run("aten.add.Tensor", call, (S(0), S(0))).collectives == 0
    moved = run("aten.add.Tensor", call, (S(0), S(1)))
    assert moved.collectives > 0
    np.testing.assert_array_equal(moved.outputs[0], MATRIX + MATRIX)


# ---- the seven faults


def test_norm_of_order_inf_on_pending_max():
    call = sample(MATRIX, INF, [1])
    assert claim("aten.linalg_vector_norm.default", call, (P("max"),), 2).outputs == (P("max"),)
    given = run("aten.linalg_vector_norm.default", call, (P("max"),), parts=[[MATRIX, MATRIX - 9]])
    assert (given.outputs[0] > np.abs(MATRIX).max(axis=1) + 1).all()


def test_norm_of_order_minus_inf_on_pending_min():
    call = sample(MATRIX, -INF, [1])
    assert claim("aten.linalg_vector_norm.default", call, (P("min"),), 2).outputs == (P("min"),)
    low = np.full_like(MATRIX, -9.0)
    given = run("aten.linalg_vector_norm.default", call.with_tensors((low,)), (P("min"),), parts=[[low, low + 8.5]])
    np.testing.assert_array_equal(given.outputs[0], np.full(4, 0.5))  # the true norm is 9


@of_torch_2_13
def test_solve_triangular_with_a_batch_of_matrices():
    matrices = np.tril(RNG.normal(size=(2, 3, 3))) + 4 * np.eye(3)
    call = sample(matrices, RNG.normal(size=(2, 3, 1)), upper=False)
    overload = "aten.linalg_solve_triangular.default"
    assert claim(overload, call, (R, S(0)), 2).outputs == (S(0),)
    given = run(overload, call, (R, S(0)))
    assert given.error or given.outputs[0].shape != (2, 3, 1)


def test_fill_in_place_of_a_pending_sum():
    assert claim("aten.fill_.Scalar", sample(MATRIX, 3.0), (P("sum"),), 2).outputs == (P("sum"),)
    np.testing.assert_array_equal(run("aten.fill_.Scalar", sample(MATRIX, 3.0), (P("sum"),)).outputs[0], 6.0)


@of_torch_2_13
def test_threshold_of_a_pending_max():
    call = sample(np.zeros((2, 2)), -1.0, 5.0)
    assert claim("aten.threshold.default", call, (P("max"),), 2).outputs == (P("max"),)
    given = run("aten.threshold.default", call, (P("max"),), parts=[[np.zeros((2, 2)), np.full((2, 2), -3.0)]])
    np.testing.assert_array_equal(given.outputs[0], 5.0)  # max(0, -3) is above the threshold: it should stay 0


@of_torch_2_13
def test_cross_leaves_dim_out_of_the_cache():
    overload, way = "aten.linalg_cross.default", (S(0), S(0))
    vectors = RNG.normal(size=(3, 3))
    first, second = sample(vectors, vectors.T.copy(), dim=1), sample(vectors, vectors.T.copy(), dim=0)
    assert same_cache_key(overload, first, second, way, 2)
    assert answers_in_full(overload, first, [way], 2) != answers_in_full(overload, second, [way], 2)
    assert not run(overload, second, way).error
    assert "must have length 3" in run(overload, second, way, before=first).error


@of_torch_2_13
def test_convolution_moves_no_input():
    call = sample(
        RNG.normal(size=(2, 4, 6)), RNG.normal(size=(4, 4, 3)), RNG.normal(size=4), [1], [0], [1], False, [0], 1
    )
    overload, way = "aten.convolution.default", (S(1), S(1), R)
    assert has_handler(overload)
    assert claim(overload, call, way, 2).redistributed_to == (R, R, R)
    given = run(overload, call, way)
    assert given.disagree
    assert given.collectives == 0
