"""Who computes an op over a field: the table of handlers, and what stands for an op of which nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from ..rules.registry import find
from . import contract, moving, pointwise
from .meaning import by_meaning
from .modular import Field, FieldArray
from .pointwise import Handler, Made, OpCall

_FAMILIES = (pointwise, contract, moving)
HANDLERS: dict[str, Handler] = {op: handler for family in _FAMILIES for op, handler in family.HANDLERS.items()}
"""By an op's name."""
MEANINGS: dict[str, Handler] = {words: handler for family in _FAMILIES for words, handler in family.MEANINGS.items()}
"""By what a record says in words."""


def handler_of(op: str) -> Handler | None:
    """What computes an op: by its name, else by the meaning that its record has; None if neither is known."""
    handler = HANDLERS.get(op)
    if handler is not None:
        return handler
    record = find(op)
    if record is None or record.meaning is None:
        return None
    return by_meaning(record.meaning) if callable(record.meaning) else MEANINGS.get(record.meaning)


def opaque(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """An op of which nothing is known: every element of the result depends on every element of every operand.

    So it is right only where it is run on whole tensors.
    """
    state = field.word(*call.name())
    for operand in operands:
        for array in operand if isinstance(operand, list) else [operand]:
            state = field.word(state, None if array is None else _digest(array))
    made = []
    for r, type in enumerate(call.results):
        count = np.arange(type.elements, dtype=np.float64).reshape(type.shape)
        made.append(field.from_hash(field.hash(field.word(state, r, type.shape), [count])))
    return tuple(made)


def _digest(array: FieldArray) -> tuple[Any, ...]:
    return array.shape, blake2b(array.residue.astype(np.int64).tobytes(), digest_size=16).digest()
