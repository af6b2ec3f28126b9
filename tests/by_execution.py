"""Check a rule by running the op: split one factor at a time, or leave operands pending, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from shardwright.rules import sharding_rule
from shardwright.spec.rule import OpShardingRule, Transfer

Array = np.ndarray[Any, Any]
Op = Callable[..., Any]
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
    "avg": lambda a, b: (a + b) / 2,
}


def text(op: str, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]], **attrs: Any) -> str:
    """The rule of a call, as printed; it must read back."""
    rule = sharding_rule(op, operands, results, attrs)
    assert OpShardingRule.parse(str(rule)) == rule
    return str(rule)


def check(op: str, run: Op, operands: Sequence[Array], ways: int = 2, **attrs: Any) -> tuple[list[str], list[str]]:
    """Run an op split along each factor that its rule lets split, and with each line of its transfer table.

    Returns what was tried: factors, and transfers by kind.
    """
    expected = _all(run(*operands))
    rule = sharding_rule(op, [a.shape for a in operands], [r.shape for r in expected], attrs)
    split = [rule.factors[f].name for f in range(len(rule.factors)) if _check_factor(rule, f, run, operands, ways)]
    moved = []
    for transfer in rule.transfers:
        for kind in COMBINE if "P(any)" in (*transfer.operands, *transfer.results) else [""]:
            check_transfer(transfer, kind, run, operands)
            moved.append(str(transfer).replace("any", kind))
    return split, moved


def _all(results: Any) -> list[Array]:
    return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]


def _check_factor(rule: OpShardingRule, f: int, run: Op, operands: Sequence[Array], ways: int) -> bool:
    factor = rule.factors[f]
    dims = [dim for tensor in rule.tensors for dim in tensor if f in dim]
    splittable = not (factor.whole or factor.permuted or factor.broadcast or factor.form)
    if not splittable or f in rule.new or factor.size % ways or any(dim[0] != f for dim in dims):
        return False
    parts = [_all(run(*local)) for local in zip(*(_cut(a, t, f, ways) for a, t in zip(operands, rule.operands)))]
    for r, (whole, mapped) in enumerate(zip(_all(run(*operands)), rule.results)):
        pieces = [part[r] for part in parts]
        kinds = dict(rule.reductions[r])
        at = _place(mapped, f)
        if at is not None:
            found = np.concatenate(pieces, at)
        elif f in kinds:
            found = reduce(COMBINE[kinds[f]], pieces)
        else:
            raise AssertionError(f"{rule}: result {r} neither has nor reduces {factor.name}")
        np.testing.assert_allclose(found, whole, rtol=1e-6, err_msg=f"{rule} split along {factor.name}")
    return True


def _place(mapped: Sequence[Sequence[int]], f: int) -> int | None:
    return next((d for d, dim in enumerate(mapped) if f in dim), None)


def _cut(array: Array, mapped: Sequence[Sequence[int]], f: int, ways: int) -> list[Array]:
    at = _place(mapped, f)
    return [array] * ways if at is None else np.split(array, ways, at)


def check_transfer(transfer: Transfer, kind: str, run: Op, operands: Sequence[Array]) -> None:
    """Make each pending operand from two random parts; what the op makes of the parts must combine likewise."""
    rng = np.random.default_rng(0)

    def named(states: Sequence[str]) -> Iterator[str | None]:
        return (None if state == "R" else kind if state == "P(any)" else state[2:-1] for state in states)

    parts = []
    for array, pending in zip(operands, named(transfer.operands)):
        if pending is None:
            parts.append((array, array, array))
            continue
        a, b = (rng.integers(-4, 5, array.shape) / 2 + 0.25 for _ in range(2))
        parts.append((a, b, COMBINE[pending](a, b)))
    first, second, whole = (_all(run(*side)) for side in zip(*parts))
    for r, pending in enumerate(named(transfer.results)):
        found = first[r] if pending is None else COMBINE[pending](first[r], second[r])
        np.testing.assert_allclose(found, whole[r], rtol=1e-6, atol=1e-12, err_msg=str(transfer))
