"""What the tests of frontends share: a traced function must do what the function does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardwright.errors import TraceError
from shardwright.frontends.numpy import ShapeDtype, Traced, trace
from shardwright.frontends.numpy.kernels import KERNELS
from shardwright.frontends.numpy.trees import flatten, unflatten
from shardwright.ir.graph import Graph

Agree = Callable[..., Traced]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """An array of the kind, with negative numbers where there are such."""
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return np.asarray(random.integers(-5 if kind == "i" else 0, 9, shape)).astype(dtype)
    made = random.normal(size=shape) * 2
    return np.asarray(made + 1j * random.normal(size=shape) if kind == "c" else made).astype(dtype)


def same(found: Any, expected: Any, close: float = 0.0) -> None:
    """Equal in dtype, shape and every number; ``close`` is for what NumPy adds up in another order."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if close:
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)
    else:
        np.testing.assert_array_equal(found, expected)


def _without_arrays(args: Any) -> Any:
    leaves, tree = flatten(args)
    return unflatten(
        tree, [leaf if isinstance(leaf, np.generic) else ShapeDtype(leaf.shape, leaf.dtype) for _, leaf in leaves]
    )


def _agree(fn: Callable[..., Any], *args: Any, close: float = 0.0, quick: bool = False) -> Traced:
    """Trace, evaluate and compare; the graph must not depend on numbers and must survive being written down."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fn(*copy.deepcopy(args))
        traced = trace(fn, *args)
        found = traced(*args)
    found_leaves, found_tree = flatten(found)
    expected_leaves, expected_tree = flatten(_arrays(expected))
    assert found_tree == expected_tree
    for (_, left), (_, right) in zip(found_leaves, expected_leaves):
        same(left, right, close)
    if quick:
        return traced
    graph = traced.graph
    assert {node.op for node in graph.nodes} <= set(KERNELS)
    assert Graph.parse(str(graph)) == graph
    assert Graph.from_json(graph.to_json()) == graph
    assert _ops(trace(fn, *_without_arrays(args)).graph) == _ops(graph)
    return traced


def _ops(graph: Graph) -> Any:
    """A graph without the lines it comes from."""
    return graph.values, [replace(node, source=None) for node in graph.nodes], graph.inputs, graph.outputs


def _arrays(result: Any) -> Any:
    """A few functions return Python's numbers, which count as arrays here."""
    return np.asarray(result) if type(result) in (bool, int, float) else result


def _agree_or_fail(fn: Callable[..., Any], *args: Any, close: float = 0.0, quick: bool = False) -> Traced | None:
    """As `agree`; and what NumPy refuses must be refused, with the same kind of error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fn(*copy.deepcopy(args))
    except Exception as error:
        kind = next(k for k in (TypeError, ValueError, IndexError, OverflowError, Exception) if isinstance(error, k))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises((kind, TraceError)) as caught:
                trace(fn, *args)(*args)
        # What NumPy says is told with its place in the user's program, the error itself behind it.
        assert isinstance(caught.value, kind) or isinstance(caught.value.__cause__, kind)
        return None
    return _agree(fn, *args, close=close, quick=quick)


@pytest.fixture(name="agree")
def agree_fixture() -> Agree:
    return _agree


@pytest.fixture(name="agree_or_fail")
def agree_or_fail_fixture() -> Callable[..., Traced | None]:
    return _agree_or_fail


@pytest.fixture(name="numbers")
def numbers_fixture() -> Callable[..., Any]:
    return numbers
