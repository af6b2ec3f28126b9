"""Programs of PyTorch ops: on N virtual devices in this process, and on real processes under ``torchrun``.

The idea: a Program is one text for all devices; `emit` writes what one of them does as an FX `GraphModule` of plain
ATen calls and functional collectives, which runs as it is and which ``torch.compile`` accepts.  `TorchEngine` gives it
process groups and runs it.  `exchange` is the only place that says how a collective is carried out (padding, order,
element types): the engine's own collectives and emitted programs share it.

| file | what it holds |
|---|---|
| `wire` | what is sent for an element type, how it is combined: NaN, bool, half and unsigned types |
| `groups` | process groups for mesh axes, made once |
| `exchange` | collectives as one rank carries them out: pack, exchange, unpack |
| `emission`, `code` | the Program of one rank as a `GraphModule`; the Python it runs |
| `compiling` | in which form a program runs: as emitted, compiled, or as a CUDA graph; the faster one that fits |
| `layout` | in which order the dims of a value lie in memory |
| `updates` | optimizer steps of many parameters as one call of a fused kernel, in place |
| `attention`, `attention_kernels` | which kernel computes attention on a device, by measured times; what each calls |
| `engine` | `TorchEngine`: collectives by name, compiled Programs |
| `held` | bytes that tensors hold while a program runs |
| `ranks/` | processes that find each other, agree, look after each other and end together |
| `checkpoints/` | state in shards saved and loaded: DTensors, files that are looked at before they are read |
| `private` | everything taken from PyTorch's private modules, with the reason |

To extend: an op that needs more than a plain call gets a kernel in the frontend; another attention kernel is one in
`attention_kernels`; another backend's gaps in element types are a line in `wire`.
"""

from collections.abc import Sequence
from typing import Any

from ...errors import RankError
from ...frontends.base import Framework
from ...frontends.torch.arrays import TorchArrays
from ...spec.sharding import ShardingSpec
from ..virtual import assemble as assemble_on_host
from ..virtual import scatter as scatter_on_host
from .emission import emit
from .engine import CompiledRank, TorchEngine, share
from .groups import Group, NamedGroups, ProcessGroups
from .ranks.agreement import Facts, inputs_digest, text_digest


def make(mesh: Any, framework: Framework, timeout: float | None = None) -> TorchEngine:
    return TorchEngine(mesh, timeout=timeout)


def scatter(tensor: Any, spec: ShardingSpec) -> list[Any]:
    """The shards of a whole tensor, one for each position; they are views of it."""
    return scatter_on_host(tensor, spec, TorchArrays())


def assemble(shards: Sequence[Any], spec: ShardingSpec, shape: Sequence[int]) -> Any:
    """The whole tensor from its shards, in one process."""
    return assemble_on_host(shards, spec, shape, TorchArrays())


__all__ = [
    "CompiledRank",
    "Facts",
    "Group",
    "NamedGroups",
    "ProcessGroups",
    "RankError",
    "TorchArrays",
    "TorchEngine",
    "assemble",
    "emit",
    "inputs_digest",
    "make",
    "scatter",
    "share",
    "text_digest",
]
