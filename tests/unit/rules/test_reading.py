"""Masks read from what computes them, against the masks themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardwright.frontends.torch import capture, run_graph  # noqa: E402
from shardwright.rules.reading import Positions, band_of  # noqa: E402
from shardwright.rules.reading.numbers import Known, Number, Runs, Sum, typed  # noqa: E402
from shardwright.spec.band import Band  # noqa: E402

MIN = torch.finfo(torch.float32).min


def read(make: Callable[[], Any]) -> tuple[Any, Number | None]:
    """The graph of a mask, and what is read of it."""
    graph = capture(lambda: make()).graph
    return graph, Positions(graph).of(graph.outputs[0])


def band(make: Callable[[], Any], query: str = "f32") -> Band | None:
    graph, number = read(make)
    shape = graph.type(graph.outputs[0]).shape
    return band_of(number, shape, shape[-2], shape[-1], query)


def dense(number: Number) -> np.ndarray:
    if isinstance(number, Known):
        return number.full
    if isinstance(number, Sum):
        full = np.add.outer(number.rows, number.columns)
        full = np.abs(full) if number.absolute else full
    else:
        column = np.arange(number.shape[number.column])
        inside = np.sum(number.edges[:, :, None] <= column, axis=1) % 2 == 1
        full = np.where(inside, number.inside, number.outside)
    shape = [1] * len(number.shape)
    shape[number.row], shape[number.column] = full.shape
    return np.broadcast_to(full.reshape(shape), number.shape)


def rows_and_columns(size: int, keys: int | None = None, dtype: Any = torch.int64) -> tuple[Any, Any]:
    return torch.arange(size, dtype=dtype)[:, None], torch.arange(size if keys is None else keys, dtype=dtype)


def causal(size: int) -> Any:
    row, column = rows_and_columns(size)
    return column <= row


def window(size: int, width: int) -> Any:
    row, column = rows_and_columns(size)
    return (column <= row) & (column > row - width)


# -- bands -------------------------------------------------------------------------------------------------

SAID: dict[str, tuple[Callable[[], Any], Band | None]] = {
    "causal": (lambda: causal(7), Band(right=0)),
    "turned about": (lambda: torch.arange(7)[:, None] >= torch.arange(7), Band(right=0)),
    "strictly before": (lambda: torch.arange(7)[:, None] > torch.arange(7), Band(right=-1)),
    "by a difference": (lambda: (torch.arange(7) - torch.arange(7)[:, None]) < 1, Band(right=0)),
    "window": (lambda: window(9, 3), Band(2, 0)),
    "window by distance": (lambda: (torch.arange(9)[:, None] - torch.arange(9)).abs() <= 2, Band(2, 2)),
    "outside of a distance": (lambda: ~((torch.arange(9)[:, None] - torch.arange(9)).abs() > 2), Band(2, 2)),
    "a window that bounds nothing": (lambda: window(4, 4), Band(right=0)),
    "prefix": (lambda: causal(7) | (torch.arange(7) < 3), Band(right=0, prefix=3)),
    "prefix and window": (lambda: window(9, 2) | (torch.arange(9) < 3), Band(1, 0, 3)),
    "all": (lambda: torch.ones(5, 5, dtype=torch.bool), Band()),
    "not not": (lambda: ~(torch.arange(6) > torch.arange(6)[:, None]), Band(right=0)),
    "triangle": (lambda: torch.ones(6, 6, dtype=torch.bool).tril(), Band(right=0)),
    "triangle of a triangle": (lambda: torch.ones(6, 6, dtype=torch.bool).tril().triu(-2), Band(2, 0)),
    "fewer queries": (lambda: torch.arange(3)[:, None] + 4 >= torch.arange(7), Band(right=4)),
    "the last rows": (lambda: causal(8)[5:], Band(right=5)),
    "minus infinity": (lambda: torch.full((6, 6), float("-inf")).triu(1), Band(right=0)),
    "filled": (lambda: torch.zeros(6, 6).masked_fill(~causal(6), float("-inf")), Band(right=0)),
    "chosen": (lambda: torch.where(causal(6), 0.0, float("-inf")), Band(right=0)),
    "the least number": (lambda: torch.where(causal(6), 0.0, MIN), Band(right=0)),
    "turned into numbers": (lambda: (1.0 - causal(6).float()) * MIN, Band(right=0)),
    "added": (lambda: torch.full((6, 6), float("-inf")).triu(1) + torch.zeros(6, 6), Band(right=0)),
    "the least number of bf16": (lambda: torch.where(causal(6), 0.0, MIN).bfloat16(), Band(right=0)),
    "with batch and heads": (lambda: causal(6)[None, None].expand(2, 3, 6, 6), Band(right=0)),
    "packed, of one sequence": (
        lambda: causal(6) & ((torch.arange(6) * 0).cumsum(0)[:, None] == (torch.arange(6) * 0).cumsum(0)),
        Band(right=0),
    ),
    "positions by a running sum": (
        lambda: torch.ones(6, dtype=torch.int64).cumsum(0)[:, None] > torch.arange(6), Band(right=0),
    ),
    # What is no band.
    "rows that see nothing, by the least number": (lambda: torch.where(window(6, 2).tril(-1), 0.0, MIN), None),
    "numbers that may be outweighed": (lambda: torch.where(causal(6), 0.0, -1e9), None),
    "a bias": (lambda: torch.where(causal(6), 1.0, float("-inf")), None),
    "two sequences": (lambda: causal(6) & ((torch.arange(6)[:, None] // 3) == (torch.arange(6) // 3)), None),
    "every second": (lambda: causal(6) & (torch.arange(6) % 2 == 0), None),
    "no diagonal": (lambda: torch.arange(6)[:, None] != torch.arange(6), None),
    "steeper": (lambda: 2 * torch.arange(6)[:, None] >= torch.arange(6), None),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_mask_is_a_band(name: str) -> None:
    make, wanted = SAID[name]
    assert band(make) == wanted


def test_rows_that_see_nothing_are_a_band_where_infinity_hides() -> None:
    assert band(lambda: torch.arange(5)[:, None] > torch.arange(5)) == Band(right=-1)


@pytest.mark.parametrize(("size", "wanted"), [(4096, Band(right=0)), (4097, Band(4095, 0)), (32768, Band(4095, 0))])
def test_a_window_of_4096(size: int, wanted: Band) -> None:
    assert band(lambda: window(size, 4096)) == wanted


def test_a_million_tokens() -> None:
    assert band(lambda: causal(1 << 20)) == Band(right=0)


@pytest.mark.parametrize(("dtype", "size", "fits"), [
    (torch.bfloat16, 256, True), (torch.bfloat16, 300, False), (torch.float16, 2048, True),
    (torch.float16, 2100, False), (torch.float32, 2000, True), (torch.int16, 3000, True), (torch.uint8, 250, True),
])  # fmt: skip
def test_positions_that_a_type_does_not_hold(dtype: Any, size: int, fits: bool) -> None:
    """From there on neighbours are equal, so a query sees keys behind it."""

    def make() -> Any:
        row, column = rows_and_columns(size, dtype=dtype)
        return column <= row

    assert (band(make) == Band(right=0)) == fits
    small = capture(lambda: make()).graph
    assert np.array_equal(dense(Positions(small).of(small.outputs[0])), run_graph(small, [])[0].numpy())


def test_the_least_number_of_half_precision_may_be_outweighed() -> None:
    least = torch.finfo(torch.float16).min
    assert band(lambda: torch.where(causal(6), 0.0, least).half(), "f16") is None
    assert band(lambda: torch.where(causal(6), 0.0, MIN).double(), "f64") is None
    assert band(lambda: torch.where(causal(6), 0.0, torch.finfo(torch.float64).min).double(), "f64") == Band(right=0)


def test_data_is_not_read() -> None:
    graph = capture(lambda seen: causal(6) & seen, torch.ones(6, dtype=torch.bool)).graph
    assert Positions(graph).of(graph.outputs[0]) is None


# -- at random ---------------------------------------------------------------------------------------------


class Expressions:
    """Masks made at random of positions: the same draw gives the same mask."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows, self.columns = self.random.choice([(5, 5), (4, 7), (9, 3), (8, 8)])

    def number(self, depth: int) -> Any:
        pick = self.random.randrange(8) if depth else self.random.randrange(2)
        a = self.random.randint(-3, 5)
        if pick == 0:
            return torch.arange(self.rows)[:, None] + a
        if pick == 1:
            return torch.arange(self.columns) - a
        x = self.number(depth - 1)
        if pick == 2:
            return x + a
        if pick == 3:
            return self.random.choice([-1, 2, 3]) * x
        if pick == 4:
            return x - self.number(depth - 1)
        if pick == 5:
            return x.float()
        if pick == 6:
            return x // self.random.choice([2, 3])
        return x.abs()

    def mask(self, depth: int) -> Any:
        pick = self.random.randrange(9) if depth else 0
        if pick < 3:
            compare = self.random.choice([torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne])
            other = self.number(2) if self.random.random() < 0.6 else self.random.randint(-2, 4)
            return compare(self.number(2), other)
        x = self.mask(depth - 1)
        if pick == 3:
            return ~x
        if pick in (4, 5, 6):
            return self.random.choice([torch.logical_and, torch.bitwise_or, torch.logical_xor])(x, self.mask(depth - 1))
        if pick == 7:
            return torch.where(x, self.mask(depth - 1), self.mask(depth - 1))
        full = x.expand(self.rows, self.columns)
        return self.random.choice([torch.tril, torch.triu])(full, self.random.randint(-2, 2))

    def made(self) -> Any:
        x = self.mask(3)
        pick = self.random.randrange(4)
        if pick == 0:
            return torch.where(x, 0.0, float("-inf"))
        if pick == 1:
            return (1 - x.to(torch.bfloat16)) * -3.0
        return x[..., 1:, :-1] if pick == 2 and x.dim() == 2 and min(x.shape) > 2 else x


def test_what_is_read_is_what_is_computed() -> None:
    known = 0
    for seed in range(400):
        graph, number = read(lambda seed=seed: Expressions(seed).made())
        wanted = run_graph(graph, [])[0]
        if number is None:
            continue
        known += 1
        found = dense(number)
        assert number.shape == tuple(wanted.shape)
        assert np.array_equal(typed(found, number.dtype), wanted.double().numpy()), seed
        if wanted.dim() == 2 and wanted.dtype == torch.bool:
            said = band_of(number, number.shape, *number.shape)
            if said is not None:
                row, key = np.ogrid[: wanted.shape[0], : wanted.shape[1]]
                left = True if said.left is None else row - said.left <= key
                right = True if said.right is None else key <= row + said.right
                assert np.array_equal((left & right) | (key < said.prefix) | np.zeros(wanted.shape, bool), wanted), seed
    assert known > 250


def test_runs_are_kept_small() -> None:
    _, number = read(lambda: causal(50_000) & (torch.arange(50_000) >= 7))
    assert isinstance(number, Runs)
    assert number.edges.shape == (50_000, 2)
