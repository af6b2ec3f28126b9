"""What strategies for PyTorch's DTensor share: this file is copied into the folder of those that are emitted.

Needs nothing but torch, 2.11 or newer.  What is private of torch stands here, in one place: there is no public way to
the propagator's tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed.tensor.debug
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder, register_single_dim_strategy

Row = list[Any]
"""How the outputs lie, then the inputs."""

TABLES = (
    "op_to_rules",
    "op_strategy_funcs",
    "op_single_dim_strategy_funcs",
    "op_to_schema_info",
    "op_to_schema_info_for_single_dim_strategy",
)
"""What the propagator keeps of an operator."""


def known_options(**wanted: Any) -> dict[str, Any]:
    """Those options that this version of PyTorch has: torch 2.11 does not know `allow_uneven_sharding`."""
    known = inspect.signature(register_single_dim_strategy).parameters
    return {name: value for name, value in wanted.items() if name in known}


def forget(op: Any) -> None:
    """Drop what PyTorch has for the operator: another kind of strategy, or its cache key, would be taken first."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    for table in TABLES:
        getattr(propagator, table, {}).pop(op, None)


def clear_cache() -> None:
    """Forget placements that were worked out before these rules were known."""
    clear = getattr(torch.distributed.tensor.debug, "_clear_sharding_prop_cache", None)
    if clear is not None:
        clear()


def tensors_in(values: Iterable[Any]) -> list[TensorMeta]:
    """The tensors among the arguments, in order; lists are looked through, None is none."""
    found: list[TensorMeta] = []
    for value in values:
        if isinstance(value, DTensorSpec) and value.tensor_meta is not None:
            found.append(value.tensor_meta)
        elif isinstance(value, TensorMeta):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_in(value))
    return found


def tensor_names(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The arguments that hold a tensor, in the order of the schema: ``self``, ``tensors[1]``."""
    names = [argument.name for argument in op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = []
    for name in names:
        value = given.get(name)
        one = isinstance(value, (TensorMeta, DTensorSpec))  # a TensorMeta is a tuple, too
        found += [name] if one else [f"{name}[{i}]" for i in range(len(tensors_in([value])))]
    return found


def aligned(dim: int, shape: Sequence[int], shard: Any = _ShardingPlaceholder) -> Any:
    """Sharded on a dim that broadcasting aligned from the right; replicated where the tensor is broadcast along it."""
    return Replicate() if dim < 0 or shape[dim] == 1 else shard(dim)


def fitting(rows: Sequence[Row], tensors: Sequence[TensorMeta]) -> list[Row]:
    """The rows whose dims exist: where an expression leaves a tensor's dims, its rule says nothing."""
    found = []
    for row in rows:
        if all(isinstance(p, Replicate) for p in row[len(row) - len(tensors) :]):
            continue  # every input is broadcast along this dim: there is nothing to shard
        # The outputs stand first; their ranks are not known here.
        ranks = [*[None] * (len(row) - len(tensors)), *(len(tensor.shape) for tensor in tensors)]
        shards = [
            (p.dim, rank) for p, rank in zip(row, ranks, strict=True) if isinstance(p, (Shard, _ShardingPlaceholder))
        ]
        if all(dim >= 0 and (rank is None or dim < rank) for dim, rank in shards):
            found.append(row)
    return found


def reducible(rows: Sequence[Row], tensors: Sequence[TensorMeta]) -> list[Row]:
    """Without pending maxima, minima and products of complex numbers, which no collective can finish."""
    if not any(tensor.dtype.is_complex for tensor in tensors):
        return list(rows)
    return [row for row in rows if not any(getattr(p, "reduce_op", "sum") not in ("sum", "avg") for p in row)]


def acceptable(rows: Sequence[Row], outputs: int, tensors: Sequence[TensorMeta]) -> list[tuple[Row, Row]]:
    """As `register_sharding` takes rows: pairs of outputs and inputs, all replicated among them."""
    every = [[Replicate()] * (outputs + len(tensors)), *rows]
    return [(row[:outputs], row[outputs:]) for row in every]


def remember(op: Any, schema_info: Any) -> None:
    """Tell the propagator what belongs to the key of its cache."""
    DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[op] = schema_info
