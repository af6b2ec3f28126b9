"""`Calling`: one call of an op over numbers, and what helpers its meanings share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...ir.graph import Graph, TensorType
from .numbers import Array, Number, Numbers


class Kernels(Protocol):
    """Real ops, from the frontend that the program is written in."""

    def compute(
        self, op: str, attrs: Mapping[str, Any], operands: Sequence[Any], results: Sequence[TensorType]
    ) -> list[Array]:
        """Results of an op on arrays."""
        ...

    def parts(
        self, op: str, attrs: Mapping[str, Any], operands: Sequence[Any], results: Sequence[TensorType]
    ) -> Graph | None:
        """What an op is made of, from the types of its operands; None if that is not known."""
        ...

    def shapes(self, op: str, attrs: Mapping[str, Any], operands: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes of an op's results, from the types of its operands."""
        ...

    def pointwise(self, op: str) -> bool: ...


@dataclass(frozen=True)
class Calling:
    """One call of an op."""

    op: str
    attrs: Mapping[str, Any]
    results: Sequence[TensorType]

    @property
    def dtype(self) -> str:
        return self.results[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.results[0].shape


class Evaluator(Protocol):
    """What a meaning needs."""

    numbers: Numbers
    kernels: Kernels

    def moved(self, call: Calling, operands: Sequence[Any]) -> list[Number]:
        """Elements follow the places that the op gives them."""
        ...

    def linear(self, call: Calling, operands: Sequence[Any]) -> list[Number]:
        """The op on residues."""
        ...


Meaning = Callable[[Evaluator, Calling, Sequence[Any]], Any]
"""NotImplemented where a call is none of those that it knows."""


def operand_or_number(m: Evaluator, call: Calling, operands: Sequence[Any], n: int, name: str) -> Number:
    """An operand, or the number that stands in its place."""
    given: Number | None = operands[n] if n < len(operands) else None
    return m.numbers.number(call.attrs[name]) if given is None else given


def pair(m: Evaluator, call: Calling, operands: Sequence[Any]) -> tuple[Number, Number]:
    return operand_or_number(m, call, operands, 0, "self"), operand_or_number(m, call, operands, 1, "other")


def scaled(m: Evaluator, x: Number, factor: Any) -> Number:
    return x if factor in (1, None) else m.numbers.multiply(x, m.numbers.number(factor))
