"""Collective calls of PyTorch, in the few forms that the proof knows.

There are many calls (functional, in place, into a tensor, by lists, coalesced, FSDP2's own), and few meanings.  Here
each is written as plain tensor operations around one `exchange`: some tensors are given, some come back.

| exchange | given | back |
|---|---|---|
| ``all_reduce`` | one | their combination |
| ``all_gather`` | one | one from each rank |
| ``reduce_scatter`` | one for each rank | the combination of those for this one |
| ``all_to_all`` | one for each rank | one from each rank |
| ``broadcast`` | one | the root's |
| ``reduce``, ``gather``, ``scatter`` | as their names say | on the root, or from it |
| ``send``, ``receive`` | one; none | none; one |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ....errors import TraceError
from .factors import PREMULTIPLIED, factor_of_sum
from .private import ProcessGroup, ReduceOp, finished_work, resolve_process_group

Tensors = Sequence[Any]


class Exchange(Protocol):
    """What `collectives` needs of the tracer."""

    def __call__(
        self,
        kind: str,
        group: Any,
        given: Tensors,
        *,
        reduce: str = "",
        root: int = 0,
        back: Tensors | None = None,
        tag: int = 0,
    ) -> list[Any]:
        """``back`` are tensors like those that come back, where they may differ from what is given."""
        ...  # fmt: skip


def group_of(group: Any) -> Any:
    """A process group, from what calls name it by."""
    if isinstance(group, str):
        return resolve_process_group(group)
    return group if isinstance(group, ProcessGroup) else ProcessGroup.unbox(group)


_REDUCTIONS: dict[Any, str] = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "avg", ReduceOp.PRODUCT: "prod", ReduceOp.MAX: "max", ReduceOp.MIN: "min",
    ReduceOp.BAND: "band", ReduceOp.BOR: "bor", ReduceOp.BXOR: "bxor",
}  # fmt: skip


def _reduction(op: Any) -> str:
    if isinstance(op, str):
        return {"product": "prod"}.get(op.lower(), op.lower())
    kind = _kind(op)
    for known, name in _REDUCTIONS.items():
        if kind in (known, int(known)):
            return name
    raise TraceError(f"a collective reduces in a way that is not known: {kind}", help="reduce by sum, avg, max or min")


def _kind(op: Any) -> Any:
    boxed: Any = op
    return boxed.op() if isinstance(op, torch.ScriptObject) else op


def _reduce(exchange: Exchange, kind: str, group: Any, given: Tensors, op: Any, **rest: Any) -> list[Any]:
    """An exchange that combines what is given, which is multiplied before, if the reduction says so."""
    if _kind(op) in (PREMULTIPLIED, int(PREMULTIPLIED)):
        factor = factor_of_sum()
        return exchange(kind, group, [x * factor for x in given], reduce="sum", **rest)
    return exchange(kind, group, given, reduce=_reduction(op), **rest)


def _work(tensors: Any) -> Any:
    return finished_work(tensors).boxed()


def _pieces(tensor: Any, sizes: Sequence[int] | None, ranks: int) -> list[Any]:
    if not sizes:
        if tensor.shape[0] % ranks:
            raise TraceError(
                f"a collective cuts a tensor of {tensor.shape[0]} rows for {ranks} ranks, which cannot get equal parts",
                help=f"pad it to {-(-tensor.shape[0] // ranks) * ranks} rows, or say how many every rank gets",
            )
        sizes = [tensor.shape[0] // ranks] * ranks
    return list(tensor.split(list(sizes)))


def _flat(tensors: Any) -> list[Any]:
    """Tensors of a call that takes a list, or a list of lists, for several devices a process, which there are not."""
    return list(tensors[0]) if tensors and isinstance(tensors[0], list | tuple) else list(tensors)


# -- functional -------------------------------------------------------------------------------------------


def _all_reduce(exchange: Exchange, x: Any, op: Any, group: Any) -> Any:
    return exchange("all_reduce", group, [x], reduce=_reduction(op))[0]


def _all_reduce_in_place(exchange: Exchange, x: Any, op: Any, group: Any) -> Any:
    return x.copy_(_all_reduce(exchange, x, op, group))


def _all_gather(exchange: Exchange, x: Any, size: int, group: Any) -> Any:
    return torch.cat(exchange("all_gather", group, [x if x.dim() else x.view(1)]))


def _all_gather_out(exchange: Exchange, x: Any, size: int, group: Any, *, out: Any) -> Any:
    return out.copy_(_all_gather(exchange, x, size, group))


def _reduce_scatter(exchange: Exchange, x: Any, op: Any, size: int, group: Any) -> Any:
    return exchange("reduce_scatter", group, _pieces(x, None, size), reduce=_reduction(op))[0]


def _reduce_scatter_out(exchange: Exchange, x: Any, op: Any, size: int, group: Any, *, out: Any) -> Any:
    return out.copy_(_reduce_scatter(exchange, x, op, size, group))


def _all_to_all(exchange: Exchange, x: Any, received: Sequence[int], sent: Sequence[int], group: Any) -> Any:
    ranks = group_of(group).size()
    given = _pieces(x, sent, ranks)
    back = given if not received else [x.new_empty((rows, *x.shape[1:])) for rows in received]
    return torch.cat(exchange("all_to_all", group, given, back=back))


def _shard_dim_all_to_all(exchange: Exchange, x: Any, gather: int, shard: int, group: Any) -> Any:
    given = list(x.chunk(group_of(group).size(), dim=shard))
    return torch.cat([part.contiguous() for part in exchange("all_to_all", group, given)], dim=gather)


def _broadcast(exchange: Exchange, x: Any, root: int, group: Any) -> Any:
    return exchange("broadcast", group, [x], root=root)[0]


def _each(one: Callable[..., Any]) -> Callable[..., Any]:
    """A coalesced call: one after the other."""
    return lambda exchange, tensors, *rest: [one(exchange, tensor, *rest) for tensor in tensors]


# -- in place ---------------------------------------------------------------------------------------------


def _c10d_all_reduce(exchange: Exchange, tensors: Any, group: Any, op: Any, *_: Any) -> Any:
    for x in tensors:
        x.copy_(_reduce(exchange, "all_reduce", group, [x], op)[0])
    return tensors, _work(tensors)


def _c10d_all_reduce_coalesced(exchange: Exchange, tensors: Any, group: Any, op: Any, *_: Any) -> Any:
    return _c10d_all_reduce(exchange, tensors, group, op)[1]


def _c10d_all_gather(exchange: Exchange, outputs: Any, inputs: Any, group: Any, *_: Any) -> Any:
    for out, x in zip(outputs, inputs):
        for place, part in zip(out, exchange("all_gather", group, [x], back=out)):
            place.copy_(part.view(place.shape))
    return outputs, _work(outputs)


def _c10d_all_gather_base(exchange: Exchange, out: Any, x: Any, group: Any, *_: Any) -> Any:
    parts = exchange("all_gather", group, [x])
    out.copy_(torch.cat([part.reshape(-1) for part in parts]).view(out.shape))
    return out, _work([out])


def _c10d_all_gather_coalesced(exchange: Exchange, outputs: Any, inputs: Any, group: Any, *_: Any) -> Any:
    for out, x in zip(outputs, inputs):
        _c10d_all_gather_base(exchange, out, x, group)
    return _work(outputs)


def _c10d_reduce_scatter(exchange: Exchange, outputs: Any, inputs: Any, group: Any, op: Any, *_: Any) -> Any:
    for out, given in zip(outputs, inputs):
        out.copy_(_reduce(exchange, "reduce_scatter", group, given, op)[0].view(out.shape))
    return outputs, _work(outputs)


def _c10d_reduce_scatter_base(exchange: Exchange, out: Any, x: Any, group: Any, op: Any, *_: Any) -> Any:
    pieces = _pieces(x.reshape(-1), None, group_of(group).size())
    out.copy_(_reduce(exchange, "reduce_scatter", group, pieces, op)[0].view(out.shape))
    return out, _work([out])


def _c10d_reduce_scatter_coalesced(exchange: Exchange, outputs: Any, inputs: Any, group: Any, op: Any, *_: Any) -> Any:
    for out, x in zip(outputs, inputs):
        _c10d_reduce_scatter_base(exchange, out, x, group, op)
    return _work(outputs)


def _c10d_all_to_all(exchange: Exchange, outputs: Any, inputs: Any, group: Any, *_: Any) -> Any:
    for place, part in zip(outputs, exchange("all_to_all", group, inputs, back=outputs)):
        place.copy_(part.view(place.shape))
    return outputs, _work(outputs)


def _c10d_all_to_all_base(
    exchange: Exchange, out: Any, x: Any, group: Any, received: Sequence[int], sent: Sequence[int], *_: Any
) -> Any:
    ranks = group_of(group).size()
    back = _pieces(out, received, ranks)
    for place, part in zip(back, exchange("all_to_all", group, _pieces(x, sent, ranks), back=back)):
        place.copy_(part.view(place.shape))
    return _work([out])


def _c10d_broadcast(exchange: Exchange, tensors: Any, group: Any, root: int, *_: Any) -> Any:
    for x in tensors:
        x.copy_(exchange("broadcast", group, [x], root=root)[0])
    return tensors, _work(tensors)


def _c10d_reduce(exchange: Exchange, tensors: Any, group: Any, op: Any, root: int, *_: Any) -> Any:
    for x in tensors:
        for made in _reduce(exchange, "reduce", group, [x], op, root=root):
            x.copy_(made)
    return _work(tensors)


def _c10d_gather(exchange: Exchange, outputs: Any, inputs: Any, group: Any, root: int, *_: Any) -> Any:
    for place, part in zip(_flat(outputs), exchange("gather", group, inputs, root=root)):
        place.copy_(part)
    return _work(inputs)


def _c10d_scatter(exchange: Exchange, outputs: Any, inputs: Any, group: Any, root: int, *_: Any) -> Any:
    outputs[0].copy_(exchange("scatter", group, _flat(inputs), root=root, back=outputs)[0])
    return outputs, _work(outputs)


def _c10d_send(exchange: Exchange, tensors: Any, group: Any, to: int, tag: int) -> Any:
    exchange("send", group, tensors, root=to, tag=tag)
    return _work(tensors)


def _c10d_receive(exchange: Exchange, tensors: Any, group: Any, source: int, tag: int) -> Any:
    exchange("receive", group, [], root=source, tag=tag, back=tensors)
    return _work(tensors)


def _barrier(exchange: Exchange, x: Any, group: Any, *_: Any) -> Any:
    exchange("barrier", group, [])
    return _work([x])


# -- FSDP2 ------------------------------------------------------------------------------------------------


def _copy_in(exchange: Exchange, inputs: Any, output: Any, sizes: Sequence[int], size: int, rank: int) -> Any:
    mine = output.narrow(0, size * rank, size)
    for place, x in zip(mine.split(list(sizes)), inputs):
        place.copy_(x.reshape(-1))
    return mine, output


def _split_copy(exchange: Exchange, x: Any, sizes: Sequence[int], dim: int = 0, *, out: Any) -> None:
    for place, part in zip(out, x.split(list(sizes), dim=dim)):
        place.copy_(part.reshape(place.shape))


def _chunk_cat(exchange: Exchange, tensors: Any, dim: int, chunks: int, *, out: Any) -> None:
    """Chunk i of every tensor, padded to equal chunks and flat, side by side in row i."""
    rows = []
    for x in tensors:
        size = -(-x.shape[dim] // chunks) * chunks
        if size != x.shape[dim]:
            shape = list(x.shape)
            shape[dim] = size - x.shape[dim]
            x = torch.cat([x, x.new_zeros(shape)], dim=dim)
        rows.append(torch.stack(x.chunk(chunks, dim=dim)).flatten(1))
    out.copy_(torch.cat(rows, dim=1).view(out.shape))


def _copy(exchange: Exchange, x: Any, data: Any) -> None:
    x.copy_(data)


def _same(exchange: Exchange, x: Any) -> Any:
    return x


CALLS: dict[str, Callable[..., Any]] = {
    "_c10d_functional.all_reduce": _all_reduce,
    "_c10d_functional.all_reduce_": _all_reduce_in_place,
    "_c10d_functional.all_reduce_coalesced": _each(_all_reduce),
    "_c10d_functional.all_reduce_coalesced_": _each(_all_reduce_in_place),
    "_c10d_functional.all_gather_into_tensor": _all_gather,
    "_c10d_functional.all_gather_into_tensor_out": _all_gather_out,
    "_c10d_functional.all_gather_into_tensor_coalesced": _each(_all_gather),
    "_c10d_functional.reduce_scatter_tensor": _reduce_scatter,
    "_c10d_functional.reduce_scatter_tensor_out": _reduce_scatter_out,
    "_c10d_functional.reduce_scatter_tensor_coalesced": _each(_reduce_scatter),
    "_c10d_functional.all_to_all_single": _all_to_all,
    "_c10d_functional.broadcast": _broadcast,
    "_c10d_functional.wait_tensor": _same,
    "_c10d_functional._wrap_tensor_autograd": _same,
    "_dtensor.shard_dim_alltoall": _shard_dim_all_to_all,
    "c10d.allreduce_": _c10d_all_reduce,
    "c10d.allreduce_coalesced_": _c10d_all_reduce_coalesced,
    "c10d.allgather_": _c10d_all_gather,
    "c10d._allgather_base_": _c10d_all_gather_base,
    "c10d.allgather_into_tensor_coalesced_": _c10d_all_gather_coalesced,
    "c10d.reduce_scatter_": _c10d_reduce_scatter,
    "c10d._reduce_scatter_base_": _c10d_reduce_scatter_base,
    "c10d.reduce_scatter_tensor_coalesced_": _c10d_reduce_scatter_coalesced,
    "c10d.alltoall_": _c10d_all_to_all,
    "c10d.alltoall_base_": _c10d_all_to_all_base,
    "c10d.broadcast_": _c10d_broadcast,
    "c10d.reduce_": _c10d_reduce,
    "c10d.gather_": _c10d_gather,
    "c10d.scatter_": _c10d_scatter,
    "c10d.send": _c10d_send,
    "c10d.recv_": _c10d_receive,
    "c10d.barrier": _barrier,
    "fsdp.all_gather_copy_in": _copy_in,
    "fsdp.split_with_sizes_copy": _split_copy,
    "fsdp.chunk_cat": _chunk_cat,
    "fsdp.copy_": _copy,
}
"""By the operator's name: what the call does, with ``exchange`` in front of its arguments."""
NAMESPACES = ("c10d", "_c10d_functional", "_dtensor", "fsdp")
