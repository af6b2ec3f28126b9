"""Input generators: deterministic, of any shape, and legal wherever they are used."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.discover.inputs import registry as inputs
from shardwright.discover.inputs.adversarial import conformed, legal, redraw, shuffled
from shardwright.discover.inputs.registry import (
    generator_named,
    generators_for,
    make_arange,
    make_negative,
    make_ones,
    make_randn,
    make_zeros,
    register_generator,
    standard_generators,
    unregister_generator,
)
from shardwright.discover.operator import Argument, NumpyLibrary, Operator, Sample, Slot
from shardwright.errors import DiscoverError

EVERYTHING = (*standard_generators(), *inputs._all())
SHAPES = ((), (0,), (1,), (4,), (4, 6), (4, 3), (3, 4), (2, 4, 4), (0, 3), (2, 3, 4, 5))
F64 = np.dtype("float64")


def numpy_operator(name: str, call: object, *arguments: str) -> Operator:
    return Operator(name, call, NumpyLibrary(), tuple(Argument(a, True) for a in arguments))  # type: ignore[arg-type]


def call(*tensors: np.ndarray, roles: tuple[str, ...] = ()) -> Sample:
    slots = tuple(Slot(i) for i in range(len(tensors)))
    return Sample(slots, {}, tensors, roles or ("data",) * len(tensors))  # type: ignore[arg-type]


@pytest.mark.parametrize("made", EVERYTHING, ids=lambda made: made.name)
def test_every_generator_is_deterministic_and_of_the_shape_asked_for(made: inputs.Generator) -> None:
    assert made.about
    assert not made.about.endswith(".")
    for dtype in ("float64", "float32", "complex128", "int64", "uint8", "bool"):
        for shape in SHAPES:
            first, again = made(shape, np.dtype(dtype), "cpu", 1), made(shape, np.dtype(dtype), "cpu", 1)
            assert (first.shape, first.dtype) == (shape, np.dtype(dtype))
            assert first.tobytes() == again.tobytes()
            if not made.special:
                assert np.isfinite(first).all(), f"{dtype}{shape} is not finite, and not marked special"


def test_the_standard_ones_are_those_of_the_seed() -> None:
    assert [made.name for made in standard_generators()] == [
        *("make_arange", "make_randn", "make_zeros", "make_ones", "make_negative")
    ]
    np.testing.assert_array_equal(make_arange((2, 2), F64, "cpu", 2), [[200, 201], [202, 203]])
    np.testing.assert_array_equal(make_randn((3,), F64, "cpu", 1), np.random.default_rng(43).standard_normal(3))
    assert not make_zeros((2,), F64).any()
    assert make_ones((2,), F64).all()
    np.testing.assert_array_equal(make_negative((2,), F64, "cpu", 1), [-2.5, -2.5])
    np.testing.assert_array_equal(make_negative((2,), np.dtype("int64"), "cpu", 1), [-3, -3])


def test_specials_are_special() -> None:
    special = [made for made in EVERYTHING if made.special and "f" in made.kinds]
    assert len(special) >= 8
    for made in special:
        values = np.stack([made((4, 6), F64, "cpu", idx) for idx in (0, 1)])
        tiny = (values != 0) & (np.abs(values) < np.finfo(F64).tiny)
        odd = (
            ~np.isfinite(values)
            | tiny
            | (np.abs(values) > 1e300)
            | ((values == 0) & (made.name == "gen_zero_divisors"))
        )
        assert odd.any(), made.name


@pytest.mark.parametrize(
    ("name", "least"),
    [
        *(("cross", 10), ("vector_norm", 8), ("sort", 10), ("topk", 10), ("cumsum", 7), ("amax", 10), ("eq", 7)),
        *(("softmax", 7), ("remainder", 7), ("round", 6), ("add", 5), ("clamp", 6), ("searchsorted", 6), ("gather", 8)),
        *(("pow", 5), ("atan2", 4), ("mm", 9), ("cholesky", 5), ("solve_triangular", 5), ("index_put", 8)),
    ],
)
def test_operators_have_adversarial_generators_of_their_own(name: str, least: int) -> None:
    own = [made for made in generators_for(name) if "*" not in made.ops]
    assert len(own) >= least
    assert len(generators_for(name)) > len(own), "those for all operators come too"
    assert len({made.name for made in own}) == len(own)


def test_the_marks_of_an_implementation_do_not_matter() -> None:
    assert generators_for("_softmax") == generators_for("softmax")
    assert generators_for("true_divide") == generators_for("div")
    assert generators_for("cumsum_") == generators_for("cumsum")
    own = [made for made in generators_for("no_such_operator") if "*" not in made.ops]
    assert own == []


def test_edge_cases_are_what_they_say() -> None:
    a, b = (generator_named("gen_orthogonal")((4, 3), F64, "cpu", idx) for idx in (0, 1))
    assert np.abs(np.cross(a, b)).sum() > 0
    assert not (a * b).sum(-1).any()
    a, b = (generator_named("gen_parallel_scaled")((4, 3), F64, "cpu", idx) for idx in (0, 1))
    assert not np.cross(a, b).any()
    assert (a != b).any()
    halves = generator_named("gen_halves")((20,), F64)
    assert (np.abs(halves % 1) == 0.5).all()
    dividend, divisor = (generator_named("gen_exact_multiples")((20,), F64, "cpu", idx) for idx in (0, 1))
    assert not (dividend % divisor).any()
    assert np.signbit(generator_named("gen_signed_zero_ties")((20,), F64)).any()
    a, b = (generator_named("gen_equal_inputs")((20,), F64, "cpu", idx) for idx in (0, 1))
    assert (a == b).all()
    edges = generator_named("gen_integer_edges")((20,), np.dtype("int32"))
    assert {np.iinfo(np.int32).min, np.iinfo(np.int32).max} <= set(edges.tolist())
    found = generator_named("gen_repeated_halves")((4, 6), F64)
    np.testing.assert_array_equal(found[:2], found[2:])
    np.testing.assert_array_equal(found[:, :3], found[:, 3:])


def test_sorted_tensors_stay_sorted() -> None:
    operator = numpy_operator("torch.searchsorted", np.searchsorted, "sorted_sequence", "input")
    sample = call(np.sort(np.random.default_rng(0).normal(size=9)), np.random.default_rng(1).normal(size=5))
    tried = 0
    for made in (*standard_generators(), *generators_for("searchsorted")):
        again = redraw(operator, sample, made)
        if again is not None:
            tried += 1
            assert (np.diff(again.tensors[0]) >= 0).all(), made.name
            assert again.shapes == sample.shapes
    assert tried >= 15
    moved = shuffled(operator, sample)
    assert moved is not None
    np.testing.assert_array_equal(moved.tensors[0], sample.tensors[0])
    assert (moved.tensors[1] != sample.tensors[1]).any()


def test_a_sorter_follows_the_boundaries() -> None:
    operator = numpy_operator("torch.searchsorted", np.searchsorted, "sorted_sequence", "input", "sorter")
    sequence = np.array([3.0, 1.0, 2.0])
    sample = call(sequence, np.ones(2), np.argsort(sequence), roles=("data", "data", "index"))
    again = redraw(operator, sample, generator_named("gen_descending"))
    assert again is not None
    assert (np.diff(again.tensors[0]) < 0).all(), "given as drawn"
    assert (np.diff(again.tensors[0][again.tensors[2]]) >= 0).all(), "and sorted by the sorter"


def test_positive_definite_matrices_stay_so() -> None:
    operator = numpy_operator("torch.linalg.cholesky", np.linalg.cholesky, "input")
    sample = call(np.broadcast_to(np.eye(4), (2, 4, 4)).copy())
    made = [redraw(operator, sample, g) for g in (*standard_generators(), *generators_for("cholesky"))]
    drawn = [again for again in made if again is not None]
    assert len(drawn) >= 12
    for again in drawn:
        np.testing.assert_allclose(again.tensors[0], np.swapaxes(again.tensors[0], -1, -2))
        np.linalg.cholesky(again.tensors[0])  # raises unless positive definite
        assert legal(operator, again)


def test_positions_stay_in_range_and_numbers_stay_beside_them() -> None:
    operator = numpy_operator("torch.take_along_dim", lambda x, i: np.take_along_axis(x, i, 0), "input", "indices")
    sample = call(np.arange(12.0).reshape(4, 3), np.array([[0, 1, 3], [2, 0, 1]]), roles=("data", "index"))
    kinds = set()
    for made in generators_for("take_along_dim"):
        again = redraw(operator, sample, made)
        if again is None:
            continue
        positions = again.tensors[1]
        assert positions.min() >= 0
        assert positions.max() <= 3
        assert positions.dtype == sample.tensors[1].dtype
        changed = 0 if made.role == "data" else 1
        np.testing.assert_array_equal(again.tensors[1 - changed], sample.tensors[1 - changed])
        kinds.add(tuple(positions.reshape(-1).tolist()) if made.role == "index" else ())
        assert made.special or legal(operator, again), made.name
    assert len(kinds) >= 6, "repeated, reversed, out of order: several different ones"


def test_pivots_and_factors_are_left_alone() -> None:
    operator = numpy_operator("torch.linalg.lu_solve", np.dot, "LU", "pivots", "B")
    sample = call(np.eye(3), np.arange(3), np.ones((3, 1)), roles=("data", "index", "data"))
    assert all(redraw(operator, sample, made) is None for made in generators_for("lu_solve"))
    assert shuffled(operator, sample) is None


def test_dtypes_a_generator_is_not_meant_for_are_not_redrawn() -> None:
    operator = numpy_operator("torch.add", np.add, "input", "other")
    whole = call(np.arange(3), np.arange(3))
    assert redraw(operator, whole, generator_named("gen_nan")) is None
    assert redraw(operator, whole, generator_named("gen_largest_integer")) is not None
    assert redraw(operator, call(np.ones(3), np.ones(3)), generator_named("gen_largest_integer")) is None


def test_whole_divisors_are_never_zero() -> None:
    operator = numpy_operator("torch.floor_divide", np.floor_divide, "input", "other")
    for made in (*standard_generators(), *generators_for("floor_divide")):
        again = redraw(operator, call(np.arange(24), np.arange(24)), made)
        assert again is None or again.tensors[1].all(), made.name


def test_room_for_a_result_is_not_redrawn() -> None:
    operator = Operator("torch.add", np.add, NumpyLibrary(), (Argument("input", True), Argument("other", True)))
    sample = Sample((Slot(0), Slot(1)), {"out": Slot(2)}, (np.ones(3), np.ones(3), np.zeros(3)), ("data",) * 3)
    again = redraw(operator, sample, make_arange)
    assert again is not None
    assert again.tensors[1][0] == 100
    assert not again.tensors[2].any()


@pytest.mark.parametrize("domain", ["positive", "unit", "sorted", "posdef", "invertible"])
def test_conformed_values_keep_to_the_domain(domain: str) -> None:
    for made in EVERYTHING:
        if made.special or "f" not in made.kinds:
            continue
        found = conformed(made((4, 4), F64, "cpu", 1), domain)  # type: ignore[arg-type]
        assert found.shape == (4, 4)
        match domain:
            case "positive":
                assert (found > 0).all()
            case "unit":
                assert ((found > 0) & (found <= 1)).all()
            case "sorted":
                assert (np.diff(found) >= 0).all()
            case "posdef":
                assert (np.linalg.eigvalsh(found) > 0).all()
            case _:
                assert abs(np.linalg.det(found)) > 0.1


def test_users_register_their_own() -> None:
    def gen_mine(shape: tuple[int, ...], dtype: object, device: object, input_idx: int = 0) -> np.ndarray:
        """Sevens."""
        return np.full(shape, 7 + input_idx)

    made = register_generator(gen_mine, ops=("cross",))
    try:
        assert made.about == "Sevens"
        assert made in generators_for("cross")
        assert made not in generators_for("sort")
        np.testing.assert_array_equal(made((2,), np.dtype("float32"), "cpu", 1), np.full(2, 8, np.float32))
        with pytest.raises(DiscoverError, match="two generators are called 'gen_mine'"):
            register_generator(gen_mine, ops=("cross",))
    finally:
        unregister_generator("gen_mine")
    with pytest.raises(DiscoverError, match="no generator is called 'gen_orthogonl'") as caught:
        generator_named("gen_orthogonl")
    assert "gen_orthogonal" in str(caught.value)


def test_a_users_generator_of_the_wrong_shape_is_named() -> None:
    made = register_generator(lambda shape, dtype, device, input_idx: np.zeros(3), ops=("cross",), name="gen_wrong")
    try:
        with pytest.raises(DiscoverError, match=r"'gen_wrong' gave the shape \(3,\)"):
            made((2, 2), F64)
    finally:
        unregister_generator("gen_wrong")
    with pytest.raises(DiscoverError, match="needs a name"):
        register_generator(lambda *_: np.zeros(3), ops=("cross",))
    with pytest.raises(DiscoverError, match="ops is a list"):
        register_generator(np.zeros, ops="cross", name="x")


def test_torch_tensors_on_request_and_from_users() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool):
        found = generator_named("gen_ties")((4, 3), dtype, torch.device("cpu"), 1)
        assert (found.dtype, tuple(found.shape)) == (dtype, (4, 3))
    same = generator_named("gen_ties")((4, 3), torch.float64)
    np.testing.assert_array_equal(same.numpy(), generator_named("gen_ties")((4, 3), F64))

    def gen_torch(shape, dtype, device, input_idx=0):  # type: ignore[no-untyped-def]
        return torch.arange(shape.numel(), dtype=dtype, device=device).reshape(shape) * (1 + input_idx)

    made = register_generator(gen_torch, ops=("cross",), about="as in the seed")
    try:
        np.testing.assert_array_equal(made((2, 2), F64, "cpu", 1), [[0, 2], [4, 6]])
        assert made((2, 2), torch.float32).dtype is torch.float32
    finally:
        unregister_generator("gen_torch")
