"""Adversarial positions, and numbers that show where they came from.

Positions are drawn as 0, 1, 2, ... without a bound; whoever uses them takes them modulo what is legal for the tensor
at hand (`adversarial.redraw`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Drawn, Shape, counting, generator, random, whole

READING = ("gather", "index_select", "take", "take_along_dim", "index", "embedding", "embedding_bag", "select_scatter")
WRITING = ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_put")
WRITING_TOO = ("index_reduce", "put", "unsafe_index_put", "index_put_impl", "slice_scatter", "masked_scatter")
CLASSES = ("nll_loss", "nll_loss2d", "nll_loss_nd", "cross_entropy", "one_hot", "bincount", "multi_margin_loss")
POSITIONS = (*READING, *WRITING, *WRITING_TOO, *CLASSES, "nll_loss_forward", "nll_loss2d_forward")
MOVING = (
    "masked_select",
    "masked_fill",
    "nonzero",
    "roll",
    "flip",
    "tril",
    "triu",
    "repeat_interleave",
    "cat",
    "stack",
)


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_all_same(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Every position is the same one"""
    return np.full(shape, 1 + input_idx)


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_first(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Every position is the first, which lies on the first shard"""
    return np.zeros(shape, dtype=np.int64)


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_in_order(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Positions in order: the only case in which shards of both line up"""
    return counting(shape)


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_reversed(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Positions from last to first"""
    found = counting(shape)
    return found.size - 1 - found


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_repeated_pairs(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Each position twice in a row"""
    return counting(shape) // 2


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_shuffled(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Positions out of order, each at most once before they wrap"""
    size = counting(shape).size
    return random(input_idx, 51).permutation(size).reshape(shape)


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_first_and_last(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """The first and the last position in turn: every shard reaches for both ends"""
    return np.where(counting(shape) % 2 == 0, 0, -1)


@generator(ops=POSITIONS, kinds="iu", role="index")
def gen_index_random(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Random positions, with repeats"""
    return whole(shape, input_idx, 52, 0, 1000).astype(np.int64)


@generator(ops=(*POSITIONS, *MOVING), kinds="fciu")
def gen_identifiable(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Every element differs from every other, so a value tells where it is from"""
    return counting(shape) * 8 + input_idx + 1


@generator(ops=(*POSITIONS, *MOVING), kinds="fci")
def gen_equal_rows(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """All slices along the first dim are equal: a mix-up of rows is not seen, one of columns is"""
    row = whole(shape[1:], input_idx, 53, -9, 9)
    return np.array(np.broadcast_to(row, shape))


@generator(ops=(*WRITING, *WRITING_TOO), kinds="fci")
def gen_cancelling_updates(shape: Shape, dtype: Any, input_idx: int) -> Drawn:
    """Updates that cancel where positions repeat in pairs"""
    position = counting(shape)
    return (position // 2 % 5 + 1) * (1 - 2 * (position % 2))
