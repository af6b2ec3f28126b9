"""What an engine is, and the one that has a single device.

An engine moves tensors between devices.  Asking `supports_distributed` tells whether it can; one that cannot
raises `NotImplementedError` for every collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Engine(Protocol):
    """The collectives every engine has by name; ``group`` None means all devices."""

    name: str

    def supports_distributed(self) -> bool: ...

    def all_reduce_sum(self, tensor: Any, group: Any = None) -> Any: ...

    def all_gather(self, tensor: Any, group: Any = None) -> Any: ...

    def reduce_scatter(self, tensor: Any, group: Any = None) -> Any: ...


class NumpyEngine:
    """One device, no collectives."""

    name = "numpy"

    def supports_distributed(self) -> bool:
        return False

    def all_reduce_sum(self, tensor: Any, group: Any = None) -> Any:
        raise self._one_device("all_reduce_sum")

    def all_gather(self, tensor: Any, group: Any = None) -> Any:
        raise self._one_device("all_gather")

    def reduce_scatter(self, tensor: Any, group: Any = None) -> Any:
        raise self._one_device("reduce_scatter")

    def _one_device(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"the numpy engine has one device and no {what}; use engine='virtual' for several in one process"
        )


class Arrays(Protocol):
    """The handful of array operations that collectives are made of, for one framework."""

    def concatenate(self, parts: Sequence[Any], dim: int) -> Any: ...

    def combine(self, kind: str, parts: Sequence[Any]) -> Any: ...

    def part(self, array: Any, dim: int, start: int, stop: int) -> Any: ...

    def neutral_like(self, kind: str, array: Any) -> Any: ...

    def number(self, value: int) -> Any: ...

    def shape(self, array: Any) -> tuple[int, ...]: ...

    def item_bytes(self, array: Any) -> int: ...
