"""Who computes an op over a field: the table of handlers, element types, and what stands for ops that nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from ...rules.registry import find
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
    """What computes an op: by its name, else by the meaning that its record has, else by its rule.

    None if the book does not know it, or if it draws random numbers in a way of its own.
    """
    handler = HANDLERS.get(op)
    if handler is not None:
        return handler
    record = find(op)
    if record is None:
        return None
    if record.meaning is None:
        return None if record.random else MEANINGS["by rule"]
    return by_meaning(record.meaning) if callable(record.meaning) else MEANINGS.get(record.meaning)


def evaluate(field: Field, call: OpCall, operands: Sequence[Any]) -> tuple[FieldArray, ...]:
    """What an op makes over a field, with the element types that it says."""
    # Heights may overflow, and nothing may come of the heights of empty maxima.
    with np.errstate(all="ignore"):
        made = (handler_of(call.op) or opaque)(field, call, operands)
        results = made if isinstance(made, tuple) else (made,)
        before = {x.dtype for o in operands if o is not None for x in (o if isinstance(o, list) else [o])}
        return tuple(_typed(field, call, before, array, type.dtype) for array, type in zip(results, call.results))


def _typed(field: Field, call: OpCall, before: set[str], array: FieldArray, dtype: str) -> FieldArray:
    """Where an op's element type is not that of its operands, it rounds: by a factor that tells which to which.

    What comes in the type already has been rounded by the op's parts, or passes as it is.  A factor only where the
    Program changes the type of what is pending, for it may sum before or after; else any function.  So two changes are
    not one, and none is not two.  Forms of the core have their types by their structure.
    """
    change = None if array.dtype == dtype else type_change(call.op, before, dtype)
    if change is not None:
        word = field.word("cast", *change)
        linear = field.linear_casts
        if linear is None or change in linear:
            array = field.scale(array, float(1 + word % (field.p - 1)))
        elif ("prod", change) not in linear:
            array = FieldArray(field.from_hash(field.hash(word, [array.residue])).residue, array.height)
    return replace(array, dtype=dtype)


def type_change(op: str, before: set[str], dtype: str) -> tuple[str, ...] | None:
    """From which element types to which an op goes, if it rounds: types of one kind, or whole numbers to floats."""
    kind = _kind(dtype)
    if not kind or op.startswith(("core.", "random.")):
        return None
    same = {other for other in before if _kind(other) == kind} or {other for other in before if _kind(other) == "int"}
    return (*sorted(same), dtype) if same and same != {dtype} else None


def _kind(dtype: str) -> str:
    """Floats and whole numbers; booleans are neither."""
    return "float" if dtype[:1] in ("f", "c") or dtype == "bf16" else "int" if dtype[:1] in ("i", "u") else ""


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
