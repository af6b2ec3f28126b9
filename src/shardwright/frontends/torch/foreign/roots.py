"""Modules and optimizers that a step uses, wherever it holds them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from ..state import find_roots, outermost, surroundings


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
