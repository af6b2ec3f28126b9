"""State that all ranks start from: rank 0's, sent shard by shard; or every rank's own, if it is the same everywhere.

A tensor is sent along the axes that cut it, from the rank that has it to one rank for each shard, and these pass it on
to the ranks that hold the same: so nobody sends a byte twice to one rank, and beside its shards no rank holds more than
one tensor.  It travels in the types that all backends have (`wire`), padded to the largest shard.  ``engine`` is the
`TorchEngine` that asks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from ....errors import RankError
from ....frontends.torch import dtype_name, tensor_type
from ....spec.sharding import ShardingSpec
from ..groups import ranks_along
from ..wire import moved_as
from .joining import has_processes
from .processes import ranks_text

_distributed: Any = dist  # untyped in part
_NO_VALUES = 0
"""In place of a digest, of a tensor on the meta device."""


def load_from_rank0(
    engine: Any, wholes: Sequence[Any], specs: Sequence[ShardingSpec], names: Sequence[str] | None = None
) -> list[Any]:
    """This rank's shards of rank 0's tensors (of the lowest rank's in the mesh), each in memory of its own."""
    names = _named(names, wholes)
    bound = [ShardingSpec.of(spec, engine.mesh, whole.dim()) for whole, spec in zip(wholes, specs, strict=True)]
    texts = [f"{tensor_type(whole)} {spec}" for whole, spec in zip(wholes, bound)]
    root = min(engine.mesh.device_ids)
    said = [_number(f"{name}: {text}".encode()) for name, text in zip(names, texts)]
    if engine.rank == root:
        said = [_NO_VALUES if whole.device.type == "meta" else number for whole, number in zip(wholes, said)]
    _check_same(engine, said, names, "another shape, type or sharding of", texts)
    shards = []
    for name, whole, spec in zip(names, wholes, bound):
        with engine.waiting(f"loading {name}"):
            shards.append(_received(engine, whole, spec, root))
    return shards


def _received(engine: Any, whole: Any, spec: ShardingSpec, root: int) -> Any:
    mesh, position = engine.mesh, engine.position
    if mesh.size == 1:
        return engine.scatter(whole, spec).clone()
    shape, dtype = tuple(whole.shape), whole.dtype
    local = spec.local_shape(shape, position)
    if prod(shape) == 0:
        return torch.empty(local, dtype=dtype, device=engine.device)
    cut = {axis.name for axis in (*spec.sharded_axes, *(axis for axis, _ in spec.partial))}
    along = [name for name in mesh.axis_names if name in cut]
    across = [name for name in mesh.axis_names if name not in cut]
    at_root = mesh.device_ids.index(root)
    holders = ranks_along(mesh, at_root, along)
    wire, carrier = moved_as(dtype_name(dtype)), _carrier(engine)
    count = max(prod(spec.local_shape(shape, mesh.device_ids.index(rank))) for rank in holders)
    buffer = _encoded(wire, torch.zeros(count, dtype=dtype, device=carrier))

    def piece(rank: int) -> Any:
        part = engine.part(whole, spec, mesh.device_ids.index(rank)).to(carrier).reshape(-1)
        if part.numel() == count:
            return _encoded(wire, part)
        padded = torch.zeros(count, dtype=dtype, device=carrier)
        padded[: part.numel()].copy_(part)
        return _encoded(wire, padded)

    # PyTorch tells groups apart by how many a process has made: so each rank makes one, also where it is of no use.
    group = engine.groups.process_group(ranks_along(mesh, position, along)) if len(holders) > 1 else None
    if engine.rank in holders:
        pieces = None
        if engine.rank == root:
            order = dist.get_process_group_ranks(group) if group is not None else [root]
            pieces = [piece(rank) for rank in order]
        if group is not None:
            _distributed.scatter(buffer, pieces, src=root, group=group)
        elif pieces is not None:
            buffer = pieces[0]
        del pieces
    receivers = ranks_along(mesh, position, across)
    if len(receivers) > 1:
        source = next(rank for rank in receivers if rank in holders)
        _distributed.broadcast(buffer, src=source, group=engine.groups.process_group(receivers))
    flat = wire.decode(_run, buffer)[: prod(local)]
    shard = flat.reshape(local).to(engine.device)
    return shard.clone() if shard.numel() < count else shard


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _encoded(wire: Any, flat: Any) -> Any:
    return wire.encode(_run, flat).contiguous()


def _carrier(engine: Any) -> torch.device:
    """Where tensors have to be for the processes' backend; gloo moves what is on the CPU."""
    own = engine.device.type
    sends = own != "cpu" and has_processes() and dist.get_backend() != "gloo"
    return engine.device if sends else torch.device("cpu")


def check_equal(engine: Any, wholes: Sequence[Any], names: Sequence[str] | None = None) -> None:
    """Raise, on every rank, if a tensor is not the same, bit by bit, on all ranks of the mesh."""
    with engine.phase("loading"):
        digests = [_digest(whole) for whole in wholes]
    _check_same(engine, digests, _named(names, wholes), "other values of")


def _digest(whole: Any) -> int:
    if whole.device.type == "meta":
        return _NO_VALUES
    flat = whole.detach().cpu().contiguous().reshape(-1)
    values = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return _number(str(tensor_type(whole)).encode(), values)


def _number(*parts: Any) -> int:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return int.from_bytes(found.digest(), "little", signed=True) or 1


def _check_same(engine: Any, digests: Sequence[int], names: Sequence[str], fact: str, here: Sequence[str] = ()) -> None:
    """One number for each tensor, gathered from all ranks: every rank sees the same, so every rank raises."""
    ranks = engine.mesh.device_ids
    with engine.waiting("the comparison of the state"):
        mine = torch.tensor([len(digests), *digests], dtype=torch.int64, device=_carrier(engine))
        numbers = engine.all_gather(mine).tolist()
    said: dict[int, list[int]] = {}
    for rank in ranks:
        end = 1 + numbers[0]
        said[rank], numbers = numbers[1:end], numbers[end:]
    _raise_odd({rank: len(said[rank]) for rank in sorted(ranks)}, "another number of tensors", [])
    for n, name in enumerate(names):
        row = {rank: said[rank][n] for rank in sorted(ranks)}
        empty = [rank for rank, number in row.items() if number == _NO_VALUES]
        if empty:
            raise RankError(
                f"{_has(empty)} no values of {name!r}: it is on the meta device",
                help="all ranks can start from rank 0's values, if that one has them",
            )
        rows = [("tensor", f"{n + 1} of {len(names)}"), *(("here", text) for text in here[n : n + 1])]
        _raise_odd(row, f"{fact} {name!r}", rows)


def _raise_odd(row: dict[int, int], fact: str, rows: list[tuple[str, str]]) -> None:
    counts = Counter(row.values())
    usual = max(counts, key=lambda value: counts[value])  # the first, of equals: that of the lowest rank
    odd = [rank for rank, value in row.items() if value != usual]
    if odd:
        rest = [rank for rank in row if rank not in odd]
        raise RankError(
            f"{_has(odd)} {fact} than {ranks_text(rest)}",
            rows=rows,
            help="make the same model on every rank (seed, files), or let all start from rank 0",
        )


def _has(ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _named(names: Sequence[str] | None, wholes: Sequence[Any]) -> Sequence[str]:
    return [f"tensor {n}" for n in range(len(wholes))] if names is None else names
