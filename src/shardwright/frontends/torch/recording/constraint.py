"""`constrain`: the user's word on how a value inside the program is sharded."""

from __future__ import annotations

from typing import Any

import torch

from ..private import FakeTensor

_library: Any = torch.library  # untyped in part
_LIBRARY = _library.Library("shardwright", "FRAGMENT")
_LIBRARY.define("constraint(Tensor x, str spec) -> Tensor")


def _same(x: Any, spec: str) -> Any:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.spec = inputs[1]


def _gradient(ctx: Any, grad: Any) -> Any:
    """The gradient has its own use and may be sharded otherwise."""
    return grad, None


_library.register_fake("shardwright::constraint", _same, lib=_LIBRARY)
_library.register_autograd("shardwright::constraint", _gradient, setup_context=_keep, lib=_LIBRARY)


def constrain(x: Any, spec: Any) -> Any:
    """Ask for a sharding of a value inside a captured program; a real tensor is returned as it is.

    >>> from shardwright.frontends.torch import capture
    >>> captured = capture(lambda x: constrain(x * 2, "[dp, _]"), torch.zeros(8, 4))
    >>> captured.graph.nodes[-1].op, captured.graph.nodes[-1].attrs
    ('core.constraint', (('spec', '[dp, _]'),))
    """
    if not isinstance(x, FakeTensor):
        return x
    mode, _ = getattr(x, "_shardwright_record", (None, None))
    if mode is None:  # captured by others
        return torch.ops.shardwright.constraint(x, str(spec))
    made = torch.ops.aten.alias(x)  # the same memory, as without a capture; autograd sees it, too
    mode.constrain(made, str(spec))
    return made
