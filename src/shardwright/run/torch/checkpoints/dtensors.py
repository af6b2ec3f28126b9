"""Shards as DTensors, and back: on processes the very memory that the engine holds; whole tensors in one process.

Placements say less than shardings do (`spec.interop.placeable`).  What they cannot say, which only a user by hand asks
for, is brought into the nearest sharding that they can, and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.tensor as dtensor
from torch.distributed.device_mesh import DeviceMesh as TorchMesh

from ....errors import CheckpointError
from ....spec.interop import placeable
from ....spec.sharding import ShardingSpec
from ..groups import ProcessGroups, ranks_along


def has_ranks(engine: Any) -> bool:
    """Whether each process holds a shard of its own; else this one has all of them."""
    return isinstance(getattr(engine, "groups", None), ProcessGroups)


def mesh_of(engine: Any) -> TorchMesh | None:
    """The engine's mesh as PyTorch has it, with the engine's groups; all ranks have to ask.  None in one process."""
    if not has_ranks(engine):
        return None
    mesh = engine.mesh
    groups = [engine.groups.process_group(ranks_along(mesh, engine.position, [axis])) for axis in mesh.axis_names]
    ids = torch.tensor(mesh.device_ids, dtype=torch.int).reshape(mesh.shape)
    return TorchMesh.from_group(groups, engine.device.type, ids, mesh_dim_names=mesh.axis_names)


def placed(engine: Any, held: Any, spec: ShardingSpec, shape: Sequence[int], mesh: Any) -> Any:
    """What the engine holds, as a DTensor on ``mesh`` (see `mesh_of`); in one process as a whole tensor."""
    if mesh is None:
        return engine.assemble(held, spec, shape).detach().clone()
    to = placeable(spec)
    return _dtensor(engine.move(held, spec, to, shape), to, shape, mesh)


def _dtensor(local: Any, spec: ShardingSpec, shape: Sequence[int], mesh: Any) -> Any:
    strides = torch.empty(tuple(shape), device="meta").stride()
    return dtensor.DTensor.from_local(
        local.detach(), mesh, spec.to_placements(dtensor), run_check=False, shape=torch.Size(shape), stride=strides
    )


@dataclass(frozen=True)
class Form:
    """Of a shard: sizes, strides and device, without its memory.  Strides may decide the order of sums."""

    meta: Any
    device: Any

    def memory(self) -> Any:
        return torch.empty_like(self.meta, device=self.device)


def form(held: Any) -> Any:
    """Of what an engine holds: one, or a list of them."""
    if isinstance(held, list):
        return [form(part) for part in held]
    return Form(torch.empty_like(held, device="meta"), held.device)


def form_of(engine: Any, spec: ShardingSpec, like: Any, shape: Sequence[int]) -> Any:
    """Of what an engine would hold of a tensor; ``like`` is one of its type, where it is to be in one process."""

    def made(position: int) -> Form:
        meta = torch.empty(spec.local_shape(shape, position), dtype=like.dtype, device="meta")
        return Form(meta, getattr(engine, "device", like.device))

    return [made(position) for position in engine.mesh] if engine.name == "virtual" else made(engine.position)


def zeros(form: Any) -> Any:
    return [zeros(part) for part in form] if isinstance(form, list) else form.memory().zero_()


def target(engine: Any, form: Any, spec: ShardingSpec, shape: Sequence[int], mesh: Any) -> Any:
    """New memory for a checkpoint to be read to: the shard to be, where placements say how it is cut."""
    one = form[0] if isinstance(form, list) else form
    if mesh is None:
        return torch.empty(tuple(shape), dtype=one.meta.dtype, device=one.device)
    to = placeable(spec)
    made = form if to == spec.closed() else form_of(engine, to, one.meta, shape)
    return _dtensor(made.memory(), to, shape, mesh)


def filled(engine: Any, tensor: Any, form: Any, spec: ShardingSpec, mesh: Any) -> Any:
    """What the engine holds of a tensor that `target` made and that was read since."""
    if mesh is not None and placeable(spec) == spec.closed():
        return tensor.to_local()
    return taken(engine, tensor, form, spec, mesh)


def check_given(engine: Any, tensors: Iterable[Any], mesh: Any) -> None:
    """Refuse what `taken` cannot take."""
    for tensor in tensors:
        if not isinstance(tensor, dtensor.DTensor) or tensor.device_mesh == mesh:
            continue
        here = "one process" if mesh is None else str(engine.mesh)
        raise CheckpointError(
            "a DTensor of another mesh is given",
            rows=[("step", here), ("tensor", str(tensor.device_mesh))],
            help="give whole tensors (step.full_state_dict()), or go by a file: step.save and step.restore",
        )


def taken(engine: Any, tensor: Any, form: Any, spec: ShardingSpec, mesh: Any) -> Any:
    """What the engine holds of a DTensor, or of a whole tensor of all ranks: in new memory of this form."""
    if not isinstance(tensor, dtensor.DTensor):
        return _laid_out(engine.scatter(tensor.detach(), spec), form)
    to = placeable(spec)
    detached: Any = tensor.detach()
    local = detached.redistribute(mesh, to.to_placements(dtensor)).to_local()
    return _laid_out(engine.move(local, to, spec, tensor.shape), form)


def _laid_out(held: Any, form: Any) -> Any:
    if not isinstance(held, list):
        return form.memory().copy_(held)
    made: dict[int, Any] = {}  # devices that hold the same whole tensor hold it once
    for part, own in zip(held, form, strict=True):
        if id(part) not in made:
            made[id(part)] = own.memory().copy_(part)
    return [made[id(part)] for part in held]


def assembled(engine: Any, held: Any, spec: ShardingSpec, shape: Sequence[int]) -> Any:
    """The whole tensor in memory of its own on the CPU of the first rank; None elsewhere, where it was for a short
    time."""
    whole = engine.assemble(held, spec, shape).detach()
    if has_ranks(engine) and engine.rank != min(engine.mesh.device_ids):
        return None
    return whole.to("cpu", copy=True).contiguous()
