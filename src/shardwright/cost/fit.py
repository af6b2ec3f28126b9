"""From measurements to figures: a table that grows, and the constants of a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from .hardware import Roofline

Sample = tuple[float, float, float]
"""Seconds that the arithmetic would take at its peak rate, that the bytes would at theirs, and that were measured."""

_RISE = 1.001
"""Each time of a table stands at least so far above the one before: fewer bytes are cheaper, never equal."""


def growing(times: Sequence[float]) -> list[float]:
    """The nearest times that grow: where they fall, neighbours share their median, which outliers cannot move.

    >>> [round(time, 1) for time in growing([9.0, 17.0, 9.5, 9.4, 12.0])]
    [9.0, 9.5, 9.5, 9.5, 12.0]
    """
    pools: list[list[float]] = []
    for time in times:
        pools.append([time])
        while len(pools) > 1 and median(pools[-2]) > median(pools[-1]):
            last = pools.pop()
            pools[-1] = pools[-1] + last
    found: list[float] = []
    for pool in pools:
        for _ in pool:
            found.append(max(median(pool), found[-1] * _RISE if found else 0.0))
    return found


def fit_roofline(samples: Sequence[Sample], rounds: int = 60, scores: Sequence[float] = (), units: int = 0) -> Roofline:
    """Constants c0, a, b of ``c0 + a*flops/peak + b*bytes/bandwidth`` with the least mean relative error.

    Least squares on relative errors, weighted anew each round until it minimises their mean (L1); no constant falls
    below 0.  With the number of ``scores`` of each sample, their rate as well; for ``units``, which is known and not
    fitted, seconds and scores come already stretched (`compute.Work`).
    """
    if scores and len(scores) != len(samples):
        raise ValueError(f"{len(scores)} numbers of scores for {len(samples)} samples")
    work, moved, measured = (np.array(column, dtype=float) for column in zip(*samples))
    columns = [np.ones_like(work), work, moved, *([np.array(scores, dtype=float)] if scores else [])]
    rows = np.stack(columns, axis=1) / measured[:, None]
    # Columns of one size: seconds and numbers of scores are far apart, and so would be what is solved for.
    largest = np.abs(rows).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)
    rows = rows / scale
    target = np.ones(len(rows))
    weights = np.ones(len(rows))
    found = np.zeros(rows.shape[1])
    for _ in range(rounds):
        found = _not_negative(rows * weights[:, None], target * weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(rows @ found - target), 1e-3))
    launch, flops, traffic, *each = (float(x) for x in found / scale)
    rate = round(1 / each[0]) if each and each[0] > 0 else 0
    return Roofline(round(launch, 9), round(100 * flops), round(100 * traffic), rate, units)


def _not_negative(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares over the best subset of columns that gives no constant below 0."""
    best, error = np.zeros(rows.shape[1]), float("inf")
    for mask in range(1, 2 ** rows.shape[1]):
        columns = [c for c in range(rows.shape[1]) if mask >> c & 1]
        part = np.linalg.lstsq(rows[:, columns], target, rcond=None)[0]
        if (part < 0).any():
            continue
        tried = np.zeros(rows.shape[1])
        tried[columns] = part
        missed = float(np.sum((rows @ tried - target) ** 2))
        if missed < error:
            best, error = tried, missed
    return best
