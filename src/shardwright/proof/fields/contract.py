"""Contractions over a field: every one of them is an einsum, and an einsum is matrix products of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...rules.registry import find
from .modular import Field, FieldArray
from .pointwise import Handler, Made, OpCall

Labels = list[Any]
"""One label for each dim; dims with the same label run together."""


def contract(field: Field, operands: Sequence[FieldArray], terms: Sequence[Labels], output: Labels) -> FieldArray:
    """The product of all operands, summed over the labels that the output does not have."""
    sizes = _sizes(operands, terms)
    ready = [_plain(x, labels, sizes) for x, labels in zip(operands, terms)]
    array, labels = ready[0]
    for i, (other, its) in enumerate(ready[1:], 1):
        later = {label for _, rest in ready[i + 1 :] for label in rest}
        array, labels = _pair(field, array, labels, other, its, later | set(output))
    array, labels = _sum_out(field, array, labels, set(output))
    order = [labels.index(label) for label in output]
    return array.map(lambda part: part.transpose(order))


def _sizes(operands: Sequence[FieldArray], terms: Sequence[Labels]) -> dict[Any, int]:
    """The size behind each label; a 1 is stretched to whatever the others have, be it nothing."""
    sizes: dict[Any, int] = {}
    for x, labels in zip(operands, terms):
        for label, size in zip(labels, x.shape, strict=True):
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
            elif size not in (1, sizes[label]):
                raise ValueError(f"a contraction over sizes {sizes[label]} and {size}")
    return sizes


def _plain(array: FieldArray, labels: Labels, sizes: dict[Any, int]) -> tuple[FieldArray, Labels]:
    """Diagonals taken, stretched dims dropped: a factor that is the same everywhere along them."""
    found = list(labels)
    for d in reversed(range(len(found))):
        if array.shape[d] == 1 != sizes[found[d]]:
            array = array.map(lambda part, d=d: part.squeeze(d))  # type: ignore[misc]
            del found[d]
    for label in dict.fromkeys(found):
        while found.count(label) > 1:
            i = found.index(label)
            j = found.index(label, i + 1)
            array = array.map(lambda part, i=i, j=j: np.diagonal(part, axis1=i, axis2=j))  # type: ignore[misc]
            found = [*found[:i], *found[i + 1 : j], *found[j + 1 :], label]
    return array, found


def _sum_out(field: Field, array: FieldArray, labels: Labels, needed: set[Any]) -> tuple[FieldArray, Labels]:
    gone = tuple(d for d, label in enumerate(labels) if label not in needed)
    if not gone:
        return array, labels
    return field.sum(array, gone), [label for label in labels if label in needed]


def _pair(
    field: Field, left: FieldArray, of_left: Labels, right: FieldArray, of_right: Labels, needed: set[Any]
) -> tuple[FieldArray, Labels]:
    """Two operands as one product of matrices: batch, rows, contracted, columns."""
    left, of_left = _sum_out(field, left, of_left, needed | set(of_right))
    right, of_right = _sum_out(field, right, of_right, needed | set(of_left))
    both = [label for label in of_left if label in of_right]
    batch = [label for label in both if label in needed]
    inner = [label for label in both if label not in needed]
    rows = [label for label in of_left if label not in both]
    columns = [label for label in of_right if label not in both]
    size = {**dict(zip(of_left, left.shape)), **dict(zip(of_right, right.shape))}

    def matrices(array: FieldArray, labels: Labels, parts: Sequence[Labels]) -> FieldArray:
        order = [labels.index(label) for part in parts for label in part]
        shape = [int(np.prod([size[label] for label in part], dtype=np.int64)) for part in parts]
        return array.map(lambda part: part.transpose(order).reshape(shape))

    product = field.matmul(
        matrices(left, of_left, [batch, rows, inner]), matrices(right, of_right, [batch, inner, columns])
    )
    labels = [*batch, *rows, *columns]
    return product.map(lambda part: part.reshape([size[label] for label in labels])), labels


# -- ops ------------------------------------------------------------------------------------------------


def matmul(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    left, right = (len(x.shape) for x in operands)
    batch = [f"b{d}" for d in reversed(range(max(left, right) - 2))]
    of_left = [*batch[len(batch) - left + 2 :], "m", "k"] if left > 1 else ["k"]
    of_right = [*batch[len(batch) - right + 2 :], "k", "n"] if right > 1 else ["k"]
    output = [*batch, *(["m"] if left > 1 else []), *(["n"] if right > 1 else [])]
    return contract(field, operands, [of_left, of_right], output)


def dot(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    left, right = (len(x.shape) for x in operands)
    if not left or not right:
        return field.multiply(*operands)
    a, b = [f"a{d}" for d in range(left - 1)], [f"b{d}" for d in range(right - 1)]
    of_right = ["k"] if right == 1 else [*b[:-1], "k", b[-1]]
    return contract(field, operands, [[*a, "k"], of_right], [*a, *b])


def vdot(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    labels = list(range(len(operands[0].shape)))
    return contract(field, operands, [labels, labels], [])


def outer(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    return contract(field, operands, [["m"], ["n"]], ["m", "n"])


def tensordot(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    lhs, rhs = call.attrs["axes"]
    return general(field, operands, ((), ()), (lhs, rhs))


def dot_general(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    batch = (call.attrs.get("lhs_batch", ()), call.attrs.get("rhs_batch", ()))
    inner = (call.attrs.get("lhs_contracting", ()), call.attrs.get("rhs_contracting", ()))
    return general(field, operands, batch, inner)


Pairs = tuple[Sequence[int], Sequence[int]]


def general(field: Field, operands: Sequence[Any], batch: Pairs, inner: Pairs) -> FieldArray:
    """Batch dims first, then what is left of each side."""
    terms: list[Labels] = []
    for side, x in enumerate(operands):
        rank = len(x.shape)
        labels: Labels = [(side, d) for d in range(rank)]
        for name, dims in (("batch", batch[side]), ("inner", inner[side])):
            for i, d in enumerate(dims):
                labels[d % rank] = (name, i)
        terms.append(labels)
    shared: Labels = [("batch", i) for i in range(len(batch[0]))]
    rest = [label for side, labels in enumerate(terms) for label in labels if label[0] == side]
    return contract(field, operands, terms, shared + rest)


def einsum(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    equation = call.attrs["equation"].replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = [_labels(term, len(x.shape)) for term, x in zip(left.split(","), operands, strict=True)]
    dots = max((sum(isinstance(label, int) for label in term) for term in terms), default=0)
    if not arrow:
        letters = [letter for letter in left if letter.isalpha()]
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        right = ("..." if "." in left else "") + "".join(once)
    return contract(field, operands, terms, _labels(right, dots + len(right.replace(".", ""))))


def _labels(term: str, rank: int) -> Labels:
    """Letters; the dims under an ellipsis are numbered from the right, since that is where they line up."""
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *reversed(range(hidden)), *after]


def by_rule(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """A contraction that is known by nothing but its rule, which then says all there is to say."""
    record = find(call.op)
    assert record is not None  # its meaning was read from it
    rule = record.bind([x.shape for x in operands], [type.shape for type in call.results], call.attrs)
    if len(rule.results) != 1 or any(len(dim) != 1 for tensor in rule.tensors for dim in tensor):
        raise ValueError(f"the rule of {call.op} is more than one product")
    return contract(
        field, operands, [[f for (f,) in mapped] for mapped in rule.operands], [f for (f,) in rule.results[0]]
    )


HANDLERS: dict[str, Handler] = {
    "matmul": matmul,
    "dot": dot,
    "vdot": vdot,
    "outer": outer,
    "tensordot": tensordot,
    "dot_general": dot_general,
    "einsum": einsum,
}
MEANINGS: dict[str, Handler] = {"contract": by_rule}
