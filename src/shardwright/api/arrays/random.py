"""Random numbers that depend on the global index alone, so that any mesh gives the same ones.

A counter-based generator (Philox 4x32 with 10 rounds, Salmon et al. 2011): the counter is the element's index in
the whole tensor, the key is the user's seed.  No state, no order: each device computes exactly its own elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: NDArray[np.uint64], key: int) -> tuple[NDArray[np.uint64], ...]:
    """Four 32-bit words for each 64-bit counter.

    >>> [hex(int(word)) for word in philox(np.zeros((), np.uint64), 0)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    words = [counter & _LOW, counter >> _SHIFT, np.zeros_like(counter), np.zeros_like(counter)]
    keys = [key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        first = words[0] * _MULTIPLIERS[0]
        second = words[2] * _MULTIPLIERS[1]
        words = [
            (second >> _SHIFT) ^ words[1] ^ np.uint64(keys[0]),
            second & _LOW,
            (first >> _SHIFT) ^ words[3] ^ np.uint64(keys[1]),
            first & _LOW,
        ]
        keys = [(k + w) & 0xFFFFFFFF for k, w in zip(keys, _WEYL)]
    return tuple(words)


def global_indices(shape: Sequence[int], part: tuple[slice, ...]) -> NDArray[np.uint64]:
    """The flat index in the whole tensor of every element of a part of it."""
    index = np.zeros((), np.uint64)
    for size, cut in zip(shape, part):
        index = index[..., None] * np.uint64(size) + np.arange(cut.start, cut.stop, dtype=np.uint64)
    return index


def normal_part(shape: Sequence[int], part: tuple[slice, ...], seed: int) -> NDArray[np.float64]:
    """Standard normal numbers, by Box and Muller."""
    words = philox(global_indices(shape, part), seed)
    radius = np.sqrt(-2.0 * np.log(_unit(words[0], words[1])))
    return radius * np.cos(2.0 * np.pi * _unit(words[2], words[3]))


def _unit(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.float64]:
    """53 random bits, shifted by a half so that 0 does not occur."""
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))
    return (bits.astype(np.float64) + 0.5) * 2.0**-53
