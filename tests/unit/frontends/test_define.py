"""`op`: operands and attributes, results found or said, samples, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shardwright.errors import RuleError, TraceError, UnknownOpError, VerifyError
from shardwright.frontends.numpy import Sample, ShapeDtype, op, run_graph, trace
from shardwright.frontends.numpy.define import forget_op
from shardwright.frontends.numpy.samples import SAMPLES
from shardwright.numpy import check_op
from shardwright.rules import lookup
from shardwright.spec.op_record import Flow

NAME = "test.mine"


@pytest.fixture(autouse=True)
def book() -> Iterator[None]:
    yield
    forget_op(NAME)


def define(fn: Any, rule: str = "... -> ...", samples: Any = ("n m",), **about: Any) -> Any:
    return op(NAME, rule=rule, samples=samples, **about)(fn)


def types(fn: Any, *args: Any) -> list[str]:
    """Of the results of the op's node."""
    graph = trace(fn, *args).graph
    (node,) = (node for node in graph.nodes if node.op == NAME)
    return [str(type) for type in graph.types(node.results)]


def test_results_are_found_by_tracing() -> None:
    """No memory is taken: these arrays have 10^16 elements."""
    fn = define(lambda x, y: x @ y + np.sum(x), "i k, k j -> i j ; k: whole", [("n 3", "3 m")])
    large = ShapeDtype((10**8, 10**8), np.float32)
    assert types(fn, large, large) == ["f32[100000000, 100000000]"]


def test_results_are_found_by_computing() -> None:
    fn = define(lambda x: np.fft.fft(x, axis=1), "i j -> i j ; j: whole")
    assert types(fn, ShapeDtype((3, 4))) == ["c128[3, 4]"]
    with pytest.raises(TraceError, match=r"(?s)operands this large.*results=lambda"):
        trace(fn, ShapeDtype((10**5, 10**5)))


def test_results_are_said() -> None:
    fn = define(lambda x: np.fft.fft(x, axis=1), "i j -> i j ; j: whole", results=lambda x: (x.shape, "c16"))
    assert types(fn, ShapeDtype((10**5, 10**5))) == ["c128[100000, 100000]"]


def test_several_results() -> None:
    fn = define(lambda x: (np.sort(x, 0), np.argsort(x, 0)), "i j -> i j, i j ; i: whole")
    x = np.array([[3.0, 1.0], [2.0, 5.0]])
    traced = trace(lambda x: fn(x)[1] + 1, x)
    np.testing.assert_array_equal(traced(x), np.argsort(x, 0) + 1)
    assert check_op(NAME).splits == 1


def test_lists_and_absent_operands() -> None:
    def joined(parts: Any, bias: Any = None) -> Any:
        made = np.concatenate(parts, axis=0)
        return made if bias is None else made + bias

    samples = [Sample(lambda x, y: fn([x, y]), ("n m", "3 m"))]
    fn = define(joined, "i j, k j -> n j ; i: whole ; k: whole ; n: new whole", samples)
    x, y = np.ones((2, 3)), np.zeros((1, 3))
    np.testing.assert_array_equal(fn([x, y]), [[1] * 3, [1] * 3, [0] * 3])
    np.testing.assert_array_equal(trace(lambda x, y: fn([x, y]), x, y)(x, y), fn([x, y]))


def test_attributes_are_part_of_the_program() -> None:
    def powered(x: Any, *, power: int = 2, words: tuple[str, ...] = ()) -> Any:
        return x**power

    fn = define(powered)
    x = np.arange(3.0)
    traced = trace(lambda x: fn(x, power=3), x)
    assert dict(traced.graph.nodes[0].attrs) == {"power": 3, "words": ()}
    np.testing.assert_array_equal(run_graph(traced.graph, [x])[0], x**3)
    with pytest.raises(TraceError, match=r"power= of op 'test.mine' is a traced value"):
        trace(lambda x: fn(x, power=x), x)


def test_numbers_are_arrays_of_their_own_dtype() -> None:
    """In a program and outside of it alike."""
    fn = define(lambda x, y: x * y, "i, () -> i", [("n", "")])
    x = np.ones(3, np.float32)
    assert fn(x, 2.0).dtype == trace(lambda x: fn(x, 2.0), x)(x).dtype == np.float64


def test_the_record() -> None:
    def square(x: Any) -> Any:
        """The square."""
        return x * x

    fn = define(square, cost="pointwise")
    record = lookup(NAME)
    assert (record.flow, record.doc, record.meaning) == (Flow.POINTWISE, "The square.", "by rule")
    assert fn.__name__ == "square"
    with pytest.raises(RuleError, match="stands in the rule book already"):
        define(square)
    define(square, samples=[(4, 4), "n"], cost="matmul", replace=True)
    assert (lookup(NAME).cost, [sample.shapes for sample in SAMPLES[NAME]]) == ("matmul", [("4 4",), ("n",)])


@pytest.mark.parametrize(
    ("fn", "about", "fact"),
    [
        (lambda x: x, {"samples": []}, "op 'test.mine' has no samples"),
        (lambda x, axis=0: x, {}, r"(?s)'axis' of op 'test.mine' is an operand, but.*after a star: .*\*, axis=0"),
        (lambda x: x, {"rule": "i -> j"}, "factor 'j' appears on the right"),
    ],
)
def test_what_is_refused(fn: Any, about: dict[str, Any], fact: str) -> None:
    with pytest.raises(RuleError, match=fact):
        define(fn, **about)
    with pytest.raises(UnknownOpError):
        lookup(NAME)


def test_a_name_in_a_meaning_must_be_a_function() -> None:
    define(lambda x: np.sin(x) + 1, meaning=lambda a, x: a.apply("nothing", x))
    with pytest.raises(RuleError, match="applies 'nothing', which is no function of NumPy"):
        check_op(NAME)


def test_a_meaning_must_have_as_many_results() -> None:
    define(lambda x: np.sin(x), meaning=lambda a, x: (a.apply(np.sin, x), x))
    with pytest.raises(VerifyError, match="has 2 results, the function 1"):
        check_op(NAME)


def test_a_table_of_pending_reductions_is_checked() -> None:
    define(lambda x: x + 1, "... -> ... ; P(sum) -> P(sum)", meaning=lambda a, x: a.add(x, 1))
    with pytest.raises(VerifyError, match="claims what does not hold"):
        check_op(NAME)
