"""Shards as DTensors, and back: on processes the very memory that the engine holds; whole tensors in one process.

Placements say less than shardings do (`spec.interop.placeable`).  What they cannot say, which only a user by hand asks
for, is brought into the nearest sharding that they can, and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.tensor as dtensor
from torch.distributed.device_mesh import DeviceMesh as TorchMesh

from ....errors import CheckpointError
from ....frontends.torch import torch_dtype
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


def empty(engine: Any, spec: ShardingSpec, shape: Sequence[int], dtype: str, zeros: bool = False) -> Any:
    """Memory for what the engine holds of a tensor; without ``zeros`` only how it would be laid out."""
    kind = torch_dtype(dtype)

    def make(position: int, device: Any) -> Any:
        local = spec.local_shape(shape, position)
        return torch.zeros(local, dtype=kind, device=device if zeros else "meta")

    if engine.name == "virtual":
        return [make(position, "cpu") for position in engine.mesh]
    return make(engine.position, engine.device)


def layout(held: Any) -> Any:
    """Sizes and strides of what an engine holds, without its memory: strides may decide the order of sums."""
    if isinstance(held, list):
        return [layout(part) for part in held]
    return torch.empty_like(held, device="meta")


def target(engine: Any, like: Any, spec: ShardingSpec, shape: Sequence[int], dtype: str, mesh: Any) -> Any:
    """New memory for a checkpoint to be read to, laid out as ``like`` (see `layout`) if it becomes the shard."""
    if mesh is None:
        return torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=getattr(engine, "device", "cpu"))
    to = placeable(spec)
    if to == spec.closed():
        return _dtensor(torch.empty_like(like, device=engine.device), to, shape, mesh)
    return _dtensor(empty(engine, to, shape, dtype, zeros=True), to, shape, mesh)


def filled(engine: Any, tensor: Any, like: Any, spec: ShardingSpec, mesh: Any) -> Any:
    """What the engine holds of a tensor that `target` made and that was read since."""
    if mesh is not None and placeable(spec) == spec.closed():
        return tensor.to_local()
    return taken(engine, tensor, like, spec, mesh)


def taken(engine: Any, tensor: Any, like: Any, spec: ShardingSpec, mesh: Any) -> Any:
    """What the engine holds of a DTensor, or of a whole tensor of all ranks: in new memory, laid out as ``like``."""
    if not isinstance(tensor, dtensor.DTensor):
        return _laid_out(engine.scatter(tensor.detach(), spec), like)
    if mesh is None:
        raise CheckpointError(
            "a DTensor is given to a step that runs in one process",
            help="give whole tensors (step.full_state_dict()), or go by a file: step.save and step.restore",
        )
    if tensor.device_mesh != mesh:
        raise CheckpointError(
            "a DTensor of another mesh is given",
            rows=[("step", str(engine.mesh)), ("tensor", str(tensor.device_mesh))],
            help="go from mesh to mesh by a file: step.save and step.restore",
        )
    to = placeable(spec)
    detached: Any = tensor.detach()
    local = detached.redistribute(mesh, to.to_placements(dtensor)).to_local()
    return _laid_out(engine.move(local, to, spec, tensor.shape), like)


def _laid_out(held: Any, like: Any) -> Any:
    if isinstance(held, list):
        return [_laid_out(part, form) for part, form in zip(held, like, strict=True)]
    return torch.empty_like(like, device=held.device).copy_(held)


def assembled(engine: Any, held: Any, spec: ShardingSpec, shape: Sequence[int]) -> Any:
    """The whole tensor in memory of its own on the CPU of the first rank; None elsewhere, where it was for a moment."""
    whole = engine.assemble(held, spec, shape).detach()
    if has_ranks(engine) and engine.rank != min(engine.mesh.device_ids):
        return None
    return whole.to("cpu", copy=True).contiguous()
