"""Ops by what their record says of them: another op, their parts, or no more than their rule.

*Same as another op*: that one is computed.  *In parts*: the graph of what it is made of is.  *By rule*: some function
that has just the properties that the rule claims.  Its results are made of products, one operand from each set that
the transfer table lets be pending together, times a hash of the operands that never may be; a factor that passes runs
along, one that is summed is summed, one that is whole is mixed by weights that depend on the places.  Where pending
values pass whatever the reduction, each element is one of the operands', picked by a hash.  So a Program
that uses a rule for what it does not say is found out.  That the op has these properties is for discovery to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np

from ...errors import VerifyError
from ...ir.graph import TensorType
from ...rules.registry import find, parts
from ...spec.op_record import slots_of
from ...spec.rule import Mapped, OpShardingRule
from .contract import contract
from .handlers import evaluate, handler_of, opaque
from .modular import Field, FieldArray, Floats, choose
from .pointwise import Handler, Made, OpCall, falling, hashed, rising

_RISING = {("P(max)",): ("P(max)",), ("P(min)",): ("P(min)",)}
_FALLING = {("P(max)",): ("P(min)",), ("P(min)",): ("P(max)",)}


def same(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """The op of another vocabulary that this one is."""
    record = find(call.op)
    assert record is not None
    assert record.same_as is not None
    flat = _flat(operands)
    ranks = (len(flat[0].shape) if flat else 0, len(call.shape))
    op, attrs = record.same_as(call.attrs, *ranks)
    if not flat:  # created values differ by their own attributes
        attrs = {**call.attrs, **attrs}
    handler = handler_of(op)
    if handler is None:
        raise VerifyError(f"{call.op} is the same as {op}, of which nothing is known")
    return handler(field, OpCall(op, attrs, call.results), operands)


def in_parts(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """What the op is made of, evaluated on these operands."""
    dtype = call.results[0].dtype
    types = tuple(_type(o, dtype) for o in operands)
    graph = parts(call.op, tuple(sorted(call.attrs.items())), types, tuple(call.results))
    if graph is None:
        return opaque(field, call, operands)
    values: dict[int, Any] = dict(zip(graph.inputs, _flat(operands)))
    for node in graph.nodes:
        given = [
            [values[v] for v in o] if isinstance(o, tuple) else None if o is None else values[o] for o in node.operands
        ]
        inner = OpCall(node.op, dict(node.attrs), tuple(graph.types(node.results)))
        values.update(zip(node.results, evaluate(field, inner, given)))
    return tuple(values[value] for value in graph.outputs)


def _type(operand: Any, dtype: str) -> Any:
    if operand is None:
        return None
    if isinstance(operand, list):
        return tuple(_type(item, dtype) for item in operand)
    return TensorType(operand.shape, operand.dtype or dtype)


def _flat(operands: Sequence[Any]) -> list[FieldArray]:
    return [x for o in operands if o is not None for x in (o if isinstance(o, list) else [o])]


# -- by rule --------------------------------------------------------------------------------------------


def by_rule(field: Field, call: OpCall, operands: Sequence[Any]) -> Made:
    """A function with the properties that the op's rule claims, and no others."""
    flat = _flat(operands)
    rule = _bound(call, operands, flat) if flat else None
    if rule is None:
        return opaque(field, call, operands)
    table = {row.operands: row.results for row in rule.transfers}
    if len(flat) == 1 and len(rule.results) == 1 and not any("sum" in state for row in table for state in row):
        if all(table.get(key) == value for key, value in _RISING.items()):
            return rising(field, call, flat)
        if all(table.get(key) == value for key, value in _FALLING.items()):
            return falling(field, call, flat)
    if not table and _elementwise(rule):
        return hashed(field, call, flat)
    return tuple(_Term(field, call, rule, flat, r).value() for r in range(len(rule.results)))


def _bound(call: OpCall, operands: Sequence[Any], flat: Sequence[FieldArray]) -> OpShardingRule | None:
    record = find(call.op)
    assert record is not None
    slots = slots_of([0 if isinstance(o, FieldArray) else o for o in operands])
    shapes = [x.shape for x in flat]
    try:
        return record.bind(shapes, [type.shape for type in call.results], dict(call.attrs), slots)
    except Exception:  # a call that the record does not cover runs on whole tensors
        return None


def _elementwise(rule: OpShardingRule) -> bool:
    """Whether every result is of all operands, element by element; of a list of tensors it is not."""
    passes = all(factor.broadcast or not (factor.whole or factor.permuted or factor.form) for factor in rule.factors)
    lined_up = all(_lines_up(mapped, made, rule) for mapped in rule.operands for made in rule.results)
    return passes and not rule.reduced and not rule.new and lined_up


def _lines_up(mapped: Mapped, made: Mapped, rule: OpShardingRule) -> bool:
    """Whether the dims of an operand are the last ones of a result, or are stretched to them."""
    if len(mapped) > len(made):
        return False
    pairs = zip(reversed(mapped), reversed(made))
    return all(a == b or all(rule.factors[f].broadcast for f in a) for a, b in pairs)


class _Term:
    """One result: a sum of products, mixed along whole factors."""

    def __init__(
        self, field: Field, call: OpCall, rule: OpShardingRule, operands: Sequence[FieldArray], result: int
    ) -> None:
        self.field = field
        self.call = call
        self.rule = rule
        self.operands = operands
        self.result = result
        self.target = rule.results[result]
        self.reduced = dict(rule.reductions[result])
        self.here = {f for dim in self.target for f in dim}

    def value(self) -> FieldArray:
        if any(kind == "sum" and not self.rule.sizes[f] for f, kind in self.reduced.items()):
            return self.field.full(self.call.results[self.result].shape, 0)  # a sum over nothing
        pending = {row.results[self.result]: row.operands for row in self.rule.transfers}
        if "P(any)" in pending:
            return self.selection([i for i, state in enumerate(pending["P(any)"]) if state == "P(any)"])
        if "P(sum)" not in pending and not self.reduced and self.keeps_order(pending):
            return self.selection([i for i, state in enumerate(pending["P(max)"]) if state == "P(max)"], others=True)
        extremes = {kind for kind in self.reduced.values() if kind != "sum"}
        rows = [
            {i for i, state in enumerate(row.operands) if state == "P(sum)" and self.bears(i)}
            for row in self.rule.transfers
        ]
        rows = [row for row in rows if row]
        if extremes or not rows:
            return self.of_hashes(extremes)
        return self.multilinear(rows)

    # -- elements that go elsewhere, whatever they are ---------------------------------------------------------

    def keeps_order(self, pending: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether maxima and minima pass alike."""
        high, low = pending.get("P(max)"), pending.get("P(min)")
        return high is not None and low is not None and "P(max)" in high and "P(min)" in low

    def selection(self, among: Sequence[int], others: bool = False) -> FieldArray:
        """Each element of the result is one of these operands': which one follows from the others and its place.

        With ``others`` it may also be a number that has nothing to do with them.
        """
        factors = [f for dim in self.target for f in dim]
        shape = [self.own_size(f) if self.mixes(f) else self.length(f) for f in factors]
        made = [n if self.mixes(f) else 1 for f, n in zip(factors, shape)]
        keys: list[Floats] = [np.arange(prod(made), dtype=np.float64).reshape(made)]
        rest = [i for i in range(len(self.operands)) if i not in among and self.bears(i)]
        if rest:
            mixed, order = self.mixed(rest, ())
            known = [order.index(f) for f in factors if f in order]
            lost = tuple(d for d in range(len(order)) if d not in known)
            keys.append(self.laid(mixed.residue.sum(axis=lost), [f for f in order if f in factors], factors))
        name = self.call.name(self.result)

        def number(*what: Any) -> Any:
            state = self.field.hash(self.field.word(*name, "selection", *what), keys)
            return np.broadcast_to(state, shape)

        total: FieldArray | None = None
        for i in among:
            array, labels = self.labelled(i)
            here = [label for label in labels if label in factors]
            own = [label for label in labels if label not in factors]
            order = [labels.index(label) for label in (*here, *own)]
            sizes = [array.shape[d] for d in order]
            count = prod(sizes[len(here) :])
            if not count:
                continue
            rows = array.map(partial(_rows, order=order, shape=[*sizes[: len(here)], count]))
            at = (number("place", i) % np.uint64(count)).astype(np.int64)[..., None]

            def taken(part: Floats, here: Any = here, at: Any = at) -> Any:
                laid = self.laid(part, here, factors)
                return np.take_along_axis(np.broadcast_to(laid, (*shape, laid.shape[-1])), at, -1)[..., 0]

            found = rows.map(taken)
            total = found if total is None else choose(number("which", i) % np.uint64(2) == 0, found, total)
        final = self.call.results[self.result].shape
        if total is None:
            return self.field.full(final, 0)
        if others:
            total = choose(number("other") % np.uint64(2) == 0, total, self.field.from_hash(number("value")))
        return total.map(lambda part: part.reshape(final))

    def length(self, f: int) -> int:
        """Of a factor that passes: as the operands have it here, or as the result does."""
        there = any(f in dim for mapped in self.rule.operands for dim in mapped)
        return self.size(f) if there else self.own_size(f)

    def laid(self, part: Any, labels: Sequence[Any], factors: Sequence[int]) -> Any:
        """Dims in the order of the result's factors, 1 where they are absent; what follows them stays."""
        order = [labels.index(f) for f in factors if f in labels]
        rest = list(range(len(labels), part.ndim))
        part = part.transpose([*order, *rest])
        sizes = iter(part.shape)
        return part.reshape([next(sizes) if f in labels else 1 for f in factors] + [part.shape[d] for d in rest])

    # -- a product of operands, times a hash of the rest ---------------------------------------------------

    def multilinear(self, rows: Sequence[set[int]]) -> FieldArray:
        linear = sorted(set().union(*rows))
        rest = [i for i in range(len(self.operands)) if i not in linear and self.bears(i)]
        total: FieldArray | None = None
        for choice in sorted({tuple(sorted(set(pick))) for pick in product(*map(sorted, rows))}):
            if any(len(set(choice) & row) != 1 for row in rows):
                continue  # linear in one of each set, not in two
            term = self.product(choice, rest)
            total = term if total is None else self.field.add(total, term)
        assert total is not None
        return total

    def product(self, choice: tuple[int, ...], rest: Sequence[int]) -> FieldArray:
        terms = [self.labelled(i) for i in choice]
        arrays = [array for array, _ in terms]
        labels = [its for _, its in terms]
        if rest:
            mixed, its = self.mixed(rest, choice)
            arrays.append(mixed)
            labels.append(its)
        weight = self.weights(labels)
        if weight is not None:
            arrays.append(weight[0])
            labels.append(weight[1])
        scale = float(1 + self.field.word(*self.call.name(self.result), choice) % (self.field.p - 1))
        table = {row.operands: row.results for row in self.rule.transfers}
        falls = any(row.count("P(max)") == 1 and made[self.result] == "P(min)" for row, made in table.items())
        arrays[0] = self.field.scale(arrays[0], scale, -1.0 if falls and len(choice) == 1 else 1.0)
        return self.shaped(contract(self.field, arrays, labels, self.flat_target(labels)), labels)

    def labelled(self, i: int) -> tuple[FieldArray, list[Any]]:
        """An operand with one dim for each factor; whole factors are labelled as the operand's own."""
        mapped = self.rule.operands[i]
        array = _split(self.operands[i], mapped, self.rule)
        labels: list[Any] = []
        for f in (f for dim in mapped for f in dim):
            factor = self.rule.factors[f]
            labels.append(f if self.passes(f) and not factor.broadcast else ("own", f))
        keep = [d for d, label in enumerate(labels) if not self.is_one(label)]
        shape = [array.shape[d] for d in keep]
        return array.map(lambda part: part.reshape(shape)), [labels[d] for d in keep]

    def is_one(self, label: Any) -> bool:
        return isinstance(label, tuple) and self.rule.factors[label[1]].broadcast

    def mixed(self, rest: Sequence[int], choice: tuple[int, ...]) -> tuple[FieldArray, list[Any]]:
        """A hash of the operands that are never pending: along factors that pass, over all of the others."""
        order: list[int] = []
        for i in rest:
            for f in (f for dim in self.rule.operands[i] for f in dim):
                if f not in order and self.passes(f):
                    order.append(f)
        residues = []
        for i in rest:
            residues += self.spread(i, order)
        state = self.field.hash(self.field.word(*self.call.name(self.result), "rest", choice), residues)
        shape = [self.size(f) for f in order]
        made = self.field.from_hash(np.broadcast_to(state, shape) if state.shape != tuple(shape) else state)
        return made, list(order)

    def passes(self, f: int) -> bool:
        """Whether the hash may run along a factor: one that the result has, or sums over."""
        factor = self.rule.factors[f]
        if factor.whole or factor.permuted or factor.broadcast:
            return False
        return factor.form is None or f in self.rule.reduced  # a form that leaves a sum sums plainly

    def bears(self, i: int) -> bool:
        """Whether an operand bears on the result: not if it has a factor that is all the same to it."""
        inside = (f for dim in self.rule.operands[i] for f in dim if self.passes(f))
        return all(f in self.here or f in self.reduced for f in inside)

    def size(self, f: int) -> int:
        for i, mapped in enumerate(self.rule.operands):
            array = _split(self.operands[i], mapped, self.rule)
            flat = [g for dim in mapped for g in dim]
            if f in flat:
                return array.shape[flat.index(f)]
        raise AssertionError(f)

    def spread(self, i: int, order: Sequence[int]) -> list[Any]:
        """An operand's residues laid out along these factors, what lies in the other dims one after the other."""
        mapped = self.rule.operands[i]
        array = _split(self.operands[i], mapped, self.rule).residue
        flat = [f for dim in mapped for f in dim]
        own = [f for f in order if f in flat]
        rest = [f for f in flat if f not in own]
        moved = array.transpose([flat.index(f) for f in [*own, *rest]])
        count = int(np.prod(moved.shape[len(own) :], dtype=np.int64))
        rows = moved.reshape([*(moved.shape[: len(own)]), count])
        shape = [rows.shape[own.index(f)] if f in own else 1 for f in order]
        return [rows[..., j].reshape(shape) for j in range(rows.shape[-1])]

    def weights(self, labels: Sequence[Sequence[Any]]) -> tuple[FieldArray, list[Any]] | None:
        """Along whole factors every element of the operands bears on every element of the result."""
        given = [label for its in labels for label in its if isinstance(label, tuple)]
        given = list(dict.fromkeys(given))
        made = [f for dim in self.target for f in dim if self.mixes(f)]
        if not given and not made:
            return None
        sizes = [self.size(label[1]) for label in given] + [self.own_size(f) for f in made]
        places = np.arange(int(np.prod(sizes, dtype=np.int64)), dtype=np.float64).reshape(sizes)
        word = self.field.word(*self.call.name(self.result), "weights")
        weight = self.field.from_hash(self.field.hash(word, [places]))
        return weight, [*given, *(("made", f) for f in made)]

    def mixes(self, f: int) -> bool:
        factor = self.rule.factors[f]
        if factor.broadcast:
            return False
        return not self.passes(f) or (f in self.rule.new and (factor.whole or factor.permuted))

    def own_size(self, f: int) -> int:
        """The size of a factor in the result: a dim of its own, or a part of one."""
        shape = self.call.results[self.result].shape
        for d, dim in enumerate(self.target):
            if f in dim:
                others = [g for g in dim if g != f]
                size = shape[d]
                for g in others:
                    size //= max(self.rule.sizes[g], 1)
                return size
        raise AssertionError(f)

    def flat_target(self, labels: Sequence[Sequence[Any]]) -> list[Any]:
        known = {label for its in labels for label in its}
        target: list[Any] = []
        for f in (f for dim in self.target for f in dim):
            label: Any = ("made", f) if self.mixes(f) else f
            if label in known:
                target.append(label)
        return target

    def shaped(self, array: FieldArray, labels: Sequence[Sequence[Any]]) -> FieldArray:
        """The result's own shape: dims that no operand has are stretched."""
        known = {label for its in labels for label in its}
        shape: list[int] = []
        at = 0
        for f in (f for dim in self.target for f in dim):
            label: Any = ("made", f) if self.mixes(f) else f
            shape.append(array.shape[at] if label in known else 1)
            at += label in known
        wide = [
            size if label_known else self.own_size(f)
            for size, f, label_known in zip(
                shape,
                (f for dim in self.target for f in dim),
                ((("made", f) if self.mixes(f) else f) in known for dim in self.target for f in dim),
            )
        ]
        final = self.call.results[self.result].shape
        return array.map(lambda part: np.broadcast_to(part.reshape(shape), wide).reshape(final))

    # -- nothing is linear: hashes, summed or compared ------------------------------------------------------

    def of_hashes(self, extremes: set[str]) -> FieldArray:
        mixed, order = self.mixed([i for i in range(len(self.operands)) if self.bears(i)], ())
        for f, kind in self.reduced.items():
            if kind != "sum" and f in order:
                mixed = self.extreme(mixed, order.index(f), kind)
                order.remove(f)
        labels = [list(order)]
        arrays = [mixed]
        weight = self.weights(labels)
        if weight is not None:
            arrays.append(weight[0])
            labels.append(weight[1])
        return self.shaped(contract(self.field, arrays, labels, self.flat_target(labels)), labels)

    def extreme(self, array: FieldArray, axis: int, kind: str) -> FieldArray:
        sign = 1 if kind == "max" else -1
        if not array.shape[axis]:  # what every number beats
            shape = (*array.shape[:axis], *array.shape[axis + 1 :])
            return FieldArray(np.zeros(shape), np.full(shape, -sign * inf))
        at = np.expand_dims(np.argmax(sign * array.height, axis=axis), axis)
        return array.map(lambda part: np.take_along_axis(part, at, axis).squeeze(axis))


def _rows(part: Floats, order: Sequence[int], shape: Sequence[int]) -> Any:
    return part.transpose(order).reshape(shape)


def _split(array: FieldArray, mapped: Mapped, rule: OpShardingRule) -> FieldArray:
    """One dim for each factor: a dim of several is cut, its first factor taking what is left of the size here."""
    shape: list[int] = []
    for size, dim in zip(array.shape, mapped):
        inner = [rule.sizes[f] for f in dim[1:]]
        step = int(np.prod(inner, dtype=np.int64)) if inner else 1
        shape += [size // max(step, 1), *inner] if dim else []
    return array.map(lambda part: part.reshape(shape))


HANDLERS: dict[str, Handler] = {}
MEANINGS: dict[str, Handler] = {"same": same, "parts": in_parts, "by rule": by_rule}
