"""`Held`: bytes that tensors hold while operators run, on any device, counted by their storages.

What operators take inside, and what an allocator rounds up, is not seen: a GPU's own counter has that too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .private import OperatorMode


class Held(OperatorMode):  # type: ignore[misc]
    """Counts storages from the operator that makes them until nobody has them; ``inputs`` are there at the start.

    >>> x = torch.ones(4, dtype=torch.float64)
    >>> with Held([x]) as held:
    ...     y = (x + 1).exp()
    ...     now = held.bytes
    >>> held.peak, now
    (96, 64)
    """

    def __init__(self, inputs: Iterable[Any] = ()) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}
        for tensor in inputs:
            self._see(tensor)

    def _see(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def gone(_: Any) -> None:
            del self._known[key]
            self.bytes -= size

        self._known[key] = weakref.ref(storage, gone)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        for item in made if isinstance(made, list | tuple) else (made,):
            if isinstance(item, torch.Tensor):
                self._see(item)
        return made
