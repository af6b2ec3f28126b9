"""Collectives as one rank carries them out: pack, exchange, unpack.

Every function gets ``call``, which runs an op or writes it into a graph, so that the engine's collectives and emitted
programs are one text.  A collective is a `Message` that is started, alone or with others, or is started at once; what
comes back is a function that waits and unpacks, so that others may start meanwhile.

A *buffer* holds one block for each member of the group, in the order of the process group, along dim 0.  Blocks are
equal: uneven shards are padded to the largest.  Who sends what is known beforehand, so every rank makes the same calls,
whatever it holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

from ...spec.sharding import Shape
from . import private as _private  # noqa: F401  registers the operators
from .groups import Group
from .wire import Call, Wire

aten = torch.ops.aten
_functional = torch.ops._c10d_functional
WAIT = _functional.wait_tensor.default
Finish = Callable[[], Any]
_SAME_SHAPE = (
    _functional.all_reduce.default,
    _functional.all_to_all_single.default,
    _functional.broadcast.default,
)


@dataclass(frozen=True)
class Peers:
    """The members of a group in the order the collective speaks of, and where they stand in the process group."""

    group: Group
    ranks: tuple[int, ...]
    rank: int

    @property
    def count(self) -> int:
        return len(self.ranks)

    @property
    def me(self) -> int:
        return self.ranks.index(self.rank)

    @property
    def places(self) -> list[int]:
        """For each member its block of a buffer."""
        return [self.group.ranks.index(rank) for rank in self.ranks]


def _wait_for(made: Any, *sent: Any) -> Any:
    """Stands for waiting; only stand-ins care for what was sent."""
    raise AssertionError("written by `_wait`")


def _first(made: Any, *sent: Any) -> Any:
    return made


def waits_for(node: Any) -> Any:
    """Of an FX node that waits for a stand-in the one that started it; None for any other."""
    return node.args[0] if node.target is _first else None


def _wait(call: Call, made: Any, *sent: Any) -> Any:
    return call(_wait_for, made, *sent) if getattr(call, "stands_in", False) else call(WAIT, made)


def stand_in(call: Call, fresh: bool = False) -> Call:
    """In place of collectives, local ops that give the same shapes: one rank of a program, run alone.

    With ``fresh`` results lie in memory of their own, as those of collectives do, and what is sent stays until it is
    waited for, as backends keep it.
    """

    def own(x: Any) -> Any:
        return call(aten.clone.default, x, memory_format=torch.contiguous_format) if fresh else x

    def alone(op: Any, *args: Any, **kwargs: Any) -> Any:
        if op is _wait_for:
            return call(_first, *args) if fresh else args[0]
        if op is _functional.all_reduce_.default:
            return args[0]
        if op in _SAME_SHAPE:
            return own(args[0])
        if op is _functional.all_gather_into_tensor.default:
            return call(aten.cat.default, [args[0]] * args[1], 0)
        if op is _functional.reduce_scatter_tensor.default:
            return own(call(operator.getitem, call(aten.chunk.default, args[0], args[2]), 0))
        return call(op, *args, **kwargs)

    alone.stands_in = True  # type: ignore[attr-defined]
    return alone


@dataclass(frozen=True)
class Message:
    """What one collective sends, and what is made of what it receives."""

    kind: str
    sent: Any
    shape: Shape
    """Of what is sent."""
    got: Shape
    """Of what is received; of a gather, with a dim for the members."""
    finish: Callable[[Any], Any]
    """From what is received, in this shape, to the result."""
    wire: Wire
    peers: Peers


def start(call: Call, messages: Sequence[Message]) -> list[Finish]:
    """Send them, as one if they are several: these are of one kind, type and group."""
    if len(messages) > 1:
        return _start_bucket(call, messages)
    (message,) = messages
    gathers = message.kind == "all_gather"
    got = (message.got[0] * message.got[1], *message.got[2:]) if gathers else message.got
    made = _send(call, message.kind, message.sent, got, message.wire, message.peers)
    held = () if message.kind == "all_reduce" else (message.sent,)

    def finish() -> Any:
        received = _wait(call, made, *held)
        return message.finish(reshape(call, received, got, message.got) if gathers else received)

    return [finish]


def _send(call: Call, kind: str, x: Any, got: Shape, wire: Wire, peers: Peers) -> Any:
    group, count = peers.group, peers.count
    if kind == "all_reduce":
        return call(_functional.all_reduce.default, x, wire.reduction, group.name)
    if kind == "reduce_scatter":
        return call(_functional.reduce_scatter_tensor.default, x, wire.reduction, count, group.name)
    if group.on_host and count > 1:
        # Of gloo's gathers that make their result themselves no two may be under way: they corrupt memory
        # (`AsyncAllgatherCoalescedWork`, PyTorch 2.13).
        result = call(aten.new_empty.default, x, list(got))
        return call(_functional.all_gather_into_tensor_out.default, x, count, group.name, out=result)
    return call(_functional.all_gather_into_tensor.default, x, count, group.name)


def _start_bucket(call: Call, messages: Sequence[Message]) -> list[Finish]:
    """All of them in one buffer; with parts for each member, all parts of one member lie in a row."""
    first = messages[0]
    kind, count = first.kind, first.peers.count
    rows = count if kind == "reduce_scatter" else 1
    wide = [prod(message.shape) // rows for message in messages]
    total = sum(wide)
    flat = [call(aten.reshape.default, m.sent, [rows, size] if rows > 1 else [size]) for m, size in zip(messages, wide)]
    packed = call(aten.cat.default, flat, 1 if rows > 1 else 0)
    got = (count * total,) if kind == "all_gather" else (total,)
    if kind == "all_reduce":
        made = call(_functional.all_reduce_.default, packed, first.wire.reduction, first.peers.group.name)
    else:
        sent = call(aten.reshape.default, packed, [rows * total]) if rows > 1 else packed
        made = _send(call, kind, sent, got, first.wire, first.peers)
    received: list[Any] = []

    def finish(i: int) -> Any:
        if not received:
            whole = _wait(call, made, packed)
            if kind == "all_gather":
                whole = call(aten.reshape.default, whole, [count, total])  # a row for each member
            parts = call(aten.split_with_sizes.default, whole, wide, 1 if kind == "all_gather" else 0)
            received.append(parts)
        part = call(operator.getitem, received[0], i)
        result = messages[i].finish(call(aten.reshape.default, part, list(messages[i].got)))
        if kind == "all_gather" and 1 in messages[i].shape:  # else joining the parts has made a copy
            result = call(aten.contiguous.default, result)
        return result

    return [partial(finish, i) for i in range(len(messages))]


def all_reduce(call: Call, x: Any, wire: Wire, peers: Peers, shape: Shape = ()) -> Message:
    """``shape`` is needed for what shares a start with others."""
    sent = _sent(shape, wire)
    return Message("all_reduce", wire.encode(call, x), sent, sent, partial(wire.decode, call), wire, peers)


def all_gather(call: Call, x: Any, shape: Shape, dim: int, sizes: Sequence[int], wire: Wire, peers: Peers) -> Message:
    """``shape`` is this rank's, ``sizes`` what each member has of ``dim``."""
    shape = _sent(shape, wire)
    block = _replaced(shape, dim, max(sizes))
    x = call(aten.contiguous.default, pad(call, wire.encode(call, x), shape, block))

    def finish(received: Any) -> Any:
        return wire.decode(call, unpack(call, received, block, dim, sizes, peers.places))

    return Message("all_gather", x, block, (peers.count, *block), finish, wire, peers)


def reduce_scatter(
    call: Call, x: Any, shape: Shape, dim: int, cuts: Sequence[tuple[int, int]], wire: Wire, peers: Peers
) -> Message:
    """``cuts`` is what each member keeps of ``dim``."""
    shape = _sent(shape, wire)
    block = _replaced(shape, dim, _widest(cuts))
    x, sent = pack(call, wire.encode(call, x), shape, dim, cuts, peers.places)
    got = (sent[0] // peers.count, *sent[1:])
    start, stop = cuts[peers.me]

    def finish(received: Any) -> Any:
        return wire.decode(call, take(call, reshape(call, received, got, block), block, dim, stop - start))

    return Message("reduce_scatter", x, sent, got, finish, wire, peers)


def broadcast(call: Call, x: Any, source: int, wire: Wire, peers: Peers) -> Finish:
    """``source`` counts members."""
    x = call(aten.contiguous.default, wire.encode(call, x))
    made = call(_functional.broadcast.default, x, peers.places[source], peers.group.name)
    return lambda: wire.decode(call, _wait(call, made))


def all_to_all(
    call: Call,
    x: Any,
    shape: Shape,
    dim: int,
    sizes: Sequence[int],
    to_dim: int,
    cuts: Sequence[tuple[int, int]],
    wire: Wire,
    peers: Peers,
    order: Sequence[int],
) -> Finish:
    """Shards of ``dim`` are joined, ``to_dim`` is cut, by member as ``cuts`` says.

    ``order`` says which member holds which shard of ``dim``, and ``sizes`` what these shards have of it.
    """
    shape = _sent(shape, wire)
    padded = _replaced(shape, dim, max(sizes))
    block = _replaced(padded, to_dim, _widest(cuts))
    x, sent = pack(call, pad(call, wire.encode(call, x), shape, padded), padded, to_dim, cuts, peers.places)
    rows = [sent[0] // peers.count] * peers.count
    made = call(_functional.all_to_all_single.default, x, rows, rows, peers.group.name)
    start, stop = cuts[peers.me]
    places = [peers.places[member] for member in order]

    def finish() -> Any:
        got = reshape(call, _wait(call, made, x), sent, (peers.count, *block))
        whole = unpack(call, got, block, dim, sizes, places)
        return wire.decode(call, take(call, whole, block, to_dim, stop - start))

    return finish


def regroup(call: Call, x: Any, widths: Sequence[Sequence[int]], wire: Wire, peers: Peers) -> Finish:
    """Rows of dim 0: ``widths[i][j]`` of them go from member i to member j, and are joined in the order of i."""
    me, places = peers.me, peers.places
    x = call(aten.contiguous.default, wire.encode(call, x))
    if not _in_order(places):
        cut = call(aten.split_with_sizes.default, x, list(widths[me]))
        x = call(aten.cat.default, [call(operator.getitem, cut, places.index(i)) for i in range(peers.count)], 0)
    sent = [widths[me][places.index(i)] for i in range(peers.count)]
    received = [widths[places.index(i)][me] for i in range(peers.count)]
    made = call(_functional.all_to_all_single.default, x, received, sent, peers.group.name)

    def finish() -> Any:
        got = _wait(call, made, x)
        if not _in_order(places):
            cut = call(aten.split_with_sizes.default, got, received)
            got = call(aten.cat.default, [call(operator.getitem, cut, place) for place in places], 0)
        return wire.decode(call, got)

    return finish


def permute(
    call: Call, x: Any, shape: Shape, after: Shape, block: Shape, sources: Sequence[int], wire: Wire, peers: Peers
) -> Finish:
    """Every member gets what ``sources[member]`` has, everybody sends to one; ``block`` is the largest shard."""
    me, places = peers.me, peers.places
    shape, after, block = _sent(shape, wire), _sent(after, wire), _sent(block, wire)
    count = prod(block)
    flat = reshape(call, pad(call, wire.encode(call, x), shape, block), block, (count,))
    sent, received = [0] * peers.count, [0] * peers.count
    sent[places[list(sources).index(me)]] = count
    received[places[sources[me]]] = count
    flat = call(aten.contiguous.default, flat)
    made = call(_functional.all_to_all_single.default, flat, received, sent, peers.group.name)

    def finish() -> Any:
        got = reshape(call, _wait(call, made, flat), (count,), block)
        for d, size in enumerate(after):
            got = take(call, got, block, d, size)
        return wire.decode(call, got)

    return finish


# -- buffers --------------------------------------------------------------------------------------------


def pad(call: Call, x: Any, shape: Shape, wanted: Shape) -> Any:
    """Zeros after the end of every dim that is too short."""
    if shape == wanted:
        return x
    if prod(shape) == 0:
        return call(aten.new_zeros.default, x, list(wanted))
    amounts: list[int] = []
    for have, want in zip(reversed(shape), reversed(wanted)):
        amounts += [0, want - have]
    while amounts[-2:] == [0, 0]:
        del amounts[-2:]
    return call(aten.constant_pad_nd.default, x, amounts, 0)


def pack(
    call: Call, x: Any, shape: Shape, dim: int, cuts: Sequence[tuple[int, int]], places: Sequence[int]
) -> tuple[Any, Shape]:
    """A buffer and its shape: the cuts of ``dim``, padded to equal blocks, in the order of the process group."""
    count, width = len(cuts), _widest(cuts)
    block = _replaced(shape, dim, width)
    buffer = (count * block[0], *block[1:])
    if prod(block) == 0:
        return call(aten.new_zeros.default, x, list(buffer)), buffer
    even = [(i * width, (i + 1) * width) for i in range(count)] == list(cuts)
    in_order = _in_order(places)
    if even and in_order and prod(shape[:dim]) == 1:  # the blocks lie one after the other as it is
        flat = shape[dim:]
        return call(aten.contiguous.default, reshape(call, x, shape, flat)), flat
    if even:
        pieces = call(aten.split.Tensor, x, width, dim)
        if not in_order:
            pieces = [call(operator.getitem, pieces, places.index(i)) for i in range(count)]
    else:
        cut = [
            pad(call, call(aten.slice.Tensor, x, dim, start, stop), _replaced(shape, dim, stop - start), block)
            for start, stop in cuts
        ]
        pieces = [cut[places.index(i)] for i in range(count)]
    return call(aten.cat.default, pieces, 0), buffer


def unpack(call: Call, x: Any, block: Shape, dim: int, sizes: Sequence[int], places: Sequence[int]) -> Any:
    """Blocks, by member along a dim in front, joined along ``dim`` without their padding; ``places`` says which comes
    when."""
    count, total = len(sizes), sum(sizes)
    whole = _replaced(block, dim, total)
    if prod(whole) == 0:
        return call(aten.new_zeros.default, x, list(whole))
    gaps = any(size < block[dim] and any(sizes[i + 1 :]) for i, size in enumerate(sizes))
    if _in_order(places) and not gaps:
        long = _replaced(block, dim, block[dim] * count)
        if prod(block[:dim]) > 1:
            x = call(aten.permute.default, x, [*range(1, dim + 1), 0, *range(dim + 1, len(block) + 1)])
        return take(call, call(aten.reshape.default, x, list(long)), long, dim, total)
    pieces = call(aten.unbind.int, x)
    parts = [
        take(call, call(operator.getitem, pieces, place), block, dim, size)
        for size, place in zip(sizes, places)
        if size
    ]
    return parts[0] if len(parts) == 1 else call(aten.cat.default, parts, dim)


def take(call: Call, x: Any, shape: Shape, dim: int, size: int) -> Any:
    """The first ``size`` of ``dim``."""
    return x if shape[dim] == size else call(aten.slice.Tensor, x, dim, 0, size)


def reshape(call: Call, x: Any, shape: Shape, wanted: Shape) -> Any:
    return x if shape == wanted else call(aten.reshape.default, x, list(wanted))


def _widest(cuts: Sequence[tuple[int, int]]) -> int:
    return max(stop - start for start, stop in cuts)


def _in_order(places: Sequence[int]) -> bool:
    return all(place == i for i, place in enumerate(places))


def _replaced(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _sent(shape: Shape, wire: Wire) -> Shape:
    return (*shape, 2) if wire.pairs else shape
