"""Operators as their authors write them get rules that hold under the independent check, and those that are known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from brute_force import Call, Subject, calls_of_overload, check_statement  # noqa: E402
from own_operators import OWN  # noqa: E402
from shardwright.discover import QUICK, discover  # noqa: E402
from shardwright.discover.learn import SURVEY, study  # noqa: E402
from shardwright.discover.operator import REQUIRED, Argument, NumpyLibrary, Operator  # noqa: E402
from shardwright.discover.statement import Statement  # noqa: E402
from shardwright.discover.torch.own import torch_operator_of, written_call  # noqa: E402

KNOWN = {
    "linear_and_one": ["S(d), R -> S(d) WHEN d == ndim-2", "P(avg), R -> P(avg)", "R, P(avg) -> P(avg)"],
    "rolled": ["S(d) -> S(d) WHEN d not in dims", "P(max) -> P(max)"],
    "scaled": ["S(d), S(d) -> S(d)", "P(sum), R -> P(sum)", "R, P(sum) -> P(sum)", "P(prod), P(prod) -> P(prod)"],
    "by_keyword": ["S(d), S(d) -> S(d)", "P(sum), P(sum) -> P(sum)", "R, P(max) -> P(max) WHEN times > 0"],
    "decayed_": ["S(d) -> S(d)", "P(sum) -> P(sum)"],
    "weighted": ["S(d), S(d) -> S(d)", "P(sum), P(sum) -> P(sum)", "R, P(max) -> P(max) WHEN factor > 0"],
    "scanned": ["S(d) -> S(d) WHEN d != dim", "P(sum) -> P(sum)"],
    "standardised": ["S(d) -> S(d) WHEN d != along"],
    "softplus_of_arrays": ["S(d) -> S(d)", "P(max) -> P(max)", "P(min) -> P(min)"],
}
"""Rules that an author would miss."""


def stated(name: str, effort: Any) -> Statement:
    found = OWN[name]
    if not found.numpy:
        (statement,) = discover(found.call, effort, calls=found.calls)
        return statement
    operator = of_arrays(name)
    return study(operator, [written_call(operator, text) for text in found.calls], effort)


def of_arrays(name: str) -> Operator:
    parameters = inspect.signature(OWN[name].call).parameters.values()
    arguments = (Argument(p.name, p.default is p.empty, REQUIRED if p.default is p.empty else p.default)
                 for p in parameters)  # fmt: skip
    return Operator(name, OWN[name].call, NumpyLibrary(), tuple(arguments))


def of_tensors(function: Callable[..., Any], numpy: bool) -> Callable[..., Any]:
    if not numpy:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        arrays = [a.numpy() if isinstance(a, torch.Tensor) else a for a in args]
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.array(function(*arrays, **kwargs)))

    return call


def checked(name: str, effort: Any, draws: int) -> tuple[Statement, Any]:
    statement = stated(name, effort)
    found = OWN[name]
    signature = inspect.signature(getattr(found.call, "_init_fn", found.call))
    parameters = signature.parameters.values()
    keyword = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    defaults = {a.name: a.default for a in statement.operator.arguments if a.default is not REQUIRED}
    operator = of_arrays(name) if found.numpy else torch_operator_of(found.call)
    overload = statement.operator.overload
    one_call = overload.startswith("aten.")  # it is studied as the ATen overload that it calls
    bases: list[Call] = []
    for text in found.calls:
        sample = written_call(operator, text)
        args, kwargs = sample.fill([torch.from_numpy(array) for array in sample.tensors])
        if one_call:
            bases += calls_of_overload(found.call, args, kwargs, overload)
        else:
            bases.append(Call({**defaults, **dict(zip(names, args)), **kwargs}))
    # Results in the order of the operator's own arguments, as discovery takes them.
    written = statement.operator.mutates
    call = of_tensors(found.call, found.numpy)
    if one_call:
        call, names = statement.operator.call, [a.name for a in statement.operator.arguments if not a.keyword_only]
        keyword = [a.name for a in statement.operator.arguments if a.keyword_only]
    subject = Subject(call, names, keyword, written)
    return statement, check_statement(statement, subject, bases, defaults, "own", draws=draws, complete=2)


@pytest.mark.parametrize("name", ["scaled", "decayed_"])
def test_some_own_operators_have_no_false_rule(name: str) -> None:
    statement, found = checked(name, SURVEY, 150)
    assert found.false == []
    assert set(KNOWN[name]) <= {str(rule) for rule in statement.rules}


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_an_own_operator_has_no_false_rule(name: str) -> None:
    statement, found = checked(name, QUICK, 500)
    assert found.calls
    assert found.false == []
    assert set(KNOWN.get(name, ())) <= {str(rule) for rule in statement.rules}


def test_there_are_twenty_of_them() -> None:
    assert len(OWN) >= 20
