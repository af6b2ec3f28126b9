"""Calls over lists of tensors, and fused optimizers, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

_FOREACH = "aten._foreach_"
_LISTS = (list, tuple)


@lru_cache(maxsize=1024)
def each_of(name: str) -> Callable[..., Any] | None:
    """What a ``_foreach`` op does, tensor by tensor; None for other ops."""
    if not name.startswith(_FOREACH):
        return None
    base, _, overload = name.removeprefix(_FOREACH).partition(".")
    in_place = base.endswith("_")
    stem = base.removesuffix("_")

    def one(*args: Any, **kwargs: Any) -> Any:
        if stem == "norm":
            order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
            return torch.linalg.vector_norm(args[0], order, dtype=kwargs.get("dtype"))
        if stem in ("addcmul", "addcdiv"):
            value = args[3] if len(args) > 3 else kwargs.get("value", 1)
            return getattr(args[0], stem + ("_" if in_place else ""))(args[1], args[2], value=value)
        if stem == "pow" and overload == "ScalarAndTensor":
            return torch.pow(*args)
        return getattr(args[0], stem + ("_" if in_place else ""))(*args[1:], **kwargs)

    def every(*args: Any, **kwargs: Any) -> Any:
        count = max(len(arg) for arg in args if isinstance(arg, _LISTS))
        made = []
        for i in range(count):
            given = [arg[i] if isinstance(arg, _LISTS) else arg for arg in args]
            named = {key: arg[i] if isinstance(arg, _LISTS) else arg for key, arg in kwargs.items()}
            made.append(one(*given, **named))
        return None if in_place else made

    return every


def _fused_adam(decoupled: bool) -> Callable[..., None]:
    def step(
        params: Any, grads: Any, averages: Any, squares: Any, largest: Any, steps: Any, *, lr: Any, beta1: float,
        beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool, **_: Any,
    ) -> None:  # fmt: skip
        for i, (param, grad, average, square, count) in enumerate(zip(params, grads, averages, squares, steps)):
            grad = -grad if maximize else grad
            if decoupled:
                param.mul_(1 - lr * weight_decay)
            elif weight_decay:
                grad = grad.add(param, alpha=weight_decay)
            average.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            first, second = 1 - beta1 ** float(count), 1 - beta2 ** float(count)
            if amsgrad:
                torch.maximum(largest[i], square, out=largest[i])
            root = ((largest[i] if amsgrad else square).sqrt() / second**0.5).add_(eps)
            param.addcdiv_(average, root, value=-(lr / first))

    return step


FUSED: dict[str, Callable[..., Any]] = {
    "aten._fused_adamw_": _fused_adam(decoupled=True),
    "aten._fused_adam_": _fused_adam(decoupled=False),
}
