"""What an optimizer does, as tensor operations on one parameter at a time.

PyTorch's own steps read counters as numbers, or fuse all parameters into one call; neither can be planned.  The
formulas here are those of its single-tensor forms.  Learning rate and step count are tensors, so that a captured step
serves a whole training run; they are float64, since that is the precision in which PyTorch computes with them.

To extend: a `Formula` in `FORMULAS`, and the keys of its state in `state_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import TraceError

Group = Mapping[str, Any]
State = Mapping[str, Any]


def _sgd_once(group: Group, rate: Any, count: Any) -> tuple[Any, ...]:
    return (rate,)


def _sgd(group: Group, state: State, parameter: Any, grad: Any, rate: Any) -> None:
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * parameter
    if group["momentum"]:
        moving = state["momentum_buffer"]
        moving.mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
        grad = grad.add(moving, alpha=group["momentum"]) if group["nesterov"] else moving
    parameter.sub_(rate * grad)


def _adam_once(group: Group, rate: Any, count: Any) -> tuple[Any, ...]:
    """The decay, the step size, and the root of the second bias correction."""
    beta1, beta2 = group["betas"]
    decay = 1 - rate * group["weight_decay"] if group["weight_decay"] else None
    return decay, rate / (1 - torch.pow(beta1, count)), (1 - torch.pow(beta2, count)).sqrt()


def _adam(group: Group, state: State, parameter: Any, grad: Any, decay: Any, size: Any, root: Any) -> None:
    beta1, beta2 = group["betas"]
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        if group["decoupled_weight_decay"]:
            parameter.mul_(decay)
        else:
            grad = grad + group["weight_decay"] * parameter
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(grad, 1 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    if group["amsgrad"]:
        largest = state["max_exp_avg_sq"]
        square = largest.copy_(torch.maximum(largest, square))
    parameter.sub_(mean / (square.sqrt() / root + group["eps"]) * size)


@dataclass(frozen=True, slots=True)
class Formula:
    once: Callable[[Group, Any, Any], tuple[Any, ...]]
    """Of a group, the learning rate and the step count: numbers that all its parameters share."""
    apply: Callable[..., None]
    """Writes the next state of one parameter; takes what ``once`` returns last."""
    counts: bool
    """Whether it needs the number of the step."""


FORMULAS: dict[type, Formula] = {
    torch.optim.SGD: Formula(_sgd_once, _sgd, False),
    torch.optim.Adam: Formula(_adam_once, _adam, True),
    torch.optim.AdamW: Formula(_adam_once, _adam, True),
}


def formula_of(optimizer: Any) -> Formula:
    for kind in type(optimizer).__mro__:
        if kind in FORMULAS:
            return FORMULAS[kind]
    known = ", ".join(sorted(kind.__name__ for kind in FORMULAS))
    raise TraceError(
        f"the step of {type(optimizer).__name__} cannot be captured",
        rows=[("known", known)],
        help="use one of these, write the update in the captured function with tensor operations, or add a formula "
        "to shardwright.frontends.torch.optimizers",
    )


def state_keys(optimizer: Any, group: Mapping[str, Any]) -> tuple[str, ...]:
    """The tensors, each of its parameter's shape, that an optimizer keeps for a parameter."""
    if formula_of(optimizer).counts:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
    return ("momentum_buffer",) if group["momentum"] else ()


def check_state(optimizer: Any, group: Mapping[str, Any], fresh: bool) -> None:
    """SGD's first step takes the gradient whole, later ones a part of it; only without dampening are they alike."""
    if fresh and group.get("momentum") and group.get("dampening"):
        raise TraceError(
            "the first step of SGD with momentum and dampening differs from all later ones",
            help="take one step before capturing, or set dampening=0",
        )


def settings(optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group's options, with those that older versions of PyTorch do not write."""
    made = dict(group)
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        made["decoupled_weight_decay"] = bool(group.get("decoupled_weight_decay")) or isinstance(
            optimizer, torch.optim.AdamW
        )
    return made
