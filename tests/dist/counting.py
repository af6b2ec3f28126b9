"""What PyTorch's dispatcher sees of a program's collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from shardwright.ir.order import START, events_of
from shardwright.ir.program import Program
from torch.utils._python_dispatch import TorchDispatchMode

_NAMES = {
    "all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor", "all_reduce": "all_reduce",
    "all_to_all": "all_to_all_single", "collective_permute": "all_to_all_single",
}  # fmt: skip


class Counted(TorchDispatchMode):
    """Functional collectives by name; those that are given memory for their result, or work in place, count like the
    others, which `CommDebugMode` leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space == "_c10d_functional" and name != "wait_tensor":
            self.counts[name.removesuffix("_out").removesuffix("_")] += 1
        return func(*args, **(kwargs or {}))


def started(program: Program) -> Counter[str]:
    """What a Program's order starts; a bucket is one."""
    starts = (event.members[0] for event in events_of(program) if event.kind == START)
    return Counter(_NAMES[program.instrs[n].op] for n in starts)
