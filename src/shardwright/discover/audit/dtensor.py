"""What PyTorch's DTensor does with tensors that lie like this: what its rules claim, and what its dispatcher gives.

PyTorch has no public way to ask for a rule without running it: so the sharding propagator is asked directly, past its
cache, for `claim`; and a whole call is run in one process, with a fake process group and ``LocalTensorMode``, for
`run_dispatched`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import Placement as TorchPlacement

from ..operator import Array, Sample, slots_in
from ..placement import P, Placement, R, S
from .private import (
    DecompShardingStrategy,
    DTensorSpec,
    LocalTensor,
    LocalTensorMode,
    OpSchema,
    RuntimeSchemaInfo,
    TensorMeta,
    clear_cache,
    fake_store,
    tree_leaves,
)

RANKS = 16
"""Ranks of the fake process group: meshes are as large as this at most."""

Parts = Sequence[Sequence[Array]]
"""Per tensor, what each rank holds."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A placement that is only DTensor's: judged by what the dispatcher makes of it, not by the oracle."""

    text: str
    meaning: str

    def __str__(self) -> str:
        return self.text


Lies = Placement | Foreign


@dataclass(frozen=True, slots=True)
class Claim:
    """What the propagator answers for one way the inputs may lie."""

    outputs: tuple[Lies | None, ...] = ()
    """How each output lies; None for one that is no tensor."""
    redistributed_to: tuple[Lies, ...] | None = None
    """How the inputs must lie first; None where they stay as they are."""
    rewritten: bool = False
    """The local call has other arguments than the whole one (a shape, the dims of a squeeze)."""
    error: str = ""

    @property
    def free(self) -> bool:
        """Nothing moves: the op runs on what each rank holds."""
        return not self.error and self.redistributed_to is None


@dataclass(frozen=True)
class Dispatched:
    """What a call through DTensor gave."""

    outputs: tuple[Array, ...] = ()
    """The whole result, as the first rank sees it."""
    placements: tuple[str, ...] = ()
    collectives: int = 0
    """In the call itself; putting the result together is not counted."""
    error: str = ""
    before_raised: bool = False
    """The error is that of the call before."""
    disagree: bool = False
    """The ranks do not see the same whole result."""


def registered_overloads(every_namespace: bool = False) -> list[str]:
    """The overloads, ATen's or all, with a strategy in one of the propagator's tables."""
    tables = (_propagator().op_strategy_funcs, _propagator().op_single_dim_strategy_funcs, _propagator().op_to_rules)
    return sorted({str(op) for table in tables for op in table if every_namespace or str(op).startswith("aten.")})


def decomposes(overload: str) -> bool:
    """Whether DTensor takes the call apart into others where it has no rule; torch 2.11 never does."""
    return DecompShardingStrategy is not None and bool(DecompShardingStrategy.has_decomp(overload_named(overload)))


def strategy_of(overload: str) -> str:
    """The function of PyTorch's that states the overload's rules, by its place; empty if there is none."""
    return _strategies().get(overload, "")


def stated_by(strategy: str) -> int:
    """For how many overloads that function states the rules."""
    return sum(place == strategy for place in _strategies().values())


@cache
def _strategies() -> dict[str, str]:
    propagator = _propagator()
    found: dict[str, str] = {}
    for table in (propagator.op_single_dim_strategy_funcs, propagator.op_strategy_funcs, propagator.op_to_rules):
        for op, function in table.items():
            while hasattr(function, "func"):  # a record, or a partial
                function = function.func
            found.setdefault(str(op), f"{function.__module__}.{getattr(function, '__qualname__', '')}")
    return found


def has_handler(overload: str) -> bool:
    """Whether the dispatcher gives this op to its own function, so that the rules are only part of the truth."""
    return overload_named(overload) in DTensor._op_dispatcher._custom_op_handlers


def overload_named(overload: str) -> Any:
    """``aten.add.Tensor`` as a callable."""
    namespace, name, variant = overload.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


def claim(overload: str, sample: Sample, inputs: tuple[Placement, ...], world: int) -> Claim:
    """What DTensor does with tensors lying like this on a mesh of `world` ranks, without its cache."""
    return claims(overload, sample, (inputs,), world)[0]


def claims(overload: str, sample: Sample, ways: Sequence[tuple[Placement, ...]], world: int) -> list[Claim]:
    """`claim` for many ways the same tensors may lie: the shapes are worked out once."""
    asked = _Asked(overload, sample, world)
    with _quiet(), _known_shapes(asked):
        return [_answer(asked, inputs) for inputs in ways]


def same_cache_key(overload: str, one: Sample, other: Sample, inputs: tuple[Placement, ...], world: int) -> bool:
    """Whether the dispatcher's cache takes the two calls for the same, so that the second gets the first's answer."""
    first, second = _Asked(overload, one, world), _Asked(overload, other, world)
    return bool(first.schema(inputs) == second.schema(inputs))


def answers_in_full(
    overload: str, sample: Sample, ways: Sequence[tuple[Placement, ...]], world: int
) -> list[str | None]:
    """All that the cache would keep of each answer, as text: the results' shapes and rewritten arguments too.

    None where the propagator raises: that is not kept.
    """
    asked = _Asked(overload, sample, world)
    found: list[str | None] = []
    with _quiet(), _known_shapes(asked):
        for inputs in ways:
            try:
                answer = _propagator().propagate_op_sharding_non_cached(asked.schema(inputs))
            except Exception:
                found.append(None)
                continue
            values = answer.redistribute_schema.args_schema if answer.use_val_from_redistribute_schema else ()
            found.append(f"{answer.output_spec} {answer.needs_redistribute} {values}")
    return found


def run_dispatched(
    call: str | Callable[..., Any],
    sample: Sample,
    inputs: tuple[Placement, ...],
    world: int,
    parts: Parts,
    *,
    before: Sample | None = None,
) -> Dispatched:
    """Run the call through DTensor's dispatcher, each rank holding its part of every tensor.

    The propagation cache is cleared first.  With `before`, that call (of tensors of the same shapes) runs first, so
    that its answer stands in the cache.
    """
    function = overload_named(call) if isinstance(call, str) else call
    with _quiet():
        clear_cache()  # type: ignore[no-untyped-call]
        try:
            if before is not None:
                try:
                    _dispatch(function, before, inputs, world, parts)
                except Exception as error:
                    return Dispatched(error=_one_line(error), before_raised=True)
            return _dispatch(function, sample, inputs, world, parts)
        except Exception as error:
            return Dispatched(error=_one_line(error))
        finally:
            clear_cache()  # type: ignore[no-untyped-call]


def torch_placement(placement: Placement) -> TorchPlacement:
    """The same in DTensor's words."""
    if placement.kind == "R":
        return Replicate()
    if placement.kind == "S":
        return Shard(placement.dim)
    return Partial("product" if placement.reduce == "prod" else placement.reduce)


def lies(placement: TorchPlacement) -> Lies:
    """DTensor's placement in ours, or as a foreign one with what it means."""
    if type(placement) is Shard:
        return S(placement.dim)
    if isinstance(placement, Replicate):
        return R
    if type(placement) is Partial:
        reduce = "prod" if placement.reduce_op == "product" else placement.reduce_op
        try:
            return P(reduce)
        except ValueError:
            return Foreign(str(placement), f"pending {placement.reduce_op}")
    meanings = {
        "_NormPartial": "a pending norm: (sum |x|^p)^(1/p) over the ranks",
        "_MaskPartial": "a pending sum of the rows that each rank holds, the others masked",
        "_StridedShard": "sharded in strides, by an axis inside the dim",
    }
    name = type(placement).__name__
    text = str(placement) if name == "_NormPartial" else name
    return Foreign(text, meanings.get(name, "known to DTensor only"))


# ---- asking the propagator


def _propagator() -> Any:
    return DTensor._op_dispatcher.sharding_propagator


@cache
def _mesh(world: int) -> DeviceMesh:
    """A 1-D mesh over the first ranks of a fake process group, which is started once a process."""
    if not dist.is_initialized():
        dist.init_process_group("fake", store=fake_store(), rank=0, world_size=RANKS)
    return DeviceMesh("cpu", list(range(world)))


class _Asked:
    """One call on one mesh; makes the propagator's schema for each way the tensors may lie."""

    def __init__(self, overload: str, sample: Sample, world: int) -> None:
        self.op = overload_named(overload)
        self.sample = sample
        self.mesh = _mesh(world)
        self.metas = [_meta(array) for array in sample.tensors]
        self.positional = [slot.index for value in sample.args for slot in slots_in(value)]
        propagator = _propagator()
        info = propagator.op_to_schema_info.get(self.op)
        self.info = info or propagator.op_to_schema_info_for_single_dim_strategy.get(self.op)
        if any(isinstance(value, (list, tuple)) and any(True for _ in slots_in(value)) for value in sample.args):
            self.info = _with_pytree(self.info)  # as the dispatcher does for lists of tensors

    def schema(self, inputs: tuple[Placement, ...]) -> Any:
        specs = [
            DTensorSpec(self.mesh, (torch_placement(placement),), tensor_meta=meta)
            for placement, meta in zip(inputs, self.metas)
        ]
        args, kwargs = self.sample.fill(specs)
        return OpSchema(self.op, args, kwargs, schema_info=self.info)


def _meta(array: Array) -> TensorMeta:
    tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)


def _with_pytree(info: Any) -> Any:
    if info is None:
        return RuntimeSchemaInfo(needs_pytree=True)
    return RuntimeSchemaInfo(info.static_argnum, info.static_kwargkey, needs_pytree=True)


def _answer(asked: _Asked, inputs: tuple[Placement, ...]) -> Claim:
    schema = asked.schema(inputs)
    try:
        answer = _propagator().propagate_op_sharding_non_cached(schema)
    except Exception as error:
        return Claim(error=_one_line(error))
    spec = answer.output_spec
    specs = spec if isinstance(spec, (list, tuple)) else (spec,)
    outputs = tuple(None if s is None else lies(s.placements[0]) for s in specs)
    if not answer.needs_redistribute:
        return Claim(outputs)
    leaves = tree_leaves(answer.redistribute_schema.args_schema)
    wanted = [lies(leaf.placements[0]) for leaf in leaves if isinstance(leaf, DTensorSpec)]
    target: list[Lies] = list(inputs)  # tensors given by keyword are never moved
    for index, placement in zip(asked.positional, wanted):
        target[index] = placement
    moved = tuple(target) if tuple(target) != inputs else None
    return Claim(outputs, moved, rewritten=answer.use_val_from_redistribute_schema)


@contextmanager
def _known_shapes(asked: _Asked) -> Iterator[None]:
    """Let the propagator work out the result's shape once: it does not depend on how the tensors lie.

    It runs the op on fake tensors for that, which takes longer than all the rest.
    """
    propagator = _propagator()
    work_out = propagator._propagate_tensor_meta_non_cached
    found: list[Any] = []

    def remembered(schema: Any) -> Any:
        if schema.op is not asked.op:
            return work_out(schema)  # a part of a decomposition
        if not found:
            found.append(work_out(schema))
        return found[0]

    propagator._propagate_tensor_meta_non_cached = remembered
    try:
        yield
    finally:
        del propagator._propagate_tensor_meta_non_cached


# ---- running through the dispatcher


def _dispatch(
    function: Callable[..., Any], sample: Sample, inputs: tuple[Placement, ...], world: int, parts: Parts
) -> Dispatched:
    mesh = _mesh(world)
    whole_strides = [_meta(array).stride for array in sample.tensors]
    with LocalTensorMode(world):
        tensors = []
        for array, stride, held, placement in zip(sample.tensors, whole_strides, parts, inputs):
            local = LocalTensor({rank: _tensor(part) for rank, part in enumerate(held)})  # type: ignore[no-untyped-call]
            meta = TensorMeta(torch.Size(array.shape), stride, local.dtype)
            spec = DTensorSpec(mesh, (torch_placement(placement),), tensor_meta=meta)
            # what from_local makes; it would also make a view for autograd, which takes as long as the call
            tensors.append(DTensor(local, spec, requires_grad=False))  # type: ignore[no-untyped-call]
        args, kwargs = sample.fill(tensors)
        counting = CommDebugMode()  # type: ignore[no-untyped-call]
        with counting:
            result = function(*args, **kwargs)
        found = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
        outputs, agree = [], True
        for item in found:
            value, same = _whole(item)
            outputs.append(value)
            agree = agree and same
    placements = tuple(str(lies(item.placements[0])) if isinstance(item, DTensor) else "plain" for item in found)
    return Dispatched(tuple(outputs), placements, counting.get_total_counts(), disagree=not agree)


def _whole(tensor: torch.Tensor) -> tuple[Array, bool]:
    """The full tensor as the first rank sees it, and whether the others see the same."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    if not isinstance(full, LocalTensor):
        return _array(full), True
    seen = [_array(part) for part in full._local_tensors.values()]
    same = all(other.shape == seen[0].shape and np.array_equal(other, seen[0], equal_nan=True) for other in seen[1:])
    return seen[0], same


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))


def _array(tensor: torch.Tensor) -> Array:
    plain: Array = tensor.detach().resolve_conj().resolve_neg().numpy().copy()
    return plain


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings, and none of the tracebacks that torch logs for calls that raise."""
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silenced)


def _one_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text.strip()}"[:300]
