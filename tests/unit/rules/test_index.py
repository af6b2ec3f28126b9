"""Slicing, joining, lookup and update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from by_execution import check, text
from shardwright.errors import RuleError

PASS = " ; P(any) -> P(any)"
X = np.arange(48.0).reshape(4, 6, 2)


# -- cut, turned, shifted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "start", "stop", "step", "rule"),
    [
        ((8, 4), (None, 1), (None, 5), (None, None), f"i j -> i j ; j: permuted{PASS} | i=8 j=6"),
        ((8, 6), (None, None), (None, None), (None, None), f"i j -> i j{PASS} | i=8 j=6"),
        ((8, 6), (0, 0), (8, 6), (1, 1), f"i j -> i j{PASS} | i=8 j=6"),
        ((8, 6), (7, None), (None, None), (-1, None), f"i j -> i j ; i: permuted{PASS} | i=8 j=6"),
        ((4, 3), (None, None), (None, None), (2, 2), f"i j -> i j ; i: permuted ; j: permuted{PASS} | i=8 j=6"),
        ((0, 6), (3, None), (3, None), (None, None), f"i j -> i j ; i: permuted{PASS} | i=8 j=6"),
    ],
)
def test_slice(result: Any, start: Any, stop: Any, step: Any, rule: str) -> None:
    assert text("slice", [(8, 6)], [result], start=start, stop=stop, step=step) == rule


def test_a_dim_of_size_1_is_not_moved_by_a_step() -> None:
    assert "permuted" not in text("slice", [(1, 6)], [(1, 6)], start=(0, 0), stop=(1, 6), step=(2, 1))


def test_slice_by_execution() -> None:
    def run(x: Any) -> Any:
        return x[:, 1:4, ::-1]

    attrs = {"start": (None, 1, None), "stop": (None, 4, None), "step": (None, None, -1)}
    split, moved = check("slice", run, [X], **attrs)
    assert split == ["i"]
    assert len(moved) == 5


@pytest.mark.parametrize(
    ("attrs", "fact"),
    [
        ({"start": (None,)}, "start has 1 entries for a tensor with 2 dims"),
        ({"start": (0, 0, 0)}, "start has 3 entries for a tensor with 2 dims"),
    ],
)
def test_slice_with_wrong_attributes(attrs: dict[str, Any], fact: str) -> None:
    with pytest.raises(RuleError, match=fact):
        text("slice", [(8, 6)], [(8, 6)], **attrs)


def test_a_slice_keeps_the_number_of_dims() -> None:
    with pytest.raises(RuleError, match="a slice of 2 dims cannot have 1"):
        text("slice", [(8, 6)], [(8,)], start=(None, 0), stop=(None, 1), step=(None, None))


def test_flip() -> None:
    assert text("flip", [(4, 6)], [(4, 6)], axis=(1,)) == f"i j -> i j ; j: permuted{PASS} | i=4 j=6"
    assert text("flip", [(4, 1)], [(4, 1)], axis=(1,)) == f"i j -> i j{PASS} | i=4 j=1"
    assert check("flip", lambda x: np.flip(x, (1,)), [X], axis=(1,))[0] == ["i", "k"]


def test_roll() -> None:
    assert text("roll", [(4, 6)], [(4, 6)], shift=(3,), axis=(0,)) == f"i j -> i j ; i: permuted{PASS} | i=4 j=6"
    # By the whole size nothing moves, but a shard is smaller.
    whole = text("roll", [(4, 6)], [(4, 6)], shift=(4, 0), axis=(0, 1))
    assert whole == f"i j -> i j ; i: permuted{PASS} | i=4 j=6"
    assert "permuted" not in text("roll", [(4, 6)], [(4, 6)], shift=(1, -1), axis=(0, 0))
    assert check("roll", lambda x: np.roll(x, (1,), (1,)), [X], shift=(1,), axis=(1,))[0] == ["i", "k"]
    with pytest.raises(RuleError, match="1 shifts for 2 dims"):
        text("roll", [(4, 6)], [(4, 6)], shift=(1,), axis=(0, 1))


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (0, {"max", "min", "avg", "sum", "prod"}),
        (1, {"max", "min", "avg", "prod"}),
        (-1.0, {"max", "min", "avg"}),
        (float("-inf"), {"max", "min", "avg", "sum"}),
    ],
)
def test_pad_passes_what_gives_its_value_back(value: float, kinds: set[str]) -> None:
    def run(x: Any) -> Any:
        return np.pad(x, ((0, 0), (1, 0), (0, 0)), constant_values=value)

    split, moved = check("pad", run, [X], low=(0, 1, 0), high=(0, 0, 0), value=value)
    assert split == ["i", "k"]
    assert set(moved) == {f"P({kind}) -> P({kind})" for kind in kinds}


def test_pad() -> None:
    rule = text("pad", [(4, 6)], [(7, 6)], low=(1, 0), high=(2, 0), value=3)
    assert rule.startswith("i j -> i j ; i: permuted ; P(max)")
    assert rule.endswith("| i=4 j=6")


def test_a_pad_that_only_cuts_passes_everything() -> None:
    assert text("pad", [(4, 6)], [(3, 6)], low=(-1, 0), high=(0, 0), value=3).count("P(any)") == 2


def test_between_the_elements_of_a_dim_of_one_there_is_nothing_to_pad() -> None:
    rule = text("pad", [(1, 6)], [(1, 11)], low=(0, 0), high=(0, 0), interior=(1, 1), value=3)
    assert "i: permuted" not in rule
    assert "j: permuted" in rule


def test_a_shift_by_padding_is_a_permutation_though_the_size_stays() -> None:
    assert "i: permuted" in text("pad", [(4,)], [(4,)], low=(1,), high=(-1,))


def test_pad_with_the_value_as_operand() -> None:
    def run(x: Any, value: Any) -> Any:
        return np.pad(x, ((0, 0), (1, 0), (0, 0)), constant_values=value)

    split, moved = check("pad", run, [X, np.array(2.5)], low=(0, 1, 0), high=(0, 0, 0))
    assert split == ["i", "k"]
    assert "P(prod), P(prod) -> P(prod)" in moved
    assert "P(sum), R -> P(sum)" not in moved


def test_pad_with_a_complex_value() -> None:
    rule = text("pad", [(4,)], [(5,)], low=(1,), high=(0,), value=(0.0, 0.0))
    assert "P(sum) -> P(sum)" in rule
    assert "P(sum) -> P(sum)" not in text("pad", [(4,)], [(5,)], low=(1,), high=(0,), value=(0.0, 1.0))


def test_diagonal() -> None:
    rule = text("diagonal", [(4, 6, 2)], [(2, 3)], offset=1, axis1=0, axis2=1)
    assert rule.startswith("i j k -> k diagonal ; i: whole ; j: whole ; diagonal: new whole")
    split, moved = check("diagonal", lambda x: x.diagonal(1, 0, 1), [X], offset=1, axis1=0, axis2=1)
    assert (split, len(moved)) == (["k"], 5)


# -- joined ---------------------------------------------------------------------------------------------


def test_concatenate() -> None:
    rule = text("concatenate", [(4, 2), (4, 3), (4, 1)], [(4, 6)], axis=1)
    assert rule == "i j, i j, i j -> i j ; j: whole ; P(any), P(any), P(any) -> P(any) | i=4 j=6"


def test_concatenate_by_execution() -> None:
    split, moved = check("concatenate", lambda *parts: np.concatenate(parts, 1), [X, X[:, :2]], axis=1)
    assert split == ["i", "k"]
    assert "P(prod), P(prod) -> P(prod)" in moved


def test_an_axis_out_of_range() -> None:
    with pytest.raises(RuleError, match="axis 2 of a tensor with 2 dims"):
        text("concatenate", [(4, 2), (4, 3)], [(4, 5)], axis=2)
    with pytest.raises(RuleError, match="the call does not say its axis"):
        text("concatenate", [(4, 2), (4, 3)], [(4, 5)])


# -- looked up ------------------------------------------------------------------------------------------


LOOKUP = " ; P(any), R -> P(any)"


@pytest.mark.parametrize(
    ("table", "index", "result", "axis", "rule"),
    [
        ((9, 8), (2, 3), (2, 3, 8), 0, "v d0, i0 i1 -> i0 i1 d0 ; v: form(take)"),
        ((4, 9, 8), (2,), (4, 2, 8), 1, "d0 v d1, i0 -> d0 i0 d1 ; v: form(take)"),
        ((9,), (), (), 0, "v, () -> () ; v: form(take)"),
        ((4, 9), (3,), (3,), None, "v0 v1, i0 -> i0 ; v0: whole ; v1: whole"),
    ],
)
def test_take(table: Any, index: Any, result: Any, axis: int | None, rule: str) -> None:
    assert text("take", [table, index], [result], axis=axis).split(" | ")[0] == rule + LOOKUP


def test_take_by_execution() -> None:
    index = np.array([[1, 5, 0, 2], [2, 2, 1, 4]])
    split, moved = check("take", lambda x, i: np.take(x, i, 1), [X, index], axis=1)
    assert split == ["d0", "d1", "i0", "i1"]
    assert len(moved) == 5


def test_take_along_axis() -> None:
    rule = text("take_along_axis", [(4, 9), (4, 2)], [(4, 2)], axis=1)
    assert rule == f"d0 v, d0 d1 -> d0 d1 ; v: whole{LOOKUP} | d0=4 v=9 d1=2"


@pytest.mark.parametrize(("table", "index"), [((4, 6, 2), (4, 4, 2)), ((1, 6, 2), (4, 4, 2)), ((4, 6, 2), (4, 4, 1))])
def test_take_along_axis_by_execution(table: Any, index: Any) -> None:
    x = np.arange(float(np.prod(table))).reshape(table)
    i = np.arange(int(np.prod(index))).reshape(index) % 6
    split, _ = check("take_along_axis", lambda x, i: np.take_along_axis(x, i, 1), [x, i], axis=1)
    assert sorted(split) == ["d0", "d1", "d2"]


def test_take_along_axis_needs_an_index_of_the_same_rank() -> None:
    with pytest.raises(RuleError, match="an index of 1 dims for a table of 2"):
        text("take_along_axis", [(4, 9), (4,)], [(4, 2)], axis=1)


# -- written to -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "rule"),
    [
        ((4, 2), "d0 d1, d0 n1 -> d0 d1 ; d1: whole ; n1: whole"),
        ((1, 2), "d0 d1, 1 n1 -> d0 d1 ; d1: whole ; n1: whole"),
        ((2,), "d0 d1, n1 -> d0 d1 ; d1: whole ; n1: whole"),
        ((), "d0 d1, () -> d0 d1 ; d1: whole"),
    ],
)
def test_update_slice(update: Any, rule: str) -> None:
    found = text("update_slice", [(4, 6), update], [(4, 6)], start=(None, 1), stop=(None, 3), step=(None, None))
    assert found.split(" | ")[0] == rule + " ; P(any), P(any) -> P(any)"


def test_update_slice_of_everything() -> None:
    attrs = dict.fromkeys(("start", "stop", "step"), (None, None))
    assert text("update_slice", [(4, 6), (4, 6)], [(4, 6)], **attrs).startswith("d0 d1, d0 d1 -> d0 d1 ; P(any)")


def test_update_slice_by_execution() -> None:
    def run(x: Any, v: Any) -> Any:
        made = x.copy()
        made[:, 1:3] = v
        return made

    attrs = {"start": (None, 1, None), "stop": (None, 3, None), "step": (None, None, None)}
    split, moved = check("update_slice", run, [X, -X[:, :2]], **attrs)
    assert split == ["d0", "d2"]
    assert len(moved) == 5


def test_update_slice_with_too_many_dims() -> None:
    with pytest.raises(RuleError, match="a slice of 1 dims cannot have 2"):
        text("update_slice", [(4,), (1, 2)], [(4,)], start=(1,), stop=(3,), step=(None,))


@pytest.mark.parametrize(
    ("update", "rule"),
    [
        ((4, 2, 3), "d0 v d1, i0, d0 i0 d1 -> d0 v d1 ; v: whole ; i0: whole"),
        ((2, 1), "d0 v d1, i0, i0 1 -> d0 v d1 ; v: whole ; i0: whole"),
        ((), "d0 v d1, i0, () -> d0 v d1 ; v: whole ; i0: whole"),
    ],
)
def test_scatter(update: Any, rule: str) -> None:
    found = text("scatter", [(4, 6, 3), (2,), update], [(4, 6, 3)], axis=1)
    assert found.startswith(rule + " ; P(any), R, P(any) -> P(any)")


def test_scatter_by_execution() -> None:
    def run(x: Any, i: Any, v: Any) -> Any:
        made = x.copy()
        made[:, i] = v
        return made

    split, moved = check("scatter", run, [X, np.array([3, 0]), -X[:, :2]], axis=1)
    assert split == ["d0", "d1"]
    assert sorted(moved) == [f"P({kind}), R, P({kind}) -> P({kind})" for kind in ("avg", "max", "min", "prod", "sum")]


def test_scatter_of_rows_that_do_not_fit() -> None:
    with pytest.raises(RuleError, match=r"\[1, 4, 2, 3\] cannot be stretched to 3 dims"):
        text("scatter", [(4, 6, 3), (2,), (1, 4, 2, 3)], [(4, 6, 3)], axis=1)
