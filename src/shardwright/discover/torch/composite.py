"""What an operator is made of: the ATen calls that it makes, and whether PyTorch's DTensor has a rule for each."""

from __future__ import annotations

from collections.abc import Sequence

from ..operator import Operator, Sample
from ..statement import Made
from .ops import aten_calls

RULE, DECOMPOSED, NO_RULE = "has a rule", "takes it apart", "has no rule"


def calls_made(operator: Operator, samples: Sequence[Sample], most: int = 8) -> tuple[Made, ...]:
    """The ATen overloads that some of these calls run, in the order in which they were first seen."""
    found: dict[str, None] = {}
    for sample in samples[:most]:
        try:
            made = aten_calls(operator, sample)
        except Exception:  # whatever the library raises: this call shows nothing
            continue
        found.update(dict.fromkeys(aten.overload for aten, _ in made))
    return tuple(Made(overload, dtensor_has(overload)) for overload in found)


def dtensor_has(overload: str) -> str:
    """What DTensor has for an overload: a rule; a way to take it apart into others that have one; nothing."""
    from ..audit.dtensor import decomposes, registered_overloads

    if overload in registered_overloads(every_namespace=True):
        return RULE
    return DECOMPOSED if decomposes(overload) else NO_RULE
