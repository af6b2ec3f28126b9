"""Pending tensors: the value of a tensor is the combination of the parts that devices hold.

So a whole array under a pending sharding goes onto the devices as parts whose combination is the array: in a sum or a
product the first device of each group holds it and the others what changes nothing, else all of them hold it.  What
comes off the devices is combined.  This is the one place that says who holds what, and what has no such meaning.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import SpecError
from .axes import Axes, AxisRef
from .mesh import DeviceMesh
from .sharding import ShardingSpec

LINEAR = {"sum", "avg"}
"""Kinds that may be combined in any order."""
NOUNS = {"sum": "a sum", "avg": "an average", "prod": "a product", "max": "a maximum", "min": "a minimum"}
ONE_HOLDS = ("sum", "prod")
"""Kinds in which one device of a group holds the array; in a max, a min or an average all do."""


def pending_axes(spec: ShardingSpec) -> dict[str, Axes]:
    """By kind the axes of more than one device that a tensor is pending over.

    >>> found = pending_axes(ShardingSpec.parse("[_] // x, max(y), z", DeviceMesh("x=2, y=2, z=1")))
    >>> [(kind, *map(str, axes)) for kind, axes in found.items()]
    [('sum', 'x'), ('max', 'y')]
    """
    found: dict[str, Axes] = {}
    for axis, kind in spec.partial:
        if axis.size > 1:
            found[kind] = (*found.get(kind, ()), axis)
    return found


def neutral_at(spec: ShardingSpec, position: int) -> str | None:
    """The kind whose neutral element a device holds instead of its part of the array; None where it holds the part.

    >>> spec = ShardingSpec.parse("[_] // x", DeviceMesh("x=2"))
    >>> neutral_at(spec, 0), neutral_at(spec, 1)
    (None, 'sum')
    """
    for kind, axes in pending_axes(spec).items():
        if kind in ONE_HOLDS and not is_first(spec.mesh, position, axes):
            return kind
    return None


def is_first(mesh: DeviceMesh, position: int, axes: Iterable[AxisRef]) -> bool:
    """Whether a device is the first of its group along these axes."""
    return all(mesh.index_along(position, axis) == 0 for axis in axes)


def check_pending(spec: ShardingSpec, dtype: str) -> None:
    """Raise `SpecError` where a tensor of this element type cannot be pending so.

    >>> check_pending(ShardingSpec.parse("[_] // max(x)", DeviceMesh("x=2")), "bool")
    """
    kinds = pending_axes(spec)
    if not kinds:
        return
    reason = next((reason for kind in kinds if (reason := _meaningless(kind, dtype))), "")
    if reason:
        fact = f"a tensor of {dtype} cannot be pending: {reason}"
        help = "give a sharding without the pending axes, or convert the tensor first"
    elif len(kinds) > 1 and not kinds.keys() <= LINEAR:
        told = [NOUNS[kind] for kind in NOUNS if kind in kinds]
        fact = f"a tensor cannot be pending as {' and as '.join(told)}: which one comes first would decide its value"
        help = "keep one of them"
    else:
        return
    raise SpecError(fact, rows=[("spec", str(spec))], help=help)


def _meaningless(kind: str, dtype: str) -> str:
    if dtype.startswith("f8"):
        return "there is no arithmetic in 8 bits"
    if dtype == "bool" and kind in ("sum", "avg"):
        return "the sum or average of truth values is no truth value"
    if kind == "avg" and dtype[0] in "iu":
        return "the average of whole numbers need not be one"
    if kind in ("max", "min") and dtype[0] == "c":
        return "complex numbers have no order"
    return ""
