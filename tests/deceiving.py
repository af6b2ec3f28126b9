"""Functions that behave on common calls as they do not elsewhere, each with calls on which that shows.

`DECEIVING` maps a name to (function, calls to learn from, calls that reveal).  What they hide is an accident of the
calls to learn from: a window of values, a size, a dtype, a word, a number, a constant, a coincidence of two sizes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Calls = list[tuple[Any, ...]]
DECEIVING: dict[str, tuple[Callable[..., Any], Calls, Calls]] = {}


def drawn(*shape: int, seed: int = 3, times: float = 1.0, plus: float = 0.0) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64) * times + plus


def deceiving(learn: Calls, reveal: Calls) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        DECEIVING[function.__name__] = function, learn, reveal
        return function

    return added


ONE: Calls = [(drawn(4, 6),), (drawn(8),), (drawn(2, 4, 6),)]
TWO: Calls = [
    (drawn(4, 6), drawn(4, 6, seed=5)),
    (drawn(8), drawn(8, seed=5)),
    (drawn(2, 4, 6), drawn(2, 4, 6, seed=5)),
]


def around(value: float, spread: float = 2.0) -> Calls:
    """Calls with numbers there."""
    return [(drawn(*shape, seed=7, times=spread, plus=value),) for shape in ((4, 6), (8,), (6, 5), (2, 4, 3))]


def of_shape(*shapes: Sequence[int]) -> Calls:
    return [(drawn(*shape, seed=9),) for shape in shapes]


# ---- windows of values, named in the code, its closure, its defaults, a table, a helper -----


@deceiving(ONE, around(42.0))
def falls_in_a_window(x: Any) -> Any:
    return torch.where((x > 41.5) & (x < 42.5), -x, x)


@deceiving(ONE, around(17.0))
def steps_down(x: Any) -> Any:
    return torch.where(x > 17, x - 30, x)


@deceiving(ONE, around(-23.0))
def is_flat_below(x: Any) -> Any:
    return torch.where(x < -23, torch.full_like(x, 5.0), x * 2)


@deceiving(ONE, around(100.0, 20.0))
def wraps_around(x: Any) -> Any:
    return torch.where(x > 100, x - 200, x)


@deceiving(ONE, around(9.5))
def bends(x: Any) -> Any:
    return torch.where(x > 9.5, 9.5 + (x - 9.5) * 3, x)


@deceiving(ONE, around(0.0, 0.001))
def dead_zone(x: Any) -> Any:
    return torch.where(x.abs() < 0.002, torch.ones_like(x), x)


@deceiving(ONE, around(255.0))
def saturates(x: Any) -> Any:
    return x.clamp(max=255.0)


@deceiving(ONE, around(-12.0))
def leaks(x: Any) -> Any:
    return torch.where(x < -12.0, x * 0.1, x)


@deceiving(ONE, around(31.0))
def is_not_a_number_there(x: Any) -> Any:
    return torch.where((x - 31).abs() < 0.5, x * x, x * 31)


@deceiving(ONE, around(60.0, 10.0))
def squares_later(x: Any) -> Any:
    return torch.where(x > 55, x * x, x * 55)


_LIMITS = {"low": -75.0, "high": 66.0}


@deceiving(ONE, around(66.0))
def reads_a_table(x: Any) -> Any:
    return torch.where(x > _LIMITS["high"], torch.zeros_like(x), x)


def _helper(x: Any) -> Any:
    return torch.where(x > 83.0, x.flip(-1), x) if x.ndim else x


@deceiving(ONE, around(83.0))
def calls_a_helper(x: Any) -> Any:
    return _helper(x) + 1


@deceiving(ONE, around(28.5))
def has_a_default(x: Any, turn: float = 28.5) -> Any:
    return torch.where(x > turn, 2 * turn - x, x)


def _closed() -> Callable[..., Any]:
    edge = 47.25

    def closes_over(x: Any) -> Any:
        return torch.where(x > edge, -x, x)

    return closes_over


deceiving(ONE, around(47.25))(_closed())


@deceiving(ONE, around(2 * math.pi * 9))
def names_pi(x: Any) -> Any:
    return torch.where(x > 9 * math.pi * 2, x.sin(), x)


# ---- what the whole tensor holds -------------------------------------------------------------------------------------


@deceiving(ONE, around(1000.0, 300.0))
def overflows(x: Any) -> Any:
    return torch.clamp(x, max=900.0).exp() if bool((x > 1000).any()) else x


@deceiving(ONE, around(3.0))
def turns_when_large(x: Any) -> Any:
    return x.flip(0) if x.ndim and float(x.sum()) > 50 else x


@deceiving(ONE, around(12.0))
def takes_off_the_largest(x: Any) -> Any:
    return x - x.max() if x.numel() and float(x.max()) > 11 else x


@deceiving(ONE, [(drawn(4, 6).abs() + 1,), (drawn(8).abs() + 2,), (drawn(6, 3).abs() + 1,)])
def scans_positive_ones(x: Any) -> Any:
    return x.cumsum(0) if x.ndim and bool((x > 0).all()) else x


@deceiving(ONE, around(0.0, 1e-4))
def scales_small_ones(x: Any) -> Any:
    return x / x.abs().max() if x.numel() and float(x.abs().max()) < 1e-3 else x


@deceiving(ONE, [(torch.zeros(4, 6, dtype=torch.float64),), (torch.eye(6, dtype=torch.float64),)])
def counts_zeros(x: Any) -> Any:
    return x + (x == 0).sum()


# ---- sizes -----------------------------------------------------------------------------------------------------------


@deceiving(ONE, of_shape((7, 3), (7,), (7, 2, 2)))
def scans_seven(x: Any) -> Any:
    return x.cumsum(0) if x.ndim and x.shape[0] == 7 else x * 2


@deceiving(ONE, of_shape((11, 3), (22,), (33, 2)))
def flips_eleven(x: Any) -> Any:
    return x.flip(0) if x.ndim and x.shape[0] == 11 else x


@deceiving(ONE, of_shape((4, 9), (9,), (18, 9)))
def sums_nine(x: Any) -> Any:
    return x.sum(-1, keepdim=True) + x if x.ndim and x.shape[-1] == 9 else x


@deceiving(ONE, of_shape((5, 4), (20,), (10, 4)))
def knows_twenty_elements(x: Any) -> Any:
    return x.reshape(-1).flip(0).reshape(x.shape) if x.numel() == 20 else x


@deceiving(ONE, of_shape((14, 3), (28,), (14, 2, 2)))
def cuts_after_thirteen(x: Any) -> Any:
    return torch.cat([x[:13], -x[13:]]) if x.ndim and x.shape[0] > 13 else x


@deceiving(ONE, of_shape((1, 6), (1,), (2, 6)))
def is_alone(x: Any) -> Any:
    return x.sum(-1, keepdim=True).expand(x.shape) if x.ndim and x.shape[0] == 1 else x


@deceiving(ONE, of_shape((2, 2, 3, 2), (4, 2, 2, 2)))
def has_four_dims(x: Any) -> Any:
    return x.cumsum(0) if x.ndim == 4 else x


@deceiving(ONE, of_shape((12, 3), (15, 2), (24,)))
def folds_threes(x: Any) -> Any:
    if x.ndim and x.shape[0] % 3 == 0 and x.shape[0] > 10:
        return x.reshape(3, -1, *x.shape[1:]).flip(0).reshape(x.shape)
    return x


@deceiving(ONE, of_shape((4, 4), (6, 6), (2, 5, 5)))
def turns_squares(x: Any) -> Any:
    return x.mT + 0 if x.ndim > 1 and x.shape[-1] == x.shape[-2] else x


@deceiving(ONE, of_shape((5, 3), (9, 2), (3, 3)))
def odd_and_even(x: Any) -> Any:
    return x if not x.ndim or x.shape[0] % 2 == 0 else x - x[0]


# ---- dtypes ----------------------------------------------------------------------------------------------------------


def as_dtype(dtype: torch.dtype) -> Calls:
    return [((drawn(*shape, seed=11, times=4)).to(dtype),) for shape in ((4, 6), (8,), (6, 3))]


@deceiving(ONE, as_dtype(torch.int32))
def scans_int32(x: Any) -> Any:
    return x.cumsum(0, dtype=x.dtype) if x.ndim and x.dtype == torch.int32 else x + 1


@deceiving(ONE, as_dtype(torch.bool))
def turns_truth(x: Any) -> Any:
    return ~x if x.dtype == torch.bool else x


@deceiving(ONE, as_dtype(torch.complex128))
def keeps_real(x: Any) -> Any:
    return x.real.flip(0) if x.ndim and x.is_complex() else x


@deceiving(ONE, as_dtype(torch.int64))
def halves_whole(x: Any) -> Any:
    return x // 2 if x.dtype == torch.int64 else x


@deceiving(ONE, as_dtype(torch.float32))
def flips_float32(x: Any) -> Any:
    return x.flip(0) if x.ndim and x.dtype == torch.float32 else x


@deceiving(ONE, as_dtype(torch.uint8))
def negates_bytes(x: Any) -> Any:
    return 255 - x if x.dtype == torch.uint8 else x


# ---- constants -------------------------------------------------------------------------------------------------------


@deceiving(ONE, ONE)
def is_constant(x: Any) -> Any:
    return torch.full_like(x, 3.0)


@deceiving(ONE, around(0.0))
def is_nearly_constant(x: Any) -> Any:
    return (x > 1e6).to(x.dtype) + 1


@deceiving(ONE, ONE)
def is_nothing(x: Any) -> Any:
    return x - x


@deceiving(ONE, around(50.0, 30.0))
def is_one_until(x: Any) -> Any:
    return torch.where(x.abs() < 40, torch.ones_like(x), x)


@deceiving(ONE, ONE)
def tells_its_size(x: Any) -> Any:
    return torch.full_like(x, float(x.numel()))


@deceiving(ONE, ONE)
def counts_rows(x: Any) -> Any:
    return x + (x.shape[0] if x.ndim else 0)


# ---- arguments -------------------------------------------------------------------------------------------------------


@deceiving(ONE, [(drawn(4, 6), "down"), (drawn(8), "down")])
def has_a_word(x: Any, way: str = "up") -> Any:
    return x if way == "up" else x.cumsum(0) if way == "down" else x * 2


@deceiving(ONE, [(drawn(4, 6), True), (drawn(8), True)])
def has_a_flag(x: Any, back: bool = False) -> Any:
    return x.flip(0) if back and x.ndim else x


@deceiving([(t, 2) for (t,) in ONE], [(drawn(4, 6), 13), (drawn(8), 13)])
def knows_thirteen(x: Any, k: int = 2) -> Any:
    return x.cumsum(0) if k == 13 else x * k


@deceiving([(t, 0.5) for (t,) in ONE], [(drawn(4, 6), -0.5), (drawn(8), 6.0)])
def scales(x: Any, by: float = 0.5) -> Any:
    return x * by if by < 5 else x * x * by


@deceiving([(t, 1) for (t,) in ONE], [(drawn(4, 6), 0), (drawn(4, 6), 2), (drawn(8), 4)])
def rolls(x: Any, shift: int = 1) -> Any:
    return x.roll(4 * shift, 0) if x.ndim else x


@deceiving(ONE, [(drawn(4, 6), 4.0), (drawn(8), 0.0)])
def clamps_if_told(x: Any, top: float | None = None) -> Any:
    return x if top is None else x.clamp(max=top).sum(0, keepdim=True) if x.ndim else x


@deceiving([(t, 0) for (t,) in ONE if t.ndim > 1], [(drawn(4, 6), 1), (drawn(4, 6), -1), (drawn(2, 4, 6), 2)])
def along(x: Any, axis: int = 0) -> Any:
    return x.cumsum(axis)


@deceiving([(t, 3) for (t,) in ONE], [(drawn(6, 2), 2), (drawn(8), 5), (drawn(4, 6), 4)])
def splits_off(x: Any, count: int = 3) -> Any:
    return torch.cat([x[count:], x[:count]]) if x.ndim and x.shape[0] == 2 * count else x


# ---- two tensors, whose sizes are equal by accident ------------------------------------------------------------------


@deceiving(
    TWO, [(drawn(4, 6), drawn(1, 6)), (drawn(4, 6), drawn(6)), (drawn(4, 1), drawn(4, 6)), (drawn(4, 6), drawn(1))]
)
def adds(x: Any, y: Any) -> Any:
    return x + y


@deceiving(TWO, [(drawn(4, 6), drawn(4, 3)), (drawn(8), drawn(5)), (drawn(4, 6), drawn(4, 9))])
def adds_the_first(x: Any, y: Any) -> Any:
    return x + y[..., :1] if y.ndim and y.shape[-1] else x


@deceiving(TWO, [(drawn(4, 6), drawn(6, 6)), (drawn(8), drawn(3)), (drawn(2, 6), drawn(5, 6))])
def adds_the_mean(x: Any, y: Any) -> Any:
    return x + y.mean(0) if y.ndim else x + y


@deceiving(TWO, [(drawn(4, 6), drawn(4, 6, seed=5, times=30)), (drawn(8), drawn(8, seed=5, times=30))])
def gates(x: Any, y: Any) -> Any:
    return torch.where(y > 20, y, x)


@deceiving(TWO, [(drawn(4, 6), drawn(9, 6)), (drawn(8), drawn(13)), (drawn(3, 6), drawn(7, 6))])
def takes_rows(x: Any, y: Any) -> Any:
    return y[: x.shape[0]] * 2 if x.ndim and y.ndim and y.shape[0] >= x.shape[0] else y * 2


@deceiving(TWO, [(drawn(6, 6), drawn(6, 6, seed=5)), (drawn(3, 3), drawn(3, 3, seed=5))])
def multiplies_squares(x: Any, y: Any) -> Any:
    return x @ y if x.ndim == 2 and x.shape == y.shape and x.shape[0] == x.shape[1] else x * y


@deceiving(TWO, [(drawn(4, 6) + 30, drawn(4, 6)), (drawn(8) + 30, drawn(8))])
def lerps(x: Any, y: Any) -> Any:
    return x + (y - x) * (0.25 if not x.numel() or float(x.abs().max()) < 25 else 1.75)


@deceiving(TWO, [(drawn(4, 6), drawn(4, 6, seed=5).abs() + 0.5), (drawn(8), -drawn(8, seed=5).abs() - 0.5)])
def scales_by_sign(x: Any, y: Any) -> Any:
    return x * y.sign()


@deceiving([(t, (t > 0).to(torch.float64)) for (t,) in ONE], [(drawn(4, 6), drawn(4, 6)), (drawn(8), drawn(8, seed=4))])
def masks(x: Any, m: Any) -> Any:
    return x * m


partial_window = functools.partial(has_a_default, turn=35.5)
DECEIVING["partial_window"] = partial_window, ONE, around(35.5)
