"""The step of an optimizer for one parameter, as one op: what it computes, in plain tensor operations.

| op | operands -> results |
|---|---|
| ``shardwright.adam`` | parameter, gradient, mean, square, largest, step, options -> parameter, mean, square, largest |
| ``shardwright.sgd`` | parameter, gradient, moving, options -> parameter, moving |

A captured program holds the ops of a step one by one; `recognising` finds those that compute what stands here, whoever
wrote them, and puts one op in their place.  Options and the step count are tensors of no dimension.  Engines run the
ops of all parameters at once, with the device's fused kernels.  As those do, the formulas compute half types in
float32, and round once.

To extend: a function in `FORMULAS`, its schema in `_SCHEMAS`, and how it is recognised in `recognising`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..recording.half_types import HALF

ADAM, SGD = "shardwright.adam", "shardwright.sgd"


def wide(x: Any) -> Any:
    """The precision in which kernels compute: float32 at least."""
    return x.float() if x.dtype in HALF else x


def adam(
    parameter: Any, gradient: Any, mean: Any, square: Any, largest: Any, step: Any, lr: Any, beta1: Any, beta2: Any,
    eps: Any, weight_decay: Any, decoupled: bool, maximize: bool,
) -> list[Any]:  # fmt: skip
    """Adam and AdamW (``decoupled``); with ``largest`` AMSGrad.  ``step`` counts from 1."""
    kinds = [x.dtype for x in (parameter, mean, square, largest) if x is not None]
    parameter, gradient, mean, square = map(wide, (parameter, gradient, mean, square))
    gradient = -gradient if maximize else gradient
    if weight_decay is not None and decoupled:
        parameter = parameter * (1 - lr * weight_decay)
    elif weight_decay is not None:
        gradient = gradient + parameter * weight_decay
    mean = torch.lerp(mean, gradient, (1 - beta1).to(mean.dtype))
    square = torch.lerp(square, gradient * gradient, (1 - beta2).to(square.dtype))
    state = [mean, square]
    if largest is not None:
        largest = torch.maximum(wide(largest), square)
        state.append(largest)
    step = step.to(torch.float64)
    size, root = lr / (1 - beta1**step), (1 - beta2**step).sqrt()
    high = square if largest is None else largest
    new = [parameter - mean / (high.sqrt() / root + eps) * size, *state]
    return [made.to(kind) for made, kind in zip(new, kinds)]


def sgd(
    parameter: Any, gradient: Any, moving: Any, lr: Any, momentum: Any, dampening: Any, weight_decay: Any,
    nesterov: bool, maximize: bool,
) -> list[Any]:  # fmt: skip
    """Gradient descent, with momentum where there is ``moving``; not its first step, if there is dampening."""
    kinds = [x.dtype for x in (parameter, moving) if x is not None]
    parameter, gradient = wide(parameter), wide(gradient)
    gradient = -gradient if maximize else gradient
    if weight_decay is not None:
        gradient = gradient + parameter * weight_decay
    if moving is None:
        return [(parameter - gradient * lr).to(kinds[0])]
    moving = wide(moving) * momentum + (gradient if dampening is None else gradient * (1 - dampening))
    gradient = gradient + moving * momentum if nesterov else moving
    return [(parameter - gradient * lr).to(kinds[0]), moving.to(kinds[1])]


FORMULAS: Mapping[str, Callable[..., list[Any]]] = {ADAM: adam, SGD: sgd}
STATE: Mapping[str, tuple[int, ...]] = {ADAM: (0, 2, 3, 4), SGD: (0, 2)}
"""Which operands are state: those that there are become the results, in this order."""
_SCHEMAS = {
    ADAM: "Tensor parameter, Tensor gradient, Tensor mean, Tensor square, Tensor? largest, Tensor step, Tensor lr, "
    "Tensor beta1, Tensor beta2, Tensor eps, Tensor? weight_decay, bool decoupled, bool maximize",
    SGD: "Tensor parameter, Tensor gradient, Tensor? moving, Tensor lr, Tensor? momentum, Tensor? dampening, "
    "Tensor? weight_decay, bool nesterov, bool maximize",
}
_library: Any = torch.library  # untyped in part
_LIBRARY = _library.Library("shardwright", "FRAGMENT")


def _shapes(op: str) -> Callable[..., list[Any]]:
    def shapes(*operands: Any) -> list[Any]:
        return [torch.empty_like(operands[i]) for i in STATE[op] if operands[i] is not None]

    return shapes


for _op, _formula in FORMULAS.items():
    _name = _op.partition(".")[2]
    _LIBRARY.define(f"{_name}({_SCHEMAS[_op]}) -> Tensor[]")
    _LIBRARY.impl(_name, _formula, "CompositeExplicitAutograd")
    _library.register_fake(f"shardwright::{_name}", _shapes(_op), lib=_LIBRARY)
