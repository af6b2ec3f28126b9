"""Modules and optimizers that a step uses, wherever it holds them, and how they are left as they were."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from ..recording.state import find_roots, outermost, surroundings


def roots_of(program: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> list[tuple[str, Any]]:
    """Modules and optimizers that a program can reach: through functions that it calls and objects that it holds, too.

    A module without parameters is none of them: that one program has its loss as a module would change every name.
    """
    found = {id(root): (name, root) for name, root in find_roots(program, arguments, keywords)}
    waiting, seen = [("", program)], set()
    while waiting:
        name, thing = waiting.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.nn.Module | torch.optim.Optimizer):
            found.setdefault(id(thing), (name, thing))
        elif isinstance(thing, list | tuple):
            waiting += [(f"{name}.{i}", item) for i, item in enumerate(thing)]
        elif isinstance(thing, dict):
            waiting += [(f"{name}.{key}", item) for key, item in thing.items()]
        elif _is_users(thing):
            waiting += list(surroundings(thing))
            waiting += list(getattr(thing, "__dict__", {}).items())
    used = [(name, root) for name, root in found.values() if _has_state(root)]
    return outermost(used)


@contextmanager
def as_before(program: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Iterator[None]:
    """Whatever a program does to its numbers, gradients and optimizers, they are afterwards what they were.

    Else who proves two programs like one begins the second time with the gradients and the steps of the first.
    """
    roots = [root for _, root in roots_of(program, arguments, keywords)]
    modules = [root for root in roots if isinstance(root, torch.nn.Module)]
    optimizers = [root for root in roots if isinstance(root, torch.optim.Optimizer)]
    tensors = {id(x): x for module in modules for x in (*module.parameters(), *module.buffers())}
    tensors.update({id(x): x for one in optimizers for group in one.param_groups for x in group["params"]})
    held = [(x, x.grad, _copy(x), _copy(x.grad)) for x in tensors.values()]
    states = [
        {x: {key: (item, _copy(item)) for key, item in state.items()} for x, state in one.state.items()}
        for one in optimizers
    ]
    groups = [[dict(group) for group in one.param_groups] for one in optimizers]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, grad, numbers, numbers_of_grad in held:
                _put(tensor, numbers)
                _put(grad, numbers_of_grad)
                tensor.grad = grad
            for one, state, options in zip(optimizers, states, groups):
                one.state.clear()
                one.state.update({x: {key: _put(*item) for key, item in of.items()} for x, of in state.items()})
                for group, before in zip(one.param_groups, options):
                    group.update(before)


def _copy(item: Any) -> Any:
    return item.detach().clone() if isinstance(item, torch.Tensor) and not item.is_meta else item


def _put(item: Any, numbers: Any) -> Any:
    """A tensor with the numbers that it had; anything else as it is."""
    if isinstance(item, torch.Tensor) and not item.is_meta:
        item.detach().copy_(numbers)
    return item


def _is_users(thing: Any) -> bool:
    """Functions and objects that are neither PyTorch's nor Python's; classes and Python modules hold no state."""
    if isinstance(thing, type | ModuleType):
        return False
    if isinstance(thing, functools.partial):
        return True
    home = thing if hasattr(thing, "__code__") or hasattr(thing, "__func__") else type(thing)
    package = str(getattr(home, "__module__", "builtins")).partition(".")[0]
    return package not in ("torch", "numpy", *sys.stdlib_module_names)


def _has_state(root: Any) -> bool:
    if isinstance(root, torch.nn.Module):
        return next(root.parameters(), None) is not None or next(root.buffers(), None) is not None
    return True
