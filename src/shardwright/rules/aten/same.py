"""Ops that are an op of the core vocabulary under another name: one rule, one meaning, two spellings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import UnknownOpError
from ...spec.op_record import Call
from ...spec.rule import OpShardingRule
from ..registry import find, rule, when_complete

Attributes = Mapping[str, Any]
To = Callable[[Attributes, int], Attributes]
"""From the op's attributes and the rank of its first operand to those of the other op."""


def same(*names: str, base: str, to: To = lambda attrs, rank: {}, **about: Any) -> None:
    """Register ops by the record of another.

    >>> same("doc.total", base="reduce_sum", to=lambda attrs, rank: {"axis": attrs["dim"]})
    >>> print(find("doc.total").bind([(4, 6)], [(4,)], {"dim": 1}))
    i j -> i ; P(sum) -> P(sum) ; P(avg) -> P(avg) | i=4 j=6
    """

    def register() -> None:
        record = find(base)
        if record is None:
            raise UnknownOpError(
                f"{base!r} is not in the book, so nothing is the same as it", rows=[("ops", str(names))]
            )

        def bound(call: Call) -> OpShardingRule:
            rank = len(call.operands[0]) if call.operands else 0
            return record.bind(call.operands, call.results, to(call.attrs, rank))

        for name in names:
            rule(
                name,
                bound,
                flow=record.flow,
                cost=record.cost,
                view=record.view,
                meaning="same",
                same_as=lambda attrs, rank, _: (base, to(attrs, rank)),
                **{"beyond": record.beyond, **about},
            )

    when_complete(register)


def dims(attrs: Attributes, rank: int, name: str = "dim") -> tuple[int, ...] | None:
    """The dims that an attribute names, counted from the front; None for all."""
    said = attrs.get(name)
    if said is None or said == ():
        return None
    named = (said,) if isinstance(said, int) else said
    return tuple(d % rank for d in named) if rank else ()


def dim(attrs: Attributes, rank: int, name: str = "dim") -> int:
    return int(attrs[name]) % max(rank, 1)
