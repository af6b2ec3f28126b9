"""Operators as their authors write them: composites, custom operators, in place, tensors by keyword, NumPy.

`OWN` maps a name to an `Own`: the function, calls to learn from as text, and what it writes to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Own:
    call: Callable[..., Any]
    calls: tuple[str, ...]
    mutates: tuple[str, ...] = ()
    numpy: bool = False


OWN: dict[str, Own] = {}


def own(
    *calls: str, mutates: tuple[str, ...] = (), numpy: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(function, "__name__", "") or function._name.rpartition("::")[2]  # type: ignore[attr-defined]
        OWN[name] = Own(function, calls, mutates, numpy)
        return function

    return added


@own("op(f64[4, 6], f64[6, 5])", "op(f64[2, 4, 6], f64[6, 5])", "op(f64[8, 3], f64[3, 7])")
def linear_and_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b + 1


@own("op(f64[4, 6], f64[6])", "op(f64[2, 4, 6], f64[4, 6])", "op(f64[8], f64[8])")
def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


@own("op(f64[8, 6])", "op(f64[16])", "op(f64[8, 3, 2])")
def rolled(x: torch.Tensor) -> torch.Tensor:
    return torch.roll(x, 8, 0)


@own("op(f64[4, 6], f64[6])", "op(f64[2, 4, 6], f64[6])")
def root_mean_square_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@own("op(f64[4, 12])", "op(f64[2, 4, 6])")
def gated(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return left * torch.sigmoid(right)


@own("op(f64[2, 6, 8])", "op(f64[3, 4, 6])")
def rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


@own("op(f64[4, 6], f64[4, 6])", "op(f64[2, 4, 6], f64[2, 4, 6])", "op(f64[8, 3], f64[8, 3], reduction='sum')")
def squared_error(x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    error = (x - y) ** 2
    return error.mean() if reduction == "mean" else error.sum() if reduction == "sum" else error


@own("op(f64[4, 6], along=0)", "op(f64[4, 6], along=-1)", "op(f64[2, 4, 6], along=1)")
def standardised(x: torch.Tensor, along: int = 0) -> torch.Tensor:
    return (x - x.mean(along, keepdim=True)) / (x.std(along, keepdim=True, unbiased=False) + 1)


@own("op(f64[2, 4, 6], f64[2, 5, 6], f64[2, 5, 3])", "op(f64[3, 4, 6], f64[3, 4, 6], f64[3, 4, 6])")
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 2.0, dim=-1) @ v


@own("op(f64[4, 6], other=f64[4, 6])", "op(f64[8], other=f64[8])", "op(f64[4, 6], other=f64[6], times=3.0)")
def by_keyword(x: torch.Tensor, *, other: torch.Tensor, times: float = 2.0) -> torch.Tensor:
    return x + times * other


@own("op(f64[4, 6])", "op(f64[8])", "op(f64[2, 4, 6], 0.5)", mutates=("x",))
def decayed_(x: torch.Tensor, by: float = 0.9) -> None:
    x.mul_(by)


@own("op(f64[4, 6], f64[4, 6])", "op(f64[8], f64[8])", mutates=("moment", "x"))
def momentum_(x: torch.Tensor, moment: torch.Tensor, rate: float = 0.1) -> None:
    moment.mul_(0.9).add_(x)
    x.sub_(rate * moment)


@own("op(f64[4, 6], i64[4], f64[4, 6])", "op(f64[8, 3], i64[5], f64[5, 3])", mutates=("table",))
def added_at_(table: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
    table.index_add_(0, index, rows)


@own("op(f64[6, 4], i64[5])", "op(f64[8, 3], i64[2, 4])")
def looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table[index]


@own("op(f64[4, 6])", "op(f64[2, 4, 6])", "op(f64[8, 5])")
def minmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amin(-1), x.amax(-1)


@own("op(f64[4, 6])", "op(f64[8])", "op(f64[2, 4, 6], -1.0, 1.0)")
def squeezed_between(x: torch.Tensor, low: float = -0.5, high: float = 0.5) -> torch.Tensor:
    return x.clamp(low, high)


@own("op(f64[4, 6])", "op(f64[8])", "op(f64[2, 4, 6])")
def differences(x: torch.Tensor) -> torch.Tensor:
    return x - x.roll(1, 0) if x.ndim else x


@own("op(f64[4, 6], f64[4, 6])", "op(f64[8], f64[8])", "op(f64[2, 4, 6], f64[2, 4, 6], 3.0)")
@torch.library.custom_op("shardwright_own::weighted", mutates_args=())
def weighted(x: torch.Tensor, y: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x + factor * y


@own("op(f64[4, 6])", "op(f64[2, 4, 6])", "op(f64[8])")
@torch.library.custom_op("shardwright_own::scanned", mutates_args=())
def scanned(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return x.cumsum(dim)


@own("op(f64[4, 6])", "op(f64[8])", "op(f64[2, 4, 6])", numpy=True)
def softplus_of_arrays(x: Any) -> Any:
    return np.logaddexp(x, 0.0)


@own("op(f64[4, 6], f64[4, 6])", "op(f64[8], f64[8])", "op(f64[2, 4, 6], f64[6])", numpy=True)
def distances_of_arrays(a: Any, b: Any) -> Any:
    return np.hypot(a, b)


@own("op(f64[4, 6])", "op(f64[2, 4, 6])", "op(f64[8, 5], axis=0)", numpy=True)
def ranges_of_arrays(x: Any, axis: int = -1) -> Any:
    return np.ptp(x, axis=axis)
