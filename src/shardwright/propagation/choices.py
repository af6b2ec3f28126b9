"""For one op: the strategies that its tensors' shardings suggest.

A strategy is axes for factors.  It has to be *legal*: whole and permuted factors are not split, a factor with
others below it in a dim is split evenly, parts of axes only where they divide, a minor factor only under a fully
split major one.  Operands may stay pending where the op's transfer table lets that through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import gcd, prod

from ..spec.axes import Axes, AxisRef, axes_size, merge_axes, prefix_without_overlap
from ..spec.factors import FactorSharding
from ..spec.mesh import DeviceMesh
from ..spec.rule import Mapped, OpShardingRule, Transfer
from ..spec.sharding import DimSpec, Partial, ShardingSpec, sort_partial
from .project import project

MOST_REMEMBERED = 50_000
MOST_PLACEMENTS = 64
"""How many placements of axes that lost their factor are looked at."""
FORM_PENDING = {"take": "sum", "take_along": "sum"}
"""Local forms that leave their result pending when their factor is split, and how."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One strategy of an op: what it needs of its operands and what it leaves in its results."""

    axes: tuple[Axes, ...]
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]

    def ways(self, rule: OpShardingRule) -> int:
        return prod(axes_size(axes) for axes in self.axes)


def legal_axes(rule: OpShardingRule, axes: Sequence[Axes]) -> tuple[Axes, ...]:
    """Cut back axes until every tensor of the op can be laid out so."""
    found = [() if _unsplittable(rule, f) else _fit(rule, f, axes[f]) for f in range(len(rule.factors))]
    changed = True
    while changed:
        changed = False
        for tensor in rule.tensors:
            for dim in tensor:
                full = True
                for f in dim:
                    if not full and found[f]:
                        found[f] = ()
                        changed = True
                    full = full and axes_size(found[f]) == rule.sizes[f]
    return tuple(found)


def _unsplittable(rule: OpShardingRule, f: int) -> bool:
    factor = rule.factors[f]
    return factor.broadcast or ((factor.whole or factor.permuted) and factor.form is None)


def _fit(rule: OpShardingRule, f: int, axes: Axes) -> Axes:
    """Major factors must divide; parts of axes too; whole axes may leave uneven shards on a minor-most one."""
    size = rule.sizes[f]
    minor_most = all(f not in dim or dim[-1] == f for tensor in rule.tensors for dim in tensor)
    kept: list[AxisRef] = []
    ways = 1
    for axis in axes:
        if size % (ways * axis.size) and not (minor_most and axis.is_whole):
            common = gcd(axis.size, size // ways) if size % ways == 0 else 1
            if common > 1:
                kept.append(AxisRef(axis.name, axis.pre, common, axis.full))
            break
        kept.append(axis)
        ways *= axis.size
    return tuple(kept)


def legal_spec(spec: ShardingSpec, shape: Sequence[int]) -> ShardingSpec:
    """A sharding with parts of axes only where they divide; whole axes may leave uneven shards."""
    dims = []
    for size, dim in zip(shape, spec.dims):
        kept: list[AxisRef] = []
        ways = 1
        for axis in dim.axes:
            if not axis.is_whole and size % (ways * axis.size):
                common = gcd(axis.size, size // ways) if ways and size % ways == 0 else 1
                if common > 1:
                    kept.append(AxisRef(axis.name, axis.pre, common, axis.full))
                break
            kept.append(axis)
            ways *= axis.size
        dims.append(DimSpec(merge_axes(kept)))
    return ShardingSpec.make(spec.mesh, tuple(dims), spec.partial)


def choices(
    rule: OpShardingRule,
    mesh: DeviceMesh,
    operands: Sequence[ShardingSpec],
    wanted: Sequence[ShardingSpec | None],
) -> list[Choice]:
    """The strategies that operands' shardings, and those wanted of results, suggest; each once."""
    key = (id(rule), mesh, *operands, *wanted)
    known = _offered.get(key)
    if known is not None:
        return known[1]
    found: dict[Choice, None] = {}
    for carried in _carried(rule, operands):
        busy = [axis for axis, _ in carried[0]]
        for axes in _suggested(rule, operands, wanted, busy):
            found[_choice(rule, mesh, axes, carried)] = None
    return _remember(key, rule, list(found))


def _remember(key: object, rule: OpShardingRule, found: list[Choice]) -> list[Choice]:
    if len(_offered) >= MOST_REMEMBERED:
        _offered.clear()
    _offered[key] = (rule, found)
    return found


_offered: dict[object, tuple[OpShardingRule, list[Choice]]] = {}
"""Equal layers ask alike.  Equal calls share one rule object; it is kept here, so that its identity stays its own."""


def forced_choices(
    rule: OpShardingRule, mesh: DeviceMesh, operands: Sequence[ShardingSpec], axes: Sequence[Axes]
) -> list[Choice]:
    """The strategies with these axes for factors: pending operands are let through where the transfer table allows it,
    or reduced first."""
    key = ("forced", id(rule), mesh, tuple(axes), *operands)
    known = _offered.get(key)
    if known is not None:
        return known[1]
    legal = legal_axes(rule, axes)
    used = [axis for given in legal for axis in given]
    found = [
        _choice(rule, mesh, legal, carried)
        for carried in _carried(rule, operands)
        if not any(axis.excludes(other) for axis, _ in carried[0] for other in used)
    ]
    return _remember(key, rule, found)


Carried = tuple[Partial, tuple[Partial, ...], tuple[Partial, ...]]
"""Pending axes that are let through: all of them, then for each operand, then for each result."""


def _carried(rule: OpShardingRule, operands: Sequence[ShardingSpec]) -> list[Carried]:
    """Reduce everything first, or let through all that the transfer table allows."""
    none: Carried = ((), tuple(() for _ in operands), tuple(() for _ in rule.results))
    pending = sorted({pair for spec in operands for pair in spec.partial})
    through: Partial = ()
    at_operands: list[list[tuple[AxisRef, str]]] = [[] for _ in operands]
    at_results: list[list[tuple[AxisRef, str]]] = [[] for _ in rule.results]
    for axis, kind in pending:
        states = tuple(f"P({kind})" if (axis, kind) in spec.partial else "R" for spec in operands)
        row = find_transfer(rule.transfers, states, kind)
        clash = any(other.overlaps(axis) and k != kind for other, k in pending if (other, k) != (axis, kind))
        if row is None or clash or any(axis.excludes(other) for other, _ in through):
            continue
        through += ((axis, kind),)
        for i, state in enumerate(states):
            if state != "R":
                at_operands[i].append((axis, kind))
        for r, state in enumerate(row.results):
            if state != "R":
                at_results[r].append((axis, kind if state == "P(any)" else state[2:-1]))
    if not through:
        return [none]
    return [(through, tuple(map(tuple, at_operands)), tuple(map(tuple, at_results))), none]


def find_transfer(rows: Iterable[Transfer], states: tuple[str, ...], kind: str) -> Transfer | None:
    """The line of a transfer table that fits; ``P(any)`` fits every kind."""
    for row in rows:
        if tuple(f"P({kind})" if state == "P(any)" else state for state in row.operands) == states:
            return row
    return None


def _suggested(
    rule: OpShardingRule,
    operands: Sequence[ShardingSpec],
    wanted: Sequence[ShardingSpec | None],
    busy: Sequence[AxisRef],
) -> list[tuple[Axes, ...]]:
    """Let each tensor lead in turn: its axes first, then whatever the others add without conflict."""
    count = len(rule.operands)
    known: list[tuple[Mapped, dict[int, Axes]]] = []
    for t, (mapped, spec) in enumerate(zip(rule.tensors, [*operands, *wanted])):
        if spec is not None:
            factors = project(mapped, spec, rule.sizes).factors
            known.append((mapped, {f: factor.axes for f, factor in factors.items()}))
        elif t >= count:
            known.append((mapped, {}))
    found: dict[tuple[Axes, ...], None] = {}
    for lead in range(len(known)):
        found[legal_axes(rule, _fill(rule, [known[lead]], busy, True))] = None  # the leader's alone
        order = [known[lead], *known[count:], *known[:count]]
        for share in (True, False):
            axes = _fill(rule, order, busy, share)
            legal = legal_axes(rule, axes)
            found[legal] = None
            found.update(dict.fromkeys(_elsewhere(rule, axes, legal)))
    found[((),) * len(rule.factors)] = None
    return list(found)


def _elsewhere(rule: OpShardingRule, axes: Sequence[Axes], legal: tuple[Axes, ...]) -> list[tuple[Axes, ...]]:
    """Axes that a factor cannot keep may split another one that passes through: work stays divided."""
    lost = [axis for f in range(len(axes)) for axis in axes[f] if axis not in legal[f]]
    kept = [axis for given in legal for axis in given]
    lost = [axis for axis in lost if not any(axis.excludes(other) for other in kept)]
    if not lost:
        return []
    places = [
        f
        for f, passes in enumerate(rule.pass_through)
        if passes and not rule.factors[f].broadcast and rule.sizes[f] > 1
    ]
    found = []
    for chosen in islice(product([*places, None], repeat=len(lost)), MOST_PLACEMENTS):
        moved = list(legal)
        for axis, f in zip(lost, chosen):
            if f is not None:
                moved[f] = merge_axes((*moved[f], axis))
        fitted = legal_axes(rule, moved)
        if fitted != legal:
            found.append(fitted)
    return found


def _fill(
    rule: OpShardingRule, order: Sequence[tuple[Mapped, dict[int, Axes]]], busy: Sequence[AxisRef], share: bool
) -> list[Axes]:
    """The axes of all tensors as one strategy, the leader's first; with ``share`` the others may also split factors
    that the leader has but leaves whole."""
    axes: list[Axes] = [()] * len(rule.factors)
    used = list(busy)
    fixed = set() if share else {f for dim in order[0][0] for f in dim}
    for place, (_, factors) in enumerate(order):
        for f, given in factors.items():
            if axes[f] or (place > 0 and f in fixed):
                continue
            kept: list[AxisRef] = []
            for axis in given:
                clear = prefix_without_overlap(axis, used)
                if clear is not None:
                    kept.append(clear)
                if clear != axis:
                    break
            axes[f] = tuple(kept)
            used += kept
    return axes


def _choice(rule: OpShardingRule, mesh: DeviceMesh, axes: tuple[Axes, ...], carried: Carried) -> Choice:
    split = FactorSharding(rule, mesh, axes)
    operands = tuple(_with(spec, extra, mesh) for spec, extra in zip(split.operand_specs, carried[1]))
    formed: Partial = tuple(
        (axis, FORM_PENDING[factor.form])
        for f, factor in enumerate(rule.factors)
        if factor.form in FORM_PENDING and axes[f]
        for axis in axes[f]
    )
    results = tuple(_with(spec, extra + formed, mesh) for spec, extra in zip(split.result_specs, carried[2]))
    return Choice(axes, operands, results)


def _with(spec: ShardingSpec, extra: Partial, mesh: DeviceMesh) -> ShardingSpec:
    if not extra:
        return spec
    return ShardingSpec.make(mesh, spec.dims, sort_partial((*spec.partial, *extra), mesh))
