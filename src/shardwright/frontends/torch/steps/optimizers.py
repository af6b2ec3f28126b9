"""What an optimizer does, as tensor operations on one parameter at a time: SGD, Adam and AdamW.

The formulas here are those of PyTorch's single-tensor forms.  Their numbers are live (see `numbers`): learning rate,
betas and the like are inputs of the program, and what is decided by one (`if weight_decay`) is a guard.  Any other
optimizer's own code is captured (see `own_steps`); a formula keeps one step count for all parameters, and fewer ops.

To extend: a `Formula` in `FORMULAS`, and the keys of its state in `state_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Group = Mapping[str, Any]
State = Mapping[str, Any]


def _sgd_once(group: Group, count: Any) -> tuple[Any, ...]:
    return ()


def _sgd(group: Group, state: State, parameter: Any, grad: Any, first: bool) -> None:
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * parameter
    if group["momentum"]:
        moving = state["momentum_buffer"]
        if first:
            moving.copy_(grad)
        elif group["dampening"]:
            moving.mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
        else:
            moving.mul_(group["momentum"]).add_(grad)
        grad = grad.add(moving, alpha=group["momentum"]) if group["nesterov"] else moving
    parameter.sub_(group["lr"] * grad)


def _adam_once(group: Group, count: Any) -> tuple[Any, ...]:
    """The step size, and the root of the second bias correction."""
    beta1, beta2 = group["betas"]
    return torch.div(group["lr"], 1 - beta1**count), (1 - beta2**count).sqrt()


def _adam(group: Group, state: State, parameter: Any, grad: Any, first: bool, size: Any, root: Any) -> None:
    beta1, beta2 = group["betas"]
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"]:
        if group["decoupled_weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        else:
            grad = grad + group["weight_decay"] * parameter
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(grad, 1 - beta1)
    square.lerp_(grad * grad, 1 - beta2)  # with a number for a weight, `addcmul_` would be two ops more
    if group["amsgrad"]:
        largest = state["max_exp_avg_sq"]
        square = largest.copy_(torch.maximum(largest, square))
    parameter.sub_(mean / (square.sqrt() / root + group["eps"]) * size)


@dataclass(frozen=True, slots=True)
class Formula:
    once: Callable[[Group, Any], tuple[Any, ...]]
    """Of a group and the step count: tensors that all its parameters share."""
    apply: Callable[..., None]
    """Writes the next state of one parameter; ``first`` says that there is none before; takes what ``once`` returns."""
    counts: bool
    """Whether it needs the number of the step."""


FORMULAS: dict[type, Formula] = {
    torch.optim.SGD: Formula(_sgd_once, _sgd, False),
    torch.optim.Adam: Formula(_adam_once, _adam, True),
    torch.optim.AdamW: Formula(_adam_once, _adam, True),
}


def has_formula(optimizer: Any) -> bool:
    """Of these very classes: a subclass may step otherwise, and so may an object whose ``step`` was replaced."""
    own = vars(optimizer).get("step")
    return type(optimizer) in FORMULAS and (own is None or getattr(own, "_wrapped_by_lr_sched", False))


def state_keys(optimizer: Any, group: Mapping[str, Any]) -> tuple[str, ...]:
    """The tensors, each of its parameter's shape, that an optimizer keeps for a parameter."""
    if FORMULAS[type(optimizer)].counts:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
    return ("momentum_buffer",) if group["momentum"] else ()


def first_is_special(group: Mapping[str, Any]) -> bool:
    """SGD's first step takes the gradient whole, later ones a part of it; only without dampening are they alike."""
    return bool("dampening" in group and group["momentum"] and group["dampening"])


def settings(optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group's options, with those that older versions of PyTorch do not write."""
    made = dict(group)
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        made["decoupled_weight_decay"] = bool(group.get("decoupled_weight_decay")) or isinstance(
            optimizer, torch.optim.AdamW
        )
    return made
