"""Parts of an axis as multiplicative intervals."""

from __future__ import annotations

import pytest

from shardwright.spec.axes import (
    AxisRef,
    axes_size,
    axes_text,
    is_prefix,
    is_strict_prefix,
    merge_axes,
    prefix_without_overlap,
)
from shardwright.spec.mesh import DeviceMesh

MESH = DeviceMesh("x=8, y=4, one=1")


def axis(text: str) -> AxisRef:
    return MESH.axis(text)


def axes(text: str) -> tuple[AxisRef, ...]:
    return tuple(map(axis, text.split()))


@pytest.mark.parametrize("text", ["x", "x:(1)2", "x:(2)4", "one"])
def test_text(text: str) -> None:
    assert str(axis(text)) == text


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("x", "x", True),
        ("x", "x:(4)2", True),
        ("x:(1)4", "x:(2)4", True),
        ("x:(1)2", "x:(2)2", False),
        ("x:(1)2", "x:(4)2", False),
        ("x", "y", False),
        ("one", "one", True),
    ],
)
def test_overlaps(one: str, other: str, expected: bool) -> None:
    assert axis(one).overlaps(axis(other)) is axis(other).overlaps(axis(one)) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("x:(1)2", "x:(2)3", True),
        ("x:(1)2", "x:(6)2", True),
        ("x:(1)6", "x:(2)6", True),
        ("x", "x:(3)2", True),
        ("x:(1)2", "x:(3)2", False),
        ("x:(1)4", "x:(6)2", False),
        ("x:(1)2", "x:(1)3", False),
        ("x:(2)3", "x:(4)3", False),
    ],
)
def test_parts_that_coexist_are_of_one_cut(one: str, other: str, expected: bool) -> None:
    mesh = DeviceMesh("x=12")
    a, b = mesh.axis(one), mesh.axis(other)
    assert a.coexists(b) is b.coexists(a) is expected
    assert a.excludes(b) is (a.overlaps(b) or not expected)


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [("x", "x:(2)2", True), ("x:(1)4", "x:(2)2", True), ("x:(1)2", "x", False), ("x", "y", False)],
)
def test_contains(outer: str, inner: str, expected: bool) -> None:
    assert axis(outer).contains(axis(inner)) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("x:(1)2", "x", True), ("x", "x", True), ("x:(2)2", "x", False), ("x", "x:(1)2", False), ("y", "x", False)],
)
def test_prefix_of(one: str, other: str, expected: bool) -> None:
    assert axis(one).prefix_of(axis(other)) is expected


def test_a_part_that_does_not_divide_is_no_prefix() -> None:
    mesh = DeviceMesh("x=6")
    assert not mesh.axis("x:(1)2").prefix_of(mesh.axis("x:(1)3"))


def test_split_and_merge_are_inverse() -> None:
    major, minor = axis("x").split(2)
    assert (major, minor) == axes("x:(1)2 x:(2)4")
    assert major.can_merge(minor)
    assert major.merge(minor) == axis("x")


@pytest.mark.parametrize(("major", "minor"), [("x:(1)2", "x:(4)2"), ("x:(2)2", "x:(1)2"), ("x", "y"), ("one", "one")])
def test_parts_that_do_not_follow_each_other_do_not_merge(major: str, minor: str) -> None:
    assert not axis(major).can_merge(axis(minor))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x:(1)2 x:(2)4", "x"),
        ("x:(1)2 x:(2)2 x:(4)2 y", "x y"),
        ("x:(2)4 x:(1)2", "x:(2)4 x:(1)2"),
        ("x:(1)2 y x:(2)4", "x:(1)2 y x:(2)4"),
        ("", ""),
    ],
)
def test_merge_axes(before: str, after: str) -> None:
    assert merge_axes(axes(before)) == axes(after)


@pytest.mark.parametrize(
    ("short", "longer", "expected"),
    [
        ("", "", True),
        ("", "x", True),
        ("x", "x y", True),
        ("x:(1)2", "x y", True),
        ("x y:(1)2", "x y", True),
        ("x:(1)2 y", "x y", False),
        ("y", "x y", False),
        ("x y", "x", False),
    ],
)
def test_is_prefix(short: str, longer: str, expected: bool) -> None:
    assert is_prefix(axes(short), axes(longer)) is expected


def test_a_strict_prefix_is_shorter() -> None:
    assert is_strict_prefix(axes("x:(1)2"), axes("x"))
    assert not is_strict_prefix(axes("x"), axes("x"))


@pytest.mark.parametrize(
    ("one", "others", "kept"),
    [
        ("x", "y", "x"),
        ("x", "x:(4)2", "x:(1)4"),
        ("x", "x:(4)2 x:(2)2", "x:(1)2"),
        ("x", "x:(1)2", None),
        ("x:(2)4", "x:(4)2", "x:(2)2"),
        ("x", "x", None),
        ("x", "", "x"),
    ],
)
def test_prefix_without_overlap(one: str, others: str, kept: str | None) -> None:
    assert prefix_without_overlap(axis(one), axes(others)) == (axis(kept) if kept else None)


@pytest.mark.parametrize(("one", "other"), [("x:(2)6", "x:(3)4"), ("x:(1)4", "x:(3)4"), ("x:(1)2", "x:(3)4")])
def test_no_prefix_where_the_parts_cannot_coexist(one: str, other: str) -> None:
    mesh = DeviceMesh("x=12")
    assert prefix_without_overlap(mesh.axis(one), [mesh.axis(other)]) is None


def test_size_and_text_of_a_list() -> None:
    assert (axes_size(axes("x:(1)2 y")), axes_text(axes("x:(1)2 y"))) == (8, "x:(1)2+y")
    assert (axes_size(()), axes_text(())) == (1, "")
