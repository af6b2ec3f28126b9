"""aten.fill_.Scalar, P(sum) -> P(sum): the result is wrong in 2 of 2 elements, by up to 1 (said to be
P(sum)).
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

RANKS = 2
SPAWNED = "RANK" in os.environ  # torchrun --nproc-per-node 2 THIS_FILE; otherwise all ranks in this process
if SPAWNED:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
mesh = DeviceMesh("cpu", list(range(RANKS)))

# per tensor: what each rank holds, and how the tensor lies
TENSORS = [
    ([
        torch.tensor([1.0, 93.0], dtype=torch.float64),
        torch.tensor([-1.0, -26.0], dtype=torch.float64),
    ], Partial("sum")),
]

def call(x0):
    return torch.ops.aten.fill_.Scalar(x0, 1)


def whole(parts, placement):
    if isinstance(placement, Replicate):
        return parts[0].clone()
    if isinstance(placement, Shard):
        return torch.cat(parts, placement.dim)
    finish = {"sum": "sum", "avg": "mean", "max": "amax", "min": "amin", "product": "prod"}[placement.reduce_op]
    return getattr(torch.stack(parts), finish)(0)


def distributed(parts, placement):
    copies = {rank: part.clone() for rank, part in enumerate(parts)}
    local = copies[dist.get_rank()] if SPAWNED else LocalTensor(copies)
    full = whole(parts, placement)
    return DTensor.from_local(local, mesh, [placement], run_check=False, shape=full.shape, stride=full.stride())


def seen_by_ranks(tensor):
    if SPAWNED and isinstance(tensor, DTensor) and tensor.placements == (Partial("avg"),):  # gloo has no average
        tensor = DTensor.from_local(tensor.to_local() / RANKS, mesh, [Partial("sum")], run_check=False)
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return list(full._local_tensors.values()) if isinstance(full, LocalTensor) else [full]


expected = [t for t in tree_leaves(call(*[whole(*x) for x in TENSORS])) if isinstance(t, torch.Tensor)]
try:
    with torch.no_grad(), contextlib.nullcontext() if SPAWNED else LocalTensorMode(RANKS):
        result = call(*[distributed(*x) for x in TENSORS])
        found = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        placements = [getattr(t, "placements", ()) for t in found]
        got = [seen_by_ranks(t) for t in found]
except Exception as error:
    raise AssertionError(f"expected {expected}\nDTensor raised {type(error).__name__}: {error}") from error
for want, ranks, lies in zip(expected, got, placements):
    for rank, seen in enumerate(ranks):
        right = seen.shape == want.shape and torch.allclose(seen, want, rtol=1e-6, atol=1e-9, equal_nan=True)
        told = dist.get_rank() if SPAWNED else rank
        assert right, f"expected\n{want}\ngot on rank {told}, from a result that lies as {lies}\n{seen}"
if SPAWNED:
    dist.destroy_process_group()
print("DTensor gives what is expected")
