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
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from proofs import proofs_hold  # noqa: E402

from shardwright.discover.book.torch import made_ops, only_claims, written_ops  # noqa: E402
from shardwright.discover.book.torch_calls import AtenCall, Calls, calls_of, quiet  # noqa: E402
from shardwright.discover.book.torch_mesh import Split, computed  # noqa: E402
from shardwright.errors import RuleError, ShardwrightError  # noqa: E402
from shardwright.frontends.torch import capture, run_graph, tensor_type, torch_dtype  # noqa: E402
from shardwright.frontends.torch.parts import PARTS  # noqa: E402
from shardwright.frontends.torch.signatures import find_op, signature  # noqa: E402
from shardwright.ir.graph import Graph  # noqa: E402
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
    types_are_those_of_pytorch()
    some = sorted(every_call())[3::12]
    assert proofs_hold({op: every_call()[op][:2] for op in some}) > 100


@pytest.mark.long
def test_proofs() -> None:
    """No false alarm for any op."""
    assert proofs_hold(every_call()) > 4000


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


def narrow(call: AtenCall, name: str = "f32", only: int | None = None) -> AtenCall:
    """The same call in another type; with ``only`` one operand of it, the others in float32."""

    def cast(x: Any, dtype: Any) -> Any:
        if isinstance(x, list):
            return [cast(item, dtype) for item in x]
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else x

    attrs = {key: name if value == "f64" else value for key, value in call.attrs.items()}
    results = tuple(replace(result, dtype=name) if result.dtype == "f64" else result for result in call.results)
    wanted = [torch_dtype(name if only in (None, i) else "f32") for i in range(len(call.operands))]
    return AtenCall(call.op, attrs, tuple(map(cast, call.operands, wanted)), results, call.label)


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
                whole = computed(given)
                made = run_graph(parts_graph_of(given, whole), given.tensors)
            for found, expected in zip(made, whole, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-10 if given is call else 1e-4,
                                           atol=1e-10 if given is call else 1e-4, equal_nan=True)  # fmt: skip


def parts_graph_of(call: AtenCall, whole: Iterable[Any]) -> Graph:
    types = tuple(map(type_of, call.operands))
    inner = parts(call.op, tuple(sorted(call.attrs.items())), types, tuple(map(tensor_type, whole)))
    assert inner is not None
    return inner


HALF = [(name, only) for name in ("bf16", "f16") for only in (None, 0)]
"""All operands in a half type, or the first alone."""


UNLIKE = {"aten.hardtanh_backward"} if torch.__version__.startswith("2.11") else set()
"""Kernels that give another type on a CPU than PyTorch says beforehand."""


def types_are_those_of_pytorch() -> None:
    """What capture says of a call in half types, mixed ones too, is what PyTorch gives; so are the op's parts.

    But for one thing: an op is not held to a call that it refuses in these types.
    """
    tried, faults = 0, []
    for op, calls in every_call().items():
        for call, (name, only) in product(calls, HALF):
            given = narrow(call, name, only)
            with quiet():
                try:
                    whole = computed(given)
                except (RuntimeError, TypeError, ValueError, NotImplementedError):
                    continue
                if not any(made.numel() and made.is_floating_point() for made in whole):
                    continue
                try:
                    said = said_by_capture(given)
                except (ShardwrightError, RuntimeError):
                    continue
                if op in PARTS and asks_for_parts(given):
                    graph = parts_graph_of(given, whole)
                    assert [graph.type(v) for v in graph.outputs] == list(map(tensor_type, whole)), op
            tried += 1
            found = [made.dtype for made in whole]
            if said != found and op not in UNLIKE:
                faults.append(f"{op} {name} {only}: {said}, where PyTorch gives {found}")
    assert not faults, "\n".join(faults)
    assert tried > 2000


def said_by_capture(call: AtenCall) -> list[Any]:
    """The types of a call's results while it is captured."""
    form = signature(find_op(call.op))
    attrs = {key: value for key, value in call.attrs.items() if key != "absent"}

    def run(*tensors: Any) -> Any:
        return form.join(attrs)(call.filled(tensors))

    made = capture(run, *call.tensors).graph
    return [torch_dtype(made.type(value).dtype) for value in made.outputs]


def test_ops_with_parts_mean_their_parts() -> None:
    """An op that a rule's word stands for could not be proven where it is lowered to its parts."""
    assert not [op for op in PARTS if lookup(op).meaning == "by rule"]


def test_a_wrong_rule_is_noticed() -> None:
    """The check itself must bite: a cumulative sum over a dim that is split, as if it passed, gives other numbers."""
    x = torch.randn(6, 4, dtype=torch.float64)
    call = AtenCall("aten.cumsum", {"dim": 0, "dtype": None}, (x,), (tensor_type(x),))
    found = dict(Split(call, OpShardingRule.parse("i j -> i j | i=6 j=4")).check())
    assert [where for where, wrong in found.items() if wrong] == ["i/x=2", "i/x=3"]
