"""Every rule of the book, run: whatever factor is split, however unevenly, the result equals unsharded NumPy.

For each sample of an op, each factor of its rule is given each mesh; the rest of the program follows.  Even,
uneven, size-1 and empty dims; one and two mesh axes; all dtypes that apply; NaN and Inf.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Sample
from test_made import OPS as MADE

from shardwright.frontends.numpy import prepare, trace
from shardwright.frontends.numpy.kernels import KERNELS
from shardwright.frontends.numpy.trees import flatten
from shardwright.lower import lower
from shardwright.propagate import rule_of
from shardwright.propagate.complete import complete
from shardwright.rules import records
from shardwright.run import VirtualEngine, assemble, scatter
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.sharding import ShardingSpec

# StableHLO's forms, which NumPy does not have: their rules agree with Shardy's (tests/oracle); they are run when a
# frontend brings them.
ELSEWHERE = {
    "approx_top_k", "batch_norm_inference", "bitcast_convert", "cholesky", "convolution", "core.constant",
    "dynamic_slice", "dynamic_update_slice", "eigh", "fft", "householder_product", "qr", "reduce_window", "reverse",
    "rng", "rng_bit_generator", "select_and_scatter", "top_k", "triangular_solve",
}  # fmt: skip
LINE = [DeviceMesh("x=2"), DeviceMesh("x=3"), DeviceMesh("x=4")]
GRID = [DeviceMesh("x=2, y=2"), DeviceMesh("x=2, y=3")]
SIZES = {"even": (12, 12), "uneven": (7, 5), "ones": (1, 1), "empty": (0, 4)}
TOLERANCE = {"f": 1e-5, "d": 1e-12, "e": 5e-3, "D": 1e-12}


def test_every_op_is_run() -> None:
    """A rule without samples fails; so does an op that is said to stand elsewhere though NumPy can compute it."""
    names = {record.name for record in records() if not record.name.startswith("stablehlo.")}
    missing = names - set(SAMPLES) - MADE - ELSEWHERE
    assert not missing, f"no samples for {', '.join(sorted(missing))}"
    assert not ELSEWHERE & set(KERNELS), "NumPy can compute these: give them samples"


def arguments(sample: Sample, sizes: tuple[int, int], dtype: str, special: bool = False) -> list[np.ndarray]:
    """Arrays of the shapes a sample asks for."""
    random = np.random.default_rng(7)
    named = {"n": sizes[0], "m": sizes[1]}
    made: list[np.ndarray] = []
    for text in sample.shapes:
        dims, _, kind = text.partition(":")
        shape = tuple(named.get(word) if word in named else int(word) for word in dims.split())
        if kind in ("index", "distinct"):
            rows = sizes[0]
            index = random.integers(-rows, rows, shape) if kind == "index" else random.permutation(rows)[: shape[0]]
            made.append(index)
            continue
        made.append(_numbers(random, shape, kind or dtype, sample.domain, special))
    return made


def _numbers(random: Any, shape: tuple[int, ...], dtype: str, domain: str, special: bool) -> np.ndarray:
    if dtype == "?":
        return random.integers(0, 2, shape).astype(bool)
    if dtype == "i8":
        low, high = {"positive": (1, 9), "small": (0, 4)}.get(domain, (-5, 6))
        return random.integers(low, high, shape)
    values = random.standard_normal(shape)
    if domain == "positive":
        values = np.abs(values) + 0.5
    elif domain in ("unit", "small"):
        values = np.tanh(values)
    values = values.astype(dtype)
    if special and values.size > 3:
        values.flat[:: max(2, values.size // 3)] = np.nan
        values.flat[1] = np.inf
        values.flat[2] = -np.inf
    return values


def run_split(sample: Sample, args: list[np.ndarray], mesh: DeviceMesh, op: str, forced: Any) -> tuple[list, list]:
    """Outputs of the sharded program and of NumPy; ``forced(rule)`` gives axes for the factors of ``op``."""
    traced = trace(sample.fn, *args)
    graph = traced.graph
    nodes = {n: rule_of(graph, node) for n, node in enumerate(graph.nodes) if node.op == op}
    choices = {n: forced(view.rule) for n, view in nodes.items() if view is not None}
    specs = [ShardingSpec.replicate(mesh, value.type.rank) for value in graph.values]
    fixed = complete(graph, mesh, specs, rule_of, forced=choices)
    program = lower(fixed)
    inputs = [scatter(np.asarray(a), spec) for a, spec in zip([*args, *traced.consts], fixed.inputs)]
    outputs, executed = VirtualEngine(mesh, prepare).compile(program).run(inputs)
    assert executed.collectives == program.collectives
    whole = []
    for value, parts in zip(program.outputs, outputs):
        local = program.values[value]
        assert [part.shape for part in parts] == [local.local_shape(p) for p in mesh]
        whole.append(assemble(parts, local.spec, local.type.shape))
    expected = [np.asarray(leaf) for _, leaf in flatten(sample.fn(*args))[0]]
    return whole, expected


def same(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert found.shape == expected.shape, what
    assert found.dtype == expected.dtype, what
    if expected.dtype.kind in "fc":
        close = TOLERANCE[expected.dtype.char]
        np.testing.assert_allclose(found, expected, rtol=close, atol=close, equal_nan=True, err_msg=what)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=what)


def check(op: str, sample: Sample, args: list[np.ndarray], mesh: DeviceMesh, places: tuple[int, ...]) -> int:
    """Split factors by position: mesh axis i goes to factor places[i]; returns how many factors there are.

    None at all if these sizes do not fit the sample, or if NumPy needs no such op for them.
    """
    count = 0
    try:
        sample.fn(*args)
    except ValueError:
        return 0

    def forced(rule: Any) -> list[tuple]:
        nonlocal count
        count = max(count, len(rule.factors))
        axes: list[tuple] = [()] * len(rule.factors)
        for axis, f in zip(mesh.axes, places):
            if f < len(axes):
                axes[f] = (*axes[f], axis)
        return axes

    found, expected = run_split(sample, args, mesh, op, forced)
    for i, (a, b) in enumerate(zip(found, expected)):
        same(a, b, f"{op} {[x.shape for x in args]} on {mesh}, factors {places}, output {i}")
    return count


@pytest.mark.parametrize("op", [name for name in sorted(SAMPLES) if SAMPLES[name]])
def test_rule_by_execution(op: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's own, of the values
        for sample in SAMPLES[op]:
            split = 0
            for sizes in SIZES.values():
                if 0 in sizes and not sample.empty:
                    continue
                args = arguments(sample, sizes, sample.dtypes[0])
                for mesh in LINE:
                    f = 0
                    while f < check(op, sample, args, mesh, (f,)):
                        f += 1
                    split = max(split, f)
                for mesh in GRID:
                    factors = check(op, sample, args, mesh, (0, 0))
                    for places in itertools.product(range(factors), repeat=2):
                        check(op, sample, args, mesh, places)
            for dtype in sample.dtypes[1:]:
                check(op, sample, arguments(sample, (6, 4), dtype), LINE[0], (0,))
                check(op, sample, arguments(sample, (5, 7), dtype), LINE[1], (1,))
            if sample.dtypes[0] == "f8":
                special = arguments(sample, (6, 4), "f8", special=True)
                for f in range(3):
                    check(op, sample, special, LINE[0], (f,))
            assert split, f"a sample of {op} never splits it"


def test_a_wrong_rule_is_noticed() -> None:
    """The check itself must bite: a rule that lets the sorted dim be split gives other numbers."""
    from shardwright.propagate.engine import OpView
    from shardwright.spec.rule import OpShardingRule

    sample = Sample(lambda x: np.sort(x, axis=0), ("n m",))
    args = arguments(sample, (8, 4), "f8")
    traced = trace(sample.fn, *args)
    mesh = LINE[0]
    wrong = OpView(OpShardingRule.parse("i j -> i j | i=8 j=4"))
    specs = [ShardingSpec.replicate(mesh, value.type.rank) for value in traced.graph.values]
    forced = {n: [(mesh.axes[0],), ()] for n, node in enumerate(traced.graph.nodes) if node.op == "sort"}
    fixed = complete(
        traced.graph, mesh, specs, lambda g, node: wrong if node.op == "sort" else rule_of(g, node), forced=forced
    )
    program = lower(fixed)
    outputs = VirtualEngine(mesh, prepare).compile(program)([scatter(args[0], fixed.inputs[0])])
    local = program.values[program.outputs[0]]
    assert not np.array_equal(assemble(outputs[0], local.spec, local.type.shape), np.sort(args[0], axis=0))
