"""Half types, and types mixed with them: where PyTorch's devices and its fake tensors disagree about what ops give.

Statistics of normalisations, the means and reciprocal deviations that forward ops leave for their backward ops, are
kept in the type of the input on a CPU, and in float32 where parameters are float32 or a GPU runs; of fake tensors
PyTorch says the first, whatever the parameters are.  A program must not depend on that, so in a graph they are
float32.  Where a device's kernels keep them in the type of the input they are cast at the call: what is computed there
is what eager PyTorch computes there, to the bit.

Of a few ops fake tensors say another type than every device gives (`_SAID_WRONG`; a test looks for others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....ir.graph import TensorType

HALF = (torch.float16, torch.bfloat16)
HALF_NAMES = ("f16", "bf16")
WIDE = "f32"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Where they are among an op's operands and results."""

    input: int
    parameters: tuple[int, ...]
    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    accumulated: bool = True
    """A GPU keeps them in float32."""


STATISTICS: dict[str, Statistics] = {
    "aten.native_layer_norm": Statistics(0, (1, 2), results=(1, 2)),
    "aten.native_layer_norm_backward": Statistics(1, (4, 5), operands=(2, 3)),
    "aten.native_group_norm": Statistics(0, (1, 2), results=(1, 2), accumulated=False),
    "aten.native_group_norm_backward": Statistics(1, (4,), operands=(2, 3), accumulated=False),
    "aten.native_batch_norm_backward": Statistics(1, (2, 3, 4), operands=(5, 6)),
    **dict.fromkeys(
        ("aten.native_batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit.no_stats",
         "aten._native_batch_norm_legit_functional", "aten._native_batch_norm_legit_no_training"),
        Statistics(0, (1, 2, 3, 4), results=(1, 2)),
    ),
}  # fmt: skip


_SAID_WRONG: dict[str, Callable[..., torch.dtype]] = {
    "aten.huber_loss": lambda x, *_: x.dtype,
    "aten.threshold_backward": lambda grad, x, *_: torch.promote_types(grad.dtype, x.dtype),
}
"""What these give, by their arguments."""


def as_computed(op: str, args: Sequence[Any], made: Any) -> Any:
    """What a fake call returned, in the types that a program has."""
    if op in _SAID_WRONG:
        return made.to(_SAID_WRONG[op](*args))
    found = STATISTICS.get(op)
    if found is not None and found.operands:
        return tuple(_as_given(found, args, item, i) for i, item in enumerate(made))
    if found is None or not found.results or made[0].dtype not in HALF:
        return made
    made = [item.float() if i in found.results else item for i, item in enumerate(made)]
    return (*made[:3], *(item.to(before.dtype) for item, before in zip(made[3:], args[3:])))  # running statistics


def _as_given(about: Statistics, args: Sequence[Any], gradient: Any, i: int) -> Any:
    """A gradient of a norm: in the type of what it is a gradient of, whatever fake tensors make of statistics."""
    if gradient is None:
        return None
    operands: list[Any] = [x for x in args if x is None or isinstance(x, torch.Tensor)]
    given: Any = operands[about.input]
    parameter = next((operands[p] for p in about.parameters if operands[p] is not None), given)
    return gradient.to((given if i == 0 else parameter).dtype)


def half_norm(op: str, operands: Sequence[TensorType | None], device: str) -> tuple[Statistics, str] | None:
    """A normalisation in a half type: its statistics, and the type that kernels of this kind of device keep them in.

    None for others, and where a GPU's kernels take and give float32.  On a CPU operands must be contiguous, as shards
    need not be: of others its kernels add up in the half type.
    """
    found = STATISTICS.get(op)
    if found is None or (found.accumulated and device != "cpu"):
        return None
    kind = operands[found.input]
    if kind is None or kind.dtype not in HALF_NAMES:
        return None
    given = (operands[i] for i in found.parameters if i < len(operands))
    parameters = (parameter.dtype for parameter in given if parameter is not None)
    return found, kind.dtype if next(parameters, kind.dtype) == kind.dtype else WIDE


BESIDE_NUMBERS = (
    "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.rsub.Tensor",
    "aten.pow.Tensor_Tensor",
)  # fmt: skip


def wide_beside_numbers(call: Callable[[Sequence[Any]], Any], dtype: torch.dtype) -> Callable[[Sequence[Any]], Any]:
    """An op on tensors of a half type and a number, which is a float64 tensor of no dimension: an optimizer's option.

    PyTorch rounds a number to float32 there, and one on a GPU, where tensors of no dimension are tensors like others,
    to the half type: a learning rate of 3e-4 would be off by a thousandth.
    """

    def run(operands: Sequence[Any]) -> Any:
        given = [x for x in operands if isinstance(x, torch.Tensor)]
        if not any(not x.dim() and x.dtype == torch.float64 and x.device.type != "cpu" for x in given):
            return call(operands)
        wide = [x.float() if isinstance(x, torch.Tensor) and x.dtype in HALF else x for x in operands]
        return call(wide).to(dtype)

    return run
