"""From tables to statements: templates, conditions, and what forces them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardwright.discover.analyse import factor_line
from shardwright.discover.calls.widen import widened
from shardwright.discover.emit.expression import value_of
from shardwright.discover.emit.source import as_many
from shardwright.discover.judging.oracle import check
from shardwright.discover.learn import state
from shardwright.discover.operator import Argument, NumpyLibrary, Operator, Sample, Slot
from shardwright.discover.statement import ShardedOn, Statement
from shardwright.discover.table import Table
from shardwright.errors import DiscoverError

X = Argument("x", True)
DIM = Argument("dim", False, 0, type="int")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def calls(shapes: list[tuple[int, ...]], inputs: int = 1, **swept: list[object]) -> list[Sample]:
    found = []
    for number, shape in enumerate(shapes):
        for values in itertools.product(*swept.values()):
            tensors = tuple(normal(*shape, seed=number + 7 * i) for i in range(inputs))
            kwargs = dict(zip(swept, values))
            found.append(Sample(tuple(map(Slot, range(inputs))), kwargs, tensors, ("data",) * inputs))  # type: ignore[arg-type]
    return found


def stated(call: object, samples: list[Sample], *arguments: Argument) -> Statement:
    operator = Operator("op", call, NumpyLibrary(), arguments)  # type: ignore[arg-type]
    tables: list[Table] = [check(operator, sample) for sample in samples]
    return state(operator, tables, [], _effort())


def _effort() -> object:
    from shardwright.discover.learn import QUICK

    return QUICK


def texts(statement: Statement) -> list[str]:
    return [str(rule) for rule in statement.rules]


def test_a_reduction_with_keepdim() -> None:
    def total(x: np.ndarray, dim: int = 0, keepdim: bool = False) -> np.ndarray:
        return x.sum(axis=dim, keepdims=keepdim)

    samples = calls([(4, 6), (2, 4, 6)], dim=[0, 1, -1], keepdim=[False, True])
    statement = stated(total, samples, X, DIM, Argument("keepdim", False, False, type="bool"))
    assert texts(statement) == [
        "R -> R",
        "S(d) -> P(sum) WHEN d == dim",
        "S(d) -> S(d without dim) WHEN not keepdim",
        "S(d) -> S(d) WHEN d != dim and keepdim",
        "P(sum) -> P(sum)",
    ]
    assert statement.category == "reduction"
    assert statement.leftover == ()
    agreed, cases = statement.held_out
    assert agreed == cases > 0
    forced = next(rule for rule in statement.rules if "keepdim" in str(rule) and "!=" in str(rule))
    assert any("without 'd != dim'" in text for text in forced.counterexamples)
    assert any("without 'keepdim'" in text for text in forced.counterexamples)


def test_the_sign_of_a_scalar() -> None:
    def scaled(x: np.ndarray, y: np.ndarray, alpha: float = 1.0) -> np.ndarray:
        return x + alpha * y

    samples = calls([(4, 6), (6,)], inputs=2, alpha=[1.0, 2.0, -1.5, -3.0])
    statement = stated(scaled, samples, X, Argument("y", True), Argument("alpha", False, 1.0, type="Scalar"))
    assert "R, P(max) -> P(max) WHEN alpha > 0" in texts(statement)
    assert "R, P(max) -> P(min) WHEN alpha < 0" in texts(statement)
    assert "S(d), S(d) -> S(d)" in texts(statement)
    assert statement.category == "pointwise"
    assert "linear in x and y together" in statement.properties


def test_a_word_as_condition() -> None:
    def reduced(x: np.ndarray, reduction: str = "sum") -> np.ndarray:
        return {"sum": x.sum(), "mean": x.mean(), "none": x}[reduction]

    samples = calls([(4, 6), (8,)], reduction=["sum", "mean", "none"])
    statement = stated(reduced, samples, X, Argument("reduction", False, "sum", type="str"))
    assert "S(d) -> P(sum) WHEN reduction == 'sum'" in texts(statement)
    assert "S(d) -> P(avg) WHEN reduction == 'mean'" in texts(statement)
    assert "S(d) -> S(d) WHEN reduction == 'none'" in texts(statement)


def test_dims_that_are_put_in_and_exchanged() -> None:
    inserted = stated(
        lambda x, dim=0: np.expand_dims(x, dim), calls([(4, 6), (2, 4, 6)], dim=[0, 1, 2, -1, -2]), X, DIM
    )
    assert "S(d) -> S(d beside dim)" in texts(inserted)
    assert inserted.inserts == 1
    swapped = stated(
        lambda x, dim0=0, dim1=1: np.swapaxes(x, dim0, dim1),
        calls([(4, 6), (2, 4, 6)], dim0=[0, 1], dim1=[1, -1]),
        X,
        Argument("dim0", False, 0, type="int"),
        Argument("dim1", False, 1, type="int"),
    )
    assert "S(d) -> S(d with dim0 and dim1 exchanged)" in texts(swapped)
    assert "moves elements without computing" in swapped.properties


def test_one_dim_or_none_is_spoken_of_in_one_way() -> None:
    """Along the dim that is named, or all in one; also where calls of another number of tensors never name none."""

    def doubled(x: np.ndarray, y: np.ndarray | None = None, dim: int | None = None) -> np.ndarray:
        return np.repeat(x if y is None else x * y, 2, axis=dim)

    alone = calls([(4, 6), (2, 4, 6), (8,)], dim=[0, 1, -1, None])
    both = calls([(4, 6), (2, 4, 6), (8,)], inputs=2, dim=[0, 1, -1])
    arguments = X, Argument("y", True, None, type="Tensor?"), Argument("dim", False, None, type="int?")
    statement = stated(
        doubled, [c for c in (*alone, *both) if c.kwargs["dim"] != 1 or c.tensors[0].ndim > 1], *arguments
    )
    rules = {str(rule) for rule in statement.every_rule}
    assert {"S(d) -> S(d) WHEN dim is one dim", "S(d) -> S(d) WHEN d == 0"} <= rules
    assert {"S(d), S(d) -> S(d) WHEN dim is one dim", "S(d), S(d) -> S(d) WHEN d == 0"} <= rules
    (one,) = (rule.conditions for rule in statement.every_rule if str(rule) == "S(d) -> S(d) WHEN dim is one dim")
    assert as_many("dim", [rule for rule in statement.every_rule if rule.conditions == one])


def test_the_last_dim_is_kept_where_rows_are_regrouped() -> None:
    """A batch of sequences as one list of rows, and back: what lies in a row may be sharded."""

    def regrouped(x: np.ndarray, size: list[int]) -> np.ndarray:
        return x.reshape(size)

    sizes = {
        (4, 6, 8): [[24, 8], [2, 2, 6, 8], [4, 48]],
        (12, 8): [[3, 4, 8], [8, 12], [12, 2, 4]],
        (6, 4): [[2, 3, 4]],
    }
    samples = [call for shape, found in sizes.items() for call in calls([shape], size=found)]
    statement = stated(regrouped, samples, X, Argument("size", False, type="int[]"))
    (rule,) = (rule for rule in statement.rules if "-k in size" in str(rule))
    assert str(rule) == "S(d) -> S(-k in size) WHEN d == last and size keeps the last size"
    assert rule.grade == "empty"
    (word,) = (term.dim.code for term in rule.outputs if isinstance(term, ShardedOn))
    assert value_of(word, {"d": 2, "rank": [3], "size": [24, 8]}) == 1
    asked = [{"d": 2, "rank": [3], "shape": [(4, 6, 8)], "size": size} for size in ([24, 8], [4, 48], [])]
    assert [all(value_of(c.code, known) for c in rule.conditions) for known in asked] == [True, False, False]


def test_broadcasting_needs_no_condition() -> None:
    pairs = [((4, 6), (4, 6)), ((4, 6), (6,)), ((4, 1), (1, 6)), ((4, 6), ()), ((6,), (2, 4, 6))]
    samples = [
        Sample((Slot(0), Slot(1)), {}, (normal(*a, seed=1), normal(*b, seed=2)), ("data", "data")) for a, b in pairs
    ]
    statement = stated(np.multiply, samples, X, Argument("y", True))
    assert "S(d), S(d) -> S(d)" in texts(statement)
    assert "bilinear in x and y" in statement.properties


def test_what_no_rule_covers_is_listed() -> None:
    """Valid only where a size happens to be 6: there is no word for that."""

    def odd(x: np.ndarray) -> np.ndarray:
        return x if x.shape[0] == 6 else np.cumsum(x, axis=0)

    statement = stated(odd, calls([(6, 4), (4, 6), (8, 4)]), X)
    assert "P(max) -> P(max) on [6, 4]" in statement.leftover


def test_what_the_calls_hide_is_found_by_the_attack() -> None:
    """No call at hand has three dims: the rule that they suggest is refuted on a fresh one, and narrowed."""

    def sneaky(x: np.ndarray) -> np.ndarray:
        return np.cumsum(x, axis=0) if x.ndim == 3 else x

    statement = stated(sneaky, calls([(4, 6), (6, 4), (8, 2), (5, 3)]), X)
    assert any("on [" in text for text in statement.refuted)
    agreed, cases = statement.held_out
    assert agreed == cases > 0
    for rule in statement.rules:
        if str(rule).startswith("S(d) -> S(d)"):
            assert any("ndim" in condition.text or "d !=" in condition.text for condition in rule.conditions)


@pytest.mark.parametrize(
    ("call", "shapes", "line"),
    [
        (np.add, [(4, 6), (4, 6)], "..., ... -> ..."),
        (np.matmul, [(4, 6), (6, 2)], "... a, a b -> ... b"),
        (np.matmul, [(2, 4, 6), (2, 6, 3)], "... a b, ... b c -> ... a c"),
        (lambda x: x.max(axis=0), [(4, 6)], "a b -> b ; a: max"),
        (lambda x: np.sort(x, axis=1), [(4, 6)], "... a -> ... a ; a: whole"),
        (np.transpose, [(4, 6)], "a b -> b a"),
        (np.outer, [(4,), (6,)], "..., a -> ... a"),
    ],
)
def test_factor_notation(call: object, shapes: list[tuple[int, ...]], line: str) -> None:
    tensors = tuple(normal(*shape, seed=i) for i, shape in enumerate(shapes))
    sample = Sample(tuple(map(Slot, range(len(tensors)))), {}, tensors, ("data",) * len(tensors))  # type: ignore[arg-type]
    assert factor_line(check(Operator("op", call, NumpyLibrary()), sample)) == line  # type: ignore[arg-type]


def test_calls_are_widened_by_kind_of_argument() -> None:
    def op(x: np.ndarray, dim: int = 0, keep: bool = False, scale: float = 1.0) -> np.ndarray:
        return x.sum(axis=dim, keepdims=keep) * scale

    arguments = (X, DIM, Argument("keep", False, False, type="bool"), Argument("scale", False, 1.0, type="float"))
    operator = Operator("op", op, NumpyLibrary(), arguments)
    (sample,) = calls([(4, 6)])
    found = [made.values(operator) for made in widened(operator, [sample], 20)]
    assert {-1, 0, 1} <= {values["dim"] for values in found}
    assert {True, False} == {values["keep"] for values in found}
    assert any(values["scale"] < 0 for values in found)


def test_expressions_are_read_without_eval() -> None:
    names = {"d": 2, "dim": (0, 1), "rank": [3, 2], "shape": [(4, 5, 6), (5, 6)], "p": float("inf")}
    assert value_of("d - max(rank) + rank[1]", names) == 1
    assert value_of("shape[1][d - 1] == 6 and not d in dim", names) is True
    assert value_of('p == float("inf")', names) is True
    for code in ("open('x')", "d.__class__", "[].append(1)", "lambda: 1"):
        with pytest.raises(DiscoverError, match="may not"):
            value_of(code, names)
    with pytest.raises(DiscoverError, match="reads 'q'"):
        value_of("q + 1", names)
