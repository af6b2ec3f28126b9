"""`OpLibrary`: who runs an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...ir.graph import TensorType
from ..operator import Library

Operands = Sequence[Any]
Prepare = Callable[[str, Mapping[str, Any], Sequence[TensorType]], Callable[[Operands], tuple[Any, ...]]]


@dataclass(frozen=True)
class OpLibrary:
    """Who runs an op."""

    library: Library
    prepare: Prepare
    identity: tuple[str, str]
    """The op's signature, and the library with its version."""
    names: tuple[str, ...] = ()
    """Of the op's parameters that are tensors."""
    refused: str = ""
    """Why runs of it cannot be compared."""
    arrays: Any = None
    """`HostArrays` of its framework."""
    cast: Callable[[Any, str], Any] = field(default=lambda array, dtype: array, compare=False)
    """From a NumPy array: its own, of one of our element types."""
    plain: Callable[[Any], Any] = field(default=lambda tensor: tensor, compare=False)
    """From its own: a NumPy array, half types as float64."""
