"""Which part of a whole tensor a rank holds: from DTensors, placements, shapes and numbers to `Placed`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from ....errors import SpecError
from ...ranks import Placed
from ..private import unset_fake_temporarily


def placed_by(shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> Placed:
    """By PyTorch's placements on a `DeviceMesh`, for the rank that asks."""
    with unset_fake_temporarily():
        return _placed_by(shape, mesh, placements)


def _placed_by(shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> Placed:
    coordinate = mesh.get_coordinate()
    places = [np.arange(size) for size in shape]
    partial: list[tuple[tuple[int, ...], str]] = []
    for i, placement in enumerate(placements):
        if isinstance(placement, Partial):
            ranks = tuple(torch.distributed.get_process_group_ranks(mesh.get_group(i)))
            partial.append((ranks, _kind(placement)))
            continue
        dim = getattr(placement, "dim", None)
        if dim is None:
            continue
        if not -len(shape) <= dim < len(shape):
            raise SpecError(
                f"placements= has {placement} for a tensor of {len(shape)} dims",
                help="name the tensors that are cut; a pattern such as '*' stands for outputs, too",
            )
        dim %= len(shape)
        rows = torch.from_numpy(places[dim])
        parts = _at_front(placement)._split_tensor(rows, mesh.size(i), with_padding=False, contiguous=False)[0]
        places[dim] = parts[coordinate[i]].numpy()
    return Placed(tuple(shape), tuple(places), partial=tuple(partial), said=str(tuple(placements)))


def _kind(placement: Any) -> str:
    kind = str(placement.reduce_op)
    return {"product": "prod"}.get(kind, kind)


def _at_front(placement: Any) -> Any:
    """The same way to cut, of a vector."""
    factor = getattr(placement, "split_factor", None)
    return Shard(0) if factor is None else type(placement)(0, split_factor=factor)


def placed_of(tensor: Any) -> Placed | None:
    """Of a DTensor; None of a plain tensor."""
    if not isinstance(tensor, DTensor):
        return None
    return placed_by(tensor.shape, tensor.device_mesh, tensor.placements)


def local_of(tensor: Any) -> Any:
    """The plain tensor that a rank holds of a tensor."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    wait = getattr(tensor, "trigger_wait", None)  # still under way
    return tensor if wait is None else wait()


def part_of(whole: Any, placed: Placed) -> Any:
    """The part of a tensor."""
    if placed.flat is not None:
        return whole.reshape(-1)[torch.from_numpy(placed.flat)]
    for d, rows in enumerate(placed.places):
        if len(rows) != whole.shape[d]:
            whole = whole.index_select(d, torch.from_numpy(rows))
    return whole


def by_numbers(whole_numbers: Any, local_numbers: Sequence[Any], said: str) -> list[Placed] | None:
    """For each rank, where its elements stand in the whole; None if numbers are not told apart by that."""
    flat = np.asarray(whole_numbers).reshape(-1)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    if len(ordered) > 1 and (ordered[1:] == ordered[:-1]).any():
        return None
    found = []
    for numbers in local_numbers:
        at = np.searchsorted(ordered, numbers.reshape(-1))
        at = np.minimum(at, len(ordered) - 1)
        if (ordered[at] != numbers.reshape(-1)).any():
            return None
        found.append(Placed(np.asarray(whole_numbers).shape, (), order[at].reshape(numbers.shape), said=said))
    seen = np.zeros(flat.shape, np.bool_)
    for placed in found:
        placed.mark(seen)
    return found if seen.all() else None


def by_block(whole_numbers: Any, local_numbers: Sequence[Any]) -> list[Placed] | None:
    """For each rank, the block of the whole that it holds, wherever that begins; None if some hold no block of it."""
    found = []
    seen = np.zeros(whole_numbers.shape, np.bool_)
    for numbers in local_numbers:
        if numbers.ndim != whole_numbers.ndim:
            return None
        room = [range(size - here + 1) for size, here in zip(whole_numbers.shape, numbers.shape)]
        if prod(map(len, room)) > MOST_BLOCKS:
            return None
        for starts in product(*room):
            block = tuple(slice(start, start + here) for start, here in zip(starts, numbers.shape))
            if np.array_equal(whole_numbers[block], numbers):
                break
        else:
            return None
        places = tuple(np.arange(part.start, part.stop) for part in block)
        found.append(Placed(whole_numbers.shape, places, said="a block"))
        found[-1].mark(seen)
    return found if seen.all() else None


MOST_BLOCKS = 1 << 14
"""Places that are tried."""


def parse(given: Any) -> tuple[Any, ...]:
    """Placements as the user gives them: one, or one for each axis."""
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    for placement in found:
        if not isinstance(placement, Shard | Replicate | Partial):
            raise SpecError(
                f"placements= has {placement!r} where a placement of torch.distributed.tensor is meant",
                help="give Shard(dim), Replicate() or Partial(), or a tuple with one for each axis of the mesh",
            )
    return found
