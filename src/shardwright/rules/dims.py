"""Writing rules dim by dim: what ops need that are neither pointwise nor contractions.

Most of them keep their dims and do something along a few: `same_dims` writes those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..errors import RuleError
from ..spec.op_record import Call
from ..spec.rule import factor_name

ANY = "P(any) -> P(any)"
LINEAR = ("P(sum) -> P(sum)", "P(avg) -> P(avg)")


def tensor(names: Iterable[str]) -> str:
    return " ".join(names) or "()"


def write(
    operands: Sequence[Iterable[str]],
    results: Sequence[Iterable[str]],
    notes: Mapping[str, str] | None = None,
    transfers: Iterable[str] = (),
) -> str:
    """A rule from the factor names of its tensors.

    >>> write(["ij", "j"], ["i"], {"j": "max"})
    'i j, j -> i ; j: max'
    """
    sides = [", ".join(map(tensor, side)) for side in (operands, results)]
    said = [f"{name}: {words}" for name, words in (notes or {}).items()]
    return " ; ".join([" -> ".join(sides).strip(), *said, *transfers])


def same_dims(call: Call, notes: Mapping[int, str], transfers: Iterable[str] = ()) -> str:
    """Dim d of every operand is dim d of every result; scalar operands stand beside them.

    >>> same_dims(Call(((8, 4),), ((8, 4),)), {1: "whole"})
    'i j -> i j ; j: whole'
    """
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    operands = [names if len(shape) == rank else [] for shape in call.operands]
    return write(operands, [names] * len(call.results), {names[d]: notes[d] for d in sorted(notes)}, transfers)


def dim_of(call: Call, name: str = "axis") -> int:
    """The dim of the first operand that an attribute names."""
    return dims_of(call, name)[0]


def dims_of(call: Call, name: str = "axis") -> tuple[int, ...]:
    """The dims of the first operand that an attribute names, one or several."""
    rank = len(call.operands[0])
    dims = ints_of(call, name)
    for d in dims:
        if not 0 <= d < rank:
            raise RuleError(f"{name} {d} of a tensor with {rank} dims")
    return dims


def ints_of(call: Call, name: str) -> tuple[int, ...]:
    """An attribute that must be there, as a tuple."""
    said = call.attr(name)
    if said is None:
        raise RuleError(f"the call does not say its {name}")
    return (said,) if isinstance(said, int) else tuple(said)


def per_dim(call: Call, name: str, default: int | None = None) -> tuple[int | None, ...]:
    """An attribute with one entry for each dim of the first operand; ``default`` where it is not given."""
    rank = len(call.operands[0])
    said = call.attr(name)
    entries = (default,) * rank if said is None else tuple(said)
    if len(entries) != rank:
        raise RuleError(f"{name} has {len(entries)} entries for a tensor with {rank} dims")
    return tuple(default if entry is None else entry for entry in entries)


def broadcast(names: Sequence[str], sizes: Sequence[int], shape: Sequence[int]) -> list[str]:
    """How a tensor of this shape, stretched as NumPy does, spells these factors: ``1`` where it has size 1.

    >>> broadcast(["i", "j", "k"], [2, 3, 4], [3, 1])
    ['j', '1']
    """
    start = len(names) - len(shape)
    if start < 0:
        raise RuleError(f"{list(shape)} cannot be stretched to {len(names)} dims")
    pairs = zip(names[start:], sizes[start:], shape)
    return ["1" if size == 1 and full != 1 else name for name, full, size in pairs]
