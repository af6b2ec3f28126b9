"""Every rule of the ATen book, run: whatever factor is split, however unevenly, the result equals the whole.

For each op that has a record, written down or made from tags and schema, calls are taken from programs: PyTorch's own
samples captured with their gradients (`discover.book.torch_calls`).  Each factor is split on meshes of two and three
devices by the lowered program, local forms included; each line of a transfer table is held against the oracle.  A
record without calls fails; there are no exceptions.  ``shardwright discover --book torch`` does the same on more
calls, and says what holds beyond the book.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from shardwright.discover.book.torch import made_ops, only_claims, written_ops  # noqa: E402
from shardwright.discover.book.torch_calls import AtenCall, Calls, calls_of, quiet  # noqa: E402
from shardwright.discover.book.torch_mesh import Split, computed  # noqa: E402
from shardwright.errors import RuleError  # noqa: E402
from shardwright.frontends.torch import run_graph, tensor_type  # noqa: E402
from shardwright.frontends.torch.parts import PARTS  # noqa: E402
from shardwright.rules.registry import lookup, parts  # noqa: E402
from shardwright.spec.rule import OpShardingRule  # noqa: E402


@cache
def every_call() -> Calls:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors want none
    try:
        return calls_of([*written_ops(), *made_ops()], each=2, drawn=4)
    finally:
        torch.set_num_threads(threads)


def test_rules_by_execution() -> None:
    """Of every op: in one test, since its calls take a minute and a half to collect."""
    missing = [op for op, calls in every_call().items() if not calls]
    assert not missing, f"no calls of {', '.join(missing)}"
    for ops in (written_ops(), made_ops()):
        claims_hold(ops)
    for op in sorted(PARTS):
        parts_are_the_op(op)


def claims_hold(ops: Iterable[str]) -> None:
    faults = {}
    runs = 0
    for op in ops:
        calls = every_call()[op]
        found = only_claims(op, calls)
        runs += found.splits + found.rows
        if found.wrong:
            faults[op] = found.wrong[:3]
    assert not faults, "\n".join(f"{op}: {line}" for op, lines in faults.items() for line in lines)
    assert runs > 500


def narrow(call: AtenCall) -> AtenCall:
    """The same call in float32."""

    def cast(x: Any) -> Any:
        if isinstance(x, list):
            return [cast(item) for item in x]
        return x.float() if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else x

    attrs = {name: "f32" if value == "f64" else value for name, value in call.attrs.items()}
    results = tuple(replace(result, dtype="f32") if result.dtype == "f64" else result for result in call.results)
    return AtenCall(call.op, attrs, tuple(map(cast, call.operands)), results, call.label)


def type_of(operand: Any) -> Any:
    if isinstance(operand, list):
        return tuple(map(tensor_type, operand))
    return None if operand is None else tensor_type(operand)


def asks_for_parts(call: AtenCall) -> bool:
    """Whether its rule has a factor that is split in parts: not of a dim without elements, or of other reductions."""
    shapes = [tuple(tensor.shape) for tensor in call.tensors]
    try:
        rule = lookup(call.op).bind(shapes, [result.shape for result in call.results], call.attrs, call.slots)
    except RuleError:  # a call that the record does not cover: it runs replicated
        return False
    return any(factor.form == "parts" for factor in rule.factors)


def parts_are_the_op(op: str) -> None:
    """What an op is said to be made of computes what it computes, in both precisions."""
    calls = [call for call in every_call().get(op) or calls_of([op])[op] if asks_for_parts(call)]
    assert calls, f"no calls of {op}"
    for call in calls:
        for given in (call, narrow(call)):
            with quiet():
                types = tuple(map(type_of, given.operands))
                inner = parts(op, tuple(sorted(given.attrs.items())), types)
                assert inner is not None
                made = run_graph(inner, given.tensors)
                whole = computed(given)
            for found, expected in zip(made, whole, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-10 if given is call else 1e-4,
                                           atol=1e-10 if given is call else 1e-4, equal_nan=True)  # fmt: skip


def test_a_wrong_rule_is_noticed() -> None:
    """The check itself must bite: a cumulative sum over a dim that is split, as if it passed, gives other numbers."""
    x = torch.randn(6, 4, dtype=torch.float64)
    call = AtenCall("aten.cumsum", {"dim": 0, "dtype": None}, (x,), (tensor_type(x),))
    found = dict(Split(call, OpShardingRule.parse("i j -> i j | i=6 j=4")).check())
    assert [where for where, wrong in found.items() if wrong] == ["i/x=2", "i/x=3"]
