"""Views: ops that move no data, only the names of dims.  Every pending reduction passes through them."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, lcm

from ..errors import RuleError
from ..spec.op_record import Call, Flow
from ..spec.rule import Factor, OpShardingRule, Transfer, factor_name
from ..spec.sharding import Shape
from .dims import ANY, write
from .registry import rule

PASSES = (Transfer(("P(any)",), ("P(any)",)),)


@rule("transpose", flow=Flow.VIEW, cost="view", meaning="view", view=True)
def transpose(call: Call) -> str:
    """Attribute ``permutation``; without one the dims are reversed."""
    rank = len(call.operands[0])
    order = call.attr("permutation")
    order = range(rank)[::-1] if order is None else [d % rank for d in order]
    if sorted(order) != list(range(rank)):
        raise RuleError(f"{list(order)} is no order of {rank} dims")
    names = [factor_name(d) for d in range(rank)]
    return write([names], [[names[d] for d in order]], transfers=[ANY])


@rule("broadcast_in_dim", flow=Flow.BROADCAST, cost="view", meaning="view", view=True)
def broadcast_in_dim(call: Call) -> str:
    """Operand dim i becomes result dim ``broadcast_dimensions[i]``; the others are new."""
    (shape,), (result,) = call.operands, call.results
    dims = call.attr("broadcast_dimensions")
    dims = tuple(range(len(result) - len(shape), len(result))) if dims is None else tuple(dims)
    names = [factor_name(d) for d in range(len(result))]
    # A 1 that is stretched is not the same factor.
    operand = [names[d] if size == result[d] else "1" for size, d in zip(shape, dims)]
    return write([operand], [names], {name: "new" for name in names if name not in operand}, [ANY])


@rule("broadcast_to", flow=Flow.BROADCAST, cost="view", meaning="view", view=True)
def broadcast_to(call: Call) -> str:
    """NumPy's: aligned at the right."""
    return broadcast_in_dim(Call(call.operands, call.results))


@rule("reshape", flow=Flow.VIEW, cost="view", meaning="view", view=True)
def reshape(call: Call) -> OpShardingRule:
    """See `reshape_rule`."""
    return reshape_rule(call.operands[0], call.results[0])


for _name in ("squeeze", "expand_dims", "flatten"):
    rule(_name, reshape, flow=Flow.VIEW, cost="view", meaning="view", view=True)


def reshape_rule(shape: Shape, result: Shape) -> OpShardingRule:
    """Walk both shapes from the major end and name what they have in common.

    As long as both sides stand at the same offset, the greatest common divisor of what is left of the two
    dims is a shared factor.  Where it is 1 the sides part: each then takes factors of its own, just enough to
    meet again at the next common offset.  Dims of size 1 always have a factor of their own.

    >>> print(reshape_rule((8, 4, 5), (2, 16, 5)).pattern)
    (i j) k l -> i (j k) l ; P(any) -> P(any)
    >>> print(reshape_rule((6, 35), (14, 15)).pattern)
    (i j) (l n) -> (i k) (m n) ; j: whole ; l: whole ; k: new whole ; m: new whole ; P(any) -> P(any)
    """
    return _Walk(shape, result).rule()


class _Walk:
    def __init__(self, shape: Shape, result: Shape) -> None:
        self.factors: list[Factor] = []
        self.sides = (_Side(shape), _Side(result))

    def rule(self) -> OpShardingRule:
        left, right = self.sides
        if 0 in left.shape or 0 in right.shape:
            self.all_apart()
        while not (left.done and right.done):
            if self.ones():
                continue
            common = gcd(left.rest, right.rest)
            if common > 1:
                f = self.factor(common)
                left.take(f, common)
                right.take(f, common)
            else:
                self.part()
        order = _by_first_use(left.mapped, right.mapped)
        rename = {old: new for new, old in enumerate(order)}
        factors = tuple(_read_back(self.factors[old], new) for new, old in enumerate(order))
        operand, target = (tuple(tuple(rename[f] for f in dim) for dim in side.mapped) for side in (left, right))
        return OpShardingRule(factors, (operand,), (target,), ((),), PASSES)

    def factor(self, size: int, apart: bool = False) -> int:
        """A factor that only one side has cannot be split, unless it is a mere 1."""
        name = factor_name(len(self.factors))
        self.factors.append(Factor(name, size, whole=apart and size != 1, broadcast=apart and size == 1))
        return len(self.factors) - 1

    def ones(self) -> bool:
        """Dims of size 1 at the current place."""
        for side in self.sides:
            if not side.done and side.shape[side.dim] == 1:
                side.take(self.factor(1, apart=True), 1)
                return True
        return False

    def part(self) -> None:
        """Give each side its own factors until they meet again."""
        offsets = [1, 1]
        for s, side in enumerate(self.sides):
            size = side.rest
            side.take(self.factor(size, apart=True), size)
            offsets[s] *= size
        while offsets[0] != offsets[1]:
            meet = lcm(*offsets)
            s = 0 if offsets[0] <= offsets[1] and offsets[0] != meet else int(offsets[1] != meet)
            side = self.sides[s]
            if side.shape[side.dim] == 1:
                side.take(self.factor(1, apart=True), 1)
                continue
            size = gcd(side.rest, meet // offsets[s])
            size = size if size > 1 else side.rest
            side.take(self.factor(size, apart=True), size)
            offsets[s] *= size

    def all_apart(self) -> None:
        """No elements: nothing in common to speak of."""
        for side in self.sides:
            while not side.done:
                size = side.shape[side.dim]
                side.take(self.factor(size, apart=True), size)


class _Side:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.dim = 0
        self.rest = shape[0] if shape else 1
        self.mapped: list[list[int]] = [[] for _ in shape]

    @property
    def done(self) -> bool:
        return self.dim == len(self.shape)

    def take(self, factor: int, size: int) -> None:
        self.mapped[self.dim].append(factor)
        self.rest = self.rest // size if size else 1
        if self.rest == 1:
            self.dim += 1
            self.rest = 1 if self.done else self.shape[self.dim]


def _read_back(factor: Factor, place: int) -> Factor:
    """A ``1`` has no name in the text of a rule; give it the one it gets when that is read."""
    return replace(factor, name=f"one{place}") if factor.broadcast else factor


def _by_first_use(*sides: list[list[int]]) -> list[int]:
    order: list[int] = []
    for side in sides:
        for dim in side:
            order += [f for f in dim if f not in order]
    return order
