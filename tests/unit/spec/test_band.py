"""Which keys a query sees, against the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import SpecError
from shardwright.spec.band import Band

SIDES = st.none() | st.integers(-9, 9)
BANDS = st.builds(Band, SIDES, SIDES, st.integers(0, 9))


def matrix(band: Band, start: int, stop: int, keys: int) -> np.ndarray:
    row, key = np.arange(start, stop)[:, None], np.arange(keys)
    seen = np.ones((stop - start, keys), bool)
    if band.left is not None:
        seen &= row - band.left <= key
    if band.right is not None:
        seen &= key <= row + band.right
    return seen | (key < band.prefix)


@given(BANDS, st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_band_is_its_matrix(band: Band, rows: int, keys: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, rows))
    assert Band.parse(str(band)) == band
    assert Band.of(band.attrs) == band
    assert np.array_equal(matrix(band.normal(rows, keys), 0, rows, keys), matrix(band, 0, rows, keys))
    assert np.array_equal(matrix(band.moved(start), 0, rows - start, keys), matrix(band, start, rows, keys))
    assert band.pairs(start, rows, keys) == matrix(band, start, rows, keys).sum()
    assert band.every_row_sees(rows, keys) == bool(matrix(band, 0, rows, keys).any(1).all())


@given(BANDS, BANDS, st.integers(1, 9), st.integers(1, 9))
def test_the_normal_form_tells_bands_apart(one: Band, other: Band, rows: int, keys: int) -> None:
    if one.normal(rows, keys) == other.normal(rows, keys):
        assert np.array_equal(matrix(one, 0, rows, keys), matrix(other, 0, rows, keys))


def test_the_flag_of_pytorch_is_a_band() -> None:
    assert Band.of({"is_causal": True}) == Band(right=0)
    assert Band(right=0).attrs == {"is_causal": True}
    assert Band.of({"is_causal": False, "sees": "i-3 <= j <= i or j < 2"}) == Band(3, 0, 2)
    with pytest.raises(SpecError, match="does not say which keys"):
        Band.parse("j <= k")
