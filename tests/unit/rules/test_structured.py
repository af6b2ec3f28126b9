"""Ops in StableHLO's form: windows, decompositions, dimension numbers, collectives."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from by_execution import Array, check, text
from shardwright.errors import RuleError
from shardwright.rules import lookup
from shardwright.spec.op_record import Flow


def pattern(op: str, operands: Any, results: Any, **attrs: Any) -> str:
    """The rule without sizes and transfers."""
    clauses = text(op, operands, results, **attrs).split(" | ")[0].split(" ; ")
    return " ; ".join(clause for clause in clauses if "P(" not in clause)


# -- decompositions and transforms ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "operands", "results", "rule"),
    [
        ("cholesky", [(2, 4, 4)], [(2, 4, 4)], "b0 r c -> b0 r c ; r: whole ; c: whole"),
        ("qr", [(5, 3)], [(5, 3), (3,)], "r c -> r c, t ; r: whole ; c: whole ; t: new whole"),
        ("householder_product", [(5, 3), (3,)], [(5, 3)], "r c, t -> r c ; r: whole ; c: whole ; t: whole"),
        ("eigh", [(2, 4, 4)], [(2, 4, 4), (2, 4)], "b0 r c -> b0 r c, b0 c ; r: whole ; c: whole"),
    ],
)
def test_decompositions(op: str, operands: Any, results: Any, rule: str) -> None:
    assert pattern(op, operands, results) == rule


@pytest.mark.parametrize(
    ("left", "transposed", "rule"),
    [
        (True, False, "k m, k n -> m n"),
        (True, True, "m k, k n -> m n"),
        (False, False, "m k, n k -> n m"),
        (False, True, "k m, n k -> n m"),
    ],
)
def test_triangular_solve(left: bool, transposed: bool, rule: str) -> None:
    given = (3, 5) if left else (5, 3)
    attrs = {"left_side": left, "transpose_a": transposed}
    found, by_xla = (pattern("triangular_solve", [(3, 3), given], [given], partitioner=p, **attrs) for p in ("", "xla"))
    assert found.split(" ; ")[0] == rule
    assert [factor for factor in "kmn" if f"{factor}: whole" in found] == ["k", "m"]
    assert [factor for factor in "kmn" if f"{factor}: whole" in by_xla] == ["k", "m", "n"]


def test_linear_algebra_by_execution() -> None:
    a = np.arange(18.0).reshape(2, 3, 3) % 5 + 9 * np.eye(3)
    matrix = a @ a.swapaxes(1, 2)
    assert check("cholesky", np.linalg.cholesky, [matrix])[0] == ["b0"]
    split, moved = check("triangular_solve", np.linalg.solve, [np.tril(a), np.arange(12.0).reshape(2, 3, 2) % 5 + 1])
    assert split == ["b0", "n"]
    assert moved == ["R, P(sum) -> P(sum)", "R, P(avg) -> P(avg)"]
    assert check("eigh", lambda x: tuple(np.linalg.eigh(x))[::-1], [matrix])[0] == ["b0"]


def test_fft() -> None:
    x = np.arange(64.0).reshape(4, 4, 4) % 7
    assert pattern("fft", [(4, 4, 4)], [(4, 4, 4)], fft_length=(4, 4)) == "i j k -> i j k ; j: whole ; k: whole"
    assert pattern("fft", [(4, 4)], [(4, 3)], fft_length=(4,)) == "i j -> i j ; j: whole blocked"
    assert check("fft", np.fft.fft2, [x], fft_length=(4, 4)) == (["i"], ["P(sum) -> P(sum)", "P(avg) -> P(avg)"])
    assert check("fft", np.fft.rfft, [x], fft_length=(4,))[0] == ["i", "j"]


def test_approx_top_k() -> None:
    shapes = [(16, 4), (16, 4), (), ()], [(16, 2), (16, 2)]
    rule = "i j, i j, (), () -> i best, i best ; j: {} ; best: new whole blocked"
    assert pattern("approx_top_k", *shapes, axis=1) == rule.format("whole")
    assert pattern("approx_top_k", *shapes, axis=1, partitioner="xla") == rule.format("form(xla)")


# -- windows --------------------------------------------------------------------------------------------


def test_reduce_window_goes_by_its_result() -> None:
    found = text("reduce_window", [(48, 8, 3), ()], [(16, 8, 3)], window_dimensions=(3, 1, 1), window_strides=(3, 1, 1))
    assert found == "i j k, () -> i j k ; i: permuted | i=16 j=8 k=3"


@pytest.mark.parametrize(
    ("attrs", "permuted"),
    [
        ({"window_dimensions": (1, 1)}, ""),
        ({"window_dimensions": (1, 3), "padding": ((0, 0), (1, 1))}, "j"),
        ({"window_dimensions": (1, 1), "padding": ((-1, 1), (0, 0))}, "i"),
        ({"window_dimensions": (3, 3), "padding": ((1, 1), (1, 1))}, "ij"),
    ],
)
def test_reduce_window_permutes_what_its_windows_reach(attrs: dict[str, Any], permuted: str) -> None:
    found = pattern("reduce_window", [(8, 16), ()], [(8, 16)], **attrs)
    assert [name for name in "ij" if f"{name}: permuted" in found] == list(permuted)


def test_reduce_window_of_several_at_once() -> None:
    found = pattern("reduce_window", [(8,), (8,), (), ()], [(4,), (4,)], window_dimensions=(2,), window_strides=(2,))
    assert found == "i, i, (), () -> i, i ; i: permuted"


def test_select_and_scatter() -> None:
    found = pattern(
        "select_and_scatter", [(10, 24, 64), (10, 12, 64), ()], [(10, 24, 64)],
        window_dimensions=(1, 2, 1), window_strides=(1, 2, 1),
    )  # fmt: skip
    assert found == "i j k, i w1 k, () -> i j k ; j: permuted ; w1: whole"


CONV = {"dims": "b0f,0io->b0f"}


@pytest.mark.parametrize(
    ("image", "kernel", "result", "attrs", "rule"),
    [
        # By windows first, since they are more than the window is large; inside a window for what is left.
        ((2, 8, 6), (3, 6, 4), (2, 4, 4), {}, "i (l m) j, m j k -> i l k ; l: permuted | i=2 l=4 m=2 j=6 k=4"),
        ((2, 8, 6), (4, 6, 4), (2, 2, 4), {}, "i (l m) j, l j k -> i m k ; m: permuted | i=2 l=4 m=2 j=6 k=4"),
        ((2, 8, 6), (3, 6, 4), (2, 8, 4), {}, "i l j, m j k -> i l k ; l: permuted ; m: whole | i=2 l=8 j=6 m=3 k=4"),
        # Groups of features: each output feature sees the inputs of its group.
        (
            (2, 8, 6), (1, 2, 9), (2, 8, 9), {"feature_group_count": 3},
            "j m (i k), n k (i l) -> j m (i l) ; m: permuted ; n: whole | j=2 m=8 i=3 k=2 n=1 l=3",
        ),
        # Each feature for itself: a factor of size 1 stands only where a dim has no other.
        (
            (2, 8, 6), (1, 1, 6), (2, 8, 6), {"feature_group_count": 6},
            "j l i, m k i -> j l i ; l: permuted ; m: whole | j=2 l=8 i=6 m=1 k=1",
        ),
        (
            (8, 8, 6), (1, 6, 4), (2, 8, 4), {"batch_group_count": 4},
            "(i j) l k, m k i -> j l i ; l: permuted ; m: whole | i=4 j=2 l=8 k=6 m=1",
        ),
    ],
)  # fmt: skip
def test_convolution(image: Any, kernel: Any, result: Any, attrs: Any, rule: str) -> None:
    found = text("convolution", [image, kernel], [result], partitioner="xla", **CONV, **attrs)
    assert found == rule.replace(" | ", " ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum) | ")


def test_convolution_by_local_execution_leaves_images_whole() -> None:
    found = pattern("convolution", [(2, 8, 6), (3, 6, 4)], [(2, 6, 4)], **CONV)
    assert found == "i l j, m j k -> i n k ; l: whole ; m: whole ; n: new whole"


def convolve(groups: int = 1) -> Any:
    """A plain convolution without padding or stride, NWC by WIO."""

    def run(image: Array, kernel: Array) -> Array:
        # A device that has some of the groups sees fewer of them.
        here = image.shape[2] // kernel.shape[1]
        assert here <= groups
        parts = []
        for g in range(here):
            features = image[:, :, g * kernel.shape[1] : (g + 1) * kernel.shape[1]]
            size = kernel.shape[2] // here
            filters = kernel[:, :, g * size : (g + 1) * size]
            windows = np.lib.stride_tricks.sliding_window_view(features, kernel.shape[0], 1)
            parts.append(np.einsum("bxiw,wio->bxo", windows, filters))
        return np.concatenate(parts, 2)

    return run


def test_convolution_by_execution() -> None:
    image, kernel = np.arange(96.0).reshape(2, 8, 6) % 5, np.arange(72.0).reshape(3, 6, 4) % 7
    split, moved = check("convolution", convolve(), [image, kernel], **CONV)
    assert split == ["i", "j", "k"]
    assert len(moved) == 2
    grouped = convolve(2)
    split, _ = check("convolution", grouped, [image, kernel[:, :3]], feature_group_count=2, **CONV)
    assert split == ["j", "i"]


def test_convolution_with_dims_that_do_not_fit() -> None:
    with pytest.raises(RuleError, match="dims 'bf,io->bf' do not fit the shapes"):
        text("convolution", [(2, 8, 6), (3, 6, 4)], [(2, 6, 4)], dims="bf,io->bf")


# -- dimension numbers ----------------------------------------------------------------------------------


GATHER = {
    "offset_dims": (2, 3, 4), "collapsed_slice_dims": (0,), "start_index_map": (1, 0, 3), "index_vector_dim": 2,
    "slice_sizes": (1, 2, 2, 1),
}  # fmt: skip
BATCHED = {
    "offset_dims": (2,), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,),
    "start_indices_batching_dims": (1,), "start_index_map": (1,), "index_vector_dim": 2, "slice_sizes": (1, 1, 4),
}  # fmt: skip


def test_gather() -> None:
    shapes = [(3, 4, 2, 5), (2, 3, 3)], [(2, 3, 2, 2, 1)]
    local = pattern("stablehlo.gather", *shapes, **GATHER)
    assert local == (
        "n k l m, i j o -> i j k l p"
        " ; n: whole ; k: whole blocked ; m: whole ; o: whole ; p: new whole"
    )  # fmt: skip
    by_xla = pattern("stablehlo.gather", *shapes, partitioner="xla", **GATHER)
    assert by_xla == "n k l m, i j o -> i j k l p ; k: whole blocked ; o: whole ; p: new whole"


def test_gather_with_batching_dims() -> None:
    found = pattern("stablehlo.gather", [(6, 3, 4), (2, 6, 1)], [(2, 6, 4)], **BATCHED)
    assert found == "j l k, i j m -> i j k ; l: whole ; m: whole"


def gathered(numbers: dict[str, Any]) -> Any:
    """What StableHLO says of gather, word for word; slices of dims that pass are as large as what is here."""

    def run(operand: Array, index: Array) -> Array:
        sizes = [have if said > 1 else 1 for said, have in zip(numbers["slice_sizes"], operand.shape)]
        batching = numbers.get("operand_batching_dims", ())
        kept = [d for d in range(operand.ndim) if d not in (*numbers["collapsed_slice_dims"], *batching)]
        rows = np.moveaxis(index, numbers["index_vector_dim"], -1)
        offsets = numbers["offset_dims"]
        rank = rows.ndim - 1 + len(offsets)
        points = [d for d in range(rank) if d not in offsets]
        shape = [0] * rank
        for d, size in zip((*points, *offsets), (*rows.shape[:-1], *(sizes[d] for d in kept))):
            shape[d] = size
        made = np.zeros(shape)
        for at in product(*map(range, shape)):
            point = tuple(at[d] for d in points)
            place = [0] * operand.ndim
            for d, start in zip(numbers["start_index_map"], rows[point]):
                place[d] += min(max(int(start), 0), operand.shape[d] - sizes[d])
            for d, where in zip(batching, numbers.get("start_indices_batching_dims", ())):
                place[d] += point[where]
            for d, offset in zip(kept, offsets):
                place[d] += at[offset]
            made[at] = operand[tuple(place)]
        return made

    return run


def test_gather_by_execution() -> None:
    operand = np.arange(72.0).reshape(6, 3, 4)
    index = (np.arange(12) % 3).reshape(2, 6, 1)
    split, moved = check("stablehlo.gather", gathered(BATCHED), [operand, index], **BATCHED)
    assert split == ["j", "k", "i"]
    assert len(moved) == 5


SCATTER = {
    "update_window_dims": (2, 3), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (1, 0),
    "index_vector_dim": 2,
}  # fmt: skip


def test_scatter() -> None:
    shapes = [(3, 4, 2), (2, 3, 2), (2, 3, 2, 2)], [(3, 4, 2)]
    by_xla = pattern("stablehlo.scatter", *shapes, partitioner="xla", **SCATTER)
    assert by_xla == "n k m, i j o, i j l m -> n k m ; k: whole ; o: whole ; l: whole"
    local = pattern("stablehlo.scatter", *shapes, **SCATTER)
    assert local.startswith("n k m, i j o, i j l m -> n k m")
    assert all(f"{factor}: whole" in local for factor in "nkijol")


def test_a_full_window_that_is_indexed_may_be_shifted() -> None:
    """StableHLO cuts what then falls outside; XLA drops such a window and can split it."""
    numbers = {**SCATTER, "update_window_dims": (2,), "index_vector_dim": 2}
    shapes = [(3, 4), (2, 3, 2), (2, 3, 4)], [(3, 4)]
    local, by_xla = (pattern("stablehlo.scatter", *shapes, partitioner=by, **numbers) for by in ("", "xla"))
    assert "k: whole" in local
    assert by_xla == "l k, i j m, i j k -> l k ; m: whole"
    assert "k: whole" not in pattern("stablehlo.scatter", *shapes, **numbers | {"scatter_dims_to_operand_dims": (0,)})


def test_a_window_of_one_element_is_a_point() -> None:
    shapes = [(3, 4, 2), (2, 3, 2), (2, 3, 1, 2)], [(3, 4, 2)]
    assert "k: whole" not in pattern("stablehlo.scatter", *shapes, partitioner="xla", **SCATTER)


def test_scatter_of_several_at_once() -> None:
    numbers = {
        "update_window_dims": (), "inserted_window_dims": (1,), "input_batching_dims": (0,),
        "scatter_indices_batching_dims": (0,), "scatter_dims_to_operand_dims": (1,), "index_vector_dim": 1,
    }  # fmt: skip
    shapes = [(4, 9), (4, 9), (4, 1), (4,), (4,)], [(4, 9), (4, 9)]
    found = pattern("stablehlo.scatter", *shapes, partitioner="xla", **numbers)
    assert found == "i j, i j, i k, i, i -> i j, i j ; k: whole"


def test_dynamic_slice() -> None:
    found = text("dynamic_slice", [(8, 6), (), ()], [(8, 2)], slice_sizes=(8, 2))
    assert found == "i j, (), () -> i j ; j: whole blocked ; P(any), R, R -> P(any) | i=8 j=6"
    x, start = np.arange(48.0).reshape(8, 6), np.array(1)

    def run(x: Array, *starts: Array) -> Array:
        return x[:, int(starts[1]) : int(starts[1]) + 2]

    assert check("dynamic_slice", run, [x, start, start])[0] == ["i"]


def test_dynamic_update_slice() -> None:
    shapes = [(8, 6), (8, 2), (), ()], [(8, 6)]
    passed = " ; u1: whole ; P(any), P(any), R, R -> P(any) | i=8 j=6 u1=2"
    assert text("dynamic_update_slice", *shapes) == "i j, i u1, (), () -> i j ; j: whole" + passed
    assert text("dynamic_update_slice", *shapes, partitioner="xla") == "i j, i u1, (), () -> i j" + passed


@pytest.mark.parametrize("op", ["dynamic_slice", "dynamic_update_slice"])
def test_dynamic_slices_prefer_to_be_followed(op: str) -> None:
    assert lookup(op).flow is Flow.FORWARD


# -- the rest -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operand", "result", "rule"),
    [
        ((4, 2), (4, 2), "i j -> i j"),
        ((4, 2), (4, 2, 2), "i j -> i j k ; k: new whole"),
        ((4, 2, 2), (4, 2), "i j k -> i j ; k: whole"),
    ],
)
def test_bitcast_convert(operand: Any, result: Any, rule: str) -> None:
    assert pattern("bitcast_convert", [operand], [result]) == rule


def test_bitcast_convert_of_other_ranks() -> None:
    with pytest.raises(RuleError, match="from 1 to 3 dims"):
        text("bitcast_convert", [(4,)], [(4, 2, 2)])


def test_reverse() -> None:
    assert pattern("reverse", [(4, 6)], [(4, 6)], dimensions=(1,)) == "i j -> i j ; j: permuted"


def test_batch_norm_inference() -> None:
    features = [(6,)] * 4
    found = pattern("batch_norm_inference", [(2, 6, 4), *features], [(2, 6, 4)], feature_index=1)
    assert found == "i j k, j, j, j, j -> i j k"


def test_random_numbers_are_whole() -> None:
    found = pattern("rng_bit_generator", [(2,)], [(2,), (4, 6)])
    assert found == "i -> i, n0 n1 ; i: whole blocked ; n0: new whole ; n1: new whole"
    assert pattern("rng", [(), (), (1,)], [(4,)]) == "(), (), shape -> n0 ; shape: whole ; n0: new whole"
    assert lookup("rng").random
    assert lookup("rng_bit_generator").random


EXCHANGED = "i j, i j -> i x1, i x1 ; j: whole ; x1: new whole"


@pytest.mark.parametrize(
    ("op", "operand", "result", "attrs", "rule"),
    [
        ("all_reduce", (2, 4), (2, 4), {}, "i j, i j -> i j, i j"),
        ("collective_permute", (2, 4), (2, 4), {}, "i j, i j -> i j, i j"),
        ("collective_broadcast", (2, 4), (2, 4), {}, "i j, i j -> i j, i j"),
        ("all_gather", (2, 4), (2, 8), {"all_gather_dim": 1}, EXCHANGED),
        ("reduce_scatter", (2, 4), (2, 2), {"scatter_dimension": 1}, EXCHANGED),
        (
            "all_to_all", (2, 4), (4, 2), {"split_dimension": 1, "concat_dimension": 0},
            "i j, i j -> x0 x1, x0 x1 ; i: whole ; j: whole ; x0: new whole ; x1: new whole",
        ),
    ],
)  # fmt: skip
def test_collectives(op: str, operand: Any, result: Any, attrs: dict[str, Any], rule: str) -> None:
    assert pattern(f"stablehlo.{op}", [operand] * 2, [result] * 2, **attrs) == rule
