"""`checkpointed`: a model whose layers keep nothing for their backward pass, as long as a step is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .recording.state import surroundings

_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


@contextmanager
def checkpointed(fn: Any) -> Iterator[tuple[str, ...]]:
    """Meanwhile every block of a list in the model goes through ``torch.utils.checkpoint``; the names of these lists.

    A block is a module with modules of its own: of a single layer there is little that need not be kept.
    """
    names, changed = dict[str, None](), list[tuple[torch.nn.Module, Any]]()
    for name, block in _blocks(fn):
        names[name] = None
        changed.append((block, block.__dict__.get("forward")))
        block.__dict__["forward"] = _again(block.forward)
    try:
        yield tuple(names)
    finally:
        for block, before in changed:
            del block.__dict__["forward"]
            if before is not None:
                block.__dict__["forward"] = before


def _blocks(fn: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The outermost ones, each with the name of its list."""
    roots = [fn] if isinstance(fn, torch.nn.Module) else [one for _, one in surroundings(fn)]
    seen = set[int]()
    for root in [one for one in roots if isinstance(one, torch.nn.Module)]:
        for name, found in root.named_modules():
            for block in found.children() if isinstance(found, _LISTS) and id(found) not in seen else ():
                inner = [part for part in block.modules() if part is not block]
                if inner and id(block) not in seen and any(True for _ in block.parameters()):
                    seen.update(map(id, (block, *inner)))
                    yield name or type(found).__name__, block


def _again(forward: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


__all__ = ["checkpointed"]
