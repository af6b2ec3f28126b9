"""A fault as a script that needs nothing but PyTorch: run it, and it fails with what was expected and what came."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import numpy as np

from ..operator import Array, Sample, Slot
from ..placement import Placement
from .cases import Case, Fault

_BODY = """\
import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

RANKS = {world}
SPAWNED = "RANK" in os.environ  # torchrun --nproc-per-node {world} THIS_FILE; otherwise all ranks in this process
if SPAWNED:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
mesh = DeviceMesh("cpu", list(range(RANKS)))

{tensors}

{calls}

def whole(parts, placement):
    if isinstance(placement, Replicate):
        return parts[0].clone()
    if isinstance(placement, Shard):
        return torch.cat(parts, placement.dim)
    finish = {{"sum": "sum", "avg": "mean", "max": "amax", "min": "amin", "product": "prod"}}[placement.reduce_op]
    return getattr(torch.stack(parts), finish)(0)


def distributed(parts, placement):
    copies = {{rank: part.clone() for rank, part in enumerate(parts)}}
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
{first}        result = call(*[distributed(*x) for x in TENSORS])
        found = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        placements = [getattr(t, "placements", ()) for t in found]
        got = [seen_by_ranks(t) for t in found]
except Exception as error:
    raise AssertionError(f"expected {{expected}}\\nDTensor raised {{type(error).__name__}}: {{error}}") from error
for want, ranks, lies in zip(expected, got, placements):
    for rank, seen in enumerate(ranks):
        right = seen.shape == want.shape and torch.allclose(seen, want, rtol=1e-6, atol=1e-9, equal_nan=True)
        told = dist.get_rank() if SPAWNED else rank
        assert right, f"expected\\n{{want}}\\ngot on rank {{told}}, from a result that lies as {{lies}}\\n{{seen}}"
if SPAWNED:
    dist.destroy_process_group()
print("DTensor gives what is expected")
"""


def script(fault: Fault, title: str) -> str:
    """A standalone script that fails as long as DTensor has this fault."""
    case = fault.case
    calls = [_function("call", case, case.sample)]
    first = ""
    if case.before is not None:
        calls.insert(0, _function("call_before", case, case.before))
        first = "        call_before(*[distributed(*x) for x in TENSORS])\n"
    body = _BODY.format(world=case.world, tensors=_tensors(case), calls="\n\n".join(calls), first=first)
    words = "\n".join(textwrap.wrap(f"{title}: {fault.how}.".replace("\\", "/").replace('"', "'"), 110))
    return f'"""{words}\n"""\n\n{body}'


def script_name(overload: str, rule: str) -> str:
    """A file name for the script of this rule."""
    named = overload.removeprefix("aten.").replace("_.", " in place ")
    words = re.sub(r"[^A-Za-z0-9]+", "_", f"{named} {rule}".replace("->", "to"))
    return f"{words.strip('_')[:100]}.py"


def _tensors(case: Case) -> str:
    lines = ["# per tensor: what each rank holds, and how the tensor lies", "TENSORS = ["]
    for held, placement in zip(case.parts, case.inputs):
        same = all(np.array_equal(part, held[0]) for part in held[1:])
        if same and placement.kind == "R":
            parts = f"[{_literal(held[0])}] * RANKS"
        else:
            parts = "[\n" + "".join(f"        {_literal(part)},\n" for part in held) + "    ]"
        lines.append(f"    ({parts}, {_placement(placement)}),")
    return "\n".join([*lines, "]"])


def _literal(array: Array) -> str:
    values = np.array2string(
        array, separator=", ", threshold=100_000, max_line_width=100_000, floatmode="unique", formatter=_FORMATS
    )
    values = re.sub(r"\s+", " ", values)
    text = f"torch.tensor({values}, dtype=torch.{_dtype(array)})"
    return text if array.size else f"torch.empty({list(array.shape)}, dtype=torch.{_dtype(array)})"


def _number(value: Any) -> str:
    number = float(value)
    if np.isfinite(number):
        return repr(int(number)) + ".0" if number == int(number) and abs(number) < 1e15 else repr(number)
    return f'float("{number}")'


def _complex(value: Any) -> str:
    return f"complex({_number(value.real)}, {_number(value.imag)})"


_FORMATS: Any = {"float_kind": _number, "complex_kind": _complex, "bool": lambda value: str(bool(value))}


def _dtype(array: Array) -> str:
    return str(array.dtype.name)


def _placement(placement: Placement) -> str:
    if placement.kind == "R":
        return "Replicate()"
    if placement.kind == "S":
        return f"Shard({placement.dim})"
    return f'Partial("{"product" if placement.reduce == "prod" else placement.reduce}")'


def _function(name: str, case: Case, sample: Sample) -> str:
    names = ", ".join(f"x{i}" for i in range(len(sample.tensors)))
    args = [_argument(value) for value in sample.args]
    args += [f"{key}={_argument(value)}" for key, value in sample.kwargs.items()]
    return f"def {name}({names}):\n    return torch.ops.{case.operator.overload}({', '.join(args)})\n"


def _argument(value: Any) -> str:
    if isinstance(value, Slot):
        return f"x{value.index}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(_argument(item) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
    if isinstance(value, float):
        return _number(value)
    if type(value).__name__ == "device":
        return f'torch.device("{value}")'
    return repr(value)
