"""How a dim is cut."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.spec.chunks import all_chunks, chunk, nested_chunk, padded_size


@pytest.mark.parametrize(
    ("size", "parts", "expected"),
    [
        (8, 4, [2, 2, 2, 2]),
        (10, 4, [3, 3, 3, 1]),
        (5, 4, [2, 2, 1, 0]),
        (2, 3, [1, 1, 0]),
        (0, 2, [0, 0]),
        (7, 1, [7]),
    ],
)
def test_sizes(size: int, parts: int, expected: list[int]) -> None:
    bounds = [chunk(0, size, parts, index) for index in range(parts)]
    assert [stop - start for start, stop in bounds] == expected


def test_chunks_start_where_they_are_told() -> None:
    assert chunk(10, 15, 2, 1) == (13, 15)


def test_the_second_axis_cuts_the_chunk_of_the_first() -> None:
    """Not the same as 4 chunks at once, which would give 2, 2, 1, 0."""
    assert [nested_chunk(5, (2, 2), (i, j)) for i in (0, 1) for j in (0, 1)] == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_no_axes_no_cut() -> None:
    assert nested_chunk(5, (), ()) == (0, 5)
    assert all_chunks(5, ()) == ((0, 5),)


@pytest.mark.parametrize("parts", [(3,), (2, 2), (3, 2), (2, 1, 4)])
@pytest.mark.parametrize("size", [0, 1, 5, 12])
def test_all_chunks_lists_every_nested_chunk(size: int, parts: tuple[int, ...]) -> None:
    found = [nested_chunk(size, parts, index) for index in np.ndindex(*parts)]
    assert all_chunks(size, parts) == tuple(found)


@pytest.mark.parametrize("parts", [(3,), (2, 2), (3, 2)])
@pytest.mark.parametrize("size", [0, 1, 5, 12])
def test_padded_size_is_the_largest_chunk(size: int, parts: tuple[int, ...]) -> None:
    assert padded_size(size, parts) == max(stop - start for start, stop in all_chunks(size, parts))


def test_chunks_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for size in range(1, 12):
        for parts in range(1, 6):
            theirs = [len(part) for part in torch.arange(size).chunk(parts)]
            ours = [stop - start for start, stop in all_chunks(size, (parts,))]
            assert ours == theirs + [0] * (parts - len(theirs))  # torch leaves empty ones out
